"""`LLM` on tiny models: text in, text out, and a request that ends with its stream."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_models import expected, path_of

from minfer.engine import SamplingParams
from minfer.errors import (
    BackendError,
    ClosedError,
    ContextFullError,
    FormatError,
    RequestError,
    SettingsError,
)
from minfer.llm import LLM

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPT = "The quick brown fox"


@pytest.fixture
def llm(backend_name: str) -> Iterator[LLM]:
    with LLM(path_of("llama"), device=backend_name, n_ctx=256, threads=2) as made:
        yield made


def free_pages(llm: LLM) -> int:
    """Pages nobody but the prefix cache holds."""
    free, cached, _ = llm._engine.pages
    return free + cached


def n_pages(llm: LLM) -> int:
    return llm._engine.pages[2]


# -- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=24, seed=5)], ids=["0", "1"])
def test_a_stream_joined_is_the_generated_text(llm: LLM, params: SamplingParams) -> None:
    pieces = list(llm.stream(PROMPT, params))
    whole = llm.generate(PROMPT, params)
    assert "".join(p.text for p in pieces) == whole.text
    assert tuple(p.choice.token for p in pieces if p.choice) == whole.token_ids
    assert whole.text == llm.detokenize(whole.token_ids)
    assert whole.usage.completion_tokens == len(whole.token_ids) == 24
    assert whole.usage.prompt_tokens == len(llm.encode(PROMPT))
    assert (whole.finish_reason, pieces[-1].finish_reason) == ("length", "length")


def test_ids_texts_and_messages_are_prompts(llm: LLM) -> None:
    ids = llm.encode(PROMPT)
    assert llm.encode(np.asarray(ids)) == ids
    by_ids, by_text = llm.generate(ids, GREEDY), llm.generate(PROMPT, GREEDY)
    assert by_ids.token_ids == by_text.token_ids
    messages = [{"role": "user", "content": PROMPT}]
    assert llm.encode(messages) == llm.encode(PROMPT, chat=True)
    assert llm.detokenize(llm.encode(messages)) != PROMPT
    assert llm.chat(PROMPT, GREEDY).token_ids == llm.generate(messages, GREEDY).token_ids


@pytest.mark.parametrize("prompt", ["", [], [1.5], ["a"], [{"role": "user"}, 3], [10**6], [-1]])
def test_unusable_prompts(llm: LLM, prompt: object) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(prompt, GREEDY)
    assert caught.value.where == "prompt"
    assert not llm._inboxes


def test_the_context_is_a_limit(llm: LLM) -> None:
    whole = llm.generate([5] * 255, GREEDY)
    assert (len(whole.token_ids), whole.finish_reason) == (1, "length")
    with pytest.raises(ContextFullError):
        llm.generate([5] * 256, GREEDY)


def test_stop_strings_anywhere_in_the_text(llm: LLM) -> None:
    text = llm.generate(PROMPT, GREEDY).text
    for start in range(0, len(text) - 3, 2):
        stop = text[start : start + 3]
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=(stop, "§"))
        pieces = list(llm.stream(PROMPT, params))
        whole = llm.generate(PROMPT, params)
        assert "".join(p.text for p in pieces) == whole.text == text[: text.index(stop)]
        assert (whole.finish_reason, whole.stop) == ("stop", stop)
        assert whole.usage.completion_tokens == len(whole.token_ids)
        assert free_pages(llm) == n_pages(llm)
        assert not llm._engine.has_work or llm._engine.n_running == 0


def test_log_probabilities_come_with_each_token(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3)
    whole = llm.generate(PROMPT, params)
    assert len(whole.logprobs) == len(whole.token_ids)
    for choice in whole.logprobs:
        assert choice.logprob is not None and choice.logprob <= 0
        assert choice.top[0] == (choice.token, pytest.approx(choice.logprob))
    assert llm.generate(PROMPT, GREEDY).logprobs == ()


def test_numbers_of_texts(llm: LLM) -> None:
    ids = expected("llama")["ids"].tolist()[:30]
    logits = llm.logits(ids)
    assert logits.shape == (30, llm.info.n_vocab)
    assert llm.generate(ids, GREEDY).token_ids[0] == logits[-1].argmax()
    vector = llm.embed("some text")
    assert vector.shape == (llm.info.width,)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
    assert np.dot(vector, llm.embed("some text")) == pytest.approx(1.0, abs=1e-5)
    assert llm.plan(1, 0).graph.inputs


def test_a_conversation_computes_only_its_new_turn(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hello there, how are you today?"}]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    first = llm.chat(messages, params, reuse_decoded=True)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And now?"},
    ]
    ids = llm.encode(messages)
    known = [*llm.encode(messages[:1]), *first.token_ids]
    common = next(
        (i for i, (a, b) in enumerate(zip(ids, known, strict=False)) if a != b), len(known)
    )
    second = llm.chat(messages, params, reuse_decoded=True)
    assert second.usage.cached_tokens == min(common, len(known) - 1)
    assert second.usage.cached_tokens > len(llm.encode(messages[:1]))


def test_dry_breakers_are_filled_in(llm: LLM) -> None:
    params = llm.complete(SamplingParams(dry_multiplier=0.5))
    assert set(llm.tokenize("\n")) <= set(params.dry_sequence_breakers)
    assert llm.complete(GREEDY) is GREEDY


# -- ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["break", "close", "drop", "never started", "error"])
def test_leaving_a_stream_frees_its_pages_at_once(llm: LLM, how: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    stream = llm.stream([7] * 100, params)
    run = stream.run
    if how == "break":
        for index, _ in enumerate(stream):
            if index == 3:
                break
    elif how == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in stream:
                1 / 0  # noqa: B018
    elif how != "never started":
        next(stream)
    if how == "close":
        stream.close()
        stream.close()
        assert list(stream) == []
    else:
        del stream
    assert run.finish_reason == "cancelled"
    assert free_pages(llm) == n_pages(llm)
    assert not llm._inboxes and not llm._abandoned


def test_a_stream_left_in_the_middle_of_a_step_is_cancelled_after_it(llm: LLM) -> None:
    """As when the garbage collector finds it while another stream steps."""
    left = llm.stream([7] * 50, GREEDY)
    run = left.run
    holder = [left]
    del left
    other = llm.stream(PROMPT, GREEDY)
    step = llm._engine.step

    def stepping() -> object:
        holder.clear()
        return step()

    llm._engine.step = stepping  # type: ignore[method-assign]
    next(other)
    assert run.finish_reason == "cancelled"
    other.close()
    assert free_pages(llm) == n_pages(llm)


def test_an_ended_stream_stays_ended(llm: LLM) -> None:
    stream = llm.stream(PROMPT, SamplingParams(max_tokens=2))
    assert len(list(stream)) == 2
    assert list(stream) == []


def test_a_failing_backend_is_an_error_of_the_stream(llm: LLM) -> None:
    right = llm.generate(PROMPT, GREEDY).text
    compute = llm._engine._compute

    def broken(chunks: object) -> object:
        raise BackendError("the device is gone")

    llm._engine._compute = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(BackendError, match="gone"):
        llm.generate(PROMPT, GREEDY)
    llm._engine._compute = compute  # type: ignore[method-assign]
    assert llm.generate(PROMPT, GREEDY).text == right
    assert free_pages(llm) == n_pages(llm)


def test_use_after_close_is_an_error(llm: LLM) -> None:
    stream = llm.stream(PROMPT, GREEDY)
    next(stream)
    llm.close()
    llm.close()
    assert repr(llm) == "LLM(closed)"
    with pytest.raises(ClosedError):
        next(stream)
    assert list(stream) == []
    for call in (
        lambda: llm.generate(PROMPT),
        lambda: llm.logits([1]),
        lambda: llm.embed("x"),
        lambda: llm.plan(),
        lambda: llm.save_session("x", []),
    ):
        with pytest.raises(ClosedError):
            call()
    assert llm.tokenize("text still works")


def test_dropping_a_model_frees_it(backend_name: str) -> None:
    llm = LLM(path_of("llama"), device=backend_name, n_ctx=128)
    llm.generate(PROMPT, GREEDY)
    engine = llm._engine
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None
    with pytest.raises(ClosedError):
        engine.step()


def test_a_lent_engine_is_the_borrowers(llm: LLM) -> None:
    engine = llm.lend_engine()
    assert engine is llm._engine
    with pytest.raises(ClosedError, match="belongs to a server"):
        llm.generate(PROMPT)
    with pytest.raises(ClosedError):
        llm.lend_engine()
    assert llm.encode(PROMPT)


# -- making ---------------------------------------------------------------------------------


def test_facts_and_progress(backend_name: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    with LLM(
        path_of("qwen3"),
        device=backend_name,
        n_ctx=0,
        progress=lambda *call: seen.append(call),
    ) as llm:
        assert (llm.info.architecture, llm.info.name) == ("qwen3", "tiny-qwen3")
        assert llm.info.file_type == "f16"
        assert llm.info.backends == (backend_name,)
        assert llm.n_ctx == llm.info.n_ctx_train
        assert llm.info.file_bytes == path_of("qwen3").stat().st_size
        in_all = llm.info.file_bytes
    assert {(what, total) for what, _, total in seen} == {("loading", in_all)}
    assert [seen[0][1], seen[-1][1]] == [0, in_all]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"device": "gpu"}, SettingsError),
        ({"cache_type": "f8"}, SettingsError),
        ({"threads": -1}, SettingsError),
        ({"n_ctx": -1}, RequestError),
        ({"n_ctx": 256, "n_cells": 128}, RequestError),
        ({"max_sequences": 0}, RequestError),
    ],
    ids=str,
)
def test_unusable_options(options: dict[str, object], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        LLM(path_of("llama"), **({"device": "reference"} | options))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(path_of("llama").read_bytes()[:5000])
    with pytest.raises(FormatError):
        LLM(path, device="reference")
