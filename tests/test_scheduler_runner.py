"""Running a plan: random graphs planned, placed and split give what plain evaluation gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends_fake import Lagging, PartialReference
from graphs import builder
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from minfer.backends import Weight
from minfer.backends.reference import ReferenceBackend, ops
from minfer.dtypes import F32
from minfer.errors import GraphError
from minfer.graph import GatedAttrs, Graph, Node, WeightSpec
from minfer.scheduler import CompiledPlan, Copy, Device, Plan, Started, load_weights, make_plan
from minfer.settings import Settings

Array = NDArray[Any]
WIDTHS = (4, 12)
RNG = np.random.default_rng(7)
VALUES: dict[str, Array] = {
    f"{a}x{b}": RNG.standard_normal((b, a), dtype=np.float32) for a in WIDTHS for b in WIDTHS
} | {f"norm{a}": RNG.standard_normal(a, dtype=np.float32) for a in WIDTHS}
SPECS = {name: WeightSpec(F32, v.shape[::-1]) for name, v in VALUES.items()}
WEIGHTS = {
    name: Weight(name, SPECS[name], np.frombuffer(v.tobytes(), np.uint8))
    for name, v in VALUES.items()
}
ROWS = 5

NAIVE: dict[str, Callable[[Node, list[Array], list[Array]], Array]] = {
    "matmul": lambda n, s, w: ops.matmul(s[0], w[0], None, s[1] if len(s) > 1 else None),
    "rms_norm": lambda n, s, w: ops.rms_norm(s[0], w[0], 1e-6),
    "gated": lambda n, s, w: ops.gated(s[0], s[1], "silu"),
    "add": lambda n, s, w: s[0] + s[1],
    "mul": lambda n, s, w: s[0] * s[1],
    "scale": lambda n, s, w: s[0] * np.float32(0.5),
    "softcap": lambda n, s, w: ops.softcap(s[0], 3.0),
    "rows": lambda n, s, w: s[0][s[1]],
}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random graph of element-wise ops, products, norms and row choices."""
    g = builder(SPECS, {})
    index = g.input("index", (ROWS,))
    values = [g.input(f"in{w}", (ROWS, w), F32) for w in WIDTHS]
    pick = lambda: draw(st.sampled_from(values))  # noqa: E731
    for i in range(draw(st.integers(1, 18))):
        a, name = pick(), f"n{i}"
        same = [v for v in values if v.shape == a.shape]
        b = draw(st.sampled_from(same))
        out = draw(st.sampled_from(WIDTHS))
        made: list[Callable[[], Node]] = [
            lambda: g.add(a, b, name),  # noqa: B023
            lambda: g.mul(a, b, name),  # noqa: B023
            lambda: g.gated(a, b, GatedAttrs("silu"), name),  # noqa: B023
            lambda: g.scale(a, 0.5, name),  # noqa: B023
            lambda: g.softcap(a, 3.0, name),  # noqa: B023
            lambda: g.rms_norm(a, f"norm{a.shape[1]}", name, 1e-6),  # noqa: B023
            lambda: g.matmul(a, f"{a.shape[1]}x{out}", name, 0),  # noqa: B023
            lambda: g.rows(a, index, name),  # noqa: B023
        ]
        values.append(draw(st.sampled_from(made))())
    computed = values[len(WIDTHS) :]
    outputs = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=3, unique=True))
    return g.build(*outputs)


def evaluate(graph: Graph, inputs: dict[str, Array]) -> list[Array]:
    """Every node's value, each in an array of its own."""
    values: list[Array] = []
    for node in graph.nodes:
        if node.op == "input":
            values.append(inputs[node.name])
        else:
            srcs = [values[s] for s in node.srcs]
            values.append(NAIVE[node.op](node, srcs, [VALUES[w] for w in node.weights]))
    return values


def made_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, ROWS, ROWS, np.int32)
        if name == "index"
        else random.standard_normal(node.shape, dtype=np.float32)
        for name, node in graph.inputs.items()
    }


def compiled(graph: Graph, refused: frozenset[int], node_by_node: bool = False) -> CompiledPlan:
    """The nodes of `refused` run on a second backend."""
    names = {graph.nodes[i].name for i in refused}
    first = PartialReference("first", lambda n: "moved" if n.name in names else None)
    # the gate for weights would move everything: it is tested elsewhere
    second = ReferenceBackend()
    plan = make_plan(graph, [Device(first), Device(second)], Settings(verify=True))
    load_weights(plan, WEIGHTS)
    return CompiledPlan(plan, node_by_node=node_by_node)


@given(graph=graphs(), data=st.data(), node_by_node=st.booleans())
def test_a_planned_graph_gives_what_plain_evaluation_gives(
    graph: Graph, data: st.DataObject, node_by_node: bool
) -> None:
    movable = [n.id for n in graph.nodes if n.op != "input" and not n.weights]
    refused = data.draw(st.frozensets(st.sampled_from(movable or [0])))
    program = compiled(graph, refused, node_by_node)
    for seed in (1, 2):  # the second run meets what the first left in the arena
        inputs = made_inputs(graph, seed)
        for name, values in inputs.items():
            program.inputs[name][...] = values
        program.enqueue()
        right = evaluate(graph, inputs)
        for index, node in enumerate(graph.outputs):
            np.testing.assert_array_equal(program.output(index), right[node])


def small() -> Graph:
    g = builder(SPECS, {})
    x = g.input("in4", (ROWS, 4), F32)
    y = g.matmul(x, "4x12", "y", 0)
    return g.build(g.rms_norm(y, "norm12", "z", 1e-6))


def test_rows_limit_an_output() -> None:
    program = compiled(small(), frozenset())
    program.inputs["in4"][...] = 1.0
    program.enqueue()
    assert program.output(rows=2).shape == (2, 12)
    np.testing.assert_array_equal(program.output(rows=2), program.output()[:2])


def test_a_moved_arena_makes_a_plan_stale() -> None:
    program = compiled(small(), frozenset())
    assert program.is_current()
    program.plan.backend("first").reserve(1 << 20)
    assert not program.is_current()


@given(
    chains=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    sends_late=st.booleans(),
    fetches_late=st.booleans(),
    reads=st.booleans(),
)
def test_steps_of_a_chain_meet_their_own_inputs(
    chains: list[int], sends_late: bool, fetches_late: bool, reads: bool
) -> None:
    """Whenever copies beside the work are made, and though chains end with a step under way."""
    g = builder(SPECS, {})
    sums, more = g.input("sums", (ROWS, 4), F32), g.input("more", (ROWS, 4), F32)
    graph = g.build(g.scale(g.add(sums, more, "both"), 0.5, "halved"), feeds=sums)
    backend = Lagging(sends_late=sends_late, fetches_late=fetches_late)
    plan = make_plan(graph, [Device(backend)], Settings(verify=True))
    program, other = CompiledPlan(plan), CompiledPlan(plan)  # they share an arena
    right, found = [], []
    for number, n_steps in enumerate(chains):
        program, other = other, program
        step: Started | None = None
        expected = np.full((ROWS, 4), number, np.float32)
        program.inputs["sums"][...] = expected
        for n in range(n_steps):
            program.inputs["more"][...] = 10 * n + number
            step = program.start_after(step, ROWS) if step else program.start(ROWS)
            found.append(step.output)
            expected = (expected + np.float32(10 * n + number)) * np.float32(0.5)
            right.append(expected)
            if n >= 1 and reads:
                np.testing.assert_array_equal(found[-2](), right[-2])
        if fetches_late:  # the next chain may write there
            del found[-2:], right[-2:]
    program.plan.backend("reference").download(0, (1,), np.dtype(np.float32))
    for arrived, values in zip(found, right, strict=True):
        np.testing.assert_array_equal(arrived(), values)


def test_node_by_node_gives_each_node_a_step() -> None:
    program = compiled(small(), frozenset(), node_by_node=True)
    assert [n.name for n, _ in program.steps() if n is not None] == ["y", "z"]
    assert [n for n, _ in compiled(small(), frozenset()).steps()] == [None]


def test_weights_are_loaded_once_with_progress() -> None:
    plan = make_plan(small(), [Device(ReferenceBackend())], Settings())
    seen: list[tuple[int, int]] = []
    taken = load_weights(plan, WEIGHTS, lambda done, total: seen.append((done, total)))
    assert taken == {"reference": 4 * (4 * 12 + 12)}
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert load_weights(plan, WEIGHTS) == {"reference": 0}


def test_a_copy_within_a_backend_is_a_defect() -> None:
    from dataclasses import replace

    plan: Plan = compiled(small(), frozenset()).plan
    (segment,) = plan.segments
    bad = replace(segment, copies=(Copy(1, "first", "first"),))
    with pytest.raises(GraphError, match="copy of y within first"):
        CompiledPlan(replace(plan, segments=(bad,)))
