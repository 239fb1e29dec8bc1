"""The bytes of one GGUF file up to its tensor data: header, metadata, tensor descriptions.

Everything read from a file is checked against the bytes that are left before it is believed, so
nothing is allocated that the file does not itself contain, and every fault is one `FormatError`
that names the file, the field, the value and the limit. The layout is that of `docs/gguf.md` in
ggml; the limits are those of its reference reader. Mapping files and joining shards is `reader`.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from typing import NoReturn

import numpy as np

from minfer.dtypes import BY_ID, TYPES, DType
from minfer.errors import FormatError
from minfer.gguf.values import NUMPY, Metadata, Typed, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32

MAX_STRING = 2**30
MAX_KEY = 65_535
MAX_ARRAY = 2**30
MAX_ARRAY_NESTING = 4
MAX_TENSOR_NAME = 64
MAX_DIMS = 4
MAX_ITEMS = 2**63 - 1

# The fewest bytes an entry of each kind can take: what a count is checked against.
MIN_PAIR = 8 + 1 + 4 + 1  # key length, a key of one byte, value type, a one-byte value
MIN_TENSOR = 8 + 1 + 4 + 4 + 8  # name length, a name of one byte, dimensions, type, offset
MIN_STRING = 8
MIN_ARRAY = 4 + 8

TRUNCATED = "The file looks truncated; fetch it again"

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor description: `start` counts bytes from the beginning of the file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """All of a file but its tensor data."""

    version: int
    metadata: Metadata
    tensors: tuple[TensorEntry, ...]
    alignment: int
    data_start: int


def parse(buffer: mmap.mmap | bytes, source: str) -> Header:
    """Read and check everything before the tensor data of one file.

    Args:
        buffer: the whole file.
        source: what errors call it.

    Raises:
        FormatError: for anything the format does not allow.
    """
    cursor = _Cursor(buffer, source)
    version, n_tensors, n_pairs = _prologue(cursor)
    values = _pairs(cursor, n_pairs)
    metadata = Metadata(values, source)
    alignment = _alignment(cursor, values)
    described = _descriptions(cursor, n_tensors)
    data_start = padded(cursor.pos, alignment)
    tensors = _placed(cursor, described, data_start, alignment)
    return Header(version, metadata, tensors, alignment, data_start)


def padded(size: int, alignment: int) -> int:
    """The next multiple of `alignment` from `size` up."""
    return -(-size // alignment) * alignment


class _Cursor:
    """A position in the file; each read names the field it serves."""

    __slots__ = ("buffer", "end", "pos", "source")

    def __init__(self, buffer: mmap.mmap | bytes, source: str) -> None:
        self.buffer = buffer
        self.pos = 0
        self.end = len(buffer)
        self.source = source

    def fail(self, field: str, what: str, remedy: str | None = None) -> NoReturn:
        raise FormatError(what, where=f"{self.source}: {field}", remedy=remedy)

    def need(self, nbytes: int, field: str) -> None:
        """Require that many bytes before the end of the file."""
        if nbytes > self.end - self.pos:
            self.fail(
                field,
                f"{nbytes} bytes are needed at offset {self.pos}, but the file ends at {self.end}",
                TRUNCATED,
            )

    def u32(self, field: str) -> int:
        self.need(4, field)
        (value,) = _U32.unpack_from(self.buffer, self.pos)
        self.pos += 4
        return int(value)

    def u64(self, field: str) -> int:
        self.need(8, field)
        (value,) = _U64.unpack_from(self.buffer, self.pos)
        self.pos += 8
        return int(value)

    def raw(self, nbytes: int, field: str) -> bytes:
        self.need(nbytes, field)
        value = self.buffer[self.pos : self.pos + nbytes]
        self.pos += nbytes
        return value

    def count(self, field: str, noun: str, least: int, limit: int | None = None) -> int:
        """A count of things that take at least `least` bytes each."""
        value = self.u64(field)
        if limit is not None and value > limit:
            self.fail(field, f"{value} {noun} are declared, above the limit of {limit}")
        if value * least > self.end - self.pos:
            self.fail(
                field,
                f"{value} {noun} are declared, but the {self.end - self.pos} bytes left hold "
                f"at most {(self.end - self.pos) // least}",
                "The file is damaged or truncated; fetch it again",
            )
        return value

    def string(self, field: str, limit: int = MAX_STRING) -> str:
        size = self.u64(field)
        if size > limit:
            self.fail(field, f"a string of {size} bytes is declared, above the limit of {limit}")
        data = self.raw(size, field)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.fail(field, f"byte {error.start} of {data[:40]!r} is not UTF-8")


def _prologue(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.raw(4, "magic")
    if magic != MAGIC:
        cursor.fail(
            "magic",
            f"the file begins with {magic!r}, not with {MAGIC!r}",
            "It is not a GGUF file",
        )
    version = cursor.u32("version")
    if version not in VERSIONS:
        if version and not version & 0xFFFF:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            cursor.fail(
                "version",
                f"version {version:#010x} is a byte-swapped {swapped}: the file is big-endian, "
                "and only little-endian files are read",
                "Convert it with gguf-convert-endian, or get the little-endian file",
            )
        cursor.fail(
            "version",
            f"version {version} is not supported; only versions 2 and 3 are",
            "Convert the model again with current tools",
        )
    n_tensors = cursor.count("tensor count", "tensors", MIN_TENSOR)
    n_pairs = cursor.count("key count", "keys", MIN_PAIR)
    return version, n_tensors, n_pairs


def _pairs(cursor: _Cursor, n_pairs: int) -> dict[str, Typed]:
    values: dict[str, Typed] = {}
    for index in range(n_pairs):
        key = cursor.string(f"key {index}", MAX_KEY)
        if not key:
            cursor.fail(f"key {index}", "the key is empty")
        if key in values:
            cursor.fail(f"key {index}", f"the key {key!r} appears twice")
        values[key] = _value(cursor, _value_type(cursor, key), key)
    return values


def _value_type(cursor: _Cursor, key: str) -> ValueType:
    number = cursor.u32(key)
    try:
        return ValueType(number)
    except ValueError:
        cursor.fail(key, f"value type {number} is unknown; the types are 0 to {len(ValueType) - 1}")


def _value(cursor: _Cursor, kind: ValueType, key: str, depth: int = 0) -> Typed:
    if kind is ValueType.STRING:
        return Typed(kind, cursor.string(key))
    if kind is ValueType.ARRAY:
        return _array(cursor, key, depth)
    element = _elements(cursor, kind, 1, key)
    return Typed(kind, element[0].item())


def _array(cursor: _Cursor, key: str, depth: int) -> Typed:
    if depth == MAX_ARRAY_NESTING:
        cursor.fail(key, f"arrays are nested more than {MAX_ARRAY_NESTING} deep")
    item = _value_type(cursor, key)
    if item is ValueType.STRING:
        count = cursor.count(key, "strings", MIN_STRING, MAX_ARRAY)
        return Typed(ValueType.ARRAY, _strings(cursor, count, key), item)
    if item is ValueType.ARRAY:
        count = cursor.count(key, "arrays", MIN_ARRAY, MAX_ARRAY)
        return Typed(ValueType.ARRAY, [_array(cursor, key, depth + 1) for _ in range(count)], item)
    count = cursor.count(key, "elements", NUMPY[item].itemsize, MAX_ARRAY)
    return Typed(ValueType.ARRAY, _elements(cursor, item, count, key), item)


def _elements(cursor: _Cursor, kind: ValueType, count: int, key: str) -> np.ndarray:
    """Fixed-size elements as a read-only array of their own bytes, not of the mapping."""
    dtype = NUMPY[kind]
    values = np.frombuffer(cursor.raw(count * dtype.itemsize, key), dtype)
    if kind is ValueType.BOOL:
        raw = values.view(np.uint8)
        if raw.size and raw.max() > 1:
            cursor.fail(key, f"a bool is stored as {raw.max()}; only 0 and 1 are valid")
    return values


def _strings(cursor: _Cursor, count: int, key: str) -> list[str]:
    """The strings of an array: one tight loop, for a vocabulary has a quarter of a million.

    Vocabularies hold tokens that are pieces of UTF-8 characters, so undecodable bytes are kept
    as surrogate escapes, not refused.
    """
    buffer, pos, end = cursor.buffer, cursor.pos, cursor.end
    unpack_from = _U64.unpack_from
    strings: list[str] = []
    append = strings.append
    for index in range(count):
        start = pos + 8
        if start > end:
            cursor.fail(f"{key}[{index}]", f"the array runs past the file's {end} bytes", TRUNCATED)
        pos = start + unpack_from(buffer, pos)[0]
        if pos > end:
            cursor.fail(
                f"{key}[{index}]",
                f"a string of {pos - start} bytes is declared, but {end - start} are left",
                TRUNCATED,
            )
        append(str(buffer[start:pos], "utf-8", "surrogateescape"))
    cursor.pos = pos
    return strings


def _alignment(cursor: _Cursor, values: dict[str, Typed]) -> int:
    declared = values.get(ALIGNMENT_KEY)
    if declared is None:
        return DEFAULT_ALIGNMENT
    if declared.type is not ValueType.U32:
        cursor.fail(ALIGNMENT_KEY, f"the value is {declared.describe()}, but should be u32")
    value = int(declared.value)
    if value.bit_count() != 1:
        cursor.fail(ALIGNMENT_KEY, f"{value} is not a power of two")
    return value


def _descriptions(cursor: _Cursor, n_tensors: int) -> list[TensorEntry]:
    """The tensor descriptions, with `start` still relative to the data section."""
    entries: list[TensorEntry] = []
    names: set[str] = set()
    for index in range(n_tensors):
        name = cursor.string(f"name of tensor {index}", MAX_TENSOR_NAME)
        if not name:
            cursor.fail(f"name of tensor {index}", "the name is empty")
        if name in names:
            cursor.fail(f"name of tensor {index}", f"the name {name!r} appears twice")
        names.add(name)
        shape = _shape(cursor, name)
        dtype = _dtype(cursor, name)
        row_items = shape[0] if shape else 1
        if row_items % dtype.block_items:
            cursor.fail(
                name,
                f"a row has {row_items} values, which is not a multiple of the "
                f"{dtype.block_items} of a {dtype} block",
            )
        start = cursor.u64(name)
        entries.append(TensorEntry(name, dtype, shape, start, dtype.nbytes(prod(shape))))
    return entries


def _shape(cursor: _Cursor, name: str) -> tuple[int, ...]:
    n_dims = cursor.u32(name)
    if n_dims > MAX_DIMS:
        cursor.fail(name, f"the tensor has {n_dims} dimensions, above the limit of {MAX_DIMS}")
    shape = tuple(cursor.u64(name) for _ in range(n_dims))
    if 0 in shape:
        cursor.fail(name, f"the shape {shape} has a dimension of 0")
    if prod(shape) > MAX_ITEMS:
        cursor.fail(name, f"the shape {shape} has {prod(shape)} values, above the limit of 2^63-1")
    return shape


def _dtype(cursor: _Cursor, name: str) -> DType:
    number = cursor.u32(name)
    dtype = BY_ID.get(number)
    if dtype is None:
        known = ", ".join(f"{t.gguf_id} {t}" for t in TYPES)
        cursor.fail(name, f"tensor type {number} is unknown; the types are {known}")
    return dtype


def _placed(
    cursor: _Cursor, entries: list[TensorEntry], data_start: int, alignment: int
) -> tuple[TensorEntry, ...]:
    """The entries with absolute starts, after checking that the data section has no holes."""
    placed: list[TensorEntry] = []
    expected = 0
    for entry in entries:
        if entry.start != expected:
            cursor.fail(
                entry.name,
                f"the data offset is {entry.start}, but should be {expected}, where the tensor "
                f"before it ends (aligned to {alignment})",
            )
        start = data_start + expected
        if start + entry.nbytes > cursor.end:
            cursor.fail(
                entry.name,
                f"{entry.nbytes} bytes of {entry.dtype} data begin at offset {start}, "
                f"but the file ends at {cursor.end}",
                TRUNCATED,
            )
        placed.append(TensorEntry(entry.name, entry.dtype, entry.shape, start, entry.nbytes))
        expected = padded(expected + entry.nbytes, alignment)
    return tuple(placed)
