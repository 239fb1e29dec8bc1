"""What an engine is made with, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.dtypes import F16, DType
from minfer.engine.batcher import single_bucket
from minfer.errors import RequestError
from minfer.graph import PAGE
from minfer.models import StepShape


@dataclass(frozen=True)
class EngineConfig:
    """Sizes fixed when an engine is made.

    Attributes:
        n_ctx: tokens a sequence may have.
        n_cells: tokens the KV cache holds in all; rounded up to whole pages.
        max_sequences: sequences that run at the same time.
        prefill_rows: prompt tokens a step computes at most.
        step_seconds: what a step beside running streams may take; its prompt rows adapt.
        cache_type: element type of the KV cache.
        prefix_cache: whether pages are kept for later requests with the same beginning.

    Raises:
        RequestError: for a size below 1.
    """

    n_ctx: int
    n_cells: int
    max_sequences: int = 16
    prefill_rows: int = 512
    step_seconds: float = 0.1
    cache_type: DType = F16
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("n_ctx", "n_cells", "max_sequences", "prefill_rows"):
            if getattr(self, name) < 1:
                raise RequestError(
                    f"value {getattr(self, name)} is out of range; expected at least 1", where=name
                )

    @property
    def n_pages(self) -> int:
        """Pages of the KV cache."""
        return -(-self.n_cells // PAGE)

    @property
    def max_single(self) -> int:
        """Places for rows that are alone in their sequence, in the largest step."""
        return single_bucket(self.max_sequences)

    @property
    def largest_steps(self) -> tuple[StepShape, StepShape]:
        """Steps than which none needs more memory: one long prompt, and it beside all streams.

        With few rows of prompts, 16 beside 64 streams, one that chooses tokens takes a bit more.
        """
        rows, single = self.prefill_rows, self.max_single
        return self.step_shape(0, rows, 1), self.step_shape(single, rows, single)

    def step_shape(
        self,
        single: int,
        other: int,
        out: int,
        *,
        hidden: bool = False,
        sampled: bool = False,
        penalized: bool = False,
    ) -> StepShape:
        """The shape of a step with so many places for rows; see `StepShape`."""
        return StepShape(
            single_rows=single,
            other_rows=other,
            out_rows=out,
            n_slots=self.max_sequences,
            max_pages=-(-self.n_ctx // PAGE),
            n_pages=self.n_pages,
            kv_dtype=self.cache_type,
            hidden=hidden,
            sampled=sampled,
            penalized=penalized,
        )


@dataclass
class Counters:
    """What an engine has done since it was made."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_hits: int = 0
    generated_tokens: int = 0
    guessed_tokens: int = 0
    right_guesses: int = 0
    preemptions: int = 0
    failed: int = 0
    expired: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def note_step(self, n_single: int, n_other: int, seconds: float) -> None:
        """Count a step, its time shared out by rows."""
        self.steps += 1
        self.decode_seconds += seconds * n_single / (n_single + n_other)
        self.prefill_seconds += seconds * n_other / (n_single + n_other)
