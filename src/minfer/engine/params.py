"""What a request may ask of the sampler: one frozen record that checks itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from minfer.errors import RequestError

MAX_LOGPROBS = 20

# name -> (least, most); both included
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (1e-3, 100.0),
    "repeat_last_n": (-1, math.inf),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (0, math.inf),
    "dry_penalty_last_n": (-1, math.inf),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 10.0),
    "max_tokens": (0, math.inf),
    "logprobs": (0, MAX_LOGPROBS),
    "seed": (-math.inf, math.inf),
}
_WHOLE = frozenset(
    (
        *("max_tokens", "logprobs", "seed", "top_k", "mirostat"),
        *("repeat_last_n", "dry_allowed_length", "dry_penalty_last_n"),
    )
)
_MAY_BE_NONE = ("max_tokens", "logprobs", "seed")


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens, and when to stop. Defaults are llama.cpp's.

    Attributes:
        max_tokens: tokens to generate at most; None until the model stops or the context is full.
        temperature: 0 takes the most likely token, the lowest id on ties.
        top_k: keep the k most likely; 0 keeps all.
        top_p: keep the smallest set with this much probability; 0 keeps one.
        min_p: drop tokens below this share of the best one's probability.
        typical_p: locally typical sampling (Meister et al., arXiv:2202.00666); 1 is off.
        repeat_penalty: divides positive and multiplies negative logits of recent tokens.
        repeat_last_n: how many recent tokens the penalties see; 0 none, -1 all.
        frequency_penalty, presence_penalty: subtracted per occurrence, and once.
        dry_*: penalty on continuing a repeated sequence; a multiplier of 0 is off.
        xtc_*: with this probability drop all but the last of the tokens above the threshold.
        mirostat: 0 off, 2 mirostat 2.0 (Basu et al., arXiv:2007.14966), which replaces top-k,
            top-p, min-p and typical.
        logit_bias: token id -> number added to its logit; -inf forbids it.
        seed: None draws one; the same seed gives the same tokens.
        stop: strings that end the text, themselves not part of it.
        logprobs: report this many alternatives a token; 0 only the chosen one's, None nothing.
        ignore_eos: go on past end-of-generation tokens.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[int, ...] = ()
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                _check_range(name, value, least, most)
        if self.mirostat == 1:
            raise RequestError("mirostat 1 is not supported", where="mirostat", remedy="Use 2")
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise RequestError("stop strings must not be empty", where="stop")
        for token, bias in self.logit_bias.items():
            if not _is_integer(token) or not _is_number(bias) or bias == math.inf:
                raise RequestError(f"{token!r}: {bias!r} is no token and bias", where="logit_bias")

    @property
    def is_greedy(self) -> bool:
        """Whether the choice is the plain maximum of the (penalised) logits."""
        return self.temperature == 0.0 or self.top_k == 1


def _is_number(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and not math.isnan(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_range(name: str, value: Any, least: float, most: float) -> None:
    if name in _WHOLE and not _is_integer(value):
        raise RequestError(f"value {value!r} is not a whole number", where=name)
    if not _is_number(value):
        raise RequestError(f"value {value!r} is not a number", where=name)
    if not least <= value <= most:
        limit = f"at least {least}" if most == math.inf else f"between {least} and {most}"
        raise RequestError(f"value {value} is out of range; expected {limit}", where=name)
