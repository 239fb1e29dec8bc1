"""What a node costs at least: bytes it must move and operations it must do, whatever the kernel.

Every figure is a floor. A weight is read once a step, in the type the file has; an activation is
read and written once; keys and values that several rows of a sequence see are read once for all of
them. Kernels that repack, spill or read again move more, and that is what a comparison shows.
Integer inputs (ids, positions, page table) are too small to count. Pure functions; nothing is timed
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minfer.dtypes import F32
from minfer.graph.attrs import (
    AttentionAttrs,
    EmbedAttrs,
    FusedFFNAttrs,
    FusedQKVAttrs,
    KVStoreAttrs,
    MatMulAttrs,
    NormAttrs,
)
from minfer.graph.ir import Graph, Node

OPERATIONS_A_VALUE: dict[str, int] = {
    "add": 1,
    "mul": 1,
    "scale": 1,
    "softcap": 3,
    "gated": 5,
    "rms_norm": 4,
    "rope": 3,
}
"""Operations an output value takes in element-wise ops; an exponential counts as one."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a step really holds: a plan has room for more rows than most steps use.

    Attributes:
        runs: for each sequence (position of its first row, rows).
        out_rows: rows whose logits are wanted.
    """

    runs: tuple[tuple[int, int], ...]
    out_rows: int

    @property
    def rows(self) -> int:
        """Rows of all sequences."""
        return sum(count for _, count in self.runs)


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of a node or of a whole step.

    Attributes:
        flops: multiplications and additions, each counted.
        weight_bytes: weights read.
        state_bytes: keys and values read or written.
        activation_bytes: activations read and written.
    """

    flops: int = 0
    weight_bytes: int = 0
    state_bytes: int = 0
    activation_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all kinds."""
        return self.weight_bytes + self.state_bytes + self.activation_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.state_bytes + other.state_bytes,
            self.activation_bytes + other.activation_bytes,
        )


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    return sum(costs, Cost())


def costs(graph: Graph, load: Load) -> tuple[Cost, ...]:
    """The cost of every node of a graph, in order; inputs cost nothing."""
    rows = real_rows(graph, load)
    return tuple(_cost(graph, node, rows, load) for node in graph.nodes)


def real_rows(graph: Graph, load: Load) -> tuple[int, ...]:
    """For every node, how many of its rows a step fills: those after `rows` are output rows."""
    found: list[int] = []
    reduced: set[int] = set()
    for node in graph.nodes:
        if node.op == "rows" or reduced.intersection(node.srcs):
            reduced.add(node.id)
        found.append(load.out_rows if node.id in reduced else load.rows)
    return tuple(found)


def seen_pairs(start: int, count: int, window: int) -> int:
    """Pairs of a row and a position it sees, for `count` rows from position `start`.

    A row at position p sees p + 1 positions, or the last `window` of them if that is not 0.
    """
    end = start + count
    if not window or end <= window:
        return (end * (end + 1) - start * (start + 1)) // 2
    if start >= window:
        return count * window
    return seen_pairs(start, window - start, 0) + (end - window) * window


def seen_cells(start: int, count: int, window: int) -> int:
    """Positions that `count` rows from position `start` see, each counted once."""
    first = max(0, start + 1 - window) if window else 0
    return start + count - first


def _cost(graph: Graph, node: Node, rows: tuple[int, ...], load: Load) -> Cost:
    if node.op == "input":
        return Cost()
    n_rows = rows[node.id]
    weight_bytes = 0
    flops = OPERATIONS_A_VALUE.get(node.op, 0) * n_rows * _features(node)
    state_bytes = 0
    match node.attrs:
        case EmbedAttrs() as embed:
            table = graph.weights[node.weights[0]]
            weight_bytes = n_rows * table.dtype.nbytes(table.shape[0])
            flops = n_rows * _features(node) if embed.scale != 1.0 else 0
        case AttentionAttrs() as attention:
            width = attention.n_heads * attention.head_dim
            for start, count in load.runs:
                flops += 4 * width * seen_pairs(start, count, attention.window)
                cells = seen_cells(start, count, attention.window)
                state_bytes += _cell_bytes(graph, attention.state) * cells
        case KVStoreAttrs() as store:
            state_bytes = _cell_bytes(graph, store.state) * n_rows
        case FusedQKVAttrs() as fused:
            state_bytes = _cell_bytes(graph, fused.state) * n_rows
            weight_bytes, flops = _products(graph, node, n_rows)
            values = n_rows * fused.head_dim
            rotated = (fused.n_heads + fused.n_kv_heads) * values
            flops += OPERATIONS_A_VALUE["rope"] * rotated
            flops += fused.bias * (rotated + fused.n_kv_heads * values)
            if fused.norm_eps is not None:
                flops += OPERATIONS_A_VALUE["rms_norm"] * rotated
        case FusedFFNAttrs():
            weight_bytes, flops = _products(graph, node, n_rows)
            flops += OPERATIONS_A_VALUE["gated"] * n_rows * _features(node)
        case MatMulAttrs() as matmul:
            weight_bytes, flops = _products(graph, node, n_rows)
            flops += n_rows * _features(node) * (matmul.bias + matmul.residual)
        case NormAttrs() as norm:
            weight_bytes = sum(_weight_bytes(graph, name) for name in node.weights)
            flops += norm.residual * n_rows * _features(node)
        case _:
            weight_bytes = sum(_weight_bytes(graph, name) for name in node.weights)
    read = 0
    for src in node.srcs:
        source = graph.nodes[src]
        if source.dtype is F32:
            read += 4 * _features(source) * (n_rows if node.op == "rows" else rows[src])
    written = 4 * n_rows * _features(node) if node.nbytes else 0
    return Cost(flops, weight_bytes, state_bytes, read + written)


def _features(node: Node) -> int:
    return node.shape[-1] if len(node.shape) > 1 else 1


def _weight_bytes(graph: Graph, name: str) -> int:
    spec = graph.weights[name]
    count = 1
    for n in spec.shape:
        count *= n
    return spec.dtype.nbytes(count)


def _products(graph: Graph, node: Node, n_rows: int) -> tuple[int, int]:
    """Bytes of a node's weights, and operations of its products."""
    nbytes = sum(_weight_bytes(graph, name) for name in node.weights)
    shapes = [graph.weights[name].shape for name in node.weights]
    return nbytes, sum(2 * n_rows * s[0] * s[1] for s in shapes if len(s) == 2)


def _cell_bytes(graph: Graph, state: str) -> int:
    """Bytes of K and V of one cell."""
    spec = graph.states[state]
    return 2 * spec.dtype.nbytes(spec.n_kv_heads * spec.head_dim)
