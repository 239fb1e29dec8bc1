"""Running a model over a text: the logits of every scored position, chunk by chunk.

As llama.cpp's perplexity tool does it: the text is cut into chunks of `n_ctx` tokens, each begins
with BOS where the model wants one, and only the second half is scored, so that every prediction has
at least half a chunk before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.engine import Engine
from minfer.errors import RequestError
from minfer.text import Tokenizer

Logits = NDArray[np.float32]
ROWS = 64
"""Rows of logits in memory at a time: a vocabulary of 150,000 makes 600 KB of each."""


@dataclass(frozen=True)
class Chunks:
    """A text as token ids, ready to be scored.

    Attributes:
        ids: [n_chunks, n_ctx].
        first: position of the first token whose prediction of the next is scored.
    """

    ids: NDArray[np.int32]
    first: int

    @property
    def n_scored(self) -> int:
        """Predictions scored in a chunk."""
        return int(self.ids.shape[1]) - 1 - self.first

    def __len__(self) -> int:
        return len(self.ids)


def cut(tokenizer: Tokenizer, text: str, n_ctx: int, limit: int | None = None) -> Chunks:
    """Cut a text into chunks, dropping what is left at the end.

    Raises:
        RequestError: if the text has less than one chunk.
    """
    if n_ctx < 4:
        raise RequestError(f"value {n_ctx} is less than 4", where="-c")
    ids = tokenizer.encode(text)
    n_chunks = len(ids) // n_ctx
    if not n_chunks:
        raise RequestError(
            f"the text has {len(ids)} tokens, a chunk {n_ctx}",
            where="-f",
            remedy="Give a longer text or a smaller -c",
        )
    n_chunks = n_chunks if limit is None else min(n_chunks, limit)
    table = np.asarray(ids[: n_chunks * n_ctx], np.int32).reshape(n_chunks, n_ctx).copy()
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        table[:, 0] = tokenizer.bos_id
    return Chunks(table, n_ctx // 2)


@dataclass(frozen=True)
class Scored:
    """Some rows of a chunk.

    Attributes:
        logits: [rows, n_vocab].
        targets: the tokens that come next, [rows].
        chunk: number of the chunk.
        row: number of the first row among the scored ones of its chunk.
    """

    logits: Logits
    targets: NDArray[np.int32]
    chunk: int
    row: int


def score(engine: Engine, chunks: Chunks, *, single: bool = False) -> Iterator[Scored]:
    """Compute every chunk; `single` takes the decode path for the scored half."""
    n_ctx = chunks.ids.shape[1]
    with engine.lane(n_ctx) as lane:
        for number, ids in enumerate(chunks.ids):
            tokens = ids.tolist()
            lane.rewind(0)
            lane.compute(tokens[: chunks.first], wanted="last")
            for start in range(chunks.first, n_ctx - 1, ROWS):
                part = tokens[start : min(start + ROWS, n_ctx - 1)]
                logits = lane.compute(part, single=single, wanted="all")
                targets = ids[start + 1 : start + 1 + len(part)]
                yield Scored(logits, targets, number, start - chunks.first)


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Log probabilities of each row, in double precision."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


@dataclass(frozen=True)
class Estimate:
    """A mean and the standard error of it."""

    value: float
    error: float

    @staticmethod
    def of(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
        """The mean of independent values."""
        array = np.asarray(values, np.float64)
        spread = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else math.nan
        return Estimate(float(array.mean()), spread)


def perplexity(nll: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """The perplexity of predictions, from the negative log probability of what really came."""
    mean = Estimate.of(nll)
    value = math.exp(mean.value)
    return Estimate(value, value * mean.error)
