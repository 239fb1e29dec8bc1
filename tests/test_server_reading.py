"""JSON is read strictly, and otherwise as the standard library reads it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.server.errors import ApiError
from minfer.server.reading import DEPTH, strict_json

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=12,
).filter(lambda value: "Infinity" not in json.dumps(value))


@given(_values, st.booleans())
def test_json_is_read_as_it_is(value: object, ascii_only: bool) -> None:
    assert strict_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=40))
def test_anything_else_is_refused_and_nothing_else_happens(data: bytes) -> None:
    try:
        strict_json(data)
    except ApiError as error:
        assert error.status_code == 400


def test_a_twin_key_is_found_among_many() -> None:
    keys = ",".join(f'"{n}":0' for n in range(20_000))
    with pytest.raises(ApiError, match="'19999' is there twice"):
        strict_json(f'{{{keys},"19999":1}}'.encode())


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_brackets_within_brackets_have_an_end(opening: str, closing: str) -> None:
    def nested(depth: int) -> bytes:
        return (opening * depth + "1" + closing * depth).encode()

    assert json.dumps(strict_json(nested(DEPTH)))
    for depth in (DEPTH + 1, 1000, 100_000):
        with pytest.raises(ApiError, match="nested too deeply"):
            strict_json(nested(depth))
    text = json.dumps("[" * 1000).encode()
    assert strict_json(text) == "[" * 1000
