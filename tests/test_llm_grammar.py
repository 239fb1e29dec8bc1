"""A grammar for one answer, from Python."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from serving import tiny

from minfer.engine import SamplingParams
from minfer.errors import GrammarError
from minfer.llm import LLM

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny() as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema(llm: LLM, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=200)
    answer = llm.chat("hello", params, constraint=llm.constraint(SCHEMA))
    assert json.loads(answer.text)["a"] in (1, 2)
    assert answer.finish_reason == "stop"


def test_other_notations(llm: LLM) -> None:
    for kind, source in (
        ("regex", "yes|no"),
        ("gbnf", 'root ::= "yes" | "no"'),
        ("lark", 'start: "yes" | "no"'),
    ):
        constraint = llm.constraint(source, kind)  # type: ignore[arg-type]
        assert llm.chat("hello", constraint=constraint).text in ("yes", "no")


def test_what_cannot_be_enforced(llm: LLM) -> None:
    with pytest.raises(GrammarError) as refused:
        llm.constraint({"properties": {"a": {"not": {}}}})
    assert refused.value.where == "grammar.properties.a"
