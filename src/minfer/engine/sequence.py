"""One request and its life: waiting, prefilling, decoding, finished."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Literal

from minfer.engine.sampling import Choice, Sampler
from minfer.graph import PAGE

FinishReason = Literal["stop", "length", "cancelled", "error"]


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Event:
    """What a step brought one sequence.

    Attributes:
        choice: the new token, None when the sequence ended without one.
        finish_reason: set on the last event: `stop` (an end token), `length` (max_tokens or the
            context), `cancelled`, `error`.
        error: with `error`, what went wrong.
    """

    choice: Choice | None
    finish_reason: FinishReason | None = None
    error: Exception | None = None


@dataclass(eq=False)
class Sequence:
    """A request inside the engine.

    Attributes:
        tokens: prompt, then what was generated.
        n_prompt: tokens of the prompt.
        n_computed: leading tokens whose keys and values are in the cache.
        n_cached: tokens of the prompt that were found in the cache.
        pages: its pages, in order of positions.
        max_tokens: tokens it may generate.
        stop_ids: tokens that end it.
        client: whose it is.
        deadline: when it must have ended, in `perf_counter`'s seconds.
        slot: row of the page table while it runs.
    """

    tokens: list[int]
    n_prompt: int
    max_tokens: int
    stop_ids: frozenset[int]
    sampler: Sampler
    reuse_decoded: bool
    client: str = ""
    deadline: float = math.inf
    priority: int = 0
    state: State = State.WAITING
    n_computed: int = 0
    n_cached: int = 0
    pages: array[int] = field(default_factory=lambda: array("i"))
    slot: int = -1
    finish_reason: FinishReason | None = None
    n_preempted: int = 0
    submitted: float = field(default_factory=perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0

    @property
    def n_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_pending(self) -> int:
        """Tokens known but not computed yet."""
        return len(self.tokens) - self.n_computed

    def pages_needed(self, n_tokens: int) -> int:
        """Pages to add so that `n_tokens` have a cell."""
        return max(0, -(-n_tokens // PAGE) - len(self.pages))
