"""The life of a request: limits, ends, cancelling in every state, and errors that stay its own."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends_fake import Historian, Recorder, next_token
from numpy.typing import NDArray
from tiny_models import (
    N_VOCAB,
    Tensors,
    expected_tokens,
    historian_engine,
    make_engine,
    rewritten,
    run,
    tensor,
    tiny,
    tokens,
)

from minfer.backends import Weight
from minfer.engine import Counters, EngineConfig, SamplingParams, State
from minfer.errors import (
    BackendError,
    BusyError,
    ClosedError,
    ContextFullError,
    DeadlineError,
    GrammarError,
    RequestError,
)
from minfer.gguf import open_gguf
from minfer.graph import Node
from minfer.models import model_config
from minfer.scheduler import Device

GREEDY = SamplingParams(temperature=0.0)


def ending(n: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n)


# -- limits ---------------------------------------------------------------------------------


def test_a_prompt_that_leaves_room_for_one_gives_one() -> None:
    engine, _ = historian_engine()
    owner = engine.add([1] * 219, GREEDY)
    (event,) = run(engine, owner)[owner]
    assert (event.finish_reason, owner.n_generated) == ("length", 1)
    for n in (220, 221, 2200):
        with pytest.raises(ContextFullError) as caught:
            engine.add([1] * n, GREEDY)
        assert (caught.value.n_prompt, caught.value.n_ctx) == (n, 220)


def test_the_context_ends_a_text_that_nothing_else_ends() -> None:
    engine, _ = historian_engine()
    owner = engine.add([5] * 10, GREEDY)
    run(engine)
    assert (owner.finish_reason, len(owner.tokens)) == ("length", 220)


def test_a_cache_smaller_than_the_context_is_the_limit() -> None:
    engine, _ = historian_engine(n_cells=64)
    with pytest.raises(ContextFullError) as caught:
        engine.add([1] * 64, GREEDY)
    assert caught.value.n_ctx == 64
    owner = engine.add([1] * 10, GREEDY)
    run(engine)
    assert len(owner.tokens) == 64


@pytest.mark.parametrize("n", [0, 1, 2])
def test_max_tokens(n: int) -> None:
    engine, backend = historian_engine()
    owner = engine.add([1, 2, 3], ending(n))
    events = run(engine, owner)[owner]
    assert (owner.n_generated, owner.finish_reason) == (n, "length")
    assert tokens(events) == expected_tokens([1, 2, 3], n)
    assert [e.finish_reason for e in events] == [*[None] * (n - 1), "length"]
    assert backend.n_runs == n  # nothing is computed for nothing


def test_an_end_token_ends_the_text_unless_ignored() -> None:
    engine, _ = historian_engine()
    second = expected_tokens([1, 2, 3], 2)[1]
    owner = engine.add([1, 2, 3], GREEDY, stop_ids=frozenset({second}))
    events = run(engine, owner)[owner]
    assert (owner.finish_reason, owner.n_generated) == ("stop", 2)
    assert events[-1].choice is not None and events[-1].choice.token == second
    ignoring = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    owner = engine.add([1, 2, 3], ignoring, stop_ids=frozenset({second}))
    run(engine)
    assert (owner.finish_reason, owner.n_generated) == ("length", 9)


@pytest.mark.parametrize("prompt", [[], [-1], [N_VOCAB], [1, 2, N_VOCAB + 5, 3], [2**40]])
def test_unusable_prompts_are_refused(prompt: list[int]) -> None:
    engine, backend = historian_engine()
    for call in (lambda: engine.add(prompt, GREEDY), lambda: engine.forward(prompt)):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.where == "prompt"
    with pytest.raises(TypeError):
        engine.add([1.5], GREEDY)
    assert (engine.has_work, backend.n_runs) == (False, 0)


def test_a_bias_on_no_token_is_refused() -> None:
    engine, _ = historian_engine()
    with pytest.raises(RequestError, match=f"token {N_VOCAB} is outside"):
        engine.add([1], SamplingParams(logit_bias={N_VOCAB: 1.0}))


@pytest.mark.parametrize("name", ["n_ctx", "n_cells", "max_sequences", "prefill_rows"])
def test_sizes_are_checked(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        EngineConfig(**({"n_ctx": 1, "n_cells": 1} | {name: 0}))
    assert caught.value.where == name


def test_numpy_ids_are_ids() -> None:
    engine, _ = historian_engine()
    owner = engine.add(np.arange(5, dtype=np.int32), ending(3))
    run(engine)
    assert owner.tokens[5:] == expected_tokens([0, 1, 2, 3, 4], 3)
    assert all(type(t) is int for t in owner.tokens)


# -- order ----------------------------------------------------------------------------------


def test_more_requests_than_slots_all_come_to_their_turn() -> None:
    engine, _ = historian_engine()
    owners = [engine.add([i, i + 1], ending(5)) for i in range(10)]
    assert (engine.n_waiting, engine.n_running) == (10, 0)
    events = run(engine, *owners)
    for i, owner in enumerate(owners):
        assert tokens(events[owner]) == expected_tokens([i, i + 1], 5)
        assert owner.submitted <= owner.started <= owner.first_token <= owner.ended
    assert [o.started for o in owners] == sorted(o.started for o in owners)


def test_streams_go_on_while_a_long_prompt_is_computed() -> None:
    engine, _ = historian_engine()
    stream = engine.add([1, 2], ending(50))
    engine.step()
    prompt = engine.add(list(range(200)), ending(1))
    while prompt.state is not State.FINISHED:
        got = [o for o, e in engine.step() if o is stream and e.choice]
        assert got == [stream]
    assert prompt.n_generated == 1


def test_a_small_cache_serves_many() -> None:
    """Twelve requests of up to three pages in four pages, three at a time."""
    engine, _ = historian_engine(n_cells=256, n_ctx=192)
    owners = [engine.add([i] * (50 + i), ending(60)) for i in range(12)]
    run(engine)
    assert engine.counters.preemptions > 0
    for i, owner in enumerate(owners):
        assert owner.tokens[owner.n_prompt :] == expected_tokens([i] * (50 + i), 60)
    assert sum(engine.pages[:2]) == 4


def test_a_conversation_may_fill_the_whole_cache() -> None:
    """Its next turn needs the very page that holds its own end."""
    engine, _ = historian_engine(n_cells=256, n_ctx=256)
    first = engine.add([1] * 190, ending(10), reuse_decoded=True)
    run(engine)
    second = engine.add([*first.tokens, 2], ending(10), reuse_decoded=True)
    run(engine, limit=200)
    assert second.tokens[second.n_prompt :] == expected_tokens([*first.tokens, 2], 10)


def test_a_prompt_serves_others_once_it_is_computed() -> None:
    engine, _ = historian_engine()
    first = engine.add([3] * 130, ending(50))
    while first.state is not State.DECODING:
        engine.step()
    second = engine.add([3] * 140, ending(2))
    engine.step()
    assert (first.state, second.n_cached) == (State.DECODING, 128)
    assert engine.n_shared_pages == 2
    run(engine)
    assert second.tokens[140:] == expected_tokens([3] * 140, 2)


def test_counters() -> None:
    engine, _ = historian_engine()
    engine.add([1] * 100, ending(5))
    run(engine)
    engine.add([1] * 100, ending(5))
    run(engine)
    c = engine.counters
    assert (c.prompt_tokens, c.cached_tokens, c.generated_tokens) == (101, 99, 10)
    assert c.steps == 2 + 4 + 1 + 4  # 100 prompt tokens in chunks of 50
    assert c.prefill_seconds > 0 and c.decode_seconds > 0


# -- cancelling -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted", "finished"])
def test_cancelling_frees_everything_in_any_state(state: str) -> None:
    engine, _ = historian_engine(prefix_cache=False, max_sequences=2, n_cells=256)
    other = engine.add([9] * 100, ending(90))
    owner = engine.add([7] * 90, ending(40))
    if state != "waiting":
        steps = {"prefilling": 3, "decoding": 6}.get(state, 0)
        for _ in range(steps):
            engine.step()
        while state == "preempted" and not owner.n_preempted:
            engine.step()
        while state == "finished" and owner.state is not State.FINISHED:
            engine.step()
        assert owner.state.value == ("waiting" if state == "preempted" else state)
    done = owner.finish_reason
    engine.cancel(owner)
    engine.cancel(owner)
    last = [e for o, e in engine.step() if o is owner]
    assert owner.finish_reason == (done or "cancelled")
    assert [e.finish_reason for e in last] == ([] if done else ["cancelled"])
    assert (owner.slot, len(owner.pages)) == (-1, 0)
    run(engine)
    assert other.tokens[100:] == expected_tokens([9] * 100, 90)
    assert engine.pages == (4, 0, 4)


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding"])
def test_no_step_computes_for_a_request_that_is_late(state: str) -> None:
    engine, _ = historian_engine(prefix_cache=False, max_sequences=1 + (state != "waiting"))
    other = engine.add([9] * 10, ending(60))
    late = engine.add([7] * 150, ending(40), deadline=time.perf_counter() + 1000)
    for _ in range({"waiting": 1, "prefilling": 2, "decoding": 6}[state]):
        engine.step()
    assert late.state.value == state
    n_generated = late.n_generated
    late.deadline = time.perf_counter()
    (event,) = [e for o, e in engine.step() if o is late]
    assert isinstance(event.error, DeadlineError)
    assert (late.n_generated, late.slot, len(late.pages)) == (n_generated, -1, 0)
    run(engine)
    assert other.tokens[10:] == expected_tokens([9] * 10, 60)
    assert engine.pages == (6, 0, 6)
    assert (engine.counters.expired, engine.counters.failed) == (1, 0)


def test_a_cancelled_prompt_leaves_what_it_computed() -> None:
    engine, _ = historian_engine()
    owner = engine.add(list(range(200)), ending(5))
    engine.step()
    engine.step()
    engine.cancel(owner)
    again = engine.add(list(range(200)), ending(5))
    run(engine)
    assert again.n_cached == 100
    assert again.tokens[200:] == expected_tokens(list(range(200)), 5)


# -- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BackendError, RuntimeError, MemoryError])
def test_a_failed_step_ends_its_streams_and_nothing_else(kind: type[Exception]) -> None:
    engine, backend = historian_engine(max_sequences=2)
    owners = [engine.add([i], ending(20)) for i in range(3)]
    backend.fail = lambda n: kind("the device is gone") if n == 4 else None
    events = run(engine, *owners)
    for owner in owners[:2]:
        last = events[owner][-1]
        assert (last.finish_reason, type(last.error)) == ("error", kind)
        assert owner.finish_reason == "error"
    assert owners[2].tokens[1:] == expected_tokens([2], 20)
    engine.clear_cache()
    assert engine.pages == (6, 0, 6)


def test_what_a_failed_step_computed_is_not_reused() -> None:
    engine, backend = historian_engine()
    backend.fail = lambda n: BackendError("gone") if n == 2 else None
    engine.add([3] * 100, ending(3))
    run(engine)
    again = engine.add([3] * 100, ending(3))
    run(engine)
    assert (again.n_cached, again.finish_reason) == (0, "length")


def test_a_failed_copy_ends_only_its_request() -> None:
    engine, backend = historian_engine()
    engine.add([3] * 100, ending(3))
    run(engine)
    copy = backend.copy_pages

    def broken(pairs: object) -> None:
        raise BackendError("gone")

    backend.copy_pages = broken
    failed = engine.add([3] * 110, ending(3))
    other = engine.add([4] * 10, ending(3))
    events = run(engine, failed, other)
    assert [e.finish_reason for e in events[failed]] == ["error"]
    assert other.finish_reason == "length"
    backend.copy_pages = copy
    again = engine.add([3] * 110, ending(3))
    run(engine)
    assert again.tokens[110:] == expected_tokens([3] * 110, 3)
    engine.clear_cache()
    assert engine.pages == (6, 0, 6)


class Breaking:
    """A constraint that allows everything for a while."""

    def __init__(self, error: Exception | None, after: int) -> None:
        self._error, self._left = error, after

    def mask(self, logits: NDArray[np.float32]) -> None:
        self._left -= 1
        if self._left < 0:
            if self._error is not None:
                raise self._error
            logits[:] = -math.inf

    def accept(self, token: int) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "kind"), [(None, GrammarError), (ValueError("a bug of the caller"), ValueError)]
)
def test_a_constraint_that_fails_ends_its_request_alone(
    error: Exception | None, kind: type[Exception]
) -> None:
    engine, _ = historian_engine()
    owner = engine.add([1], ending(9), constraint=Breaking(error, after=3))
    other = engine.add([2], ending(9))
    events = run(engine, owner, other)
    assert tokens(events[owner]) == expected_tokens([1], 3)
    assert type(events[owner][-1].error) is kind
    assert tokens(events[other]) == expected_tokens([2], 9)
    assert sum(engine.pages[:2]) == 6


class Poisoned(Historian):
    """Some tokens come out as NaN."""

    bad: frozenset[int] = frozenset()

    def download(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[np.generic]:
        logits = super().download(offset, shape, dtype)
        for row in logits:
            if int(row.argmax()) in self.bad:
                row[:] = np.nan
        return logits


def test_nan_logits_end_their_request_and_are_not_cached() -> None:
    backend = Poisoned()
    engine = make_engine("llama", [Device(backend)], n_ctx=220, n_cells=384)
    prompt = [13] * 70
    backend.bad = frozenset({next_token(prompt, N_VOCAB)})
    owner = engine.add(prompt, ending(5))
    other = engine.add([1] * 70, ending(5))
    events = run(engine, owner, other)
    assert "NaN" in str(events[owner][-1].error)
    assert other.finish_reason == "length"
    backend.bad = frozenset()
    again = engine.add(prompt, ending(5))
    run(engine)
    assert (again.n_cached, again.finish_reason) == (0, "length")


def test_poisoned_weights_are_an_error_not_a_text(tmp_path: Path, backend_name: str) -> None:
    def poison(tensors: Tensors) -> Tensors:
        norm = tensors["output_norm.weight"]
        return tensors | {norm.name: tensor(norm.name, np.full(norm.shape, np.nan))}

    file = open_gguf(rewritten(tmp_path / "m.gguf", "llama", change=poison))
    engine = make_engine("llama", backend_name, file)
    owner = engine.add([1, 2, 3], SamplingParams(max_tokens=4))
    (event,) = run(engine, owner)[owner]
    engine.close()
    assert isinstance(event.error, BackendError)


# -- beside the steps -----------------------------------------------------------------------


def test_forward_in_parts_beside_running_sequences() -> None:
    engine, _ = historian_engine()
    owner = engine.add([1, 2], ending(30))
    scan = engine.scan(list(range(120)))
    rows = []
    for part in scan:
        rows.append(part)
        engine.step()
    logits = np.concatenate(rows)
    assert logits.argmax(axis=1).tolist() == [
        next_token(list(range(n + 1)), N_VOCAB) for n in range(120)
    ]
    run(engine)
    assert owner.tokens[2:] == expected_tokens([1, 2], 30)
    engine.clear_cache()
    assert engine.pages == (6, 0, 6)


def test_a_scan_that_is_dropped_gives_its_pages_back() -> None:
    engine, _ = historian_engine()
    scan = engine.scan(list(range(200)))
    next(scan)
    assert engine.pages[0] == 2
    scan.close()
    assert engine.pages[0] == 6


def test_forward_without_room_says_so() -> None:
    engine, _ = historian_engine(max_sequences=1)
    engine.add([1], ending(5))
    engine.step()
    with pytest.raises(BusyError):
        engine.forward([1, 2, 3])
    with pytest.raises(ContextFullError):
        engine.forward([1] * 221)


def test_single_and_many_rows_of_forward_agree(backend_name: str) -> None:
    engine = make_engine("qwen3", backend_name)
    ids = list(range(40))
    many, single = engine.forward(ids), engine.forward(ids, single=True)
    hidden = engine.forward(ids, hidden=True)
    engine.close()
    assert hidden.shape == (40, model_config(tiny("qwen3")).width)
    assert np.abs(many - single).max() < 2e-2 * np.abs(many).max()


def test_closing_ends_everything() -> None:
    engine, _ = historian_engine()
    engine.add([1], GREEDY)
    engine.close()
    engine.close()
    for call in (
        lambda: engine.add([1], GREEDY),
        engine.step,
        lambda: engine.forward([1]),
        lambda: engine.plan(1, 0),
    ):
        with pytest.raises(ClosedError):
            call()


def test_saved_pages_of_another_model_are_refused() -> None:
    engine, _ = historian_engine()
    engine.add([1] * 100, ending(3))
    run(engine)
    n_tokens, pages = engine.prefix_pages([1] * 100)
    contents = engine.read_pages(pages)
    assert n_tokens == 100
    other = make_engine("qwen3", [Device(Historian())])
    with pytest.raises(RequestError, match="another model"):
        other.restore([1] * 100, {"kv.9": contents["kv.0"]})
    with pytest.raises(RequestError, match="another model"):
        engine.restore([1] * 200, contents)
    with pytest.raises(RequestError, match="do not fit"):
        historian_engine(n_cells=64)[0].restore([1] * 100, contents)


def test_a_step_costs_little_besides_its_kernels() -> None:
    """60 microseconds a token are the aim; twice that is the bound, for a busy machine."""

    class Instant(Recorder):
        def load(self, node: Node, weights: Mapping[str, Weight]) -> int:
            return 0

    engine = make_engine("llama", [Device(Instant())], n_ctx=512)
    engine.add([1] * 100, SamplingParams(temperature=0.0))
    seconds = []
    for _ in range(300):
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
    assert sorted(seconds)[75] < 120e-6


def test_warming_up_leaves_nothing_behind() -> None:
    engine, _ = historian_engine()
    engine.warm_up()
    assert engine.counters == Counters()
    assert engine.pages == (6, 0, 6)
    assert not engine.has_work
    sequence = engine.add([3] * 100, ending(3))
    run(engine)
    assert sequence.tokens[100:] == expected_tokens([3] * 100, 3)
