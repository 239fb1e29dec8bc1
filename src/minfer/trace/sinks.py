"""Where records go: JSON Lines, or the events that ui.perfetto.dev and chrome://tracing show.

A record is on the disk when `write` returns: whoever is interrupted has every step before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

from minfer.errors import FormatError
from minfer.trace.records import Header, PlanRecord, Record, StepRecord, to_json


class Sink(Protocol):
    """Takes the records of a trace, in order."""

    def write(self, record: Record) -> None:
        """Keep a record."""

    def close(self) -> None:
        """End the trace. Closing twice is allowed."""


def open_sink(path: Path, form: str) -> Sink:
    """A file for a trace, replacing what was there.

    Args:
        form: `json` for JSON Lines, or `perfetto`.

    Raises:
        FormatError: if it cannot be written.
    """
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise FormatError(
            f"a trace cannot be written here: {error.strerror}", where=str(path)
        ) from None
    return PerfettoSink(file) if form == "perfetto" else LinesSink(file)


class LinesSink:
    """JSON Lines, as `minfer.trace.records` describes them."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._n_steps = 0

    def write(self, record: Record) -> None:
        """Write a line and hand it to the system."""
        self._n_steps += isinstance(record, StepRecord)
        self._line(to_json(record))

    def close(self) -> None:
        """Write the last line."""
        if not self._file.closed:
            self._line({"type": "end", "steps": self._n_steps})
            self._file.close()

    def _line(self, content: dict[str, Any]) -> None:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        self._file.write(text + "\n")
        self._file.flush()


PROCESS = 1
STEPS_TRACK = 1


class PerfettoSink:
    """The JSON array of trace events; it may lack its end, as after a crash, and still opens."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._plans: dict[int, PlanRecord] = {}
        self._tracks: dict[str, int] = {}
        file.write("[\n")

    def write(self, record: Record) -> None:
        """Write a record's events."""
        match record:
            case Header():
                self._event(ph="M", name="process_name", args={"name": f"minfer {record.model}"})
                self._name_track(STEPS_TRACK, "steps")
            case PlanRecord():
                self._plans[record.id] = record
                for name in dict.fromkeys(n.backend for n in record.nodes if n.backend):
                    if name not in self._tracks:
                        self._tracks[name] = STEPS_TRACK + 1 + len(self._tracks)
                        self._name_track(self._tracks[name], name)
            case StepRecord():
                for event in self._step(record):
                    self._event(**event)
        self._file.flush()

    def close(self) -> None:
        """Close the array."""
        if not self._file.closed:
            self._event(ph="M", name="process_labels", end="", args={"labels": "complete"})
            self._file.write("\n]\n")
            self._file.close()

    def _step(self, step: StepRecord) -> Iterator[dict[str, Any]]:
        plan = self._plans[step.plan]
        at = step.at * 1e6
        rows = sum(len(r.tokens) for r in step.runs)
        best = [row[0].text for row in step.top if row]
        yield {
            "ph": "X",
            "name": f"step {step.n}",
            "ts": at,
            "dur": step.seconds * 1e6,
            "tid": STEPS_TRACK,
            "args": {"rows": rows, "most likely next": best},
        }
        free, cached, total = step.pages
        pages = {"running": total - free - cached, "cached": cached}
        yield {"ph": "C", "name": "KV pages", "ts": at, "args": pages}
        for node in step.nodes:
            planned = plan.nodes[node.node]
            yield {
                "ph": "X",
                "name": planned.name,
                "cat": planned.op,
                "ts": at + node.at_us,
                "dur": node.us,
                "tid": self._tracks[planned.backend],
                "args": {
                    "op": planned.op,
                    "weights": dict(planned.weights),
                    "GB/s": node.nbytes / node.us / 1e3 if node.us else 0.0,
                    "GFLOP/s": node.flops / node.us / 1e3 if node.us else 0.0,
                    "min": node.low,
                    "max": node.high,
                    "rms": node.rms,
                    "nan": node.nans,
                },
            }

    def _name_track(self, track: int, name: str) -> None:
        self._event(ph="M", name="thread_name", tid=track, args={"name": name})

    def _event(self, *, end: str = ",\n", **fields: Any) -> None:
        whole = {"pid": PROCESS, "tid": STEPS_TRACK, **fields}
        self._file.write(json.dumps(whole, ensure_ascii=False) + end)
