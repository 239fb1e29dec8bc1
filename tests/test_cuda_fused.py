"""Fused nodes on the GPU equal the chains they stand for, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend_runner import weight
from cuda_harness import Runner

from minfer.backends import Split
from minfer.dtypes import BY_NAME, F32
from minfer.graph import (
    PAGE,
    AttentionAttrs,
    FusedFFNAttrs,
    FusedQKVAttrs,
    GatedAttrs,
    GraphBuilder,
    KVSpec,
    MatMulAttrs,
    Node,
    RopeAttrs,
    RopeSpec,
)

pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.cuda

N_IN, HEADS, KV_HEADS = 512, 6, 2
POSITIONS = np.array([0, 5, 1000, -1, 70_000, 131_071, 63, 64, -1])
CELLS = np.array([3, 70, 64, -1, 0, 127, 2, 65, -1])


def rope(style: Any, head_dim: int) -> RopeSpec:
    return RopeSpec(
        style, tuple(10000.0 ** (-2 * i / head_dim) for i in range(head_dim // 2)), 1.07
    )


def matrices(
    rng: np.random.Generator, types: tuple[str, str, str], head_dim: int
) -> dict[str, Any]:
    made = {}
    for name, dtype, heads in zip("qkv", types, (HEADS, KV_HEADS, KV_HEADS), strict=True):
        values = rng.standard_normal((heads * head_dim, N_IN)) * 0.05
        made[name] = weight(name, values, BY_NAME[dtype])
        made[f"b{name}"] = weight(f"b{name}", rng.standard_normal(heads * head_dim), F32)
    for name in ("nq", "nk"):
        made[name] = weight(name, 1 + 0.1 * rng.standard_normal(head_dim), F32)
    return made


@pytest.mark.parametrize("single_rows", [9, 4, 0])
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize(
    ("style", "head_dim", "types", "bias", "norm"),
    [
        ("neox", 128, ("q4_K", "q4_K", "q6_K"), True, False),
        ("neox", 64, ("q8_0", "q8_0", "q8_0"), False, True),
        ("interleaved", 80, ("q4_0", "q4_0", "q4_0"), False, False),
        ("neox", 256, ("f16", "f16", "f16"), True, True),
        ("neox", 96, ("q5_K", "q5_K", "q6_K"), False, False),
    ],
)
def test_fused_qkv_is_its_chain(
    gpu: Any,
    style: Any,
    head_dim: int,
    types: tuple[str, str, str],
    bias: bool,
    norm: bool,
    kv: str,
    single_rows: int,
) -> None:
    rng = np.random.default_rng(head_dim)
    weights = matrices(rng, types, head_dim)
    spec = rope(style, head_dim)
    rows = len(POSITIONS)
    results = []
    for fused in (False, True):
        state = KVSpec(f"kv{fused}", KV_HEADS, head_dim, BY_NAME[kv], 2)
        gpu.add_state(state)
        builder = GraphBuilder({n: w.spec for n, w in weights.items()}, {state.name: state})
        x = builder.input("x", (rows, N_IN), F32)
        positions, cells = builder.input("positions", (rows,)), builder.input("cells", (rows,))
        builder.input("counts", (3,))
        if fused:
            names = ["q", "k", "v"]
            names += ["bq", "bk", "bv"] if bias else []
            names += ["nq", "nk"] if norm else []
            attrs = FusedQKVAttrs(
                state.name,
                HEADS,
                KV_HEADS,
                head_dim,
                spec,
                single_rows,
                bias,
                1e-6 if norm else None,
            )
            out = builder.node("fused_qkv", (x, positions, cells), attrs, "qkv", tuple(names))
        else:
            made = {}
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                node = builder.matmul(x, name, name, single_rows, f"b{name}" if bias else None)
                if norm and name != "v":
                    node = builder.rms_norm(node, f"n{name}", f"{name}_norm", 1e-6, head_dim)
                if name != "v":
                    node = builder.rope(
                        node, positions, RopeAttrs(heads, head_dim, spec), f"{name}_rope"
                    )
                made[name] = node
            builder.kv_store(made["k"], made["v"], cells, state.name, "store")
            out = made["q"]
        runner = Runner(gpu, builder.build(out), weights)
        data = np.random.default_rng(1).standard_normal((rows, N_IN))
        q = runner(
            x=data,
            positions=POSITIONS,
            cells=CELLS,
            counts=[single_rows, rows - single_rows, 0],
        )
        pages = [gpu.read_page(state.name, page) for page in range(2)]
        results.append((q[POSITIONS >= 0], pages))
    (q_chain, pages_chain), (q_fused, pages_fused) = results
    assert np.isfinite(q_chain).all()
    np.testing.assert_array_equal(q_fused, q_chain)
    assert pages_fused == pages_chain
    assert any(b != 0 for b in pages_chain[0])
    assert CELLS.max() < 2 * PAGE


@pytest.mark.parametrize("single_rows", [5, 2, 0])
@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_fused_ffn_is_its_chain(gpu: Any, act: Any, single_rows: int) -> None:
    rng = np.random.default_rng(2)
    weights = {
        name: weight(name, rng.standard_normal((768, N_IN)) * 0.05, BY_NAME["q4_K"])
        for name in ("gate", "up")
    }
    outs = []
    for fused in (False, True):
        builder = GraphBuilder({n: w.spec for n, w in weights.items()}, {})
        x = builder.input("x", (5, N_IN), F32)
        builder.input("counts", (3,))
        if fused:
            attrs = FusedFFNAttrs(act, single_rows)
            out = builder.node("fused_ffn", (x,), attrs, "ffn", ("gate", "up"))
        else:
            gate, up = (builder.matmul(x, n, n, single_rows) for n in ("gate", "up"))
            out = builder.gated(gate, up, GatedAttrs(act), "gated")
        runner = Runner(gpu, builder.build(out), weights)
        data = np.random.default_rng(1).standard_normal((5, N_IN))
        outs.append(runner(x=data, counts=[single_rows, 5 - single_rows, 0]))
    # the gate's activation may differ in the last bit between the two kernels
    np.testing.assert_allclose(outs[1], outs[0], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("n_ff", [384, 896])
@pytest.mark.parametrize(
    ("rows", "single_rows", "tile", "act", "kept"),
    [
        (64, 0, 64, "silu", False),
        (140, 3, 128, "gelu", False),
        (140, 3, 128, "gelu", True),
        (200, 40, 192, "silu", False),
        (195, 3, 96, "silu", False),
        (288, 96, 96, "gelu", False),
        (300, 1, 256, "gelu", False),
    ],
)
def test_halves_handed_over_are_those_of_f32(
    make_gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    single_rows: int,
    tile: int,
    act: Any,
    kept: bool,
    n_ff: int,
) -> None:
    """Bit for bit, in tiles of every width; rows that are not real may be anything."""
    monkeypatch.setattr("minfer.backends.cuda.ops.matmul_choose.PROMPT_COLUMNS", (tile,))
    gpu = make_gpu(cuda_generic=kept, cuda_halves=kept)
    rng = np.random.default_rng(n_ff)
    shapes = {"gate": (n_ff, N_IN), "up": (n_ff, N_IN), "down": (80, n_ff)}
    weights = {
        name: weight(name, rng.standard_normal(shape) * 0.05, BY_NAME["q8_0"])
        for name, shape in shapes.items()
    }
    real = rows - 5
    data = rng.standard_normal((rows, N_IN)) * 3
    data[real:] = np.nan
    builder = GraphBuilder({n: w.spec for n, w in weights.items()}, {})
    x = builder.input("x", (rows, N_IN), F32)
    builder.input("counts", (3,))
    attrs = FusedFFNAttrs(act, single_rows)
    between = builder.node("fused_ffn", (x,), attrs, "ffn", ("gate", "up"))
    y = builder.matmul(between, "down", "y", single_rows)
    inputs = {"x": data, "counts": [single_rows, real - single_rows, 0]}
    saved = 1 + goes_as_halves(gpu, single_rows)
    check_handover(gpu, (builder, between, y), weights, inputs, real, saved)


@pytest.mark.parametrize(
    ("rows", "dtype", "n_in", "n_ff", "act"),
    [  # of 1024 inputs, several blocks add up their parts of each sum
        (3, "q4_K", 512, 256, "silu"),
        (4, "q4_K", 512, 768, "gelu"),
        (8, "q8_0", 1024, 256, "silu"),
        (9, "f16", 512, 768, "silu"),
        (16, "q4_K", 1024, 256, "gelu"),
        (17, "q6_K", 1024, 256, "silu"),
        (33, "q5_0", 512, 768, "gelu"),
        (64, "q4_K", 1024, 384, "silu"),
        (70, "q4_K", 1024, 256, "silu"),
        (130, "q6_K", 512, 384, "gelu"),
    ],
)
def test_single_rows_handed_over_are_those_of_f32(
    gpu: Any, rows: int, dtype: str, n_in: int, n_ff: int, act: Any
) -> None:
    """As of prompts, beside none, few and many of those. Three do not fit as halves."""
    rng = np.random.default_rng(rows)
    shapes = {"gate": (n_ff, n_in), "up": (n_ff, n_in), "down": (80, n_ff)}
    types = {"gate": dtype, "up": dtype, "down": "q8_0"}
    weights = {
        name: weight(name, rng.standard_normal(shape) * 0.05, BY_NAME[types[name]])
        for name, shape in shapes.items()
    }
    for others in (0, 5, 70):
        builder = GraphBuilder({n: w.spec for n, w in weights.items()}, {})
        x = builder.input("x", (rows + others, n_in), F32)
        builder.input("counts", (3,))
        between = builder.node("fused_ffn", (x,), FusedFFNAttrs(act, rows), "ffn", ("gate", "up"))
        y = builder.matmul(between, "down", "y", rows)
        real = rows + others - 1
        data = rng.standard_normal((rows + others, n_in)) * 3
        data[real:] = np.nan
        inputs = {"x": data, "counts": [min(rows, real), max(0, others - 1), 0]}
        saved = goes_as_halves(gpu, rows) + (others > 64)
        check_handover(gpu, (builder, between, y), weights, inputs, real, saved)


def goes_as_halves(gpu: Any, single_rows: int) -> bool:
    """Whether so many single rows fit as halves, and one launch takes them."""
    return single_rows > 3 and (single_rows <= 64 or gpu.device.facts.hopper)


def check_handover(
    gpu: Any,
    made: tuple[GraphBuilder, Node, Node],
    weights: dict[str, Any],
    inputs: dict[str, Any],
    real: int,
    saved: int = 1,
) -> None:
    """The product of a value is the same, bit for bit, if others read the value, too.

    Where they do not, `saved` passes over the value less are made.
    """
    builder, between, y = made
    outs, passes = [], []
    for outputs in ((y, between), (y,)):
        runner = Runner(gpu, builder.build(*outputs), weights)
        runner.poison()
        outs.append(runner(**inputs)[:real])
        split = Split(runner.graph, (between.id, y.id), runner.offsets)
        passes.append(gpu.kernels(split)[y.id].count("matmul_act"))
    assert np.isfinite(outs[0]).all()
    np.testing.assert_array_equal(outs[1], outs[0])
    assert passes[0] == passes[1] + saved


@pytest.mark.parametrize(
    ("rows", "single_rows", "heads", "kv_heads", "head_dim", "kv"),
    [
        (70, 3, 6, 2, 64, "f16"),
        (90, 0, 8, 8, 80, "f16"),
        (140, 66, 3, 1, 128, "q8_0"),
        (64, 0, 2, 1, 256, "f16"),
        (4, 4, 2, 1, 64, "f16"),
        (9, 9, 8, 8, 80, "q8_0"),
        (16, 16, 7, 1, 128, "f16"),
        (86, 16, 18, 1, 64, "f16"),
        (17, 17, 6, 2, 64, "q8_0"),
        (103, 33, 2, 1, 256, "f16"),
        (64, 64, 2, 1, 64, "f16"),
        (40, 40, 8, 8, 112, "q8_0"),
        (131, 131, 2, 1, 64, "f16"),
    ],
)
def test_attention_handed_over_is_that_of_f32(
    gpu: Any, rows: int, single_rows: int, heads: int, kv_heads: int, head_dim: int, kv: str
) -> None:
    rng = np.random.default_rng(head_dim)
    weights = {"o": weight("o", rng.standard_normal((80, heads * head_dim)) * 0.05, BY_NAME["f16"])}
    state = KVSpec("kv", kv_heads, head_dim, BY_NAME[kv], 3)
    gpu.add_state(state)
    builder = GraphBuilder({"o": weights["o"].spec}, {"kv": state})
    real = rows - (5 if rows > single_rows else 1)
    table = np.array([[1, 2, 0]])
    positions = np.arange(rows) + table.size * PAGE - rows  # the last have two parts of keys
    positions[real:] = -1
    cells = np.where(positions < 0, -1, table[0][positions // PAGE] * PAGE + positions % PAGE)
    inputs: dict[str, Any] = {
        name: rng.standard_normal((rows, n * head_dim))
        for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    }
    nodes = {name: builder.input(name, x.shape, F32) for name, x in inputs.items()}
    inputs |= {"positions": positions, "seqs": np.zeros(rows), "cells": cells, "table": table}
    for name in ("positions", "seqs", "cells", "table"):
        nodes[name] = builder.input(name, inputs[name].shape)
    builder.input("counts", (3,))
    single = min(single_rows, real)
    inputs["counts"] = [single, real - single, 0]
    stored = builder.kv_store(nodes["k"], nodes["v"], nodes["cells"], "kv", "store")
    attrs = AttentionAttrs("kv", heads, kv_heads, head_dim, head_dim**-0.5, single_rows)
    sources = (nodes[name] for name in ("q", "positions", "seqs", "table"))
    between = builder.attention(*sources, stored, attrs, "attention")
    y = builder.matmul(between, "o", "y", single_rows)
    saved = goes_as_halves(gpu, single_rows) + (rows >= single_rows + 64)
    check_handover(gpu, (builder, between, y), weights, inputs, real, saved)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("single_rows", [1, 5, 24, 0])
def test_a_product_with_its_residual_is_its_chain(gpu: Any, single_rows: int, bias: bool) -> None:
    rng = np.random.default_rng(3)
    rows = max(single_rows, 5)
    weights = {
        "w": weight("w", rng.standard_normal((256, N_IN)) * 0.05, BY_NAME["q4_K"]),
        "b": weight("b", rng.standard_normal(256), F32),
    }
    data = {"x": rng.standard_normal((rows, N_IN)), "r": rng.standard_normal((rows, 256))}
    outs = []
    for fused in (False, True):
        builder = GraphBuilder({n: w.spec for n, w in weights.items()}, {})
        x, r = builder.input("x", (rows, N_IN), F32), builder.input("r", (rows, 256), F32)
        builder.input("counts", (3,))
        if fused:
            attrs = MatMulAttrs(single_rows, bias, residual=True)
            names = ("w", "b") if bias else ("w",)
            out = builder.node("matmul", (x, r), attrs, "y", names)
        else:
            out = builder.matmul(x, "w", "w", single_rows, "b" if bias else None)
            out = builder.add(out, r, "y")
        runner = Runner(gpu, builder.build(out), weights)
        runner.poison()
        outs.append(runner(**data, counts=[single_rows, rows - single_rows, 0]))
    assert np.isfinite(outs[0]).all()
    np.testing.assert_array_equal(outs[1], outs[0])
