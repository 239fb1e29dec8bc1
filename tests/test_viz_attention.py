"""Attention weights computed again are those that the attention node used."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TINY, expected, make_engine, tiny

from minfer.backends.reference import ops
from minfer.dtypes import F32
from minfer.errors import RequestError
from minfer.gguf import dequantize
from minfer.viz.attention import _Capture, attention_pattern


@pytest.mark.parametrize("name", TINY)
def test_weights_times_values_are_the_nodes_output(name: str) -> None:
    """Layer 1, its last head: V is projected here, and the sum compared with the node's value."""
    engine = make_engine(name, cache_type=F32)
    file, config = tiny(name), engine.model
    ids = expected(name)["ids"].tolist()[:20]
    head, layer = config.n_heads - 1, 1
    weights = attention_pattern(engine, file, ids, layer, head)
    assert weights.shape == (20, 20)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    assert np.triu(weights, 1).max() == 0
    captured = _Capture(layer)
    outputs = []

    class Outputs(_Capture):
        def run(self, compiled, chunks):  # type: ignore[no-untyped-def]
            super().run(compiled, chunks)
            compiled.upload_inputs()
            for node, step in compiled.steps():
                step()
                if node is not None and node.op == "attention" and node.layer == layer:
                    outputs.append(compiled.read(node, len(ids)))

    captured = Outputs(layer)
    engine.watch(captured)
    engine.forward(ids)
    engine.watch(None)
    kv = head * config.n_kv_heads // config.n_heads
    features = slice(kv * config.head_dim, (kv + 1) * config.head_dim)
    tensor = file.tensors[f"blk.{layer}.attn_v.weight"]
    v_weight = dequantize(tensor.data, tensor.dtype).reshape(tensor.shape[::-1])[features]
    v = ops.matmul(captured.rows[0], v_weight)
    if config.qkv_bias:
        bias = file.tensors[f"blk.{layer}.attn_v.bias"]
        v = v + dequantize(bias.data, bias.dtype)[features]
    mine = slice(head * config.head_dim, (head + 1) * config.head_dim)
    np.testing.assert_allclose(weights @ v, outputs[0][:, mine], rtol=1e-3, atol=1e-4)
    engine.close()


def test_fused_projections_give_the_same(backend_name: str) -> None:
    ids = expected("qwen3")["ids"].tolist()[:20]
    engine = make_engine("qwen3", backend_name, prefill_rows=8)
    found = attention_pattern(engine, tiny("qwen3"), ids, 1, 0)
    reference = make_engine("qwen3")
    np.testing.assert_allclose(
        found, attention_pattern(reference, tiny("qwen3"), ids, 1, 0), atol=5e-3
    )
    engine.close()
    reference.close()


@pytest.mark.parametrize(("layer", "head", "where"), [(2, 0, "layer"), (0, 99, "head")])
def test_what_is_not_there_is_refused(layer: int, head: int, where: str) -> None:
    engine = make_engine("qwen2")
    with pytest.raises(RequestError, match="is not among 0 to") as caught:
        attention_pattern(engine, tiny("qwen2"), [1, 2], layer, head)
    assert caught.value.where == where
    engine.close()
