"""Grammars: what is enforced is followed whatever the model wants, the rest is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_vocabularies import real_tokenizer

from minfer.errors import GrammarError
from minfer.text import Grammar, GrammarCompiler, Matcher, Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return real_tokenizer("smollm2")


@pytest.fixture(scope="module")
def compiler(vocabulary: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(vocabulary)


def follow(
    vocabulary: Tokenizer, matcher: Matcher, seed: int, n: int = 400, eager: float = 3.0
) -> tuple[str, bool]:
    """What a model of random wishes writes, and whether it came to an end."""
    random = np.random.default_rng(seed)
    ids: list[int] = []
    for _ in range(n):
        logits = random.normal(size=vocabulary.n_vocab).astype(np.float32)
        logits[list(vocabulary.stop_ids)] += eager
        matcher.mask(logits)
        token = int(logits.argmax())
        matcher.accept(token)
        if token in vocabulary.stop_ids:
            return vocabulary.decode(ids), True
        ids.append(token)
    return vocabulary.decode(ids), False


def alone(compiler: GrammarCompiler, grammar: Grammar) -> Callable[[], Matcher]:
    return compiler.compile("start: @answer", {"answer": grammar})


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_answers_fit_the_schema(
    compiler: GrammarCompiler, vocabulary: Tokenizer, seed: int
) -> None:
    make = alone(compiler, Grammar("json_schema", SCHEMA))
    text, ended = follow(vocabulary, make(), seed)
    assert ended
    value = json.loads(text)
    assert set(value) == {"name", "age", "tags"}
    assert len(value["name"]) <= 8
    assert 0 <= value["age"] <= 150
    assert set(value["tags"]) <= {"a", "b"}
    assert len(value["tags"]) <= 3


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("regex", "[0-9]{3}-[a-f]+"), "[0-9]{3}-[a-f]+"),
        (Grammar("gbnf", 'root ::= ("yes" | "no") ws "!"\nws ::= " "?'), "(yes|no) ?!"),
        (Grammar("lark", 'start: "a" b+\nb: "b" | "c"'), "a[bc]+"),
    ],
)
def test_other_notations(
    compiler: GrammarCompiler, vocabulary: Tokenizer, grammar: Grammar, pattern: str
) -> None:
    make = alone(compiler, grammar)
    for seed in range(5):
        text, ended = follow(vocabulary, make(), seed)
        assert ended
        assert re.fullmatch(pattern, text)


def test_an_end_token_where_the_grammar_may_end_and_nowhere_else(
    compiler: GrammarCompiler, vocabulary: Tokenizer
) -> None:
    matcher = alone(compiler, Grammar("regex", "ab?"))()
    stops = list(vocabulary.stop_ids)

    def may_come() -> set[int]:
        logits = np.zeros(vocabulary.n_vocab + 5, np.float32)
        matcher.mask(logits)
        return set(np.flatnonzero(logits > -np.inf).tolist())

    (a,) = vocabulary.encode("a", add_bos=False)
    (b,) = vocabulary.encode("b", add_bos=False)
    assert not may_come() & set(stops)
    matcher.accept(a)
    assert may_come() == {b, *stops}
    matcher.accept(b)
    assert may_come() == set(stops)
    for stop in stops * 2:
        matcher.accept(stop)
        assert may_come() == set(stops)


def test_a_token_that_is_not_allowed(compiler: GrammarCompiler, vocabulary: Tokenizer) -> None:
    matcher = alone(compiler, Grammar("regex", "ab"))()
    (a,) = vocabulary.encode("a", add_bos=False)
    matcher.accept(a)
    with pytest.raises(GrammarError):
        matcher.accept(a)
    with pytest.raises(GrammarError):
        matcher.mask(np.zeros(vocabulary.n_vocab, np.float32))


def test_drafts_are_checked_without_being_taken(
    compiler: GrammarCompiler, vocabulary: Tokenizer
) -> None:
    matcher = alone(compiler, Grammar("regex", "aab"))()
    (a,) = vocabulary.encode("a", add_bos=False)
    assert matcher.allowed([a, a, a]) == 2
    assert matcher.allowed([a, a, a]) == 2


def test_matchers_of_one_grammar_do_not_share_their_place(
    compiler: GrammarCompiler, vocabulary: Tokenizer
) -> None:
    make = alone(compiler, Grammar("json_schema", SCHEMA))
    assert follow(vocabulary, make(), 1) == follow(vocabulary, make(), 1)


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ({"not": {}}, "s"),
        ({"type": "strin"}, "s"),
        (
            {"properties": {"a": {"items": {"format": "foo", "type": "string"}}}},
            "s.properties.a.items",
        ),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, "s.anyOf[1]"),
        ({"type": "array", "uniqueItems": True}, "s"),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"not": {}}}},
            "s.properties.a",
        ),
        ({"$ref": "https://example.com/schema.json"}, "s"),
        ({"$ref": "file:///etc/passwd"}, "s"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "s"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "s"),
        (False, "s"),
        ({"type": 5}, "s"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(
    compiler: GrammarCompiler, source: Any, where: str
) -> None:
    with pytest.raises(GrammarError) as refused:
        compiler.check(Grammar("json_schema", source, "s"))
    assert refused.value.where == where


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("gbnf", "root ::= foo"),
        Grammar("gbnf", "root := :"),
        Grammar("gbnf", ""),
        Grammar("regex", "a("),
        Grammar("lark", "start: x"),
    ],
)
def test_malformed_grammars(compiler: GrammarCompiler, grammar: Grammar) -> None:
    with pytest.raises(GrammarError) as refused:
        alone(compiler, grammar)
    assert refused.value.where == "grammar"
    assert "\n" not in refused.value.what
