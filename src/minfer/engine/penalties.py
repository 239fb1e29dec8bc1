"""What recent tokens cost: logit bias, repetition, frequency and presence penalties, DRY."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.engine.params import SamplingParams

Logits = NDArray[np.float32]
LARGEST = float(np.finfo(np.float32).max)


def apply_penalties(logits: Logits, params: SamplingParams, history: Sequence[int]) -> bool:
    """Change `logits` [n_vocab] in place, in llama.cpp's order; answer whether anything could.

    Args:
        history: tokens so far, prompt included; all inside of the vocabulary.
    """
    p = params
    if p.logit_bias:
        ids = np.fromiter(p.logit_bias, np.int64, len(p.logit_bias))
        logits[ids] += np.fromiter(p.logit_bias.values(), np.float32, len(p.logit_bias))
    if _repeats_cost(p) and p.repeat_last_n and history:
        _penalise_repetition(logits, p, _recent(history, p.repeat_last_n))
    if p.dry_multiplier > 0.0 and p.dry_penalty_last_n:
        _penalise_repeats(logits, p, _recent(history, p.dry_penalty_last_n))
    return changes_logits(p)


def changes_logits(p: SamplingParams) -> bool:
    """Whether `apply_penalties` may change anything."""
    return bool(p.logit_bias) or _repeats_cost(p) or p.dry_multiplier > 0.0


def fits_window(p: SamplingParams, window: int) -> bool:
    """Whether nothing changes logits but recent tokens, of which there are at most `window`."""
    others = bool(p.logit_bias) or p.dry_multiplier > 0.0
    return _repeats_cost(p) and not others and 1 <= p.repeat_last_n <= window


def _repeats_cost(p: SamplingParams) -> bool:
    return p.repeat_penalty != 1.0 or p.frequency_penalty != 0.0 or p.presence_penalty != 0.0


def _recent(history: Sequence[int], last_n: int) -> Sequence[int]:
    return history if last_n < 0 else history[-last_n:]


def _penalise_repetition(logits: Logits, p: SamplingParams, recent: Sequence[int]) -> None:
    ids, counts = np.unique(np.asarray(recent, np.int64), return_counts=True)
    values = logits[ids]
    factor = np.float32(p.repeat_penalty)
    values = np.where(values > 0, values / factor, values * factor)
    values -= counts.astype(np.float32) * np.float32(p.frequency_penalty)
    logits[ids] = values - np.float32(p.presence_penalty)


def _penalise_repeats(logits: Logits, p: SamplingParams, recent: Sequence[int]) -> None:
    """DRY: `multiplier * base^(length - allowed)` off a token that would continue a repeat."""
    for token, length in repeats(recent, frozenset(p.dry_sequence_breakers)).items():
        if length >= p.dry_allowed_length:
            # in logarithms, so that a long repeat costs much and stays a finite number
            exponent = (length - p.dry_allowed_length) * math.log(p.dry_base)
            cost = math.exp(min(exponent + math.log(p.dry_multiplier), math.log(LARGEST)))
            logits[token] -= np.float32(min(cost, LARGEST))


def repeats(history: Sequence[int], breakers: frozenset[int]) -> dict[int, int]:
    """For each token that would continue a repeat of the history's end: the longest such repeat.

    A repeat holds no breaker. Uses the Z-function of the reversed history: linear in its length.
    """
    text = list(reversed(history))
    n = len(text)
    limit = next((i for i, token in enumerate(text) if token in breakers), n)
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
