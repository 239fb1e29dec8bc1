"""What the next step computes: decode rows of every running sequence, and prefill chunks.

Pure functions of the sequences' states; pages are found afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from minfer.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence to compute in a step.

    Attributes:
        sequence: whose.
        start: position of the first.
        count: how many.
        single: whether they take the row-at-a-time path (generated tokens always do).
        ahead: whether it is the token that a step under way is choosing.
        guesses: tokens that may follow the sequence's last; its last rows compute them.
    """

    sequence: Sequence
    start: int
    count: int
    single: bool
    ahead: bool = False
    guesses: tuple[int, ...] = ()

    @property
    def n_known(self) -> int:
        """Rows of tokens that are certain."""
        return self.count - len(self.guesses)

    @property
    def wants_logits(self) -> bool:
        """Whether it reaches the sequence's last token, as far as tokens are known."""
        return self.ahead or self.start + self.n_known == len(self.sequence.tokens)

    @property
    def n_wanted(self) -> int:
        """Its last rows whose logits choose a token."""
        return 1 + len(self.guesses) if self.wants_logits else 0

    def token(self, position: int) -> int:
        """The token at a position of it, certain or guessed."""
        at = position - self.start - self.n_known
        return self.sequence.tokens[position] if at < 0 else self.guesses[at]

    def with_guesses(self, guesses: Seq[int]) -> Chunk:
        """The chunk with these guesses instead of its own."""
        return replace(self, count=self.n_known + len(guesses), guesses=tuple(guesses))


def pick(running: Seq[Sequence], max_single: int, max_other: int) -> list[Chunk]:
    """Choose chunks: every sequence that only waits for its next token, then prompts.

    Args:
        running: sequences that hold pages, oldest first.
        max_single: rows of the row-at-a-time path a step may hold; at least one a sequence.
        max_other: rows of prompts a step may hold.

    Every sequence past its prompt gets a row; a prompt longer than what is left of `max_other` is
    cut. So running streams never stall for a whole prompt, nor for a sequence that lost its pages:
    its tokens after the prompt are computed again the way they were at first, in the
    row-at-a-time path, with the rows the others leave. The oldest prompt has at least half of the
    prompt rows; the shortest of the others come first, so that short prompts do not wait for long
    ones, and long ones do not wait for ever.
    """
    decoding = [s for s in running if s.n_computed >= s.n_prompt]
    spare = max_single - len(decoding)
    chunks: list[Chunk] = []
    for sequence in decoding:
        more = min(sequence.n_pending - 1, spare)
        spare -= more
        chunks.append(Chunk(sequence, sequence.n_computed, 1 + more, single=True))
    prompts = [s for s in running if s.n_computed < s.n_prompt]
    for sequence, count in _shares(prompts, max_other):
        chunks.append(Chunk(sequence, sequence.n_computed, count, single=False))
    return chunks


def _shares(prompts: Seq[Sequence], n_rows: int) -> list[tuple[Sequence, int]]:
    """Which prompt computes how many rows; oldest first in and out, and nobody with none."""
    if not prompts:
        return []
    need = {s: s.n_prompt - s.n_computed for s in prompts}
    oldest, *others = prompts
    given = {oldest: min(need[oldest], (n_rows + 1) // 2)}
    left = n_rows - given[oldest]
    for sequence in sorted(others, key=lambda s: need[s]):
        given[sequence] = min(need[sequence], left)
        left -= given[sequence]
    given[oldest] += min(need[oldest] - given[oldest], left)
    return [(s, given[s]) for s in prompts if given[s]]


def bucket(count: int) -> int:
    """Rows of prompts rounded up to a power of two, so that few plans serve all steps."""
    return 0 if count == 0 else 1 << (count - 1).bit_length()


def single_bucket(count: int) -> int:
    """Single and output rows rounded up to a power of two or, from 33 on, three quarters of one.

    Products of so many take time by the row, and tiles have places that are not real, too.
    """
    whole = bucket(count)
    less = whole // 4 * 3
    return less if whole >= 64 and count <= less else whole
