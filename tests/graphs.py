"""Small graphs for the tests of graphs and their planning: builders with weights made up."""

from __future__ import annotations

from collections.abc import Mapping

from minfer.dtypes import F16, F32, DType
from minfer.graph import (
    AttentionAttrs,
    Graph,
    GraphBuilder,
    KVSpec,
    RopeAttrs,
    RopeSpec,
    WeightSpec,
)

HEAD = 8
ROWS = 4
ROPE = RopeSpec("neox", tuple(10000.0 ** (-2 * i / HEAD) for i in range(HEAD // 2)))


def matrix(n_in: int, n_out: int, dtype: DType = F16) -> WeightSpec:
    return WeightSpec(dtype, (n_in, n_out))


def vector(n: int) -> WeightSpec:
    return WeightSpec(F32, (n,))


def kv(name: str = "kv.0", n_kv_heads: int = 1, head_dim: int = HEAD) -> KVSpec:
    return KVSpec(name, n_kv_heads, head_dim, F16, n_pages=2)


def builder(
    weights: Mapping[str, WeightSpec] | None = None, states: Mapping[str, KVSpec] | None = None
) -> GraphBuilder:
    return GraphBuilder(weights or {}, {"kv.0": kv()} if states is None else states)


def attention_graph() -> Graph:
    """x -> norm -> q -> rope -> store -> attention -> add; ids are in the comments."""
    g = builder({"q": matrix(HEAD, HEAD), "norm": vector(HEAD)})
    x = g.input("x", (ROWS, HEAD), F32)  # 0
    at = g.input("at", (ROWS,))  # 1
    table = g.input("table", (1, 2))  # 2
    h = g.rms_norm(x, "norm", "norm", 1e-6)  # 3
    q = g.matmul(h, "q", "q", 0)  # 4
    q = g.rope(q, at, RopeAttrs(1, HEAD, ROPE), "rope")  # 5
    stored = g.kv_store(h, h, at, "kv.0", "store")  # 6
    attrs = AttentionAttrs("kv.0", 1, 1, HEAD, 1.0, 0)
    a = g.attention(q, at, at, table, stored, attrs, "attention")  # 7
    return g.build(g.add(a, x, "add"))  # 8
