"""Root-mean-square norm: a block a row, or a warp a head for the narrow groups of q and k norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minfer.backends.base import Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, Store, blocks
from minfer.dtypes import F32
from minfer.graph import Graph, Node, NormAttrs

HEAD_THREADS = 128
HEAD_WIDTH = 256
MAX_WIDTH = 16384


def supports(node: Node, graph: Graph) -> str | None:
    """F32 weights, groups that fit one block's registers."""
    assert isinstance(node.attrs, NormAttrs)
    dtype = graph.weights[node.weights[0]].dtype
    if dtype is not F32:
        return f"a norm weight of type {dtype} has no CUDA kernel"
    if node.attrs.width > MAX_WIDTH:
        return f"groups of {node.attrs.width} values exceed {MAX_WIDTH}"
    return None


def load(node: Node, weights: Mapping[str, Weight], store: Store) -> None:
    """Keep the vector as it is."""
    store.raw(weights[node.weights[0]])


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch; the kernel depends on the width alone."""
    assert isinstance(node.attrs, NormAttrs)
    width, eps = node.attrs.width, node.attrs.eps
    groups = node.shape[0] * node.shape[1] // width
    residual = ctx.src(node, 1) if node.attrs.residual else 0
    args = (ctx.src(node, 0), ctx.raw(node.weights[0]), residual, ctx.out(node), eps)
    if width <= HEAD_WIDTH:
        grid = (blocks(groups, HEAD_THREADS // 32), 1, 1)
        return [Launch(_head_kernel(width), grid, HEAD_THREADS, (*args, groups))]
    return [Launch(_row_kernel(width), (groups, 1, 1), threads(width), args)]


def threads(width: int) -> int:
    """Threads a block for a group of `width` values: 8 or so values each."""
    return next((t for t in (128, 256, 512) if width <= 8 * t), 1024)


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Widths of models from 135M to 70B."""
    rows = [_row_kernel(w) for w in (576, 896, 1024, 3584, 8192, MAX_WIDTH)]
    return [*rows, *(_head_kernel(w) for w in (64, 80, 96, 128, 256))]


def _row_kernel(width: int) -> Kernel:
    return kernel("ops/rms_norm.cu", "rms_norm", "p p p p f", WIDTH=width, THREADS=threads(width))


def _head_kernel(width: int) -> Kernel:
    signature = "p p p p f i"
    return kernel("ops/rms_norm.cu", "head_norm", signature, WIDTH=width, THREADS=HEAD_THREADS)
