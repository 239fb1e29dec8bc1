"""The A/B switches: each makes another plan, or runs the same one another way; none changes a word.

What a switch makes of a plan is looked at without a GPU.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends_fake import OnPaper
from cuda_lowering import H200, lower_plan
from test_engine_invariance import Watching
from test_scheduler_fuse import mixed_types
from test_trace_recorder import traced
from tiny_models import Tensors, expected, rewritten, run, tokens

from minfer.backends import create_backend
from minfer.dtypes import BY_NAME, Q8_0
from minfer.engine import Engine, EngineConfig, SamplingParams
from minfer.errors import BackendError
from minfer.gguf import GGUFFile, open_gguf
from minfer.llm import file_weights
from minfer.models import build_decoder, model_config
from minfer.scheduler import Device, make_plan
from minfer.settings import Settings

SWITCHES: dict[str, dict[str, Any]] = {
    "no_fuse_qkv": {"no_fuse_qkv": True},
    "no_fuse_ffn": {"no_fuse_ffn": True},
    "no_fa_prefill": {"no_fa_prefill": True},
    "cuda_generic": {"cuda_generic": True},
    "cuda_halves": {"cuda_halves": True, "cuda_generic": True},
    "cache f32": {"cache_type": "f32"},
    "cache q8_0": {"cache_type": "q8_0"},
    "no_cuda_graph": {"no_cuda_graph": True},
    "no_prefix_cache": {"no_prefix_cache": True},
}
SAME_PLAN = ("no_cuda_graph", "no_prefix_cache")
"""Switches of how a plan runs, and of what is asked of it."""
MIXED = {
    "attn_k": "q4_0",
    "attn_v": "q8_0",
    "ffn_gate": "q4_1",
    "ffn_up": "q4_1",
    "ffn_down": "q8_0",
}
MODELS = ("qwen2", "qwen3", "llama3-rope", "gemma3")
PROMPT, N_TOKENS = 130, 48


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> GGUFFile:
    """A tiny model, its Q, K and V of different types, gate and up of one."""

    def change(tensors: Tensors) -> Tensors:
        return mixed_types(tensors, MIXED)

    path = tmp_path / f"{request.param}.gguf"
    quantized = {"general.quantization_version": 2}
    return open_gguf(rewritten(path, request.param, quantized, change))


def sizes(settings: Settings) -> EngineConfig:
    return EngineConfig(
        n_ctx=256,
        n_cells=1024,
        max_sequences=4,
        cache_type=BY_NAME[settings.cache_type],
        prefix_cache=not settings.no_prefix_cache,
    )


def identity(model: GGUFFile, **switch: Any) -> Hashable:
    """All that makes a plan what it is: its key, its nodes, its kernels with their geometry."""
    settings = Settings(**switch)
    shape = sizes(settings).step_shape(2, 64, 2)
    plan = make_plan(build_decoder(model_config(model), shape), [Device(OnPaper())], settings)
    launches = lower_plan(plan, replace(H200, generic=settings.cuda_generic), **switch)
    return (
        shape,
        tuple(node.op for node in plan.graph.nodes),
        tuple((launch.kernel, launch.grid, launch.block) for launch in launches),
    )


def test_each_switch_makes_a_plan_of_its_own(model: GGUFFile) -> None:
    usual = identity(model)
    assert identity(model) == usual
    made = {name: identity(model, **switch) for name, switch in SWITCHES.items()}
    for name in SAME_PLAN:
        assert made.pop(name) == usual
    assert len({usual, *made.values()}) == 1 + len(made)


class Played:
    """What an engine with some switches says to one prompt, asked three times."""

    def __init__(self, model: GGUFFile, switch: dict[str, Any], *, trace: bool = False) -> None:
        settings = Settings(**switch)
        try:
            backend: Any = create_backend("cuda", settings)
        except BackendError as error:
            pytest.skip(str(error))
        devices = [Device(backend)]
        self.engine = Engine(
            model_config(model), file_weights(model), devices, sizes(settings), settings
        )
        self.sink = traced(self.engine) if trace else None
        name = str(model.metadata.get_str("general.architecture", ""))
        prompt = expected(name if name in MODELS else "llama3-rope")["ids"].tolist()[:PROMPT]
        params = SamplingParams(temperature=0.0, max_tokens=N_TOKENS)
        watching = Watching()
        self.texts = []
        for constraint in (None, watching, None):  # the device chooses, the host, the device
            owner = self.engine.add(prompt, params, constraint=constraint)
            self.texts.append(tokens(run(self.engine, owner)[owner]))
        two = np.sort(np.array(watching.rows), axis=1)[:, -2:]
        self.margins = two[:, 1] - two[:, 0]
        self.scale = float(np.abs(two).max())
        self.counters = backend.counters
        self.cached = self.engine.counters.cached_tokens
        self.engine.close()


def agree(usual: Played, other: Played, tolerance: float) -> None:
    """Each text is the usual one up to its first token that was all but undecided."""
    certain = int((usual.margins >= tolerance * usual.scale).cumprod().sum())
    assert certain
    for text in (*usual.texts, *other.texts):
        assert text[:certain] == usual.texts[0][:certain]


@pytest.mark.cuda
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_changes_no_word(model: GGUFFile, name: str) -> None:
    usual, other = Played(model, {}), Played(model, SWITCHES[name])
    quantized = BY_NAME[Settings(**SWITCHES[name]).cache_type] is Q8_0
    agree(usual, other, 0.05 if quantized else 0.005)
    assert usual.counters.replays > usual.counters.eager
    assert (other.counters.replays == 0) == (name == "no_cuda_graph")
    assert usual.cached > 0
    assert (other.cached == 0) == (name == "no_prefix_cache")
    if name in SAME_PLAN:
        assert other.texts[0] == usual.texts[0]


@pytest.mark.cuda
def test_a_trace_turns_replay_off_and_changes_no_word(model: GGUFFile) -> None:
    usual, traced_run = Played(model, {}), Played(model, {}, trace=True)
    assert traced_run.sink is not None
    assert len(traced_run.sink.steps) > 2 * N_TOKENS
    assert traced_run.counters.captures == 0
    agree(usual, traced_run, 0.005)
