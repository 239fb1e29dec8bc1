"""The contract of a backend: where and how a node runs. Implementations live in the folders beside.

A backend knows nodes, weights, states and an arena; it knows no sequences, no tokens and no plan.
A node it cannot run is answered with the reason, when the plan is built; there is no second answer
at run time. Reading its memory on the host is always an explicit, synchronising `download`.

**Rows.** A plan is built for row counts rounded up to buckets. The graph-wide input `counts`,
i32 [3], tells how many rows of each kind are real in this step: (single rows, other rows, output
rows). Of the rows of a step, the first `single_rows` places hold single rows, the others follow;
within each group the real rows come first. A padded row has position -1 and cell -1: it stores
nowhere, and what is computed for it is never read, so a kernel may skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from minfer.graph import Graph, KVSpec, Node, WeightSpec

Bytes = NDArray[np.uint8]
ALIGNMENT = 256
"""Alignment of every buffer in an arena, bytes."""


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment of buffers."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight as the file has it.

    Attributes:
        name: tensor name.
        spec: type and shape; `shape[0]` is the contiguous row.
        data: its bytes, a read-only view of the mapped file.
    """

    name: str
    spec: WeightSpec
    data: Bytes


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory a backend may use, in bytes, and how the figure was found."""

    nbytes: int
    how: str


@dataclass(frozen=True)
class Split:
    """Consecutive nodes of one backend, with the address of everything they touch.

    Attributes:
        graph: the whole graph.
        nodes: ids of the nodes to run, in order; never inputs.
        offsets: for each node id read or written here, the byte offset of its output in this
            backend's arena (`ALIGNMENT`-aligned). Outputs of zero bytes have none. The inputs of
            the graph are always among them.
    """

    graph: Graph
    nodes: tuple[int, ...]
    offsets: Mapping[int, int]


class Backend(Protocol):
    """What the scheduler and the engine ask of a device. One thread at a time calls it."""

    name: str

    def supports(self, node: Node, graph: Graph) -> str | None:
        """None if the node can run here, else the reason why not, for people."""

    def budget(self) -> Budget:
        """Memory this backend may use in all."""

    def load(self, node: Node, weights: Mapping[str, Weight]) -> int:
        """Make the weights of `node` resident in the layout its kernel reads.

        Repeated calls for weights already resident in that layout cost nothing. A plan's nodes are
        loaded from the last to the first, so a table that is the head, too, is the head's first.

        Returns:
            Bytes newly taken.
        """

    def add_state(self, spec: KVSpec) -> int:
        """Create a persistent KV state, zeroed; returns the bytes taken."""

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (source, destination) in every state, ordered with the work."""

    def read_page(self, state: str, page: int) -> bytes:
        """The bytes of one page of a state, in this backend's own layout; synchronises."""

    def write_page(self, state: str, page: int, data: bytes) -> None:
        """Restore what `read_page` gave."""

    def reserve(self, nbytes: int) -> int:
        """Make the arena at least `nbytes` large.

        Returns:
            Its generation, which changes when its address does; compiled splits of an earlier
            generation must not run again.

        Raises:
            OutOfMemoryError: before anything is allocated, with the bytes asked and available.
        """

    def upload(self, offset: int, array: NDArray[np.generic]) -> None:
        """Copy a contiguous array into the arena; it may be changed once this returns."""

    def download(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> NDArray[np.generic]:
        """Wait for the work before, and copy out of the arena."""

    def fetch(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Callable[[], NDArray[np.generic]]:
        """Enqueue a copy out of the arena; the result waits for it, not for what comes after.

        The copy runs beside the work that comes after: until the result has been waited for, or is
        forgotten, that work must leave the place as it is.
        """

    def send(self, offset: int, array: NDArray[np.generic]) -> None:
        """As `upload`, but beside the work under way, which must not touch the place.

        Work enqueued later sees it.
        """

    def compile(self, split: Split) -> Callable[[], None]:
        """Specialise and check everything; the result enqueues the split's work and takes nothing.

        Called after `load`, `add_state` and `reserve`; addresses may be baked in.
        """

    def timed(self, work: Callable[[], None]) -> float:
        """Run `work`, which enqueues on this backend, and wait for it.

        Returns:
            Seconds it took by this device's own clock.
        """

    def describe(self) -> str:
        """The device and how it is used, for people."""

    def synchronize(self) -> None:
        """Wait, within bounds, for all work; raise BackendError if any of it failed."""

    def close(self) -> None:
        """Free everything. Closing twice is allowed."""


@runtime_checkable
class Foreseeing(Protocol):
    """A backend that can say what it would do: what does not fit is left to others.

    Attributes:
        when: for kernels among which a step's rows decide, which rows take it.
    """

    @property
    def when(self) -> Mapping[str, str]: ...

    def kernels(self, split: Split) -> Mapping[int, tuple[str, ...]]:
        """For each node of `split` the kernels it launches, in order."""

    def footprint(self, splits: Sequence[Split], weights: Mapping[str, Weight]) -> int:
        """Bytes that loading and running `splits` would take beside the arena; takes nothing.

        Args:
            splits: of plans that take turns, over the same states.
            weights: of all their nodes, at least.
        """
