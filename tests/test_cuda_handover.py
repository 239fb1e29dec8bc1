"""What passes between ops of one split: rows as halves, and norms that two products share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cuda_lowering import CARDS, H200

from minfer.backends import Split
from minfer.backends.cuda import foresight, handover
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.ops.base import Chunks, Halves
from minfer.backends.melt import melting_norms
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


def gated(
    rows: int, single_rows: int, n_ff: int = 1024, n_in: int = 512
) -> tuple[GraphBuilder, Node]:
    """Gate and up; down is to follow."""
    q8 = BY_NAME["q8_0"]
    specs = {name: WeightSpec(q8, (n_in, n_ff)) for name in ("gate", "up")}
    specs |= {name: WeightSpec(q8, (n_ff, n_in)) for name in ("down", "down2")}
    specs["norm"] = WeightSpec(F32, (n_ff,))
    builder = GraphBuilder(specs, {})
    x = builder.input("x", (rows, n_in), F32)
    builder.input("counts", (3,))
    attrs = FusedFFNAttrs("silu", single_rows)
    return builder, builder.node("fused_ffn", (x,), attrs, "ffn", ("gate", "up"))


def handed_over(split: Split, facts: Facts = H200, **settings: Any) -> dict[int, Halves]:
    return handover.handed_over(split, facts, Settings(**settings))


def split_of(builder: GraphBuilder, *outputs: Node) -> Split:
    graph = builder.build(*outputs)
    nodes = tuple(node.id for node in graph.nodes if node.op != "input")
    return Split(graph, nodes, {node.id: node.id << 24 for node in graph.nodes})


@pytest.mark.parametrize("facts", CARDS, ids=lambda facts: facts.name)
@pytest.mark.parametrize(
    ("rows", "single_rows", "passes"),
    [
        (512, 0, 0),
        (64, 0, 0),
        (164, 100, 0),
        (228, 100, 0),
        (16, 16, 0),
        (4, 4, 0),
        (68, 4, 0),
        (132, 3, 1),
        (24, 16, 1),
    ],
)
def test_what_one_product_reads(rows: int, single_rows: int, passes: int, facts: Facts) -> None:
    """Its reader has no pass over it, but for what does not fit, or takes several launches."""
    if single_rows > 64 and not facts.hopper:
        passes += 2
    builder, value = gated(rows, single_rows)
    y = builder.matmul(value, "down", "y", single_rows)
    split = split_of(builder, y)
    halves = handed_over(split, facts)[value.id]
    tiles = halves.many
    assert (tiles is not None) == (rows - single_rows >= 64)
    assert tiles is None or tiles.ordered == facts.hopper
    kernels = foresight.kernels(split, facts, Settings())[y.id]
    alone = foresight.kernels(replace(split, nodes=(y.id,)), facts, Settings())[y.id]
    assert kernels.count("matmul_act") == passes
    assert alone.count("matmul_act") == passes + (tiles is not None) + (halves.single is not None)
    assert [k for k in kernels if k != "matmul_act"] == [k for k in alone if k != "matmul_act"]


@pytest.mark.parametrize("facts", CARDS, ids=lambda facts: facts.name)
@pytest.mark.parametrize("n_in", [512, 2048])
@pytest.mark.parametrize("rows", [*range(1, 20), 31, 32, 33, 47, 48, 49, 63, 64, 65, 128, 300])
def test_single_rows_lie_as_their_reader_has_them(rows: int, n_in: int, facts: Facts) -> None:
    builder, value = gated(rows, rows, n_in=n_in)
    split = split_of(builder, builder.matmul(value, "down", "y", rows))
    handed = handed_over(split, facts)
    if rows <= 3 or (rows > 64 and not facts.hopper):
        assert handed == {}
        return
    assert set(handed) == {value.id}
    chunks = handed[value.id].single
    assert chunks is not None
    assert chunks.ordered == (facts.hopper and rows > 16)
    assert rows <= chunks.columns <= 2 * rows  # which is room in the buffer of f32


@pytest.mark.parametrize(
    ("rows", "single_rows", "n_ff"),
    [(63, 0, 1024), (66, 3, 1024), (3, 3, 1024), (512, 0, 1056), (16, 16, 1056)],
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
    builder, value = gated(512, 16, 512)
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
@pytest.mark.parametrize(("single_rows", "columns"), [(0, 0), (64, 64), (128, 128)])
def test_attention_by_the_tiled_kernels(cache: str, single_rows: int, columns: int) -> None:
    split, value = attention(cache, single_rows)
    single = Chunks(columns, True) if single_rows else None
    many = Chunks(128, True) if single_rows < 128 else None
    assert handed_over(split) == {value.id: Halves(single, many)}
    assert not handed_over(split, no_fa_prefill=True)


def test_other_attention_stays() -> None:
    assert not handed_over(attention("f32")[0])
    a100 = CARDS[1]
    assert not handed_over(attention("f16", single_rows=65)[0], a100)  # by two launches


def normed(rows: int, single_rows: int, width: int = 512) -> tuple[GraphBuilder, Node, Node]:
    """A product with its residual and a norm; answers those, for another product to follow."""
    q8 = BY_NAME["q8_0"]
    specs = {"w": WeightSpec(q8, (256, width)), "norm": WeightSpec(F32, (width,))}
    specs |= {name: WeightSpec(q8, (width, 256)) for name in ("u", "u2")}
    builder = GraphBuilder(specs, {})
    x, r = builder.input("x", (rows, 256), F32), builder.input("r", (rows, width), F32)
    builder.input("counts", (3,))
    attrs = MatMulAttrs(single_rows, False, residual=True)
    first = builder.node("matmul", (x, r), attrs, "first", ("w",))
    return builder, first, builder.rms_norm(first, "norm", "normed", 1e-6)


def between(split: Split, facts: Facts = H200) -> dict[int, Chunks]:
    """The products that prepare rows for a norm, and how."""
    norms = melting_norms(split)
    return {i: b.chunks for i, b in handover.norms_between(split, norms, facts).items()}


@pytest.mark.parametrize("facts", CARDS, ids=lambda facts: facts.name)
@pytest.mark.parametrize("others", [0, 5, 200])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 130])
def test_two_products_share_a_norm(rows: int, others: int, facts: Facts) -> None:
    """Of single rows, where kernels of Hopper take them in one launch; others have their pass."""
    if not rows + others:
        return
    builder, first, norm = normed(rows + others, rows)
    split = split_of(builder, builder.matmul(norm, "u", "y", rows))
    found = between(split, facts)
    assert set(found) == ({first.id} if facts.hopper and 2 <= rows <= 64 else set())
    for chunks in found.values():
        assert rows <= chunks.columns <= max(8, 2 * rows)
        assert chunks.ordered == (rows > 16)
    kernels = foresight.kernels(split, facts, Settings())[split.nodes[-1]]
    passes = [k for k in kernels if k == "matmul_act_normed"]
    alone = foresight.kernels(replace(split, nodes=split.nodes[1:]), facts, Settings())
    assert len(passes) + len(found) == alone[split.nodes[-1]].count("matmul_act_normed")


def test_norms_that_are_not_between_two_products_stay() -> None:
    builder, _, norm = normed(16, 16)
    y = builder.matmul(norm, "u", "y", 16)
    assert between(split_of(builder, y))
    assert not between(split_of(builder, y, norm))  # an output
    assert not between(split_of(builder, y, builder.matmul(norm, "u2", "z", 16)))  # two readers
    for width in (480, 520 * 2):
        builder, _, norm = normed(16, 16, width)  # no whole strips of 128
        assert not between(split_of(builder, builder.matmul(norm, "u", "y", 16)))
    builder, _, norm = normed(16, 16)
    assert not between(split_of(builder, builder.matmul(norm, "u", "y", 8)))  # other single rows
    builder, first, norm = normed(16, 16)
    split = split_of(builder, builder.matmul(norm, "u", "y", 16))
    assert not between(replace(split, nodes=tuple(n for n in split.nodes if n != first.id)))


def test_what_is_prepared_is_read_before_the_next() -> None:
    """It lies in one place: a product does not read there and write."""
    builder, first, norm = normed(16, 16, 256)
    attrs = MatMulAttrs(16, False, residual=True)
    second = builder.node("matmul", (norm, first), attrs, "second", ("w",))
    third = builder.matmul(builder.rms_norm(second, "norm", "n2", 1e-6), "u", "third", 16)
    assert set(between(split_of(builder, third))) == {first.id}
    builder, first, norm = normed(16, 16, 256)
    attrs = MatMulAttrs(16, False, residual=True)
    second = builder.node("matmul", (first, first), attrs, "second", ("w",))
    y = builder.matmul(norm, "u", "y", 16)
    z = builder.matmul(builder.rms_norm(second, "norm", "n2", 1e-6), "u2", "z", 16)
    assert set(between(split_of(builder, y, z))) == {first.id}
