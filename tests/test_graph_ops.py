"""The table of ops: what each rule accepts, and that it refuses everything else with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from graphs import HEAD, ROPE, ROWS, builder, kv, matrix, vector

from minfer.dtypes import F32, I32
from minfer.errors import GraphError
from minfer.graph import (
    OPS,
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
    Node,
    NormAttrs,
    RopeAttrs,
    ScaleAttrs,
    SoftcapAttrs,
)

WIDTH = 2 * HEAD
WEIGHTS = {
    "table": matrix(WIDTH, 100),
    "square": matrix(WIDTH, WIDTH),
    "narrow": matrix(WIDTH, HEAD),
    "wide_in": matrix(WIDTH + 1, WIDTH),
    "bias": vector(WIDTH),
    "bias_kv": vector(HEAD),
    "norm": vector(HEAD),
    "norm_all": vector(WIDTH),
}
ATTENTION = AttentionAttrs("kv.0", 2, 1, HEAD, 1.0, 1)
QKV = FusedQKVAttrs("kv.0", 2, 1, HEAD, ROPE, 1)

# source: (shape, element type)
X = ((ROWS, WIDTH), F32)
K = ((ROWS, HEAD), F32)
SHORT = ((ROWS - 1, WIDTH), F32)
FLAT = ((WIDTH,), F32)
WHOLE = ((ROWS, WIDTH), I32)
AT = ((ROWS,), I32)
AT_SHORT = ((ROWS - 1,), I32)
AT_FLOAT = ((ROWS,), F32)
TABLE = ((2, 3), I32)
AFTER = ((0,), I32)
PENALTIES = ((ROWS, PENALTY_COLUMNS), F32)
RECENT = ((ROWS, PENALTY_WINDOW), I32)

GOOD = [
    ("input", (), (), Attrs(), (3, 2)),
    ("embed", (AT,), ("table",), EmbedAttrs(), (ROWS, WIDTH)),
    ("matmul", (X,), ("square",), MatMulAttrs(0), (ROWS, WIDTH)),
    ("matmul", (X,), ("narrow",), MatMulAttrs(ROWS), (ROWS, HEAD)),
    ("matmul", (X,), ("square", "bias"), MatMulAttrs(1, bias=True), (ROWS, WIDTH)),
    ("matmul", (X, X), ("square",), MatMulAttrs(1, residual=True), (ROWS, WIDTH)),
    ("rms_norm", (X,), ("norm_all",), NormAttrs(1e-6, WIDTH), (ROWS, WIDTH)),
    ("rms_norm", (X,), ("norm",), NormAttrs(1e-6, HEAD), (ROWS, WIDTH)),
    ("rope", (X, AT), (), RopeAttrs(2, HEAD, ROPE), (ROWS, WIDTH)),
    ("kv_store", (K, K, AT), (), KVStoreAttrs("kv.0"), (0,)),
    ("attention", (X, AT, AT, TABLE, AFTER), (), ATTENTION, (ROWS, WIDTH)),
    ("gated", (X, X), (), GatedAttrs("silu"), (ROWS, WIDTH)),
    ("add", (X, X), (), Attrs(), (ROWS, WIDTH)),
    ("mul", (X, X), (), Attrs(), (ROWS, WIDTH)),
    ("scale", (X,), (), ScaleAttrs(2.0), (ROWS, WIDTH)),
    ("softcap", (X,), (), SoftcapAttrs(30.0), (ROWS, WIDTH)),
    ("penalize", (X, PENALTIES, RECENT, AT_SHORT, AT), (), Attrs(), (ROWS, WIDTH)),
    ("sample", (X, ((ROWS, SAMPLING_COLUMNS), F32)), (), Attrs(), (ROWS,)),
    ("rows", (X, AT_SHORT), (), Attrs(), (ROWS - 1, WIDTH)),
    ("fused_ffn", (X,), ("square", "square"), FusedFFNAttrs("silu", 1), (ROWS, WIDTH)),
    ("fused_qkv", (X, AT, AT), ("square", "narrow", "narrow"), QKV, (ROWS, WIDTH)),
    (
        "fused_qkv",
        (X, AT, AT),
        ("square", "narrow", "narrow", "bias", "bias_kv", "bias_kv", "norm", "norm"),
        replace(QKV, bias=True, norm_eps=1e-6),
        (ROWS, WIDTH),
    ),
]

BAD = [
    ("input", (), (), Attrs(), "holds nothing"),
    ("embed", (X,), ("table",), EmbedAttrs(), "expected i32"),
    ("embed", (AT_FLOAT,), ("table",), EmbedAttrs(), "expected i32"),
    ("embed", (AT,), ("norm",), EmbedAttrs(), "the table has shape"),
    ("matmul", (FLAT,), ("square",), MatMulAttrs(0), "expected f32"),
    ("matmul", (WHOLE,), ("square",), MatMulAttrs(0), "expected f32"),
    ("matmul", (X,), ("norm",), MatMulAttrs(0), "expected a matrix"),
    ("matmul", (X,), ("wide_in",), MatMulAttrs(0), "16 features, the weight takes 17"),
    ("matmul", (X,), ("square", "norm"), MatMulAttrs(0, bias=True), "bias has shape"),
    ("matmul", (X,), ("square",), MatMulAttrs(0, bias=True), "1 weights, bias=True"),
    ("matmul", (X,), ("square", "bias"), MatMulAttrs(0), "2 weights, bias=False"),
    ("matmul", (X,), ("square",), MatMulAttrs(0, residual=True), "1 srcs"),
    ("matmul", (X, SHORT), ("square",), MatMulAttrs(0, residual=True), "residual has shape"),
    ("matmul", (X,), ("square",), MatMulAttrs(-1), "single_rows -1"),
    ("matmul", (X,), ("square",), MatMulAttrs(ROWS + 1), "single_rows 5 of 4"),
    ("rms_norm", (X,), ("norm",), NormAttrs(1e-6, WIDTH), "weight (8,)"),
    ("rms_norm", (K,), ("norm_all",), NormAttrs(1e-6, WIDTH), "8 % 16"),
    ("rope", (X, AT), (), RopeAttrs(1, HEAD, ROPE), "16 features, expected 8"),
    ("rope", (X, AT_SHORT), (), RopeAttrs(2, HEAD, ROPE), "expected i32 [4]"),
    ("rope", (X, AT), (), RopeAttrs(4, HEAD // 2, ROPE), "more frequencies"),
    ("kv_store", (K, K, AT), (), KVStoreAttrs("kv.9"), "unknown state 'kv.9'"),
    ("kv_store", (X, K, AT), (), KVStoreAttrs("kv.0"), "16 features, not 8"),
    ("kv_store", (K, X, AT), (), KVStoreAttrs("kv.0"), "16 features, not 8"),
    ("kv_store", (K, K, AT_SHORT), (), KVStoreAttrs("kv.0"), "expected i32 [4]"),
    ("attention", (K, AT, AT, TABLE, AFTER), (), ATTENTION, "8 features, not 16"),
    ("attention", (X, AT_SHORT, AT, TABLE, AFTER), (), ATTENTION, "expected i32 [4]"),
    ("attention", (X, AT, AT_SHORT, TABLE, AFTER), (), ATTENTION, "expected i32 [4]"),
    ("attention", (X, AT, AT, AT, AFTER), (), ATTENTION, "no page table"),
    ("attention", (X, AT, AT, TABLE, AFTER), (), replace(ATTENTION, state=""), "unknown state"),
    ("attention", (X, AT, AT, TABLE, AFTER), (), replace(ATTENTION, n_kv_heads=2), "heads of k"),
    ("attention", (X, AT, AT, TABLE, AFTER), (), replace(ATTENTION, single_rows=5), "5 of 4"),
    ("gated", (X, K), (), GatedAttrs("silu"), "differ"),
    ("add", (X, SHORT), (), Attrs(), "differ"),
    ("mul", (X, WHOLE), (), Attrs(), "expected f32"),
    ("scale", (AT,), (), ScaleAttrs(2.0), "expected f32"),
    ("softcap", (AT,), (), SoftcapAttrs(2.0), "expected f32"),
    ("penalize", (X, X, RECENT, AT, AT), (), Attrs(), "has shape"),
    ("penalize", (X, PENALTIES, X, AT, AT), (), Attrs(), "has shape"),
    ("penalize", (X, PENALTIES, RECENT, X, AT), (), Attrs(), "expected i32"),
    ("penalize", (X, PENALTIES, RECENT, AT, AT_SHORT), (), Attrs(), "expected i32 [4]"),
    ("penalize", (AT, PENALTIES, RECENT, AT, AT), (), Attrs(), "expected f32"),
    ("sample", (X, X), (), Attrs(), "sampling has shape"),
    ("rows", (X, AT_FLOAT), (), Attrs(), "expected i32"),
    ("rows", (AT, AT), (), Attrs(), "expected f32"),
    ("fused_ffn", (X,), ("square", "narrow"), FusedFFNAttrs("silu", 1), "have widths"),
    ("fused_ffn", (X,), ("square", "square"), FusedFFNAttrs("silu", 9), "single_rows"),
    ("fused_qkv", (X, AT, AT), ("narrow", "narrow", "narrow"), QKV, "8 features, not 16"),
    ("fused_qkv", (X, AT, AT), ("square", "narrow", "square"), QKV, "16 features, not 8"),
    ("fused_qkv", (X, AT, AT_SHORT), ("square", "narrow", "narrow"), QKV, "expected i32 [4]"),
    (
        "fused_qkv",
        (X, AT, AT),
        ("square", "narrow", "narrow"),
        replace(QKV, bias=True),
        "3 weights, expected 6",
    ),
    (
        "fused_qkv",
        (X, AT, AT),
        ("square", "narrow", "narrow", "bias", "bias", "bias_kv"),
        replace(QKV, bias=True),
        "a bias has shape",
    ),
    (
        "fused_qkv",
        (X, AT, AT),
        ("square", "narrow", "narrow", "norm_all", "norm"),
        replace(QKV, norm_eps=1e-6),
        "a norm has shape",
    ),
    ("fused_qkv", (X, AT, AT), ("square",) * 3, replace(QKV, n_kv_heads=2), "heads of k"),
]


def apply(
    op: str, srcs: tuple, weights: tuple[str, ...], attrs: Attrs, shape: tuple[int, ...] = ()
) -> tuple[int, ...]:
    nodes = [
        Node(i, "input", (), (), Attrs(), s, dtype, f"src{i}") for i, (s, dtype) in enumerate(srcs)
    ]
    node = Node(9, op, tuple(range(len(nodes))), weights, attrs, shape, OPS[op].dtype, "it")
    return OPS[op].rule(node, nodes, [WEIGHTS[w] for w in weights], {"kv.0": kv()})


@pytest.mark.parametrize(("op", "srcs", "weights", "attrs", "shape"), GOOD)
def test_a_rule_gives_the_shape(op, srcs, weights, attrs, shape) -> None:
    assert apply(op, srcs, weights, attrs, shape) == shape


@pytest.mark.parametrize(("op", "srcs", "weights", "attrs", "reason"), BAD)
def test_a_rule_refuses_with_the_reason(op, srcs, weights, attrs, reason) -> None:
    with pytest.raises(GraphError) as caught:
        apply(op, srcs, weights, attrs, (0,))
    assert reason in str(caught.value)
    assert caught.value.where == f"{op} it"


def test_every_op_is_accepted_once_and_refused_once() -> None:
    assert {case[0] for case in GOOD} == set(OPS)
    assert {case[0] for case in BAD} == set(OPS)


def test_grouped_heads_must_divide() -> None:
    attrs = replace(ATTENTION, n_heads=3, n_kv_heads=2)
    nodes = [Node(i, "input", (), (), Attrs(), X[0], F32, f"src{i}") for i in range(5)]
    node = Node(9, "attention", tuple(range(5)), (), attrs, (), F32, "it")
    with pytest.raises(GraphError, match="no multiple"):
        OPS["attention"].rule(node, nodes, [], {"kv.0": kv(n_kv_heads=2)})


TYPED: dict[str, Callable] = {
    "embed": lambda g, x, at: g.embed(at, "table", "y", 2.0),
    "matmul": lambda g, x, at: g.matmul(x, "square", "y", 1, "bias"),
    "rms_norm": lambda g, x, at: g.rms_norm(x, "norm", "y", 1e-6, HEAD),
    "rope": lambda g, x, at: g.rope(x, at, RopeAttrs(2, HEAD, ROPE), "y"),
    "gated": lambda g, x, at: g.gated(x, x, GatedAttrs("gelu"), "y"),
    "add": lambda g, x, at: g.add(x, x, "y"),
    "mul": lambda g, x, at: g.mul(x, x, "y"),
    "scale": lambda g, x, at: g.scale(x, 2.0, "y"),
    "softcap": lambda g, x, at: g.softcap(x, 2.0, "y"),
    "rows": lambda g, x, at: g.rows(x, at, "y"),
}


@pytest.mark.parametrize("op", TYPED)
def test_the_builder_has_a_method_an_op_and_infers_its_shape(op) -> None:
    g = builder(WEIGHTS)
    x, at = g.input("x", *X), g.input("at", *AT)
    node = TYPED[op](g, x, at)
    assert (node.op, node.shape, node.dtype) == (op, (ROWS, WIDTH), F32)


def test_the_builder_keeps_only_what_is_named() -> None:
    g = builder(WEIGHTS, {"kv.0": kv(), "kv.1": kv("kv.1")})
    g.layer = 3
    x = g.input("x", *K)
    g.layer = None
    at = g.input("at", *AT)
    g.kv_store(x, x, at, "kv.1", "store")
    graph = g.build(g.rms_norm(x, "norm", "y", 1e-6))
    assert list(graph.weights) == ["norm"]
    assert list(graph.states) == ["kv.1"]
    assert (graph.nodes[0].name, graph.nodes[0].layer) == ("blk.3.x", 3)
    assert graph.readers == ((2, 3), (2,), (), ())
    assert list(graph.inputs) == ["blk.3.x", "at"]


def test_rows_behind_a_rows_op_are_output_rows() -> None:
    g = builder(WEIGHTS)
    x, index = g.input("x", *K), g.input("index", (2,))
    g.rms_norm(x, "norm", "before", 1e-6)
    picked = g.rows(x, index, "picked")
    y = g.rms_norm(picked, "norm", "y", 1e-6)
    assert g.build(y).output_rows == {picked.id, y.id}


def test_the_builder_names_a_missing_tensor() -> None:
    g = builder(WEIGHTS)
    with pytest.raises(GraphError, match="no tensor 'other'"):
        g.matmul(g.input("x", *X), "other", "y", 0)


def test_bytes_of_a_state_count_k_and_v() -> None:
    assert kv().nbytes == 2 * 2 * 64 * HEAD * 2
