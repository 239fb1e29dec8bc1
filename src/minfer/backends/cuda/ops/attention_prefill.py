"""Host side of the tiled attention kernel: geometry and shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minfer.backends.cuda.kv import KIND
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.dtypes import F16, DType
from minfer.graph import AttentionAttrs, Node

THREADS = 128
PAIRS = 64  # (row, query head) pairs a tile


def launches(node: Node, ctx: Context, first: int, end: int) -> list[Launch]:
    """Attention of rows [first, end) in one launch, none if there are no rows."""
    if first == end:
        return []
    attrs = node.attrs
    assert isinstance(attrs, AttentionAttrs)
    state = ctx.states[attrs.state]
    group = attrs.n_heads // attrs.n_kv_heads
    width = node.shape[1] * 4
    args = (
        ctx.src(node, 0) + first * width,
        *state.addresses,
        ctx.src(node, 1) + first * 4,
        ctx.src(node, 2) + first * 4,
        ctx.src(node, 3),
        ctx.out(node) + first * width,
        end - first,
        attrs.n_kv_heads,
        ctx.graph.nodes[node.srcs[3]].shape[1],
        attrs.window,
        attrs.scale,
        attrs.softcap,
    )
    return [
        Launch(
            _kernel(attrs.head_dim, group, state.spec.dtype, attrs.softcap),
            (blocks((end - first) * group, PAIRS), attrs.n_kv_heads, 1),
            THREADS,
            args,
            shared_bytes(attrs.head_dim, state.spec.dtype),
        )
    ]


def shared_bytes(head_dim: int, dtype: DType) -> int:
    """Tiles of K and V in flight, and the queries where registers cannot hold them."""
    stride = (head_dim + 8) * 2
    keys = 64 if head_dim <= 128 else 32
    stages = 2 if dtype is F16 else 1
    return 2 * stages * keys * stride + (PAIRS * stride if head_dim > 128 else 0)


def kernels(head_dims: Iterable[int]) -> Sequence[Kernel]:
    """Every head size and type, with and without the cap."""
    return [_kernel(d, 7, dtype, cap) for d in head_dims for dtype in KIND for cap in (0, 50)]


def _kernel(head_dim: int, group: int, dtype: DType, softcap: float) -> Kernel:
    return kernel(
        "ops/attention_prefill.cu",
        "attention_prefill",
        "p p p p p p p p p i i i i f f",
        HD=head_dim,
        GROUP=group,
        KV=KIND[dtype],
        SOFTCAP=int(softcap != 0),
    )
