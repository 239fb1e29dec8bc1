"""Backends for tests: the reference under other names and with gaps, and one that only records."""

from __future__ import annotations

from collections.abc import Callable

from minfer.backends import Split
from minfer.backends.reference import ReferenceBackend
from minfer.graph import Graph, Node

Supports = Callable[[Node], str | None]


class PartialReference(ReferenceBackend):
    """The reference backend under another name, refusing what `supports` gives a reason for."""

    def __init__(self, name: str, supports: Supports = lambda node: None) -> None:
        super().__init__()
        self.name = name
        self._refuses = supports

    def supports(self, node: Node, graph: Graph) -> str | None:
        return self._refuses(node) or super().supports(node, graph)


class Recorder(ReferenceBackend):
    """Takes every node, fused ones too, and notes which it was asked to run; computes nothing."""

    name = "recorder"

    def __init__(self) -> None:
        super().__init__()
        self.compiled: list[str] = []

    def supports(self, node: Node, graph: Graph) -> str | None:
        return None

    def compile(self, split: Split) -> Callable[[], None]:
        self.compiled += [split.graph.nodes[i].op for i in split.nodes]
        return lambda: None
