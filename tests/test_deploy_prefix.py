"""Which requests belong together, and where they go when replicas come and go."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.deploy.prefix import prefix_key, ranked


def key(**body: Any) -> str:
    return prefix_key(json.dumps(body).encode())


def said(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


def test_the_turns_of_a_conversation_belong_together() -> None:
    first = said(("system", "Be kind."), ("user", "hello"))
    later = [*first, *said(("assistant", "hi"), ("user", "and now?"))]
    assert key(messages=first) == key(messages=later, stream=True, temperature=0)
    assert key(messages=first) != key(messages=said(("system", "Be kind."), ("user", "bye")))
    assert key(input=first) == key(input=later)
    assert key(input="x", instructions="a") != key(input="x", instructions="b")


def test_texts_belong_together_by_their_beginning() -> None:
    long = "word " * 500
    assert key(prompt=long + "a") == key(prompt=long + "b")
    assert key(prompt="a") != key(prompt="b")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"5", b"{}", b'{"model": "m"}', b"\xff"])
def test_without_a_beginning_a_request_may_go_anywhere(body: bytes) -> None:
    assert prefix_key(body) == ""


names = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@given(names, st.text(max_size=9))
def test_only_the_keys_of_a_lost_replica_move(replicas: list[str], name: str) -> None:
    before = ranked(name, replicas)
    assert sorted(before) == sorted(replicas)
    assert ranked(name, reversed(replicas)) == before
    lost = before[0]
    assert ranked(name, [r for r in replicas if r != lost]) == before[1:]


def test_keys_spread() -> None:
    firsts = [ranked(str(n), "abcd")[0] for n in range(400)]
    assert all(60 < firsts.count(name) < 140 for name in "abcd")
