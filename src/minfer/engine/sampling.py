"""Choosing the next token from logits: penalties, filters, draw. NumPy on one row.

The order is llama.cpp's: logit bias, penalties, DRY, then (unless greedy) top-k, typical, top-p,
min-p, XTC, temperature, draw; mirostat replaces the filters. The filters work on a short list of
candidates, sorted by falling logit, so that the cost a token does not grow with the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.engine.params import SamplingParams
from minfer.errors import BackendError, GrammarError

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
CANDIDATES_WITHOUT_TOP_K = 4096
"""Tokens kept when top-k is off: what lies beyond has no probability worth a sort."""


class Constraint(Protocol):
    """What a grammar may forbid."""

    def mask(self, logits: Logits) -> None:
        """Set the logits of forbidden tokens to -inf, in place."""

    def accept(self, token: int) -> None:
        """Advance past a chosen token."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token; log probabilities are of the model, before any sampler.

    Attributes:
        token: its id.
        logprob: natural log of its probability, None when not asked for.
        top: the most likely alternatives and their log probabilities, best first.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """The state of one request's sampling: its random numbers, its mirostat, its constraint."""

    def __init__(self, params: SamplingParams, constraint: Constraint | None = None) -> None:
        self.params = params
        self.seed = params.seed if params.seed is not None else _fresh_seed()
        self._random = np.random.Generator(np.random.PCG64(self.seed & ((1 << 64) - 1)))
        self._surprise = 2.0 * params.mirostat_tau
        self._constraint = constraint

    def choose(self, logits: Logits, history: Sequence[int]) -> Choice:
        """Pick a token.

        Args:
            logits: [n_vocab]; changed in place.
            history: tokens so far, prompt included.

        Raises:
            BackendError: if the logits hold no finite maximum.
            GrammarError: if the constraint allows no token.
        """
        p = self.params
        if not np.isfinite(logits.max()):
            raise BackendError(
                "the model computed NaN or infinite logits",
                where="logits",
                remedy="Check the file with `minfer info`, or try --cache-type f32",
            )
        record = log_softmax(logits) if p.logprobs is not None else None
        _apply_penalties(logits, p, history)
        if self._constraint is not None:
            self._constraint.mask(logits)
            if logits.max() == -math.inf:
                raise GrammarError("the grammar allows no token here", where="grammar")
        token = int(logits.argmax()) if p.is_greedy else self._draw(logits)
        if self._constraint is not None:
            self._constraint.accept(token)
        return _choice(token, record, p.logprobs)

    def _draw(self, logits: Logits) -> int:
        p = self.params
        if p.mirostat:
            return self._draw_mirostat(logits)
        ids, values = top_candidates(logits, p.top_k or CANDIDATES_WITHOUT_TOP_K)
        for keep in (self._typical, self._top_p, self._min_p, self._xtc):
            if ids.size > 1:
                kept = keep(values)
                ids, values = ids[kept], values[kept]
        return int(ids[self._pick(_softmax(values / p.temperature))])

    def _pick(self, probabilities: NDArray[np.float64]) -> int:
        cumulative = probabilities.cumsum()
        return min(
            int(cumulative.searchsorted(self._random.random() * cumulative[-1], side="right")),
            probabilities.size - 1,
        )

    def _typical(self, values: NDArray[np.float64]) -> Ids:
        if self.params.typical_p >= 1.0:
            return np.arange(values.size)
        probabilities = _softmax(values)
        surprise = -np.log(np.maximum(probabilities, 1e-300))
        order = np.argsort(np.abs(surprise - (probabilities * surprise).sum()), kind="stable")
        count = int(probabilities[order].cumsum().searchsorted(self.params.typical_p)) + 1
        return np.sort(order[:count])

    def _top_p(self, values: NDArray[np.float64]) -> Ids:
        if self.params.top_p >= 1.0:
            return np.arange(values.size)
        count = int(_softmax(values).cumsum().searchsorted(self.params.top_p)) + 1
        return np.arange(min(count, values.size))

    def _min_p(self, values: NDArray[np.float64]) -> Ids:
        if self.params.min_p <= 0.0:
            return np.arange(values.size)
        return np.flatnonzero(values >= values[0] + math.log(self.params.min_p))

    def _xtc(self, values: NDArray[np.float64]) -> Ids:
        p = self.params
        everything = np.arange(values.size)
        if p.xtc_probability <= 0.0 or p.xtc_threshold > 0.5:
            return everything
        if self._random.random() >= p.xtc_probability:
            return everything
        above = int((_softmax(values) >= p.xtc_threshold).sum())
        return everything[max(0, above - 1) :]

    def _draw_mirostat(self, logits: Logits) -> int:
        p = self.params
        ids, values = top_candidates(logits, CANDIDATES_WITHOUT_TOP_K)
        probabilities = _softmax(values / p.temperature)
        surprise = -np.log2(np.maximum(probabilities, 1e-300))
        count = max(1, int((surprise <= self._surprise).sum()))
        chosen = self._pick(probabilities[:count])
        total = probabilities[:count].sum()
        observed = -math.log2(max(probabilities[chosen] / total, 1e-300))
        self._surprise -= p.mirostat_eta * (observed - p.mirostat_tau)
        return int(ids[chosen])


def top_candidates(logits: Logits, k: int) -> tuple[Ids, NDArray[np.float64]]:
    """The k largest logits and their ids, falling; equal logits in rising order of ids.

    The k-th largest of block maxima bounds the k-th largest logit from below, so one pass and a
    small sort suffice.
    """
    n = logits.size
    k = min(k, n)
    block = max(1, n // (8 * k))
    if block > 1:
        whole = n - n % block
        maxima = logits[:whole].reshape(-1, block).max(axis=1)
        bound = np.partition(maxima, maxima.size - k)[maxima.size - k]
        ids = np.flatnonzero(logits >= bound)
    else:
        ids = np.arange(n)
    order = np.lexsort((ids, -logits[ids]))[:k]
    kept = ids[order]
    values = logits[kept].astype(np.float64)
    finite = values > -math.inf
    return kept[finite], values[finite]


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Natural log of the probabilities, [n_vocab]."""
    values = logits.astype(np.float64)
    values -= values.max()
    return np.asarray(values - math.log(np.exp(values).sum()))


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(values - values.max())
    return np.asarray(e / e.sum())


def _fresh_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))


def _choice(token: int, record: NDArray[np.float64] | None, n_top: int | None) -> Choice:
    if record is None or n_top is None:
        return Choice(token)
    top: tuple[tuple[int, float], ...] = ()
    if n_top:
        ids, values = top_candidates(record.astype(np.float32), n_top)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Choice(token, float(record[token]), top)


def _apply_penalties(logits: Logits, p: SamplingParams, history: Sequence[int]) -> None:
    """Logit bias, repetition penalties and DRY, in place."""
    for token, bias in p.logit_bias.items():
        if 0 <= token < logits.size:
            logits[token] += np.float32(bias)
    penalised = p.repeat_penalty != 1.0 or p.frequency_penalty or p.presence_penalty
    if penalised and p.repeat_last_n and history:
        recent = history if p.repeat_last_n < 0 else history[-p.repeat_last_n :]
        ids, counts = np.unique(np.asarray(recent, np.int64), return_counts=True)
        values = logits[ids]
        factor = np.float32(p.repeat_penalty)
        values = np.where(values > 0, values / factor, values * factor)
        values -= counts.astype(np.float32) * np.float32(p.frequency_penalty)
        logits[ids] = values - np.float32(p.presence_penalty)
    if p.dry_multiplier > 0.0 and p.dry_penalty_last_n:
        recent = history if p.dry_penalty_last_n < 0 else history[-p.dry_penalty_last_n :]
        for token, length in _repeats(recent, frozenset(p.dry_sequence_breakers)).items():
            if length >= p.dry_allowed_length:
                # the exponent is bounded so that the penalty stays a finite number
                exponent = min(length - p.dry_allowed_length, 88.0 / math.log(p.dry_base + 1e-9))
                logits[token] -= np.float32(p.dry_multiplier * p.dry_base**exponent)


def _repeats(history: Sequence[int], breakers: frozenset[int]) -> dict[int, int]:
    """For each token that would continue a repeat of the history's end: the longest such repeat.

    Uses the Z-function of the reversed history: linear in its length.
    """
    ended = list(reversed(history))
    for index, token in enumerate(ended):
        if token in breakers:
            ended = ended[:index]
            break
    limit = len(ended)
    text = list(reversed(history))
    n = len(text)
    z = [0] * n
    left = right = 0
    for i in range(1, n):
        if i < right:
            z[i] = min(right - i, z[i - left])
        while i + z[i] < n and text[z[i]] == text[i + z[i]]:
            z[i] += 1
        if i + z[i] > right:
            left, right = i, i + z[i]
    longest: dict[int, int] = {}
    for i in range(1, n):
        length = min(z[i], limit)
        if length:
            token = text[i - 1]
            longest[token] = max(longest.get(token, 0), length)
    return longest
