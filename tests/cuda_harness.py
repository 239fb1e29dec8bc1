"""Running a small graph on a backend, step by step, for the GPU tests and benches. Not a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minfer.backends import ALIGNMENT, Split, Weight
from minfer.graph import Graph


class Runner:
    """A graph placed on a backend, every output at an offset of its own."""

    def __init__(
        self, backend: Any, graph: Graph, weights: Mapping[str, Weight] | None = None
    ) -> None:
        self.backend, self.graph = backend, graph
        self.offsets: dict[int, int] = {}
        end = 0
        for node in graph.nodes:
            if node.nbytes:
                self.offsets[node.id] = end
                end += -(-node.nbytes // ALIGNMENT) * ALIGNMENT
        for node in graph.nodes:
            reason = None if node.op == "input" else backend.supports(node, graph)
            assert reason is None, reason
        for node in reversed(graph.nodes):
            if node.weights:
                backend.load(node, {name: (weights or {})[name] for name in node.weights})
        self.generation = backend.reserve(end)
        nodes = tuple(n.id for n in graph.nodes if n.op != "input")
        self.program = backend.compile(Split(graph, nodes, self.offsets))

    def upload(self, **inputs: Any) -> None:
        """Fill the inputs named."""
        for name, value in inputs.items():
            node = self.graph.inputs[name]
            dtype = {"f32": np.float32, "i32": np.int32}[node.dtype.name]
            array = np.ascontiguousarray(value, dtype=dtype)
            assert array.shape == node.shape, f"{name}: {array.shape}, expected {node.shape}"
            self.backend.upload(self.offsets[node.id], array)

    def poison(self) -> None:
        """Overwrite every output with NaN, so that what is not written shows."""
        for node in self.graph.nodes:
            if node.nbytes and node.op != "input":
                self.backend.upload(
                    self.offsets[node.id], np.full(node.nbytes // 4, np.nan, np.float32)
                )

    def result(self, index: int = 0) -> np.ndarray:
        """The graph's output number `index`."""
        node = self.graph.nodes[self.graph.outputs[index]]
        return self.backend.download(self.offsets[node.id], node.shape, np.dtype(np.float32))

    def __call__(self, **inputs: Any) -> np.ndarray:
        """One step: inputs, run, first output."""
        self.upload(**inputs)
        self.program()
        return self.result()


def error(out: np.ndarray, expected: np.ndarray) -> float:
    """Distance relative to the expected values' norm; NaN is infinitely far."""
    if not np.isfinite(out).all():
        return float("inf")
    scale = float(np.linalg.norm(expected)) or 1.0
    return float(np.linalg.norm(out.astype(np.float64) - expected)) / scale
