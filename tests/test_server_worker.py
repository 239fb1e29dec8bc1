"""The engine's thread: order, room, failures, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
from serving import tiny

from minfer.engine import Engine, Event, SamplingParams
from minfer.errors import (
    BackendError,
    ClosedError,
    ContextFullError,
    DeadlineError,
    QueueFullError,
)
from minfer.llm import LLM
from minfer.scheduler import CompiledPlan
from minfer.server.worker import FAILURES, Job, Worker


def fail(*_: object) -> Any:
    raise BackendError("the device is gone", where="cuda")


@pytest.fixture
def llm() -> Iterator[LLM]:
    with tiny(max_sequences=2, n_ctx=256) as made:
        yield made


class Client:
    """Collects what one job is told."""

    def __init__(self, prompt: list[int], n: int = 5, **params: Any) -> None:
        self.accepted = False
        self.events: list[Event] = []
        self.done = asyncio.Event()
        self.job = Job(
            prompt=prompt,
            params=SamplingParams(max_tokens=n, temperature=0, **params),
            stop_ids=frozenset(),
            constraint=None,
            client="",
            accepted=self._accept,
            deliver=self._take,
        )

    def _accept(self) -> None:
        assert not self.events
        self.accepted = True

    def _take(self, event: Event) -> None:
        assert not self.done.is_set()
        self.events.append(event)
        if event.finish_reason is not None:
            self.done.set()

    @property
    def tokens(self) -> list[int]:
        return [e.choice.token for e in self.events if e.choice is not None]


def run(llm: LLM, work: Any, **options: Any) -> Any:
    async def main() -> Any:
        worker = Worker(llm.lend_engine(), **{"max_waiting": 4, **options})
        try:
            return await asyncio.wait_for(work(worker), 20)
        finally:
            worker.close()

    return asyncio.run(main())


async def ask(worker: Worker, client: Client) -> Client:
    """Let a client's job run to its end."""
    worker.submit([client.job])
    await client.done.wait()
    return client


def test_jobs_run_and_end(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        clients = [Client([1 + n, 2, 3]) for n in range(5)]
        worker.submit([c.job for c in clients])
        for c in clients:
            await c.done.wait()
            assert c.accepted
            assert len(c.tokens) == 5
        assert worker.n_open == 0

    run(llm, work)


def test_a_bad_prompt_harms_nobody_else(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        good, bad = Client([1, 2]), Client([1] * 300)
        worker.submit([good.job, bad.job])
        await good.done.wait()
        await bad.done.wait()
        assert isinstance(bad.events[0].error, ContextFullError)
        assert not bad.accepted
        assert len(good.tokens) == 5

    run(llm, work)


def test_a_full_queue_refuses_at_once_and_recovers(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        clients = [Client([n + 1], 100) for n in range(6)]
        worker.submit([c.job for c in clients])
        with pytest.raises(QueueFullError) as full:
            worker.submit([Client([1]).job])
        assert (full.value.n_open, full.value.capacity) == (6, 6)
        worker.cancel([c.job for c in clients])
        for c in clients:
            await c.done.wait()
            assert c.events[-1].finish_reason == "cancelled"
        late = Client([1])
        worker.submit([late.job])
        await late.done.wait()

    run(llm, work)


def test_more_than_fit_may_still_come_alone(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        clients = [Client([n + 1], 2) for n in range(9)]
        worker.submit([c.job for c in clients])
        for c in clients:
            await c.done.wait()

    run(llm, work)


def test_a_broken_step_fails_its_sequences_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = Engine.step
    broken = [True]

    def fail_once(self: Engine) -> Any:
        if broken and self.n_waiting == 0 and broken.pop():
            raise ZeroDivisionError("a defect")
        return step(self)

    monkeypatch.setattr(Engine, "step", fail_once)

    async def work(worker: Worker) -> None:
        first = Client([1, 2], 50)
        worker.submit([first.job])
        await first.done.wait()
        assert first.events[-1].finish_reason == "error"
        second = Client([1, 2])
        worker.submit([second.job])
        await second.done.wait()
        assert len(second.tokens) == 5
        free, cached, total = await worker.call(lambda engine: engine.pages)
        assert free + cached == total

    run(llm, work)
    assert "a defect" in caplog.text


def test_an_engine_that_fails_again_and_again_is_given_up(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Engine) -> Any:
        raise BackendError("the device is gone", where="cuda")

    monkeypatch.setattr(Engine, "step", fail)

    async def work(worker: Worker) -> None:
        client = Client([1])
        worker.submit([client.job])
        await client.done.wait()
        assert isinstance(client.events[-1].error, BackendError)
        while worker.failure is None:
            await asyncio.sleep(0.001)
        with pytest.raises(ClosedError, match="the device is gone"):
            worker.submit([Client([1]).job])
        with pytest.raises(ClosedError):
            await worker.call(lambda engine: None)

    run(llm, work)


def test_a_device_that_fails_every_step_is_found_out(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(worker: Worker) -> None:
        await ask(worker, Client([1]))
        monkeypatch.setattr(CompiledPlan, "enqueue", fail)
        for _ in range(FAILURES):
            assert worker.failure is None
            client = await ask(worker, Client([1]))
            assert isinstance(client.events[-1].error, BackendError)
        while worker.failure is None:
            await asyncio.sleep(0.001)
        with pytest.raises(ClosedError, match="the device is gone"):
            worker.submit([Client([1]).job])

    run(llm, work)


def test_a_device_that_computes_nonsense_is_found_out(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = CompiledPlan.output

    async def work(worker: Worker) -> None:
        await worker.call(lambda engine: None)  # it has warmed up
        monkeypatch.setattr(
            CompiledPlan, "output", lambda self, **more: output(self, **more) * np.nan
        )
        for _ in range(FAILURES):
            client = await ask(worker, Client([1]))
            assert isinstance(client.events[-1].error, BackendError)
        while worker.failure is None:
            await asyncio.sleep(0.001)

    run(llm, work)


def test_failures_of_work_beside_the_sequences_count(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(worker: Worker) -> None:
        await worker.call(lambda engine: None)  # it has warmed up
        monkeypatch.setattr(CompiledPlan, "enqueue", fail)
        for _ in range(FAILURES):
            with pytest.raises(BackendError):
                await worker.gather(lambda engine: engine.scan([1, 2], hidden=True))
        while worker.failure is None:
            await asyncio.sleep(0.001)

    run(llm, work)


def test_requests_at_fault_are_no_failure_of_the_engine(llm: LLM) -> None:
    class Broken:
        def mask(self, logits: object) -> None:
            raise ZeroDivisionError

        def accept(self, token: int) -> None:
            raise ZeroDivisionError

    async def work(worker: Worker) -> None:
        for _ in range(3 * FAILURES):
            client = Client([1])
            client.job.constraint = Broken()  # type: ignore[assignment]
            await ask(worker, client)
            assert isinstance(client.events[-1].error, ZeroDivisionError)
        assert len((await ask(worker, Client([1]))).tokens) == 5
        assert worker.failure is None

    run(llm, work)


def test_deadlines_hold_while_the_event_loop_sleeps(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        clients = [Client([n + 1], 250) for n in range(4)]  # two run, two wait
        for client in clients:
            client.job.deadline = perf_counter() + 0.03
        worker.submit([client.job for client in clients])
        sleep(0.3)
        for client in clients:
            await client.done.wait()
            assert isinstance(client.events[-1].error, DeadlineError)
            assert client.job.run is not None
            assert client.job.run.ended - client.job.run.submitted < 0.2
        assert len((await ask(worker, Client([1]))).tokens) == 5
        counters = await worker.call(lambda engine: engine.counters)
        assert (counters.expired, counters.failed) == (4, 0)
        assert worker.failure is None

    run(llm, work)


def test_deadlines_of_work_beside_the_sequences(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        with pytest.raises(DeadlineError):
            await worker.gather(lambda engine: iter(range(10**9)), perf_counter() + 0.05)

    run(llm, work)


def test_work_beside_the_sequences_is_done_in_parts(llm: LLM) -> None:
    steps: list[int] = []

    async def work(worker: Worker) -> None:
        client = Client([1], 30)

        def parts(engine: Engine) -> Iterator[int]:
            for n in range(5):
                steps.append(engine.counters.steps)
                yield n

        worker.submit([client.job])
        assert await worker.gather(parts) == [0, 1, 2, 3, 4]
        await client.done.wait()

    run(llm, work)
    assert len(set(steps)) == 5  # the sequence went on between any two


def test_errors_of_such_work_reach_who_asked(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        with pytest.raises(ZeroDivisionError):
            await worker.call(lambda engine: 1 // 0)
        assert await worker.call(lambda engine: engine.n_running) == 0

    run(llm, work)


def test_cancelled_work_is_not_finished(llm: LLM) -> None:
    done: list[int] = []

    async def work(worker: Worker) -> None:
        def parts(engine: Engine) -> Iterator[int]:
            try:
                yield from range(10**9)
            finally:
                done.append(1)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.gather(parts), 0.05)
        while not done:
            await asyncio.sleep(0.001)

    run(llm, work)


def test_closing_tells_everybody(llm: LLM) -> None:
    async def work(worker: Worker) -> None:
        client = Client([1], 200)
        worker.submit([client.job])
        await asyncio.to_thread(worker.close)
        await client.done.wait()
        assert client.events[-1].finish_reason == "error" or len(client.tokens) == 200
        with pytest.raises(ClosedError):
            worker.submit([Client([1]).job])

    run(llm, work)


def test_an_engine_that_fails_from_the_beginning_is_unhealthy_at_once(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledPlan, "enqueue", fail)

    async def work(worker: Worker) -> None:
        while worker.failure is None:
            await asyncio.sleep(0.001)
        with pytest.raises(ClosedError, match="the device is gone"):
            worker.submit([Client([1]).job])

    run(llm, work)
