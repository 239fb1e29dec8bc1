"""Metadata values: the GGUF value types, and typed access to what a file says.

A GGUF key carries a declared type, and writers disagree about which: one stores a count as u32,
another as u64 or i32. `Metadata` gives the plain Python value by key, and typed getters that take
any width of the asked-for kind and refuse the rest by name. Reading bytes is `parse`'s job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from minfer.errors import FormatError

T = TypeVar("T")


class ValueType(IntEnum):
    """The type of a metadata value, numbered as in the file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


NUMPY: dict[ValueType, np.dtype[Any]] = {
    ValueType.U8: np.dtype("<u1"),
    ValueType.I8: np.dtype("<i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
"""The little-endian element of each fixed-size type."""

INTEGERS = frozenset(t for t, d in NUMPY.items() if d.kind in "ui")
FLOATS = frozenset(t for t, d in NUMPY.items() if d.kind == "f")


@dataclass(frozen=True, slots=True, eq=False)
class Typed:
    """A metadata value with its declared type.

    Attributes:
        type: the declared type.
        value: `int`, `float`, `bool`, `str`; for an array a NumPy array (numbers, booleans), a
            list of `str`, or a list of `Typed` arrays.
        item: the element type of an array.
    """

    type: ValueType
    value: Any
    item: ValueType | None = None

    @staticmethod
    def array(item: ValueType, values: Any) -> Typed:
        """An array of `item` elements.

        Raises:
            FormatError: if an element does not fit the type.
        """
        if item not in NUMPY:
            return Typed(ValueType.ARRAY, list(values), item)
        # Python integers stay objects here: NumPy's guess for them could be a rounding float.
        exact = item in INTEGERS and not isinstance(values, np.ndarray)
        found = np.asarray(values, object if exact else None)
        try:
            with np.errstate(invalid="ignore", over="ignore"):
                elements = found.astype(NUMPY[item])
            fits = item in FLOATS or np.array_equal(elements, found)
        except (OverflowError, TypeError, ValueError):
            fits = False
        if not fits:
            raise FormatError(f"an element of {_shown(values)} does not fit {item.name.lower()}")
        return Typed(ValueType.ARRAY, elements, item)

    @staticmethod
    def of(value: Any) -> Typed:
        """A plain value with the type that other writers give its kind.

        Scalars: bool, u32 (i32 below zero, 64 bits where needed), f32, string. Arrays: i32 (i64
        where needed), f32, bool, string; a NumPy array or scalar keeps its own type.

        Raises:
            FormatError: for a value of no such kind, or an empty list, whose type is unknown.
        """
        if isinstance(value, Typed):
            return value
        if isinstance(value, str):
            return Typed(ValueType.STRING, value)
        if isinstance(value, np.generic):
            return Typed(_numpy_type(value.dtype), value.item())
        if isinstance(value, np.ndarray) and value.ndim == 1:
            return Typed.array(_numpy_type(value.dtype), value)
        if isinstance(value, list | tuple) and value:
            return Typed.array(_list_type(value), value)
        if isinstance(value, bool):
            return Typed(ValueType.BOOL, value)
        if isinstance(value, int):
            return Typed(_integer_type(value), value)
        if isinstance(value, float):
            return Typed(ValueType.F32, value)
        raise FormatError(
            f"the metadata value {_shown(value)} has no type of its own",
            remedy="Give one: Typed(ValueType.U32, ...) or Typed.array(ValueType.STRING, ...)",
        )

    def plain(self) -> Any:
        """The value without its type."""
        if self.item is ValueType.ARRAY:
            return [inner.plain() for inner in self.value]
        return self.value

    def describe(self) -> str:
        """The declared type in words with a scalar's value, as error messages print it."""
        if self.item is None:
            return f"{self.type.name.lower()} {_shown(self.value)}"
        return f"array of {len(self.value)} {self.item.name.lower()}"


def _shown(value: Any) -> str:
    """A value as it fits into one line of an error."""
    return " ".join(repr(value).split())[:60]


def _numpy_type(dtype: np.dtype[Any]) -> ValueType:
    for kind, known in NUMPY.items():
        if dtype == known:
            return kind
    raise FormatError(f"arrays of {dtype} cannot be stored as metadata")


def _integer_type(value: int) -> ValueType:
    if value < 0:
        return ValueType.I32 if value >= -(2**31) else ValueType.I64
    return ValueType.U32 if value < 2**32 else ValueType.U64


def _list_type(values: Sequence[Any]) -> ValueType:
    kinds = {bool if isinstance(v, bool) else type(v) for v in values}
    if kinds == {str}:
        return ValueType.STRING
    if kinds == {bool}:
        return ValueType.BOOL
    if kinds == {int}:
        fits = all(-(2**31) <= v < 2**31 for v in values)
        return ValueType.I32 if fits else ValueType.I64
    if kinds <= {int, float}:
        return ValueType.F32
    raise FormatError(f"the list {_shown(values)} mixes types or holds a type that has none")


def u32(value: int) -> Typed:
    """An unsigned 32-bit value, whatever the writer would choose by itself."""
    return Typed(ValueType.U32, value)


class _Missing:
    """The type of "no default": a key is then required."""


_REQUIRED = _Missing()


class Metadata(Mapping[str, Any]):
    """The key-value part of a file, in file order.

    As a mapping it gives plain values: scalars, `list[str]`, read-only NumPy arrays. Strings
    inside arrays keep bytes that are not UTF-8 as surrogate escapes, so
    ``token.encode("utf-8", "surrogateescape")`` gives the file's bytes back.

    The getters take any width of their kind. Without a default a missing key is an error.

    Args:
        values: the typed values.
        source: what errors call the file.
    """

    def __init__(self, values: Mapping[str, Typed], source: str = "metadata") -> None:
        self._values = dict(values)
        self._source = source

    def __getitem__(self, key: str) -> Any:
        return self._values[key].plain()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def typed(self) -> dict[str, Typed]:
        """A new dictionary of the values with their declared types, as `write_gguf` takes it."""
        return dict(self._values)

    def get_int(self, key: str, default: T | _Missing = _REQUIRED) -> int | T:
        """An integer of any width."""
        found = self._find(key, default, "an integer")
        if not isinstance(found, Typed):
            return found
        if found.type not in INTEGERS:
            raise self._wrong(key, found, "an integer")
        return int(found.value)

    def get_float(self, key: str, default: T | _Missing = _REQUIRED) -> float | T:
        """A float of any width; an integer is taken too, for it loses nothing."""
        found = self._find(key, default, "a float")
        if not isinstance(found, Typed):
            return found
        if found.type not in FLOATS and found.type not in INTEGERS:
            raise self._wrong(key, found, "a float")
        return float(found.value)

    def get_bool(self, key: str, default: T | _Missing = _REQUIRED) -> bool | T:
        """A boolean."""
        found = self._find(key, default, "a bool")
        if not isinstance(found, Typed):
            return found
        if found.type is not ValueType.BOOL:
            raise self._wrong(key, found, "a bool")
        return bool(found.value)

    def get_str(self, key: str, default: T | _Missing = _REQUIRED) -> str | T:
        """A string."""
        found = self._find(key, default, "a string")
        if not isinstance(found, Typed):
            return found
        if found.type is not ValueType.STRING:
            raise self._wrong(key, found, "a string")
        return str(found.value)

    def get_ints(self, key: str, default: T | _Missing = _REQUIRED) -> npt.NDArray[np.int64] | T:
        """An array of integers of any width (booleans too), as int64."""
        found = self._find(key, default, "an array of integers")
        if not isinstance(found, Typed):
            return found
        if found.item not in INTEGERS and found.item is not ValueType.BOOL:
            raise self._wrong(key, found, "an array of integers")
        if found.item is ValueType.U64 and found.value.size and found.value.max() > 2**63 - 1:
            raise FormatError(
                f"the largest element is {found.value.max()}, above {2**63 - 1}",
                where=f"{self._source}: {key}",
            )
        return np.asarray(found.value).astype(np.int64)

    def get_floats(
        self, key: str, default: T | _Missing = _REQUIRED
    ) -> npt.NDArray[np.float32] | T:
        """An array of floats of any width, as float32."""
        found = self._find(key, default, "an array of floats")
        if not isinstance(found, Typed):
            return found
        if found.item not in FLOATS:
            raise self._wrong(key, found, "an array of floats")
        return np.asarray(found.value).astype(np.float32)

    def get_strs(self, key: str, default: T | _Missing = _REQUIRED) -> list[str] | T:
        """An array of strings."""
        found = self._find(key, default, "an array of strings")
        if not isinstance(found, Typed):
            return found
        if found.item is not ValueType.STRING:
            raise self._wrong(key, found, "an array of strings")
        return list(found.value)

    def _find(self, key: str, default: T | _Missing, wanted: str) -> Typed | T:
        found = self._values.get(key)
        if found is not None:
            return found
        if isinstance(default, _Missing):
            raise FormatError(
                f"the key is missing; it should be {wanted}", where=f"{self._source}: {key}"
            )
        return default

    def _wrong(self, key: str, found: Typed, wanted: str) -> FormatError:
        return FormatError(
            f"the value is {found.describe()}, but should be {wanted}",
            where=f"{self._source}: {key}",
        )
