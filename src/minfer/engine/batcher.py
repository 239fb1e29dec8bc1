"""What the next step computes: decode rows of every running sequence, and prefill chunks.

Pure functions of the sequences' states; pages are found afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minfer.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence to compute in a step.

    Attributes:
        sequence: whose.
        start: position of the first.
        count: how many.
        single: whether they take the row-at-a-time path (generated tokens always do).
    """

    sequence: Sequence
    start: int
    count: int
    single: bool

    @property
    def wants_logits(self) -> bool:
        """Whether its last row is the sequence's last known token."""
        return self.start + self.count == len(self.sequence.tokens)


def pick(running: Iterable[Sequence], max_single: int, max_other: int) -> list[Chunk]:
    """Choose chunks: every sequence that only waits for its next token, then prompts in order.

    Args:
        max_single: rows of the row-at-a-time path a step may hold.
        max_other: rows of prompts a step may hold.

    A prompt longer than what is left of `max_other` is cut; the rest waits for later steps, so
    running streams never stall for a whole prompt. Tokens after the prompt that lost their pages
    are computed again the way they were at first: in the row-at-a-time path.
    """
    singles: list[Chunk] = []
    others: list[Chunk] = []
    for sequence in running:
        start = sequence.n_computed
        if start < sequence.n_prompt:
            count = min(sequence.n_prompt - start, max_other)
            if count > 0:
                others.append(Chunk(sequence, start, count, single=False))
                max_other -= count
        else:
            count = min(sequence.n_pending, max_single)
            if count > 0:
                singles.append(Chunk(sequence, start, count, single=True))
                max_single -= count
    return singles + others


def bucket(count: int) -> int:
    """Rows rounded up to a power of two, so that few plans serve all steps."""
    return 0 if count == 0 else 1 << (count - 1).bit_length()
