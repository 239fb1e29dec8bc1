"""What the bytes of each storage type mean: the NumPy truth that every kernel is held against.

`dequantize` gives the float32 values of stored bytes, `quantize` the bytes for values, both exactly
as ggml computes them. Speed is not the aim, only that a whole model passes in reasonable time: work
goes in chunks that fit a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minfer.dtypes import DType
from minfer.errors import FormatError, UnsupportedError
from minfer.gguf.quants import kquants, legacy, nonlinear, plain
from minfer.gguf.quants.bits import Bytes, Floats, Importance
from minfer.gguf.quants.search import total

__all__ = ["dequantize", "quantize"]


@dataclass(frozen=True, slots=True)
class _Codec:
    """The two directions of a type, on `[blocks, block_bytes]` and `[blocks, block_items]`."""

    dequantize: Callable[[Bytes], Floats]
    quantize: Callable[[Floats, Importance | None], Bytes]


_CODECS: dict[str, _Codec] = {
    "f32": _Codec(plain.dequantize_f32, plain.quantize_f32),
    "f16": _Codec(plain.dequantize_f16, plain.quantize_f16),
    "bf16": _Codec(plain.dequantize_bf16, plain.quantize_bf16),
    "q4_0": _Codec(legacy.dequantize_q4_0, legacy.quantize_q4_0),
    "q4_1": _Codec(legacy.dequantize_q4_1, legacy.quantize_q4_1),
    "q5_0": _Codec(legacy.dequantize_q5_0, legacy.quantize_q5_0),
    "q5_1": _Codec(legacy.dequantize_q5_1, legacy.quantize_q5_1),
    "q8_0": _Codec(legacy.dequantize_q8_0, legacy.quantize_q8_0),
    "q2_K": _Codec(kquants.dequantize_q2_k, kquants.quantize_q2_k),
    "q3_K": _Codec(kquants.dequantize_q3_k, kquants.quantize_q3_k),
    "q4_K": _Codec(kquants.dequantize_q4_k, kquants.quantize_q4_k),
    "q5_K": _Codec(kquants.dequantize_q5_k, kquants.quantize_q5_k),
    "q6_K": _Codec(kquants.dequantize_q6_k, kquants.quantize_q6_k),
    "iq4_nl": _Codec(nonlinear.dequantize_iq4_nl, nonlinear.quantize_iq4_nl),
    "iq4_xs": _Codec(nonlinear.dequantize_iq4_xs, nonlinear.quantize_iq4_xs),
    "mxfp4": _Codec(nonlinear.dequantize_mxfp4, nonlinear.quantize_mxfp4),
}

CHUNK_ITEMS = 1 << 16
"""Values worked on at a time."""


def dequantize(data: Bytes, dtype: DType) -> Floats:
    """The values of stored bytes.

    Args:
        data: stored bytes, [..., bytes]; the last axis must hold whole blocks.
        dtype: their type.

    Returns:
        float32 values, [..., items].

    Raises:
        UnsupportedError: if minfer does not know the layout of the type.
        ValueError: if the last axis is not a whole number of blocks.
    """
    codec = _codec(dtype)
    n_blocks, rest = divmod(data.shape[-1], dtype.block_bytes)
    if rest:
        raise ValueError(f"{data.shape[-1]} bytes are not whole {dtype} blocks")
    blocks = np.ascontiguousarray(data, np.uint8).reshape(-1, dtype.block_bytes)
    out = np.empty((len(blocks), dtype.block_items), np.float32)
    step = CHUNK_ITEMS // dtype.block_items
    # A damaged scale may be infinite or NaN; its values are then what float arithmetic says.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = codec.dequantize(blocks[start : start + step])
    return out.reshape(*data.shape[:-1], n_blocks * dtype.block_items)


def quantize(values: Floats, dtype: DType, importance: Floats | None = None) -> Bytes:
    """The bytes that store values.

    Args:
        values: float32 values, [..., items]; the last axis must be whole blocks.
        dtype: the type to store them as.
        importance: how much each column matters, [items], as in an importance matrix. The plain
            types, q8_0 and mxfp4 have no use for it.

    Returns:
        stored bytes, [..., bytes].

    Raises:
        UnsupportedError: if minfer does not know how to quantize to the type.
        FormatError: if a value is not finite, or too large for the type's half-precision scale.
        ValueError: if the shapes do not fit.
    """
    codec = _codec(dtype)
    n_items = values.shape[-1]
    if n_items % dtype.block_items:
        raise ValueError(f"{n_items} values are not whole {dtype} blocks")
    rows = np.ascontiguousarray(values, np.float32).reshape(-1, n_items)
    if not np.isfinite(rows).all():
        raise FormatError("a value is infinite or not a number", where=f"quantize to {dtype}")
    blocks = rows.reshape(-1, dtype.block_items)
    spread = None if importance is None else _spread(rows, dtype, importance)
    out = np.empty((len(blocks), dtype.block_bytes), np.uint8)
    step = CHUNK_ITEMS // dtype.block_items
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        for start in range(0, len(blocks), step):
            part = slice(start, start + step)
            chunk = None
            if spread is not None:
                chunk = Importance(spread.weights[part], spread.row_power[part])
            out[part] = codec.quantize(blocks[part], chunk)
    return out.reshape(*values.shape[:-1], dtype.nbytes(n_items))


def _codec(dtype: DType) -> _Codec:
    codec = _CODECS.get(dtype.name)
    if codec is None:
        raise UnsupportedError(
            f"the layout of type {dtype} is not known to minfer",
            remedy=f"Supported types are {', '.join(_CODECS)}",
        )
    return codec


def _spread(rows: Floats, dtype: DType, importance: Floats) -> Importance:
    """Column weights and row powers, one entry a block of all rows."""
    n_rows, n_items = rows.shape
    if importance.shape != (n_items,):
        raise ValueError(f"importance of shape {importance.shape} for rows of {n_items}")
    per_row = n_items // dtype.block_items
    weights = np.asarray(importance, np.float32).reshape(per_row, dtype.block_items)
    power = total((rows * rows).T) / np.float32(n_items)
    return Importance(
        np.broadcast_to(weights, (n_rows, *weights.shape)).reshape(-1, dtype.block_items),
        np.repeat(power, per_row),
    )
