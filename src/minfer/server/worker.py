"""The one thread that owns the engine: requests in from any thread, events out to event loops.

It takes commands between steps, so a request joins, leaves or is cancelled within one step,
whatever it is doing. It sleeps while there is no work. What a step brings is handed to an event
loop in one call. It knows no HTTP and no text.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

from minfer.engine import Constraint, Engine, Event, SamplingParams
from minfer.engine import Sequence as Run
from minfer.errors import (
    BackendError,
    BusyError,
    ClosedError,
    DeadlineError,
    MinferError,
    QueueFullError,
)

_log = logging.getLogger("minfer.server")
_Result = TypeVar("_Result")
Command = Callable[[], None]

STALLED = 0.002
"""Seconds to wait after a step that could do nothing."""
FAILURES = 3
"""Things that may go wrong in a row before it is found out whether the engine still works."""


@dataclass(eq=False)
class Job:
    """One sequence to generate, and where its events go.

    Attributes:
        prompt: token ids.
        params: how to generate.
        stop_ids: tokens that end it.
        constraint: a grammar.
        client: whose it is; waiting clients take turns.
        accepted: called in the event loop once the engine has queued it.
        deliver: called in the event loop with each event; the last has a finish reason.
        deadline: when it must have ended, in `perf_counter`'s seconds.
        loop: that event loop.
        run: the engine's side of it, once it is queued.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    constraint: Constraint | None
    client: str
    accepted: Callable[[], None]
    deliver: Callable[[Event], None]
    deadline: float = math.inf
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    run: Run | None = None


class Worker:
    """Runs an engine in a thread of its own.

    When one sequence after the other fails, the engine has to compute a token for nobody. If that
    fails too, or steps break down one after the other, the engine is given up: everybody is told,
    and `failure` says why. If not, the requests were at fault, and the engine goes on.

    Args:
        engine: nobody else may call it from now on.
        max_waiting: sequences that may wait beyond those that run.

    Attributes:
        failure: what ended the thread, None while it is well.
    """

    def __init__(self, engine: Engine, *, max_waiting: int) -> None:
        self.failure: BaseException | None = None
        self._engine = engine
        self._capacity = engine.config.max_sequences + max_waiting
        self._wake = threading.Condition()
        self._inbox: deque[Command] = deque()
        self._closing = False
        self._n_open = 0
        self._jobs: dict[Run, Job] = {}
        self._outbox: dict[asyncio.AbstractEventLoop, list[Command]] = {}
        self._beside: deque[_Beside[Any]] = deque()
        self._n_failures = 0  # of sequences and the like, in a row
        self._n_broken = 0  # steps, in a row
        self._thread = threading.Thread(target=self._main, name="minfer-engine", daemon=True)
        self._thread.start()

    # -- from any thread --------------------------------------------------------------------

    @property
    def n_open(self) -> int:
        """Sequences submitted and not yet at their end."""
        return self._n_open

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue sequences, all or none.

        A prompt that cannot be used is reported as the job's last event.

        Raises:
            QueueFullError: if too many wait already.
            ClosedError: if the worker is closed or its engine has failed.
        """
        with self._wake:
            self._check_open()
            if self._n_open and self._n_open + len(jobs) > self._capacity:
                raise QueueFullError(self._n_open, self._capacity)
            self._n_open += len(jobs)
            self._inbox.extend(partial(self._add, job) for job in jobs)
            self._wake.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End sequences before the next step; those at their end already stay as they are."""
        with self._wake:
            self._inbox.extend(partial(self._cancel, job) for job in jobs)
            self._wake.notify()

    async def call(self, work: Callable[[Engine], _Result]) -> _Result:
        """The result of something short, done between two steps; raises as `gather`."""
        return (await self.gather(lambda engine: iter([work(engine)])))[0]

    async def gather(
        self, work: Callable[[Engine], Iterator[_Result]], deadline: float = math.inf
    ) -> list[_Result]:
        """Everything an iterator yields, one part a step, so that nobody waits for all of it.

        If the caller is cancelled or the deadline is over, the rest is not computed.

        Raises:
            DeadlineError: at the deadline.
            ClosedError: if the worker is closed or its engine has failed.
        """
        beside = _Beside(self._engine, work, deadline)
        with self._wake:
            self._check_open()
            self._inbox.append(partial(self._beside.append, beside))
            self._wake.notify()
        return await asyncio.wrap_future(beside.result)

    def close(self) -> None:
        """Cancel everything and end the thread. Closing twice is allowed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise ClosedError(f"the engine has failed: {self.failure}", where="engine")
        if self._closing:
            raise ClosedError("the server is shutting down", where="server")

    # -- in the thread ----------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._engine.warm_up()
            while self._take_commands():
                self._turn()
                self._send()
        except BaseException as error:
            _log.critical("the engine is given up", exc_info=error)
            self.failure = error
        self._end()

    def _take_commands(self) -> bool:
        """Wait until there is something to do, and take what came in; False at the end."""
        with self._wake:
            while not (self._inbox or self._beside or self._closing or self._engine.has_work):
                self._wake.wait()
            commands = list(self._inbox)
            self._inbox.clear()
            closing = self._closing
        for command in commands:
            command()
        return not closing

    def _turn(self) -> None:
        """One step for the sequences, and one part of what is computed beside them."""
        if self._beside:
            beside = self._beside.popleft()
            if beside.advance():
                self._beside.append(beside)
            self._note(beside.failure, succeeded=beside.failure is None)
        if self._engine.has_work:
            self._step()
        if self._n_failures >= FAILURES:
            self._try_engine()

    def _step(self) -> None:
        steps = self._engine.counters.steps
        try:
            events = self._engine.step()
        except Exception as error:
            _log.error("a step failed", exc_info=error)
            self._end_all(error)
            self._n_broken += 1
            if self._n_broken >= FAILURES:
                raise
            return
        self._n_broken = 0
        for run, event in events:
            self._note(event.error, succeeded=event.choice is not None)
            if run in self._jobs:
                self._deliver(self._jobs[run], event)
        if not events and not self._beside and self._engine.counters.steps == steps:
            with self._wake:
                self._wake.wait(STALLED)

    def _note(self, error: Exception | None, *, succeeded: bool) -> None:
        """Count failures in a row; running out of time is none of the engine's."""
        if succeeded:
            self._n_failures = 0
        elif error is not None and not isinstance(error, DeadlineError):
            self._n_failures += 1

    def _try_engine(self) -> None:
        """Compute a token for nobody.

        Raises:
            Exception: if the engine cannot.
        """
        with suppress(BusyError):  # no room for it now; the next failure tries again
            if not math.isfinite(self._engine.forward([0]).max()):
                raise BackendError("it computes no finite logits", where="engine")
            self._n_failures = 0
            _log.warning("requests fail one after the other; the engine itself is well")

    def _add(self, job: Job) -> None:
        try:
            job.run = self._engine.add(
                job.prompt,
                job.params,
                stop_ids=job.stop_ids,
                constraint=job.constraint,
                client=job.client,
                deadline=job.deadline,
            )
        except MinferError as error:
            self._deliver(job, Event(None, "error", error))
            return
        self._jobs[job.run] = job
        self._post(job, job.accepted)

    def _cancel(self, job: Job) -> None:
        if job.run in self._jobs:
            self._engine.cancel(job.run)

    def _end_all(self, error: Exception) -> None:
        for run, job in list(self._jobs.items()):
            self._engine.cancel(run)
            self._deliver(job, Event(None, "error", error))

    def _deliver(self, job: Job, event: Event) -> None:
        if event.finish_reason is not None:
            if job.run is not None:
                del self._jobs[job.run]
            with self._wake:
                self._n_open -= 1
        self._post(job, partial(job.deliver, event))

    def _post(self, job: Job, message: Command) -> None:
        self._outbox.setdefault(job.loop, []).append(message)

    def _send(self) -> None:
        """Hand each event loop what the turn brought it, in one call."""
        for loop, messages in self._outbox.items():
            try:
                loop.call_soon_threadsafe(_deliver_all, messages)
            except RuntimeError:
                _log.debug("%d events for an event loop that has ended", len(messages))
        self._outbox.clear()

    def _end(self) -> None:
        """Tell everybody who still waits."""
        why = f"the engine has failed: {self.failure}" if self.failure else "the server stops"
        error = ClosedError(why, where="server")
        with self._wake:
            self._closing = True
            commands = list(self._inbox)
            self._inbox.clear()
        for command in commands:
            command()
        self._end_all(error)
        for beside in self._beside:
            beside.fail(error)
        self._beside.clear()
        self._send()


class _Beside(Generic[_Result]):
    """Something computed beside the sequences, part by part; `failure` is what went wrong."""

    def __init__(
        self, engine: Engine, work: Callable[[Engine], Iterator[_Result]], deadline: float
    ) -> None:
        self.result: Future[list[_Result]] = Future()
        self._deadline = deadline
        self._begin = partial(work, engine)
        self._parts: Iterator[_Result] | None = None
        self._found: list[_Result] = []
        self.failure: Exception | None = None

    def advance(self) -> bool:
        """Compute a part; False at the end."""
        if self.result.cancelled():
            self._parts = None  # nobody holds the generator now, so it is closed
            return False
        if perf_counter() > self._deadline:
            self._parts = None
            self.fail(DeadlineError("the request took too long", where="deadline"))
            return False
        try:
            if self._parts is None:
                self._parts = self._begin()
            self._found.append(next(self._parts))
        except BusyError:
            self._parts = None  # begin again when a sequence has ended
        except StopIteration:
            with suppress(InvalidStateError):  # cancelled just now
                self.result.set_result(self._found)
            return False
        except Exception as error:
            self.failure = error
            self.fail(error)
            return False
        return True

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        with suppress(InvalidStateError):
            self.result.set_exception(error)


def _deliver_all(messages: list[Command]) -> None:
    for message in messages:
        message()
