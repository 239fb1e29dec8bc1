"""The types whose four bits index a table of levels: iq4_nl, iq4_xs, mxfp4.

Layouts, in bytes: iq4_nl `d:2 nibbles:16`, iq4_xs `d:2 scales_high:2 scales_low:4 nibbles:128`
(256 values, eight six-bit scales), mxfp4 `exponent:1 nibbles:16`. mxfp4 is the OCP Microscaling
format: E2M1 values under a shared E8M0 exponent.
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
from minfer.gguf.quants.search import F, extreme, inverse, levels, nearest, nearest_level, total

IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""The levels of the iq4 types, ascending."""

MXFP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""The E2M1 values, doubled to be whole; the scale is halved in turn."""

_PAIRS = np.array([0, 2, 4, 6, 8, 10, 12, 14], np.uint16)


def dequantize_iq4_nl(blocks: Bytes) -> Floats:
    return unpack_half(blocks[:, :2]) * IQ4_LEVELS[unpack_planes(blocks[:, 2:], 16, NIBBLES)]


def dequantize_iq4_xs(blocks: Bytes) -> Floats:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> _PAIRS & 3
    low = unpack_planes(blocks[:, 4:8], 1, NIBBLES)
    scales = (low | (high.astype(np.uint8) << 4)).astype(np.float32) - 32
    q = IQ4_LEVELS[unpack_planes(blocks[:, 8:], 16, NIBBLES)].reshape(len(blocks), 8, 32)
    scaled: Floats = (unpack_half(blocks[:, :2]) * scales)[:, :, None] * q
    return scaled.reshape(len(blocks), 256)


def _half_power(exponents: Bytes) -> Floats:
    """`2**(e - 128)`: half the E8M0 scale; the two smallest are subnormal floats."""
    e = exponents.astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x0020_0000) << np.minimum(e, 1), (np.maximum(e, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32)


def dequantize_mxfp4(blocks: Bytes) -> Floats:
    return _half_power(blocks[:, :1]) * MXFP4_LEVELS[unpack_planes(blocks[:, 1:], 16, NIBBLES)]


_TRIES = 7
"""Candidate scales on each side of the first, as ggml has it for files."""


def quantize_iq4_nl(x: Floats, importance: Importance | None) -> Bytes:
    weights = _weights(x, 32, importance)
    d = levels(np.ascontiguousarray(x.T), IQ4_LEVELS, _TRIES, weights)
    q = nearest_level(inverse(d)[:, None] * x, IQ4_LEVELS)
    return np.hstack([pack_half(d), pack_planes(q, 16, NIBBLES)])


def quantize_iq4_xs(x: Floats, importance: Importance | None) -> Bytes:
    groups = np.ascontiguousarray(x.reshape(-1, 32).T)
    weights = _weights(x, 256, importance)
    scales = levels(groups, IQ4_LEVELS, _TRIES, weights).reshape(-1, 8)
    d = -extreme(scales.T) / F(32)
    steps = np.clip(nearest(inverse(d)[:, None] * scales), -32, 31)
    parts = x.reshape(-1, 8, 32) * inverse(d[:, None] * steps)[:, :, None]
    q = nearest_level(parts, IQ4_LEVELS).reshape(x.shape)
    fields = (steps + F(32)).astype(np.uint8)
    high = np.bitwise_or.reduce((fields >> np.uint8(4)).astype(np.uint16) << _PAIRS, axis=1)
    return np.hstack(
        [
            pack_half(d),
            high.astype("<u2")[:, None].view(np.uint8),
            pack_planes(fields & np.uint8(15), 1, NIBBLES),
            pack_planes(q, 16, NIBBLES),
        ]
    )


def quantize_mxfp4(x: Floats, importance: Importance | None) -> Bytes:
    largest = np.abs(x).max(axis=1)
    # The logarithm must round to single precision before it is rounded down, as ggml's does.
    power = np.floor(np.log2(largest.astype(np.float64)).astype(np.float32))
    exponent = np.where(largest > 0, np.clip(power + 125, 0, 254), 0).astype(np.uint8)[:, None]
    scale = _half_power(exponent)
    q = np.zeros(x.shape, np.uint8)
    least = np.abs(x)
    for index, level in enumerate(MXFP4_LEVELS):
        error = np.abs(level * scale - x)
        np.copyto(q, np.uint8(index), where=error < least)
        np.minimum(least, error, out=least)
    return np.hstack([exponent, pack_planes(q, 16, NIBBLES)])


def _weights(x: Floats, super_block: int, importance: Importance | None) -> Floats:
    """Weights of the squared errors, as columns of 32."""
    squares = x * x
    if importance is not None:
        power = total(np.ascontiguousarray(squares.T)) * (F(2) / F(super_block))
        squares = importance.weights * np.sqrt(power[:, None] + squares)
    return np.ascontiguousarray(squares.reshape(-1, 32).T)
