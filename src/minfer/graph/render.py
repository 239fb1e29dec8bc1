"""A graph as text, Graphviz DOT or JSON, for people and tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from minfer.graph.ir import Graph, Node

Note = Callable[[Node], str]
JSON_FORMAT = "minfer-graph"
JSON_VERSION = 1


def _no_note(node: Node) -> str:
    return ""


def to_text(graph: Graph, note: Note = _no_note) -> str:
    """One line a node: id, name, op, sources, shape, weights, and what `note` adds."""
    lines = []
    for n in graph.nodes:
        srcs = ",".join(f"%{s}" for s in n.srcs)
        weights = " ".join(f"{w}:{graph.weights[w].dtype}" for w in n.weights)
        shape = "x".join(map(str, n.shape))
        line = f"%{n.id:<4} {n.name:<24} {n.op:<10} ({srcs}) [{shape}] {weights} {note(n)}"
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def to_dot(graph: Graph, note: Note = _no_note) -> str:
    """Graphviz source; blocks become clusters."""
    lines = ["digraph minfer {", "  rankdir=TB; node [shape=box, fontname=monospace];"]
    layers: dict[int | None, list[Node]] = {}
    for n in graph.nodes:
        layers.setdefault(n.layer, []).append(n)
    for layer, nodes in layers.items():
        if layer is not None:
            lines.append(f'  subgraph cluster_{layer} {{ label="blk.{layer}";')
        for n in nodes:
            label = "\\n".join(
                filter(None, (n.name, n.op, "x".join(map(str, n.shape)), note(n)))
            ).replace('"', "'")
            lines.append(f'  n{n.id} [label="{label}"];')
        if layer is not None:
            lines.append("  }")
    lines += [f"  n{s} -> n{n.id};" for n in graph.nodes for s in n.srcs]
    return "\n".join([*lines, "}"]) + "\n"


def to_json(graph: Graph, note: Note = _no_note) -> str:
    """JSON with a format name and a version."""
    nodes: list[dict[str, Any]] = [
        {
            "id": n.id,
            "name": n.name,
            "op": n.op,
            "srcs": list(n.srcs),
            "weights": {w: str(graph.weights[w].dtype) for w in n.weights},
            "attrs": asdict(n.attrs),
            "shape": list(n.shape),
            "dtype": str(n.dtype),
            "layer": n.layer,
            "note": note(n),
        }
        for n in graph.nodes
    ]
    document = {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
        "nodes": nodes,
        "outputs": list(graph.outputs),
    }
    return json.dumps(document, indent=1)
