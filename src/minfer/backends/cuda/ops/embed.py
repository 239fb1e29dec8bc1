"""Embedding rows from a table in any weight type, kept in the device as the file has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minfer.backends.base import Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, Store, blocks
from minfer.backends.cuda.ops.matmul_pack import FORMATS
from minfer.dtypes import WEIGHT_TYPES, DType
from minfer.graph import EmbedAttrs, Graph, Node

THREADS = 256


def supports(node: Node, graph: Graph) -> str | None:
    """Every weight type has a decoder."""
    dtype = graph.weights[node.weights[0]].dtype
    return None if dtype.name in FORMATS else f"a table of type {dtype} has no CUDA kernel"


def load(node: Node, weights: Mapping[str, Weight], store: Store) -> None:
    """Keep the table as it is."""
    store.raw(weights[node.weights[0]])


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch."""
    assert isinstance(node.attrs, EmbedAttrs)
    (name,) = node.weights
    table = ctx.graph.weights[name]
    width, vocabulary = table.shape
    rows = node.shape[0]
    args = (ctx.src(node, 0), ctx.raw(name), ctx.out(node), vocabulary, width, node.attrs.scale)
    return [Launch(_kernel(table.dtype), (rows, blocks(width, THREADS), 1), THREADS, args)]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """A variant for every type."""
    return [_kernel(dtype) for dtype in WEIGHT_TYPES]


def _kernel(dtype: DType) -> Kernel:
    return kernel("ops/embed.cu", "embed", "p p p i i f", TYPE=FORMATS[dtype.name].struct)
