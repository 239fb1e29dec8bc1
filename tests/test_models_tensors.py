"""The tensors of a file are those of its architecture: none missing, misshapen or left over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, Tensors, rewritten, tensor, tiny

from minfer.dtypes import F16
from minfer.errors import FormatError, UnsupportedError
from minfer.gguf import open_gguf
from minfer.models import StepShape, build_decoder, model_config
from minfer.models.tensors import expected_tensors

SHAPE = StepShape(1, 0, 1, n_slots=1, max_pages=1, n_pages=1, kv_dtype=F16)


@pytest.mark.parametrize("name", TINY)
def test_the_list_is_what_the_graph_reads(name: str) -> None:
    config = model_config(tiny(name))
    graph = build_decoder(config, SHAPE)
    assert {n: w.shape for n, w in graph.weights.items()} == expected_tensors(config)


@pytest.mark.parametrize("name", TINY)
def test_any_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    config = model_config(tiny(name))
    for index, missing in enumerate(expected_tensors(config)):
        if missing == "output.weight" or index % 5:
            continue

        def without(tensors: Tensors, gone: str = missing) -> Tensors:
            return {n: t for n, t in tensors.items() if n != gone}

        path = rewritten(tmp_path / f"{index}.gguf", name, change=without)
        with pytest.raises(FormatError, match="missing") as caught:
            model_config(open_gguf(path))
        assert caught.value.where == missing


def with_tensor(tmp_path: Path, name: str, values: np.ndarray) -> Path:
    return rewritten(
        tmp_path / "m.gguf", "llama", change=lambda t: t | {name: tensor(name, values)}
    )


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    path = with_tensor(tmp_path, "blk.1.attn_norm.weight", np.ones(32))
    with pytest.raises(FormatError, match=r"\[32\] does not fit .* expected \[\d+\]") as caught:
        model_config(open_gguf(path))
    assert caught.value.where == "blk.1.attn_norm.weight"


@pytest.mark.parametrize(
    "name",
    ["blk.0.attn_q.bias", "blk.1.ffn_gate_exps.weight", "output.bias", "rope_factors_long.weight"],
)
def test_a_tensor_nobody_would_compute_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedError, match="would compute something else") as caught:
        model_config(open_gguf(with_tensor(tmp_path, name, np.ones(32))))
    assert caught.value.where == name


def test_tensors_of_other_parts_are_left_alone(tmp_path: Path) -> None:
    model_config(open_gguf(with_tensor(tmp_path, "v.patch_embd.weight", np.ones(32))))
