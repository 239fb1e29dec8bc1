"""Fused Q, K and V: one product of the three matrices, then bias, head norm, rotation and store.

The three may be of different types; they share the launches of `matmul` where those allow. What
follows the product is a launch, or is left to the attention that reads it (`melting_projections`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from minfer.backends.base import Split, Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.kv import KIND
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops import matmul, matmul_pack, rope
from minfer.backends.cuda.ops.base import Context, Store, blocks
from minfer.dtypes import F32, DType
from minfer.graph import AttentionAttrs, FusedQKVAttrs, Graph, Node, RopeSpec

WARPS = 4
MAX_MELTED = 64
"""Rows of one launch of `attention_decode`, which sees no other rows of this step."""


def supports(node: Node, graph: Graph) -> str | None:
    """Whatever the separate ops support."""
    assert isinstance(node.attrs, FusedQKVAttrs)
    specs = [graph.weights[name] for name in node.weights]
    for spec in specs[3:]:
        if spec.dtype is not F32:
            return f"a bias or norm of type {spec.dtype} has no CUDA kernel"
    if node.attrs.head_dim % 16 or node.attrs.head_dim > rope.MAX_HEAD_DIM:
        return f"heads of {node.attrs.head_dim} features: not a multiple of 16 up to 512"
    return matmul_pack.refuse(specs[:3])


def load(node: Node, weights: Mapping[str, Weight], store: Store) -> None:
    """Pack the matrices together; keep the vectors as they are."""
    specs = {name: weight.spec for name, weight in weights.items()}
    matmul.load_group(matmul.group_of(node, specs), node, weights, store)
    for name in node.weights[3:]:
        store.raw(weights[name])


def melting_projections(split: Split) -> dict[int, Node]:
    """The nodes of a split whose product the attention behind it reads as it is, by id.

    It then does what follows the product for the heads that it reads, and the rotated q is never
    written. All rows have to be single ones, so that no other kernel needs q or the new keys.
    """
    nodes = [split.graph.nodes[i] for i in split.nodes]
    return {
        node.id: node
        for node, reader in pairwise(nodes)
        if node.op == "fused_qkv" and reader.op == "attention" and _melts(split.graph, node, reader)
    }


def _melts(graph: Graph, node: Node, reader: Node) -> bool:
    attrs = reader.attrs
    assert isinstance(attrs, AttentionAttrs)
    return (
        reader.srcs[0] == reader.srcs[4] == node.id  # its queries, and the keys that it reads
        and graph.readers[node.id] == (reader.id,)
        and node.id not in graph.outputs
        and node.srcs[1] == reader.srcs[1]
        and node.shape[0] == attrs.single_rows <= MAX_MELTED
    )


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What follows a product, as its kernels take it.

    Attributes:
        values: address of the product, f32 [rows, features of q, k and v].
        vectors: addresses of the biases of q, k and v, the norms of q and k (0 for none), the
            cells and the frequencies.
        numbers: magnitude of the rotation, eps of the norms.
        defines: the macros.
    """

    values: int
    vectors: tuple[int, ...]
    numbers: tuple[float, float]
    defines: Mapping[str, int]


def epilogue(node: Node, ctx: Context) -> Epilogue:
    """That of a `fused_qkv`, by whichever kernel."""
    attrs = node.attrs
    assert isinstance(attrs, FusedQKVAttrs)
    vectors = [ctx.raw(name) for name in node.weights[3:]]
    biases = vectors[:3] if attrs.bias else [0, 0, 0]
    norms = vectors[-2:] if attrs.norm_eps is not None else [0, 0]
    n_heads = attrs.n_heads + 2 * attrs.n_kv_heads
    return Epilogue(
        ctx.scratch(node.shape[0] * n_heads * attrs.head_dim * 4, "qkv"),
        (*biases, *norms, ctx.src(node, 2), ctx.constant(rope.frequencies(attrs.rope))),
        (attrs.rope.magnitude, attrs.norm_eps or 0.0),
        defines(attrs.head_dim, attrs.rope, attrs.bias, attrs.norm_eps is not None),
    )


def defines(head_dim: int, spec: RopeSpec, bias: bool, norm: bool) -> dict[str, int]:
    """The macros of what follows the projections."""
    return {**rope.defines(head_dim, spec), "BIAS": int(bias), "NORM": int(norm)}


def lower(node: Node, ctx: Context) -> list[Launch]:
    """The product into scratch, then what follows it, unless that is left to the attention."""
    attrs = node.attrs
    assert isinstance(attrs, FusedQKVAttrs)
    group = matmul.group_of(node, ctx.graph.weights)
    rows, after = node.shape[0], epilogue(node, ctx)
    product = matmul.Product(
        group, ctx.weights(group.key), ctx.normed(node), after.values, rows, attrs.single_rows
    )
    launches = matmul.project(product, ctx)
    if node.id in ctx.joins.projections:
        return launches
    state = ctx.states[attrs.state]
    args = (
        after.values,
        *after.vectors,
        ctx.src(node, 1),
        ctx.out(node),
        *state.addresses,
        attrs.n_heads,
        attrs.n_kv_heads,
        *after.numbers,
    )
    grid = (rows, blocks(attrs.n_heads + attrs.n_kv_heads, WARPS), 1)
    made = _kernel(state.spec.dtype, after.defines)
    return [*launches, Launch(made, grid, 32 * WARPS, args)]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Each type of cache, with and without bias and norm."""
    return [_kernel(dtype, macros) for dtype in KIND for macros in SORTS]


SORTS = (
    defines(128, RopeSpec("neox", (1.0,) * 64), bias=True, norm=False),
    defines(128, RopeSpec("neox", (1.0,) * 64), bias=False, norm=True),
    defines(256, RopeSpec("neox", (1.0,) * 128), bias=False, norm=True),
    defines(80, RopeSpec("interleaved", (1.0,) * 40), bias=False, norm=False),
)
"""Macros of the supported architectures, for the compile check."""


def _kernel(dtype: DType, macros: Mapping[str, int]) -> Kernel:
    signature = " ".join(["p"] * 14 + ["i"] * 2 + ["f"] * 2)
    return kernel("ops/qkv.cu", "qkv", signature, KV=KIND[dtype], **macros)
