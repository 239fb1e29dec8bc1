"""Guesses of the tokens to come, for speculative decoding.

A guess costs rows of the next step and can save steps; it never changes what is generated, because
each guessed token is compared with the one the sampler chooses at its place.
"""

from __future__ import annotations

from typing import Protocol

from minfer.engine.lane import Lane
from minfer.engine.sequence import Sequence
from minfer.errors import BusyError


class LaneMaker(Protocol):
    """What a draft model is to `DraftModel`: an engine that gives out lanes."""

    def lane(self, n_tokens: int) -> Lane:
        """Room for tokens computed by hand."""

    def close(self) -> None:
        """Free all memory."""


class Drafter(Protocol):
    """Guesses how a sequence goes on."""

    def propose(self, sequence: Sequence, n: int) -> list[int]:
        """At most `n` tokens that may come next; none where there is nothing to go by."""

    def forget(self, sequence: Sequence) -> None:
        """Let go of what is kept for a sequence that has ended."""

    def close(self) -> None:
        """Free all memory."""


class PromptLookup:
    """Guesses that what followed the last few tokens once follows them again.

    Good where answers quote: summaries, code edits, tables (Saxena, "Prompt Lookup Decoding").

    Args:
        longest, shortest: tokens that must have occurred before; the longest match counts.
    """

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._seen: dict[Sequence, tuple[int, dict[tuple[int, ...], int]]] = {}

    def propose(self, sequence: Sequence, n: int) -> list[int]:
        """What came after the most recent earlier occurrence of the end."""
        tokens = sequence.tokens
        start, ends = self._seen.get(sequence, (0, {}))
        # what ends at the last token is what is looked up, and is not there yet
        for end in range(max(start, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    ends[tuple(tokens[end - size : end])] = end
        self._seen[sequence] = (len(tokens), ends)
        for size in self._sizes:
            known = ends.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if known is not None:
                return tokens[known : known + n]
        return []

    def forget(self, sequence: Sequence) -> None:
        """Let go of its index."""
        self._seen.pop(sequence, None)

    def close(self) -> None:
        """Let go of everything."""
        self._seen.clear()


class DraftModel:
    """Guesses what a smaller model of the same vocabulary would say.

    Args:
        engine: of the smaller model; nobody else uses it.
        n_ctx: tokens a sequence may have there.
    """

    def __init__(self, engine: LaneMaker, n_ctx: int) -> None:
        self._engine = engine
        self._n_ctx = n_ctx
        self._lanes: dict[Sequence, tuple[Lane, list[int]]] = {}

    def propose(self, sequence: Sequence, n: int) -> list[int]:
        """The small model's most likely tokens; none where it has no room for the sequence."""
        n = min(n, self._n_ctx - len(sequence.tokens))
        if n < 1:
            return []
        found = self._lanes.get(sequence)
        if found is None:
            try:
                found = self._engine.lane(self._n_ctx), []
            except BusyError:
                return []
            self._lanes[sequence] = found
        lane, known = found
        common = 0
        for a, b in zip(known, sequence.tokens[:-1], strict=False):
            if a != b:
                break
            common += 1
        lane.rewind(common)
        pending = sequence.tokens[common:]
        guesses: list[int] = []
        while len(guesses) < n:
            logits = lane.compute(pending, single=len(pending) <= n + 1)
            guesses.append(int(logits[-1].argmax()))
            pending = guesses[-1:]
        known[:] = sequence.tokens + guesses[:-1]
        return guesses

    def forget(self, sequence: Sequence) -> None:
        """Give its lane back."""
        found = self._lanes.pop(sequence, None)
        if found is not None:
            found[0].close()

    def close(self) -> None:
        """Free the small model."""
        for lane, _ in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._engine.close()
