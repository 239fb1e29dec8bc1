"""What `minfer bench` measures: tests, the setups they run in, and what came out. Data only.

Names, order and defaults are llama-bench's, so that rows of both stand beside each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product


@dataclass(frozen=True)
class Setup:
    """How a model is run; each combination is loaded once.

    Attributes:
        model: a name or path.
        gpu_layers: blocks on the GPU, None for what fits.
        type_k, type_v: element type of the KV cache; minfer stores both in one.
        n_threads: CPU threads, 0 for the cores there are.
        n_batch: tokens of a prompt handed over at a time.
        n_ubatch: rows a step computes at most.
    """

    model: str
    gpu_layers: int | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    n_threads: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512


@dataclass(frozen=True)
class Case:
    """Tokens of a prompt, then generated tokens, after `n_depth` tokens that are not timed."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def name(self) -> str:
        """As llama-bench prints it: `pp512`, `tg128`, `pp512+tg128`, `tg128 @ d4096`."""
        parts = [f"pp{self.n_prompt}"] * bool(self.n_prompt) + [f"tg{self.n_gen}"] * bool(
            self.n_gen
        )
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def n_tokens(self) -> int:
        """Tokens timed."""
        return self.n_prompt + self.n_gen


@dataclass(frozen=True)
class Facts:
    """What is known of the model and the machine of a row."""

    filename: str
    model_type: str
    model_size: int
    n_params: int
    backends: str
    n_threads: int
    cpu_info: str
    gpu_info: str
    n_layers: int


@dataclass(frozen=True)
class Result:
    """A row.

    Attributes:
        setup, test, facts: what was measured, where.
        began: when.
        samples_ns: nanoseconds of each repetition.
        floor_seconds: least time the machine allows, where it was asked for.
        bound: what bounds it there: `memory` or `compute`.
    """

    setup: Setup
    test: Case
    facts: Facts
    began: datetime
    samples_ns: Sequence[int]
    floor_seconds: float | None = field(default=None)
    bound: str = ""

    @property
    def samples_ts(self) -> list[float]:
        """Tokens a second of each repetition."""
        return [1e9 * self.test.n_tokens / ns for ns in self.samples_ns]

    @property
    def avg_ts(self) -> float:
        """Mean of tokens a second."""
        return statistics.fmean(self.samples_ts)

    @property
    def stddev_ts(self) -> float:
        """Standard deviation of tokens a second; 0 for one repetition."""
        return statistics.stdev(self.samples_ts) if len(self.samples_ns) > 1 else 0.0

    @property
    def floor_ts(self) -> float | None:
        """Tokens a second that the machine would allow."""
        return None if self.floor_seconds is None else self.test.n_tokens / self.floor_seconds


def every_case(
    n_prompt: Sequence[int],
    n_gen: Sequence[int],
    n_pg: Sequence[tuple[int, int]],
    n_depth: Sequence[int],
) -> list[Case]:
    """Every test asked for, in llama-bench's order; a count of 0 leaves a test out."""
    found = []
    for depth in n_depth:
        found += [Case(n, 0, depth) for n in n_prompt if n]
        found += [Case(0, n, depth) for n in n_gen if n]
        found += [Case(p, g, depth) for p, g in n_pg if p or g]
    return found


def every_setup(
    models: Sequence[str],
    gpu_layers: Sequence[int | None],
    types: Sequence[tuple[str, str]],
    n_threads: Sequence[int],
    n_batch: Sequence[int],
    n_ubatch: Sequence[int],
) -> Iterator[Setup]:
    """Every combination; what changes last in the order of the arguments changes fastest."""
    for model, layers, batch, ubatch, (k, v), threads in product(
        models, gpu_layers, n_batch, n_ubatch, types, n_threads
    ):
        yield Setup(model, layers, k, v, threads, batch, ubatch)
