"""The engine: token ids in, token ids out; many sequences, one step at a time.

It knows no text, no files and no devices: a `DecoderConfig`, weights and backends are given to it.
One thread at a time may call it; `minfer.llm` and `minfer.server` see to that.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.backends import Weight
from minfer.engine.batcher import Chunk, bucket, pick, single_bucket
from minfer.engine.config import Counters, EngineConfig
from minfer.engine.draft import Drafter
from minfer.engine.flight import Flight, can_fly, follow, next_chunks, supports_sampling, take_off
from minfer.engine.guesser import Guesser
from minfer.engine.inputs import fill
from minfer.engine.lane import Lane, Wanted
from minfer.engine.pace import LEAST, Pace
from minfer.engine.params import SamplingParams
from minfer.engine.plans import PlanCache
from minfer.engine.roster import Roster
from minfer.engine.sampling import Choice, Constraint, Sampler, no_finite_logits
from minfer.engine.sequence import Event, FinishReason, Sequence, State
from minfer.engine.space import KVSpace
from minfer.engine.states import KVStates
from minfer.errors import (
    BusyError,
    ClosedError,
    ContextFullError,
    DeadlineError,
    RequestError,
)
from minfer.graph import PAGE
from minfer.models import DecoderConfig, StepShape
from minfer.scheduler import CompiledPlan, Device, Plan, load_weights
from minfer.settings import Settings

SCAN_BYTES = 64 << 20
"""Results a part of a scan may hold: the logits of 512 rows would be 300 MB for some models."""


class Watcher(Protocol):
    """Runs steps in an engine's place, to look inside of them."""

    def run(self, compiled: CompiledPlan, chunks: Seq[Chunk]) -> None:
        """Run a step whose inputs are filled; its plan has a step of its own for every node."""


class Engine:
    """Continuous batching over a paged KV cache."""

    def __init__(
        self,
        model: DecoderConfig,
        weights: Mapping[str, Weight],
        devices: Seq[Device],
        config: EngineConfig,
        settings: Settings,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.counters = Counters()
        self._devices = tuple(devices)
        self._watcher: Watcher | None = None
        self._plans = PlanCache(model, devices, weights, settings)
        plans = [self._plans.plan(shape) for shape in config.largest_steps]
        largest = plans[0]
        self.weight_bytes = load_weights(largest, weights, progress)
        self._states = KVStates(largest)
        self.cache_bytes = self._states.nbytes
        # once, so that plans compiled later find the arenas in place
        for plan in plans:
            for name, nbytes in plan.arena_bytes.items():
                plan.backend(name).reserve(nbytes)
        self._space = KVSpace(
            config.n_pages,
            config.max_sequences,
            keep_prefixes=config.prefix_cache,
            copy_page=self._states.copy_page,
        )
        self._roster = Roster(self._space, self.counters, share_prefixes=config.prefix_cache)
        self._pace = Pace(config.prefill_rows, config.step_seconds)
        self._arrivals = itertools.count()
        self._events: list[tuple[Sequence, Event]] = []
        self._guesser: Guesser | None = None
        self._flights: deque[Flight] = deque()
        self._landed = 0.0
        self._chooses_on_device = supports_sampling(devices, model, config)
        self._closed = False

    # -- requests ---------------------------------------------------------------------------

    def add(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        stop_ids: frozenset[int] = frozenset(),
        constraint: Constraint | None = None,
        reuse_decoded: bool = False,
        client: str = "",
        deadline: float = math.inf,
    ) -> Sequence:
        """Queue a request.

        Args:
            prompt: token ids, at least one.
            stop_ids: tokens that end the text.
            constraint: a grammar.
            reuse_decoded: accept cached pages with generated tokens; see `PrefixCache`.
            client: whose it is; clients with requests waiting take turns.
            deadline: when it must have ended, in `perf_counter`'s seconds: no step after that
                computes anything for it, and its last event is a `DeadlineError`.

        Raises:
            RequestError: if the prompt is empty or holds an id outside of the vocabulary.
            ContextFullError: if it leaves no room for a token.
        """
        self._check_open()
        tokens = self._checked(prompt)
        n_ctx = min(self.config.n_ctx, self.config.n_pages * PAGE)
        if len(tokens) >= n_ctx:
            raise ContextFullError(len(tokens), n_ctx)
        for token in params.logit_bias:
            if not 0 <= token < self.model.n_vocab:
                raise RequestError(
                    f"token {token} is outside of the vocabulary of {self.model.n_vocab}",
                    where="logit_bias",
                )
        room = n_ctx - len(tokens)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        ends = frozenset() if params.ignore_eos else stop_ids
        sampler = Sampler(params, constraint)
        sequence = Sequence(
            tokens, len(tokens), limit, ends, sampler, reuse_decoded, client, deadline
        )
        sequence.priority = next(self._arrivals)
        if limit == 0:
            self._finish(sequence, "length", None)
        else:
            self._roster.waiting.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a request now, in whatever state it is; its last event says `cancelled`."""
        if sequence.state is not State.FINISHED:
            self._finish(sequence, "cancelled", None)

    @property
    def n_waiting(self) -> int:
        """Requests not yet running."""
        return len(self._roster.waiting)

    @property
    def n_running(self) -> int:
        """Requests that hold pages."""
        return len(self._roster.running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Requests that hold pages, oldest first."""
        return tuple(self._roster.running)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(len(self._roster.waiting) or self._roster.running or self._events)

    @property
    def pages(self) -> tuple[int, int, int]:
        """Pages of the KV cache: (free, held only by the prefix cache, all)."""
        pool = self._space.pool
        return pool.n_free, self._space.cache.n_reclaimable(), pool.n_pages

    @property
    def n_shared_pages(self) -> int:
        """Pages of the KV cache with more than one holder."""
        return self._space.pool.n_shared

    # -- the step ---------------------------------------------------------------------------

    def step(self) -> list[tuple[Sequence, Event]]:
        """Compute one batch; answer what it brought each sequence."""
        self._check_open()
        for sequence, late in self._roster.expired(perf_counter()):
            self._finish(sequence, "error", late)
        if not self._flights:
            for sequence, error in self._roster.admit():
                self._finish(sequence, "error", error)
            running = self._roster.running
            streaming = any(s.state is State.DECODING for s in running)
            n_other = self._pace.rows(beside_streams=streaming)
            chunks = pick(running, self.config.max_single, n_other)
            if self._guesser is not None:
                chunks = self._guesser.add_guesses(chunks, self.config.max_single)
            chunks = self._roster.place(chunks)
            if chunks:
                self._begin(chunks)
        if self._flights:
            self._follow()
            self._land()
        events, self._events = self._events, []
        return events

    def _begin(self, chunks: list[Chunk]) -> None:
        """Compute a batch, or only start it where the device chooses its tokens."""
        began = perf_counter()
        try:
            if self._chooses_on_device and self._watcher is None and can_fly(chunks):
                compiled = self._plans.get(self._shape_of(chunks, sampled=True))
                self._flights.append(take_off(compiled, chunks))
                return
            logits = self._compute(chunks)
        except Exception as error:  # whatever failed, every stream of the batch must hear it
            self._fail(chunks, error)
        else:
            self._advance(chunks, logits, perf_counter() - began)

    def _follow(self) -> None:
        """Start the next step behind the one under way, if its rows are certain to go on."""
        if len(self._flights) > 1:  # Ctrl-C ended the wait for the older one
            return
        flight = self._flights[-1]
        runs = [c.sequence for c in flight.chunks]
        if self._watcher is not None or self._guesser is not None or self._roster.may_admit():
            return
        ends = any(run.n_generated + 2 > run.max_tokens for run in runs)
        if ends or runs != self._roster.running:
            return
        chunks = next_chunks(flight)
        if not all(self._space.grow(c.sequence, c.start + 1) for c in chunks):
            return
        try:
            self._flights.append(follow(flight, chunks))
        except Exception as error:
            self._fail(chunks, error)

    def _land(self) -> None:
        """Read the oldest step under way; sequences that have ended since are left alone."""
        flight = self._flights[0]  # until all of it is read: Ctrl-C may end the wait
        try:
            ids = flight.ids().tolist()
        except Exception as error:
            self._flights.popleft()
            self._fail([c for c in flight.chunks if c.sequence.slot >= 0], error)
            return
        began = max(flight.began, self._landed)
        self._landed = perf_counter()
        self._note(flight.chunks, self._landed - began)
        for chunk, token in zip(flight.chunks, ids, strict=True):
            sequence = chunk.sequence
            if sequence.slot < 0 or sequence.n_computed > chunk.start:
                continue
            if token < 0:
                self._finish(sequence, "error", no_finite_logits())
            else:
                sequence.n_computed += chunk.count
                self._accept(sequence, Choice(token))
        self._flights.popleft()
        if not self._roster.running:
            self._flights.clear()

    def _settle(self) -> None:
        """Read every step under way, before something else uses the arenas."""
        while self._flights:
            self._land()

    def _fail(self, chunks: Seq[Chunk], error: Exception) -> None:
        for chunk in chunks:
            if chunk.sequence.state is not State.FINISHED:
                self._finish(chunk.sequence, "error", error)

    def _compute(self, chunks: list[Chunk]) -> NDArray[np.float32]:
        """Run the batch; the logits of the rows that want them."""
        compiled = self._plans.get(self._shape_of(chunks))
        rows = fill(compiled.inputs, chunks)
        self._enqueue(compiled, chunks)
        return compiled.output(rows=rows)

    def _note(self, chunks: Seq[Chunk], seconds: float) -> None:
        n_single = sum(c.count for c in chunks if c.single)
        n_other = sum(c.count for c in chunks) - n_single
        self._pace.note(n_single, n_other, seconds)
        self.counters.note_step(n_single, n_other, seconds)

    def _advance(self, chunks: list[Chunk], logits: NDArray[np.float32], seconds: float) -> None:
        """Move every sequence past what was computed, and choose the next tokens."""
        self._note(chunks, seconds)
        row = 0
        for chunk in chunks:
            if not chunk.single:
                self.counters.prompt_tokens += chunk.count
            if n_wanted := chunk.n_wanted:  # choosing a token changes what the chunk wants
                self._choose(chunk, logits[row : row + n_wanted])
                row += n_wanted
            else:
                chunk.sequence.n_computed += chunk.count

    def _choose(self, chunk: Chunk, logits: NDArray[np.float32]) -> None:
        """Choose a chunk's next token, and more of them while they are those that were guessed."""
        sequence = chunk.sequence
        n_computed = sequence.n_computed + chunk.n_known
        for guess, row in zip((*chunk.guesses, None), logits, strict=True):
            try:
                choice = sequence.sampler.choose(row, sequence.tokens)
            except Exception as error:  # a constraint is the caller's code
                self._finish(sequence, "error", error)
                return
            sequence.n_computed = n_computed
            self._accept(sequence, choice)
            if choice.token != guess or sequence.state is State.FINISHED:
                break
            n_computed += 1
        if self._guesser is not None and chunk.guesses:
            n_right = n_computed - chunk.start - chunk.n_known
            self.counters.guessed_tokens += len(chunk.guesses)
            self.counters.right_guesses += n_right
            self._guesser.note(sequence, len(chunk.guesses), n_right)

    def _accept(self, sequence: Sequence, choice: Choice) -> None:
        """Append a chosen token, and see whether the sequence goes on."""
        if sequence.state is State.PREFILLING:
            sequence.state = State.DECODING
            self._space.remember(sequence, sequence.n_prompt // PAGE * PAGE)
        if not sequence.n_generated:
            sequence.first_token = perf_counter()
        sequence.tokens.append(choice.token)
        self.counters.generated_tokens += 1
        reason: FinishReason | None = None
        if choice.token in sequence.stop_ids:
            reason = "stop"
        elif sequence.n_generated >= sequence.max_tokens:
            reason = "length"
        if reason:
            self._finish(sequence, reason, None, choice_event=Event(choice, reason))
        else:
            self._events.append((sequence, Event(choice)))

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: Exception | None,
        choice_event: Event | None = None,
    ) -> None:
        """End a sequence, keep its pages for others, and report it."""
        late = isinstance(error, DeadlineError)
        self.counters.expired += late
        self.counters.failed += reason == "error" and not late
        if sequence.slot >= 0 and (late or reason != "error"):
            self._space.remember(sequence, sequence.n_computed)
        self._roster.leave(sequence)
        if self._guesser is not None:
            self._guesser.forget(sequence)
        sequence.state = State.FINISHED
        sequence.finish_reason = reason
        sequence.ended = perf_counter()
        self._events.append((sequence, choice_event or Event(None, reason, error)))

    # -- beside the steps -------------------------------------------------------------------

    def forward(
        self, tokens: Seq[int], *, single: bool = False, hidden: bool = False
    ) -> NDArray[np.float32]:
        """Logits (or final hidden states) of every position, without sampling.

        Args:
            tokens: at most `n_ctx`.
            single: take the row-at-a-time path (decode) instead of the many-rows path.
            hidden: answer hidden states, [n, width], instead of logits, [n, n_vocab].
        """
        return np.concatenate(list(self.scan(tokens, single=single, hidden=hidden)))

    def scan(
        self, tokens: Seq[int], *, single: bool = False, hidden: bool = False
    ) -> Iterator[NDArray[np.float32]]:
        """`forward` in parts, between which the engine may take steps.

        It holds a slot and pages until it is exhausted or closed.
        """
        known = self._checked(tokens)
        row_bytes = 4 * (self.model.width if hidden else self.model.n_vocab)
        affordable = 1 << max(0, (SCAN_BYTES // row_bytes).bit_length() - 1)
        step = 1 if single else min(self.config.prefill_rows, affordable)
        with self.lane(len(known)) as lane:
            for start in range(0, len(known), step):
                part = known[start : start + step]
                yield lane.compute(part, single=single, wanted="hidden" if hidden else "all")

    def lane(self, n_tokens: int) -> Lane:
        """Room for `n_tokens` that the caller computes by hand; closing it gives the room back.

        Raises:
            ContextFullError: if they are more than a sequence may have.
            BusyError: if there is no slot, or there are too few pages.
        """
        self._check_open()
        if n_tokens > self.config.n_ctx:
            raise ContextFullError(n_tokens, self.config.n_ctx)
        sampler = Sampler(SamplingParams())
        sequence = Sequence([0] * n_tokens, n_tokens, 1, frozenset(), sampler, False)
        if not self._space.enter_alone(sequence):
            raise BusyError("all slots or pages of the KV cache are in use", where="engine")
        rows = self.config.prefill_rows
        return Lane(sequence, self._checked, self._forward_chunk, self._space.leave, rows)

    def _forward_chunk(self, chunk: Chunk, wanted: Wanted) -> NDArray[np.float32]:
        self._settle()
        rows = single_bucket(chunk.count) if chunk.single else bucket(chunk.count)
        single, other = (rows, 0) if chunk.single else (0, rows)
        out_rows = 1 if wanted == "last" else rows
        compiled = self._plans.get(
            self.config.step_shape(single, other, out_rows, hidden=wanted == "hidden")
        )
        count = fill(compiled.inputs, [chunk])
        if wanted != "last":
            count = chunk.count
            compiled.inputs["out_rows"][:count] = np.arange(count)
            compiled.inputs["counts"][2] = count
        self._enqueue(compiled, [chunk])
        return compiled.output(rows=count)

    def warm_up(self) -> None:
        """Compute a few prompt rows for nobody, and then again, to learn how long they take."""
        ids = [0] * min(LEAST, self.config.n_ctx, self.config.prefill_rows)
        for _ in range(2):
            began = perf_counter()
            self.forward(ids)
        self._pace.note(0, len(ids), perf_counter() - began)

    def launches(self, single_rows: int, other_rows: int) -> int:
        """Kernel launches (on a CPU: calls) of a step with so many rows."""
        self._check_open()
        self._settle()
        return self._plans.get(self._shape_for(single_rows, other_rows)).n_launches

    def describe(self) -> dict[str, str]:
        """What runs the steps: for each backend that does, its device."""
        return self._states.describe()

    def speculate(self, drafter: Drafter, most: int = 8) -> None:
        """Let `drafter` guess at most so many tokens of a sequence; a step checks them at once.

        What is generated stays the same, whatever is guessed: each guess is kept only if the
        sampler chooses the same token at its place. Guesses take rows that sequences leave free.
        """
        self._settle()
        self._guesser = Guesser(drafter, most)

    def watch(self, watcher: Watcher | None) -> None:
        """Let `watcher` run the steps, node by node, instead of the engine; None ends it."""
        self._settle()
        self._watcher = watcher
        self._plans.node_by_node = watcher is not None

    def _enqueue(self, compiled: CompiledPlan, chunks: list[Chunk]) -> None:
        if self._watcher is None:
            compiled.enqueue()
        else:
            self._watcher.run(compiled, chunks)

    def plan(self, single_rows: int, other_rows: int) -> Plan:
        """The plan of a step with so many rows, for people."""
        self._check_open()
        return self._plans.plan(self._shape_for(single_rows, other_rows))

    def _shape_for(self, single_rows: int, other_rows: int) -> StepShape:
        single, other = single_bucket(single_rows), bucket(other_rows)
        return self.config.step_shape(single, other, max(1, single))

    def prefix_pages(self, tokens: Seq[int]) -> tuple[int, list[int]]:
        """How many leading tokens of `tokens` are cached, and their pages; for saving sessions."""
        known = self._space.cache.find([*tokens, -1], exact_only=False)
        pages = list(known.pages)
        if known.tail is not None:
            pages.append(known.tail)
        return known.n_tokens, pages

    def read_pages(self, pages: Seq[int]) -> dict[str, list[bytes]]:
        """The bytes of pages, by KV state."""
        return self._states.read(pages)

    def restore(self, tokens: Seq[int], contents: Mapping[str, Seq[bytes]]) -> None:
        """Put pages that hold `tokens` back into the prefix cache.

        Raises:
            RequestError: if they do not fit, or belong to another model or cache type.
        """
        n_pages = -(-len(tokens) // PAGE)
        if not self._space.put(tokens, self._states.writer(contents, n_pages)):
            raise RequestError(f"{n_pages} pages do not fit the KV cache", where="session")

    def clear_cache(self) -> None:
        """Forget all prefixes; running sequences keep their pages."""
        self._space.forget()

    def close(self) -> None:
        """Free all memory. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._flights.clear()
            if self._guesser is not None:
                self._guesser.close()
            self._plans.clear()
            for device in self._devices:
                device.backend.close()

    # -- set-up -----------------------------------------------------------------------------

    def _shape_of(self, chunks: list[Chunk], *, sampled: bool = False) -> StepShape:
        single = sum(c.count for c in chunks if c.single)
        other = sum(c.count for c in chunks if not c.single)
        wanted = sum(c.n_wanted for c in chunks)
        penalized = sampled and any(c.sequence.sampler.penalizes for c in chunks)
        rows = (single_bucket(single), bucket(other), max(1, single_bucket(wanted)))
        return self.config.step_shape(*rows, sampled=sampled, penalized=penalized)

    def _checked(self, tokens: Seq[int]) -> list[int]:
        """The ids as plain integers, none of which a kernel could trip over."""
        ids = [operator.index(token) for token in tokens]
        if not ids:
            raise RequestError("there are no tokens", where="prompt")
        for token in (min(ids), max(ids)):
            if not 0 <= token < self.model.n_vocab:
                raise RequestError(
                    f"token {token} is outside of the vocabulary of {self.model.n_vocab}",
                    where="prompt",
                )
        return ids

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed", where="engine")
