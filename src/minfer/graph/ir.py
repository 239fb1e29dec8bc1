"""What a graph is made of: nodes, states, the graph itself. Data only; nothing runs here.

A graph is the whole computation of one step, in build order. Every node has one output. Node ids
are positions in `Graph.nodes`, so sources always have smaller ids than their readers. Shapes are
token-major, `[rows, features]`, as NumPy writes them. Weights are referenced by name and keep the
layout of the file: metadata `[n_in, n_out]`, memory `[n_out][n_in]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from minfer.dtypes import DType
from minfer.graph.attrs import Attrs


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and its single output.

    Attributes:
        id: position in `Graph.nodes`.
        op: a key of `minfer.graph.OPS`.
        srcs: ids of the nodes whose outputs it reads, in the op's order.
        weights: names of the weights it reads, in the op's order.
        attrs: the op's constants.
        shape: shape of the output, `[rows, features]` for activations.
        dtype: element type of the output: f32 or i32.
        name: unique, readable name, e.g. `blk.3.ffn_up`.
        layer: block it belongs to, None outside of the blocks.
    """

    id: int
    op: str
    srcs: tuple[int, ...]
    weights: tuple[str, ...]
    attrs: Attrs
    shape: tuple[int, ...]
    dtype: DType
    name: str
    layer: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the output; 0 for an op that only orders others."""
        count = 1
        for n in self.shape:
            count *= n
        return self.dtype.nbytes(count)


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """Type and shape of a weight, as the file has it (`shape[0]` is the contiguous row)."""

    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The KV cache of one layer: persistent, addressed by cell, in pages of `PAGE` cells.

    Attributes:
        name: identity of the state, e.g. `kv.3`.
        n_kv_heads, head_dim: a cell holds `n_kv_heads * head_dim` values of K and as many of V.
        dtype: element type: f32, f16 or q8_0. How a backend arranges them is its own affair.
        n_pages: pages it holds.
    """

    name: str
    n_kv_heads: int
    head_dim: int
    dtype: DType
    n_pages: int

    @property
    def nbytes(self) -> int:
        """Bytes of K and V together, before any padding of a backend's layout."""
        return 2 * self.dtype.nbytes(self.n_pages * PAGE * self.n_kv_heads * self.head_dim)


PAGE = 64
"""Cells a page of the KV cache holds."""


@dataclass(frozen=True)
class Graph:
    """The computation of one step.

    Attributes:
        nodes: in build order, which is the order of execution.
        outputs: ids of the nodes the host reads.
        weights: every weight the nodes name.
        states: every KV state the nodes name, by name.
        feeds: name of the input that the first output is, row for row, in the step that follows;
            "" for none.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    weights: Mapping[str, WeightSpec] = field(default_factory=lambda: MappingProxyType({}))
    states: Mapping[str, KVSpec] = field(default_factory=lambda: MappingProxyType({}))
    feeds: str = ""

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the ids of the nodes that read its output, in order."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for src in dict.fromkeys(node.srcs):
                found[src].append(node.id)
        return tuple(tuple(r) for r in found)

    @cached_property
    def output_rows(self) -> frozenset[int]:
        """Ids of the nodes whose rows are output rows: those behind a `rows` op."""
        found: set[int] = set()
        for node in self.nodes:
            if node.op == "rows" or (node.srcs and node.srcs[0] in found):
                found.add(node.id)
        return frozenset(found)

    @cached_property
    def inputs(self) -> dict[str, Node]:
        """The nodes the host fills before a step, by name."""
        return {n.name: n for n in self.nodes if n.op == "input"}
