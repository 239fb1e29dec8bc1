"""The slow, obvious backend that judges the others: NumPy, one function an op."""

from minfer.backends.reference import ops
from minfer.backends.reference.backend import ReferenceBackend
from minfer.graph import Graph, Node
from minfer.settings import Settings


def create(settings: Settings) -> ReferenceBackend:
    """Make the reference backend; no setting changes it."""
    return ReferenceBackend()


def reason_against(node: Node, graph: Graph) -> str | None:
    """None if there is a function for `node`, else why not."""
    return ReferenceBackend().supports(node, graph)


__all__ = ["ReferenceBackend", "create", "ops", "reason_against"]
