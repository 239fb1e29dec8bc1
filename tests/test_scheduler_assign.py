"""Who runs what: preference, layer limits, the all-weights gate, and reasons people can read."""

from __future__ import annotations

import pytest
from backends_fake import PartialReference, Supports
from tiny_models import tiny

from minfer.dtypes import F16
from minfer.errors import GraphError, UnsupportedError
from minfer.graph import Graph, Node
from minfer.models import StepShape, build_decoder, model_config
from minfer.scheduler import Device, Plan, make_plan, planner
from minfer.settings import Settings


def graph() -> Graph:
    return build_decoder(model_config(tiny("gemma3")), StepShape(1, 8, 1, 1, 4, 4, F16))


def plan(*devices: tuple[Supports, int | None]) -> Plan:
    made = [
        Device(PartialReference(f"b{i}", supports), n) for i, (supports, n) in enumerate(devices)
    ]
    return make_plan(graph(), made, Settings(verify=True))


def anything(node: Node) -> None:
    return None


def refuse(text: str) -> Supports:
    return lambda node: f"no {text} here" if text in f"{node.op} {node.name}" else None


def homes(plan: Plan) -> dict[str, str]:
    return {n.name: plan.backend_of[n.id] for n in plan.graph.nodes if n.op != "input"}


def test_the_first_choice_takes_everything_it_may() -> None:
    found = plan((anything, None), (refuse("matmul"), None))
    assert set(homes(found).values()) == {"b0"}
    assert not found.reasons  # that b1 cannot do matmul concerns nobody


@pytest.mark.parametrize("n_layers", range(7))
def test_a_layer_limit_gives_the_first_blocks(n_layers: int) -> None:
    found = plan((anything, n_layers), (anything, None))
    for node in found.graph.nodes:
        if node.op == "input":
            continue
        inside = node.layer is not None and node.layer < n_layers
        assert found.backend_of[node.id] == ("b0" if inside else "b1")
        reason = "" if inside else f" (b0: beyond its {n_layers} layers)"
        assert found.describe(node) == f"@{found.backend_of[node.id]}{reason}"


def test_one_weight_without_a_kernel_shuts_a_device_out_and_is_named() -> None:
    found = plan((refuse("blk.3.ffn_up"), None), (anything, None))
    assert set(homes(found).values()) == {"b1"}
    assert set(found.reasons.values()) == {"b0: blk.3.ffn_up: no blk.3.ffn_up here"}


def test_a_weight_beyond_the_limit_does_not_shut_out() -> None:
    found = plan((refuse("blk.3.ffn_up"), 3), (anything, None))
    assert set(homes(found).values()) == {"b0", "b1"}


def test_an_op_without_weights_only_moves_itself() -> None:
    found = plan((refuse("gated"), None), (anything, None))
    moved = {name for name, home in homes(found).items() if home == "b1"}
    assert moved == {f"blk.{i}.ffn_gated" for i in range(6)}


@pytest.mark.parametrize("op", ["kv_store", "attention"])
def test_what_shares_a_state_stays_together(op: str) -> None:
    found = plan((refuse(f"blk.2.{op}"), None), (anything, None))
    moved = {name for name, home in homes(found).items() if home == "b1"}
    assert moved == {"blk.2.kv_store", "blk.2.attention"}


def test_a_node_nobody_runs_is_refused_with_every_reason() -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan((refuse("blk.0.attn_q"), None), (refuse("softmax or attention"), 2))
    assert caught.value.where == "embed embed"
    assert "b0: blk.0.attn_q: no blk.0.attn_q here" in caught.value.what
    assert "b1: beyond its 2 layers" in caught.value.what


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    def broken(plan: Plan) -> Plan:
        return replace(plan, graph=replace(plan.graph, outputs=(10_000,)))

    steps = planner.passes(Settings())
    monkeypatch.setattr(planner, "passes", lambda settings: [*steps[:1], ("cut", broken)])
    with pytest.raises(GraphError, match=r"output 10000 is not a node \(after cut\)"):
        plan((anything, None))
