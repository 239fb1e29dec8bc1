"""The executable specification of a legal graph; run after every pass in tests and on request."""

from __future__ import annotations

from minfer.errors import GraphError
from minfer.graph.ir import Graph, Node
from minfer.graph.ops import OPS, check


def verify(graph: Graph) -> None:
    """Check every rule of a legal graph.

    Raises:
        GraphError: naming the first node that breaks one.
    """
    names: set[str] = set()
    for index, node in enumerate(graph.nodes):
        check(node.id == index, node, f"id {node.id} at position {index}")
        check(node.name not in names, node, "the name is taken")
        names.add(node.name)
        _verify_node(graph, node)
    for out in graph.outputs:
        if not 0 <= out < len(graph.nodes):
            raise GraphError(f"output {out} is not a node", where="graph")
    if graph.feeds:
        _verify_feeding(graph)
    _verify_order(graph)


def _verify_node(graph: Graph, node: Node) -> None:
    spec = OPS.get(node.op)
    if spec is None:
        raise GraphError(f"unknown op {node.op!r}", where=node.name)
    least = sum(not s.endswith("?") for s in spec.srcs)
    check(least <= len(node.srcs) <= len(spec.srcs), node, f"{len(node.srcs)} sources")
    least = sum(not w.endswith("?") for w in spec.weights)
    check(least <= len(node.weights) <= len(spec.weights), node, f"{len(node.weights)} weights")
    check(isinstance(node.attrs, spec.attrs), node, f"attrs are {type(node.attrs).__name__}")
    check(all(0 <= s < node.id for s in node.srcs), node, f"sources {node.srcs} come later")
    for name in node.weights:
        check(name in graph.weights, node, f"unknown weight {name}")
    srcs = [graph.nodes[s] for s in node.srcs]
    weights = [graph.weights[w] for w in node.weights]
    shape = spec.rule(node, srcs, weights, graph.states)
    check(node.shape == shape, node, f"shape {node.shape}, the rule gives {shape}")
    if node.op != "input":
        check(node.dtype is spec.dtype, node, f"dtype {node.dtype}, expected {spec.dtype}")


def _verify_feeding(graph: Graph) -> None:
    """The first output can take the place of the input it feeds."""
    fed = graph.inputs.get(graph.feeds)
    if fed is None:
        raise GraphError(f"it feeds {graph.feeds!r}, which is no input", where="graph")
    check(fed.id == 0, fed, "it is fed, and must lead the inputs")
    out = graph.nodes[graph.outputs[0]]
    fits = (out.dtype, out.shape) == (fed.dtype, fed.shape)
    check(fits, out, f"{out.dtype} {out.shape} cannot feed {fed.name}, {fed.dtype} {fed.shape}")


def _verify_order(graph: Graph) -> None:
    """A state is written before it is read: attention names its store as `after`."""
    writers: dict[str, int] = {}
    for node in graph.nodes:
        state = getattr(node.attrs, "state", "")
        if node.op in ("kv_store", "fused_qkv"):
            check(state not in writers, node, f"{state} is written twice")
            writers[state] = node.id
        elif node.op == "attention":
            check(state in writers, node, f"{state} is read before it is written")
            check(node.srcs[4] == writers[state], node, "`after` is not the writer of the state")
