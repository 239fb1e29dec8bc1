"""Who runs, who waits, and who makes room when the pages run out.

Sequences enter while there are slots and pages for them. When a running one needs a page that is
not there, the youngest starts over later: it waits again, with the tokens it has.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Seq
from time import perf_counter

from minfer.engine.batcher import Chunk
from minfer.engine.config import Counters
from minfer.engine.sequence import Sequence, State
from minfer.engine.space import KVSpace
from minfer.engine.waiting import Waiting
from minfer.errors import DeadlineError


class Roster:
    """The sequences of an engine.

    Args:
        space: where they live.
        counters: where entries and evictions are counted.
        share_prefixes: whether a prompt may wait for another that begins like it.

    Attributes:
        running: those that hold pages, oldest first.
        waiting: the others.
    """

    def __init__(self, space: KVSpace, counters: Counters, *, share_prefixes: bool) -> None:
        self.running: list[Sequence] = []
        self.waiting = Waiting(share_prefixes=share_prefixes)
        self._space = space
        self._counters = counters
        self._refused: tuple[Sequence, int] | None = None

    def admit(self) -> list[tuple[Sequence, Exception]]:
        """Let waiting sequences run, in turn, while there are slots and pages for them.

        Returns:
            Those that failed to enter, and why; they wait no longer.
        """
        failed = []
        while self._space.has_slot and (sequence := self.waiting.next(self.running)):
            if self._is_refused(sequence):
                break
            try:
                entered = self._space.enter(sequence)
            except Exception as error:
                self.waiting.remove(sequence)
                failed.append((sequence, error))
                continue
            if not entered:
                self._refused = (sequence, self._space.n_left)
                break
            self.waiting.remove(sequence)
            self._start(sequence)
        return failed

    def expired(self, now: float) -> list[tuple[Sequence, DeadlineError]]:
        """Those whose deadline is over, wherever they are, and the error that they end with."""
        found = []
        for sequence in (*self.running, *self.waiting):
            if sequence.deadline <= now:
                seconds = sequence.deadline - sequence.submitted
                what = f"the request took more than {seconds:.3g} seconds"
                found.append((sequence, DeadlineError(what, where="deadline")))
        return found

    def may_admit(self) -> bool:
        """Whether somebody waits who might fit."""
        sequence = self.waiting.next(self.running)
        return sequence is not None and not self._is_refused(sequence)

    def place(self, chunks: Seq[Chunk]) -> list[Chunk]:
        """Find pages for every chunk; where there are none, the youngest sequences wait again.

        Nobody waits for a guess: it goes where there is no page for it.
        """
        placed = []
        for chunk in chunks:
            sequence = chunk.sequence
            if chunk.guesses and not self._space.grow(sequence, chunk.start + chunk.count):
                chunk = chunk.with_guesses(())
            while sequence.slot >= 0 and not self._space.grow(sequence, chunk.start + chunk.count):
                self._preempt(self.running[-1])
            placed.append(chunk)
        return [c for c in placed if c.sequence.slot >= 0]

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence off, wherever it is, with its slot and its pages."""
        if sequence.slot >= 0:
            self.running.remove(sequence)
            self._space.leave(sequence)
        else:
            self.waiting.remove(sequence)

    def _is_refused(self, sequence: Sequence) -> bool:
        """Whether it did not fit, and nothing has left since."""
        return self._refused == (sequence, self._space.n_left)

    def _start(self, sequence: Sequence) -> None:
        if not sequence.n_preempted:
            sequence.n_cached = sequence.n_computed
            sequence.started = perf_counter()
            self._counters.cached_tokens += sequence.n_cached
            self._counters.prefix_hits += sequence.n_cached > 0
        sequence.state = State.PREFILLING
        insort(self.running, sequence, key=lambda s: s.priority)

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's pages; it starts over with what it has, computed as it was."""
        self._space.remember(sequence, sequence.n_computed)
        self.leave(sequence)
        sequence.state = State.WAITING
        sequence.n_computed = 0
        sequence.n_preempted += 1
        self._counters.preemptions += 1
        self.waiting.put_back(sequence)
