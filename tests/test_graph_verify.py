"""The executable specification: a good graph passes, and each way of breaking one is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from graphs import ROWS, attention_graph, kv

from minfer.dtypes import I32
from minfer.errors import GraphError
from minfer.graph import Attrs, Graph, Node, verify


def with_node(graph: Graph, index: int, **changes: object) -> Graph:
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return replace(graph, nodes=tuple(nodes))


def with_extra(graph: Graph, node: Node) -> Graph:
    return replace(graph, nodes=(*graph.nodes, node))


def store_again(graph: Graph) -> Graph:
    return with_extra(graph, replace(graph.nodes[6], id=9, name="again"))


def swapped(graph: Graph) -> Graph:
    """Attention before the store it should wait for."""
    attention = replace(graph.nodes[7], id=6, srcs=(5, 1, 1, 2, 1))
    store = replace(graph.nodes[6], id=7)
    nodes = (*graph.nodes[:6], attention, store, replace(graph.nodes[8], srcs=(6, 0)))
    return replace(graph, nodes=nodes)


BREAKAGES: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "id": (lambda g: with_node(g, 3, id=4), "id 4 at position 3"),
    "name": (lambda g: with_node(g, 4, name="norm"), "the name is taken"),
    "op": (lambda g: with_node(g, 8, op="plus"), "unknown op 'plus'"),
    "few sources": (lambda g: with_node(g, 8, srcs=(7,)), "1 sources"),
    "many sources": (lambda g: with_node(g, 8, srcs=(7, 0, 0)), "3 sources"),
    "itself": (lambda g: with_node(g, 8, srcs=(8, 0)), "come later"),
    "later": (lambda g: with_node(g, 3, srcs=(5,)), "come later"),
    "negative": (lambda g: with_node(g, 8, srcs=(-1, 0)), "come later"),
    "no weights": (lambda g: with_node(g, 4, weights=()), "0 weights"),
    "many weights": (lambda g: with_node(g, 4, weights=("q",) * 3), "3 weights"),
    "unknown weight": (lambda g: with_node(g, 4, weights=("k",)), "unknown weight k"),
    "attrs": (lambda g: with_node(g, 4, attrs=Attrs()), "attrs are Attrs"),
    "shape": (lambda g: with_node(g, 4, shape=(ROWS, 9)), "the rule gives (4, 8)"),
    "dtype": (lambda g: with_node(g, 8, dtype=I32), "dtype i32, expected f32"),
    "rule": (lambda g: with_node(g, 8, srcs=(7, 1)), "expected f32"),
    "output": (lambda g: replace(g, outputs=(9,)), "output 9 is not a node"),
    "negative output": (lambda g: replace(g, outputs=(-1,)), "output -1 is not a node"),
    "feeds nothing": (lambda g: replace(g, feeds="norm"), "feeds 'norm', which is no input"),
    "feeds a later": (lambda g: replace(g, feeds="at"), "must lead the inputs"),
    "feeds another shape": (lambda g: replace(g, outputs=(2,), feeds="x"), "cannot feed x"),
    "written twice": (store_again, "kv.0 is written twice"),
    "read too early": (swapped, "read before it is written"),
    "after something else": (lambda g: with_node(g, 7, srcs=(5, 1, 1, 2, 1)), "not the writer"),
    "unknown state": (lambda g: replace(g, states={}), "unknown state 'kv.0'"),
    "other state": (lambda g: replace(g, states={"kv.0": kv(head_dim=4)}), "not 4"),
}


def test_a_good_graph_passes() -> None:
    verify(attention_graph())


@pytest.mark.parametrize("kind", BREAKAGES)
def test_a_broken_graph_is_caught(kind: str) -> None:
    break_it, reason = BREAKAGES[kind]
    with pytest.raises(GraphError) as caught:
        verify(break_it(attention_graph()))
    assert reason in str(caught.value)
