"""The types whose four bits index a table of levels: iq4_nl, iq4_xs, mxfp4.

Layouts, in bytes: iq4_nl `d:2 nibbles:16`, iq4_xs `d:2 scales_high:2 scales_low:4 nibbles:128`
(256 values, eight six-bit scales), mxfp4 `exponent:1 nibbles:16`. mxfp4 is the OCP Microscaling
format: E2M1 values under a shared E8M0 exponent.
"""

from __future__ import annotations

import numpy as np

from minfer.gguf.quants.bits import NIBBLES, Bytes, Floats, unpack_half, unpack_planes

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
