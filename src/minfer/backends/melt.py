"""Norms that become part of the products that read them, where a backend's kernels can do that.

The product then reads the norm's input, and the normed value is never written. This is decided when
a split is lowered, not in the plan: it changes no value that anyone else sees.
"""

from __future__ import annotations

from minfer.backends.base import Split
from minfer.graph import Node, NormAttrs

PRODUCTS = ("matmul", "fused_ffn", "fused_qkv")


def melting_norms(split: Split) -> dict[int, Node]:
    """The norms of a split whose only readers are products of the same split, by id."""
    nodes = [split.graph.nodes[i] for i in split.nodes]
    return {n.id: n for n in nodes if n.op == "rms_norm" and _melts(split, n)}


def _melts(split: Split, norm: Node) -> bool:
    graph = split.graph
    attrs = norm.attrs
    assert isinstance(attrs, NormAttrs)
    readers = [graph.nodes[i] for i in graph.readers[norm.id]]
    whole = attrs.width == norm.shape[1] and not attrs.residual
    if not whole or norm.id in graph.outputs or not readers:
        return False
    for reader in readers:
        if reader.op not in PRODUCTS or norm.id in reader.srcs[1:] or reader.id not in split.nodes:
            return False
    # the plan may have given the input's memory away by the time of the last reader
    source = graph.nodes[norm.srcs[0]]
    begin = split.offsets[source.id]
    end = begin + source.nbytes
    last = max(reader.id for reader in readers)
    for other in split.nodes:
        if not norm.id < other <= last or not graph.nodes[other].nbytes:
            continue
        start = split.offsets[other]
        if start < end and begin < start + graph.nodes[other].nbytes:
            return False
    return True
