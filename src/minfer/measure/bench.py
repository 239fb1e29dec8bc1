"""Timing of prompts and generation: the model computes, and nothing else is on the clock.

Tokens are random ids, so nothing is tokenized; nothing is sampled. A prompt is handed over in parts
of `n_batch` and computed in steps of `n_ubatch`, with the logits of each part's last token; a
generated token is one row. The KV cache holds `n_depth` tokens before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from minfer.engine import Engine, Lane
from minfer.errors import RequestError, UnsupportedError
from minfer.gguf import GGUFFile, open_gguf
from minfer.graph import PAGE, Load
from minfer.llm import Notice, make_engine
from minfer.measure.cases import Case, Facts, Result, Setup
from minfer.measure.floor import Floor, measure_floor, step_seconds
from minfer.measure.machine import cpu_name
from minfer.measure.names import model_type
from minfer.settings import Settings

Progress = Callable[[str], None]
WARM_UPS = {"cuda": 3}
"""Runs before a test is timed, where one is not enough: CUDA captures a graph at the third."""
SEED = 7


@dataclass(frozen=True)
class Opened:
    """A model ready to be measured."""

    engine: Engine
    facts: Facts
    warm_ups: int
    notices: Sequence[Notice]


@contextmanager
def opened(
    setup: Setup, path: Path, settings: Settings, n_ctx: int, max_sequences: int = 1
) -> Iterator[Opened]:
    """Load a model as `setup` says, with room for `n_ctx` tokens, and free it afterwards.

    Raises:
        UnsupportedError: if K and V are to have different types.
        MinferError: of any kind, if it cannot be loaded.
    """
    settings = configured(setup, settings)
    with open_gguf(path) as file:
        engine, config, notices = make_engine(
            file,
            settings,
            n_ctx=n_ctx,
            n_cells=-(-n_ctx // PAGE) * PAGE * max_sequences,
            max_sequences=max_sequences,
            prefill_rows=min(setup.n_ubatch, setup.n_batch),
            progress=None,
        )
        try:
            facts = _facts(file, path, engine, settings, len(config.layers))
            used = engine.weight_bytes
            warm_ups = max(WARM_UPS.get(name, 1) for name in used)
            yield Opened(engine, facts, warm_ups, notices)
        finally:
            engine.close()


def configured(setup: Setup, settings: Settings) -> Settings:
    """`settings` as a setup asks for them."""
    if setup.type_k != setup.type_v:
        raise UnsupportedError(
            f"K in {setup.type_k} and V in {setup.type_v}; minfer stores both in one type",
            where="-ctv",
            remedy=f"Add -ctv {setup.type_k}",
        )
    if setup.type_k not in ("f32", "f16", "q8_0"):
        raise RequestError(
            f"value {setup.type_k!r} is none of f32, f16, q8_0", where="-ctk", remedy=None
        )
    if min(setup.n_batch, setup.n_ubatch) < 1:
        raise RequestError("a batch of 0 tokens computes nothing", where="-b, -ub")
    settings = replace(settings, cache_type=setup.type_k)
    if setup.n_threads:
        settings = replace(settings, threads=setup.n_threads)
    if setup.gpu_layers is not None:
        settings = replace(settings, gpu_layers=str(setup.gpu_layers))
    return settings


def _facts(file: GGUFFile, path: Path, engine: Engine, settings: Settings, n_layers: int) -> Facts:
    from minfer.backends.cpu import usable_cores

    described = engine.describe()
    return Facts(
        filename=str(path),
        model_type=model_type(file),
        model_size=sum(t.nbytes for t in file.tensors.values()),
        n_params=sum(t.n_items for t in file.tensors.values()),
        backends=",".join(name.upper() for name in described),
        n_threads=settings.threads or usable_cores(),
        cpu_info=cpu_name(),
        gpu_info=described.get("cuda", ""),
        n_layers=n_layers,
    )


def run(
    todo: Sequence[tuple[Setup, Path]],
    tests: Sequence[Case],
    settings: Settings,
    *,
    repetitions: int = 5,
    warm_up: bool = True,
    floor: bool = False,
    progress: Progress = lambda text: None,
    note: Callable[[Sequence[Notice]], None] = lambda notices: None,
) -> Iterator[Result]:
    """Measure every test in every setup, each setup loaded once.

    Args:
        todo: setups, and the files of their models.
        tests: what is timed in each.
        settings: of the process.
        repetitions, warm_up: of each test.
        floor: measure the machine, too, and say how long each test takes at least.
        progress: receives what is being done, for a line on a terminal.
        note: receives what a user should know about each model that was loaded.

    Raises:
        MinferError: of any kind, if a model cannot be loaded or run.
    """
    n_ctx = max(t.n_tokens + t.n_depth for t in tests)
    limits: dict[tuple[str, int], Floor] = {}
    for setup, path in todo:
        progress(f"loading {path.name}")
        with opened(setup, path, settings, n_ctx) as model:
            note(model.notices)
            key = (model.facts.backends, model.facts.n_threads)
            if floor and key not in limits:
                progress("measuring the floor")
                limits[key] = measure_floor(model.engine, model.facts.n_threads)
            for test in tests:
                began = datetime.now(UTC)
                samples = time_case(model, setup, test, repetitions, warm_up, progress)
                result = Result(setup, test, model.facts, began, samples)
                if floor:
                    seconds, bound = floor_of(model.engine, setup, test, limits[key])
                    result = replace(result, floor_seconds=seconds, bound=bound)
                yield result


def time_case(
    model: Opened,
    setup: Setup,
    test: Case,
    repetitions: int,
    warm_up: bool = True,
    progress: Progress = lambda text: None,
) -> list[int]:
    """Nanoseconds of each repetition of a test."""
    random = np.random.default_rng(SEED)
    n_vocab = model.engine.model.n_vocab
    with model.engine.lane(test.n_tokens + test.n_depth) as lane:
        if test.n_depth:
            progress(f"{test.name}: filling the cache")
            _prompt(lane, random.integers(0, n_vocab, test.n_depth).tolist(), setup.n_batch)
        samples = []
        for round_ in range(-model.warm_ups if warm_up else 0, repetitions):
            label = "warming up" if round_ < 0 else f"{round_ + 1}/{repetitions}"
            progress(f"{test.name}: {label}")
            prompt = random.integers(0, n_vocab, test.n_prompt).tolist()
            generated = random.integers(0, n_vocab, test.n_gen if round_ >= 0 else 1).tolist()
            if round_ < 0 and not test.n_gen:
                generated = []
            lane.rewind(test.n_depth)
            began = perf_counter_ns()
            _prompt(lane, prompt, setup.n_batch)
            for token in generated:
                lane.compute([token], single=True)
            if round_ >= 0:
                samples.append(perf_counter_ns() - began)
    return samples


def _prompt(lane: Lane, ids: list[int], n_batch: int) -> None:
    for start in range(0, len(ids), n_batch):
        lane.compute(ids[start : start + n_batch])


def floor_of(engine: Engine, setup: Setup, test: Case, floor: Floor) -> tuple[float, str]:
    """The least seconds a test takes on a machine, and what bounds most of them."""
    parts = {"memory": 0.0, "compute": 0.0}
    step = min(setup.n_ubatch, setup.n_batch)
    for start in range(0, test.n_prompt, step):
        count = min(step, test.n_prompt - start)
        load = Load(((test.n_depth + start, count),), 1)
        _add(parts, step_seconds(engine.plan(0, count), load, floor))
    if test.n_gen:
        plan = engine.plan(1, 0)
        # linear in the position, so the middle one stands for all
        middle = test.n_depth + test.n_prompt + test.n_gen // 2
        _add(parts, step_seconds(plan, Load(((middle, 1),), 1), floor), test.n_gen)
    return sum(parts.values()), max(parts, key=lambda name: parts[name])


def _add(parts: dict[str, float], more: dict[str, float], times: int = 1) -> None:
    for name, seconds in more.items():
        parts[name] += times * seconds


__all__ = ["Opened", "configured", "floor_of", "opened", "run", "time_case"]
