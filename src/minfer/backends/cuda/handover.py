"""Values that pass from one op to the product that reads them as the halves it multiplies.

Products of three rows and more multiply halves in orders of their own (`lib/act.cuh`). Where one
is the only reader, the op before can write them so, which saves a pass over the value. As with
norms that melt (`backends/melt.py`), this is decided when a split is lowered, not in the plan: no
one else sees the value.
"""

from __future__ import annotations

from collections.abc import Mapping

from minfer.backends.base import Split
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.ops import OPS, matmul
from minfer.backends.cuda.ops.base import F32_ROWS, Between, Chunks, Halves
from minfer.backends.cuda.ops.matmul_choose import (
    many_rows_chunks,
    norm_sharing_chunks,
    single_rows_chunks,
)
from minfer.backends.melt import PRODUCTS
from minfer.graph import AttentionAttrs, FusedFFNAttrs, FusedQKVAttrs, Graph, MatMulAttrs, Node
from minfer.settings import Settings

STRIP = 128
"""Values of a row that halves are laid out by; fewer would need zeros behind them."""


def handed_over(split: Split, facts: Facts, settings: Settings) -> dict[int, Halves]:
    """The nodes, by id, that make rows halves for their reader, and which rows.

    Single rows and the others are decided apart. Halves take the place of the rows in the node's
    own buffer, in chunks or tiles that may have more rows: so of a few they do not fit.
    """
    found = {}
    for node in (split.graph.nodes[i] for i in split.nodes):
        hands_over = getattr(OPS[node.op], "hands_over", None)
        reader = _reader(split, node) if hands_over else None
        if hands_over is None or reader is None or node.shape[1] % STRIP:
            continue
        single, many = hands_over(node, split.graph, facts, settings)
        rows = node.shape[0] - _single_rows(node)
        tiles = many_rows_chunks(rows, facts)
        halves = Halves(
            _chunks(reader, split.graph, facts) if single else None,
            tiles if many and _has_room(rows, tiles.columns) else None,
        )
        if halves != F32_ROWS:
            found[node.id] = halves
    return found


def norms_between(split: Split, norms: Mapping[int, Node], facts: Facts) -> dict[int, Between]:
    """Norms whose work for single rows is done by the products before and after.

    By the id of the product before.

    Args:
        norms: those that are part of their readers.
    """
    graph = split.graph
    found: dict[int, Between] = {}
    last = -1  # what is prepared lies in one place, until this one has read it
    for norm in norms.values():
        source, readers = graph.nodes[norm.srcs[0]], graph.readers[norm.id]
        if source.op != "matmul" or not last < source.id or source.id not in split.nodes:
            continue
        rows, reader = _single_rows(source), graph.nodes[readers[0]]
        shared = len(readers) == 1 and rows > 0 and _single_rows(reader) == rows
        if not shared or norm.shape[1] % STRIP:
            continue
        before, after = (
            norm_sharing_chunks(matmul.group_of(node, graph.weights), rows, facts)
            for node in (source, reader)
        )
        if before and after:
            found[source.id] = Between(norm, after)
            last = reader.id
    return found


def _reader(split: Split, node: Node) -> Node | None:
    """The product of the split that reads the rows, if nothing else does."""
    graph = split.graph
    if node.id in graph.outputs or len(graph.readers[node.id]) != 1:
        return None
    reader = graph.nodes[graph.readers[node.id][0]]
    if reader.op not in PRODUCTS or node.id in reader.srcs[1:] or reader.id not in split.nodes:
        return None
    return reader if _single_rows(reader) == _single_rows(node) else None


def _chunks(reader: Node, graph: Graph, facts: Facts) -> Chunks | None:
    """How the reader has its single rows, if there is room for that."""
    rows = _single_rows(reader)
    chunks = single_rows_chunks(matmul.group_of(reader, graph.weights), rows, facts)
    return chunks if chunks and _has_room(rows, chunks.columns) else None


def _has_room(rows: int, columns: int) -> bool:
    """Whether rows of f32 leave room for so many rows of halves."""
    return 0 < columns <= 2 * rows


def _single_rows(node: Node) -> int:
    assert isinstance(node.attrs, (AttentionAttrs, FusedFFNAttrs, FusedQKVAttrs, MatMulAttrs))
    return node.attrs.single_rows
