"""Sequences that wait for room, and whose turn it is.

Clients take turns: the one with the fewest sequences running goes first, so that a client that
queues a hundred requests does not keep the others out. A sequence that lost its pages goes before
all of them. One whose prompt begins like a prompt being computed waits for that one: it will find
the pages in the prefix cache instead of computing them again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from minfer.engine.sequence import Sequence, State
from minfer.graph import PAGE


class Waiting:
    """The queue in front of an engine.

    Args:
        share_prefixes: whether a prompt may wait for another that begins like it.
    """

    def __init__(self, *, share_prefixes: bool) -> None:
        self._again: deque[Sequence] = deque()
        self._new: dict[Sequence, None] = {}  # in order of arrival
        self._share_prefixes = share_prefixes

    def __len__(self) -> int:
        return len(self._again) + len(self._new)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._again
        yield from self._new

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._new or sequence in self._again

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end."""
        self._new[sequence] = None

    def put_back(self, sequence: Sequence) -> None:
        """Put a sequence that ran already before all others."""
        self._again.appendleft(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, if it is here."""
        self._new.pop(sequence, None)
        if sequence in self._again:
            self._again.remove(sequence)

    def next(self, running: Seq[Sequence]) -> Sequence | None:
        """Whose turn it is beside those that run; None if nobody waits or all wait for others."""
        if self._again:
            return self._again[0]
        n_running = Counter(s.client for s in running)
        computing = [s for s in running if s.state is State.PREFILLING]
        best: Sequence | None = None
        for sequence in self._new:
            if best is None or n_running[sequence.client] < n_running[best.client]:
                if self._share_prefixes and any(_is_computing(s, sequence) for s in computing):
                    continue
                best = sequence
        return best


def _is_computing(run: Sequence, other: Sequence) -> bool:
    """Whether `run`, still at its prompt, computes a whole page that `other` could share."""
    if run.reuse_decoded and not other.reuse_decoded:
        return False  # its pages are not exact enough
    common = run.n_cached // PAGE * PAGE
    limit = min(run.n_prompt, other.n_prompt - 1) - PAGE
    return common <= limit and run.tokens[: common + PAGE] == other.tokens[: common + PAGE]
