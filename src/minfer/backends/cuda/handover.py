"""Values that pass from one op to the product that reads them as the halves it multiplies.

A product of many rows multiplies halves in an order of its own (`lib/act.cuh`). Where it is the
only reader, the op before can write them so, which saves a pass over the value. As with norms that
melt (`backends/melt.py`), this is decided when a split is lowered, not in the plan: no one else
sees the value.
"""

from __future__ import annotations

from minfer.backends.base import Split
from minfer.backends.cuda.ops.base import blocks
from minfer.backends.cuda.ops.matmul_choose import TILE_M
from minfer.backends.melt import PRODUCTS
from minfer.graph import FusedFFNAttrs, FusedQKVAttrs, Graph, MatMulAttrs, Node

STRIP = 128
"""Values of a row that halves are laid out by; fewer would need zeros behind them."""


def handed_over(split: Split) -> frozenset[int]:
    """The nodes, by id, whose rows beyond the single ones are halves, made for their reader.

    These take the place of the rows in the node's own buffer, behind the single rows, which stay
    f32: whole tiles of rows at half the size, so of a few rows they would not fit.
    """
    graph = split.graph
    return frozenset(i for i in split.nodes if _is_handed_over(split, graph, graph.nodes[i]))


def _is_handed_over(split: Split, graph: Graph, node: Node) -> bool:
    attrs = node.attrs
    if not isinstance(attrs, FusedFFNAttrs) or len(graph.readers[node.id]) != 1:
        return False
    (index,) = graph.readers[node.id]
    reader = graph.nodes[index]
    if reader.op not in PRODUCTS or node.id in reader.srcs[1:]:
        return False
    if index not in split.nodes or node.id in graph.outputs:
        return False
    assert isinstance(reader.attrs, (FusedFFNAttrs, FusedQKVAttrs, MatMulAttrs))
    many = node.shape[0] - attrs.single_rows
    return (
        reader.attrs.single_rows == attrs.single_rows
        and node.shape[1] % STRIP == 0
        and 0 < blocks(many, TILE_M) * TILE_M <= 2 * many
    )
