"""Embedding rows from a table in any weight type, as the file has it or as a product reads it.

A table that is the head, too, is resident once: packed, by the product, and read there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minfer.backends.base import Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, Store, blocks
from minfer.backends.cuda.ops.matmul_pack import FORMATS, Group
from minfer.dtypes import F32, WEIGHT_TYPES, DType
from minfer.graph import EmbedAttrs, Graph, Node, WeightSpec

THREADS = 256
PACKED_THREADS, PACKED_WIDTH = 128, 1024
"""Of a block that reads a packed table: threads, and values of a row."""


def supports(node: Node, graph: Graph) -> str | None:
    """Every weight type has a decoder."""
    dtype = graph.weights[node.weights[0]].dtype
    return None if dtype.name in FORMATS else f"a table of type {dtype} has no CUDA kernel"


def load(node: Node, weights: Mapping[str, Weight], store: Store) -> None:
    """Keep the table as it is, unless a product has packed it: products are loaded before."""
    weight = weights[node.weights[0]]
    packed = _as_packed(weight.name, weight.spec)
    if packed is None or packed.key not in store:
        store.raw(weight)


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch."""
    assert isinstance(node.attrs, EmbedAttrs)
    (name,) = node.weights
    table = ctx.graph.weights[name]
    width, vocabulary = table.shape
    rows = node.shape[0]
    shape = (vocabulary, width, node.attrs.scale)
    packed = _as_packed(name, table)
    if packed is not None and (address := ctx.find(packed.key)):
        args = (ctx.src(node, 0), address, address + packed.factors, ctx.out(node), *shape)
        grid = (rows, blocks(width, PACKED_WIDTH), 1)
        return [Launch(_packed_kernel(table.dtype), grid, PACKED_THREADS, args)]
    plain = (ctx.src(node, 0), ctx.raw(name), ctx.out(node), *shape)
    return [Launch(_kernel(table.dtype), (rows, blocks(width, THREADS), 1), THREADS, plain)]


def _as_packed(name: str, spec: WeightSpec) -> Group | None:
    """The table as a product packs it; None where that loses bits that products can spare."""
    return Group((name,), (spec,)) if spec.dtype is not F32 else None


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Both variants for every type."""
    packed = [_packed_kernel(dtype) for dtype in WEIGHT_TYPES if dtype is not F32]
    return [*(_kernel(dtype) for dtype in WEIGHT_TYPES), *packed]


def _kernel(dtype: DType) -> Kernel:
    return kernel("ops/embed.cu", "embed", "p p p i i f", TYPE=FORMATS[dtype.name].struct)


def _packed_kernel(dtype: DType) -> Kernel:
    struct = FORMATS[dtype.name].struct
    return kernel("ops/embed_packed.cu", "embed_packed", "p p p p i i f", TYPE=struct)
