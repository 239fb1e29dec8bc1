"""Running a plan: weights made resident, splits compiled once, then one loop of calls a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends import Split, Weight, aligned
from minfer.dtypes import F32, I32, DType
from minfer.errors import GraphError
from minfer.graph import Graph, Node
from minfer.scheduler.plan import Copy, Plan

Array = NDArray[Any]

NUMPY_TYPES: dict[DType, np.dtype[Any]] = {F32: np.dtype(np.float32), I32: np.dtype(np.int32)}


def load_weights(
    plan: Plan,
    weights: Mapping[str, Weight],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Make every weight of the plan resident on its node's backend, the last node's first.

    Args:
        progress: called with (nodes done, nodes in all).

    Returns:
        Bytes taken on each backend.
    """
    taken: dict[str, int] = dict.fromkeys(plan.used, 0)
    nodes = [n for n in reversed(plan.graph.nodes) if n.weights]
    for done, node in enumerate(nodes):
        if progress:
            progress(done, len(nodes))
        name = plan.backend_of[node.id]
        taken[name] += plan.backend(name).load(node, weights)
    if progress:
        progress(len(nodes), len(nodes))
    return taken


@dataclass(frozen=True, slots=True)
class Started:
    """A step of a chain, once it was started: see `CompiledPlan`.

    Attributes:
        on_other_side: whether its inputs are in the second of their places.
        output: waits for the leading rows of its output.
        before: waits for those of the step before it; None if it is the first.
    """

    on_other_side: bool
    output: Callable[[], Array]
    before: Callable[[], Array] | None


class CompiledPlan:
    """A plan bound to its backends' memory. Weights and states must be there before.

    `inputs` are host arrays to fill before a step; they are sent in one upload a backend.

    Steps started one after another without waiting, a chain, take turns in where their inputs lie:
    while a step runs, those of the next are on their way already, and the ids it chooses are put
    where the next reads them.
    """

    def __init__(self, plan: Plan, *, node_by_node: bool = False) -> None:
        self.plan = plan
        self._generations = {
            name: plan.backend(name).reserve(nbytes) for name, nbytes in plan.arena_bytes.items()
        }
        self._host = np.zeros(plan.input_bytes, np.uint8)
        self.inputs: dict[str, Array] = {
            name: self._input_view(node) for name, node in plan.graph.inputs.items()
        }
        self._steps = self._compile(plan.offsets, node_by_node)

    def is_current(self) -> bool:
        """Whether the arenas are still where they were at compile time."""
        return all(
            self.plan.backend(name).reserve(0) == generation
            for name, generation in self._generations.items()
        )

    def enqueue(self) -> None:
        """Send the inputs and start the step."""
        self.upload_inputs()
        for _node, step in self._steps:
            step()

    def start(self, rows: int) -> Started:
        """`enqueue` the first step of a chain, and ask for the leading rows of its output."""
        self.enqueue()
        return self._started(rows, False, None)

    def start_after(self, last: Started, rows: int) -> Started:
        """Start another step, one of whose inputs is what the output of `last` will be.

        The other inputs go beside the step under way into a place that it does not read. The last
        step that did is the one before it: its output has arrived before anything is sent, waited
        for here if need be: so two steps of a chain are under way at most. Only for a graph that
        feeds an input, whole on one backend, and `last` is the last work of any plan on it.

        A call that was interrupted, as by Ctrl-C, may be made again: it does what it did.
        """
        (name,) = self.plan.used
        backend = self.plan.backend(name)
        fed = self.plan.graph.inputs[self.plan.graph.feeds]
        on_other_side = not last.on_other_side
        start = self.plan.input_bytes if on_other_side else 0
        if last.before is None:  # what ran before the chain may be under way, and use the place
            send = backend.upload
        else:
            last.before()
            send = backend.send
        # not over the ids, which are being chosen: they are the first of the inputs
        skipped = self.plan.offsets[name][fed.id] + aligned(fed.nbytes)
        send(start + skipped, self._host[skipped:])
        for _node, step in self._other_steps if on_other_side else self._steps:
            step()
        return self._started(rows, on_other_side, last.output)

    @cached_property
    def _other_steps(self) -> list[tuple[Node | None, Callable[[], None]]]:
        return self._compile(self._other_offsets, node_by_node=False)

    @cached_property
    def _other_offsets(self) -> Mapping[str, Mapping[int, int]]:
        return {name: self.plan.other_side(name) for name in self.plan.used}

    def _started(
        self, rows: int, on_other_side: bool, before: Callable[[], Array] | None
    ) -> Started:
        node = self.plan.graph.nodes[self.plan.graph.outputs[0]]
        name = self.plan.backend_of[node.id]
        offsets = self._other_offsets if on_other_side else self.plan.offsets
        output = self.plan.backend(name).fetch(
            offsets[name][node.id], (rows, *node.shape[1:]), NUMPY_TYPES[node.dtype]
        )
        return Started(on_other_side, output, before)

    def output(self, index: int = 0, rows: int | None = None) -> Array:
        """Wait for an output; `rows` limits it to the leading ones."""
        return self.read(self.plan.graph.nodes[self.plan.graph.outputs[index]], rows)

    def read(self, node: Node, rows: int | None = None) -> Array:
        """Wait for a node's value; valid until a later node takes its memory."""
        name = self.plan.backend_of[node.id]
        shape = node.shape if rows is None else (rows, *node.shape[1:])
        return self.plan.backend(name).download(
            self.plan.offsets[name][node.id], shape, NUMPY_TYPES[node.dtype]
        )

    def steps(self) -> list[tuple[Node | None, Callable[[], None]]]:
        """What `enqueue` calls, in order; the node is None for copies and whole splits."""
        return self._steps

    @property
    def n_launches(self) -> int:
        """Kernels a step launches, where its backends count them; else calls."""
        return sum(len(step) if isinstance(step, Sized) else 1 for _, step in self._steps)

    def upload_inputs(self) -> None:
        """Send the inputs; a tracer then calls `steps` one by one."""
        for name in self.plan.used:
            self.plan.backend(name).upload(0, self._host)

    def _input_view(self, node: Node) -> Array:
        start = next(iter(self.plan.offsets.values()))[node.id]
        raw = self._host[start : start + node.nbytes]
        return raw.view(NUMPY_TYPES[node.dtype]).reshape(node.shape)

    def _compile(
        self, all_offsets: Mapping[str, Mapping[int, int]], node_by_node: bool
    ) -> list[tuple[Node | None, Callable[[], None]]]:
        steps: list[tuple[Node | None, Callable[[], None]]] = []
        graph: Graph = self.plan.graph
        for segment in self.plan.segments:
            steps += [(None, self._copy(c)) for c in segment.copies]
            backend = self.plan.backend(segment.backend)
            offsets = all_offsets[segment.backend]
            if node_by_node:
                for i in segment.nodes:
                    steps.append((graph.nodes[i], backend.compile(Split(graph, (i,), offsets))))
            else:
                steps.append((None, backend.compile(Split(graph, segment.nodes, offsets))))
        return steps

    def _copy(self, copy: Copy) -> Callable[[], None]:
        node = self.plan.graph.nodes[copy.node]
        if copy.source == copy.target:
            raise GraphError(f"copy of {node.name} within {copy.source}", where="split")
        source, target = self.plan.backend(copy.source), self.plan.backend(copy.target)
        start = self.plan.offsets[copy.source][node.id]
        end = self.plan.offsets[copy.target][node.id]

        def run() -> None:
            target.upload(end, source.download(start, node.shape, NUMPY_TYPES[node.dtype]))

        return run
