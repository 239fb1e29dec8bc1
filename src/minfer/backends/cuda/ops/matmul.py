"""Matrix products: `matmul`, `fused_ffn`, and the projections of `fused_qkv`.

Single rows stream the packed weight once (`matmul_vec`); the other rows multiply on weights
expanded to halves in scratch. Geometry is `matmul_choose`'s, the packed layout `matmul_pack`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minfer.backends.base import Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops import matmul_choose as choose
from minfer.backends.cuda.ops import matmul_pack
from minfer.backends.cuda.ops.base import Context, Store, blocks
from minfer.backends.cuda.ops.matmul_pack import Format, Group
from minfer.dtypes import F32
from minfer.graph import FusedFFNAttrs, Graph, MatMulAttrs, Node, WeightSpec

PLAIN, SILU, GELU = 0, 1, 2
"""Epilogues, as `lib/epilogue.cuh` numbers them."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product to lower: addresses, and what follows it.

    Attributes:
        group: the weights, at `weights`.
        x: f32 [rows, n_cols].
        out: f32 [rows, n_outputs].
        rows, single_rows: as in `MatMulAttrs`.
        epilogue: `PLAIN`, or the gate's activation of a pair.
        bias: f32 [n_outputs], 0 for none.
        residual: shaped like the output, 0 for none.
    """

    group: Group
    weights: int
    x: int
    out: int
    rows: int
    single_rows: int
    epilogue: int = PLAIN
    bias: int = 0
    residual: int = 0


def supports(node: Node, graph: Graph) -> str | None:
    """The weights' types and shapes; a bias is f32."""
    specs = [graph.weights[name] for name in node.weights]
    if isinstance(node.attrs, FusedFFNAttrs):
        return matmul_pack.refuse(specs, paired=True)
    assert isinstance(node.attrs, MatMulAttrs)
    if node.attrs.bias and specs[1].dtype is not F32:
        return f"a bias of type {specs[1].dtype} has no CUDA kernel"
    return matmul_pack.refuse(specs[:1])


def group_of(node: Node, specs: Mapping[str, WeightSpec]) -> Group:
    """The packed weights of a matmul or fused_ffn node."""
    paired = isinstance(node.attrs, FusedFFNAttrs)
    names = node.weights if paired else node.weights[:1]
    return Group(names, tuple(specs[n] for n in names), paired)


def load(node: Node, weights: Mapping[str, Weight], store: Store) -> None:
    """Pack the matrices; keep a bias as it is."""
    specs = {name: weight.spec for name, weight in weights.items()}
    matmul_pack.load(group_of(node, specs), weights, store)
    if isinstance(node.attrs, MatMulAttrs) and node.attrs.bias:
        store.raw(weights[node.weights[1]])


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch for few single rows; three for the other rows."""
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
        ctx.src(node, 0),
        ctx.out(node),
        node.shape[0],
        attrs.single_rows,
        epilogue,
        bias,
        residual,
    )
    return project(product, ctx)


def project(product: Product, ctx: Context) -> list[Launch]:
    """The launches of a product: single rows first, then the others."""
    launches: list[Launch] = []
    if product.single_rows:
        launches += _single(product, ctx.facts)
    if product.rows > product.single_rows:
        launches += _many(product, ctx)
    return launches


# ---- single rows --------------------------------------------------------------------------------


def _single(product: Product, facts: Facts) -> list[Launch]:
    launches, first = [], 0
    while first < product.single_rows:
        variant = choose.vec(product.group, product.single_rows - first, facts)
        launches.append(vec_launch(product, first, variant))
        first += variant.rows
    return launches


def vec_launch(product: Product, first: int, variant: choose.Vec) -> Launch:
    """The launch of `matmul_vec` for the rows from `first` on."""
    group = product.group
    segments = group.segments
    addresses = [product.weights + s.offset for s in segments]
    tiles = [s.n_tiles for s in segments]
    spare = 3 - len(segments)
    args = (
        *addresses,
        *[0] * spare,
        product.weights + group.factors,
        product.x + 4 * first * group.n_cols,
        product.bias,
        product.residual + 4 * first * group.n_outputs if product.residual else 0,
        product.out + 4 * first * group.n_outputs,
        group.n_cols,
        *tiles,
        *[0] * spare,
        group.n_outputs,
    )
    made = vec_kernel([s.format for s in segments], group.n_cols, product.epilogue, variant)
    return Launch(made, (variant.grid, 1, 1), (variant.warps + 1) * 32, args, variant.shared)


def vec_kernel(
    formats: Sequence[Format], n_cols: int, epilogue: int, variant: choose.Vec
) -> Kernel:
    """The specialised `matmul_vec`."""
    types = [f.struct for f in formats] + [formats[-1].struct] * (3 - len(formats))
    return kernel(
        "ops/matmul_vec.cu",
        "matmul_vec",
        "p p p p p p p p i i i i i",
        TYPE0=types[0],
        TYPE1=types[1],
        TYPE2=types[2],
        ROWS=variant.rows,
        PIECES=choose.pieces_a_part(n_cols),
        SECTION=choose.parts_a_section(n_cols),
        WARPS=variant.warps,
        STAGES=variant.stages,
        TILES_IN_FLIGHT=variant.tiles_in_flight,
        EPILOGUE=epilogue,
    )


# ---- many rows ----------------------------------------------------------------------------------


def _many(product: Product, ctx: Context) -> list[Launch]:
    group = product.group
    rows = product.rows - product.single_rows
    padded = blocks(rows, choose.TILE_M) * choose.TILE_M
    strips = blocks(group.n_cols, 128)
    x_bytes, w_bytes = padded * strips * 256, group.n_rows * strips * 256
    scratch = ctx.scratch(x_bytes + w_bytes)
    variant = choose.gemm(group, rows, ctx.facts)
    return [
        *expand_launches(group, product.weights, scratch + x_bytes),
        act_launch(product, scratch),
        gemm_launch(product, scratch, scratch + x_bytes, ctx.input("counts"), variant),
    ]


def expand_launches(group: Group, weights: int, out: int) -> list[Launch]:
    """Expand a group to halves, segment by segment."""
    launches, first = [], 0
    for s in group.segments:
        strips = s.n_blocks * s.format.block // 128
        launches.append(
            Launch(
                expand_kernel(s.format),
                (blocks(s.n_tiles * strips, 8), 1, 1),
                256,
                (weights + s.offset, out, s.n_tiles, s.n_blocks, first, group.n_rows),
            )
        )
        first += s.n_tiles * matmul_pack.TILE
    return launches


def expand_kernel(format: Format) -> Kernel:
    """The specialised `matmul_expand`."""
    return kernel("ops/matmul_expand.cu", "matmul_expand", "p p i i i i", TYPE=format.struct)


def act_launch(product: Product, out: int) -> Launch:
    """Make halves of the rows that are not single."""
    rows = product.rows - product.single_rows
    n_cols = product.group.n_cols
    padded = blocks(rows, choose.TILE_M) * choose.TILE_M
    strips = blocks(n_cols, 128)
    return Launch(
        act_kernel(),
        (blocks(strips * 16, 256), padded, 1),
        256,
        (product.x + 4 * product.single_rows * n_cols, out, rows, padded, n_cols, strips),
    )


def act_kernel() -> Kernel:
    """The kernel `matmul_act`."""
    return kernel("ops/matmul_expand.cu", "matmul_act", "p p i i i i")


def gemm_launch(product: Product, x: int, w: int, counts: int, variant: choose.Gemm) -> Launch:
    """The product of expanded operands at `x` and `w`."""
    group = product.group
    rows = product.rows - product.single_rows
    skip = 4 * product.single_rows * group.n_outputs
    padded = blocks(rows, choose.TILE_M) * choose.TILE_M
    args = (
        x,
        w,
        product.weights + group.factors,
        product.bias,
        product.residual + skip if product.residual else 0,
        product.out + skip,
        counts,
        padded,
        group.n_rows,
        2 * blocks(group.n_cols, 128),
        group.n_outputs,
    )
    block = 384 if variant.hopper else 256
    made = gemm_kernel(product.epilogue, variant)
    return Launch(made, (variant.grid, 1, 1), block, args, variant.shared)


def gemm_kernel(epilogue: int, variant: choose.Gemm) -> Kernel:
    """The specialised many-rows product."""
    signature = "p p p p p p p i i i i"
    if variant.hopper:
        return kernel(
            "ops/matmul_gemm_sm90.cu",
            "matmul_gemm_sm90",
            signature,
            TILE_N=variant.tile_n,
            STAGES=variant.stages,
            EPILOGUE=epilogue,
        )
    return kernel(
        "ops/matmul_gemm.cu", "matmul_gemm", signature, STAGES=variant.stages, EPILOGUE=epilogue
    )


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Every type at one and eight rows, the mixed QKV, and the many-rows products."""
    found: list[Kernel] = matmul_pack.kernels()
    for format in matmul_pack.FORMATS.values():
        found.append(expand_kernel(format))
        for rows in (1, 8):
            variant = choose.Vec(rows, 12, 2, 2, facts.n_sms, 0)
            found.append(vec_kernel([format], 4096, SILU if rows == 8 else PLAIN, variant))
    q4, q6 = matmul_pack.FORMATS["q4_K"], matmul_pack.FORMATS["q6_K"]
    found.append(vec_kernel([q4, q4, q6], 4096, PLAIN, choose.Vec(1, 12, 2, 2, facts.n_sms, 0)))
    found.append(act_kernel())
    hopper = facts.capability == (9, 0)
    for tile_n in (128, 192, 224, 256) if hopper else (128,):
        for epilogue in (PLAIN, SILU, GELU):
            found.append(gemm_kernel(epilogue, choose.Gemm(hopper, tile_n, 3, 1, 0)))
    return found
