"""The CPU backend's own promises: threads, fusion, broken inputs, memory, instruction sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import Heads, attend, decode, expected, prefill
from backend_runner import backend, run, weight
from op_cases import matmul, normal, relative_error, rng, rope_spec, specs, values

from minfer.backends import Backend, Split, Weight, create_backend
from minfer.backends.cpu import CpuBackend, available_isas
from minfer.dtypes import BY_NAME, F16, F32, Q8_0, DType
from minfer.errors import BackendError, ClosedError, OutOfMemoryError, UnsupportedError
from minfer.graph import (
    AttentionAttrs,
    FusedFFNAttrs,
    FusedQKVAttrs,
    GatedAttrs,
    Graph,
    GraphBuilder,
    KVSpec,
    RopeAttrs,
    WeightSpec,
)
from minfer.settings import Settings

ISAS = [pytest.param(f"cpu-{isa}", id=isa) for isa in available_isas()]
BEST = f"cpu-{available_isas()[0]}"


# Results depend on nothing but the row


@pytest.mark.parametrize("name", ISAS)
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    heads = Heads(dtype=Q8_0, window=150)
    seqs = (*decode(5, 300), *prefill((0, 40), (100, 33)))
    products = [matmul(BY_NAME[t], 512, 208, (3, 37)) for t in ("f16", "q4_1", "q6_K", "q8_0")]
    results = []
    for threads in (1, 2, 3, 5):
        with backend(name, threads) as on:
            results.append(attend(on, heads, seqs))
        for case in products:
            with backend(name, threads) as on:
                results[-1] += run(on, case.graph, case.inputs, case.weights)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "q4_K", "q8_0", "q5_0", "q4_1"])
def test_a_row_of_a_product_does_not_depend_on_its_batch(name: str, dtype: str) -> None:
    case = matmul(BY_NAME[dtype], 512, 80, (9, 21))
    with backend(name) as on:
        (together,) = run(on, case.graph, case.inputs, case.weights)
        for row in (0, 8, 9, 15, 29):
            alone = matmul(BY_NAME[dtype], 512, 80, (1, 0) if row < 9 else (0, 1))
            x = case.inputs["x"][row : row + 1]
            (got,) = run(on, alone.graph, {**alone.inputs, "x": x}, case.weights)
            np.testing.assert_array_equal(got[0], together[row])


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", [F16, Q8_0], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_attention_beside_quantized_weights(name: str, dtype: DType, head_dim: int) -> None:
    """It may compute in bf16 then, as closely as that is, and as deaf to its neighbours."""
    heads = Heads(6, 2, head_dim, dtype, window=90)
    seqs = (*decode(70), *prefill((0, 81), (64, 33), (101, 2)))
    with backend(name) as on:
        together = attend(on, heads, seqs, quantized=True)
    for seq, rows in zip(seqs, together, strict=True):
        limit = 2e-2 if dtype is Q8_0 else 1e-3 if seq.single else 6e-3
        assert relative_error(rows, expected(heads, seq)) <= limit
        with backend(name, 3) as on:
            (alone,) = attend(on, heads, (seq,), seq.key, quantized=True)
        np.testing.assert_array_equal(rows, alone)
    with backend(name) as on:
        (rest,) = attend(on, heads, (replace(seqs[1], past=45, new=36),), quantized=True)
    np.testing.assert_array_equal(rest, together[1][45:])


# Fusion changes nothing

HEAD_DIM, N_HEADS, N_KV, WIDTH = 32, 4, 2, 96


def _qkv(bias: bool, norm: bool, style: str) -> tuple[dict[str, Weight], Graph, Graph]:
    """Weights, the fused node, and its chain."""
    r = rng("qkv", bias, norm)
    sizes = {"q": N_HEADS, "k": N_KV, "v": N_KV}
    made = {
        n: weight(n, normal(r, heads * HEAD_DIM, WIDTH) / 8, Q8_0) for n, heads in sizes.items()
    }
    if bias:
        made |= {
            f"b{n}": weight(f"b{n}", normal(r, heads * HEAD_DIM), F32) for n, heads in sizes.items()
        }
    if norm:
        made |= {n: weight(n, normal(r, HEAD_DIM), F32) for n in ("nq", "nk")}
    rope = rope_spec(style, HEAD_DIM // 2)
    states = {"kv": KVSpec("kv", N_KV, HEAD_DIM, F16, 2)}

    b = GraphBuilder(specs(made), states)
    x, at, cells = b.input("x", (9, WIDTH), F32), b.input("at", (9,)), b.input("cells", (9,))
    eps = 1e-6 if norm else None
    attrs = FusedQKVAttrs("kv", N_HEADS, N_KV, HEAD_DIM, rope, 3, bias, eps)
    fused = b.build(b.node("fused_qkv", (x, at, cells), attrs, "qkv", tuple(made)))

    b = GraphBuilder(specs(made), states)
    x, at, cells = b.input("x", (9, WIDTH), F32), b.input("at", (9,)), b.input("cells", (9,))
    q, k, v = (b.matmul(x, n, n, 3, f"b{n}" if bias else None) for n in sizes)
    if norm:
        q = b.rms_norm(q, "nq", "nq", 1e-6, HEAD_DIM)
        k = b.rms_norm(k, "nk", "nk", 1e-6, HEAD_DIM)
    q = b.rope(q, at, RopeAttrs(N_HEADS, HEAD_DIM, rope), "rope_q")
    k = b.rope(k, at, RopeAttrs(N_KV, HEAD_DIM, rope), "rope_k")
    return made, fused, b.build(q, b.kv_store(k, v, cells, "kv", "store"))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("style", ["neox", "interleaved"])
@pytest.mark.parametrize(("bias", "norm"), [(False, False), (True, False), (False, True)])
def test_fused_qkv_is_its_chain_bit_for_bit(name: str, style: str, bias: bool, norm: bool) -> None:
    made, *graphs = _qkv(bias, norm, style)
    r = rng("qkv inputs")
    inputs = {
        "x": normal(r, 9, WIDTH),
        "at": np.arange(9) * 1000,
        "cells": np.array([5, 127, -1, 64, 65, 66, 0, -1, 63]),
    }
    results = []
    for graph in graphs:
        with backend(name) as on:
            on.add_state(graph.states["kv"])
            (q,) = run(on, graph, inputs, made)
            results.append((q, on.read_page("kv", 0), on.read_page("kv", 1)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize("dtype", ["f16", "q4_K"])
def test_fused_ffn_is_its_chain_bit_for_bit(name: str, act: Any, dtype: str) -> None:
    r = rng("ffn", act)
    made = {n: weight(n, normal(r, 80, 256) / 16, BY_NAME[dtype]) for n in ("gate", "up")}
    made["n"] = weight("n", normal(r, 256), F32)
    x = normal(r, 14, 256)
    results = []
    for fused in (True, False):
        b = GraphBuilder(specs(made), {})
        h = b.rms_norm(b.input("x", (14, 256), F32), "n", "norm", 1e-5)
        if fused:
            y = b.node("fused_ffn", (h,), FusedFFNAttrs(act, 5), "y", ("gate", "up"))
        else:
            gate, up = b.matmul(h, "gate", "gate", 5), b.matmul(h, "up", "up", 5)
            y = b.gated(gate, up, GatedAttrs(act), "y")
        with backend(name) as on:
            results += run(on, b.build(y), {"x": x}, made)
    np.testing.assert_array_equal(*results)


def test_a_norm_is_not_fused_where_its_input_is_overwritten() -> None:
    """The plan gives the norm's input away after the norm: here to the product's output."""
    r = rng("melt")
    made = {"w": weight("w", normal(r, 64, 64), Q8_0), "n": weight("n", normal(r, 64), F32)}
    x = normal(r, 40, 64)
    b = GraphBuilder(specs(made), {})
    source = b.input("x", (40, 64), F32)
    h = b.rms_norm(source, "n", "norm", 1e-5)
    y = b.matmul(h, "w", "y", 20)
    graph = b.build(y)
    with backend(BEST) as on:
        for node in (h, y):
            on.load(node, made)
        on.reserve(3 * x.nbytes)
        for offsets in ({0: 0, 1: x.nbytes, 2: 2 * x.nbytes}, {0: 0, 1: x.nbytes, 2: 0}):
            on.upload(0, x)
            on.compile(Split(graph, (h.id, y.id), offsets))()
            got = on.download(offsets[2], (40, 64), np.dtype(np.float32))
            x64 = x.astype(np.float64)
            normed = x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-5) * values(made["n"])
            assert relative_error(got, normed @ values(made["w"]).T) < 2e-2


# Inputs out of range end the step with the value


def _broken(build: Any, inputs: Mapping[str, Any], made: Mapping[str, Weight]) -> str:
    with backend(BEST) as on:
        spec = KVSpec("kv", 1, 16, F32, 2)
        on.add_state(spec)
        b = GraphBuilder(specs(made), {"kv": spec})
        with pytest.raises(BackendError) as error:
            run(on, b.build(build(b)), inputs, made)
    return str(error.value)


@pytest.mark.parametrize("token", [-1, 50])
def test_a_token_outside_of_the_table_is_named(token: int) -> None:
    made = {"t": weight("t", normal(rng(0), 50, 32), F16)}
    message = _broken(
        lambda b: b.embed(b.input("ids", (1,)), "t", "y"), {"ids": np.array([token])}, made
    )
    assert f"token id {token}" in message and "50" in message


def test_a_row_outside_of_its_source_is_named() -> None:
    x = normal(rng(0), 3, 32)
    message = _broken(
        lambda b: b.rows(b.input("x", (3, 32), F32), b.input("i", (1,)), "y"),
        {"x": x, "i": np.array([3])},
        {},
    )
    assert "index 3" in message


def test_a_cell_past_the_cache_is_named() -> None:
    x = normal(rng(0), 1, 16)
    message = _broken(
        lambda b: b.kv_store(
            b.input("k", (1, 16), F32), b.input("v", (1, 16), F32), b.input("c", (1,)), "kv", "y"
        ),
        {"k": x, "v": x, "c": np.array([128])},
        {},
    )
    assert "cell 128" in message


@pytest.mark.parametrize("singles", [0, 1])
@pytest.mark.parametrize(
    ("position", "slot", "page", "said"),
    [(64, 0, 0, "position 64"), (0, 1, 0, "slot 1"), (0, 0, 2, "page 2"), (0, 0, -1, "page -1")],
)
def test_an_unusable_place_in_the_cache_is_named(
    singles: int, position: int, slot: int, page: int, said: str
) -> None:
    x = normal(rng(0), 1, 16)

    def build(b: GraphBuilder) -> Any:
        q = b.input("q", (1, 16), F32)
        at, seqs, table = b.input("at", (1,)), b.input("seqs", (1,)), b.input("table", (1, 1))
        stored = b.kv_store(q, q, b.input("c", (1,)), "kv", "store")
        attrs = AttentionAttrs("kv", 1, 1, 16, 1.0, singles)
        return b.attention(q, at, seqs, table, stored, attrs, "y")

    inputs = {"q": x, "at": [position], "seqs": [slot], "table": [[page]], "c": [0]}
    assert said in _broken(build, inputs, {})


def test_more_real_rows_than_places_are_named() -> None:
    case = matmul(F16, 64, 16, (2, 4), counts=(2, 4))
    with backend(BEST) as on, pytest.raises(BackendError, match="rows 3"):
        run(on, case.graph, {**case.inputs, "counts": np.array([3, 0, 0])}, case.weights)


def test_a_step_after_a_broken_one_is_right() -> None:
    made = {"t": weight("t", normal(rng(0), 50, 32), F16)}
    b = GraphBuilder(specs(made), {})
    graph = b.build(b.embed(b.input("ids", (1,)), "t", "y"))
    with backend(BEST) as on:
        with pytest.raises(BackendError):
            run(on, graph, {"ids": np.array([99])}, made)
        (got,) = run(on, graph, {"ids": np.array([7])}, made)
    np.testing.assert_array_equal(got[0], values(made["t"])[7].astype(np.float32))


# Life, memory, choice


def test_an_unsupported_weight_type_is_named_with_the_supported_ones() -> None:
    b = GraphBuilder({"w": WeightSpec(BY_NAME["tq1_0"], (256, 16))}, {})
    y = b.matmul(b.input("x", (1, 256), F32), "w", "y", 1)
    with backend(BEST) as on:
        reason = on.supports(y, b.build(y))
    assert reason and "tq1_0" in reason and "q4_K" in reason and "iq4_xs" in reason


def test_a_head_dimension_without_kernel_is_named() -> None:
    states = {"kv": KVSpec("kv", 1, 72, F16, 2)}
    b = GraphBuilder({}, states)
    k, cells = b.input("k", (1, 72), F32), b.input("c", (1,))
    y = b.kv_store(k, k, cells, "kv", "y")
    with backend(BEST) as on:
        reason = on.supports(y, b.build(y))
    assert reason and "72" in reason and "16" in reason


def test_an_instruction_set_of_another_processor_is_refused() -> None:
    missing = ({"scalar", "avx2", "avx512", "neon"} - set(available_isas())).pop()
    with pytest.raises(UnsupportedError, match=missing):
        create_backend("cpu", Settings(cpu_isa=missing))


def test_a_closed_backend_says_so() -> None:
    on = create_backend("cpu", Settings(threads=2))
    on.close()
    on.close()
    for call in (lambda: on.reserve(1), lambda: on.add_state(KVSpec("kv", 1, 16, F16, 1))):
        with pytest.raises(ClosedError):
            call()


def test_a_split_of_an_earlier_arena_does_not_run() -> None:
    case = matmul(F16, 64, 16, (1, 0))
    with backend(BEST) as on:
        (y,) = case.graph.outputs
        on.load(case.graph.nodes[y], case.weights)
        first = on.reserve(1 << 12)
        offsets = {node.id: 1024 * node.id for node in case.graph.nodes}
        step = on.compile(Split(case.graph, (y,), offsets))
        step()
        assert on.reserve(1 << 12) == first
        assert on.reserve(1 << 28) != first
        with pytest.raises(BackendError, match="generation"):
            step()


def test_what_does_not_fit_is_refused_before_it_is_taken() -> None:
    with backend(BEST) as on:
        with pytest.raises(OutOfMemoryError):
            on.reserve(1 << 46)
        with pytest.raises(OutOfMemoryError):
            on.add_state(KVSpec("kv", 8, 128, F32, 1 << 28))


def test_loading_twice_takes_nothing() -> None:
    case = matmul(Q8_0, 512, 80, (1, 0), bias=True)
    with backend(BEST) as on:
        node = case.graph.nodes[case.graph.outputs[0]]
        assert on.load(node, case.weights) >= case.weights["w"].data.size
        assert on.load(node, case.weights) == 0


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_closing_gives_the_memory_back() -> None:
    before = _resident()
    on = create_backend("cpu", Settings(threads=2))
    on.reserve(64 << 20)
    on.upload(0, np.ones(64 << 20, np.uint8))
    assert _resident() - before > 50 << 20
    on.close()
    assert _resident() - before < 30 << 20


def test_threads_follow_the_setting() -> None:
    with backend(BEST, threads=3) as on:
        assert isinstance(on, CpuBackend)
        assert on.threads == 3
    fitting: Backend = create_backend("cpu", Settings())
    assert isinstance(fitting, CpuBackend)
    assert fitting.threads >= 1
    fitting.close()
