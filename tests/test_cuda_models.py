"""The tiny models on a GPU against Hugging Face, and switches that must not change what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_models import TINY, expected, generate, run, tiny, tokens

from minfer.backends import create_backend
from minfer.dtypes import F16, Q8_0, DType
from minfer.engine import Engine, EngineConfig, SamplingParams
from minfer.errors import BackendError
from minfer.llm import file_weights
from minfer.models import model_config
from minfer.scheduler import Device
from minfer.settings import Settings

pytestmark = pytest.mark.cuda

TOLERANCE: dict[DType, float] = {F16: 5e-3, Q8_0: 5e-2}
"""By the cache's type; `test_models_logits.py` has f32 ones."""
MARGIN = 0.05
"""Where the two best logits are nearer than this, rounding may decide."""


def engine_on(
    name: str,
    cache_type: DType = F16,
    n_blocks: int | None = None,
    n_cells: int = 1024,
    max_sequences: int = 4,
    **switches: Any,
) -> tuple[Engine, Any]:
    """An engine with all of a model on the GPU, or `n_blocks` there and the rest on the CPU."""
    settings = Settings(**switches)
    try:
        backend = create_backend("cuda", settings)
        devices = [Device(backend, n_blocks)]
        if n_blocks is not None:
            devices.append(Device(create_backend("cpu", settings)))
    except BackendError as error:
        pytest.skip(str(error))
    file = tiny(name)
    sizes = EngineConfig(256, n_cells, max_sequences, cache_type=cache_type)
    return Engine(model_config(file), file_weights(file), devices, sizes, settings), backend


def certain(right: Any) -> int:
    """How many greedy tokens no rounding can decide."""
    close = np.flatnonzero(right["greedy_margin"] < MARGIN)
    return int(close[0]) if close.size else int(right["greedy"].size)


@pytest.mark.parametrize("cache_type", TOLERANCE, ids=str)
@pytest.mark.parametrize("single", [False, True], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_hugging_face(name: str, single: bool, cache_type: DType) -> None:
    engine, _ = engine_on(name, cache_type)
    right = expected(name)
    logits = engine.forward(right["ids"].tolist(), single=single)
    engine.close()
    error = np.abs(logits - right["logits"]).max() / np.abs(right["logits"]).max()
    assert error < TOLERANCE[cache_type]


@pytest.mark.parametrize("cache_type", TOLERANCE, ids=str)
@pytest.mark.parametrize("single", [False, True], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", TINY)
def test_blocks_are_shared_with_the_cpu(name: str, single: bool, cache_type: DType) -> None:
    """One block on the GPU, the others and the head on the CPU: logits, then greedy tokens."""
    engine, backend = engine_on(name, cache_type, n_blocks=1)
    right = expected(name)
    logits = engine.forward(right["ids"].tolist(), single=single)
    error = np.abs(logits - right["logits"]).max() / np.abs(right["logits"]).max()
    n = certain(right)
    params = SamplingParams(temperature=0.0, max_tokens=right["greedy"].size)
    found = generate(engine, right["greedy_prompt"].tolist(), params)
    counted = backend.counters
    engine.close()
    assert error < TOLERANCE[cache_type]
    assert cache_type is Q8_0 or found[:n] == right["greedy"][:n].tolist()
    assert counted.replays > 0  # the GPU had its part


@pytest.mark.parametrize(
    "switches",
    [{}, *({n: True} for n in ("no_cuda_graph", "no_fa_prefill", "no_fuse_qkv", "no_fuse_ffn"))],
    ids=lambda s: next(iter(s), "default"),
)
@pytest.mark.parametrize("name", TINY)
def test_greedy_tokens_are_those_of_hugging_face(name: str, switches: dict[str, bool]) -> None:
    engine, backend = engine_on(name, **switches)
    right = expected(name)
    n = certain(right)
    params = SamplingParams(temperature=0.0, max_tokens=right["greedy"].size)
    found = generate(engine, right["greedy_prompt"].tolist(), params)
    counted = backend.counters
    engine.close()
    assert found[:n] == right["greedy"][:n].tolist()
    assert (counted.replays > 0) == ("no_cuda_graph" not in switches)


@pytest.mark.parametrize("name", TINY)
def test_many_streams_say_what_hugging_face_says(name: str, n_tokens: int = 10) -> None:
    """Batches of 70 rows and fewer, which take paths of their own; the prompt is known by then."""
    engine, _ = engine_on(name, n_cells=70 * 128, max_sequences=70)
    right = expected(name)
    prompt, n = right["greedy_prompt"].tolist(), min(n_tokens, certain(right))
    generate(engine, prompt)
    owners = [
        engine.add(prompt, SamplingParams(temperature=0.0, max_tokens=n_tokens + i // 66))
        for i in range(70)
    ]
    events = run(engine, *owners)
    engine.close()
    for owner in owners:
        assert tokens(events[owner])[:n] == right["greedy"][:n].tolist()
