"""Fused nodes, tied tables, choosing tokens and whole models by the CUDA kernels, emulated.

The tests are those of a GPU, over an emulated card: `test_cuda_fused.py`, `test_cuda_sample.py`,
and of `test_cuda_models.py` what is soon done.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import test_cuda_fused
import test_cuda_models
import test_cuda_sample
from emulated import AMPERE, HOPPER, EmulatedDevice, emulated_backend, reason_against
from test_cuda_embed import (
    test_a_packed_table_gives_what_the_file_has,
    test_a_tied_table_is_resident_once,
)
from test_cuda_fused import (
    test_a_product_with_its_residual_is_its_chain,
    test_attention_handed_over_is_that_of_f32,
    test_fused_ffn_is_its_chain,
    test_halves_handed_over_are_those_of_f32,
    test_single_rows_handed_over_are_those_of_f32,
)
from test_cuda_norm_between import (
    test_a_row_has_the_same_bits_among_others,
    test_it_is_that_of_a_pass,
    test_small_and_large_rows,
)
from test_cuda_sample import (
    test_a_token_does_not_depend_on_other_rows,
    test_broken_rows_are_told,
    test_equal_logits_rank_by_rising_id,
    test_what_many_tokens_share_is_narrowed_down,
)
from tiny_models import TINY

from minfer.backends.cuda.device import Facts
from minfer.dtypes import F16, Q8_0

REASON = reason_against()
pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(autouse=True)
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """A card in place of this machine's: a Hopper, unless the test names another."""
    facts: Facts = getattr(request, "param", HOPPER)
    monkeypatch.setattr(
        "minfer.backends.cuda.backend.Device", lambda settings, say: EmulatedDevice(facts)
    )
    return facts


@pytest.fixture
def by_late_schedule(monkeypatch: pytest.MonkeyPatch, card: Facts) -> None:
    """By the late schedule, which is not watched for races: those of kernels show in less time."""
    monkeypatch.setattr(
        "minfer.backends.cuda.backend.Device", lambda settings, say: EmulatedDevice(card, late=True)
    )


whole_model = pytest.mark.usefixtures("by_late_schedule")

QKV: tuple[dict[str, Any], ...] = (
    {"types": ("q4_K", "q4_K", "q6_K"), "head_dim": 128, "bias": True, "norm": False, "kv": "f16"},
    {"types": ("q8_0",) * 3, "head_dim": 64, "bias": False, "norm": True, "kv": "q8_0"},
    {"types": ("q4_0",) * 3, "head_dim": 80, "bias": False, "norm": False, "kv": "f32"},
)


@pytest.mark.parametrize("single_rows", [9, 4, 0])
@pytest.mark.parametrize("options", QKV, ids=lambda options: options["kv"])
def test_fused_qkv(gpu: Any, single_rows: int, options: dict[str, Any]) -> None:
    style = "interleaved" if options["head_dim"] == 80 else "neox"
    test_cuda_fused.test_fused_qkv_is_its_chain(gpu, style, single_rows=single_rows, **options)


@pytest.mark.parametrize("card", [AMPERE], indirect=True, ids=["ampere"])
@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_halves_handed_over_before_hopper(
    make_gpu: Any, monkeypatch: pytest.MonkeyPatch, card: Facts, act: str
) -> None:
    test_halves_handed_over_are_those_of_f32(make_gpu, monkeypatch, 140, 3, 128, act, False, 384)


@pytest.mark.parametrize("card", [AMPERE], indirect=True, ids=["ampere"])
@pytest.mark.parametrize(
    ("rows", "dtype", "n_in", "n_ff", "act"),
    [
        (4, "q8_0", 512, 768, "silu"),
        (16, "q4_K", 1024, 256, "gelu"),
        (64, "q4_K", 512, 384, "gelu"),
    ],
)
def test_single_rows_handed_over_before_hopper(
    gpu: Any, card: Facts, rows: int, dtype: str, n_in: int, n_ff: int, act: str
) -> None:
    test_single_rows_handed_over_are_those_of_f32(gpu, rows, dtype, n_in, n_ff, act)


@pytest.mark.parametrize("card", [AMPERE], indirect=True, ids=["ampere"])
@pytest.mark.parametrize(("rows", "single_rows"), [(80, 2), (87, 17)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_handed_over_before_hopper(
    gpu: Any, card: Facts, head_dim: int, rows: int, single_rows: int
) -> None:
    test_attention_handed_over_is_that_of_f32(gpu, rows, single_rows, 4, 2, head_dim, "f16")


@pytest.mark.parametrize(
    ("n_vocab", "scale", "late"),
    [
        *product((1, 31, 500, 4097), (0.01, 1.0, 60.0), (False,)),
        (20_000, 0.01, False),
        (20_000, 60.0, False),
        (31, 1.0, True),
        (4097, 60.0, True),
        (20_000, 0.01, True),
    ],
)
def test_filters_and_draws(n_vocab: int, scale: float, late: bool) -> None:
    gpu = emulated_backend(HOPPER, late)
    test_cuda_sample.test_filters_and_draws(gpu, n_vocab, scale)


@whole_model
@pytest.mark.parametrize("name", TINY)
def test_logits_of_a_prompt(name: str) -> None:
    test_cuda_models.test_logits_are_those_of_hugging_face(name, single=False, cache_type=F16)


@whole_model
@pytest.mark.parametrize("card", [AMPERE], indirect=True, ids=["ampere"])
def test_logits_of_a_prompt_before_hopper(card: Facts) -> None:
    test_cuda_models.test_logits_are_those_of_hugging_face("qwen2", single=False, cache_type=Q8_0)


@whole_model
def test_logits_row_by_row() -> None:
    test_cuda_models.test_logits_are_those_of_hugging_face("llama", single=True, cache_type=F16)


@whole_model
@pytest.mark.parametrize(
    ("card", "name"),
    [(HOPPER, "gemma3"), (AMPERE, "qwen3")],
    indirect=["card"],
    ids=["hopper-gemma3", "ampere-qwen3"],
)
def test_greedy_tokens(card: Facts, name: str) -> None:
    test_cuda_models.test_greedy_tokens_are_those_of_hugging_face(name, {})


@whole_model
def test_many_streams() -> None:
    test_cuda_models.test_many_streams_say_what_hugging_face_says("qwen2-hd128", 4)


__all__ = [
    "test_a_packed_table_gives_what_the_file_has",
    "test_a_product_with_its_residual_is_its_chain",
    "test_a_row_has_the_same_bits_among_others",
    "test_a_tied_table_is_resident_once",
    "test_a_token_does_not_depend_on_other_rows",
    "test_attention_handed_over_is_that_of_f32",
    "test_broken_rows_are_told",
    "test_equal_logits_rank_by_rising_id",
    "test_fused_ffn_is_its_chain",
    "test_halves_handed_over_are_those_of_f32",
    "test_it_is_that_of_a_pass",
    "test_single_rows_handed_over_are_those_of_f32",
    "test_small_and_large_rows",
    "test_what_many_tokens_share_is_narrowed_down",
]
