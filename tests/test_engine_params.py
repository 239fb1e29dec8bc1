"""What may be asked of the sampler, and that everything else is refused by name."""

from __future__ import annotations

import math

import pytest

from minfer.engine import MAX_LOGPROBS, SamplingParams
from minfer.errors import RequestError

GOOD = [
    {},
    {"max_tokens": 0, "temperature": 0, "top_k": 10**9, "top_p": 0, "min_p": 1, "seed": -(2**70)},
    {"temperature": 1e-9, "logprobs": 0, "mirostat": 2, "repeat_last_n": -1},
    {"logprobs": MAX_LOGPROBS, "logit_bias": {0: -math.inf, 5: 3}, "stop": ("a", "b")},
]

BAD = [
    *({"temperature": v} for v in (-0.1, 101, math.nan, math.inf, "hot", None, True)),
    *({"top_k": v} for v in (-1, 1.5, None, "5")),
    *({"top_p": v} for v in (-0.1, 1.1)),
    *({"min_p": v} for v in (-0.1, 1.1)),
    *({"typical_p": v} for v in (-0.1, 1.1)),
    *({"repeat_penalty": v} for v in (0, -1, math.inf)),
    *({"frequency_penalty": v} for v in (-2.1, 2.1)),
    *({"presence_penalty": v} for v in (-2.1, 2.1)),
    *({"repeat_last_n": v} for v in (-2, 0.5)),
    *({"dry_multiplier": v} for v in (-1, 101)),
    *({"dry_base": v} for v in (0.5, 101)),
    *({"xtc_probability": v} for v in (-1, 2)),
    *({"mirostat": v} for v in (-1, 1, 3, 2.0)),
    *({"max_tokens": v} for v in (-1, 2.5, True)),
    *({"logprobs": v} for v in (-1, MAX_LOGPROBS + 1, 1.0)),
    *({"seed": v} for v in (1.5, "x")),
    *({"stop": v} for v in (("",), ("a", 5))),
    *({"logit_bias": v} for v in ({"a": 1.0}, {1: math.nan}, {1: math.inf}, {1: "x"}, {True: 1.0})),
]


@pytest.mark.parametrize("params", GOOD, ids=str)
def test_accepted(params: dict[str, object]) -> None:
    SamplingParams(**params)


@pytest.mark.parametrize("params", BAD, ids=str)
def test_refused_by_name(params: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**params)
    assert caught.value.where == next(iter(params))


def test_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(top_k=1).is_greedy
    assert not SamplingParams().is_greedy
