"""Running a plan: weights made resident, splits compiled once, then one loop of calls a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends import Split, Weight
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
    """Make every weight of the plan resident on its node's backend.

    Args:
        progress: called with (nodes done, nodes in all).

    Returns:
        Bytes taken on each backend.
    """
    taken: dict[str, int] = dict.fromkeys(plan.used, 0)
    nodes = [n for n in plan.graph.nodes if n.weights]
    for done, node in enumerate(nodes):
        if progress:
            progress(done, len(nodes))
        name = plan.backend_of[node.id]
        taken[name] += plan.backend(name).load(node, weights)
    if progress:
        progress(len(nodes), len(nodes))
    return taken


class CompiledPlan:
    """A plan bound to its backends' memory. Weights and states must be there before.

    `inputs` are host arrays to fill before `run`; they are sent in one upload a backend.
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
        self._steps = self._compile(node_by_node)

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

    def enqueue_after_itself(self, rows: int) -> None:
        """Start another step whose first `rows` token ids are what the last one's output will be.

        Nothing waits: the ids go from output to input on the device. Only for plans that choose
        tokens on one backend, and only right after a step of this very plan.
        """
        (name,) = self.plan.used
        backend, offsets = self.plan.backend(name), self.plan.offsets[name]
        chosen = self.plan.graph.outputs[0]
        ids = self.plan.graph.inputs["token_ids"]
        backend.upload(0, self._host)
        backend.move(offsets[chosen], offsets[ids.id], rows * ids.dtype.block_bytes)
        for _node, step in self._steps:
            step()

    def fetch(self, rows: int) -> Callable[[], Array]:
        """Ask for the leading rows of the output of the step just started; the result waits."""
        node = self.plan.graph.nodes[self.plan.graph.outputs[0]]
        name = self.plan.backend_of[node.id]
        return self.plan.backend(name).fetch(
            self.plan.offsets[name][node.id], (rows, *node.shape[1:]), NUMPY_TYPES[node.dtype]
        )

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

    def _compile(self, node_by_node: bool) -> list[tuple[Node | None, Callable[[], None]]]:
        steps: list[tuple[Node | None, Callable[[], None]]] = []
        graph: Graph = self.plan.graph
        for segment in self.plan.segments:
            steps += [(None, self._copy(c)) for c in segment.copies]
            backend = self.plan.backend(segment.backend)
            offsets = self.plan.offsets[segment.backend]
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
