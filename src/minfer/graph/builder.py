"""Building a graph node by node: shapes are inferred by each op's rule, names kept unique."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from minfer.dtypes import I32, DType
from minfer.errors import GraphError
from minfer.graph.attrs import (
    AttentionAttrs,
    Attrs,
    EmbedAttrs,
    GatedAttrs,
    KVStoreAttrs,
    MatMulAttrs,
    NormAttrs,
    RopeAttrs,
    ScaleAttrs,
    SoftcapAttrs,
)
from minfer.graph.ir import Graph, KVSpec, Node, WeightSpec
from minfer.graph.ops import OPS


class GraphBuilder:
    """Collects nodes; one method an op, each answering the new node.

    Args:
        weights: every weight the model file offers.
        states: every KV state the graph may use.
    """

    def __init__(self, weights: Mapping[str, WeightSpec], states: Mapping[str, KVSpec]) -> None:
        self._weights = weights
        self._states = states
        self._nodes: list[Node] = []
        self.layer: int | None = None
        """The block that new nodes belong to."""

    def node(
        self,
        op: str,
        srcs: tuple[Node, ...],
        attrs: Attrs,
        name: str,
        weights: tuple[str, ...] = (),
        shape: tuple[int, ...] = (),
        dtype: DType | None = None,
    ) -> Node:
        """Append a node of any op; the methods below are its typed forms."""
        if self.layer is not None:
            name = f"blk.{self.layer}.{name}"
        spec = OPS[op]
        missing = [w for w in weights if w not in self._weights]
        if missing:
            raise GraphError(f"the file has no tensor {missing[0]!r}", where=f"{op} {name}")
        draft = Node(
            len(self._nodes),
            op,
            tuple(s.id for s in srcs),
            weights,
            attrs,
            shape,
            dtype or spec.dtype,
            name,
            self.layer,
        )
        shape = spec.rule(draft, srcs, [self._weights[w] for w in weights], self._states)
        made = Node(draft.id, op, draft.srcs, weights, attrs, shape, draft.dtype, name, self.layer)
        self._nodes.append(made)
        return made

    def input(self, name: str, shape: tuple[int, ...], dtype: DType = I32) -> Node:
        """A tensor the host fills before the step."""
        return self.node("input", (), Attrs(), name, shape=shape, dtype=dtype)

    def embed(self, ids: Node, table: str, name: str, scale: float = 1.0) -> Node:
        """Rows of `table`, [rows, width], times `scale`."""
        return self.node("embed", (ids,), EmbedAttrs(scale), name, (table,))

    def matmul(
        self, x: Node, weight: str, name: str, single_rows: int, bias: str | None = None
    ) -> Node:
        """`x @ weight.T (+ bias)`: [rows, n_in] -> [rows, n_out]."""
        weights = (weight,) if bias is None else (weight, bias)
        return self.node("matmul", (x,), MatMulAttrs(single_rows, bias is not None), name, weights)

    def rms_norm(
        self, x: Node, weight: str, name: str, eps: float, width: int | None = None
    ) -> Node:
        """Root-mean-square norm over groups of `width` features (all of them by default)."""
        return self.node("rms_norm", (x,), NormAttrs(eps, width or x.shape[1]), name, (weight,))

    def rope(self, x: Node, positions: Node, attrs: RopeAttrs, name: str) -> Node:
        """Rotate each head by its row's position."""
        return self.node("rope", (x, positions), attrs, name)

    def kv_store(self, k: Node, v: Node, cells: Node, state: str, name: str) -> Node:
        """Write k and v to the cells of their rows; the result only orders readers."""
        return self.node("kv_store", (k, v, cells), KVStoreAttrs(state), name)

    def attention(
        self,
        q: Node,
        positions: Node,
        seqs: Node,
        page_table: Node,
        after: Node,
        attrs: AttentionAttrs,
        name: str,
    ) -> Node:
        """Attention of q over its row's sequence; `after` is the store it waits for."""
        return self.node("attention", (q, positions, seqs, page_table, after), attrs, name)

    def gated(self, gate: Node, up: Node, act: GatedAttrs, name: str) -> Node:
        """`act(gate) * up`."""
        return self.node("gated", (gate, up), act, name)

    def add(self, a: Node, b: Node, name: str) -> Node:
        """`a + b`."""
        return self.node("add", (a, b), Attrs(), name)

    def mul(self, a: Node, b: Node, name: str) -> Node:
        """`a * b`, element by element."""
        return self.node("mul", (a, b), Attrs(), name)

    def scale(self, x: Node, factor: float, name: str) -> Node:
        """`factor * x`."""
        return self.node("scale", (x,), ScaleAttrs(factor), name)

    def softcap(self, x: Node, cap: float, name: str) -> Node:
        """`cap * tanh(x / cap)`."""
        return self.node("softcap", (x,), SoftcapAttrs(cap), name)

    def rows(self, x: Node, index: Node, name: str) -> Node:
        """`x[index]`."""
        return self.node("rows", (x, index), Attrs(), name)

    def penalize(
        self, logits: Node, penalties: Node, recent: Node, ids: Node, index: Node, name: str
    ) -> Node:
        """Logits less what each row's recent tokens cost; its newest is `ids[index]`."""
        return self.node("penalize", (logits, penalties, recent, ids, index), Attrs(), name)

    def sample(self, logits: Node, sampling: Node, name: str) -> Node:
        """A token for each row of logits; -1 where they have no finite maximum."""
        return self.node("sample", (logits, sampling), Attrs(), name)

    def build(self, *outputs: Node, feeds: Node | None = None) -> Graph:
        """Close the graph, keeping only the weights and states that its nodes name.

        Args:
            outputs: what the host reads.
            feeds: the input that the first output is in the step that follows.
        """
        used = dict.fromkeys(w for n in self._nodes for w in n.weights)
        states = dict.fromkeys(s for n in self._nodes if (s := getattr(n.attrs, "state", None)))
        return Graph(
            tuple(self._nodes),
            tuple(o.id for o in outputs),
            MappingProxyType({w: self._weights[w] for w in used}),
            MappingProxyType({s: self._states[s] for s in states}),
            feeds.name if feeds else "",
        )
