"""A sequence computed by hand, beside the batcher: for measuring, comparing and scanning texts.

Nothing is sampled and nothing is shared with other sequences; its caller says which tokens come
next, by which path, and which logits are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from minfer.engine.batcher import Chunk
from minfer.engine.sequence import Sequence as Run
from minfer.errors import ContextFullError

Wanted = Literal["all", "last", "hidden"]
Forward = Callable[[Chunk, Wanted], NDArray[np.float32]]


class Lane:
    """Tokens one after another in cells of their own. Close it to give them back.

    Args:
        run: a sequence that has its slot and its pages.
        checked: answers tokens as plain integers, or refuses them.
        forward: computes a chunk of it.
        leave: takes back its slot and pages.
        chunk: tokens a step of the many-rows path takes at most.
    """

    def __init__(
        self,
        run: Run,
        checked: Callable[[Sequence[int]], list[int]],
        forward: Forward,
        leave: Callable[[Run], None],
        chunk: int,
    ) -> None:
        self._run = run
        self._checked = checked
        self._forward = forward
        self._leave = leave
        self._chunk = chunk
        self._tokens: list[int] = run.tokens
        self._n_max = len(run.tokens)
        self._tokens.clear()

    def __len__(self) -> int:
        """Tokens computed so far."""
        return len(self._tokens)

    def compute(
        self, tokens: Sequence[int], *, single: bool = False, wanted: Wanted = "last"
    ) -> NDArray[np.float32]:
        """Compute `tokens` after those before them, and wait for the result.

        Args:
            tokens: not more than the lane has room for.
            single: take the row-at-a-time path (decode), a step a token.
            wanted: `last` answers the logits of the last token, [1, n_vocab]; `all` of each;
                `hidden` the final hidden state of each, [n, width].

        Raises:
            RequestError: if there are none, or one is outside of the vocabulary.
            ContextFullError: if they do not fit.
        """
        ids = self._checked(tokens)
        if len(self) + len(ids) > self._n_max:
            raise ContextFullError(len(self) + len(ids), self._n_max)
        step = 1 if single else self._chunk
        found = []
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            chunk = Chunk(self._run, len(self._tokens), len(part), single)
            self._tokens.extend(part)
            found.append(self._forward(chunk, wanted))
        return found[-1] if wanted == "last" else np.concatenate(found)

    def rewind(self, n_tokens: int) -> None:
        """Forget the tokens after the first `n_tokens`."""
        del self._tokens[n_tokens:]

    def close(self) -> None:
        """Give back slot and pages. Closing twice is allowed."""
        if self._run.slot >= 0:
            self._leave(self._run)

    def __enter__(self) -> Lane:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
