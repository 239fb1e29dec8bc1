"""The K types: 256 values in sub-blocks of 16 or 32, whose scales are quantized themselves.

Layouts, in bytes: q2_K `scales:16 crumbs:64 d:2 dmin:2`, q3_K `high:32 crumbs:64 scales:12 d:2`,
q4_K `d:2 dmin:2 scales:12 nibbles:128`, q5_K `d:2 dmin:2 scales:12 high:32 nibbles:128`,
q6_K `nibbles:128 high:64 scales:16 d:2`. A value is `d * scale * q`, less `dmin * min` in q2_K,
q4_K and q5_K.
"""

from __future__ import annotations

import numpy as np

from minfer.gguf.quants.bits import (
    BITS,
    CRUMBS,
    NIBBLES,
    Bytes,
    Floats,
    unpack_half,
    unpack_planes,
    unpack_scales_16,
    unpack_scales_mins,
)


def _scaled(q: Floats, scales: Floats, mins: Floats | None = None) -> Floats:
    """Sub-blocks of `q` times their scale, less their minimum: [blocks, 256]."""
    parts = q.reshape(*scales.shape, -1) * scales[:, :, None]
    if mins is not None:
        parts -= mins[:, :, None]
    return parts.reshape(q.shape)


def dequantize_q2_k(blocks: Bytes) -> Floats:
    fields = blocks[:, :16]
    q = unpack_planes(blocks[:, 16:80], 32, CRUMBS).astype(np.float32)
    scales = unpack_half(blocks[:, 80:82]) * (fields & 15).astype(np.float32)
    mins = unpack_half(blocks[:, 82:84]) * (fields >> 4).astype(np.float32)
    return _scaled(q, scales, mins)


def dequantize_q3_k(blocks: Bytes) -> Floats:
    # A set high bit means the value is not negative.
    high = unpack_planes(blocks[:, :32], 32, BITS) << 2
    q = (unpack_planes(blocks[:, 32:96], 32, CRUMBS) | high).astype(np.float32) - 4
    scales = unpack_scales_16(blocks[:, 96:108]).astype(np.float32) - 32
    return _scaled(q, unpack_half(blocks[:, 108:110]) * scales)


def dequantize_q4_k(blocks: Bytes) -> Floats:
    scales, mins = unpack_scales_mins(blocks[:, 4:16])
    q = unpack_planes(blocks[:, 16:], 32, NIBBLES).astype(np.float32)
    return _scaled(
        q,
        unpack_half(blocks[:, :2]) * scales.astype(np.float32),
        unpack_half(blocks[:, 2:4]) * mins.astype(np.float32),
    )


def dequantize_q5_k(blocks: Bytes) -> Floats:
    scales, mins = unpack_scales_mins(blocks[:, 4:16])
    high = unpack_planes(blocks[:, 16:48], 32, BITS) << 4
    q = (unpack_planes(blocks[:, 48:], 32, NIBBLES) | high).astype(np.float32)
    return _scaled(
        q,
        unpack_half(blocks[:, :2]) * scales.astype(np.float32),
        unpack_half(blocks[:, 2:4]) * mins.astype(np.float32),
    )


def dequantize_q6_k(blocks: Bytes) -> Floats:
    high = unpack_planes(blocks[:, 128:192], 32, CRUMBS) << 4
    q = (unpack_planes(blocks[:, :128], 64, NIBBLES) | high).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _scaled(q, unpack_half(blocks[:, 208:210]) * scales)
