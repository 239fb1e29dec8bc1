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
    PENALTY_COLUMNS,
    PENALTY_WINDOW,
    SAMPLING_COLUMNS,
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


def _features(node: Node, src: Node) -> int:
    """The width of a source that holds activations."""
    check(
        src.dtype is F32 and len(src.shape) == 2,
        node,
        f"{src.name} is {src.dtype} {list(src.shape)}, expected f32 [rows, features]",
    )
    return src.shape[1]


def _per_row(node: Node, src: Node, n_rows: int | None = None) -> int:
    """The length of a source that holds one integer a row, which must be `n_rows` if given."""
    expected = n_rows if n_rows is not None else "rows"
    check(
        src.dtype is I32 and len(src.shape) == 1 and n_rows in (None, src.shape[0]),
        node,
        f"{src.name} is {src.dtype} {list(src.shape)}, expected i32 [{expected}]",
    )
    return src.shape[0]


def _project(node: Node, x: Node, weight: WeightSpec) -> int:
    """Features of `x` times `weight`."""
    n_in = _features(node, x)
    check(len(weight.shape) == 2, node, f"the weight has shape {weight.shape}, expected a matrix")
    check(
        n_in == weight.shape[0],
        node,
        f"the input has {n_in} features, the weight takes {weight.shape[0]}",
    )
    return weight.shape[1]


def _single(node: Node, single_rows: int, n_rows: int) -> None:
    check(0 <= single_rows <= n_rows, node, f"single_rows {single_rows} of {n_rows}")


def _state(node: Node, states: States, name: str) -> KVSpec:
    check(name in states, node, f"unknown state {name!r}")
    return states[name]


def _input(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    check(all(n > 0 for n in node.shape), node, f"shape {list(node.shape)} holds nothing")
    return node.shape


def _embed(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    n_rows = _per_row(node, srcs[0])
    check(len(weights[0].shape) == 2, node, f"the table has shape {weights[0].shape}")
    return (n_rows, weights[0].shape[0])


def _matmul(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, MatMulAttrs)
    n_out = _project(node, srcs[0], weights[0])
    out = (srcs[0].shape[0], n_out)
    check(len(weights) == 1 + attrs.bias, node, f"{len(weights)} weights, bias={attrs.bias}")
    if attrs.bias:
        check(weights[1].shape == out[1:], node, f"bias has shape {weights[1].shape}")
    _residual(node, srcs, out, attrs.residual)
    _single(node, attrs.single_rows, out[0])
    return out


def _residual(node: Node, srcs: Sequence[Node], out: Shape, residual: bool) -> None:
    """The last source is there if it should be, and shaped like the output."""
    check(len(srcs) == 1 + residual, node, f"{len(srcs)} srcs, residual={residual}")
    if residual:
        check(srcs[1].shape == out, node, f"residual has shape {srcs[1].shape}, not {out}")


def _norm(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, NormAttrs)
    width = _features(node, srcs[0])
    check(weights[0].shape == (attrs.width,), node, f"weight {weights[0].shape}, {attrs.width}")
    check(attrs.width > 0 and width % attrs.width == 0, node, f"{width} % {attrs.width} != 0")
    _residual(node, srcs, srcs[0].shape, attrs.residual)
    return srcs[0].shape


def _rope(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, RopeAttrs)
    width = attrs.n_heads * attrs.head_dim
    found = _features(node, srcs[0])
    check(found == width, node, f"{found} features, expected {width}")
    _per_row(node, srcs[1], srcs[0].shape[0])
    check(2 * len(attrs.rope.inv_freq) <= attrs.head_dim, node, "more frequencies than pairs")
    return srcs[0].shape


def _kv_store(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, KVStoreAttrs)
    state = _state(node, states, attrs.state)
    width = state.n_kv_heads * state.head_dim
    for src in srcs[:2]:
        found = _features(node, src)
        check(found == width, node, f"{src.name} has {found} features, not {width}")
        _per_row(node, srcs[2], src.shape[0])
    return (0,)


def _attention(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, AttentionAttrs)
    state = _state(node, states, attrs.state)
    heads = (attrs.n_kv_heads, attrs.head_dim)
    expected = (state.n_kv_heads, state.head_dim)
    check(heads == expected, node, f"heads of k are {heads}, of {attrs.state} {expected}")
    check(attrs.n_heads % attrs.n_kv_heads == 0, node, "n_heads is no multiple of n_kv_heads")
    q, positions, seqs, table = srcs[:4]
    width = attrs.n_heads * attrs.head_dim
    found = _features(node, q)
    check(found == width, node, f"q has {found} features, not {width}")
    for src in (positions, seqs):
        _per_row(node, src, q.shape[0])
    check(table.dtype is I32 and len(table.shape) == 2, node, f"{table.name} is no page table")
    _single(node, attrs.single_rows, q.shape[0])
    return q.shape


def _same(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    for src in srcs:
        _features(node, src)
        check(src.shape == srcs[0].shape, node, f"shapes {srcs[0].shape} and {src.shape} differ")
    return srcs[0].shape


def _rows(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    return (_per_row(node, srcs[1]), _features(node, srcs[0]))


def _sample(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    logits, sampling = srcs
    expected = (logits.shape[0], SAMPLING_COLUMNS)
    check(logits.dtype is F32, node, f"logits are {logits.dtype}, expected f32")
    check(sampling.shape == expected, node, f"sampling has shape {sampling.shape}, not {expected}")
    return logits.shape[:1]


def _penalize(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    logits, penalties, recent, ids, index = srcs
    width = _features(node, logits)
    n_rows = logits.shape[0]
    for src, expected in ((penalties, PENALTY_COLUMNS), (recent, PENALTY_WINDOW)):
        check(src.shape == (n_rows, expected), node, f"{src.name} has shape {src.shape}")
    _per_row(node, ids)
    _per_row(node, index, n_rows)
    return (n_rows, width)


def _fused_ffn(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, FusedFFNAttrs)
    widths = [_project(node, srcs[0], w) for w in weights]
    check(widths[0] == widths[1], node, f"gate and up have widths {widths}")
    _single(node, attrs.single_rows, srcs[0].shape[0])
    return (srcs[0].shape[0], widths[0])


def _fused_qkv(node: Node, srcs: Sequence[Node], weights: Weights, states: States) -> Shape:
    attrs = node.attrs
    assert isinstance(attrs, FusedQKVAttrs)
    state = _state(node, states, attrs.state)
    heads = (attrs.n_kv_heads, attrs.head_dim)
    expected = (state.n_kv_heads, state.head_dim)
    check(heads == expected, node, f"heads of k are {heads}, of {attrs.state} {expected}")
    n_weights = 3 + 3 * attrs.bias + 2 * (attrs.norm_eps is not None)
    check(len(weights) == n_weights, node, f"{len(weights)} weights, expected {n_weights}")
    widths = [n * attrs.head_dim for n in (attrs.n_heads, attrs.n_kv_heads, attrs.n_kv_heads)]
    for weight, width in zip(weights[:3], widths, strict=True):
        found = _project(node, srcs[0], weight)
        check(found == width, node, f"a projection gives {found} features, not {width}")
    if attrs.bias:
        for weight, width in zip(weights[3:6], widths, strict=True):
            check(weight.shape == (width,), node, f"a bias has shape {weight.shape}, not {width}")
    if attrs.norm_eps is not None:
        for weight in weights[-2:]:
            check(weight.shape == (attrs.head_dim,), node, f"a norm has shape {weight.shape}")
    n_rows = srcs[0].shape[0]
    for src in srcs[1:]:
        _per_row(node, src, n_rows)
    _single(node, attrs.single_rows, n_rows)
    return (n_rows, widths[0])


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
    "rms_norm": OpSpec(("x", "residual?"), ("weight",), NormAttrs, _norm),
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
    # choosing: what recent tokens cost, the newest being ids[index];
    "penalize": OpSpec(
        ("logits", "penalties", "recent", "ids", "index"), (), Attrs, _penalize, in_place=True
    ),
    # by temperature, top_k, top_p, min_p and a uniform number for each row of logits
    "sample": OpSpec(("logits", "sampling"), (), Attrs, _sample, dtype=I32),
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
