"""The table of ops: what each reads, and the executable rule of its output. One row an op.

A rule receives the node and its source nodes, and answers the output's shape or raises GraphError.
The meaning of an op in numbers is `minfer.backends.reference`'s function of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minfer.dtypes import F32, I32, DType
from minfer.errors import GraphError
from minfer.graph.attrs import (
    AttentionAttrs,
    Attrs,
    EmbedAttrs,
    FusedFFNAttrs,
    FusedQKVAttrs,
    GatedAttrs,
    KVStoreAttrs,
    MatMulAttrs,
    NormAttrs,
    RopeAttrs,
    ScaleAttrs,
    SoftcapAttrs,
)
from minfer.graph.ir import KVSpec, Node, WeightSpec

Shape = tuple[int, ...]
Weights = Sequence[WeightSpec]
States = Mapping[str, KVSpec]


def check(condition: bool, node: Node, what: str) -> None:
    """Raise GraphError naming `node` unless `condition`."""
    if not condition:
        raise GraphError(what, where=f"{node.op} {node.name}")


def _input(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    return node.shape


def _embed(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    check(srcs[0].dtype is I32, node, f"token ids are {srcs[0].dtype}, expected i32")
    check(len(weights[0].shape) == 2, node, f"the table has shape {weights[0].shape}")
    return (*srcs[0].shape, weights[0].shape[0])


def _matmul(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, MatMulAttrs)
    out = (srcs[0].shape[0], _project(node, srcs[0], weights[0]))
    check(len(weights) == 1 + attrs.bias, node, f"{len(weights)} weights, bias={attrs.bias}")
    check(len(srcs) == 1 + attrs.residual, node, f"{len(srcs)} srcs, residual={attrs.residual}")
    if attrs.bias:
        check(weights[1].shape == out[1:], node, f"bias has shape {weights[1].shape}")
    if attrs.residual:
        check(srcs[1].shape == out, node, f"residual has shape {srcs[1].shape}, not {out}")
    check(0 <= attrs.single_rows <= out[0], node, f"single_rows {attrs.single_rows} of {out[0]}")
    return out


def _project(node: Node, x: Node, weight: WeightSpec) -> int:
    check(len(weight.shape) == 2, node, f"the weight has shape {weight.shape}, expected a matrix")
    check(
        x.shape[1] == weight.shape[0],
        node,
        f"the input has {x.shape[1]} features, the weight takes {weight.shape[0]}",
    )
    return weight.shape[1]


def _norm(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, NormAttrs)
    check(weights[0].shape == (attrs.width,), node, f"weight {weights[0].shape}, {attrs.width}")
    check(srcs[0].shape[1] % attrs.width == 0, node, f"{srcs[0].shape[1]} % {attrs.width} != 0")
    return srcs[0].shape


def _rope(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, RopeAttrs)
    width = attrs.n_heads * attrs.head_dim
    check(srcs[0].shape[1] == width, node, f"{srcs[0].shape[1]} features, expected {width}")
    check(2 * len(attrs.rope.inv_freq) <= attrs.head_dim, node, "more frequencies than pairs")
    return srcs[0].shape


def _kv_store(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, KVStoreAttrs)
    check(attrs.state in states, node, f"unknown state {attrs.state}")
    width = states[attrs.state].n_kv_heads * states[attrs.state].head_dim
    for src in srcs[:2]:
        check(src.shape[1] == width, node, f"{src.name} has {src.shape[1]} features, not {width}")
    return (0,)


def _attention(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, AttentionAttrs)
    check(attrs.state in states, node, f"unknown state {attrs.state}")
    width = attrs.n_heads * attrs.head_dim
    check(srcs[0].shape[1] == width, node, f"q has {srcs[0].shape[1]} features, not {width}")
    check(attrs.n_heads % attrs.n_kv_heads == 0, node, "n_heads is no multiple of n_kv_heads")
    return srcs[0].shape


def _same(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    for src in srcs[1:]:
        check(src.shape == srcs[0].shape, node, f"shapes {srcs[0].shape} and {src.shape} differ")
    return srcs[0].shape


def _rows(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    return (*srcs[1].shape, *srcs[0].shape[1:])


def _fused_ffn(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    widths = [_project(node, srcs[0], w) for w in weights]
    check(widths[0] == widths[1], node, f"gate and up have widths {widths}")
    return (srcs[0].shape[0], widths[0])


def _fused_qkv(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, FusedQKVAttrs)
    check(attrs.state in states, node, f"unknown state {attrs.state}")
    heads = (attrs.n_heads, attrs.n_kv_heads, attrs.n_kv_heads)
    for weight, n in zip(weights, heads, strict=False):
        check(_project(node, srcs[0], weight) == n * attrs.head_dim, node, "projection width")
    expected = 3 + 3 * attrs.bias + 2 * (attrs.norm_eps is not None)
    check(len(weights) == expected, node, f"{len(weights)} weights, expected {expected}")
    return (srcs[0].shape[0], attrs.n_heads * attrs.head_dim)


Rule = Callable[[Node, Sequence[Node], Weights, States], Shape]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """What the graph knows of an op.

    Attributes:
        srcs: names of its sources, in order; a trailing `?` marks an optional one.
        weights: names of its weights, likewise.
        attrs: class of its constants.
        rule: shape rule.
        in_place: the output may take the first source's memory (element-wise on it).
        dtype: element type of the output.
    """

    srcs: tuple[str, ...]
    weights: tuple[str, ...]
    attrs: type[Attrs]
    rule: Rule
    in_place: bool = False
    dtype: DType = F32


OPS: dict[str, OpSpec] = {
    # leaves
    "input": OpSpec((), (), Attrs, _input),
    "embed": OpSpec(("ids",), ("table",), EmbedAttrs, _embed),
    # projections
    "matmul": OpSpec(("x", "residual?"), ("weight", "bias?"), MatMulAttrs, _matmul),
    # normalisation and position
    "rms_norm": OpSpec(("x",), ("weight",), NormAttrs, _norm),
    "rope": OpSpec(("x", "positions"), (), RopeAttrs, _rope, in_place=True),
    # attention
    "kv_store": OpSpec(("k", "v", "cells"), (), KVStoreAttrs, _kv_store, dtype=I32),
    "attention": OpSpec(
        ("q", "positions", "seqs", "page_table", "after"), (), AttentionAttrs, _attention
    ),
    # element-wise
    "gated": OpSpec(("gate", "up"), (), GatedAttrs, _same, in_place=True),
    "add": OpSpec(("a", "b"), (), Attrs, _same, in_place=True),
    "mul": OpSpec(("a", "b"), (), Attrs, _same, in_place=True),
    "scale": OpSpec(("x",), (), ScaleAttrs, _same, in_place=True),
    "softcap": OpSpec(("x",), (), SoftcapAttrs, _same, in_place=True),
    # rows: y[i] = x[index[i]]
    "rows": OpSpec(("x", "index"), (), Attrs, _rows),
    # fused by the scheduler; each equals its unfused chain
    "fused_ffn": OpSpec(("x",), ("gate", "up"), FusedFFNAttrs, _fused_ffn),
    "fused_qkv": OpSpec(
        ("x", "positions", "cells"),
        ("q", "k", "v", "bq?", "bk?", "bv?", "nq?", "nk?"),
        FusedQKVAttrs,
        _fused_qkv,
    ),
}
"""Every op, by name."""
