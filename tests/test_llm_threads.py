"""One model, many threads and tasks: the same answers, everybody served, nobody left hanging."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import path_of

from minfer.engine import SamplingParams
from minfer.errors import BackendError, ClosedError
from minfer.llm import LLM

LONG = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)


@pytest.fixture
def llm(backend_name: str) -> Iterator[LLM]:
    with LLM(path_of("llama"), device=backend_name, n_ctx=256, max_sequences=4) as made:
        yield made


def params(i: int) -> SamplingParams:
    seed = None if i % 2 else i
    return SamplingParams(temperature=0.0 if i % 2 else 1.0, seed=seed, max_tokens=6 + i)


def prompt(i: int) -> list[int]:
    return [(i * 37 + j) % 200 + 20 for j in range(5 + 11 * i)]


def together(n: int, body: Callable[[int], object], seconds: float = 60) -> list[object]:
    """Run `body(0)` to `body(n - 1)` in threads; what each answers or raises."""
    results: list[object] = [None] * n

    def one(i: int) -> None:
        try:
            results[i] = body(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), "a thread hangs"
    return results


def all_free(llm: LLM) -> bool:
    free, cached, total = llm._engine.pages
    return free + cached == total and not llm._inboxes and not llm._abandoned


def test_threads_get_what_a_serial_run_gets(llm: LLM) -> None:
    serial = [llm.generate(prompt(i), params(i)).token_ids for i in range(16)]
    found = together(16, lambda i: llm.generate(prompt(i), params(i)).token_ids)
    assert found == serial
    assert all_free(llm)


def test_some_leave_while_others_go_on(llm: LLM) -> None:
    right = llm.generate(prompt(3), LONG).token_ids

    def body(i: int) -> object:
        if i % 2:
            return llm.generate(prompt(3), LONG).token_ids
        for index, _ in enumerate(llm.stream(prompt(i), LONG)):
            if index == 2 * i:
                break
        return right

    assert together(12, body) == [right] * 12
    assert all_free(llm)


@pytest.mark.parametrize("kind", [BackendError, RuntimeError])
def test_a_failure_reaches_every_stream(llm: LLM, kind: type[Exception]) -> None:
    backend, calls = llm._engine._devices[0].backend, [0]
    upload = backend.upload

    def breaking(offset: int, array: NDArray[np.generic]) -> None:
        calls[0] += 1
        if calls[0] > 20:
            raise kind("the device is gone")
        upload(offset, array)

    backend.upload = breaking  # type: ignore[method-assign]
    found = together(8, lambda i: llm.generate(prompt(1), LONG))
    assert [type(f) for f in found] == [kind] * 8
    assert all_free(llm)


def test_closing_while_others_stream(llm: LLM) -> None:
    begun = threading.Barrier(4)

    def body(i: int) -> object:
        if i == 3:
            begun.wait()
            return llm.close()
        stream = llm.stream(prompt(i), LONG)
        next(stream)
        begun.wait()
        return sum(1 for _ in stream)

    found = together(4, body)
    assert [type(f) for f in found[:3]] == [ClosedError] * 3
    assert found[3] is None


def test_closing_a_stream_from_another_thread_ends_it(llm: LLM) -> None:
    stream = llm.stream(prompt(1), LONG)
    next(stream)
    reasons: list[object] = []
    reader = threading.Thread(target=lambda: reasons.extend(p.finish_reason for p in stream))
    reader.start()
    stream.close()
    reader.join(30)
    assert not reader.is_alive()
    assert set(reasons) <= {None, "cancelled"}
    assert stream.run.finish_reason == "cancelled"
    assert all_free(llm)


def test_work_beside_streams(llm: LLM) -> None:
    text = llm.generate(prompt(2), LONG).token_ids

    def body(i: int) -> object:
        if i < 2:
            return llm.generate(prompt(2), LONG).token_ids == text
        for _ in range(5):
            llm.embed("some text")
            llm.logits([1, 2, 3])
        return True

    assert together(4, body) == [True] * 4


# -- asyncio --------------------------------------------------------------------------------


def test_tasks_get_what_a_serial_run_gets(llm: LLM) -> None:
    serial = [llm.generate(prompt(i), params(i)) for i in range(8)]

    async def main() -> list[object]:
        return await asyncio.gather(*(llm.agenerate(prompt(i), params(i)) for i in range(8)))

    found = asyncio.run(main())
    assert [f.token_ids for f in found] == [s.token_ids for s in serial]
    assert [f.text for f in found] == [s.text for s in serial]


def test_an_async_stream_is_the_stream(llm: LLM) -> None:
    async def main() -> list[str]:
        return [p.text async for p in llm.astream(prompt(1), params(1))]

    assert asyncio.run(main()) == [p.text for p in llm.stream(prompt(1), params(1))]


@pytest.mark.parametrize("how", ["stream", "generate", "break"])
def test_a_cancelled_task_cancels_its_request(llm: LLM, how: str) -> None:
    async def stream() -> None:
        async for _ in llm.astream(prompt(1), LONG):
            if how == "break":
                return

    async def main() -> None:
        work = llm.agenerate(prompt(1), LONG) if how == "generate" else stream()
        task = asyncio.create_task(work)
        while not llm._engine.n_running and not task.done():
            await asyncio.sleep(0.001)
        if how != "break":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        deadline = time.monotonic() + 20
        while not all_free(llm) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert all_free(llm)
    assert llm._engine.counters.generated_tokens < 150


def test_errors_reach_the_task(llm: LLM) -> None:
    with pytest.raises(Exception, match="no tokens"):
        asyncio.run(llm.agenerate([], LONG))
