"""Host side of the split attention kernel: scratch, geometry, how many splits.

Its queries are the output of the node before, or a product as it is (`qkv.melting_projections`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minfer.backends.cuda.kv import KIND
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops import qkv
from minfer.backends.cuda.ops.base import Chunks, Context, blocks, out_defines
from minfer.dtypes import F32, DType
from minfer.graph import AttentionAttrs, Node, RopeSpec

STRANDS = 8  # walks of a part
TILE = 8  # query heads of one work item
MAX_ROWS = qkv.MAX_MELTED  # of one launch, so that the parts' scratch stays small
# From row to row in a chunk of halves (`lib/act.cuh`). Launches begin at multiples of eight rows,
# after which the swizzle repeats.
CHUNK_ROW_BYTES = 128


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
    """Attention of rows [first, end), in launches of at most `MAX_ROWS`."""
    attrs = node.attrs
    assert isinstance(attrs, AttentionAttrs)
    state = ctx.states[attrs.state]
    group = attrs.n_heads // attrs.n_kv_heads
    tiles = attrs.n_kv_heads * blocks(group, TILE)
    splits = n_splits(tiles)
    record = TILE * (attrs.head_dim + 2) * 4
    max_pages = ctx.graph.nodes[node.srcs[3]].shape[1]
    projections = ctx.joins.projections.get(node.srcs[0])
    if projections is None:
        before = qkv.Epilogue(ctx.src(node, 0), (0,) * 7, (0.0, 0.0), {})
    else:
        before = qkv.epilogue(projections, ctx)
    halves = ctx.halves(node.id).single
    row_bytes = CHUNK_ROW_BYTES if halves else node.shape[1] * 4
    result = []
    for start in range(first, end, MAX_ROWS):
        rows = min(MAX_ROWS, end - start)
        warps = n_warps(end - first, tiles, attrs.head_dim)
        args = (
            before.values + start * node.shape[1] * 4,
            *state.addresses,
            ctx.src(node, 1) + start * 4,
            ctx.src(node, 2) + start * 4,
            ctx.src(node, 3),
            ctx.out(node) + start * row_bytes,
            ctx.scratch(rows * tiles * splits * record),
            ctx.counters(rows * tiles),
            rows,
            attrs.n_kv_heads,
            max_pages,
            attrs.window,
            end - first,
            attrs.scale,
            attrs.softcap,
            *before.vectors,
            *before.numbers,
        )
        n_blocks = min(rows * tiles * splits, ctx.facts.n_sms * (STRANDS // warps))
        made = _kernel(
            attrs.head_dim,
            group,
            state.spec.dtype,
            splits,
            attrs.softcap,
            warps,
            before.defines,
            halves,
        )
        shared = shared_bytes(attrs.head_dim, splits, warps)
        result.append(Launch(made, (n_blocks, 1, 1), 32 * warps, args, shared))
    return result


def shared_bytes(head_dim: int, splits: int, warps: int) -> int:
    """Size of the kernel's `Shared`."""
    queries = 2 * blocks(head_dim, 32) * 2 * 32 * 16
    sums = (STRANDS * TILE * (head_dim + 6) + TILE * (splits + 1)) * 4
    heads = (warps + 4) * head_dim * 4
    items = (4 * MAX_ROWS + 4 + 12 + 2 * 20 * warps) * 4
    return blocks(queries + sums + heads + items, 16) * 16


def kernels(head_dims: Iterable[int]) -> Sequence[Kernel]:
    """Every head size and type, of projections; the usual sizes with the cap and for many items."""
    found = []
    for head_dim in head_dims:
        spec = RopeSpec("neox", (1.0,) * (head_dim // 2))
        macros = qkv.defines(head_dim, spec, bias=True, norm=True)
        for dtype in KIND:
            few, many = (None, None) if dtype is F32 else (Chunks(8, False), Chunks(32, True))
            found.append(_kernel(head_dim, 7, dtype, 32, 0, 8, macros, few))
            if head_dim in (64, 96, 128):
                found.append(_kernel(head_dim, 7, dtype, 32, 0, 4, macros, many))
            if head_dim in (64, 128, 256):
                found.append(_kernel(head_dim, 7, dtype, 32, 50, 8, {}, None))
    return found


def _kernel(
    head_dim: int,
    group: int,
    dtype: DType,
    splits: int,
    softcap: float,
    warps: int,
    projections: Mapping[str, int],
    out: Chunks | None,
) -> Kernel:
    macros = {"HD": head_dim, "PROJECTED": int(bool(projections)), **projections}
    return kernel(
        "ops/attention_decode.cu",
        "attention_decode",
        " ".join(["p"] * 11 + ["i"] * 5 + ["f"] * 2 + ["p"] * 7 + ["f"] * 2),
        **macros,
        GROUP=group,
        KV=KIND[dtype],
        SPLITS=splits,
        SOFTCAP=int(softcap != 0),
        WARPS=warps,
        **out_defines(out),
    )
