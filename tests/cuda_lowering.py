"""A graph's launches without a GPU, over made-up addresses. Not a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minfer.backends import Split
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.foresight import resident
from minfer.backends.cuda.joins import joins
from minfer.backends.cuda.kv import KVState
from minfer.backends.cuda.launch import Launch, check_geometry, convert_args
from minfer.backends.cuda.ops import OPS, lowered
from minfer.backends.cuda.ops.base import Context
from minfer.graph import Graph
from minfer.scheduler import Plan
from minfer.settings import Settings

H200 = Facts("H200", (9, 0), 132, 227 << 10, 60 << 20, 140 << 30)
CARDS = [
    H200,
    Facts("A100", (8, 0), 108, 163 << 10, 40 << 20, 80 << 30),
    Facts("RTX 4090", (8, 9), 128, 99 << 10, 72 << 20, 24 << 30),
    Facts("RTX 5090", (12, 0), 170, 99 << 10, 96 << 20, 32 << 30),
]


def lower(graph: Graph, facts: Facts = H200, **settings: Any) -> list[Launch]:
    """Every node's launches, over made-up addresses, checked as the device would; nothing melts."""
    launches: list[Launch] = []
    offsets = {node.id: 256 * node.id for node in graph.nodes}
    for node in graph.nodes:
        if node.op != "input":
            launches += _lower(Split(graph, (node.id,), offsets), facts, settings)
    return launches


def lower_plan(plan: Plan, facts: Facts = H200, **settings: Any) -> list[Launch]:
    """The launches of a plan's splits on the GPU, as the backend would make them."""
    launches: list[Launch] = []
    for segment in plan.segments:
        if segment.backend == "cuda":
            split = Split(plan.graph, segment.nodes, plan.offsets["cuda"])
            launches += _lower(split, facts, settings)
    return launches


def _lower(split: Split, facts: Facts, settings: Mapping[str, Any]) -> list[Launch]:
    graph = split.graph
    context = Context(
        graph=graph,
        facts=facts,
        settings=Settings(**settings),
        base=1 << 32,
        offsets=split.offsets,
        weights=lambda key: 1 << 36,
        states={name: KVState(spec, 1 << 34) for name, spec in graph.states.items()},
        joins=joins(split, facts, Settings(**settings)),
        constant=lambda array: 1 << 35,
        find=resident(split, facts, Settings(**settings)),
        scratch=lambda nbytes, name="work": 1 << 37,
        counters=lambda count: 1 << 38,
    )
    launches: list[Launch] = []
    for node, made in lowered(split.nodes, context):
        reason = OPS[node.op].supports(node, graph)
        assert reason is None, reason
        launches += made
    for launch in launches:
        convert_args(launch)
        check_geometry(launch, facts.shared_limit)
    return launches
