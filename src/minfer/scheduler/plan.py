"""A plan: a graph with a place for every node and an address for every value. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from minfer.backends import Backend, Foreseeing, Split
from minfer.graph import Graph, Node


@dataclass(frozen=True)
class Device:
    """A backend a plan may use.

    Attributes:
        backend: the backend.
        n_layers: how many of the first blocks it may take; None for all. Nodes outside of the
            blocks go to it only when it takes all of them.
    """

    backend: Backend
    n_layers: int | None = None

    def may_take(self, node: Node) -> bool:
        """Whether the layer limit allows `node` here."""
        if self.n_layers is None:
            return True
        return node.layer is not None and node.layer < self.n_layers


@dataclass(frozen=True, slots=True)
class Copy:
    """A value that crosses from one backend's arena to another's before a split runs."""

    node: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A maximal run of nodes of one backend, and what must be copied to it first."""

    backend: str
    nodes: tuple[int, ...]
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Plan:
    """What the passes make of a graph, each filling its part.

    Attributes:
        graph: the graph, fused where a backend supports it.
        devices: backends in order of preference.
        backend_of: for each node the name of its backend; "" for inputs.
        reasons: for each node, why backends before its own were passed over.
        segments: what runs, in order.
        offsets: for each backend, the arena offset of every value it touches.
        arena_bytes: for each backend, the arena it needs.
        input_bytes: leading bytes of every arena that hold the inputs; behind them is as much
            again, for every other step of a chain: see `other_side`.
    """

    graph: Graph
    devices: tuple[Device, ...]
    backend_of: tuple[str, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    segments: tuple[Segment, ...] = ()
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    arena_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    input_bytes: int = 0

    def backend(self, name: str) -> Backend:
        """The backend called `name`."""
        return next(d.backend for d in self.devices if d.backend.name == name)

    def other_side(self, name: str) -> Mapping[int, int]:
        """The offsets of every other step of a chain, on the backend `name`.

        Its inputs lie behind those of the steps between, so they can be written while such a step
        runs; the output that feeds an input goes from either side to the other.
        """
        graph, offsets = self.graph, self.offsets[name]
        inputs = graph.inputs
        moved = {n.id: offsets[n.id] + self.input_bytes for n in inputs.values()}
        if graph.feeds:
            moved[graph.outputs[0]] = offsets[inputs[graph.feeds].id]
        return MappingProxyType({**offsets, **moved})

    @property
    def used(self) -> Sequence[str]:
        """Names of the backends that run something, in order of first use."""
        return list(dict.fromkeys(s.backend for s in self.segments))

    @cached_property
    def kernels(self) -> Mapping[int, tuple[str, ...]]:
        """The kernels each node launches, of backends that can say."""
        found: dict[int, tuple[str, ...]] = {}
        for segment in self.segments:
            backend = self.backend(segment.backend)
            if isinstance(backend, Foreseeing):
                split = Split(self.graph, segment.nodes, self.offsets[segment.backend])
                found |= backend.kernels(split)
        return found

    @property
    def choices(self) -> Mapping[str, str]:
        """Kernels of this plan among which a step's rows decide -> which rows take it."""
        used = {name for names in self.kernels.values() for name in names}
        foreseeing = [d.backend for d in self.devices if isinstance(d.backend, Foreseeing)]
        return {k: when for b in foreseeing for k, when in b.when.items() if k in used}

    def describe(self, node: Node) -> str:
        """Where a node runs, by which kernels, and why not elsewhere, for people."""
        if node.op == "input":
            return ""
        words = [f"@{self.backend_of[node.id]}"]
        if node.id in self.kernels:
            words.append(" + ".join(self.kernels[node.id]) or "within its readers")
        if node.id in self.reasons:
            words.append(f"({self.reasons[node.id]})")
        return " ".join(words)
