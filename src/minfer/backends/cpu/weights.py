"""Weights in memory: matrices repacked for the kernels, vectors as f32, embedding tables as filed.

Repacking goes straight from the mapped file, all threads together, and gives the file's pages
back behind it, so a model takes its size once. An embedding table stays in the file: a step reads
only the rows of its tokens.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from minfer.backends.base import Bytes, Weight
from minfer.backends.cpu import _native
from minfer.dtypes import F32
from minfer.gguf import dequantize

PANEL = 16
"""Outputs that are packed together; panels follow one another."""
PIECE_BYTES = 16 << 20
"""Bytes of a matrix that are packed before their pages go back to the file."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix.

    Attributes:
        format: its type.
        n_in, n_out: its sizes.
        address: where its panels begin.
    """

    format: _native.Format
    n_in: int
    n_out: int
    address: int


class WeightStore:
    """What `load` made resident, by the weight's name and the address of its bytes in the file."""

    def __init__(self) -> None:
        self._pool = _native.Pool()
        self._matrices: dict[str, tuple[int, Matrix]] = {}
        self._vectors: dict[str, tuple[int, int]] = {}
        self._tables: dict[str, Weight] = {}

    def add_matrix(self, device: _native.Device, weight: Weight) -> int:
        """Repack a matrix for the kernels of `device`; returns the bytes newly taken."""
        source = weight.data.ctypes.data
        if self._matrices.get(weight.name, (None,))[0] == source:
            return 0
        n_in, n_out = weight.spec.shape
        format_ = _native.Format[weight.spec.dtype.name]
        nbytes = device.packed_bytes(format_, n_in, n_out)
        address = self._pool.take(nbytes)
        mapped = _is_mapped(weight.data)
        row_bytes = weight.data.size // n_out
        step = max(PANEL, PIECE_BYTES // row_bytes // PANEL * PANEL)
        for row in range(0, n_out, step):
            rows = min(step, n_out - row)
            piece = weight.data[row * row_bytes : (row + rows) * row_bytes]
            target = address + device.packed_bytes(format_, n_in, row)
            device.pack(format_, n_in, rows, piece, target)
            if mapped:
                _native.drop_file_pages(piece)
        self._matrices[weight.name] = (source, Matrix(format_, n_in, n_out, address))
        return nbytes

    def add_vector(self, weight: Weight) -> int:
        """Keep a vector as f32; returns the bytes newly taken."""
        source = weight.data.ctypes.data
        if self._vectors.get(weight.name, (None,))[0] == source:
            return 0
        values = dequantize(weight.data, weight.spec.dtype)
        nbytes = F32.nbytes(values.size)
        address = self._pool.take(nbytes)
        _native.copy_to(address, np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        self._vectors[weight.name] = (source, address)
        return nbytes

    def add_table(self, weight: Weight) -> int:
        """Keep an embedding table as the file has it, which takes nothing."""
        self._tables[weight.name] = weight
        return 0

    def matrix(self, name: str) -> Matrix:
        """The packed matrix `name`, which was added."""
        return self._matrices[name][1]

    def vector(self, name: str) -> int:
        """Address of the f32 vector `name`, which was added."""
        return self._vectors[name][1]

    def table(self, name: str) -> Weight:
        """The embedding table `name`, which was added."""
        return self._tables[name]


def _is_mapped(data: Bytes) -> bool:
    """Whether an array is a window into a mapped file, whose pages can be read again."""
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(base, mmap.mmap)
