"""Typed access to metadata: any width of the asked-for kind, everything else refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minfer.errors import FormatError
from minfer.gguf import Metadata, Typed, ValueType

INTEGERS = ["U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"]
FLOATS = ["F32", "F64"]

META = Metadata(
    {
        "flag": Typed(ValueType.BOOL, True),
        "name": Typed(ValueType.STRING, "x" * 200),
        "words": Typed.array(ValueType.STRING, ["a", "b"]),
        "flags": Typed.array(ValueType.BOOL, [True, False]),
        "nested": Typed.array(ValueType.ARRAY, [Typed.array(ValueType.U8, [1, 2])]),
    }
    | {f"int.{t}": Typed(ValueType[t], 7) for t in INTEGERS}
    | {f"float.{t}": Typed(ValueType[t], 0.5) for t in FLOATS}
    | {f"ints.{t}": Typed.array(ValueType[t], [1, 2]) for t in INTEGERS}
    | {f"floats.{t}": Typed.array(ValueType[t], [1, 0.5]) for t in FLOATS},
    "m.gguf",
)

ACCEPTED: dict[str, tuple[list[str], Any]] = {
    "get_int": ([f"int.{t}" for t in INTEGERS], 7),
    "get_float": ([f"float.{t}" for t in FLOATS], 0.5),
    "get_bool": (["flag"], True),
    "get_str": (["name"], "x" * 200),
    "get_ints": ([f"ints.{t}" for t in INTEGERS], [1, 2]),
    "get_floats": ([f"floats.{t}" for t in FLOATS], [1, 0.5]),
    "get_strs": (["words"], ["a", "b"]),
}
ALSO_ACCEPTED = {"get_float": [f"int.{t}" for t in INTEGERS], "get_ints": ["flags"]}


@pytest.mark.parametrize("getter", ACCEPTED)
def test_every_width_of_the_kind(getter: str) -> None:
    keys, value = ACCEPTED[getter]
    for key in keys:
        np.testing.assert_array_equal(getattr(META, getter)(key), value)


@pytest.mark.parametrize("getter", ACCEPTED)
def test_every_other_type_is_refused(getter: str) -> None:
    taken = ACCEPTED[getter][0] + ALSO_ACCEPTED.get(getter, [])
    for key in META:
        if key in taken:
            continue
        with pytest.raises(
            FormatError, match=rf"^\[m\.gguf: {key}\] the value is .* should be an? "
        ):
            getattr(META, getter)(key)


@pytest.mark.parametrize("getter", ACCEPTED)
def test_missing_keys(getter: str) -> None:
    assert getattr(META, getter)("absent", None) is None
    with pytest.raises(FormatError, match=r"^\[m\.gguf: absent\] the key is missing"):
        getattr(META, getter)("absent")


def test_messages_name_the_value_and_stay_short() -> None:
    with pytest.raises(FormatError, match="the value is string 'xxx") as caught:
        META.get_int("name")
    assert len(str(caught.value)) < 150
    with pytest.raises(FormatError, match="array of 2 string, but should be an integer"):
        META.get_int("words")


def test_result_types() -> None:
    assert type(META.get_int("int.U8")) is int
    assert type(META.get_float("int.U8")) is float
    assert META.get_ints("ints.U8").dtype == np.int64
    assert META.get_floats("floats.F64").dtype == np.float32


def test_unsigned_elements_beyond_int64_are_refused() -> None:
    metadata = Metadata({"k": Typed.array(ValueType.U64, [2**63])})
    with pytest.raises(FormatError, match="the largest element is 9223372036854775808"):
        metadata.get_ints("k")


def test_as_a_mapping() -> None:
    assert META["flag"] is True
    assert META["words"] == ["a", "b"]
    np.testing.assert_array_equal(META["nested"][0], [1, 2])
    assert "absent" not in META
    assert META.get("absent") is None
    assert len(list(META)) == len(META)
    with pytest.raises(KeyError):
        META["absent"]


def test_typed_is_a_copy() -> None:
    typed = META.typed()
    typed.clear()
    assert len(META) > 0
