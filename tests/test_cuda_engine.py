"""Engines on a GPU: replay and eager, side by side, after failures, with some layers on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends_fake import host
from test_engine_invariance import Watching
from test_scheduler_fuse import mixed_types
from tiny_models import GREEDY, expected, generate, make_engine, rewritten, run, tiny, tokens

from minfer.dtypes import F16, F32, Q8_0, DType
from minfer.engine import Engine, SamplingParams
from minfer.errors import BackendError
from minfer.gguf import open_gguf
from minfer.models import model_config
from minfer.scheduler import Device

pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.cuda

COMING = (
    (0, 5, 240),
    (3, 60, 50),
    (10, 3, 30),
    (25, 64, 100),
    (26, 129, 20),
    (27, 1, 90),
    (90, 63, 70),
    (150, 30, 8),
    (152, 31, 8),
)
"""Requests: the step they come at, tokens of the prompt, tokens to generate."""


def engine_on(backend: Any, name: str = "qwen2", **changes: Any) -> Engine:
    sizes = {"n_cells": 2048, "max_sequences": 8} | changes
    return make_engine(name, [Device(backend)], **sizes)


def play(engine: Engine, name: str, *, watch: bool) -> list[Any]:
    """What the requests of `COMING` get: their tokens, and where they are watched, every logit.

    Batches grow to six rows and shrink again, and contexts cross the ends of pages. Watched
    requests take the host's path; of the others the device chooses the tokens.
    """
    ids = expected(name)["ids"].tolist()
    owners, watching = [], []
    step = 0
    while engine.has_work or len(owners) < len(COMING):
        for at, n_prompt, n in COMING:
            if at == step:
                watching.append(Watching())
                params = SamplingParams(temperature=0.0, max_tokens=n)
                constraint = watching[-1] if watch else None
                prompt = ids[len(owners) : len(owners) + n_prompt]
                owners.append(engine.add(prompt, params, constraint=constraint))
        engine.step()
        step += 1
    assert step >= 200
    assert {owner.finish_reason for owner in owners} == {"length"}
    return [*(owner.tokens for owner in owners), *(np.array(w.rows) for w in watching)]


def same(found: Sequence[Any], right: Sequence[Any]) -> None:
    for one, other in zip(found, right, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("watch", [True, False], ids=["host", "device"])
@pytest.mark.parametrize(
    ("name", "cache_type"), [("qwen2", F16), ("gemma3", F16), ("qwen3", Q8_0), ("llama", F32)]
)
def test_replay_is_bit_equal_to_eager_over_200_steps(
    make_gpu: Any, name: str, cache_type: DType, watch: bool
) -> None:
    played = []
    for eager in (False, True):
        backend = make_gpu(no_cuda_graph=eager)
        engine = engine_on(backend, name, cache_type=cache_type)
        played.append(play(engine, name, watch=watch))
        counters = backend.counters
        engine.close()
        if eager:
            assert (counters.captures, counters.replays) == (0, 0)
        else:
            assert counters.captures >= 4  # batches of 1, 2, 4 and 8 rows
            assert counters.replays > 4 * counters.eager
    same(*played)


def test_two_engines_in_two_threads(make_gpu: Any) -> None:
    names = ("qwen2", "llama")
    alone = []
    for name in names:
        engine = engine_on(make_gpu(), name)
        alone.append(play(engine, name, watch=True))
        engine.close()
    engines = [engine_on(make_gpu(), name) for name in names]
    with ThreadPoolExecutor(2) as threads:
        running = [
            threads.submit(play, engine, name, watch=True)
            for engine, name in zip(engines, names, strict=True)
        ]
        together = [one.result() for one in running]
    for found, right in zip(together, alone, strict=True):
        same(found, right)
    for engine in engines:
        engine.close()


def test_captures_of_an_arena_that_moved_are_made_again(make_gpu: Any) -> None:
    backend = make_gpu()
    engine = engine_on(backend)
    params = SamplingParams(temperature=0.0, max_tokens=30)
    prompt = expected("qwen2")["ids"].tolist()[:40]
    seen = []
    for moves in (False, True):
        watching = Watching()
        engine.add(prompt, params, constraint=watching)
        while engine.has_work:
            engine.step()
            if moves and len(watching.rows) == 15:
                before = backend.counters.captures
                backend.reserve((256 << 20) + 1)
        seen.append(np.array(watching.rows))
        engine.clear_cache()
    assert backend.counters.captures > before
    assert backend.graphs
    engine.close()
    same([seen[1]], [seen[0]])


def test_prompts_of_one_size_are_replayed(make_gpu: Any) -> None:
    """The third of them is captured; each gets what the first, eager one got."""
    backend = make_gpu()
    engine = engine_on(backend, prefix_cache=False)
    prompt = expected("qwen2")["ids"].tolist()[:100]
    params = SamplingParams(temperature=0.0, max_tokens=1)
    seen = []
    for _ in range(6):
        watching = Watching()
        engine.add(prompt, params, constraint=watching)
        run(engine)
        seen.append(np.array(watching.rows))
    counters = backend.counters
    assert (counters.eager, counters.captures, counters.replays) == (2, 1, 4)
    engine.close()
    same(seen[1:], [seen[0]] * 5)


PROMPT = list(range(20, 40))


def test_a_long_generation_is_captured_once_and_replayed_to_its_end(make_gpu: Any) -> None:
    """Growing context, page after page: nothing that changes makes a graph unusable."""
    backend = make_gpu()
    engine = engine_on(backend, n_ctx=2048)
    n = 2000
    params = SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True)
    assert len(generate(engine, PROMPT, params)) == n
    counters = backend.counters
    engine.close()
    assert counters.captures <= 2  # one for each of the two places of a step's inputs
    assert counters.replays >= n - 8
    assert backend.graphs


def right_answer(make_gpu: Any) -> list[int]:
    engine = engine_on(make_gpu(no_cuda_graph=True))
    found = generate(engine, PROMPT, SamplingParams(temperature=0.0, max_tokens=20))
    engine.close()
    return found


@pytest.mark.parametrize("site", ["capture", "instantiate", "replay"])
def test_a_broken_graph_is_told_and_costs_no_token(make_gpu: Any, site: str) -> None:
    right = right_answer(make_gpu)
    backend = make_gpu()
    engine = engine_on(backend)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    backend.device.faults.arm(site)
    with pytest.warns(RuntimeWarning, match="CUDA graphs are off"):
        assert generate(engine, PROMPT, params) == right
    assert not backend.graphs
    assert generate(engine, PROMPT, params) == right
    engine.close()


@pytest.mark.parametrize(
    ("site", "graphs"),
    [
        ("launch", False),  # a replayed step passes no launch
        *((site, graphs) for site in ("upload", "download", "synchronize") for graphs in (0, 1)),
    ],
)
def test_a_failed_step_ends_its_request_and_no_other(
    make_gpu: Any, site: str, graphs: bool
) -> None:
    right = right_answer(make_gpu)
    backend = make_gpu(no_cuda_graph=not graphs)
    engine = engine_on(backend)
    owner = engine.add(PROMPT, SamplingParams(temperature=0.0, max_tokens=20))
    events = []
    while engine.has_work:
        events += [event for who, event in engine.step() if who is owner]
        if len(events) == 8:
            backend.device.faults.arm(site)
    assert isinstance(events[-1].error, BackendError)
    assert site in str(events[-1].error)
    assert tokens(events) == right[: len(tokens(events))]
    following = engine.add(PROMPT, SamplingParams(temperature=0.0, max_tokens=20))
    assert tokens(run(engine, following)[following]) == right
    engine.close()


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_layers_on_two_devices_give_the_same_model(make_gpu: Any, name: str) -> None:
    right = expected(name)
    n_layers = len({n.split(".")[1] for n in tiny(name).tensors if n.startswith("blk.")})
    for n in range(1, n_layers + 1):
        beside = host()
        devices = [Device(make_gpu(), n), Device(beside)]
        engine = make_engine(name, devices, cache_type=F32)
        logits = engine.forward(right["ids"].tolist())
        greedy = generate(engine, right["greedy_prompt"].tolist(), GREEDY)
        assert set(engine.weight_bytes) == {"cuda", beside.name}
        engine.close()
        error = np.abs(logits - right["logits"]).max() / np.abs(right["logits"]).max()
        assert error < 4e-3, n
        certain = int((right["greedy_margin"][: len(greedy)] >= 0.05).cumprod().sum())
        assert greedy[:certain] == right["greedy"][:certain].tolist(), n


@pytest.mark.parametrize("cache_type", [F16, Q8_0], ids=str)
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_layers_on_two_devices_say_what_the_cpu_says(
    make_gpu: Any, tmp_path: Path, name: str, cache_type: DType
) -> None:
    """Of quantized weights, up to the first token that was all but undecided."""
    quantized = {"general.quantization_version": 2}
    file = open_gguf(rewritten(tmp_path / "m.gguf", name, quantized, mixed_types))
    n_layers = len(model_config(file).layers)
    prompt = expected(name)["ids"].tolist()[:100]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    texts, margins = [], np.empty(0)
    for n in (0, 1, n_layers):
        cpu = Device(host())
        devices = [Device(make_gpu(), n), cpu] if n else [cpu]
        engine = make_engine(name, devices, file, cache_type=cache_type)
        watching = Watching()
        texts.append(generate(engine, prompt, params, constraint=watching))
        assert set(engine.weight_bytes) == {d.backend.name for d in devices}
        engine.close()
        if not n:
            two = np.sort(np.array(watching.rows), axis=1)[:, -2:]
            margins = (two[:, 1] - two[:, 0]) / np.abs(two).max()
    certain = int((margins >= (0.05 if cache_type is Q8_0 else 0.01)).cumprod().sum())
    assert certain > 0
    for text in texts:
        assert text[:certain] == texts[0][:certain]
