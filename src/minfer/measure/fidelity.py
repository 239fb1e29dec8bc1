"""How far a run of a model is from another: KL divergence, agreement on the best token, perplexity.

The base run is kept as the log probabilities of its `KEPT` most likely tokens at every position and
of the token that really came; everything else of the distribution counts as one token. With p the
base's probabilities and q the run's:

    KL = sum p (log p - log q) + p_rest log(p_rest / q_rest)

which is never more than the divergence of the full distributions, and all but equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from minfer.engine import Engine
from minfer.errors import FormatError
from minfer.measure.scoring import Chunks, Estimate, log_softmax, perplexity, score

KEPT = 256
FORMAT = "minfer-logits 1"
LEAST = 1e-12
"""Probability of the rest at least: beyond it rounding decides."""
PERCENTILES = (50, 90, 95, 99, 99.9, 100)


@dataclass(frozen=True)
class Base:
    """A run to compare with.

    Attributes:
        about: what it was, for people.
        chunks: the text.
        top_ids: the most likely tokens, best first, [n_positions, KEPT].
        top_log: their log probabilities.
        next_log: log probability of the token that came, [n_positions].
    """

    about: str
    chunks: Chunks
    top_ids: NDArray[np.int32]
    top_log: NDArray[np.float32]
    next_log: NDArray[np.float32]

    @property
    def n_chunks(self) -> int:
        """Chunks whose every position is there: fewer than the text's after an interruption."""
        return len(self.top_ids) // self.chunks.n_scored


@dataclass(frozen=True)
class Distances:
    """How a run differs from its base, position by position.

    Attributes:
        kl: divergence from the base, [n].
        same_best: whether both find the same token most likely, [n].
        nll: negative log probability of the token that came, [n].
        base_nll: the base's.
    """

    kl: NDArray[np.float64]
    same_best: NDArray[np.bool_]
    nll: NDArray[np.float64]
    base_nll: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.kl)

    @property
    def mean_kl(self) -> Estimate:
        """Mean divergence."""
        return Estimate.of(self.kl)

    @property
    def top1(self) -> Estimate:
        """Share of positions with the same best token."""
        return Estimate.of(self.same_best.astype(np.float64))

    @property
    def perplexity(self) -> Estimate:
        """Of the run."""
        return perplexity(self.nll)

    @property
    def base_perplexity(self) -> Estimate:
        """Of the base, over the same positions."""
        return perplexity(self.base_nll)

    @property
    def log_ratio(self) -> Estimate:
        """Logarithm of the ratio of both perplexities: what differs, without what both share."""
        return Estimate.of(self.nll - self.base_nll)

    def percentile(self, share: float) -> float:
        """The divergence that `share` percent of positions do not exceed."""
        return float(np.percentile(self.kl, share))


def divergence(
    logs: NDArray[np.float64],
    top_ids: NDArray[np.integer[Any]],
    top_log: NDArray[np.floating[Any]],
) -> NDArray[np.float64]:
    """KL divergence of rows of log probabilities from the base's likeliest tokens and their rest.

    Args:
        logs: [rows, n_vocab].
        top_ids, top_log: the base's tokens and their log probabilities, [rows, any].
    """
    log_p = top_log.astype(np.float64)
    log_q = np.take_along_axis(logs, top_ids.astype(np.int64), axis=1)
    p = np.exp(log_p)
    p_rest = np.maximum(1.0 - p.sum(axis=1), LEAST)
    q_rest = np.maximum(1.0 - np.exp(log_q).sum(axis=1), LEAST)
    kl = (p * (log_p - log_q)).sum(axis=1) + p_rest * np.log(p_rest / q_rest)
    return np.asarray(np.maximum(kl, 0.0))


def record_base(engine: Engine, chunks: Chunks, about: str) -> Iterator[Base]:
    """Run the base, chunk by chunk: what it knows by then."""
    top_ids: list[NDArray[np.int32]] = []
    top_log: list[NDArray[np.float32]] = []
    next_log: list[NDArray[np.float32]] = []
    for part in score(engine, chunks):
        logs = log_softmax(part.logits)
        kept = min(KEPT, logs.shape[1])
        ids = np.argpartition(-logs, kept - 1, axis=1)[:, :kept]
        best = np.take_along_axis(logs, ids, axis=1)
        order = np.argsort(-best, axis=1, kind="stable")
        top_ids.append(np.take_along_axis(ids, order, axis=1).astype(np.int32))
        top_log.append(np.take_along_axis(best, order, axis=1).astype(np.float32))
        n_rows = len(logs)
        next_log.append(logs[np.arange(n_rows), part.targets].astype(np.float32))
        if part.row + n_rows == chunks.n_scored:
            known = (np.concatenate(top_ids), np.concatenate(top_log), np.concatenate(next_log))
            yield Base(about, chunks, *known)


def compare(engine: Engine, base: Base, *, single: bool = False) -> Iterator[Distances]:
    """Run a model over the base's text, chunk by chunk: all distances by then."""
    kl: list[NDArray[np.float64]] = []
    same: list[NDArray[np.bool_]] = []
    nll: list[NDArray[np.float64]] = []
    text = Chunks(base.chunks.ids[: base.n_chunks], base.chunks.first)
    for part in score(engine, text, single=single):
        rows = slice(part.chunk * text.n_scored + part.row, None)
        n_rows = len(part.logits)
        top_ids, top_log = base.top_ids[rows][:n_rows], base.top_log[rows][:n_rows]
        logs = log_softmax(part.logits)
        kl.append(divergence(logs, top_ids, top_log))
        same.append(logs.argmax(axis=1) == top_ids[:, 0])
        nll.append(-logs[np.arange(n_rows), part.targets])
        if part.row + n_rows == text.n_scored:
            done = (part.chunk + 1) * text.n_scored
            before = -base.next_log[:done].astype(np.float64)
            yield Distances(np.concatenate(kl), np.concatenate(same), np.concatenate(nll), before)


def save_base(base: Base, path: Path) -> None:
    """Write a base run, so that later runs need not compute it again."""
    with path.open("wb") as file:
        np.savez_compressed(
            file,
            format=np.array(FORMAT),
            about=np.array(base.about),
            ids=base.chunks.ids,
            first=np.array(base.chunks.first),
            top_ids=base.top_ids,
            top_log=base.top_log,
            next_log=base.next_log,
        )


def load_base(path: Path) -> Base:
    """Read what `save_base` wrote.

    Raises:
        FormatError: if the file is anything else.
    """
    remedy = "Write one with `minfer fidelity MODEL -f TEXT --save-base FILE`"
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if str(file["format"]) != FORMAT:
                raise FormatError(
                    f"holds {str(file['format'])!r}, not {FORMAT!r}", where=str(path), remedy=remedy
                )
            chunks = Chunks(file["ids"], int(file["first"]))
            return Base(
                str(file["about"]), chunks, file["top_ids"], file["top_log"], file["next_log"]
            )
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, KeyError, TypeError, BadZipFile, EOFError):
        raise FormatError("holds no saved logits", where=str(path), remedy=remedy) from None
