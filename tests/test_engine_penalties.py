"""Logit bias, repetition penalties and DRY against slow, independent definitions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.engine import SamplingParams
from minfer.engine.penalties import apply_penalties, repeats

VOCAB = 6
histories = st.lists(st.integers(0, VOCAB - 1), max_size=30)
LOGITS = np.array([2.0, -1.0, 0.5, 0.0, -3.0, 7.0], np.float32)


def penalised(history: list[int], **params: object) -> np.ndarray:
    logits = LOGITS.copy()
    apply_penalties(logits, SamplingParams(**params), history)
    return logits


@given(
    histories,
    st.floats(0.5, 2.0, width=32),
    st.floats(-2.0, 2.0, width=32),
    st.floats(-2.0, 2.0, width=32),
    st.integers(-1, 40),
)
def test_repetition(
    history: list[int], repeat: float, frequency: float, presence: float, last_n: int
) -> None:
    found = penalised(
        history,
        repeat_penalty=repeat,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repeat_last_n=last_n,
    )
    recent = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    for token, count in Counter(recent).items():
        value = float(LOGITS[token])
        value = value / repeat if value > 0 else value * repeat
        assert found[token] == pytest.approx(value - count * frequency - presence, abs=1e-4)
    untouched = [t for t in range(VOCAB) if t not in recent]
    assert (found[untouched] == LOGITS[untouched]).all()


def slow_repeats(history: list[int], breakers: set[int]) -> dict[int, int]:
    """Try every earlier place: how far back does what precedes it equal the end?"""
    longest: dict[int, int] = {}
    for place in range(1, len(history)):
        length = 0
        while (
            length < place
            and history[place - 1 - length] == history[-1 - length]
            and history[-1 - length] not in breakers
        ):
            length += 1
        if length:
            token = history[place]
            longest[token] = max(longest.get(token, 0), length)
    return longest


@given(histories, st.sets(st.integers(0, VOCAB - 1), max_size=2))
def test_the_longest_repeat_before_each_token(history: list[int], breakers: set[int]) -> None:
    assert repeats(history, frozenset(breakers)) == slow_repeats(history, breakers)


@given(histories, st.integers(0, 4), st.floats(1.0, 3.0), st.integers(-1, 40))
def test_dry(history: list[int], allowed: int, base: float, last_n: int) -> None:
    found = penalised(
        history,
        dry_multiplier=0.8,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=(3,),
    )
    recent = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    right = LOGITS.astype(np.float64)
    for token, length in slow_repeats(recent, {3}).items():
        if length >= allowed:
            right[token] -= 0.8 * base ** (length - allowed)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_a_very_long_repeat_costs_a_finite_number() -> None:
    found = penalised([1, 2] * 2000, dry_multiplier=100.0, dry_base=100.0)
    assert np.isfinite(found).all()
    assert found[1] < -1e37
    assert found[5] == LOGITS[5]


def test_bias_is_added_and_may_forbid() -> None:
    found = penalised([], logit_bias={0: 3.5, 5: -math.inf})
    assert found[0] == LOGITS[0] + 3.5
    assert found[5] == -math.inf
    assert (found[1:5] == LOGITS[1:5]).all()


@pytest.mark.parametrize(
    ("params", "window"),
    [
        ({"repeat_penalty": 1.5}, "repeat_last_n"),
        ({"frequency_penalty": 1.0}, "repeat_last_n"),
        ({"presence_penalty": 1.0}, "repeat_last_n"),
        ({"dry_multiplier": 1.0, "dry_allowed_length": 0}, "dry_penalty_last_n"),
    ],
    ids=str,
)
def test_no_history_costs_nothing(params: dict[str, float], window: str) -> None:
    assert (penalised([], **params) == LOGITS).all()
    assert (penalised([0, 0, 0], **params, **{window: 0}) == LOGITS).all()
    assert (penalised([0, 0, 0], **params) != LOGITS).any()
