"""Addresses: no two values that live at the same time overlap, and the arena is not wasteful."""

from __future__ import annotations

from itertools import combinations

import pytest
from graphs import HEAD, ROWS, attention_graph, builder
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import TINY, tiny

from minfer.backends import ALIGNMENT
from minfer.backends.reference import ReferenceBackend
from minfer.dtypes import F16, F32
from minfer.graph import GatedAttrs, Graph
from minfer.models import StepShape, build_decoder, model_config
from minfer.scheduler import Device, Live, Plan, make_plan, place
from minfer.settings import Settings

lives = st.lists(
    st.builds(
        lambda start, length, nbytes: Live(start, start + length, nbytes),
        st.integers(0, 40),
        st.integers(0, 20),
        st.integers(1, 20_000),
    ),
    max_size=40,
)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@given(lives)
def test_live_buffers_never_overlap(buffers: list[Live]) -> None:
    offsets, total = place(buffers)
    assert len(offsets) == len(buffers)
    spans = [(o, o + b.nbytes) for o, b in zip(offsets, buffers, strict=True)]
    assert all(o % ALIGNMENT == 0 and o >= 0 for o in offsets)
    assert all(end <= total for _, end in spans)
    for (a, x), (b, y) in combinations(zip(buffers, spans, strict=True), 2):
        if a.start <= b.end and b.start <= a.end:
            assert x[1] <= y[0] or y[1] <= x[0]


@given(lives)
def test_the_total_is_near_what_lives_at_once(buffers: list[Live]) -> None:
    _, total = place(buffers)
    steps = range(70)
    most = max(
        (sum(aligned(b.nbytes) for b in buffers if b.start <= t <= b.end) for t in steps),
        default=0,
    )
    assert most <= total <= 2 * most


def test_no_buffers_take_no_room() -> None:
    assert place([]) == ([], 0)


def planned(graph: Graph) -> Plan:
    return make_plan(graph, [Device(ReferenceBackend())], Settings(verify=True))


def offsets_of(plan: Plan) -> dict[str, int]:
    (offsets,) = plan.offsets.values()
    return {plan.graph.nodes[i].name: at for i, at in offsets.items()}


def test_inputs_lead_the_arena_and_are_never_reused() -> None:
    plan = planned(attention_graph())
    at = offsets_of(plan)
    assert [at["x"], at["at"], at["table"]] == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert plan.input_bytes == 3 * ALIGNMENT
    assert min(v for k, v in at.items() if k not in plan.graph.inputs) >= plan.input_bytes
    assert "store" not in at  # nothing is stored for what only orders others


def test_steps_of_a_chain_take_turns_in_where_their_inputs_lie() -> None:
    config = model_config(tiny("llama"))
    graph = build_decoder(config, StepShape(4, 0, 4, 4, 4, 4, F16, sampled=True))
    plan = planned(graph)
    (one,), two = plan.offsets.values(), plan.other_side("reference")
    graph = plan.graph  # fused
    ids, chosen = graph.inputs["token_ids"].id, graph.outputs[0]
    assert (one[chosen], two[chosen]) == (two[ids], one[ids])
    inputs = {node.id for node in graph.inputs.values()}
    assert {two[i] - one[i] for i in inputs} == {plan.input_bytes}
    assert all(two[i] == one[i] for i in one if i not in inputs and i != chosen)
    values = [at for i, at in one.items() if i not in inputs and i != chosen]
    assert min(values) == 2 * plan.input_bytes


def test_an_op_works_in_place_only_where_nobody_else_looks() -> None:
    g = builder()
    x = g.input("x", (ROWS, HEAD), F32)
    once = g.scale(x, 2.0, "once")
    alone = g.scale(once, 3.0, "alone")  # the only reader of `once`
    shared = g.scale(alone, 4.0, "shared")  # the only reader of `alone`
    left = g.scale(shared, 5.0, "left")  # `shared` has two readers
    right = g.add(shared, left, "right")
    self_gated = g.gated(right, right, GatedAttrs("silu"), "self_gated")  # reads it twice
    at = offsets_of(planned(g.build(self_gated, left)))
    assert at["once"] == at["alone"] == at["shared"]
    assert len({at["shared"], at["left"], at["right"]}) == 3
    assert at["self_gated"] != at["right"]


def test_what_the_host_reads_stays_until_the_end() -> None:
    g = builder()
    x = g.input("x", (ROWS, HEAD), F32)
    seen = g.scale(x, 2.0, "seen")
    y = g.scale(seen, 2.0, "y")
    for index in range(4):
        y = g.add(y, x, f"y{index}")
    at = offsets_of(planned(g.build(y, seen)))
    assert all(at[n] != at["seen"] for n in at if n != "seen")


@pytest.mark.parametrize("name", TINY)
def test_a_model_needs_few_buffers(name: str) -> None:
    config = model_config(tiny(name))
    plan = planned(build_decoder(config, StepShape(0, 256, 1, 1, 4, 4, F16)))
    (nbytes,) = plan.arena_bytes.values()
    widest = max(n.nbytes for n in plan.graph.nodes)
    assert nbytes - 2 * plan.input_bytes <= 5 * widest
