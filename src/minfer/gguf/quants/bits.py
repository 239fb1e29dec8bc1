"""Fields of packed blocks: nibbles, bit planes, half-precision scales, six-bit scale tables.

Each `unpack_*` has its `pack_*`. Arrays are `[blocks, ...]` uint8; what the fields mean to a type
is that type's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minfer.errors import FormatError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Importance:
    """How much the values of a matrix matter, from an importance matrix.

    Attributes:
        weights: one a value, [blocks, items].
        row_power: mean square of the row that each block is of, [blocks].
    """

    weights: Floats
    row_power: Floats


NIBBLES = np.array([0, 4], np.uint8)[:, None]
CRUMBS = np.array([0, 2, 4, 6], np.uint8)[:, None]
BITS = np.arange(8, dtype=np.uint8)[:, None]


def unpack_half(field: Bytes) -> Floats:
    """Two bytes a block as a float column, [blocks, 1]."""
    return np.ascontiguousarray(field).view("<f2").astype(np.float32)


def pack_half(values: Floats) -> Bytes:
    """The inverse of `unpack_half`, rounding to even, from [blocks].

    Raises:
        FormatError: for a value beyond the range of half precision.
    """
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        worst = float(np.abs(values).max())
        raise FormatError(f"a block scale of {worst:g} exceeds the 65504 of half precision")
    return halves[:, None].view(np.uint8)


def unpack_planes(field: Bytes, width: int, shifts: npt.NDArray[np.uint8]) -> Bytes:
    """Fields of `8 / len(shifts)` bits; each run of `width` bytes holds the values in planes.

    Args:
        field: packed bytes, [blocks, n].
        width: bytes of a run: its value `i + k * width` is in byte `i` at shift `k`.
        shifts: `NIBBLES`, `CRUMBS` or `BITS`.

    Returns:
        [blocks, n * len(shifts)]
    """
    runs = field.reshape(len(field), -1, 1, width) >> shifts
    return (runs & np.uint8((1 << 8 // len(shifts)) - 1)).reshape(len(field), -1)


def pack_planes(values: Bytes, width: int, shifts: npt.NDArray[np.uint8]) -> Bytes:
    """The inverse of `unpack_planes`; values must fit their fields."""
    runs = values.reshape(len(values), -1, len(shifts), width) << shifts
    return np.asarray(np.bitwise_or.reduce(runs, axis=2)).reshape(len(values), -1)


def unpack_scales_mins(field: Bytes) -> tuple[Bytes, Bytes]:
    """Eight six-bit scales and eight six-bit minima from the 12 bytes of a q4_K or q5_K block.

    Bytes 0-3 hold the low four scales, 4-7 the low four minima, each with two bits of a high
    value on top; bytes 8-11 hold the other four bits of the high ones.
    """
    scales, mins, high = field[:, 0:4], field[:, 4:8], field[:, 8:12]
    return (
        np.hstack([scales & 63, (high & 15) | ((scales >> 2) & 48)]),
        np.hstack([mins & 63, (high >> 4) | ((mins >> 2) & 48)]),
    )


def pack_scales_mins(scales: Bytes, mins: Bytes) -> Bytes:
    """The inverse of `unpack_scales_mins`."""
    low_s, high_s = scales[:, :4], scales[:, 4:]
    low_m, high_m = mins[:, :4], mins[:, 4:]
    return np.hstack(
        [
            low_s | ((high_s >> 4) << 6),
            low_m | ((high_m >> 4) << 6),
            (high_s & 15) | ((high_m & 15) << 4),
        ]
    )


def unpack_scales_16(field: Bytes) -> Bytes:
    """Sixteen six-bit scales from the 12 bytes of a q3_K block: low nibbles, then high bits."""
    low = unpack_planes(field[:, :8], 8, NIBBLES)
    high = unpack_planes(field[:, 8:], 4, CRUMBS)
    return low | (high << np.uint8(4))


def pack_scales_16(scales: Bytes) -> Bytes:
    """The inverse of `unpack_scales_16`."""
    low, high = scales & np.uint8(15), scales >> np.uint8(4)
    return np.hstack([pack_planes(low, 8, NIBBLES), pack_planes(high, 4, CRUMBS)])
