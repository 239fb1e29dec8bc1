"""The ops of the CUDA backend: one module an op, host side and `.cu` twin of the same name."""

from minfer.backends.cuda.ops import (
    attention,
    elementwise,
    embed,
    kv_store,
    matmul,
    penalize,
    qkv,
    rms_norm,
    rope,
    rows,
    sample,
)
from minfer.backends.cuda.ops.base import Op

OPS: dict[str, Op] = {
    "embed": embed,
    "matmul": matmul,
    "rms_norm": rms_norm,
    "rope": rope,
    "kv_store": kv_store,
    "attention": attention,
    "gated": elementwise,
    "add": elementwise,
    "mul": elementwise,
    "scale": elementwise,
    "softcap": elementwise,
    "rows": rows,
    "penalize": penalize,
    "sample": sample,
    "fused_ffn": matmul,
    "fused_qkv": qkv,
}
"""Op -> its module."""
