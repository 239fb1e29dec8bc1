"""Store of K and V rows to the cells of a KV state."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.kv import KIND
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.dtypes import DType
from minfer.graph import Graph, KVStoreAttrs, Node

WARPS = 4


def supports(node: Node, graph: Graph) -> str | None:
    """Whatever attention can read."""
    assert isinstance(node.attrs, KVStoreAttrs)
    head_dim = graph.states[node.attrs.state].head_dim
    return None if head_dim % 16 == 0 else f"heads of {head_dim} features: not a multiple of 16"


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch."""
    assert isinstance(node.attrs, KVStoreAttrs)
    state = ctx.states[node.attrs.state]
    rows = ctx.graph.nodes[node.srcs[0]].shape[0]
    heads = state.spec.n_kv_heads
    args = (*(ctx.src(node, i) for i in range(3)), *state.addresses, heads)
    launch = Launch(
        _kernel(state.spec.head_dim, state.spec.dtype), (rows, blocks(heads, WARPS), 1), 128, args
    )
    return [launch]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Each type, and head sizes with and without a full group of 32."""
    return [_kernel(d, dtype) for d in (80, 128) for dtype in KIND]


def _kernel(head_dim: int, dtype: DType) -> Kernel:
    return kernel("ops/kv_store.cu", "kv_store", "p p p p p p p i", HD=head_dim, KV=KIND[dtype])
