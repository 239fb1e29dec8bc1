"""Pass 2: join chains of nodes into fused nodes where their backend supports the result.

Each rule finds a chain that starts at one node, and answers the fused node and the nodes it
replaces. A fused node computes what its chain computes; the chain's inner values disappear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

from minfer.graph import (
    FusedFFNAttrs,
    FusedQKVAttrs,
    GatedAttrs,
    Graph,
    KVStoreAttrs,
    MatMulAttrs,
    Node,
    NormAttrs,
    RopeAttrs,
)
from minfer.scheduler.plan import Plan


@dataclass(frozen=True, slots=True)
class Match:
    """A chain found by a rule.

    Attributes:
        fused: the new node; its sources are ids of the old graph, its id that of the chain's
            last node, whose place it takes.
        chain: ids of the nodes it replaces.
        result: id of the chain's node whose value the fused node gives.
    """

    fused: Node
    chain: frozenset[int]
    result: int


Rule = Callable[[Graph, Node], Match | None]


def fuse(plan: Plan, *, qkv: bool = True, ffn: bool = True) -> Plan:
    """Apply the rules, each to the whole graph; `qkv` and `ffn` are A/B controls."""
    rules: list[Rule] = [_residual]
    if qkv:
        rules.append(_qkv)
    if ffn:
        rules.append(_ffn)
    for rule in rules:
        plan = _apply(plan, rule)
    return plan


def _apply(plan: Plan, rule: Rule) -> Plan:
    graph = plan.graph
    matches: dict[int, Match] = {}
    taken: set[int] = set()
    for node in graph.nodes:
        match = rule(graph, node)
        if match is None or match.chain & taken:
            continue
        backends = {plan.backend_of[i] for i in match.chain}
        if len(backends) != 1:
            continue
        if plan.backend(backends.pop()).supports(match.fused, graph) is None:
            matches[match.fused.id] = match
            taken |= match.chain
    return _rebuild(plan, matches, taken) if matches else plan


def _rebuild(plan: Plan, matches: dict[int, Match], taken: set[int]) -> Plan:
    """The plan with each match's chain replaced, and ids renumbered."""
    new_id: dict[int, int] = {}
    nodes: list[Node] = []
    backend_of: list[str] = []
    reasons: dict[int, str] = {}
    for node in plan.graph.nodes:
        match = matches.get(node.id)
        if match is None and node.id in taken:
            continue
        old = node if match is None else match.fused
        index = len(nodes)
        nodes.append(replace(old, id=index, srcs=tuple(new_id[s] for s in old.srcs)))
        backend_of.append(plan.backend_of[node.id])
        if node.id in plan.reasons:
            reasons[index] = plan.reasons[node.id]
        new_id[node.id] = index
        if match is not None:
            new_id[match.result] = index
    graph = replace(
        plan.graph, nodes=tuple(nodes), outputs=tuple(new_id[o] for o in plan.graph.outputs)
    )
    return replace(
        plan, graph=graph, backend_of=tuple(backend_of), reasons=MappingProxyType(reasons)
    )


def _only_reader(graph: Graph, node: Node) -> Node | None:
    """The one node that reads `node`, unless the host reads it too."""
    readers = graph.readers[node.id]
    if len(readers) != 1 or node.id in graph.outputs:
        return None
    return graph.nodes[readers[0]]


def _residual(graph: Graph, node: Node) -> Match | None:
    """matmul or rms_norm -> add: the sum becomes the end of what was before."""
    attrs = node.attrs
    if not isinstance(attrs, (MatMulAttrs, NormAttrs)) or attrs.residual:
        return None
    add = _only_reader(graph, node)
    if add is None or add.op != "add" or add.srcs[0] == add.srcs[1]:
        return None
    other = add.srcs[1] if add.srcs[0] == node.id else add.srcs[0]
    fused = replace(node, id=add.id, srcs=(*node.srcs, other), attrs=replace(attrs, residual=True))
    return Match(fused, frozenset({node.id, add.id}), add.id)


def _ffn(graph: Graph, node: Node) -> Match | None:
    """gate and up projections of one input -> gated: one node."""
    if not isinstance(node.attrs, GatedAttrs):
        return None
    gate, up = (graph.nodes[s] for s in node.srcs)
    for part in (gate, up):
        plain = isinstance(part.attrs, MatMulAttrs) and not (part.attrs.bias or part.attrs.residual)
        if not plain or _only_reader(graph, part) is not node:
            return None
    if gate.srcs != up.srcs or gate.id == up.id:
        return None
    assert isinstance(gate.attrs, MatMulAttrs)
    fused = replace(
        node,
        op="fused_ffn",
        srcs=gate.srcs,
        weights=(*gate.weights, *up.weights),
        attrs=FusedFFNAttrs(node.attrs.act, gate.attrs.single_rows),
    )
    return Match(fused, frozenset({gate.id, up.id, node.id}), node.id)


@dataclass(frozen=True, slots=True)
class _Part:
    """A projection of q, k or v with what follows it up to the store or the attention."""

    matmul: Node
    norm: Node | None
    rope: Node | None
    ids: frozenset[int]


def _part(graph: Graph, end: Node) -> _Part | None:
    """Walk up from `end` through rope and per-head norm to the projection, all read once."""
    node, rope, norm = end, None, None
    ids = {node.id}
    if isinstance(node.attrs, RopeAttrs):
        rope, node = node, graph.nodes[node.srcs[0]]
    if isinstance(node.attrs, NormAttrs):
        norm, node = node, graph.nodes[node.srcs[0]]
    ids |= {n.id for n in (rope, norm, node) if n is not None}
    if not isinstance(node.attrs, MatMulAttrs) or node.attrs.residual:
        return None
    inner = [graph.nodes[i] for i in ids if i != end.id]
    if any(_only_reader(graph, n) is None for n in inner):
        return None
    return _Part(node, norm, rope, frozenset(ids))


def _qkv(graph: Graph, store: Node) -> Match | None:
    """q, k, v projections (+ bias, + per-head norm) + RoPE + store: one node giving q."""
    if not isinstance(store.attrs, KVStoreAttrs):
        return None
    readers = [graph.nodes[r] for r in graph.readers[store.id]]
    if len(readers) != 1 or readers[0].op != "attention":
        return None
    ends = [graph.nodes[readers[0].srcs[0]], *(graph.nodes[s] for s in store.srcs[:2])]
    if any(_only_reader(graph, end) is None for end in ends):
        return None
    parts = [_part(graph, end) for end in ends]
    q, k, v = parts
    if q is None or k is None or v is None or q.rope is None or k.rope is None or v.rope:
        return None
    matmuls = [p.matmul.attrs for p in (q, k, v)]
    same = (
        len({p.matmul.srcs for p in (q, k, v)}) == 1
        and len({m.bias for m in matmuls if isinstance(m, MatMulAttrs)}) == 1
        and q.rope.srcs[1] == k.rope.srcs[1]
        and v.norm is None
    )
    if not same:
        return None
    q_rope, k_rope, first = q.rope.attrs, k.rope.attrs, matmuls[0]
    assert isinstance(q_rope, RopeAttrs) and isinstance(k_rope, RopeAttrs)
    assert isinstance(first, MatMulAttrs)
    if replace(q_rope, n_heads=k_rope.n_heads) != k_rope:
        return None
    norms = [p.norm.attrs if p.norm is not None else None for p in (q, k)]
    if norms[0] != norms[1]:
        return None
    weights = tuple(p.matmul.weights[0] for p in (q, k, v))
    if first.bias:
        weights += tuple(p.matmul.weights[1] for p in (q, k, v))
    eps = None
    if q.norm is not None and k.norm is not None:
        assert isinstance(q.norm.attrs, NormAttrs)
        if q.norm.attrs.width != q_rope.head_dim:
            return None  # a norm over all heads together
        weights += (*q.norm.weights, *k.norm.weights)
        eps = q.norm.attrs.eps
    fused = replace(
        store,
        op="fused_qkv",
        srcs=(q.matmul.srcs[0], q.rope.srcs[1], store.srcs[2]),
        weights=weights,
        attrs=FusedQKVAttrs(
            state=store.attrs.state,
            n_heads=q_rope.n_heads,
            n_kv_heads=k_rope.n_heads,
            head_dim=q_rope.head_dim,
            rope=q_rope.rope,
            single_rows=first.single_rows,
            bias=first.bias,
            norm_eps=eps,
        ),
        shape=q.rope.shape,
        dtype=q.rope.dtype,
        name=f"blk.{store.layer}.qkv" if store.layer is not None else "qkv",
    )
    return Match(fused, q.ids | k.ids | v.ids | {store.id}, q.rope.id)
