"""Synthetic models: real sizes, every architecture computed, files written only once."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import synthetic
from bench.engines import Minfer

from minfer.dtypes import DType
from minfer.gguf import open_gguf
from minfer.models import model_config
from minfer.settings import Settings

SMALL = {"n_layers": 6, "width": 256, "n_heads": 4, "n_kv_heads": 2, "ffn_width": 512}
ONE_EACH = ("qwen2-7b-q4_k_m", "llama3-8b-q4_k_m", "qwen3-8b-q4_k_m", "gemma3-4b-q4_k_m")
REAL_BYTES = {
    "qwen2-7b-q4_k_m": 4.68e9,
    "qwen2-7b-q8_0": 8.10e9,
    "llama3-8b-q4_k_m": 4.92e9,
    "qwen3-8b-q4_k_m": 5.03e9,
    "gemma3-4b-q4_k_m": 2.49e9,
}
"""Files of these models as they are published."""


def small(monkeypatch: pytest.MonkeyPatch, name: str) -> synthetic.Shape:
    """Make the model `name` a small one of the same kind."""
    shape = replace(synthetic.MODELS[name], **SMALL, head_dim=64, n_vocab=512)  # type: ignore[arg-type]
    monkeypatch.setitem(synthetic.MODELS, name, shape)
    return shape


@pytest.mark.parametrize("name", synthetic.MODELS)
def test_rows_fit_the_blocks(name: str) -> None:
    listed = list(synthetic.tensors(synthetic.MODELS[name]))
    assert len({tensor for tensor, _, _ in listed}) == len(listed)
    for _, dtype, dims in listed:
        assert dims[0] % dtype.block_items == 0


@pytest.mark.parametrize(("name", "expected"), REAL_BYTES.items())
def test_files_are_as_large_as_real_ones(name: str, expected: float) -> None:
    def nbytes(dtype: DType, dims: tuple[int, ...]) -> int:
        return dtype.nbytes(prod(dims))

    total = sum(nbytes(d, dims) for _, d, dims in synthetic.tensors(synthetic.MODELS[name]))
    assert total == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ONE_EACH)
def test_each_architecture_computes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = small(monkeypatch, name)
    path = synthetic.find(name, tmp_path)
    with open_gguf(path) as file:
        config = model_config(file)
    assert (config.arch, config.head_dim, config.n_vocab) == (shape.arch, 64, 512)
    assert {layer.window for layer in config.layers} == {0, shape.window}
    engine = Minfer(path, Settings(device="cpu", threads=2), n_ctx=256, batch=1)
    ids = np.random.default_rng(1).integers(0, 255, 24).tolist()
    many, one = engine.logits(ids, False), engine.logits(ids, True)
    engine.close()
    assert np.isfinite(many).all() and many.std() > 0.01
    assert np.linalg.norm(many - one) < 0.05 * np.linalg.norm(one)


def test_a_file_that_is_there_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = ONE_EACH[0]
    small(monkeypatch, name)
    path = synthetic.find(name, tmp_path)
    written = path.stat().st_mtime_ns
    assert synthetic.find(name, tmp_path) == path
    assert path.stat().st_mtime_ns == written


def test_weights_differ_from_layer_to_layer_and_token_to_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, ONE_EACH[0])
    with open_gguf(synthetic.find(ONE_EACH[0], tmp_path)) as file:
        queries = {bytes(file.tensors[f"blk.{i}.attn_q.weight"].data) for i in range(6)}
        assert len(queries) == 6
        for name in ("token_embd.weight", "output.weight"):
            rows = np.asarray(file.tensors[name].data).reshape(512, -1)
            assert len(np.unique(rows, axis=0)) == 512
