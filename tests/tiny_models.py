"""The tiny models of tests/data/models: their files, right answers, engines, changed copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from backends_fake import Historian, next_token
from numpy.typing import NDArray

from minfer.backends import Backend, create_backend
from minfer.dtypes import F32
from minfer.engine import Engine, EngineConfig, Event, SamplingParams
from minfer.engine import Sequence as Run
from minfer.gguf import GGUFFile, TensorData, open_gguf, write_gguf
from minfer.llm import file_weights
from minfer.models import model_config
from minfer.scheduler import Device
from minfer.settings import Settings

FOLDER = Path(__file__).parent / "data" / "models"
TINY = ("qwen2", "qwen2-hd128", "qwen3", "llama", "llama3-rope", "gemma3")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)

Tensors = dict[str, TensorData]


def path_of(name: str) -> Path:
    return FOLDER / f"tiny-{name}.gguf"


@cache
def tiny(name: str) -> GGUFFile:
    return open_gguf(path_of(name))


@cache
def expected(name: str) -> Mapping[str, NDArray[Any]]:
    """What Hugging Face computes: ids, logits, greedy_prompt, greedy, greedy_margin."""
    with np.load(FOLDER / f"tiny-{name}.npz") as arrays:
        return dict(arrays)


def rewritten(
    path: Path,
    name: str,
    metadata: Mapping[str, Any] | None = None,
    change: Callable[[Tensors], Tensors] | None = None,
) -> Path:
    """Write a tiny model with other metadata (None leaves a key out) and other tensors."""
    file = tiny(name)
    values = {k: v for k, v in file.metadata.typed().items() if k not in (metadata or {})}
    values |= {k: v for k, v in (metadata or {}).items() if v is not None}
    tensors = {n: TensorData(n, t.dtype, t.shape, t.data) for n, t in file.tensors.items()}
    write_gguf(path, values, list((change(tensors) if change else tensors).values()))
    return path


def tensor(name: str, values: NDArray[np.float32]) -> TensorData:
    """A tensor of f32 values, [n_out, n_in] for a matrix."""
    values = np.ascontiguousarray(values, np.float32)
    return TensorData(name, F32, values.shape[::-1], values.tobytes())


def make_engine(
    name: str,
    backend: str | Sequence[Device] = "reference",
    file: GGUFFile | None = None,
    wrap: Callable[[Backend], Backend] = lambda backend: backend,
    **changes: Any,
) -> Engine:
    """An engine on a tiny model; `changes` go to its EngineConfig."""
    file = file or tiny(name)
    settings = Settings(threads=2)
    if isinstance(backend, str):
        backend = [Device(wrap(create_backend(backend, settings)))]
    sizes = replace(EngineConfig(n_ctx=256, n_cells=1024, max_sequences=4), **changes)
    return Engine(model_config(file), file_weights(file), backend, sizes, settings)


def run(engine: Engine, *runs: Run, limit: int = 5000) -> dict[Run, list[Event]]:
    """Step until `runs` have finished (all there are, by default); their events in order."""
    events: dict[Run, list[Event]] = {r: [] for r in runs}
    for _ in range(limit):
        if not engine.has_work:
            return events
        for owner, event in engine.step():
            events.setdefault(owner, []).append(event)
    raise AssertionError(f"not finished after {limit} steps")


def tokens(events: Sequence[Event]) -> list[int]:
    return [e.choice.token for e in events if e.choice is not None]


def generate(
    engine: Engine, prompt: Sequence[int], params: SamplingParams = GREEDY, **options: Any
) -> list[int]:
    """The tokens of one request alone."""
    owner = engine.add(prompt, params, **options)
    return tokens(run(engine, owner)[owner])


N_VOCAB = 512
"""Tokens of every tiny model."""


def historian_engine(**sizes: Any) -> tuple[Engine, Historian]:
    """An engine that computes no model, quickly: its tokens are `expected_tokens`."""
    backend = Historian()
    small = {"n_ctx": 220, "n_cells": 64 * 6, "max_sequences": 3, "prefill_rows": 50}
    return make_engine("llama", [Device(backend)], **(small | sizes)), backend


def expected_tokens(prompt: Sequence[int], n: int) -> list[int]:
    """What a `historian_engine` answers."""
    known = list(prompt)
    for _ in range(n):
        known.append(next_token(known, N_VOCAB))
    return known[len(prompt) :]
