"""Figures for Prometheus: what requests saw, and what the engine did.

Histograms and request counts are kept here; the engine's own counters are read when a scrape asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from minfer.engine import Counters, Engine

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class Snapshot:
    """An engine between two steps.

    Attributes:
        n_running, n_waiting: sequences.
        pages_free, pages_cached, pages_total: pages of the KV cache; `cached` could be had back.
        pages_shared: pages that more than one sequence or the prefix cache holds.
        counters: a copy.
    """

    n_running: int
    n_waiting: int
    pages_free: int
    pages_cached: int
    pages_total: int
    pages_shared: int
    counters: Counters

    @classmethod
    def of(cls, engine: Engine) -> Snapshot:
        """Take one; for the engine's thread."""
        free, cached, total = engine.pages
        return cls(
            n_running=engine.n_running,
            n_waiting=engine.n_waiting,
            pages_free=free,
            pages_cached=cached,
            pages_total=total,
            pages_shared=engine.n_shared_pages,
            counters=replace(engine.counters),
        )


# Name, meaning, and how to read it.
_GAUGES: tuple[tuple[str, str, Callable[[Snapshot], float]], ...] = (
    ("requests_running", "Sequences being computed.", lambda s: s.n_running),
    ("requests_waiting", "Sequences waiting for their turn.", lambda s: s.n_waiting),
    ("kv_pages_total", "Pages of the KV cache.", lambda s: s.pages_total),
    ("kv_pages_free", "Pages nobody holds.", lambda s: s.pages_free),
    ("kv_pages_cached", "Pages only the prefix cache holds.", lambda s: s.pages_cached),
    ("kv_pages_shared", "Pages held more than once.", lambda s: s.pages_shared),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Counters], float]], ...] = (
    ("prompt_tokens", "Prompt tokens computed.", lambda c: c.prompt_tokens),
    ("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", lambda c: c.cached_tokens),
    ("prefix_hits", "Sequences that found their beginning cached.", lambda c: c.prefix_hits),
    ("generated_tokens", "Tokens generated.", lambda c: c.generated_tokens),
    ("guessed_tokens", "Tokens guessed by speculation.", lambda c: c.guessed_tokens),
    ("right_guesses", "Guessed tokens that were right.", lambda c: c.right_guesses),
    ("preemptions", "Times a sequence lost its pages.", lambda c: c.preemptions),
    ("failed_sequences", "Sequences that ended with an error.", lambda c: c.failed),
    ("expired_sequences", "Sequences that ran out of time.", lambda c: c.expired),
    ("engine_steps", "Steps computed.", lambda c: c.steps),
    ("prefill_seconds", "Seconds spent on prompts.", lambda c: c.prefill_seconds),
    ("decode_seconds", "Seconds spent on generated tokens.", lambda c: c.decode_seconds),
)


class Metrics:
    """One server's figures.

    Attributes:
        requests: answered requests by path and status.
        first_token: seconds from a sequence's submission to its first token.
        between_tokens: seconds between two tokens of a sequence.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "minfer_requests",
            "Requests answered.",
            ("path", "status"),
            registry=self._registry,
        )
        self.first_token = Histogram(
            "minfer_time_to_first_token_seconds",
            "From a sequence's submission to its first token.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.between_tokens = Histogram(
            "minfer_inter_token_seconds",
            "Between two tokens of a sequence.",
            buckets=(0.001, 0.0025, *_SECONDS[:10]),
            registry=self._registry,
        )

    def text(self, snapshot: Snapshot) -> bytes:
        """Everything in Prometheus' text format."""
        engine = CollectorRegistry()
        engine.register(_EngineFigures(snapshot))
        return bytes(generate_latest(self._registry) + generate_latest(engine))


class _EngineFigures(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """The engine's figures."""
        for name, meaning, read in _GAUGES:
            yield GaugeMetricFamily(f"minfer_{name}", meaning, value=read(self._snapshot))
        for name, meaning, count in _COUNTERS:
            yield CounterMetricFamily(
                f"minfer_{name}", meaning, value=count(self._snapshot.counters)
            )
