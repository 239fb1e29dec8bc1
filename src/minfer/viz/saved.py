"""A trace from a file for the page, and its comparison with a second one. No model is needed."""

from __future__ import annotations

import math
from typing import Any

from minfer.errors import RequestError
from minfer.trace import Trace, diff, to_json
from minfer.viz.feed import KEPT_STEPS, Feed
from minfer.viz.live import FeedSink


class SavedTrace:
    """A trace that the page shows as it was recorded."""

    def __init__(self, trace: Trace, feed: Feed) -> None:
        sink = FeedSink(feed)
        sink.write(trace.header)
        for plan in trace.plans.values():
            sink.write(plan)
        for step in trace.steps[:KEPT_STEPS]:
            sink.write(step)
        notice = trace.notice
        if len(trace.steps) > KEPT_STEPS:
            notice += f" The first {KEPT_STEPS} of {len(trace.steps)} steps are shown."
        feed.send("status", {"state": "saved", "error": notice.strip()}, lasting="status")

    def generate(self, prompt: str, max_tokens: int, temperature: float, chat: bool) -> None:
        """Refuse: nothing runs here."""
        raise RequestError(
            "a saved trace runs nothing", where="viz", remedy="Start `minfer viz` with a model"
        )

    def attention(self, layer: int, head: int) -> dict[str, Any]:
        """Refuse: a trace has no attention weights."""
        raise RequestError(
            "a saved trace has no attention weights",
            where="viz",
            remedy="Start `minfer viz` with a model",
        )

    def stop(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


def comparison(a: Trace, b: Trace) -> dict[str, Any]:
    """How two traces compare, as the page shows it: the largest distance of each node."""
    found = diff(a, b)
    plan = max(a.plans.values(), key=lambda p: len(p.nodes))
    ops = {n.name: n.op for n in plan.nodes}
    rows = [
        {
            "name": name,
            "op": ops.get(name, ""),
            "distance": d if math.isfinite(d) else None,
        }
        for name, d in found.by_name.items()
    ]
    parting = None
    if found.parting is not None:
        pair = found.parting
        parting = {
            "step": pair.step,
            "name": pair.planned_a.name,
            "distance": pair.distance if math.isfinite(pair.distance) else None,
        }
    return {
        "a": to_json(a.header) | {"path": a.path.name},
        "b": to_json(b.header) | {"path": b.path.name},
        "steps": found.n_steps,
        "nodes": found.n_nodes,
        "equal": found.n_equal,
        "parting": parting,
        "tokens": None if found.tokens is None else list(found.tokens),
        "rows": rows,
    }
