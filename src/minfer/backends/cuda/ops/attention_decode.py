"""Host side of the split attention kernel: scratch, geometry, how many splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minfer.backends.cuda.kv import KIND
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Chunks, Context, blocks, out_defines
from minfer.dtypes import F32, DType
from minfer.graph import AttentionAttrs, Node

STRANDS = 8  # walks of a part
TILE = 8  # query heads of one work item
MAX_ROWS = 64  # of one launch, so that the parts' scratch stays small


def n_splits(n_tiles: int) -> int:
    """Most parts a row's keys are cut into, for `n_tiles` (kv head, head tile) pairs a row.

    About one block a multiprocessor for a single row; a function of the model alone, so that a
    row's parts never depend on its batch mates or on the card.
    """
    return next(n for n in (16, 32, 64) if n * n_tiles >= 128 or n == 64)


def n_warps(rows: int, n_tiles: int, head_dim: int) -> int:
    """Warps a block: 8 for the latency of few items, 4 for the throughput of many.

    Heads beyond 128 features leave no registers to fetch ahead, so nothing is won with 4.

    A row's result is the same with either.
    """
    return 8 if rows * n_tiles < 32 or head_dim > 128 else 4


def launches(node: Node, ctx: Context, first: int, end: int) -> list[Launch]:
    """Attention of rows [first, end), in launches of at most `MAX_ROWS`; of halves just one."""
    attrs = node.attrs
    assert isinstance(attrs, AttentionAttrs)
    state = ctx.states[attrs.state]
    group = attrs.n_heads // attrs.n_kv_heads
    tiles = attrs.n_kv_heads * blocks(group, TILE)
    splits = n_splits(tiles)
    record = TILE * (attrs.head_dim + 2) * 4
    max_pages = ctx.graph.nodes[node.srcs[3]].shape[1]
    result = []
    for start in range(first, end, MAX_ROWS):
        rows = min(MAX_ROWS, end - start)
        warps = n_warps(end - first, tiles, attrs.head_dim)
        args = (
            ctx.src(node, 0) + start * node.shape[1] * 4,
            *state.addresses,
            ctx.src(node, 1) + start * 4,
            ctx.src(node, 2) + start * 4,
            ctx.src(node, 3),
            ctx.out(node) + start * node.shape[1] * 4,
            ctx.scratch(rows * tiles * splits * record),
            ctx.counters(rows * tiles),
            rows,
            attrs.n_kv_heads,
            max_pages,
            attrs.window,
            end - first,
            attrs.scale,
            attrs.softcap,
        )
        n_blocks = min(rows * tiles * splits, ctx.facts.n_sms * (STRANDS // warps))
        out = ctx.halves(node.id).single
        made = _kernel(attrs.head_dim, group, state.spec.dtype, splits, attrs.softcap, warps, out)
        shared = shared_bytes(attrs.head_dim, splits)
        result.append(Launch(made, (n_blocks, 1, 1), 32 * warps, args, shared))
    return result


def shared_bytes(head_dim: int, splits: int) -> int:
    """Size of the kernel's `Shared`."""
    queries = 2 * blocks(head_dim, 32) * 2 * 32 * 16
    strands = STRANDS * TILE * (head_dim + 6) * 4
    weights = TILE * (splits + 1) * 4
    return (
        blocks(queries + strands + weights + (MAX_ROWS + 2 + 10 + 2 * 19 * STRANDS + 12) * 4, 16)
        * 16
    )


def kernels(head_dims: Iterable[int]) -> Sequence[Kernel]:
    """Every head size and type, with and without the cap, for few items and for many."""
    handed = ((0, 8, Chunks(8, False)), (0, 4, Chunks(32, True)))
    return [
        _kernel(head_dim, 7, dtype, 32, cap, warps, out)
        for head_dim in head_dims
        for dtype in KIND
        for cap, warps, out in ((0, 8, None), (50, 8, None), (0, 4, None), *handed)
        if warps == 8 or head_dim <= 128
        if not (out and dtype is F32)
    ]


def _kernel(
    head_dim: int,
    group: int,
    dtype: DType,
    splits: int,
    softcap: float,
    warps: int,
    out: Chunks | None,
) -> Kernel:
    return kernel(
        "ops/attention_decode.cu",
        "attention_decode",
        "p p p p p p p p p p p i i i i i f f",
        HD=head_dim,
        GROUP=group,
        KV=KIND[dtype],
        SPLITS=splits,
        SOFTCAP=int(softcap != 0),
        WARPS=warps,
        **out_defines(out),
    )
