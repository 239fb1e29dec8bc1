"""The 32-value types with a scale (`_0`) or a scale and a minimum (`_1`) a block.

Layouts, in bytes: q4_0 `d:2 nibbles:16`, q4_1 `d:2 m:2 nibbles:16`, q5_0 `d:2 high:4 nibbles:16`,
q5_1 `d:2 m:2 high:4 nibbles:16`, q8_0 `d:2 values:32`. Value i < 16 is the low nibble of byte i,
value i + 16 the high one; bit i of `high` is the fifth bit of value i.
"""

from __future__ import annotations

import numpy as np

from minfer.gguf.quants.bits import NIBBLES, Bytes, Floats, unpack_half, unpack_planes


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
