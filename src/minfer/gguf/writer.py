"""Writing GGUF version 3: one file or shards, streamed, and never seen half-written.

Tensor data may be given as chunks made on the way, so a model larger than memory can be written.
Files are written under a temporary name and renamed when all are complete.
"""

from __future__ import annotations

import operator
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from minfer.dtypes import DType
from minfer.errors import FormatError
from minfer.gguf.parse import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_KEY,
    MAX_TENSOR_NAME,
    padded,
)
from minfer.gguf.reader import shard_name
from minfer.gguf.values import NUMPY, Typed, ValueType

Chunk = bytes | bytearray | memoryview | np.ndarray[Any, Any]

VERSION = 3
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


@dataclass(frozen=True, slots=True)
class TensorData:
    """A tensor to write.

    Attributes:
        name: at most 64 bytes.
        dtype: storage type of `data`.
        shape: sizes in GGUF order, the contiguous row first.
        data: the stored bytes, in one piece or as an iterable of pieces, which is run once.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: Chunk | Iterable[Chunk]

    @property
    def nbytes(self) -> int:
        """Bytes that `data` must amount to."""
        return self.dtype.nbytes(prod(self.shape))


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorData],
    *,
    alignment: int | None = None,
    split_max_bytes: int | None = None,
) -> list[Path]:
    """Write a model.

    Args:
        path: the file; with shards, `NAME.gguf` gives `NAME-00001-of-0000N.gguf` and so on.
        metadata: plain values, typed by `Typed.of`, or `Typed` ones. `split.*` keys are left
            out and written anew where they apply.
        tensors: in the order of the file.
        alignment: of each tensor's data, a power of two; by default what the metadata says.
        split_max_bytes: begin a new shard before the tensor data of one exceeds this.

    Returns:
        The files written, the first shard first.

    Raises:
        FormatError: if a key, value, name, shape or amount of data is not what GGUF can hold.
    """
    path = Path(path)
    values = {key: _typed(path, key, value) for key, value in metadata.items()}
    for key in SPLIT_KEYS:
        values.pop(key, None)
    alignment = _choose_alignment(path, values, alignment)
    _check_tensors(path, tensors)
    shards = _divide(tensors, split_max_bytes)
    if len(shards) == 1:
        contents = [(path, values, shards[0])]
    else:
        contents = _shard_contents(path, values, shards, len(tensors))
    partial = [target.with_name(f"{target.name}.{os.getpid()}.partial") for target, *_ in contents]
    try:
        for temporary, (target, pairs, members) in zip(partial, contents, strict=True):
            with temporary.open("wb") as stream:
                _write_file(stream, target, pairs, members, alignment)
        # The first shard last: a reader that finds it finds them all.
        for temporary, (target, *_) in reversed(list(zip(partial, contents, strict=True))):
            temporary.replace(target)
    finally:
        for temporary in partial:
            with suppress(FileNotFoundError):
                temporary.unlink()
    return [target for target, *_ in contents]


def _typed(path: Path, key: str, value: Any) -> Typed:
    try:
        return Typed.of(value)
    except FormatError as error:
        raise FormatError(error.what, where=f"{path}: {key}", remedy=error.remedy) from None


def _choose_alignment(path: Path, values: dict[str, Typed], alignment: int | None) -> int:
    declared = values.pop(ALIGNMENT_KEY, None)
    if alignment is None:
        alignment = DEFAULT_ALIGNMENT if declared is None else int(declared.value)
    if alignment.bit_count() != 1 or not 0 < alignment < 2**32:
        raise FormatError(f"{alignment} is not a power of two", where=f"{path}: {ALIGNMENT_KEY}")
    if alignment != DEFAULT_ALIGNMENT or declared is not None:
        values[ALIGNMENT_KEY] = Typed(ValueType.U32, alignment)
    return alignment


def _check_tensors(path: Path, tensors: Sequence[TensorData]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        where = f"{path}: {tensor.name}"
        size = len(tensor.name.encode())
        if not 0 < size <= MAX_TENSOR_NAME:
            raise FormatError(
                f"the name has {size} bytes; 1 to {MAX_TENSOR_NAME} are allowed", where=where
            )
        if tensor.name in seen:
            raise FormatError("two tensors have this name", where=where)
        seen.add(tensor.name)
        if len(tensor.shape) > MAX_DIMS or any(not 0 < n < 2**63 for n in tensor.shape):
            raise FormatError(f"the shape {tensor.shape} cannot be stored", where=where)
        row = tensor.shape[0] if tensor.shape else 1
        if row % tensor.dtype.block_items:
            raise FormatError(
                f"a row has {row} values, which is not a multiple of the "
                f"{tensor.dtype.block_items} of a {tensor.dtype} block",
                where=where,
            )


def _divide(tensors: Sequence[TensorData], limit: int | None) -> list[list[TensorData]]:
    """Runs of tensors whose data stays within the limit, where one tensor alone does."""
    runs: list[list[TensorData]] = [[]]
    filled = 0
    for tensor in tensors:
        if limit is not None and runs[-1] and filled + tensor.nbytes > limit:
            runs.append([])
            filled = 0
        runs[-1].append(tensor)
        filled += tensor.nbytes
    return runs


def _shard_contents(
    path: Path, values: dict[str, Typed], shards: list[list[TensorData]], n_tensors: int
) -> list[tuple[Path, dict[str, Typed], list[TensorData]]]:
    contents = []
    for index, members in enumerate(shards):
        own = {ALIGNMENT_KEY: values[ALIGNMENT_KEY]} if ALIGNMENT_KEY in values else {}
        pairs = dict(values) if index == 0 else own
        pairs["split.no"] = Typed(ValueType.U16, index)
        pairs["split.count"] = Typed(ValueType.U16, len(shards))
        pairs["split.tensors.count"] = Typed(ValueType.I32, n_tensors)
        contents.append((path.with_name(shard_name(path.stem, index, len(shards))), pairs, members))
    return contents


def _write_file(
    stream: BinaryIO,
    path: Path,
    values: Mapping[str, Typed],
    tensors: Sequence[TensorData],
    alignment: int,
) -> None:
    front = bytearray(MAGIC)
    front += struct.pack("<IQQ", VERSION, len(tensors), len(values))
    for key, value in values.items():
        size = len(key.encode())
        if not 0 < size <= MAX_KEY:
            raise FormatError(
                f"the key has {size} bytes; 1 to {MAX_KEY} are allowed", where=f"{path}: {key:.40}"
            )
        front += _string(key)
        front += struct.pack("<I", value.type)
        front += _value(value, f"{path}: {key}")
    offset = 0
    for tensor in tensors:
        front += _string(tensor.name)
        front += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        front += struct.pack("<IQ", tensor.dtype.gguf_id, offset)
        offset = padded(offset + tensor.nbytes, alignment)
    stream.write(front)
    _pad(stream, len(front), alignment)
    for tensor in tensors:
        written = 0
        for chunk in _chunks(tensor.data):
            written += stream.write(chunk)
            if written > tensor.nbytes:
                break
        if written != tensor.nbytes:
            amount = "more" if written > tensor.nbytes else f"{written}"
            raise FormatError(
                f"{tensor.nbytes} bytes of data are needed, but {amount} were given",
                where=f"{path}: {tensor.name}",
            )
        _pad(stream, written, alignment)


def _pad(stream: BinaryIO, size: int, alignment: int) -> None:
    stream.write(bytes(padded(size, alignment) - size))


def _chunks(data: Chunk | Iterable[Chunk]) -> Iterator[bytes | bytearray | memoryview]:
    if isinstance(data, np.ndarray):
        yield np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    elif isinstance(data, bytes | bytearray | memoryview):
        yield data
    else:
        for chunk in data:
            yield from _chunks(chunk)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _value(value: Typed, where: str) -> bytes:
    if value.type is ValueType.STRING:
        return _string(value.value)
    if value.type is not ValueType.ARRAY:
        return _scalar(value.type, value.value, where)
    assert value.item is not None
    head = struct.pack("<IQ", value.item, len(value.value))
    if value.item is ValueType.STRING:
        return head + b"".join(map(_string, value.value))
    if value.item is ValueType.ARRAY:
        return head + b"".join(_value(inner, where) for inner in value.value)
    return head + np.ascontiguousarray(value.value, NUMPY[value.item]).tobytes()


def _scalar(kind: ValueType, value: Any, where: str) -> bytes:
    dtype = NUMPY[kind]
    try:
        if kind is ValueType.BOOL:
            return {False: b"\0", True: b"\1"}[value]
        if dtype.kind == "f":
            return struct.pack("<f" if dtype.itemsize == 4 else "<d", value)
        return operator.index(value).to_bytes(dtype.itemsize, "little", signed=dtype.kind == "i")
    except (OverflowError, TypeError, KeyError, struct.error):
        raise FormatError(
            f"the value {value!r:.40} does not fit {kind.name.lower()}", where=where
        ) from None
