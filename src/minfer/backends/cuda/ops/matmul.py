"""Matrix products: `matmul`, `fused_ffn`, and the projections of `fused_qkv`.

Single rows stream the packed weight once (`matmul_vec`, `matmul_batch`, `matmul_batch_sm90`). Rows
of prompts multiply by it, too, on Hopper, as do more single rows than 64 there
(`matmul_many_sm90`), elsewhere by weights expanded to halves (`matmul_gemm`): in scratch, or once
for all with the setting `cuda_halves`. Geometry is `matmul_choose`'s, the packed layout
`matmul_pack`'s, halves of weights and of x are `matmul_halves`'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from minfer.backends.base import Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops import matmul_choose as choose
from minfer.backends.cuda.ops import matmul_halves, matmul_pack
from minfer.backends.cuda.ops.base import (
    F32_ROWS,
    Chunks,
    Context,
    Halves,
    Normed,
    Prepared,
    Store,
    blocks,
    halves_key,
    out_defines,
)
from minfer.backends.cuda.ops.matmul_halves import act_launch, expand_launches, halves_bytes
from minfer.backends.cuda.ops.matmul_pack import Group
from minfer.dtypes import BY_NAME, F32, WEIGHT_TYPES
from minfer.graph import FusedFFNAttrs, FusedQKVAttrs, Graph, MatMulAttrs, Node, WeightSpec
from minfer.settings import Settings

PLAIN, SILU, GELU = 0, 1, 2
"""Epilogues, as `lib/epilogue.cuh` numbers them."""
SINGLE_ROWS, OTHER_ROWS, OUTPUT_ROWS = 0, 1, 2
"""Where the input `counts` has how many rows of a kind are real."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product to lower: addresses, and what follows it.

    Attributes:
        group: the weights, at `weights`.
        x: the input.
        out: f32 [rows, n_outputs], but for rows that are halves.
        rows, single_rows: as in `MatMulAttrs`.
        epilogue: `PLAIN`, or the gate's activation of a pair.
        bias: f32 [n_outputs], 0 for none.
        residual: shaped like the output, 0 for none.
        halves: which rows of a gated product are written as halves.
        outputs: whether they are output rows, all of them single ones.
        prepares: what single rows leave to the product behind a norm.
    """

    group: Group
    weights: int
    x: Normed
    out: int
    rows: int
    single_rows: int
    epilogue: int = PLAIN
    bias: int = 0
    residual: int = 0
    halves: Halves = F32_ROWS
    outputs: bool = False
    prepares: Prepared | None = None

    @property
    def single_out(self) -> Chunks | None:
        """How single rows are written as halves: these, or beside them for what comes next."""
        return self.prepares.chunks if self.prepares else self.halves.single

    @property
    def many_rows(self) -> int:
        """The rows that are not single: those of prompts."""
        return self.rows - self.single_rows


def supports(node: Node, graph: Graph) -> str | None:
    """The weights' types and shapes; a bias is f32."""
    specs = [graph.weights[name] for name in node.weights]
    if isinstance(node.attrs, FusedFFNAttrs):
        return matmul_pack.refuse(specs, paired=True)
    assert isinstance(node.attrs, MatMulAttrs)
    if node.attrs.bias and specs[1].dtype is not F32:
        return f"a bias of type {specs[1].dtype} has no CUDA kernel"
    return matmul_pack.refuse(specs[:1])


def hands_over(node: Node, graph: Graph, facts: Facts, settings: Settings) -> tuple[bool, bool]:
    """Gated products write halves; of single rows, those that one launch takes as such do."""
    if not isinstance(node.attrs, FusedFFNAttrs):
        return False, False
    group = group_of(node, graph.weights)
    return choose.single_rows_chunks(group, node.attrs.single_rows, facts) is not None, True


def group_of(node: Node, specs: Mapping[str, WeightSpec]) -> Group:
    """The packed weights of a matmul, fused_ffn or fused_qkv node."""
    paired = isinstance(node.attrs, FusedFFNAttrs)
    count = 2 if paired else 3 if isinstance(node.attrs, FusedQKVAttrs) else 1
    names = node.weights[:count]
    return Group(names, tuple(specs[n] for n in names), paired)


def load(node: Node, weights: Mapping[str, Weight], store: Store) -> None:
    """Pack the matrices; keep a bias as it is."""
    specs = {name: weight.spec for name, weight in weights.items()}
    load_group(group_of(node, specs), node, weights, store)
    if isinstance(node.attrs, MatMulAttrs) and node.attrs.bias:
        store.raw(weights[node.weights[1]])


def load_group(group: Group, node: Node, weights: Mapping[str, Weight], store: Store) -> None:
    """Pack a node's matrices; keep them as halves, too, where that was chosen and prompts come."""
    packed = matmul_pack.load(group, weights, store)
    assert isinstance(node.attrs, (FusedFFNAttrs, FusedQKVAttrs, MatMulAttrs))
    if store.halves and node.attrs.single_rows < node.shape[0]:
        store.resident(
            halves_key(group.key),
            halves_bytes(group.n_rows, group),
            lambda to: store.device.run(expand_launches(group, packed, to)),
        )


def lower(node: Node, ctx: Context) -> list[Launch]:
    """The launches of `project`."""
    group = group_of(node, ctx.graph.weights)
    attrs = node.attrs
    epilogue, bias, residual = PLAIN, 0, 0
    if isinstance(attrs, FusedFFNAttrs):
        epilogue = SILU if attrs.act == "silu" else GELU
    else:
        assert isinstance(attrs, MatMulAttrs)
        bias = ctx.raw(node.weights[1]) if attrs.bias else 0
        residual = ctx.src(node, 1) if attrs.residual else 0
    product = Product(
        group,
        ctx.weights(group.key),
        ctx.normed(node),
        ctx.out(node),
        node.shape[0],
        attrs.single_rows,
        epilogue,
        bias,
        residual,
        ctx.halves(node.id),
        node.id in ctx.graph.output_rows,
        ctx.prepared(node.id),
    )
    return project(product, ctx)


def project(product: Product, ctx: Context) -> list[Launch]:
    """The launches of a product: single rows first, then the others."""
    launches: list[Launch] = []
    if product.single_rows:
        launches += _single(product, ctx)
    if product.many_rows:
        launches += _many(product, ctx)
    return launches


# ---- single rows --------------------------------------------------------------------------------


def _single(product: Product, ctx: Context) -> list[Launch]:
    rows = product.single_rows
    name = choose.single_rows_kernel(product.group, rows, ctx.facts)
    if name == "matmul_vec":
        return [vec_launch(product, choose.vec(product.group, ctx.facts))]
    if name == "matmul_batch_sm90":
        wide = choose.hopper_batch(product.group, rows, ctx.facts)
        return hopper_batch_launches(product, wide, ctx)
    if name == "matmul_many_sm90":
        tiles = choose.many_singles(product.group, rows, ctx.facts)
        return single_many_launches(product, tiles, ctx)
    launches: list[Launch] = []
    first = 0
    while first < rows:
        variant = choose.batch(product.group, rows - first, ctx.facts)
        n = min(variant.columns, rows - first)
        launches += batch_launches(product, first, n, variant, ctx)
        first += n
    return launches


def _addresses(product: Product) -> tuple[int, ...]:
    """Addresses of three segments, those that are not there 0, and of the factors."""
    found = [product.weights + s.offset for s in product.group.segments]
    return (*found, *[0] * (3 - len(found)), product.weights + product.group.factors)


def _ends(product: Product, first: int) -> tuple[int, int, int]:
    """Addresses of bias, residual and output, those of rows from `first` on."""
    skip = 4 * first * product.group.n_outputs
    residual = product.residual + skip if product.residual else 0
    return product.bias, residual, product.out + skip


def _shape(group: Group) -> tuple[int, ...]:
    """Columns, tiles of three segments, and outputs."""
    tiles = [s.n_tiles for s in group.segments]
    return (group.n_cols, *tiles, *[0] * (3 - len(tiles)), group.n_outputs)


def vec_launch(product: Product, variant: choose.Vec) -> Launch:
    """The launch of `matmul_vec` for the single row."""
    group = product.group
    args = (
        *_addresses(product),
        product.x.x,
        product.x.norm,
        *_ends(product, 0),
        *_shape(group),
        variant.tiles,
        variant.round_tiles,
        product.epilogue,
        product.x.eps,
    )
    made = vec_kernel(group, variant)
    return Launch(made, (variant.grid, 1, 1), variant.warps * 32, args, variant.shared)


def _types(group: Group) -> dict[str, int | float | str]:
    """Macros for the types of three segments."""
    types = [s.format.struct for s in group.segments]
    types += [types[-1]] * (3 - len(types))
    return {f"TYPE{i}": t for i, t in enumerate(types)}


def vec_kernel(group: Group, variant: choose.Vec) -> Kernel:
    """The specialised `matmul_vec`."""
    return kernel(
        "ops/matmul_vec.cu",
        "matmul_vec",
        "p p p p p p p p p i i i i i i i i f",
        PARTS=variant.parts,
        GROUPS=variant.groups,
        STAGES=variant.stages,
        SEGMENTS=len(group.segments),
        ONE_PIECE=int(blocks(group.n_cols, choose.PIECE) <= variant.parts),
        **_types(group),
    )


def _single_x(
    product: Product, first: int, rows: int, chunks: Chunks, room: int
) -> tuple[int, list[Launch]]:
    """Where x is as halves, and what makes them at `room` where it is not yet."""
    if product.x.prepared:
        return product.x.prepared.address, []
    if product.x.halves.single:
        return product.x.x, []
    return room, [act_launch(product.x, first, room, rows, chunks, product.group)]


def batch_launches(
    product: Product, first: int, rows: int, variant: choose.Batch, ctx: Context
) -> list[Launch]:
    """The launches of `matmul_batch` for `rows` single rows from `first` on."""
    group = product.group
    x_bytes = halves_bytes(variant.columns, group)
    apart = variant.ranks > 1 and not variant.cluster
    partial_bytes = 4 * variant.ranks * variant.columns * group.n_rows if apart else 0
    x = ctx.scratch(x_bytes + partial_bytes)
    partial = x + x_bytes
    weights = _addresses(product)
    ends = _ends(product, first)
    shape = (*_shape(group), rows, product.x.eps)
    main, finish = batch_kernels(product, variant)
    x, made = _single_x(product, first, rows, Chunks(variant.columns, False), x)
    launches = [
        *made,
        Launch(
            main,
            (variant.grid, 1, 1),
            (variant.warps + 1) * 32,
            (*weights, x, *ends, *_next(product), partial, *shape),
            variant.shared,
            variant.ranks if variant.cluster else 1,
        ),
    ]
    if apart:
        args = (partial, weights[-1], *ends, group.n_rows, group.n_outputs)
        launches.append(Launch(finish, (blocks(group.n_rows, 512), rows, 1), 256, args))
    return launches


def _next(product: Product) -> tuple[int, int]:
    """Addresses of the norm behind a product, and of what is prepared for it; 0 for none."""
    after = product.prepares
    return (after.norm, after.address) if after else (0, 0)


def _batch_defines(product: Product) -> dict[str, int | float | str]:
    """Macros that both kernels of batches have for what is before and behind them."""
    return {
        "EPILOGUE": product.epilogue,
        "NORMED": int(product.x.prepared is not None),
        **out_defines(product.single_out),
        **_types(product.group),
    }


def batch_kernels(product: Product, variant: choose.Batch) -> tuple[Kernel, Kernel]:
    """The specialised `matmul_batch`, and what adds the sums of its ranks without a cluster."""
    macros = {
        "COLUMNS": variant.columns,
        "WARPS": variant.warps,
        "TILES": variant.tiles,
        "STAGES": variant.stages,
        "X_STAGES": variant.x_stages,
        "RANKS": variant.ranks,
        "CLUSTER": int(variant.cluster),
        **_batch_defines(product),
    }
    file = "ops/matmul_batch.cu"
    return (
        kernel(file, "matmul_batch", "p p p p p p p p p p p i i i i i i f", **macros),
        kernel(file, "matmul_batch_finish", "p p p p p i i", **macros),
    )


def hopper_batch_launches(
    product: Product, variant: choose.HopperBatch, ctx: Context
) -> list[Launch]:
    """The launches of `matmul_batch_sm90`, which takes all single rows."""
    group, rows = product.group, product.single_rows
    x = ctx.scratch(halves_bytes(variant.columns, group))
    x, launches = _single_x(product, 0, rows, Chunks(variant.columns, True), x)
    args = (
        *_addresses(product),
        x,
        *_ends(product, 0),
        *_next(product),
        *_shape(group),
        rows,
        product.x.eps,
    )
    made = hopper_batch_kernel(product, variant)
    grid = (variant.grid, 1, 1)
    return [*launches, Launch(made, grid, variant.threads, args, variant.shared, variant.ranks)]


def hopper_batch_kernel(product: Product, variant: choose.HopperBatch) -> Kernel:
    """The specialised `matmul_batch_sm90`."""
    return kernel(
        "ops/matmul_batch_sm90.cu",
        "matmul_batch_sm90",
        "p p p p p p p p p p i i i i i i f",
        COLUMNS=variant.columns,
        GROUPS=variant.groups,
        STAGES=variant.stages,
        X_STAGES=variant.x_stages,
        RANKS=variant.ranks,
        **_batch_defines(product),
    )


def single_many_launches(product: Product, variant: choose.Many, ctx: Context) -> list[Launch]:
    """The launches of `matmul_many_sm90` for single rows."""
    group, rows = product.group, product.single_rows
    chunks = choose.many_rows_chunks(rows, ctx.facts)
    x_bytes = halves_bytes(chunks.columns, group)
    room = ctx.scratch(x_bytes + choose.partial_room(group, rows, ctx.facts))
    x, made = _single_x(product, 0, rows, chunks, room)
    return [*made, many_launch(product, True, x, room + x_bytes, variant, ctx)]


# ---- many rows ----------------------------------------------------------------------------------


def _many(product: Product, ctx: Context) -> list[Launch]:
    group, facts, rows = product.group, ctx.facts, product.many_rows
    if facts.hopper:
        sums = choose.partial_room(group, min(rows, choose.SHARED_ROWS), facts)
        x, partial, launches = _many_x(product, sums, ctx)
        variant = choose.many(group, rows, facts)
        return [*launches, many_launch(product, False, x, partial, variant, ctx)]
    w = ctx.find(halves_key(group.key))
    x, room, launches = _many_x(product, 0 if w else halves_bytes(group.n_rows, group), ctx)
    if not w:
        w = room
        launches += expand_launches(group, product.weights, w)
    return [*launches, gemm_launch(product, x, w, choose.gemm(group, rows, facts), ctx)]


def _many_x(product: Product, more: int, ctx: Context) -> tuple[int, int, list[Launch]]:
    """Where rows of prompts are as halves, `more` bytes of scratch, and what makes the halves."""
    rows, first = product.many_rows, product.single_rows
    chunks = choose.many_rows_chunks(rows, ctx.facts)
    # room for x even where it comes as halves: of fewer rows it may not, and the largest step
    # tells what all of them take
    x_bytes = halves_bytes(chunks.columns, product.group)
    room = ctx.scratch(x_bytes + more)
    if product.x.halves.many:
        return product.x.x + 4 * first * product.group.n_cols, room + x_bytes, []
    act = act_launch(product.x, first, room, rows, chunks, product.group)
    return room, room + x_bytes, [act]


def many_launch(
    product: Product, single: bool, x: int, partial: int, variant: choose.Many, ctx: Context
) -> Launch:
    """The product of packed weights and halves at `x`, with room for sums of ranks at `partial`.

    Of the single rows, or of the others. Halves that it writes lie as those that it reads.
    """
    group = product.group
    if single:
        first, rows = 0, product.single_rows
        out, count = product.halves.single, OUTPUT_ROWS if product.outputs else SINGLE_ROWS
    else:
        first, rows = product.single_rows, product.many_rows
        out, count = product.halves.many, OTHER_ROWS
    chunks = choose.many_rows_chunks(rows, ctx.facts)
    assert out in (None, chunks)
    args = (
        *_addresses(product),
        x,
        *_ends(product, first),
        partial,
        ctx.counters(variant.tiles if variant.ranks > 1 else 0),
        ctx.input("counts") + 4 * count,
        *_shape(group),
        chunks.columns,
    )
    made = many_kernel(group, product.epilogue, out is not None, variant)
    return Launch(made, (variant.grid, 1, 1), 384, args, variant.shared)


def many_kernel(group: Group, epilogue: int, halves: bool, variant: choose.Many) -> Kernel:
    """The specialised `matmul_many_sm90`."""
    return kernel(
        "ops/matmul_many_sm90.cu",
        "matmul_many_sm90",
        "p p p p p p p p p p p i i i i i i",
        COLUMNS=variant.columns,
        RANKS=variant.ranks,
        STAGES=variant.stages,
        X_STAGES=variant.x_stages,
        EPILOGUE=epilogue,
        HALVES=int(halves),
        **_types(group),
    )


def gemm_launch(product: Product, x: int, w: int, variant: choose.Gemm, ctx: Context) -> Launch:
    """The product of expanded weights at `w` and halves at `x`."""
    group = product.group
    args = (
        x,
        w,
        product.weights + group.factors,
        *_ends(product, product.single_rows),
        ctx.input("counts"),
        choose.many_rows_chunks(product.many_rows, ctx.facts).columns,
        group.n_rows,
        2 * blocks(group.n_cols, 128),
        group.n_outputs,
    )
    made = gemm_kernel(product.epilogue, product.halves.many is not None, variant)
    return Launch(made, (variant.grid, 1, 1), 256, args, variant.shared)


def gemm_kernel(epilogue: int, halves: bool, variant: choose.Gemm) -> Kernel:
    """The specialised `matmul_gemm`."""
    return kernel(
        "ops/matmul_gemm.cu",
        "matmul_gemm",
        "p p p p p p p i i i i",
        STAGES=variant.stages,
        EPILOGUE=epilogue,
        HALVES=int(halves),
    )


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Every type at one and eight rows, some in batches, a mixed QKV, and many-rows products."""
    found = [*matmul_pack.kernels(), *matmul_halves.kernels(facts)]
    for dtype in WEIGHT_TYPES:
        group = Group(("w",), (WeightSpec(dtype, (4096, 4096)),))
        batches = (16, 64) if dtype.name in ("q4_K", "q5_0", "q6_K", "f16") else ()
        found += _single_kernels(group, PLAIN, (1, 8, *batches), facts)
    pair = WeightSpec(BY_NAME["q4_K"], (4096, 16384))
    found += _single_kernels(Group(("a", "b"), (pair, pair), True), SILU, (16, 64), facts)
    q4, q6 = BY_NAME["q4_K"], BY_NAME["q6_K"]
    specs = (WeightSpec(q4, (3584, 3584)), WeightSpec(q4, (3584, 512)), WeightSpec(q6, (3584, 512)))
    mixed = Group(("q", "k", "v"), specs)
    found += _single_kernels(mixed, PLAIN, (1, 8, 16, 64), facts)
    if facts.hopper:
        found += _many_kernels((mixed, Group(("a", "b"), (pair, pair), True)))
        return found
    for epilogue, halves in ((PLAIN, False), *itertools.product((SILU, GELU), (False, True))):
        found.append(gemm_kernel(epilogue, halves, choose.Gemm(3, 1, 0)))
    return found


def _many_kernels(groups: Sequence[Group]) -> Iterator[Kernel]:
    """Of each type by two tiles, of these groups by all, of pairs each way."""
    singles = [Group(("w",), (WeightSpec(dtype, (4096, 4096)),)) for dtype in WEIGHT_TYPES]
    by_tile = [
        *itertools.product(singles, (256, 96)),
        *itertools.product(groups, choose.MANY_COLUMNS),
    ]
    for group, columns in by_tile:
        variant = choose.Many(columns, 1 + (columns < 256), 2, 3, 1, 1, 0)
        ways = ((SILU, False), (SILU, True), (GELU, True)) if group.paired else ((PLAIN, False),)
        for epilogue, halves in ways:
            yield many_kernel(group, epilogue, halves, variant)


def _single_kernels(
    group: Group, epilogue: int, rows: Sequence[int], facts: Facts
) -> Iterator[Kernel]:
    for n in rows:
        name = choose.single_rows_kernel(group, n, facts)
        if name == "matmul_vec":
            yield vec_kernel(group, choose.vec(group, facts))
            continue
        for product in _products(group, epilogue, n, facts):
            if name == "matmul_batch_sm90":
                yield hopper_batch_kernel(product, choose.hopper_batch(group, n, facts))
            else:
                yield from batch_kernels(product, choose.batch(group, n, facts))


def _products(group: Group, epilogue: int, rows: int, facts: Facts) -> Iterator[Product]:
    """Products of these rows by what is before and behind them."""
    plain = Product(group, 0, Normed(0), 0, rows, rows, epilogue)
    yield plain
    if epilogue:
        plain = replace(plain, halves=Halves(choose.single_rows_chunks(group, rows, facts)))
        yield plain
    chunks = choose.norm_sharing_chunks(group, rows, facts)
    if chunks and chunks.columns > 8:
        prepared = Prepared(0, 0, chunks)
        yield replace(plain, x=Normed(0, prepared=prepared))
        if not epilogue:
            yield replace(plain, prepares=prepared)
