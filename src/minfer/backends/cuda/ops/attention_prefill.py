"""Host side of the tiled attention kernels: which of the two, geometry, shared memory.

Both read a cache of halves; of a q8_0 cache, the pages that the rows see are expanded first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.kv import KVState
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Chunks, Context, blocks, order_of
from minfer.backends.cuda.ops.matmul_choose import many_rows_chunks
from minfer.dtypes import F16, Q8_0
from minfer.graph import AttentionAttrs, Node

THREADS = 128
PAIRS = 64  # (row, query head) pairs a tile
HOPPER_THREADS = 384
HOPPER_PAIRS = 128
HOPPER_STAGES = {64: 4, 128: 3, 256: 2}
"""Head sizes that Hopper's kernel takes -> stages of its ring."""
EXPAND_BLOCKS = 64
EXPAND_THREADS = 256


def on_hopper(facts: Facts, head_dim: int) -> bool:
    """Whether Hopper's own kernel takes the rows."""
    return facts.hopper and head_dim in HOPPER_STAGES


def launches(node: Node, ctx: Context, first: int, end: int) -> list[Launch]:
    """Attention of rows [first, end): one launch, two with an expansion, none without rows."""
    if first == end:
        return []
    attrs = node.attrs
    assert isinstance(attrs, AttentionAttrs)
    positions, seqs = ctx.src(node, 1) + first * 4, ctx.src(node, 2) + first * 4
    slots, max_pages = ctx.graph.nodes[node.srcs[3]].shape
    inputs = (positions, seqs, ctx.src(node, 3))
    state = ctx.states[attrs.state]
    result = []
    if state.spec.dtype is Q8_0:
        halves = KVState(replace(state.spec, dtype=F16), 0)
        halves = replace(halves, address=ctx.scratch(halves.nbytes, "kv"))
        planes = halves.addresses[:2]
        sizes = (end - first, attrs.n_kv_heads, max_pages, attrs.window)
        result.append(
            Launch(
                _expand_kernel(attrs.head_dim),
                (EXPAND_BLOCKS, slots, 1),
                EXPAND_THREADS,
                (*state.addresses, *inputs, *planes, *sizes),
            )
        )
        state = halves
    group = attrs.n_heads // attrs.n_kv_heads
    width = node.shape[1] * 4
    handed = ctx.halves(node.id).many
    args = (
        ctx.src(node, 0) + first * width,
        *state.addresses[:2],
        *inputs,
        ctx.out(node) + first * width,
        end - first,
        attrs.n_kv_heads,
        max_pages,
        attrs.window,
        attrs.scale,
        attrs.softcap,
        handed.columns if handed else 0,
    )
    hopper = on_hopper(ctx.facts, attrs.head_dim)
    grid = (
        blocks((end - first) * group, HOPPER_PAIRS if hopper else PAIRS),
        attrs.n_kv_heads,
        1,
    )
    if hopper:
        made = _hopper_kernel(attrs.head_dim, group, attrs.softcap, handed)
        shared = hopper_shared_bytes(attrs.head_dim)
        return [*result, Launch(made, grid, HOPPER_THREADS, args, shared)]
    made = _kernel(attrs.head_dim, group, attrs.softcap, handed)
    return [*result, Launch(made, grid, THREADS, args, shared_bytes(attrs.head_dim))]


def shared_bytes(head_dim: int) -> int:
    """Two tiles of K and V in flight, and the queries where registers cannot hold them."""
    stride = (head_dim + 8) * 2
    keys = 64 if head_dim <= 128 else 32
    return 4 * keys * stride + (PAIRS * stride if head_dim > 128 else 0)


def hopper_shared_bytes(head_dim: int) -> int:
    """Queries, the rings of K and V, their barriers."""
    stages = HOPPER_STAGES[head_dim]
    keys = 128 if head_dim <= 128 else 64
    return HOPPER_PAIRS * head_dim * 2 + 2 * stages * keys * head_dim * 2 + 2 * stages * 8


def kernels(head_dims: Iterable[int], facts: Facts) -> Sequence[Kernel]:
    """Every head size, with and without the cap, of f32 and of halves, and its expansion."""
    orders = (None, many_rows_chunks(128, facts))  # those of the product that reads them here
    sizes, ways = tuple(head_dims), tuple(product((0, 50), orders))
    found = [_kernel(d, 7, cap, handed) for d in sizes for cap, handed in ways]
    found += [_expand_kernel(d) for d in sizes]
    if facts.hopper:
        found += [_hopper_kernel(d, 7, cap, handed) for d in HOPPER_STAGES for cap, handed in ways]
    return found


_SIGNATURE = "p p p p p p p i i i i f f i"


def _kernel(head_dim: int, group: int, softcap: float, handed: Chunks | None) -> Kernel:
    return kernel(
        "ops/attention_prefill.cu",
        "attention_prefill",
        _SIGNATURE,
        HD=head_dim,
        GROUP=group,
        SOFTCAP=int(softcap != 0),
        HALVES=order_of(handed),
    )


def _hopper_kernel(head_dim: int, group: int, softcap: float, handed: Chunks | None) -> Kernel:
    return kernel(
        "ops/attention_prefill_sm90.cu",
        "attention_prefill_sm90",
        _SIGNATURE,
        HD=head_dim,
        GROUP=group,
        SOFTCAP=int(softcap != 0),
        HALVES=order_of(handed),
        STAGES=HOPPER_STAGES[head_dim],
    )


def _expand_kernel(head_dim: int) -> Kernel:
    return kernel(
        "ops/attention_expand.cu", "attention_expand", "p p p p p p p p p i i i i", HD=head_dim
    )
