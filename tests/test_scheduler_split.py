"""Cutting a plan between backends: maximal runs, each value copied once, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from backends_fake import PartialReference
from tiny_models import expected, generate, make_engine, tiny

from minfer.backends.reference import ReferenceBackend
from minfer.dtypes import F16, F32
from minfer.graph import Node
from minfer.models import StepShape, build_decoder, model_config
from minfer.scheduler import Device, Plan, make_plan
from minfer.settings import Settings

SHAPE = StepShape(2, 8, 3, 1, 4, 4, F16)


def offloaded(name: str, n_layers: int) -> Plan:
    devices = [Device(PartialReference("first"), n_layers), Device(ReferenceBackend())]
    graph = build_decoder(model_config(tiny(name)), SHAPE)
    return make_plan(graph, devices, Settings(verify=True))


def check_segments(plan: Plan) -> None:
    """Every node runs once, in order; a value from elsewhere arrives before it is read, once."""
    run = [i for s in plan.segments for i in s.nodes]
    assert run == [n.id for n in plan.graph.nodes if n.op != "input"]
    for a, b in zip(plan.segments, plan.segments[1:], strict=False):
        assert a.backend != b.backend
    arrived: set[tuple[int, str]] = set()
    for segment in plan.segments:
        for copy in segment.copies:
            assert (copy.node, copy.target) not in arrived
            assert copy.source == plan.backend_of[copy.node] != copy.target == segment.backend
            arrived.add((copy.node, copy.target))
        for index in segment.nodes:
            for src in plan.graph.nodes[index].srcs:
                home = plan.backend_of[src]
                local = home in ("", segment.backend) or not plan.graph.nodes[src].nbytes
                assert local or (src, segment.backend) in arrived
            assert index in plan.offsets[segment.backend] or not plan.graph.nodes[index].nbytes


def test_one_backend_makes_one_segment_without_copies() -> None:
    graph = build_decoder(model_config(tiny("qwen3")), SHAPE)
    plan = make_plan(graph, [Device(ReferenceBackend())], Settings())
    assert [(s.backend, s.copies) for s in plan.segments] == [("reference", ())]


@pytest.mark.parametrize("n_layers", range(7))
def test_the_first_layers_on_another_backend(n_layers: int) -> None:
    plan = offloaded("gemma3", n_layers)
    check_segments(plan)
    # embed, then the offloaded blocks, then the rest
    assert len(plan.segments) == (1 if n_layers == 0 else 3)
    copies = [plan.graph.nodes[c.node].name for s in plan.segments for c in s.copies]
    back = f"blk.{n_layers - 1}.post_ffw_norm"
    assert copies == ([] if n_layers == 0 else ["embed", back])


def test_nodes_that_alternate_are_copied_once_each() -> None:
    def refuses(node: Node) -> str | None:
        return "not here" if node.op in ("rope", "gated", "rows") else None

    devices = [Device(PartialReference("first", refuses)), Device(ReferenceBackend())]
    graph = build_decoder(model_config(tiny("llama")), SHAPE)
    plan = make_plan(graph, devices, Settings(verify=True))
    check_segments(plan)
    assert len(plan.segments) > 6


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
def test_any_split_gives_the_same_logits(name: str) -> None:
    ids = expected(name)["ids"].tolist()[:24]
    whole = make_engine(name, cache_type=F32).forward(ids)
    for n_layers in range(len(model_config(tiny(name)).layers) + 1):
        devices = [Device(PartialReference("first"), n_layers), Device(ReferenceBackend())]
        engine = make_engine(name, devices, cache_type=F32)
        np.testing.assert_array_equal(engine.forward(ids), whole)
        assert set(engine.weight_bytes) == ({"first", "reference"} if n_layers else {"reference"})


def test_ops_moved_one_by_one_give_the_same_tokens() -> None:
    prompt = expected("qwen3")["ids"].tolist()[:20]
    whole = generate(make_engine("qwen3"), prompt)
    for op in ("attention", "kv_store", "gated", "rms_norm", "rows", "rope", "embed"):
        first = PartialReference("first", lambda n, op=op: "no" if n.op == op else None)
        engine = make_engine("qwen3", [Device(first), Device(ReferenceBackend())])
        assert generate(engine, prompt) == whole, op


def test_shared_pages_are_copied_on_every_backend() -> None:
    prompt = expected("gemma3")["ids"].tolist()[:100]
    devices = [Device(PartialReference("first"), 3), Device(ReferenceBackend())]
    engine = make_engine("gemma3", devices)
    first = generate(engine, prompt)
    assert generate(engine, prompt) == first
    assert engine.counters.cached_tokens == len(prompt) - 1
