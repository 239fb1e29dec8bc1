"""Pass 4: an address for every value, by liveness over the build order.

`place` is a pure function of intervals and sizes; its property (no two buffers that live at the
same time overlap) is what the tests check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from minfer.backends import aligned
from minfer.graph import OPS, Node
from minfer.scheduler.plan import Plan


@dataclass(frozen=True, slots=True)
class Live:
    """A buffer of `nbytes` that must exist from step `start` to step `end`, both included."""

    start: int
    end: int
    nbytes: int


def place(buffers: Sequence[Live]) -> tuple[list[int], int]:
    """Offsets for `buffers`, and the bytes they take in all.

    The largest is placed first, each at the lowest offset free during its life.
    """
    offsets = [0] * len(buffers)
    placed: list[int] = []
    total = 0
    for index in sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, i)):
        buffer = buffers[index]
        rivals = sorted(
            (offsets[i], offsets[i] + aligned(buffers[i].nbytes))
            for i in placed
            if buffers[i].start <= buffer.end and buffer.start <= buffers[i].end
        )
        offset = 0
        for start, end in rivals:
            if offset + aligned(buffer.nbytes) <= start:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append(index)
        total = max(total, offset + aligned(buffer.nbytes))
    return offsets, total


@dataclass(frozen=True, slots=True)
class Resident:
    """A buffer of an arena and who lives in it.

    Attributes:
        offset, nbytes: where it lies.
        start, end: nodes from which to which it is needed, both included.
        nodes: whose values it holds, one after another where they are computed in place.
    """

    offset: int
    nbytes: int
    start: int
    end: int
    nodes: tuple[int, ...]


def residents(plan: Plan, name: str) -> list[Resident]:
    """Every buffer of a backend's arena, inputs first, then in order of birth."""
    offsets = plan.offsets[name]
    last = len(plan.graph.nodes)
    found = [
        Resident(offsets[n.id], n.nbytes, 0, last, (n.id,))
        for n in plan.graph.nodes
        if n.op == "input"
    ]
    fed = _feeding(plan, name)
    if fed is not None:
        found.append(Resident(offsets[fed], plan.graph.nodes[fed].nbytes, fed, last, (fed,)))
    owner, lives = _lives(plan, name)
    for first, life in lives.items():
        nodes = tuple(node for node, held in owner.items() if held == first)
        found.append(Resident(offsets[first], life.nbytes, life.start, life.end, nodes))
    return found


def allocate(plan: Plan) -> Plan:
    """Fill `offsets`, `arena_bytes` and `input_bytes`. Inputs lead every arena, never reused.

    They have two places, for steps that take turns; what feeds an input is computed into the place
    that the step after reads.
    """
    inputs: dict[int, int] = {}
    input_bytes = 0
    for node in plan.graph.nodes:
        if node.op == "input":
            inputs[node.id] = input_bytes
            input_bytes += aligned(node.nbytes)
    offsets: dict[str, dict[int, int]] = {}
    arena_bytes: dict[str, int] = {}
    for name in plan.used:
        owner, lives = _lives(plan, name)
        values = list(lives)
        starts, total = place([lives[v] for v in values])
        at = {value: 2 * input_bytes + start for value, start in zip(values, starts, strict=True)}
        offsets[name] = inputs | {value: at[first] for value, first in owner.items()}
        fed = _feeding(plan, name)
        if fed is not None:
            offsets[name][fed] = input_bytes + inputs[plan.graph.inputs[plan.graph.feeds].id]
        arena_bytes[name] = 2 * input_bytes + total
    return replace(
        plan,
        offsets=MappingProxyType(offsets),
        arena_bytes=MappingProxyType(arena_bytes),
        input_bytes=input_bytes,
    )


def _feeding(plan: Plan, name: str) -> int | None:
    """The output that feeds an input, if this backend computes it."""
    graph = plan.graph
    feeds = graph.feeds and plan.backend_of[graph.outputs[0]] == name
    return graph.outputs[0] if feeds else None


def _lives(plan: Plan, name: str) -> tuple[dict[int, int], dict[int, Live]]:
    """For one backend: the buffer each value lives in (named by its first value), and its life."""
    graph = plan.graph
    last = len(graph.nodes)
    arrival = {c.node: s.nodes[0] for s in plan.segments for c in s.copies if c.target == name}
    owner: dict[int, int] = {}
    lives: dict[int, Live] = {}
    for node in graph.nodes:
        local = plan.backend_of[node.id] == name
        placed = node.op == "input" or node.id == _feeding(plan, name)
        if not node.nbytes or placed or not (local or node.id in arrival):
            continue
        end = max((r for r in graph.readers[node.id]), default=node.id)
        if node.id in graph.outputs:
            end = last
        shared = _in_place(plan, node, owner) if local else None
        if shared is None:
            owner[node.id] = node.id
            start = node.id if local else arrival[node.id]
            lives[node.id] = Live(start, end, node.nbytes)
        else:
            owner[node.id] = shared
            lives[shared] = replace(lives[shared], end=max(lives[shared].end, end))
    return owner, lives


def _in_place(plan: Plan, node: Node, owner: dict[int, int]) -> int | None:
    """The buffer `node` may overwrite: its first source's, if nobody else needs that value."""
    graph = plan.graph
    if not OPS[node.op].in_place:
        return None
    source = graph.nodes[node.srcs[0]]
    reusable = (
        source.id in owner
        and plan.backend_of[source.id] == plan.backend_of[node.id]
        and graph.readers[source.id] == (node.id,)
        and node.srcs.count(source.id) == 1
        and source.id not in graph.outputs
        and source.nbytes == node.nbytes
    )
    return owner[source.id] if reusable else None
