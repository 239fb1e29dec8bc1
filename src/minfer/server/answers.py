"""The sequences of one request, seen from the event loop: pieces of text as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from minfer.engine import Constraint, Event, SamplingParams
from minfer.llm import LLM, Piece, PieceMaker
from minfer.server.metrics import Metrics
from minfer.server.worker import Job, Worker
from minfer.text import TextStream


@dataclass(frozen=True)
class Wanted:
    """One sequence a request asks for.

    Attributes:
        prompt: token ids.
        params: how to generate.
        constraint: a grammar, of this sequence alone.
        keep: control tokens that belong to the text.
    """

    prompt: Sequence[int]
    params: SamplingParams
    constraint: Constraint | None = None
    keep: frozenset[int] = frozenset()


def seeded(params: SamplingParams, index: int) -> SamplingParams:
    """Parameters of the `index`-th sequence of a prompt: another seed each, so that they differ."""
    if params.seed is None or index == 0:
        return params
    return replace(params, seed=params.seed + index)


class Answer:
    """The pieces of one request's sequences. Leaving it early ends them.

    Use it as `async with Answer(...) as answer`, then iterate. Nothing is queued before that.
    """

    def __init__(
        self,
        llm: LLM,
        worker: Worker,
        metrics: Metrics,
        wanted: Sequence[Wanted],
        *,
        client: str,
        deadline: float,
    ) -> None:
        self._worker = worker
        self._metrics = metrics
        self._events: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()
        self._makers = [
            PieceMaker(TextStream(llm.tokenizer, stop=w.params.stop, keep=w.keep)) for w in wanted
        ]
        self._jobs = [
            Job(
                prompt=w.prompt,
                params=llm.complete(w.params),
                stop_ids=llm.tokenizer.stop_ids,
                constraint=w.constraint,
                client=client,
                accepted=partial(self._events.put_nowait, (index, None)),
                deliver=partial(self._take, index),
                deadline=deadline,
            )
            for index, w in enumerate(wanted)
        ]
        self._open = set(range(len(wanted)))
        self._submitted = 0.0
        self._last: dict[int, float] = {}

    async def begin(self) -> None:
        """Queue the sequences and wait until the engine has taken them; `async with` does it too.

        Raises:
            MinferError: if the queue is full or a prompt cannot be used.
        """
        if self._submitted:
            return
        self._submitted = perf_counter()
        self._worker.submit(self._jobs)
        try:
            for _ in self._jobs:  # each says something before any of them is computed
                _, event = await self._events.get()
                if event is not None and event.error is not None:
                    raise event.error
        except BaseException:
            self.close()
            raise

    async def __aenter__(self) -> Answer:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        """Index of a sequence and its next piece, until all have ended.

        Raises:
            MinferError: if a sequence fails.
        """
        while self._open:
            index, event = await self._events.get()
            if event is None or index not in self._open:
                continue
            if event.error is not None:
                raise event.error
            run = self._jobs[index].run
            assert run is not None
            piece = self._makers[index].piece(run, event)
            self._observe(index, piece)
            if piece.finish_reason is not None:
                self.end(index)
            yield index, piece

    def seed(self, index: int) -> int:
        """The seed a sequence draws from."""
        run = self._jobs[index].run
        assert run is not None
        return run.sampler.seed

    def end(self, index: int) -> None:
        """Let a sequence go no further."""
        self._open.discard(index)
        self._worker.cancel([self._jobs[index]])

    def close(self) -> None:
        """Let none go further."""
        if self._open:
            self._open.clear()
            self._worker.cancel(self._jobs)

    def _take(self, index: int, event: Event) -> None:
        self._events.put_nowait((index, event))

    def _observe(self, index: int, piece: Piece) -> None:
        now = perf_counter()
        if piece.choice is not None:
            last = self._last.get(index)
            if last is None:
                self._metrics.first_token.observe(now - self._submitted)
            else:
                self._metrics.between_tokens.observe(now - last)
            self._last[index] = now
