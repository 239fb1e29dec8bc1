"""A compiled split: a flat list of frozen launches, run eagerly, then captured, then replayed.

The first `WARM_UP` runs launch one by one; the next captures the same list with a graph builder in
place of the stream and replays it; later runs are one call. Everything that changes between steps
is device memory, so nothing else may happen inside the window. A failure to capture or replay turns
graphs off for the engine, aloud, and the same list runs eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minfer.backends.cuda.device import Frozen
from minfer.errors import BackendError, GraphError

if TYPE_CHECKING:
    from minfer.backends.cuda.backend import CudaBackend

WARM_UP = 2
"""Eager runs before the capture: a shape that comes twice is likely to come again."""


@dataclass
class Counters:
    """Runs of compiled splits so far, by how they ran."""

    eager: int = 0
    captures: int = 0
    replays: int = 0


class Program:
    """The callable that `CudaBackend.compile` answers.

    Args:
        backend: whose stream, counters and graph switch it uses.
        launches: the split's work, in order.
        generation: of the arena whose addresses are in the launches.
        replays: whether it may be captured.
    """

    def __init__(
        self,
        backend: CudaBackend,
        launches: Sequence[Frozen],
        generation: int,
        *,
        replays: bool = True,
    ) -> None:
        self._backend = backend
        self._launches = launches
        self._generation = generation
        self._replays = replays
        self._eager_runs = 0
        self._graph: Any = None

    def __len__(self) -> int:
        return len(self._launches)

    def __call__(self) -> None:
        """Enqueue the split's work.

        Raises:
            GraphError: when the arena has moved since; the split must be compiled again.
            BackendError: when launching fails.
        """
        backend = self._backend
        if self._generation != backend.generation:
            self._graph = None
            raise GraphError(
                f"compiled for generation {self._generation} of the arena, which is now "
                f"{backend.generation}",
                where="split",
                remedy="Compile the plan again after `reserve` answers a new generation",
            )
        if not self._launches or (self._replays and backend.graphs and self._replay()):
            return
        backend.device.enqueue(self._launches)
        self._eager_runs += 1
        backend.counters.eager += 1

    def _replay(self) -> bool:
        """Capture if it is time, and replay if there is a graph; False leaves the run to eager."""
        backend = self._backend
        try:
            if self._graph is None:
                if self._eager_runs < WARM_UP:
                    return False
                self._graph = backend.device.capture(self._launches)
                backend.counters.captures += 1
            backend.device.replay(self._graph)
        except BackendError as error:
            self._graph = None
            backend.disable_graphs(error)
            return False
        backend.counters.replays += 1
        return True
