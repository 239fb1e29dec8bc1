"""Which chunks of a step carry guesses, and how many: as many as tend to be right."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from minfer.engine.batcher import Chunk
from minfer.engine.draft import Drafter
from minfer.engine.sequence import Sequence


class Guesser:
    """Adds a drafter's guesses to steps.

    A sequence whose guesses were all right gets twice as many next time, another one more than
    were right: wrong guesses cost rows and bring nothing.

    Args:
        drafter: where guesses come from.
        most: guesses a sequence may have in a step.
    """

    def __init__(self, drafter: Drafter, most: int) -> None:
        self._drafter = drafter
        self._most = most
        self._limits: dict[Sequence, int] = {}

    def add_guesses(self, chunks: Seq[Chunk], max_rows: int) -> list[Chunk]:
        """The chunks of a step, with guesses on those that end in a sequence's last token.

        Args:
            chunks: of sequences and prompts.
            max_rows: rows that the row-at-a-time path, and the head, may have in all.
        """
        n_single = sum(c.count for c in chunks if c.single)
        spare = max_rows - max(n_single, sum(c.n_wanted for c in chunks))
        found = []
        for chunk in chunks:
            sequence = chunk.sequence
            if chunk.single and chunk.wants_logits and spare > 0:
                left = sequence.max_tokens - sequence.n_generated - 1
                n = min(self._limits.get(sequence, self._most), spare, left)
                if n > 0:
                    chunk = chunk.with_guesses(self._drafter.propose(sequence, n))
                    spare -= len(chunk.guesses)
            found.append(chunk)
        return found

    def note(self, sequence: Sequence, n_guessed: int, n_right: int) -> None:
        """Learn from a step's guesses."""
        limit = 2 * n_guessed if n_right == n_guessed else n_right + 1
        if sequence.finish_reason is None:
            self._limits[sequence] = max(1, min(self._most, limit))

    def forget(self, sequence: Sequence) -> None:
        """Let go of what is kept for a sequence that has ended."""
        self._limits.pop(sequence, None)
        self._drafter.forget(sequence)

    def close(self) -> None:
        """Free the drafter's memory."""
        self._drafter.close()
