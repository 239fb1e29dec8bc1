"""Values that pass from one op to the product that reads them as the halves it multiplies.

A product of many rows multiplies halves in an order of its own (`lib/act.cuh`). Where it is the
only reader, the op before can write them so, which saves a pass over the value. As with norms that
melt (`backends/melt.py`), this is decided when a split is lowered, not in the plan: no one else
sees the value.
"""

from __future__ import annotations

from minfer.backends.base import Split
from minfer.backends.cuda.ops import OPS
from minfer.backends.cuda.ops.base import blocks
from minfer.backends.cuda.ops.matmul_choose import TILE_M
from minfer.backends.melt import PRODUCTS
from minfer.graph import AttentionAttrs, FusedFFNAttrs, FusedQKVAttrs, MatMulAttrs, Node
from minfer.settings import Settings

STRIP = 128
"""Values of a row that halves are laid out by; fewer would need zeros behind them."""


def handed_over(split: Split, settings: Settings) -> frozenset[int]:
    """The nodes, by id, whose rows beyond the single ones are halves, made for their reader.

    These take the place of the rows in the node's own buffer, behind the single rows, which stay
    f32: whole tiles of rows at half the size, so of a few rows they would not fit.
    """
    nodes = (split.graph.nodes[i] for i in split.nodes)
    return frozenset(n.id for n in nodes if _can_write(split, n, settings) and _is_read(split, n))


def _can_write(split: Split, node: Node, settings: Settings) -> bool:
    """Whether its op can, and there is room for it."""
    hands_over = getattr(OPS[node.op], "hands_over", None)
    if hands_over is None or not hands_over(node, split.graph, settings):
        return False
    many = _many_rows(node)
    return node.shape[1] % STRIP == 0 and 0 < blocks(many, TILE_M) * TILE_M <= 2 * many


def _is_read(split: Split, node: Node) -> bool:
    """Whether a product of the split reads the rows, and nothing else does."""
    graph = split.graph
    if node.id in graph.outputs or len(graph.readers[node.id]) != 1:
        return False
    (index,) = graph.readers[node.id]
    reader = graph.nodes[index]
    multiplies = reader.op in PRODUCTS and node.id not in reader.srcs[1:]
    return multiplies and index in split.nodes and _many_rows(reader) == _many_rows(node)


def _many_rows(node: Node) -> int:
    assert isinstance(node.attrs, (AttentionAttrs, FusedFFNAttrs, FusedQKVAttrs, MatMulAttrs))
    return node.shape[0] - node.attrs.single_rows
