"""The sampler against slow, independent definitions of every filter, and at its edges."""

from __future__ import annotations

import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from minfer.engine import (
    Choice,
    Sampler,
    SamplingParams,
    log_softmax,
    top_candidates,
)
from minfer.engine import sampling as module
from minfer.errors import BackendError, GrammarError, RequestError

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
Logits = NDArray[np.float32]

values = st.one_of(
    st.floats(-20, 20, width=32), st.sampled_from([0.0, 1.0, -1.0, 5.0]), st.just(-math.inf)
)
rows = st.lists(values, min_size=1, max_size=60).map(lambda v: np.array(v, np.float32))
finite_rows = rows.filter(lambda v: np.isfinite(v).any())


def row(*numbers: float) -> Logits:
    return np.array(numbers, np.float32)


def chances(logits: Logits, temperature: float = 1.0) -> dict[int, float]:
    """Probability of each token, by plain arithmetic."""
    best = max(logits.tolist())
    powers = {i: math.exp((v - best) / temperature) for i, v in enumerate(logits.tolist())}
    return {i: p / sum(powers.values()) for i, p in powers.items()}


def ranked(logits: Logits) -> list[int]:
    return sorted(
        (i for i, v in enumerate(logits.tolist()) if v > -math.inf),
        key=lambda i: (-logits[i], i),
    )


def drawn(logits: Logits, n: int = 400, **params: object) -> Counter[int]:
    sampler = Sampler(SamplingParams(**(OFF | {"seed": 1} | params)))
    return Counter(sampler.choose(logits.copy(), []).token for _ in range(n))


# -- the short list -------------------------------------------------------------------------


@given(rows, st.integers(1, 70))
def test_top_candidates_are_the_head_of_a_full_sort(logits: Logits, k: int) -> None:
    ids, kept = top_candidates(logits, k)
    assert ids.tolist() == ranked(logits)[:k]
    assert kept.tolist() == [float(logits[i]) for i in ids]


@pytest.mark.parametrize("n", [1, 7, 333, 1000, 5003])
@pytest.mark.parametrize("k", [1, 3, 40, 4096])
@pytest.mark.parametrize("kind", ["random", "equal", "few values", "mostly forbidden", "rising"])
def test_top_candidates_of_hard_rows(n: int, k: int, kind: str) -> None:
    random = np.random.default_rng(n + k)
    logits = {
        "random": random.standard_normal(n),
        "equal": np.zeros(n),
        "few values": random.integers(0, 3, n).astype(float),
        "mostly forbidden": np.where(random.random(n) < 0.02, 1.0, -math.inf),
        "rising": np.arange(n, dtype=float),
    }[kind].astype(np.float32)
    ids, _ = top_candidates(logits, k)
    assert ids.tolist() == ranked(logits)[:k]


# -- greedy and errors ----------------------------------------------------------------------


@given(finite_rows)
def test_greedy_takes_the_lowest_id_of_the_best(logits: Logits) -> None:
    for params in (SamplingParams(temperature=0.0), SamplingParams(top_k=1)):
        assert Sampler(params).choose(logits.copy(), []) == Choice(ranked(logits)[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(bad: float, temperature: float) -> None:
    for place in range(3):
        logits = row(1, 2, 3)
        logits[place] = bad
        with pytest.raises(BackendError, match="NaN or infinite"):
            Sampler(SamplingParams(temperature=temperature)).choose(logits, [])
    with pytest.raises(BackendError):
        Sampler(SamplingParams(temperature=temperature)).choose(row(-math.inf, -math.inf), [])


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-9, 1e-3])
@pytest.mark.parametrize("other", [{}, {"top_k": 5}, {"mirostat": 2}, {"min_p": 0.1}])
def test_a_cold_draw_is_greedy(temperature: float, other: dict[str, object]) -> None:
    logits = row(1.0, 3.0, 2.5, -math.inf, -60000.0)
    assert drawn(logits, 50, temperature=temperature, **other) == {1: 50}


def test_a_hot_draw_is_nearly_even() -> None:
    found = drawn(row(0, 1, 2, 3), 4000, temperature=100.0)
    assert all(850 < found[i] < 1150 for i in range(4))


# -- filters --------------------------------------------------------------------------------


def allowed(logits: Logits, **params: object) -> set[int]:
    """Tokens a draw may give, found by drawing evenly many times."""
    return set(drawn(logits, 300, temperature=100.0, **params))


@given(finite_rows, st.integers(1, 80))
def test_top_k(logits: Logits, k: int) -> None:
    assert allowed(logits, top_k=k) <= set(ranked(logits)[:k])


@given(finite_rows, st.floats(0.0, 1.0))
def test_top_p_keeps_the_fewest_that_reach_it(logits: Logits, p: float) -> None:
    kept: list[int] = []
    for token in ranked(logits):
        if kept and sum(chances(logits)[i] for i in kept) >= p + 1e-6:
            break
        kept.append(token)
    assert allowed(logits, top_p=p) <= set(kept)


@given(finite_rows, st.floats(0.001, 1.0))
def test_min_p_keeps_a_share_of_the_best(logits: Logits, p: float) -> None:
    best = max(logits.tolist())
    kept = {i for i in ranked(logits) if logits[i] >= best + math.log(p) - 1e-6}
    assert allowed(logits, min_p=p) <= kept


@given(finite_rows, st.floats(0.01, 0.99))
def test_typical_keeps_what_is_nearest_to_the_average_surprise(logits: Logits, p: float) -> None:
    share = {i: c for i, c in chances(logits).items() if c > 0}
    entropy = -sum(c * math.log(c) for c in share.values())
    order = sorted(share, key=lambda i: abs(-math.log(share[i]) - entropy))
    last, total = 0.0, 0.0
    for token in order:
        last, total = abs(-math.log(share[token]) - entropy), total + share[token]
        if total >= p + 1e-6:
            break
    near = {i for i in share if abs(-math.log(share[i]) - entropy) <= last + 1e-4}
    assert allowed(logits, typical_p=p) <= near


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.0}, {0}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"min_p": 1.0}, {0}),
        ({"min_p": 0.49}, {0, 1}),
        ({"min_p": 0.2}, {0, 1, 2, 3}),
        ({"typical_p": 0.2}, {1}),
        ({"top_k": 3, "top_p": 0.7}, {0, 1}),
        ({"top_k": 2, "top_p": 0.6}, {0}),  # top-k first: its two hold 2/3 and 1/3
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, {3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, {1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.5}, {0, 1, 2, 3}),
        ({"xtc_probability": 0.0, "xtc_threshold": 0.1}, {0, 1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.6}, {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_filters_on_a_known_distribution(params: dict[str, object], kept: set[int]) -> None:
    logits = np.log(row(0.5, 0.25, 0.125001, 0.125))
    assert allowed(logits, **params) == kept


def test_filters_look_beyond_the_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.zeros(100, np.float32)
    logits[7] = 0.5
    monkeypatch.setattr(module, "SHORT_LIST", 4)
    for params in ({"top_p": 0.999}, {"min_p": 0.5}, {"typical_p": 0.999}, {"mirostat": 2}):
        assert len(allowed(logits, **params)) > 80, params
    # within the list, probabilities are still those among all tokens
    assert len(allowed(logits, top_p=0.025)) == 2
    assert allowed(logits, min_p=0.9) == {7}


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = row(-math.inf, 0.0, -math.inf, 0.0, -math.inf)
    for params in ({}, {"top_k": 5}, {"top_p": 0.99}, {"mirostat": 2}, {"typical_p": 0.9}):
        assert set(drawn(logits, 100, **params)) <= {1, 3}


def test_a_draw_at_the_very_end_takes_the_last_that_has_a_chance() -> None:
    sampler = Sampler(SamplingParams(**OFF))

    class Last:
        def random(self) -> float:
            return 1.0

    sampler._random = Last()
    assert sampler.choose(row(0.0, 0.0, -math.inf), []).token == 1


# -- the draw -------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"top_k": 50}, {"min_p": 1e-9}], ids=str)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_draw_follows_the_probabilities(params: dict[str, object], temperature: float) -> None:
    logits = np.random.default_rng(3).standard_normal(12).astype(np.float32)
    n = 6000
    found = drawn(logits, n, temperature=temperature, **params)
    share = chances(logits, temperature)
    chi = sum((found[i] - n * share[i]) ** 2 / (n * share[i]) for i in range(12))
    assert chi < 31.3  # 11 degrees of freedom, 0.1 %


def test_a_seed_reproduces_and_is_told() -> None:
    logits = np.zeros(1000, np.float32)
    a, b, c = (Sampler(SamplingParams(**OFF, seed=s)) for s in (5, 5, 6))

    def eight(sampler: Sampler) -> list[int]:
        return [sampler.choose(logits.copy(), []).token for _ in range(8)]

    first = eight(a)
    assert first == eight(b)
    assert first != eight(c)
    fresh = Sampler(SamplingParams(**OFF))
    assert eight(fresh) == eight(Sampler(SamplingParams(**OFF, seed=fresh.seed)))
    assert Sampler(SamplingParams(**OFF)).seed != fresh.seed
    Sampler(SamplingParams(seed=-1))


def slow_mirostat(logits: Logits, params: SamplingParams, n: int) -> list[int]:
    """Mirostat 2.0 as its paper writes it, with the same random numbers."""
    random = np.random.Generator(np.random.PCG64(params.seed))
    mu, out = 2 * params.mirostat_tau, []
    share = chances(logits, params.temperature)
    order = ranked(logits)
    for _ in range(n):
        kept = [i for i in order if -math.log2(share[i]) <= mu] or order[:1]
        total = sum(share[i] for i in kept)
        at, reached = random.random() * total, 0.0
        for token in kept:
            reached += share[token]
            if reached > at:
                break
        out.append(token)
        mu -= params.mirostat_eta * (-math.log2(share[token] / total) - params.mirostat_tau)
    return out


@pytest.mark.parametrize("tau", [0.5, 2.0, 5.0])
def test_mirostat(tau: float) -> None:
    logits = (np.random.default_rng(1).standard_normal(200) * 2).astype(np.float32)
    params = SamplingParams(mirostat=2, mirostat_tau=tau, mirostat_eta=0.3, seed=9, temperature=0.9)
    sampler = Sampler(params)
    found = [sampler.choose(logits.copy(), []).token for _ in range(60)]
    assert found == slow_mirostat(logits, params, 60)


# -- log probabilities ----------------------------------------------------------------------


@given(finite_rows)
def test_log_probabilities_sum_to_one(logits: Logits) -> None:
    assert np.exp(log_softmax(logits)).sum() == pytest.approx(1.0)


def test_log_probabilities_are_of_the_model_before_any_penalty() -> None:
    logits = row(1.0, 4.0, 3.0, 2.0)
    params = SamplingParams(temperature=0.0, logprobs=3, logit_bias={1: -100.0})
    choice = Sampler(params).choose(logits.copy(), [])
    right = log_softmax(logits)
    assert choice.token == 2
    assert choice.logprob == pytest.approx(right[2], abs=1e-6)
    assert [i for i, _ in choice.top] == [1, 2, 3]
    assert [v for _, v in choice.top] == pytest.approx(right[[1, 2, 3]], abs=1e-6)
    assert Sampler(SamplingParams(temperature=0.0, logprobs=0)).choose(logits, []).top == ()
    assert Sampler(SamplingParams(temperature=0.0)).choose(logits, []).logprob is None


# -- constraints ----------------------------------------------------------------------------


class Even:
    """Allows even tokens, or none."""

    def __init__(self, nothing: bool = False) -> None:
        self.accepted: list[int] = []
        self._nothing = nothing

    def mask(self, logits: Logits) -> None:
        logits[0 if self._nothing else 1 :: 1 if self._nothing else 2] = -math.inf

    def accept(self, token: int) -> None:
        self.accepted.append(token)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_forbids_and_follows(temperature: float) -> None:
    even = Even()
    sampler = Sampler(SamplingParams(temperature=temperature, top_k=0, min_p=0.0), even)
    chosen = [sampler.choose(row(1, 9, 1, 9, 1, 9), []).token for _ in range(20)]
    assert set(chosen) <= {0, 2, 4}
    assert even.accepted == chosen
    with pytest.raises(GrammarError, match="allows no token"):
        Sampler(SamplingParams(), Even(nothing=True)).choose(row(1, 2), [])


def test_a_bias_that_forbids_everything_is_an_error() -> None:
    params = SamplingParams(logit_bias={0: -math.inf, 1: -math.inf})
    with pytest.raises(RequestError, match="every token is forbidden"):
        Sampler(params).choose(row(1, 2), [])


def test_a_choice_of_152_thousand_takes_about_a_millisecond() -> None:
    logits = (np.random.default_rng(0).standard_normal(152_000) * 3).astype(np.float32)
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(repeat_penalty=1.1, frequency_penalty=0.1),
        SamplingParams(top_k=0),
    ):
        sampler, seconds = Sampler(params), []
        for _ in range(21):
            fresh = logits.copy()
            began = time.perf_counter()
            sampler.choose(fresh, list(range(500)))
            seconds.append(time.perf_counter() - began)
        assert sorted(seconds)[5] < 2e-3, params  # the lower quartile: the machine may be busy
