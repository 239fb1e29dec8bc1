"""Nodes become launches without a GPU: right arguments, a geometry made of the plan alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends_fake import OnPaper
from cuda_layers import layer
from cuda_lowering import CARDS, lower, lower_plan
from hypothesis import given
from hypothesis import strategies as st
from op_cases import Case, cases
from tiny_models import tiny

from minfer.backends import Split
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.kv import ELEMENT_BYTES, KVState, scale_group
from minfer.backends.cuda.launch import Launch
from minfer.backends.cuda.ops import OPS, attention, attention_decode, attention_prefill
from minfer.backends.cuda.ops.qkv import melting_projections
from minfer.backends.cuda.ops.rope import frequencies
from minfer.dtypes import F16, F32, Q8_0
from minfer.engine import EngineConfig
from minfer.graph import OPS as GRAPH_OPS
from minfer.graph import (
    PAGE,
    AttentionAttrs,
    FusedQKVAttrs,
    GraphBuilder,
    KVSpec,
    RopeSpec,
    WeightSpec,
)
from minfer.models import build_decoder, model_config
from minfer.scheduler import Device, make_plan
from minfer.settings import Settings


def names(launches: list[Launch]) -> list[str]:
    return [launch.kernel.name for launch in launches if "attention" in launch.kernel.name]


def test_every_op_of_the_graph_has_a_module() -> None:
    assert set(OPS) == set(GRAPH_OPS) - {"input"}


@pytest.mark.parametrize("facts", CARDS, ids=lambda f: f.name)
@pytest.mark.parametrize("case", list(cases()), ids=lambda c: c.name)
def test_every_case_of_the_op_table_lowers(case: Case, facts: Facts) -> None:
    assert lower(case.graph, facts)


@pytest.mark.parametrize("facts", CARDS, ids=lambda f: f.name)
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("head_dim", range(16, attention.MAX_HEAD_DIM + 1, 16))
def test_a_layer_fits_every_card(head_dim: int, kv: str, facts: Facts) -> None:
    launches = lower(layer(head_dim, kv, 40, 8), facts)
    assert all(launch.overlap for launch in launches)
    assert names(launches)[0] == "attention_decode"


@pytest.mark.parametrize("own", [True, False])
def test_projections_melt_into_the_attention_over_their_state(own: bool) -> None:
    """Over another state's keys it would store theirs there."""
    states = {name: KVSpec(name, 2, 64, F16, 2) for name in ("kv.0", "kv.1")}
    sizes = {"q": 256, "k": 128, "v": 128}
    weights = {name: WeightSpec(Q8_0, (64, n)) for name, n in sizes.items()}
    builder = GraphBuilder(weights, states)
    x = builder.input("x", (8, 64), F32)
    positions, cells, seqs = (builder.input(n, (8,)) for n in ("positions", "cells", "seqs"))
    table = builder.input("page_table", (8, 2))
    rope = RopeSpec("neox", (1.0,) * 32)
    first, second = (
        builder.node(
            "fused_qkv",
            (x, positions, cells),
            FusedQKVAttrs(state, 4, 2, 64, rope, 8, False, None),
            state,
            tuple(weights),
        )
        for state in states
    )
    state, writer = ("kv.1", second) if own else ("kv.0", first)
    attrs = AttentionAttrs(state, 4, 2, 64, 0.125, 8)
    y = builder.attention(second, positions, seqs, table, writer, attrs, "attention")
    graph = builder.build(y)
    nodes = tuple(node.id for node in graph.nodes if node.op != "input")
    assert set(melting_projections(Split(graph, nodes, {}))) == ({second.id} if own else set())


@pytest.mark.parametrize(
    ("name", "a_layer"), [("llama", 5), ("qwen2", 5), ("qwen3", 5), ("gemma3", 7)]
)
def test_launches_of_a_decode_step(name: str, a_layer: int) -> None:
    """A layer: the QKV product, attention with what lies between, output, gate with up, down.

    gemma3 norms what its blocks give back before it adds it. A step has the embedding, two choices
    of rows, the last norm, the head and both parts of the sampling besides.
    """
    config = model_config(tiny(name))
    shape = EngineConfig(256, 1024, max_sequences=4).step_shape(1, 0, 1, sampled=True)
    plan = make_plan(build_decoder(config, shape), [Device(OnPaper())], Settings())
    kernels = [launch.kernel.name for launch in lower_plan(plan)]
    # which f16 weights need besides
    helpers = ("matmul_act", "matmul_act_normed", "matmul_batch_finish")
    assert sum(name not in helpers for name in kernels) == a_layer * len(config.layers) + 7


@pytest.mark.parametrize("facts", CARDS, ids=lambda f: f.name)
@pytest.mark.parametrize("sequences", [4, 16, 64])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_batch_has_no_pass_between_products(name: str, sequences: int, facts: Facts) -> None:
    """Attention and gate with up make the halves that the products after them multiply.

    Two are left: of the rows chosen after the last attention, and of the last norm.
    """
    config = model_config(tiny(name))
    shape = EngineConfig(256, 16384, max_sequences=64).step_shape(sequences, 0, sequences)
    plan = make_plan(build_decoder(config, shape), [Device(OnPaper())], Settings())
    kernels = [launch.kernel.name for launch in lower_plan(plan, facts)]
    assert kernels.count("matmul_act") == 2


@pytest.mark.parametrize("facts", CARDS, ids=lambda f: f.name)
@pytest.mark.parametrize("sequences", [2, 4, 16, 64])
def test_products_of_a_batch_share_the_norms_between_them(sequences: int, facts: Facts) -> None:
    """On Hopper all but the first, before which there is no product."""
    config = model_config(tiny("llama"))
    shape = EngineConfig(256, 16384, max_sequences=64).step_shape(sequences, 0, sequences)
    plan = make_plan(build_decoder(config, shape), [Device(OnPaper())], Settings())
    kernels = [launch.kernel.name for launch in lower_plan(plan, facts)]
    apart = 1 if facts.hopper else 2 * len(config.layers)
    assert kernels.count("matmul_act_normed") == apart


def test_rows_go_to_the_kernel_of_their_path() -> None:
    assert names(lower(layer(128, "f16", 4, 4))) == ["attention_decode"]
    assert names(lower(layer(128, "f16", 64, 0))) == ["attention_prefill_sm90"]
    assert names(lower(layer(128, "f16", 64, 0), CARDS[1])) == ["attention_prefill"]
    assert names(lower(layer(80, "f16", 64, 0))) == ["attention_prefill"]
    assert names(lower(layer(128, "q8_0", 64, 4))) == [
        "attention_decode",
        "attention_expand",
        "attention_prefill_sm90",
    ]
    # f32 caches, and the switch, keep every row on the split kernel, 64 rows a launch
    assert names(lower(layer(128, "f32", 100, 4))) == ["attention_decode"] * 2
    plain = lower(layer(128, "f16", 100, 4), no_fa_prefill=True)
    assert names(plain) == ["attention_decode"] * 2


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 32]))
def test_parts_of_a_row_depend_on_the_model_alone(rows: int, kv_heads: int) -> None:
    alone = lower(layer(64, "f16", 1, 1, heads=32, kv_heads=kv_heads))[-1]
    batch = lower(layer(64, "f16", rows, rows, heads=32, kv_heads=kv_heads), CARDS[2])[-1]
    one, many = dict(alone.kernel.defines), dict(batch.kernel.defines)
    assert one["SPLITS"] == many["SPLITS"]
    assert one.keys() == many.keys()
    # blocks of 8 strands' warps in all fill a multiprocessor, whichever the variant
    assert batch.grid[0] * int(many["WARPS"]) <= CARDS[2].n_sms * attention_decode.STRANDS
    assert batch.block == 32 * int(many["WARPS"])


def test_a_single_row_fills_the_card_at_depth() -> None:
    for tiles in range(1, 33):
        splits = attention_decode.n_splits(tiles)
        assert splits in (16, 32, 64)
        assert splits == 64 or splits * tiles >= 128


def test_shared_memory_is_what_the_kernels_lay_out() -> None:
    # the sums of attention_prefill_sm90: queries, rings, barriers, in that order
    assert attention_prefill.hopper_shared_bytes(128) == 128 * 256 + 3 * 2 * 128 * 256 + 48
    assert attention_prefill.shared_bytes(256) == 99 << 10  # just fits the smallest cards
    for head_dim in (64, 80, 96, 128, 256):
        assert attention_decode.shared_bytes(head_dim, 64, 8) <= 99 << 10


@pytest.mark.parametrize("kv", [F32, F16, Q8_0], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_planes_of_a_state_lie_one_after_another(head_dim: int, kv: Any) -> None:
    state = KVState(KVSpec("kv", 3, head_dim, kv, 5), 4096)
    values = PAGE * 3 * head_dim * ELEMENT_BYTES[kv]
    at = 4096
    for address, page in state.planes:
        assert address == at
        at += 5 * page
    assert at == 4096 + state.nbytes
    assert state.planes[0][1] == values
    assert (len(state.planes) == 4) == (kv is Q8_0)
    if head_dim % 32 == 0:
        assert state.nbytes == state.spec.nbytes  # exactly the file format's bytes
    else:
        assert scale_group(head_dim) == 16


def test_frequencies_are_turns_to_double_precision() -> None:
    inverse = tuple(10000.0 ** (-i / 64) for i in range(64))
    table = frequencies(RopeSpec("neox", inverse)).astype(np.float64)
    turns = np.array(inverse) / (2 * np.pi)
    assert (np.abs(table.sum(1) - turns) <= 2.0**-45 * turns).all()
