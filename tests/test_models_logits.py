"""The six tiny models against Hugging Face's logits, on both paths, and their greedy tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, Tensors, expected, generate, make_engine, rewritten

from minfer.dtypes import F16, F32, Q8_0
from minfer.engine import SamplingParams
from minfer.gguf import open_gguf

TOLERANCE = {"reference": 1e-4, "cpu": 2e-3, "cuda": 4e-3}
MARGIN = {"reference": 1e-3, "cpu": 0.02, "cuda": 0.05}
"""Where the two best logits are nearer than this, rounding may decide."""


@pytest.mark.parametrize("single", [False, True], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_hugging_face(name: str, single: bool, backend_name: str) -> None:
    engine = make_engine(name, backend_name, cache_type=F32)
    right = expected(name)
    logits = engine.forward(right["ids"].tolist(), single=single)
    engine.close()
    error = np.abs(logits - right["logits"]).max() / np.abs(right["logits"]).max()
    assert logits.shape == right["logits"].shape
    assert error < TOLERANCE[backend_name]


@pytest.mark.parametrize("name", TINY)
def test_greedy_tokens_are_those_of_hugging_face(name: str, backend_name: str) -> None:
    engine = make_engine(name, backend_name, cache_type=F32, prefill_rows=16)
    right = expected(name)
    close = np.flatnonzero(right["greedy_margin"] < MARGIN[backend_name])
    certain = int(close[0]) if close.size else right["greedy"].size
    params = SamplingParams(temperature=0.0, max_tokens=right["greedy"].size)
    found = generate(engine, right["greedy_prompt"].tolist(), params)
    engine.close()
    assert found[:certain] == right["greedy"][:certain].tolist()


def test_a_tied_head_is_the_embedding_table(tmp_path: Path, backend_name: str) -> None:
    def tied(tensors: Tensors) -> Tensors:
        return {n: t for n, t in tensors.items() if n != "output.weight"}

    def copied(tensors: Tensors) -> Tensors:
        table = replace(tensors["token_embd.weight"], name="output.weight")
        return tensors | {"output.weight": table}

    logits = []
    for change in (tied, copied):
        path = rewritten(tmp_path / f"{change.__name__}.gguf", "llama", change=change)
        engine = make_engine("llama", backend_name, open_gguf(path))
        logits.append(engine.forward(list(range(20))))
        engine.close()
    np.testing.assert_array_equal(*logits)


def test_f16_and_q8_0_caches_change_logits_a_little(backend_name: str) -> None:
    ids = expected("llama")["ids"].tolist()
    exact = None
    for cache_type, tolerance in ((F32, 0.0), (F16, 2e-3), (Q8_0, 3e-2)):
        engine = make_engine("llama", backend_name, cache_type=cache_type)
        logits = engine.forward(ids)
        engine.close()
        exact = logits if exact is None else exact
        error = np.abs(logits - exact).max() / np.abs(exact).max()
        assert (error > 0) == (tolerance > 0)
        # halves of activations, on CUDA, round differently where keys and values do
        assert error <= tolerance * (1.5 if backend_name == "cuda" else 1)


@pytest.mark.parametrize("single", [False, True], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", TINY)
def test_a_q8_0_cache_stays_near_over_hundreds_of_tokens(
    name: str, single: bool, backend_name: str
) -> None:
    """Nothing adds up: the last hundred of 600 tokens are no further off than the first."""
    ids = np.random.default_rng(0).integers(0, 512, 600).tolist()
    found = []
    for cache_type in (F16, Q8_0):
        sizes = {"n_ctx": 640, "n_cells": 640, "prefill_rows": 64}
        engine = make_engine(name, backend_name, cache_type=cache_type, **sizes)
        logits = engine.forward(ids, single=single).astype(np.float64)
        engine.close()
        logits -= logits.max(-1, keepdims=True)
        found.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    p, q = found
    divergence = (np.exp(p) * (p - q)).sum(-1)
    assert divergence.max() > 0
    assert divergence.mean() < 0.01
    assert divergence[-100:].mean() < 0.01
