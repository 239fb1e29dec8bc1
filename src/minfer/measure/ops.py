"""Which op the time of a step goes to: nodes timed one by one and added up by op and weight type.

A node is timed with a wait before and after it, so a step measured this way takes longer than one
that runs whole; the shares are what counts. CUDA graphs are off, as a graph has no nodes to time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minfer.engine import Chunk, Engine
from minfer.graph import Graph, Node, costs
from minfer.measure.cases import Case, Setup
from minfer.measure.floor import Floor
from minfer.scheduler import CompiledPlan
from minfer.trace import load_of, timed_nodes

STEPS = 8
"""Steps timed, after as many whose times are thrown away; the least of each node counts."""


@dataclass(frozen=True)
class OpTime:
    """What all nodes of one kind took in a step.

    Attributes:
        op: the op, and the type of its matrix if it has one: `matmul q4_K`.
        calls: nodes.
        seconds: of all of them, by the device's clock.
        nbytes, flops: what they had to move and compute at least.
        floor_seconds: the least time the machine allows for them; None where it is not known.
    """

    op: str
    calls: int
    seconds: float
    nbytes: int
    flops: int
    floor_seconds: float | None


class _Timer:
    """A watcher that keeps the least time of every node."""

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self.seconds: dict[int, float] = {}
        self.cost: dict[int, tuple[int, int]] = {}

    def run(self, compiled: CompiledPlan, chunks: Sequence[Chunk]) -> None:
        graph = compiled.plan.graph
        if graph is not self.graph:  # another shape of step: what came before was the way to it
            self.graph = graph
            self.seconds.clear()
        by_node = costs(graph, load_of(compiled, chunks))
        for node, _, seconds in timed_nodes(compiled):
            self.seconds[node.id] = min(seconds, self.seconds.get(node.id, seconds))
            self.cost[node.id] = (by_node[node.id].nbytes, by_node[node.id].flops)


def time_ops(engine: Engine, setup: Setup, test: Case, floor: Floor | None) -> list[OpTime]:
    """Where the time of a typical step of a test goes, longest first.

    The step is one of generation, where the test generates, else one of `n_ubatch` prompt rows.
    """
    timer = _Timer()
    random = np.random.default_rng(0)
    n_rows = min(setup.n_ubatch, setup.n_batch, test.n_prompt)
    before = test.n_depth + (test.n_prompt if test.n_gen else 0)
    ids = random.integers(0, engine.model.n_vocab, before + max(n_rows, 1) + 2 * STEPS).tolist()
    engine.watch(None)
    with engine.lane(len(ids)) as lane:
        if before:
            lane.compute(ids[:before])
        engine.watch(timer)
        try:
            for round_ in range(2 * STEPS):
                if round_ == STEPS:
                    timer.seconds.clear()
                lane.rewind(before)
                if test.n_gen:
                    lane.compute(ids[:1], single=True)
                else:
                    lane.compute(ids[before : before + n_rows])
        finally:
            engine.watch(None)
    assert timer.graph is not None
    return _by_kind(timer.graph, timer, floor)


def _by_kind(graph: Graph, timer: _Timer, floor: Floor | None) -> list[OpTime]:
    kinds: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.id in timer.seconds:
            kinds.setdefault(kind_of(graph, node), []).append(node)
    found = []
    for kind, nodes in kinds.items():
        nbytes = sum(timer.cost[n.id][0] for n in nodes)
        flops = sum(timer.cost[n.id][1] for n in nodes)
        least = None
        if floor is not None:
            least = sum(floor.node_seconds(graph, n, *timer.cost[n.id])[0] for n in nodes)
        seconds = sum(timer.seconds[n.id] for n in nodes)
        found.append(OpTime(kind, len(nodes), seconds, nbytes, flops, least))
    return sorted(found, key=lambda row: -row.seconds)


def kind_of(graph: Graph, node: Node) -> str:
    """An op and the types of its matrices."""
    types = [graph.weights[w].dtype.name for w in node.weights if len(graph.weights[w].shape) == 2]
    return " ".join([node.op, "+".join(dict.fromkeys(types))]).rstrip()
