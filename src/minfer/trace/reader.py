"""Reading a trace back, with a plain word on whatever is wrong with the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.errors import FormatError
from minfer.trace.records import (
    FORMAT,
    VERSION,
    Header,
    NodeRecord,
    PlanNode,
    PlanRecord,
    StepRecord,
    from_json,
)


@dataclass(frozen=True)
class Trace:
    """A trace in memory.

    Attributes:
        path: its file.
        plans: by id.
        notice: what a reader should know: that it was cut off, and after which step.
    """

    path: Path
    header: Header
    plans: dict[int, PlanRecord]
    steps: tuple[StepRecord, ...]
    notice: str = ""

    def planned(self, step: StepRecord, node: NodeRecord) -> PlanNode:
        """A node of a step as it was planned."""
        return self.plans[step.plan].nodes[node.node]


def read_trace(path: Path) -> Trace:
    """Read a whole trace.

    A trace that was cut off is read up to its last whole step, and says so in `notice`.

    Raises:
        FormatError: if the file cannot be read, is no trace, or has another version.
    """
    header: Header | None = None
    plans: dict[int, PlanRecord] = {}
    steps: list[StepRecord] = []
    ended, notice = False, ""
    for number, line in _lines(path):
        if line is None:
            break
        if header is None:
            header = _header(path, line)
            continue
        if line.get("type") == "end":
            ended = True
            continue
        try:
            record = from_json(line)
        except FormatError as error:
            raise FormatError(error.what, where=f"{path} line {number}") from None
        if isinstance(record, PlanRecord):
            plans[record.id] = record
        elif isinstance(record, StepRecord):
            if record.plan not in plans:
                raise FormatError(
                    f"step {record.n} is of plan {record.plan}, which is not there",
                    where=f"{path} line {number}",
                )
            steps.append(record)
    if header is None:
        raise FormatError("is empty", where=str(path), remedy="Was the run interrupted at once?")
    if not ended:
        notice = f"{path} was cut off after {len(steps)} whole step{'s' * (len(steps) != 1)}"
    return Trace(path, header, plans, tuple(steps), notice)


def _header(path: Path, line: dict[str, Any]) -> Header:
    if line.get("format") != FORMAT:
        raise FormatError("is no minfer trace", where=str(path), remedy=_REMEDY)
    if line.get("version") != VERSION:
        raise FormatError(
            f"is a trace of version {line.get('version')}; this minfer reads version {VERSION}",
            where=str(path),
            remedy="Record it again, or read it with the minfer that wrote it",
        )
    record = from_json(line)
    assert isinstance(record, Header)
    return record


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Number and object of each line; None for a last line that was cut off."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                except ValueError:
                    if number > 1 and not text.endswith("\n"):
                        yield number, None
                        return
                    if number == 1:
                        raise FormatError(
                            "is no minfer trace", where=str(path), remedy=_REMEDY
                        ) from None
                    raise FormatError("is damaged", where=f"{path} line {number}") from None
                if not isinstance(line, dict):
                    raise FormatError("is no minfer trace", where=str(path), remedy=_REMEDY)
                yield number, line
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise FormatError("is no minfer trace", where=str(path), remedy=_REMEDY) from None


_REMEDY = "Record one with `minfer run MODEL PROMPT --trace FILE`"
