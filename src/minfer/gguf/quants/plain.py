"""The plain element types: f32, f16, bf16.

"Blocks" are rows of one element here: `[n, bytes]` to `[n, 1]` and back.
"""

from __future__ import annotations

import numpy as np

from minfer.gguf.quants.bits import Bytes, Floats, Importance, pack_half


def dequantize_f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def dequantize_f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def dequantize_bf16(blocks: Bytes) -> Floats:
    words = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return (words << 16).view(np.float32)


def quantize_f32(x: Floats, importance: Importance | None) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def quantize_f16(x: Floats, importance: Importance | None) -> Bytes:
    return pack_half(x[:, 0])


def quantize_bf16(x: Floats, importance: Importance | None) -> Bytes:
    bits = x.view(np.uint32)
    rounded = bits + (0x7FFF + ((bits >> 16) & 1))
    return (rounded >> 16).astype("<u2").view(np.uint8)
