"""What every node of every step did: recording, files, reading back, and where two traces part."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from minfer.engine import Engine
from minfer.trace.diff import TOLERANCE, Difference, NodeDifference, diff
from minfer.trace.reader import Trace, read_trace
from minfer.trace.recorder import Recorder, load_of, plan_record, timed_nodes
from minfer.trace.records import (
    NODE_FIELDS,
    Candidate,
    Header,
    NodeRecord,
    PlanNode,
    PlanRecord,
    Record,
    RunRecord,
    StepRecord,
    to_json,
)
from minfer.trace.sinks import LinesSink, PerfettoSink, Sink, open_sink


def record(
    engine: Engine,
    sink: Sink,
    *,
    model: str,
    text: Callable[[int], str],
    histograms: bool = False,
) -> Recorder:
    """Watch an engine: from now on every step is recorded in `sink`, until the recorder is closed.

    Args:
        model: its name.
        text: answers the text of a token.
        histograms: count the values of every node in bins too.
    """
    from minfer import __version__

    sink.write(
        Header(
            minfer=__version__,
            model=model,
            architecture=engine.model.arch,
            devices=engine.describe(),
            began=datetime.now(UTC).isoformat(timespec="seconds"),
            n_ctx=engine.config.n_ctx,
            cache_type=engine.config.cache_type.name,
            n_pages=engine.config.n_pages,
        )
    )
    recorder = Recorder(engine, sink, text, histograms=histograms)
    engine.watch(recorder)
    return recorder


__all__ = [
    "NODE_FIELDS",
    "TOLERANCE",
    "Candidate",
    "Difference",
    "Header",
    "LinesSink",
    "NodeDifference",
    "NodeRecord",
    "PerfettoSink",
    "PlanNode",
    "PlanRecord",
    "Record",
    "Recorder",
    "RunRecord",
    "Sink",
    "StepRecord",
    "Trace",
    "diff",
    "load_of",
    "open_sink",
    "plan_record",
    "read_trace",
    "record",
    "timed_nodes",
    "to_json",
]
