"""The 32-value types with a scale (`_0`) or a scale and a minimum (`_1`) a block.

Layouts, in bytes: q4_0 `d:2 nibbles:16`, q4_1 `d:2 m:2 nibbles:16`, q5_0 `d:2 high:4 nibbles:16`,
q5_1 `d:2 m:2 high:4 nibbles:16`, q8_0 `d:2 values:32`. Value i < 16 is the low nibble of byte i,
value i + 16 the high one; bit i of `high` is the fifth bit of value i.
"""

from __future__ import annotations

import numpy as np

from minfer.gguf.quants.bits import (
    NIBBLES,
    Bytes,
    Floats,
    Importance,
    pack_half,
    pack_planes,
    unpack_half,
    unpack_planes,
)
from minfer.gguf.quants.search import BY_IMPORTANCE, F, affine, extreme, inverse, least, symmetric


def _fifth_bits(field: Bytes) -> Bytes:
    return np.unpackbits(field, axis=1, bitorder="little") << np.uint8(4)


def dequantize_q4_0(blocks: Bytes) -> Floats:
    q = unpack_planes(blocks[:, 2:], 16, NIBBLES).astype(np.float32) - 8
    return unpack_half(blocks[:, :2]) * q


def dequantize_q4_1(blocks: Bytes) -> Floats:
    q = unpack_planes(blocks[:, 4:], 16, NIBBLES).astype(np.float32)
    return unpack_half(blocks[:, :2]) * q + unpack_half(blocks[:, 2:4])


def dequantize_q5_0(blocks: Bytes) -> Floats:
    q = unpack_planes(blocks[:, 6:], 16, NIBBLES) | _fifth_bits(blocks[:, 2:6])
    return unpack_half(blocks[:, :2]) * (q.astype(np.float32) - 16)


def dequantize_q5_1(blocks: Bytes) -> Floats:
    q = unpack_planes(blocks[:, 8:], 16, NIBBLES) | _fifth_bits(blocks[:, 4:8])
    return unpack_half(blocks[:, :2]) * q.astype(np.float32) + unpack_half(blocks[:, 2:4])


def dequantize_q8_0(blocks: Bytes) -> Floats:
    return unpack_half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def quantize_q4_0(x: Floats, importance: Importance | None) -> Bytes:
    d, q = _symmetric(x, 8, importance)
    return np.hstack([pack_half(d), pack_planes(q, 16, NIBBLES)])


def quantize_q4_1(x: Floats, importance: Importance | None) -> Bytes:
    d, low, q = _affine(x, 15, importance)
    return np.hstack([pack_half(d), pack_half(low), pack_planes(q, 16, NIBBLES)])


def quantize_q5_0(x: Floats, importance: Importance | None) -> Bytes:
    d, q = _symmetric(x, 16, importance)
    return np.hstack([pack_half(d), *_five_bits(q)])


def quantize_q5_1(x: Floats, importance: Importance | None) -> Bytes:
    d, low, q = _affine(x, 31, importance)
    return np.hstack([pack_half(d), pack_half(low), *_five_bits(q)])


def quantize_q8_0(x: Floats, importance: Importance | None) -> Bytes:
    d = np.abs(x).max(axis=1) / F(127)
    scaled = x * inverse(d)[:, None]
    whole = np.trunc(scaled)
    # Halves go away from zero, as C's roundf has it.
    whole += np.where(np.abs(scaled - whole) >= F(0.5), np.sign(scaled), F(0))
    return np.hstack([pack_half(d), whole.astype(np.int8).view(np.uint8)])


def _five_bits(q: Bytes) -> tuple[Bytes, Bytes]:
    high = np.packbits(q >> np.uint8(4), axis=1, bitorder="little")
    return high, pack_planes(q & np.uint8(15), 16, NIBBLES)


def _symmetric(x: Floats, nmax: int, importance: Importance | None) -> tuple[Floats, Bytes]:
    """Scale and q in [0, 2 * nmax); without importance the extreme becomes q = 0."""
    if importance is not None:
        d, columns = symmetric(x.T, nmax, _weights(x, importance).T)
        return d, columns.T.astype(np.uint8)
    d = extreme(x.T) / F(-nmax)
    q = np.trunc(x * inverse(d)[:, None] + F(nmax + 0.5))
    return d, np.minimum(q, 2 * nmax - 1).astype(np.uint8)


def _affine(x: Floats, nmax: int, importance: Importance | None) -> tuple[Floats, Floats, Bytes]:
    """Scale, minimum and q in [0, nmax]; without importance they span the block's range."""
    if importance is not None:
        d, low, columns = affine(x.T, _weights(x, importance).T, nmax, BY_IMPORTANCE)
        return d, -low, columns.T.astype(np.uint8)
    low = least(x.T)
    d = (-least(-x.T) - low) / F(nmax)
    q = np.trunc((x - low[:, None]) * inverse(d)[:, None] + F(0.5))
    return d, low, np.minimum(q, nmax).astype(np.uint8)


def _weights(x: Floats, importance: Importance) -> Floats:
    return importance.weights * np.sqrt(importance.row_power[:, None] + x * x)
