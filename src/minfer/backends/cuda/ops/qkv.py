"""Fused Q, K and V: one product of the three matrices, then bias, head norm, rotation and store.

The three may be of different types; they share the launches of `matmul` where those allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minfer.backends.base import Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.kv import KIND
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops import matmul, matmul_pack, rope
from minfer.backends.cuda.ops.base import Context, Store, blocks
from minfer.dtypes import F16, F32, DType
from minfer.graph import FusedQKVAttrs, Graph, Node, RopeSpec

WARPS = 4


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


def lower(node: Node, ctx: Context) -> list[Launch]:
    """The product into scratch, then the epilogue."""
    attrs = node.attrs
    assert isinstance(attrs, FusedQKVAttrs)
    group = matmul.group_of(node, ctx.graph.weights)
    state = ctx.states[attrs.state]
    rows = node.shape[0]
    projected = ctx.scratch(rows * group.n_outputs * 4, "qkv")
    product = matmul.Product(
        group, ctx.weights(group.key), ctx.normed(node), projected, rows, attrs.single_rows
    )
    vectors = [ctx.raw(name) for name in node.weights[3:]]
    biases = vectors[:3] if attrs.bias else [0, 0, 0]
    norms = vectors[-2:] if attrs.norm_eps is not None else [0, 0]
    q_width, kv_width = attrs.n_heads * attrs.head_dim, attrs.n_kv_heads * attrs.head_dim
    args = (
        projected,
        projected + 4 * q_width,
        projected + 4 * (q_width + kv_width),
        *biases,
        *norms,
        ctx.src(node, 1),
        ctx.src(node, 2),
        ctx.constant(rope.frequencies(attrs.rope)),
        ctx.out(node),
        *state.addresses,
        attrs.n_heads,
        attrs.n_kv_heads,
        group.n_outputs,
        group.n_outputs,
        group.n_outputs,
        attrs.rope.magnitude,
        attrs.norm_eps or 0.0,
    )
    made = _kernel(
        attrs.head_dim, attrs.rope, state.spec.dtype, attrs.bias, attrs.norm_eps is not None
    )
    grid = (rows, blocks(attrs.n_heads + attrs.n_kv_heads, WARPS), 1)
    return [*matmul.project(product, ctx), Launch(made, grid, 32 * WARPS, args)]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Each type of cache, with and without bias and norm."""
    neox, interleaved = RopeSpec("neox", (1.0,) * 64), RopeSpec("interleaved", (1.0,) * 40)
    found = [_kernel(128, neox, dtype, True, False) for dtype in KIND]
    return [
        *found,
        _kernel(128, neox, F16, False, True),
        _kernel(256, RopeSpec("neox", (1.0,) * 128), F16, False, True),
        _kernel(80, interleaved, F16, False, False),
    ]


def _kernel(head_dim: int, spec: RopeSpec, dtype: DType, bias: bool, norm: bool) -> Kernel:
    return kernel(
        "ops/qkv.cu",
        "qkv",
        " ".join(["p"] * 16 + ["i"] * 5 + ["f"] * 2),
        **rope.defines(head_dim, spec),
        KV=KIND[dtype],
        BIAS=int(bias),
        NORM=int(norm),
    )
