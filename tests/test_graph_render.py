"""A graph as text, DOT and JSON: everything is there once, and well formed."""

from __future__ import annotations

import json
import re

from graphs import attention_graph

from minfer.graph import to_dot, to_json, to_text


def test_text_has_a_line_a_node_with_its_note() -> None:
    graph = attention_graph()
    lines = to_text(graph, lambda n: f"<{n.op}>").splitlines()
    assert len(lines) == len(graph.nodes)
    assert lines[4].split() == ["%4", "q", "matmul", "(%3)", "[4x8]", "q:f16", "<matmul>"]
    assert not any(line != line.rstrip() for line in to_text(graph).splitlines())


def test_dot_draws_every_node_and_edge_in_its_block() -> None:
    graph = attention_graph()
    text = to_dot(graph, lambda n: 'a "note"' if n.id == 3 else "")
    assert text.startswith("digraph minfer {") and text.rstrip().endswith("}")
    assert text.count("{") == text.count("}")
    edges = {(int(a), int(b)) for a, b in re.findall(r"n(\d+) -> n(\d+);", text)}
    assert edges == {(s, n.id) for n in graph.nodes for s in n.srcs}
    assert len(re.findall(r"n\d+ \[label=", text)) == len(graph.nodes)
    assert "a 'note'" in text  # quotes would end the label


def test_json_is_versioned_and_complete() -> None:
    graph = attention_graph()
    document = json.loads(to_json(graph, lambda n: n.name.upper()))
    assert (document["format"], document["version"]) == ("minfer-graph", 1)
    assert document["outputs"] == [8]
    assert [n["id"] for n in document["nodes"]] == list(range(9))
    rope = document["nodes"][5]
    assert rope["attrs"]["rope"]["style"] == "neox"
    assert (rope["srcs"], rope["shape"], rope["dtype"]) == ([4, 1], [4, 8], "f32")
    assert rope["note"] == "ROPE"
    assert document["nodes"][4]["weights"] == {"q": "f16"}
