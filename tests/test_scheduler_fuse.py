"""Fusing: every chain of the models is found, nothing else is, and the numbers stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from backends_fake import PartialReference, Recorder
from graphs import HEAD, ROPE, ROWS, builder, matrix, vector
from tiny_models import TINY, Tensors, expected, rewritten, tiny

from minfer.backends import Backend, create_backend
from minfer.dtypes import BY_NAME, F16, F32
from minfer.engine import Engine, EngineConfig
from minfer.errors import BackendError
from minfer.gguf import GGUFFile, TensorData, dequantize, open_gguf, quantize
from minfer.graph import (
    AttentionAttrs,
    FusedFFNAttrs,
    FusedQKVAttrs,
    GatedAttrs,
    Graph,
    Node,
    RopeAttrs,
    verify,
)
from minfer.llm import file_weights
from minfer.models import StepShape, build_decoder, model_config
from minfer.scheduler import Device, Plan, make_plan
from minfer.settings import Settings

SHAPE = StepShape(2, 8, 3, 1, 4, 4, F16)


def fused(graph: Graph, backend: Backend | None = None, **switches: bool) -> Plan:
    settings = Settings(verify=True, **switches)
    return make_plan(graph, [Device(backend or Recorder())], settings)


def count(plan: Plan) -> Counter[str]:
    return Counter(n.op for n in plan.graph.nodes)


@pytest.mark.parametrize("name", TINY)
def test_the_chains_of_every_model_are_found(name: str) -> None:
    config = model_config(tiny(name))
    n = len(config.layers)
    plan = fused(build_decoder(config, SHAPE))
    found = count(plan)
    assert (found["fused_qkv"], found["fused_ffn"], found["gated"], found["rope"]) == (n, n, 0, 0)
    residuals = sum(getattr(x.attrs, "residual", False) for x in plan.graph.nodes)
    # where a norm follows the product, the sum is the norm's
    assert (residuals, found["add"]) == (2 * n, 0)
    adders = {x.op for x in plan.graph.nodes if getattr(x.attrs, "residual", False)}
    assert adders == ({"rms_norm"} if config.post_norms else {"matmul"})
    for node in plan.graph.nodes:
        if isinstance(node.attrs, FusedQKVAttrs):
            assert node.attrs.bias == config.qkv_bias
            assert node.attrs.norm_eps == (config.eps if config.qk_norm else None)
            assert (node.attrs.single_rows, node.shape[0]) == (2, 10)
            assert node.weights[:3] == tuple(f"blk.{node.layer}.attn_{p}.weight" for p in "qkv")
        if isinstance(node.attrs, FusedFFNAttrs):
            assert [w.split(".")[2] for w in node.weights] == ["ffn_gate", "ffn_up"]
            last = node.layer == n - 1
            assert (node.attrs.single_rows, node.shape[0]) == ((3, 3) if last else (2, 10))


@pytest.mark.parametrize(
    ("switches", "gone"),
    [({"no_fuse_qkv": True}, "fused_qkv"), ({"no_fuse_ffn": True}, "fused_ffn")],
)
def test_a_switch_keeps_the_chain(switches: dict[str, bool], gone: str) -> None:
    graph = build_decoder(model_config(tiny("qwen3")), SHAPE)
    without, with_it = count(fused(graph, **switches)), count(fused(graph))
    assert without[gone] == 0
    assert with_it[gone] == 2
    (kept,) = {"fused_qkv", "fused_ffn"} - {gone}
    assert without[kept] == with_it[kept]


def test_a_backend_that_knows_no_fused_node_keeps_the_chains() -> None:
    graph = build_decoder(model_config(tiny("llama")), SHAPE)

    def refuses(node: Node) -> str | None:
        return "plain only" if getattr(node.attrs, "residual", False) else None

    plan = fused(graph, PartialReference("plain", refuses))
    assert plan.graph == graph


def test_no_chain_is_fused_across_backends() -> None:
    graph = build_decoder(model_config(tiny("llama")), SHAPE)
    whole = Recorder()
    other = PartialReference("other")

    class Picky(Recorder):
        name = "picky"

        def supports(self, node: Node, graph: Graph) -> str | None:
            return "not mine" if node.op in ("gated", "rope") else None

    plan = make_plan(graph, [Device(Picky()), Device(other)], Settings(verify=True))
    assert count(plan)["fused_qkv"] == count(plan)["fused_ffn"] == 0
    assert count(fused(graph, whole))["fused_qkv"] == 2


# -- chains that look alike but must stay ---------------------------------------------------


WEIGHTS = {
    "q": matrix(HEAD, 2 * HEAD),
    "k": matrix(HEAD, HEAD),
    "v": matrix(HEAD, HEAD),
    "square": matrix(HEAD, HEAD),
    "norm_q": vector(HEAD),
    "norm_all": vector(2 * HEAD),
    "norm_k": vector(HEAD),
}


def qkv_graph(**odd: object) -> Graph:
    """The attention part of a block, with one thing odd."""
    g = builder(WEIGHTS)
    x = g.input("x", (ROWS, HEAD), F32)
    at = g.input("at", (ROWS,))
    other_at = g.input("other_at", (ROWS,))
    table = g.input("table", (1, 2))
    q = g.matmul(x, "q", "q", 1)
    k = g.matmul(g.scale(x, 2.0, "other") if odd.get("input") else x, "k", "k", 1)
    v = g.matmul(x, "v", "v", 1)
    if odd.get("norm"):
        width = 2 * HEAD if odd["norm"] == "all" else HEAD
        q = g.rms_norm(q, "norm_all" if width > HEAD else "norm_q", "q_norm", 1e-6, width)
        k = g.rms_norm(k, "norm_k", "k_norm", 1e-5 if odd["norm"] == "eps" else 1e-6, HEAD)
    if odd.get("v norm"):
        v = g.rms_norm(v, "norm_k", "v_norm", 1e-6, HEAD)
    rope = RopeAttrs(2, HEAD, ROPE)
    q = g.rope(q, other_at if odd.get("positions") else at, rope, "q_rope")
    if not odd.get("no k rope"):
        k = g.rope(k, at, RopeAttrs(1, HEAD, ROPE), "k_rope")
    stored = g.kv_store(k, v, at, "kv.0", "store")
    attrs = AttentionAttrs("kv.0", 2, 1, HEAD, 1.0, 1)
    a = g.attention(q, at, at, table, stored, attrs, "attention")
    return g.build(a, *([q] if odd.get("q seen") else []), *([v] if odd.get("v seen") else []))


def test_the_plain_chain_is_fused() -> None:
    for odd in ({}, {"norm": "head"}):
        plan = fused(qkv_graph(**odd))
        assert count(plan)["fused_qkv"] == 1
        assert count(plan)["matmul"] == 0


@pytest.mark.parametrize(
    "odd",
    [
        {"input": True},
        {"norm": "all"},
        {"norm": "eps"},
        {"v norm": True},
        {"positions": True},
        {"no k rope": True},
        {"q seen": True},
        {"v seen": True},
    ],
    ids=str,
)
def test_a_chain_that_differs_stays(odd: dict[str, object]) -> None:
    graph = qkv_graph(**odd)
    verify(graph)
    assert count(fused(graph))["fused_qkv"] == 0


def test_only_a_product_that_nobody_else_reads_takes_the_sum() -> None:
    g = builder(WEIGHTS)
    x = g.input("x", (ROWS, HEAD), F32)
    taken = g.add(g.matmul(x, "square", "a", 0), x, "taken")
    seen = g.matmul(taken, "square", "b", 0)
    kept = g.add(seen, taken, "kept")
    twice = g.matmul(kept, "square", "c", 0)
    doubled = g.add(twice, twice, "doubled")
    both = g.add(g.matmul(x, "square", "d", 0), g.matmul(doubled, "square", "e", 0), "both")
    plan = fused(g.build(both, seen))
    assert {n.name for n in plan.graph.nodes if getattr(n.attrs, "residual", False)} == {"a", "d"}
    assert {n.name for n in plan.graph.nodes if n.op == "add"} == {"kept", "doubled"}


def test_gate_and_up_must_be_two_products_of_one_input() -> None:
    for kind in ("same", "other input", "seen"):
        g = builder(WEIGHTS)
        x = g.input("x", (ROWS, HEAD), F32)
        gate = g.matmul(x, "square", "gate", 0)
        other = g.scale(x, 2.0, "other") if kind == "other input" else x
        up = gate if kind == "same" else g.matmul(other, "k", "up", 0)
        y = g.gated(gate, up, GatedAttrs("silu"), "y")
        graph = g.build(y, up) if kind == "seen" else g.build(y)
        assert count(fused(graph))["fused_ffn"] == 0, kind


# -- numbers --------------------------------------------------------------------------------


MIXED = {"attn_v": "q8_0", "attn_k": "q4_0", "ffn_down": "q8_0", "ffn_up": "q4_1"}


def mixed_types(tensors: Tensors, types: Mapping[str, str] = MIXED) -> Tensors:
    """Matrices of the blocks in these types, by their names; the rest as it is."""
    changed = dict(tensors)
    for name, t in tensors.items():
        kind = types.get(name.split(".")[2]) if name.endswith(".weight") and "blk" in name else None
        if kind and t.shape[0] % 32 == 0:
            data = np.frombuffer(t.data, np.uint8)
            packed = quantize(dequantize(data, t.dtype), BY_NAME[kind])
            changed[name] = TensorData(name, BY_NAME[kind], t.shape, packed.tobytes())
    return changed


def logits_of(file: GGUFFile, settings: Settings) -> Mapping[str, np.ndarray]:
    try:
        backend = create_backend("cpu", settings)
    except (BackendError, ImportError) as error:
        pytest.skip(f"no cpu backend: {error}")
    sizes = EngineConfig(n_ctx=128, n_cells=128, max_sequences=2, cache_type=F32)
    engine = Engine(model_config(file), file_weights(file), [Device(backend)], sizes, settings)
    ids = expected("llama")["ids"].tolist()[:40]
    found = {path: engine.forward(ids, single=path == "decode") for path in ("decode", "prefill")}
    engine.close()
    return found


@pytest.mark.parametrize("mixed", [False, True], ids=["one type", "mixed types"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_fused_equals_unfused_bit_for_bit(tmp_path: Path, name: str, mixed: bool) -> None:
    """llama is the plain chain, qwen2 has biases, qwen3 norms, gemma3 norms that add."""
    change = mixed_types if mixed else None
    file = open_gguf(
        rewritten(tmp_path / "m.gguf", name, {"general.quantization_version": 2}, change)
    )
    apart = logits_of(file, Settings(threads=2, no_fuse_qkv=True, no_fuse_ffn=True))
    together = logits_of(file, Settings(threads=2))
    for path, logits in apart.items():
        np.testing.assert_array_equal(together[path], logits, err_msg=path)
