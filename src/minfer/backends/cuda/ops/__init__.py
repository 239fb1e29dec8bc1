"""The ops of the CUDA backend: one module an op, host side and `.cu` twin of the same name."""

from collections.abc import Iterator, Sequence

from minfer.backends.cuda.launch import Launch
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
from minfer.backends.cuda.ops.base import Context, Op
from minfer.graph import Node

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


def lowered(nodes: Sequence[int], ctx: Context) -> Iterator[tuple[Node, list[Launch]]]:
    """Nodes, by id, and their launches, in order; none for a norm that its readers take in."""
    for index in nodes:
        node = ctx.graph.nodes[index]
        yield node, [] if index in ctx.joins.norms else OPS[node.op].lower(node, ctx)
