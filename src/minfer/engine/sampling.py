"""Choosing the next token from logits: penalties, filters, draw. NumPy on one row.

The order is llama.cpp's: logit bias, penalties, DRY, then (unless greedy) top-k, typical, top-p,
min-p, XTC, temperature, draw; mirostat replaces the filters. The filters work on a short list of
candidates, sorted by falling logit, so that the cost a token does not grow with the vocabulary;
where a filter might reach past the list, all tokens are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.engine.params import SamplingParams
from minfer.engine.penalties import apply_penalties, changes_logits, fits_window
from minfer.errors import BackendError, GrammarError, RequestError
from minfer.graph import PENALTY_WINDOW

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
Values = NDArray[np.float64]
SHORT_LIST = 4096
"""Candidates sorted at first where top-k is off."""
NO_PENALTY = (1.0, 0.0, 0.0)
"""The row of the `penalize` op's input that changes nothing."""
COLDEST = 1e-30
"""The least temperature to divide by: only the maxima are left long before it."""


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


def no_finite_logits() -> BackendError:
    """The error of a row of logits that has no finite maximum."""
    return BackendError(
        "the model computed NaN or infinite logits",
        where="logits",
        remedy="Check the file with `minfer info`, or try --cache-type f32",
    )


class Sampler:
    """The state of one request's sampling: its random numbers, its mirostat, its constraint."""

    def __init__(self, params: SamplingParams, constraint: Constraint | None = None) -> None:
        self.params = params
        self.seed = params.seed if params.seed is not None else _fresh_seed()
        self._random = np.random.Generator(np.random.PCG64(self.seed & ((1 << 64) - 1)))
        self._temperature = max(params.temperature, COLDEST)
        self._surprise = 2.0 * params.mirostat_tau
        self._constraint = constraint

    @property
    def fits_device(self) -> bool:
        """Whether a backend's ops can choose in this sampler's place.

        `sample` knows temperature, top-k, top-p and min-p, `penalize` the cost of recent tokens;
        everything else looks at the logits here.
        """
        p = self.params
        return (
            self._constraint is None
            and p.logprobs is None
            and (self.penalizes or not changes_logits(p))
            and (p.is_greedy or (p.typical_p >= 1.0 and not p.mirostat))
            and (p.is_greedy or p.xtc_probability == 0.0)
        )

    @property
    def penalizes(self) -> bool:
        """Whether it needs the `penalize` op, and that is enough."""
        return fits_window(self.params, PENALTY_WINDOW + 1)

    def penalty_row(self) -> tuple[float, float, float]:
        """The row of the `penalize` op's input."""
        p = self.params
        if not self.penalizes:
            return NO_PENALTY
        return p.repeat_penalty, p.frequency_penalty, p.presence_penalty

    def recent(self, tokens: Sequence[int], end: int) -> Sequence[int]:
        """The tokens before place `end` that cost something besides the one there."""
        n = self.params.repeat_last_n - 1 if self.penalizes else 0
        return tokens[max(0, end - n) : end]

    def device_row(self) -> tuple[float, float, float, float, float]:
        """The row of the `sample` op's input that chooses the next token; takes a random number."""
        p = self.params
        if p.is_greedy:
            return 0.0, 1.0, 1.0, 0.0, 0.0
        return self._temperature, p.top_k, p.top_p, p.min_p, self._random.random()

    def choose(self, logits: Logits, history: Sequence[int]) -> Choice:
        """Pick a token.

        Args:
            logits: [n_vocab]; changed in place.
            history: tokens so far, prompt included.

        Raises:
            BackendError: if the logits hold no finite maximum.
            GrammarError: if the constraint allows no token.
            RequestError: if the logit bias allows none.
        """
        p = self.params
        best = int(logits.argmax())  # the first NaN, where there is one
        if not math.isfinite(logits[best]):
            raise no_finite_logits()
        model = logits.copy() if p.logprobs is not None else None
        changed = apply_penalties(logits, p, history)
        if self._constraint is not None:
            self._constraint.mask(logits)
        if changed or self._constraint is not None:
            best = int(logits.argmax())
            if logits[best] == -math.inf:
                self._refuse()
        token = best if p.is_greedy else self._draw(logits)
        if self._constraint is not None:
            self._constraint.accept(token)
        return Choice(token) if model is None else _with_logprobs(token, model, p.logprobs or 0)

    def _refuse(self) -> None:
        if self._constraint is not None:
            raise GrammarError("the grammar allows no token here", where="grammar")
        raise RequestError("every token is forbidden", where="logit_bias")

    def _draw(self, logits: Logits) -> int:
        p = self.params
        if p.mirostat:
            return self._draw_mirostat(logits)
        filters_off = (p.top_k, p.typical_p, p.top_p, p.min_p, p.xtc_probability) == (0, 1, 1, 0, 0)
        if filters_off:
            return self._draw_unfiltered(logits)
        ids, values, log_total = self._candidates(logits)
        if p.typical_p < 1.0:
            kept = self._typical(values)
            ids, values = ids[kept], values[kept]
            log_total = log_sum_exp(values)
        count = min(self._top_p(values, log_total), self._min_p(values))
        start = self._xtc(values[:count])
        return int(ids[start + self._pick(_softmax(values[start:count], self._temperature))])

    def _draw_unfiltered(self, logits: Logits) -> int:
        """A token by probability alone; ranked, too, so that a device's choice is the same."""
        log_total = log_sum_exp(logits, self._temperature)
        drawn = self._random.random()
        for n in (SHORT_LIST, logits.size):
            ids, values = top_candidates(logits, n)
            reached = np.exp(values / self._temperature - log_total).cumsum()
            if drawn < reached[-1]:
                return int(ids[reached.searchsorted(drawn, side="right")])
        return int(ids[reached.searchsorted(reached[-1])])  # sums are rounded

    def _candidates(self, logits: Logits) -> tuple[Ids, Values, float]:
        """Ids and logits of what the filters need to see, falling; log-sum-exp of all they may."""
        p = self.params
        if p.top_k:
            ids, values = top_candidates(logits, p.top_k)
            return ids, values, log_sum_exp(values)
        log_total = log_sum_exp(logits)
        ids, values = top_candidates(logits, SHORT_LIST)
        within = p.typical_p >= 1.0 and (
            self._top_p(values, log_total) < values.size or self._min_p(values) < values.size
        )
        if not within and values.size == SHORT_LIST:
            ids, values = top_candidates(logits, logits.size)
        return ids, values, log_total

    def _typical(self, values: Values) -> Ids:
        """Places of the tokens whose surprise is nearest to the average."""
        probabilities = _softmax(values)
        surprise = -np.log(np.maximum(probabilities, 1e-300))
        order = np.argsort(np.abs(surprise - (probabilities * surprise).sum()), kind="stable")
        count = int(probabilities[order].cumsum().searchsorted(self.params.typical_p)) + 1
        return np.sort(order[:count])

    def _top_p(self, values: Values, log_total: float) -> int:
        """How many tokens it takes to reach the probability."""
        if self.params.top_p >= 1.0:
            return values.size
        reached = np.exp(values - log_total).cumsum()
        return min(int(reached.searchsorted(self.params.top_p)) + 1, values.size)

    def _min_p(self, values: Values) -> int:
        """How many tokens have a sufficient share of the best one's probability."""
        if self.params.min_p <= 0.0:
            return values.size
        return int((values >= values[0] + math.log(self.params.min_p)).sum())

    def _xtc(self, values: Values) -> int:
        """How many of the leading tokens are left out."""
        p = self.params
        if p.xtc_probability <= 0.0 or p.xtc_threshold > 0.5 or values.size < 2:
            return 0
        if self._random.random() >= p.xtc_probability:
            return 0
        above = int((_softmax(values) >= p.xtc_threshold).sum())
        return max(0, above - 1)

    def _draw_mirostat(self, logits: Logits) -> int:
        p = self.params
        log_total = log_sum_exp(logits, self._temperature)
        ids, values = top_candidates(logits, SHORT_LIST)
        count = self._unsurprising(values, log_total)
        if count == SHORT_LIST:
            ids, values = top_candidates(logits, logits.size)
            count = self._unsurprising(values, log_total)
        probabilities = _softmax(values[: max(1, count)], self._temperature)
        chosen = self._pick(probabilities)
        observed = -math.log2(max(probabilities[chosen], 1e-300))
        self._surprise -= p.mirostat_eta * (observed - p.mirostat_tau)
        return int(ids[chosen])

    def _unsurprising(self, values: Values, log_total: float) -> int:
        """How many tokens have no more surprise, in bits, than mirostat allows now."""
        surprise = (log_total - values / self._temperature) / math.log(2.0)
        return int((surprise <= self._surprise).sum())

    def _pick(self, probabilities: Values) -> int:
        """A place drawn by probability; never one of probability 0."""
        reached = probabilities.cumsum()
        place = int(reached.searchsorted(self._random.random() * reached[-1], side="right"))
        # rounding may take the product up to the sum itself
        return place if place < reached.size else int(reached.searchsorted(reached[-1]))


def top_candidates(logits: Logits, k: int) -> tuple[Ids, Values]:
    """The k largest logits and their ids, falling; equal logits in rising order of ids.

    Those of -inf are left out. The k-th largest of the maxima of groups bounds the k-th largest
    logit from below, so one pass and a small sort suffice.
    """
    n = logits.size
    k = min(k, n)
    n_groups = min(n, 8 * k)
    depth = n // n_groups
    bound = -math.inf
    if depth > 1:
        maxima = logits[: depth * n_groups].reshape(depth, n_groups).max(axis=0)
        bound = float(np.partition(maxima, n_groups - k)[n_groups - k])
    ids = np.flatnonzero(logits >= bound if bound > -math.inf else logits > bound)
    values = logits[ids]
    if ids.size > 4 * k:  # many equal ones: take the k-th largest itself as the bound
        bound = float(np.partition(values, ids.size - k)[ids.size - k])
        above = np.flatnonzero(values > bound)
        equal = np.flatnonzero(values == bound)[: k - above.size]
        kept = np.sort(np.concatenate([above, equal]))
        ids, values = ids[kept], values[kept]
    order = np.argsort(-values, kind="stable")[:k]
    return ids[order], values[order].astype(np.float64)


def log_softmax(logits: Logits) -> Values:
    """Natural log of the probabilities, [n_vocab]."""
    values = logits.astype(np.float64)
    return np.asarray(values - log_sum_exp(values))


def log_sum_exp(values: NDArray[Any], temperature: float = 1.0) -> float:
    """`log(sum(exp(values / temperature)))`; at least one value must be finite."""
    powers = _powers(values, temperature)
    return float(values.max()) / temperature + math.log(powers.sum(dtype=np.float64))


def _softmax(values: NDArray[Any], temperature: float = 1.0) -> Values:
    powers = _powers(values, temperature).astype(np.float64)
    return np.asarray(powers / powers.sum())


def _powers(values: NDArray[Any], temperature: float) -> NDArray[Any]:
    """`exp(values / temperature)`, scaled so that the largest is 1, in the type of `values`."""
    with np.errstate(over="ignore"):  # of what the lowest temperatures divide
        return np.asarray(np.exp((values - values.max()) / temperature))


def _fresh_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))


def _with_logprobs(token: int, logits: Logits, n_top: int) -> Choice:
    """The choice of `token` with log probabilities by the model's own `logits`."""
    log_total = log_sum_exp(logits)
    top: tuple[tuple[int, float], ...] = ()
    if n_top:
        ids, values = top_candidates(logits, n_top)
        top = tuple(zip(ids.tolist(), (values - log_total).tolist(), strict=True))
    return Choice(token, float(logits[token]) - log_total, top)
