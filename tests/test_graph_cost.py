"""Costs of nodes: counted by hand, summed over rows, and fused nodes against their chains."""

from __future__ import annotations

from dataclasses import replace

from graphs import HEAD, ROPE, ROWS, attention_graph, builder, matrix, vector
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_engine

from minfer.dtypes import F16, F32
from minfer.graph import AttentionAttrs, Cost, Load, RopeAttrs, costs, real_rows, total
from minfer.graph.cost import seen_cells, seen_pairs
from minfer.scheduler import Device, make_plan
from minfer.settings import Settings

ONE = Load(((0, ROWS),), ROWS)


def test_a_product_reads_its_weight_once_and_multiplies_each_row() -> None:
    g = builder({"w": matrix(8, 24)})
    graph = g.build(g.matmul(g.input("x", (ROWS, 8), F32), "w", "y", 0))
    for rows in (1, 3):
        cost = costs(graph, Load(((5, rows),), rows))[1]
        assert cost == Cost(2 * rows * 8 * 24, F16.nbytes(8 * 24), 0, 4 * rows * (8 + 24))


def test_an_embedding_reads_only_its_rows() -> None:
    g = builder({"table": matrix(8, 1000)})
    graph = g.build(g.embed(g.input("ids", (ROWS,)), "table", "e"))
    assert costs(graph, Load(((0, 3),), 1))[1] == Cost(0, 3 * 16, 0, 3 * 8 * 4)


@given(
    start=st.integers(0, 40),
    count=st.integers(1, 40),
    window=st.one_of(st.just(0), st.integers(1, 50)),
)
def test_what_rows_see_is_the_sum_over_them(start: int, count: int, window: int) -> None:
    seen = [
        range(max(0, p + 1 - window) if window else 0, p + 1) for p in range(start, start + count)
    ]
    assert seen_pairs(start, count, window) == sum(map(len, seen))
    assert seen_cells(start, count, window) == len({p for r in seen for p in r})


def test_attention_reads_the_cells_its_rows_see() -> None:
    graph = attention_graph()
    attention = next(n for n in graph.nodes if n.op == "attention")
    assert isinstance(attention.attrs, AttentionAttrs)
    load = Load(((9, 1), (0, 3)), 2)
    cost = costs(graph, load)[attention.id]
    cell = 2 * F16.nbytes(HEAD)
    assert cost.state_bytes == cell * (10 + 3)
    assert cost.flops == 4 * HEAD * (10 + 1 + 2 + 3)
    windowed = replace(attention, attrs=replace(attention.attrs, window=4))
    nodes = tuple(windowed if n is attention else n for n in graph.nodes)
    assert costs(replace(graph, nodes=nodes), load)[attention.id].state_bytes == cell * (4 + 3)


def test_rows_after_a_choice_of_rows_are_output_rows() -> None:
    g = builder({"w": matrix(8, 8)})
    x = g.input("x", (8, 8), F32)
    y = g.matmul(x, "w", "y", 0)
    z = g.rows(y, g.input("out", (8,)), "z")
    graph = g.build(g.add(z, z, "sum"))
    assert real_rows(graph, Load(((0, 7),), 2)) == (7, 7, 7, 2, 2)
    assert costs(graph, Load(((0, 7),), 2))[3] == Cost(0, 0, 0, 2 * 2 * 8 * 4)


def test_fusing_saves_activations_and_nothing_else() -> None:
    g = builder(
        {p: matrix(HEAD, HEAD) for p in ("q", "k", "v", "gate", "up")} | {"n": vector(HEAD)}
    )
    x = g.input("x", (ROWS, HEAD), F32)
    at, cells, table = g.input("at", (ROWS,)), g.input("cells", (ROWS,)), g.input("table", (1, 2))
    q, k, v = (g.matmul(x, p, p, 0) for p in ("q", "k", "v"))
    rope = RopeAttrs(1, HEAD, ROPE)
    stored = g.kv_store(g.rope(k, at, rope, "kr"), v, cells, "kv.0", "store")
    attrs = AttentionAttrs("kv.0", 1, 1, HEAD, 1.0, 0)
    a = g.attention(g.rope(q, at, rope, "qr"), at, at, table, stored, attrs, "a")
    plain = g.build(g.add(a, x, "sum"))

    from backends_fake import Recorder

    fused = make_plan(plain, [Device(Recorder())], Settings()).graph
    assert "fused_qkv" in {n.op for n in fused.nodes}
    before, after = total(costs(plain, ONE)), total(costs(fused, ONE))
    assert (before.flops, before.weight_bytes, before.state_bytes) == (
        after.flops,
        after.weight_bytes,
        after.state_bytes,
    )
    assert before.activation_bytes > after.activation_bytes


def test_a_decode_step_reads_every_weight_but_the_rest_of_the_table() -> None:
    engine = make_engine("llama")
    plan = engine.plan(1, 0)
    cost = total(costs(plan.graph, Load(((100, 1),), 1)))
    weights = {
        name: spec.dtype.nbytes(spec.shape[0] * (spec.shape[1] if len(spec.shape) > 1 else 1))
        for name, spec in plan.graph.weights.items()
    }
    everything = sum(weights.values())
    tied = sum(n.weights.count("token_embd.weight") for n in plan.graph.nodes) > 1
    table = 0 if tied else weights["token_embd.weight"]
    assert everything - table < cost.weight_bytes < everything - table + 4096
    engine.close()
