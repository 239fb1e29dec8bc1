"""Which values pass to their reader as halves: those that one product alone reads, in one split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cuda_lowering import CARDS

from minfer.backends import Split
from minfer.backends.cuda import foresight, handover
from minfer.backends.cuda.device import Facts
from minfer.dtypes import BY_NAME, F32
from minfer.graph import (
    AttentionAttrs,
    FusedFFNAttrs,
    GraphBuilder,
    KVSpec,
    MatMulAttrs,
    Node,
    WeightSpec,
)
from minfer.settings import Settings


def gated(rows: int, single_rows: int, n_ff: int = 1024) -> tuple[GraphBuilder, Node]:
    """Gate and up; down is to follow."""
    q8, n_in = BY_NAME["q8_0"], 512
    specs = {name: WeightSpec(q8, (n_in, n_ff)) for name in ("gate", "up")}
    specs |= {name: WeightSpec(q8, (n_ff, n_in)) for name in ("down", "down2")}
    specs["norm"] = WeightSpec(F32, (n_ff,))
    builder = GraphBuilder(specs, {})
    x = builder.input("x", (rows, n_in), F32)
    builder.input("counts", (3,))
    attrs = FusedFFNAttrs("silu", single_rows)
    return builder, builder.node("fused_ffn", (x,), attrs, "ffn", ("gate", "up"))


def handed_over(split: Split, **settings: Any) -> frozenset[int]:
    return handover.handed_over(split, Settings(**settings))


def split_of(builder: GraphBuilder, *outputs: Node) -> Split:
    graph = builder.build(*outputs)
    nodes = tuple(node.id for node in graph.nodes if node.op != "input")
    return Split(graph, nodes, {node.id: 0 for node in graph.nodes})


@pytest.mark.parametrize("facts", CARDS, ids=lambda facts: facts.name)
@pytest.mark.parametrize(("rows", "single_rows"), [(512, 0), (64, 0), (164, 100)])
def test_what_one_product_reads(rows: int, single_rows: int, facts: Facts) -> None:
    """Its reader has no pass over it, but for its single rows."""
    builder, value = gated(rows, single_rows)
    y = builder.matmul(value, "down", "y", single_rows)
    split = split_of(builder, y)
    assert handed_over(split) == {value.id}
    kernels = foresight.kernels(split, facts, Settings())
    alone = foresight.kernels(replace(split, nodes=(y.id,)), facts, Settings())
    before, after = list(alone[y.id]), list(kernels[y.id])
    assert len(after) == len(before) - 1
    before.reverse()
    before.remove("matmul_act")  # the last, that of many rows
    assert after == before[::-1]


@pytest.mark.parametrize(
    ("rows", "single_rows", "n_ff"), [(63, 0, 1024), (512, 449, 1024), (4, 4, 1024), (512, 0, 1056)]
)
def test_few_rows_and_odd_widths_stay(rows: int, single_rows: int, n_ff: int) -> None:
    builder, value = gated(rows, single_rows, n_ff)
    assert not handed_over(split_of(builder, builder.matmul(value, "down", "y", single_rows)))


def test_what_others_see_stays() -> None:
    builder, value = gated(512, 0)
    y = builder.matmul(value, "down", "y", 0)
    split = split_of(builder, y)
    assert not handed_over(split_of(builder, y, value))  # an output
    for node in split.nodes:  # as a trace runs them
        assert not handed_over(replace(split, nodes=(node,)))
    assert not handed_over(split_of(builder, y, builder.matmul(value, "down2", "z", 0)))


def test_other_readers_are_no_products_of_its_rows() -> None:
    builder, value = gated(512, 0, 512)
    y = builder.matmul(builder.rms_norm(value, "norm", "norm", 1e-6), "down", "y", 0)
    assert not handed_over(split_of(builder, y))
    builder, value = gated(512, 0, 512)
    assert not handed_over(split_of(builder, builder.matmul(value, "down", "y", 8)))
    builder, value = gated(512, 0, 512)
    attrs = MatMulAttrs(0, False, residual=True)
    y = builder.node("matmul", (value, value), attrs, "y", ("down",))
    assert not handed_over(split_of(builder, y))


def attention(cache: str, single_rows: int = 0) -> tuple[Split, Node]:
    """128 rows of four heads of 64 features, and the product that reads them."""
    state = KVSpec("kv", 2, 64, BY_NAME[cache], 2)
    weights = {"o": WeightSpec(BY_NAME["q8_0"], (256, 512))}
    builder = GraphBuilder(weights, {"kv": state})
    q, k = builder.input("q", (128, 256), F32), builder.input("k", (128, 128), F32)
    rows = [builder.input(name, (128,)) for name in ("positions", "seqs", "cells")]
    table = builder.input("page_table", (1, 2))
    builder.input("counts", (3,))
    stored = builder.kv_store(k, k, rows[2], "kv", "store")
    attrs = AttentionAttrs("kv", 4, 2, 64, 0.125, single_rows)
    value = builder.attention(q, *rows[:2], table, stored, attrs, "attention")
    return split_of(builder, builder.matmul(value, "o", "y", single_rows)), value


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("single_rows", [0, 64])
def test_attention_by_the_tiled_kernels(cache: str, single_rows: int) -> None:
    split, value = attention(cache, single_rows)
    assert handed_over(split) == {value.id}
    assert not handed_over(split, no_fa_prefill=True)


def test_other_attention_stays() -> None:
    assert not handed_over(attention("f32")[0])
    assert not handed_over(attention("f16", single_rows=65)[0])
