"""Hand-made GGUF bytes for the tests of the reader: every field can be wrong on purpose."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value % 2**64)


def string(text: str | bytes, size: int | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data) if size is None else size) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + u32(kind) + value


def array(item: int, count: int, data: bytes) -> bytes:
    return u32(item) + u64(count) + data


def tensor(
    name: str | bytes = "t",
    shape: Sequence[int] = (32,),
    kind: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    dims = b"".join(u64(n) for n in shape)
    return (
        string(name)
        + u32(len(shape) if n_dims is None else n_dims)
        + dims
        + u32(kind)
        + u64(offset)
    )


@dataclass
class File:
    """The parts of a file; `build` joins them with the right counts unless told otherwise."""

    pairs: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_pairs: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        front = self.magic + u32(self.version) + u64(n_tensors) + u64(n_pairs)
        front += b"".join(self.pairs) + b"".join(self.tensors)
        return front + bytes(-len(front) % self.alignment) + self.data
