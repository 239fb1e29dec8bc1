"""What the bytes of each storage type mean: the NumPy truth that every kernel is held against.

`dequantize` gives the float32 values of stored bytes, exactly as ggml computes them. Speed is not
the aim, only that a whole model passes in reasonable time: work goes in chunks that fit a cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minfer.dtypes import DType
from minfer.errors import UnsupportedError
from minfer.gguf.quants import kquants, legacy, nonlinear, plain
from minfer.gguf.quants.bits import Bytes, Floats

__all__ = ["dequantize"]

_DEQUANTIZE: dict[str, Callable[[Bytes], Floats]] = {
    "f32": plain.dequantize_f32,
    "f16": plain.dequantize_f16,
    "bf16": plain.dequantize_bf16,
    "q4_0": legacy.dequantize_q4_0,
    "q4_1": legacy.dequantize_q4_1,
    "q5_0": legacy.dequantize_q5_0,
    "q5_1": legacy.dequantize_q5_1,
    "q8_0": legacy.dequantize_q8_0,
    "q2_K": kquants.dequantize_q2_k,
    "q3_K": kquants.dequantize_q3_k,
    "q4_K": kquants.dequantize_q4_k,
    "q5_K": kquants.dequantize_q5_k,
    "q6_K": kquants.dequantize_q6_k,
    "iq4_nl": nonlinear.dequantize_iq4_nl,
    "iq4_xs": nonlinear.dequantize_iq4_xs,
    "mxfp4": nonlinear.dequantize_mxfp4,
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
    function = _DEQUANTIZE.get(dtype.name)
    if function is None:
        raise UnsupportedError(
            f"the values of type {dtype} cannot be read",
            remedy=f"Supported types are {', '.join(_DEQUANTIZE)}",
        )
    n_blocks, rest = divmod(data.shape[-1], dtype.block_bytes)
    if rest:
        raise ValueError(f"{data.shape[-1]} bytes are not whole {dtype} blocks")
    blocks = np.ascontiguousarray(data, np.uint8).reshape(-1, dtype.block_bytes)
    out = np.empty((len(blocks), dtype.block_items), np.float32)
    step = CHUNK_ITEMS // dtype.block_items
    for start in range(0, len(blocks), step):
        out[start : start + step] = function(blocks[start : start + step])
    return out.reshape(*data.shape[:-1], n_blocks * dtype.block_items)
