"""The tiny models on a GPU against Hugging Face, and switches that must not change what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_models import TINY, expected, generate, tiny

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


def engine_on(name: str, cache_type: DType = F16, **switches: Any) -> tuple[Engine, Any]:
    settings = Settings(**switches)
    try:
        backend = create_backend("cuda", settings)
    except BackendError as error:
        pytest.skip(str(error))
    file = tiny(name)
    sizes = EngineConfig(n_ctx=256, n_cells=1024, max_sequences=4, cache_type=cache_type)
    devices = [Device(backend)]
    return Engine(model_config(file), file_weights(file), devices, sizes, settings), backend


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


@pytest.mark.parametrize(
    "switches",
    [{}, *({n: True} for n in ("no_cuda_graph", "no_fa_prefill", "no_fuse_qkv", "no_fuse_ffn"))],
    ids=lambda s: next(iter(s), "default"),
)
@pytest.mark.parametrize("name", TINY)
def test_greedy_tokens_are_those_of_hugging_face(name: str, switches: dict[str, bool]) -> None:
    engine, backend = engine_on(name, **switches)
    right = expected(name)
    close = np.flatnonzero(right["greedy_margin"] < MARGIN)
    certain = int(close[0]) if close.size else right["greedy"].size
    params = SamplingParams(temperature=0.0, max_tokens=right["greedy"].size)
    found = generate(engine, right["greedy_prompt"].tolist(), params)
    counted = backend.counters
    engine.close()
    assert found[:certain] == right["greedy"][:certain].tolist()
    assert (counted.replays > 0) == ("no_cuda_graph" not in switches)
