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
    Importance,
    pack_half,
    pack_planes,
    pack_scales_16,
    pack_scales_mins,
    unpack_half,
    unpack_planes,
    unpack_scales_16,
    unpack_scales_mins,
)
from minfer.gguf.quants.search import (
    BY_IMPORTANCE,
    TINY,
    Candidates,
    F,
    affine,
    extreme,
    nearest,
    positive,
    symmetric,
    symmetric_descent,
    total,
)

_Q2_CANDIDATES = Candidates(-0.5, 0.1, 15, absolute=True)
_Q4_CANDIDATES = Candidates(-1.0, 0.1, 20)
_Q5_CANDIDATES = Candidates(-0.5, 0.1, 15)


def _scaled(q: Floats, scales: Floats, mins: Floats | None = None) -> Floats:
    """Sub-blocks of `q` times their scale, less their minimum: [blocks, 256]."""
    parts = q.reshape(*scales.shape, -1) * scales[:, :, None]
    if mins is not None:
        parts -= mins[:, :, None]
    return parts.reshape(q.shape)


def dequantize_q2_k(blocks: Bytes) -> Floats:
    fields = blocks[:, :16]
    q = unpack_planes(blocks[:, 16:80], 32, CRUMBS).astype(np.float32)
    scales = _scales(blocks[:, 80:82], fields & np.uint8(15))
    mins = _scales(blocks[:, 82:84], fields >> np.uint8(4))
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
        _scales(blocks[:, :2], scales),
        _scales(blocks[:, 2:4], mins),
    )


def dequantize_q5_k(blocks: Bytes) -> Floats:
    scales, mins = unpack_scales_mins(blocks[:, 4:16])
    high = unpack_planes(blocks[:, 16:48], 32, BITS) << 4
    q = (unpack_planes(blocks[:, 48:], 32, NIBBLES) | high).astype(np.float32)
    return _scaled(
        q,
        _scales(blocks[:, :2], scales),
        _scales(blocks[:, 2:4], mins),
    )


def dequantize_q6_k(blocks: Bytes) -> Floats:
    high = unpack_planes(blocks[:, 128:192], 32, CRUMBS) << 4
    q = (unpack_planes(blocks[:, :128], 64, NIBBLES) | high).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _scaled(q, unpack_half(blocks[:, 208:210]) * scales)


def quantize_q2_k(x: Floats, importance: Importance | None) -> Bytes:
    groups = _groups(x, 16)
    if importance is None:
        scale, low, q = affine(groups, np.abs(groups), 3, _Q2_CANDIDATES)
        d, scales = _even_steps(scale.reshape(-1, 16), 15)
        dmin, mins = _even_steps(low.reshape(-1, 16), 15)
    else:
        weights = _weights(x, importance, 16, 1)
        scale, low, q = affine(groups, weights, 3, BY_IMPORTANCE)
        d, scales = _fitted_steps(scale, weights, 16, 15)
        dmin, mins = _fitted_steps(low, weights, 16, 15)
    fields = scales.astype(np.uint8) | (mins.astype(np.uint8) << np.uint8(4))
    stored = (fields & np.uint8(15), fields >> np.uint8(4))
    half, half_min = pack_half(d), pack_half(dmin)
    codes = _requantized(x, q, _scales(half, stored[0]), _scales(half_min, stored[1]), 0, 3)
    return np.hstack([fields, pack_planes(codes, 32, CRUMBS), half, half_min])


def quantize_q3_k(x: Floats, importance: Importance | None) -> Bytes:
    groups = _groups(x, 16)
    if importance is None:
        scale, q = symmetric_descent(groups, 4)
        scales = scale.reshape(-1, 16)
        peak = extreme(scales.T)
        iscale = F(-32) / peak
        d = np.where(peak != 0, F(1) / iscale, F(0))
        steps = np.clip(nearest(iscale[:, None] * scales), -32, 31) + F(32)
        steps[peak == 0] = 0
    else:
        weights = _weights(x, importance, 16, 2)
        scale, q = symmetric(groups, 4, weights)
        d, columns = symmetric(scale.reshape(-1, 16).T, 32, total(weights).reshape(-1, 16).T)
        steps = columns.T
    half = pack_half(d)
    codes = _requantized(x, q - 4, _scales(half, steps - 32), None, -4, 3) + np.uint8(4)
    high, low = codes >> np.uint8(2), codes & np.uint8(3)
    fields = pack_scales_16(steps.astype(np.uint8))
    return np.hstack([pack_planes(high, 32, BITS), pack_planes(low, 32, CRUMBS), fields, half])


def quantize_q4_k(x: Floats, importance: Importance | None) -> Bytes:
    half, half_min, fields, codes = _quantize_q45(x, importance, 15, _Q4_CANDIDATES)
    return np.hstack([half, half_min, fields, pack_planes(codes, 32, NIBBLES)])


def quantize_q5_k(x: Floats, importance: Importance | None) -> Bytes:
    half, half_min, fields, codes = _quantize_q45(x, importance, 31, _Q5_CANDIDATES)
    high, low = codes >> np.uint8(4), codes & np.uint8(15)
    packed = [pack_planes(high, 32, BITS), pack_planes(low, 32, NIBBLES)]
    return np.hstack([half, half_min, fields, *packed])


def _quantize_q45(
    x: Floats, importance: Importance | None, nmax: int, candidates: Candidates
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """The scale, minimum scale, packed six-bit fields and codes of a q4_K or q5_K block."""
    groups = _groups(x, 32)
    if importance is None:
        weights = np.sqrt(total(groups * groups) / F(32)) + np.abs(groups)
        scale, low, q = affine(groups, weights, nmax, candidates)
        d, scales = _even_steps(scale.reshape(-1, 8), 63)
        dmin, mins = _even_steps(low.reshape(-1, 8), 63)
    else:
        weights = _weights(x, importance, 32, 2)
        scale, low, q = affine(groups, weights, nmax, BY_IMPORTANCE)
        d, scales = _fitted_steps(scale, weights, 8, 63)
        dmin, mins = _fitted_steps(low, weights, 8, 63)
    if importance is None or nmax == 31:
        # Otherwise, for q4_K, ggml lets the steps of degenerate fits overflow their fields.
        scales, mins = np.minimum(scales, 63), np.minimum(mins, 63)
    fields = pack_scales_mins(scales.astype(np.uint8), mins.astype(np.uint8))
    stored = unpack_scales_mins(fields)
    half, half_min = pack_half(d), pack_half(dmin)
    codes = _requantized(x, q, _scales(half, stored[0]), _scales(half_min, stored[1]), 0, nmax)
    return half, half_min, fields, codes


def quantize_q6_k(x: Floats, importance: Importance | None) -> Bytes:
    weights = None if importance is None else _groups(importance.weights, 16)
    scale, q = symmetric(_groups(x, 16), 32, weights)
    scales = scale.reshape(-1, 16)
    peak = extreme(scales.T)
    empty = np.abs(peak) < TINY
    iscale = F(-128) / peak
    half = pack_half(np.where(empty, F(0), F(1) / iscale))
    steps = np.minimum(nearest(iscale[:, None] * scales), 127)
    steps[empty] = 0
    codes = _requantized(x, q - 32, _scales(half, steps), None, -32, 31) + np.uint8(32)
    codes[empty] = 0
    low, high = codes & np.uint8(15), codes >> np.uint8(4)
    fields = steps.astype(np.int8).view(np.uint8)
    return np.hstack([pack_planes(low, 64, NIBBLES), pack_planes(high, 32, CRUMBS), fields, half])


def _groups(x: Floats, size: int) -> Floats:
    """Sub-blocks as the columns that searches work on: [size, blocks * 256 / size]."""
    return np.ascontiguousarray(x.reshape(-1, size).T)


def _weights(x: Floats, importance: Importance, size: int, factor: int) -> Floats:
    """Importance times the value's size, softened by the block's: columns as of `_groups`."""
    power = F(factor) * total(np.ascontiguousarray((x * x).T)) / F(256)
    return _groups(importance.weights * np.sqrt(power[:, None] + x * x), size)


def _even_steps(values: Floats, nmax: int) -> tuple[Floats, Floats]:
    """A common scale, by the largest, for the sub-block scales of a block, and their steps of it.

    Args:
        values: sub-block scales or minima, [blocks, n].
        nmax: steps of the largest. A degenerate fit may give a negative value, whose steps wrap
            around a byte, as in ggml.
    """
    largest = np.maximum(values.max(axis=1), F(0))
    steps = nearest(np.where(largest > 0, F(nmax) / largest, F(0))[:, None] * values)
    return largest / F(nmax), steps % F(256)


def _fitted_steps(values: Floats, weights: Floats, count: int, nmax: int) -> tuple[Floats, Floats]:
    """As `_even_steps`, by a search weighted with the sub-blocks' weights."""
    d, columns = positive(values.reshape(-1, count).T, nmax, total(weights).reshape(-1, count).T)
    return d, columns.T


def _scales(half: Bytes, steps: Floats | Bytes) -> Floats:
    """The sub-block scales that a reader will see, [blocks, n]."""
    return unpack_half(half) * steps.astype(np.float32)


def _requantized(
    x: Floats, q: Floats, scales: Floats, mins: Floats | None, low: int, high: int
) -> Bytes:
    """The codes that the stored scales give; where a scale came to 0, those of the search.

    Args:
        x: values, [blocks, 256].
        q: codes of the search, as columns.
        scales: stored scale of each sub-block, [blocks, n].
        mins: stored minimum of each sub-block.
        low: least code.
        high: largest code.
    """
    parts = x.reshape(*scales.shape, -1)
    shifted = parts if mins is None else parts + mins[:, :, None]
    found = np.clip(nearest(shifted / scales[:, :, None]), low, high)
    searched = q.T.reshape(parts.shape)
    codes = np.where(scales[:, :, None] != 0, found, searched)
    return codes.reshape(x.shape).astype(np.int8).view(np.uint8)
