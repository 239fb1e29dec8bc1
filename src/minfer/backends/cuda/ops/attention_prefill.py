"""Host side of the tiled attention kernels: which of the two, geometry, shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.kv import KIND
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.dtypes import F16, DType
from minfer.graph import AttentionAttrs, Node

THREADS = 128
PAIRS = 64  # (row, query head) pairs a tile
HOPPER_THREADS = 384
HOPPER_PAIRS = 128
HOPPER_STAGES = {64: 4, 128: 3, 256: 2}
"""Head sizes that Hopper's kernel takes -> stages of its ring."""


def on_hopper(facts: Facts, head_dim: int, dtype: DType) -> bool:
    """Whether Hopper's own kernel takes the rows."""
    return facts.capability == (9, 0) and dtype is F16 and head_dim in HOPPER_STAGES


def launches(node: Node, ctx: Context, first: int, end: int) -> list[Launch]:
    """Attention of rows [first, end) in one launch, none if there are no rows."""
    if first == end:
        return []
    attrs = node.attrs
    assert isinstance(attrs, AttentionAttrs)
    state = ctx.states[attrs.state]
    dtype = state.spec.dtype
    hopper = on_hopper(ctx.facts, attrs.head_dim, dtype)
    group = attrs.n_heads // attrs.n_kv_heads
    width = node.shape[1] * 4
    args = (
        ctx.src(node, 0) + first * width,
        *(state.addresses[:2] if hopper else state.addresses),
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
    pairs = (end - first) * group
    if hopper:
        made = _hopper_kernel(attrs.head_dim, group, attrs.softcap)
        grid = (blocks(pairs, HOPPER_PAIRS), attrs.n_kv_heads, 1)
        return [Launch(made, grid, HOPPER_THREADS, args, hopper_shared_bytes(attrs.head_dim))]
    made = _kernel(attrs.head_dim, group, dtype, attrs.softcap)
    grid = (blocks(pairs, PAIRS), attrs.n_kv_heads, 1)
    return [Launch(made, grid, THREADS, args, shared_bytes(attrs.head_dim, dtype))]


def shared_bytes(head_dim: int, dtype: DType) -> int:
    """Tiles of K and V in flight, and the queries where registers cannot hold them."""
    stride = (head_dim + 8) * 2
    keys = 64 if head_dim <= 128 else 32
    stages = 2 if dtype is F16 else 1
    return 2 * stages * keys * stride + (PAIRS * stride if head_dim > 128 else 0)


def hopper_shared_bytes(head_dim: int) -> int:
    """Queries, the rings of K and V, their barriers."""
    stages = HOPPER_STAGES[head_dim]
    keys = 128 if head_dim <= 128 else 64
    return HOPPER_PAIRS * head_dim * 2 + 2 * stages * keys * head_dim * 2 + 4 * stages * 8


def kernels(head_dims: Iterable[int], facts: Facts) -> Sequence[Kernel]:
    """Every head size and type, with and without the cap."""
    found = [_kernel(d, 7, dtype, cap) for d in head_dims for dtype in KIND for cap in (0, 50)]
    if facts.capability == (9, 0):
        found += [_hopper_kernel(d, 7, cap) for d in HOPPER_STAGES for cap in (0, 50)]
    return found


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


def _hopper_kernel(head_dim: int, group: int, softcap: float) -> Kernel:
    return kernel(
        "ops/attention_prefill_sm90.cu",
        "attention_prefill_sm90",
        "p p p p p p p i i i i f f",
        HD=head_dim,
        GROUP=group,
        SOFTCAP=int(softcap != 0),
        STAGES=HOPPER_STAGES[head_dim],
    )
