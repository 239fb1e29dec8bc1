"""The options agree with the records they fill."""

from dataclasses import fields

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from minfer.cli.options import CacheType, Device, Loading, Sampling, names_of, option_name
from minfer.engine import SamplingParams
from minfer.settings import Settings


def test_without_options_the_params_are_the_defaults() -> None:
    assert Sampling().params() == SamplingParams()


def test_every_option_fills_a_field() -> None:
    known = {field.name for field in fields(SamplingParams)}
    assert {field.name for field in fields(Sampling)} - known == {"greedy"}
    own = {"n_ctx", "draft", "n_draft"}
    assert {field.name for field in fields(Loading)} - own <= set(Settings.__dataclass_fields__)


def test_special_values() -> None:
    params = Sampling(
        max_tokens=5, seed=7, greedy=True, stop=["a", "b"], logit_bias=["1:2", "3-4.5"]
    ).params()
    assert (params.max_tokens, params.seed, params.temperature) == (5, 7, 0.0)
    assert params.stop == ("a", "b")
    assert params.logit_bias == {1: 2.0, 3: -4.5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15:1", (15, 1.0)),
        ("15:-1.5", (15, -1.5)),
        ("15+1", (15, 1.0)),
        ("15-1", (15, -1.0)),
        ("15:-inf", (15, float("-inf"))),
        ("15:.5", (15, 0.5)),
    ],
)
def test_logit_bias(text: str, expected: tuple[int, float]) -> None:
    assert Sampling(logit_bias=[text]).params().logit_bias == dict([expected])


@given(st.text(max_size=8))
def test_a_logit_bias_is_read_or_refused(text: str) -> None:
    try:
        bias = Sampling(logit_bias=[text]).params().logit_bias
    except typer.BadParameter as error:
        assert error.param_hint == "--logit-bias"
    else:
        assert len(bias) == 1


def test_choices_are_those_of_the_settings() -> None:
    for kind, name in ((Device, "MINFER_DEVICE"), (CacheType, "MINFER_CACHE_TYPE")):
        for choice in kind:
            Settings.load({name: choice.value})


def test_option_names() -> None:
    assert option_name(Sampling, "temperature") == "--temp"
    assert option_name(Sampling, "max_tokens") == "--n-predict"
    assert option_name(Sampling, "no such field") == "no such field"
    spelled = [names_of(typer.Option("-n", "--n-predict")), names_of(typer.Option("--temp"))]
    assert spelled == [["-n", "--n-predict"], ["--temp"]]


def test_a_count_below_minus_one_names_what_is_allowed() -> None:
    with pytest.raises(typer.BadParameter, match="expected at least 0, or -1"):
        Sampling(max_tokens=-5).params()
