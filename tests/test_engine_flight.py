"""Steps whose tokens the device chooses: the same tokens, whatever ends meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from backends_fake import Dirty, Historian, LaggingHistorian
from hypothesis import given
from hypothesis import strategies as st
from test_engine_invariance import Watching
from tiny_models import expected, make_engine

from minfer.backends import Split
from minfer.backends.reference import ops
from minfer.engine import Engine, SamplingParams, Sequence
from minfer.engine.sampling import Sampler
from minfer.graph import PAGE
from minfer.scheduler import Device

BACKENDS = {
    "prompt": Historian,
    **{
        f"sends-{send}-fetches-{fetch}": partial(
            LaggingHistorian, sends_late=send == "late", fetches_late=fetch == "late"
        )
        for send in ("early", "late")
        for fetch in ("early", "late")
    },
}
"""Makers of backends that do a chain's work and copies as soon, or as late, as they may."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Historian:
    return BACKENDS[request.param]()


def engine_over(backend: Historian) -> Engine:
    sizes = {"n_ctx": 220, "n_cells": 512, "max_sequences": 4}
    return make_engine("llama", [Device(backend)], **sizes)


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def test_a_step_leaves_the_next_ones_inputs_alone(backend: Historian) -> None:
    """Memory that is NaN where a step computes is whole where inputs are on their way already."""
    found = []
    for one in (Historian(chooses=False), Dirty(backend)):
        engine = make_engine("llama", [Device(one)], n_ctx=220, n_cells=512)
        found.append(engine.add([3, 1, 4], SamplingParams(temperature=0.0, max_tokens=40)))
        run(engine)
        engine.close()
    assert found[1].tokens == found[0].tokens


@pytest.mark.parametrize("lengths", [(40,), (3, 17, 40), (2, 2, 9, 40, 5, 1)])
def test_tokens_are_those_of_the_host(backend: Historian, lengths: tuple[int, ...]) -> None:
    found = []
    for choosing in (backend, Historian(chooses=False)):
        engine = engine_over(choosing)
        runs = [
            engine.add([7 + i, 8, 9], SamplingParams(temperature=0.0, max_tokens=n))
            for i, n in enumerate(lengths)
        ]
        run(engine)
        found.append([r.tokens for r in runs])
        assert [r.n_generated for r in runs] == list(lengths)
        engine.clear_cache()
        assert engine.pages[0] == engine.pages[2]
    assert found[0] == found[1]


class Tearing:
    """Another backend, one of whose calls is torn apart by Ctrl-C.

    Args:
        where: before the work of a step ("run"), between it and asking for the result ("fetch"), or
            while waiting for one ("wait").
        at: which call it is, from 1.
    """

    def __init__(self, backend: Historian, where: str, at: int) -> None:
        self._backend = backend
        self._where = where
        self._left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _pass(self, where: str) -> None:
        self._left -= where == self._where
        if where == self._where and self._left == 0:
            raise KeyboardInterrupt

    def compile(self, split: Split) -> Callable[[], None]:
        run = self._backend.compile(split)

        def torn() -> None:
            self._pass("run")
            run()

        return torn

    def fetch(self, *args: Any) -> Callable[[], Any]:
        self._pass("fetch")
        arrived = self._backend.fetch(*args)

        def waited() -> Any:
            self._pass("wait")
            return arrived()

        return waited


@pytest.mark.parametrize("where", ["run", "fetch", "wait"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 8, 10])
def test_a_torn_step_is_made_again(backend: Historian, where: str, at: int) -> None:
    """Ctrl-C, which reaches whoever steps the engine for all, changes no one's tokens."""
    found = []
    for one in (Historian(chooses=False), Tearing(backend, where, at)):
        engine = make_engine("llama", [Device(one)], n_ctx=220, n_cells=512)
        params = SamplingParams(temperature=0.0, max_tokens=12)
        runs = [engine.add([3, 1, 4 + i], params) for i in range(2)]
        n_torn = 0
        while engine.has_work:
            try:
                engine.step()
            except KeyboardInterrupt:
                n_torn += 1
        found.append([r.tokens for r in runs])
        engine.close()
    assert n_torn == 1
    assert found[1] == found[0]


def test_a_torn_wait_starts_no_step_past_the_end(backend: Historian) -> None:
    """The last token that fits the context is computed in its last cell: there is none after it."""
    plain = run_to_the_end(Historian())
    n_waits = 2 * len(plain)
    for at in range(n_waits - 12, n_waits - 6):
        assert run_to_the_end(Tearing(backend, "wait", at)) == plain


def run_to_the_end(backend: Any) -> list[int]:
    """The tokens of a sequence that fills its context, whoever is interrupted meanwhile."""
    engine = make_engine("llama", [Device(backend)], n_ctx=PAGE, n_cells=512)
    sequence = engine.add([3, 1, 4], SamplingParams(temperature=0.0))
    while engine.has_work:
        with suppress(KeyboardInterrupt):
            engine.step()
    engine.close()
    assert sequence.finish_reason == "length"
    return sequence.tokens


def test_a_step_is_started_before_the_last_is_read() -> None:
    backend = Historian()
    engine = engine_over(backend)
    owner = engine.add([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=20))
    engine.step()  # the prompt
    for n in range(2, 20):
        engine.step()
        assert owner.n_generated == n
        assert backend.n_runs == min(n + 1, 20)  # none in vain at the end


def test_a_sequence_that_ends_under_way_leaves_its_row(backend: Historian) -> None:
    engine = engine_over(backend)
    params = SamplingParams(temperature=0.0, max_tokens=30)
    plain = engine.add([5, 6], params)
    run(engine)
    stop = plain.tokens[12]
    stopped = engine.add([5, 6], params, stop_ids=frozenset({stop}))
    other = engine.add([9, 6], params)
    cancelled = engine.add([4, 4], params)
    for _ in range(6):
        engine.step()
    engine.cancel(cancelled)
    run(engine)
    assert stopped.tokens == plain.tokens[: plain.tokens.index(stop, 2) + 1]
    assert (stopped.finish_reason, other.finish_reason) == ("stop", "length")
    alone = engine.add([9, 6], params)
    run(engine)
    assert alone.tokens == other.tokens


def test_something_else_may_use_the_arena_between_steps(backend: Historian) -> None:
    engine = engine_over(backend)
    params = SamplingParams(temperature=0.0, max_tokens=30)
    plain = engine.add([5, 6], params)
    run(engine)
    disturbed: Sequence = engine.add([5, 6], params)
    while engine.has_work:
        engine.step()
        engine.forward([1, 2, 3])
    assert disturbed.tokens == plain.tokens


@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 300),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.6, 1.0]),
)
def test_the_op_chooses_as_the_sampler_does(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, 200).astype(np.float32)
    logits[::7] = logits[3]  # equal ones
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    host, device = Sampler(params), Sampler(params)
    assert device.fits_device
    for _ in range(4):
        row = np.asarray([device.device_row()], np.float64)
        expected = host.choose(logits.copy(), []).token
        assert ops.sample(logits[None], row)[0] == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("last_n", [1, 2, 5, 64, 256])
@pytest.mark.parametrize(
    "penalties",
    [
        {"repeat_penalty": 1.7},
        {"frequency_penalty": 0.6, "presence_penalty": 0.4},
        {"repeat_penalty": 0.8, "frequency_penalty": -0.2},
    ],
)
def test_penalties_are_those_of_the_host(
    backend_name: str, penalties: dict[str, float], last_n: int
) -> None:
    """Streams with and without them, greedy and drawn, whose tokens the device chooses or not."""
    prompts = [expected("qwen2")["ids"].tolist()[i : i + 7] for i in range(4)]
    costs = [
        SamplingParams(max_tokens=40, seed=3, temperature=t, repeat_last_n=last_n, **penalties)
        for t in (0.0, 0.9)
    ]
    free = SamplingParams(max_tokens=30, temperature=0.0)
    found = []
    for watch in (False, True):
        engine = make_engine("qwen2", backend_name, max_sequences=4)
        runs = []
        for i, (prompt, params) in enumerate(zip(prompts, (*costs, free, costs[0]), strict=True)):
            assert Sampler(params).fits_device
            constraint = Watching() if watch else None  # whose tokens the host chooses
            runs.append(engine.add([*prompt, 5 + i], params, constraint=constraint))
        run(engine)
        found.append([r.tokens for r in runs])
        engine.close()
    assert found[0] == found[1]
    assert found[0][0] != found[0][2]


def test_logits_without_a_maximum_choose_nothing() -> None:
    logits = np.full((3, 8), np.nan, np.float32)
    logits[1] = np.inf
    logits[2] = [0, 1, 2, 3, 4, 5, 6, 7]
    rows = np.zeros((3, 5), np.float32)
    assert ops.sample(logits, rows).tolist() == [-1, -1, 7]


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": 1},
        {"logit_bias": {3: 1.0}},
        {"repeat_penalty": 1.1, "repeat_last_n": -1},
        {"repeat_penalty": 1.1, "repeat_last_n": 257},
        {"presence_penalty": 1.0, "repeat_last_n": 0},
        {"presence_penalty": 1.0, "logit_bias": {3: 1.0}},
        {"typical_p": 0.5},
        {"mirostat": 2},
        {"xtc_probability": 0.5},
        {"dry_multiplier": 1.0},
    ],
)
def test_what_the_device_does_not_know_stays_on_the_host(change: dict[str, object]) -> None:
    assert Sampler(SamplingParams()).fits_device
    assert not Sampler(SamplingParams(**change)).fits_device  # type: ignore[arg-type]
