"""Rows of measurements: appended to `bench/results` as they come, never overwritten; as a table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from minfer.measure import commit, cpu_name

FOLDER = Path(__file__).parent / "results"


def command() -> str:
    """How this was run; of files only their names, since folders are one machine's."""
    words = [f"{key}{sep}{Path(value).name}" for key, sep, value in map(_parted, sys.argv[1:])]
    return " ".join(["python -m bench." + Path(sys.argv[0]).stem, *words])


def _parted(word: str) -> tuple[str, str, str]:
    key, sep, value = word.partition("=")
    return (key, sep, value) if sep else ("", "", word)


class Rows:
    """What a run measures. Each row is printed and in `results/NAME.csv` at once: none is lost.

    Args:
        name: of the file.
        device: what was measured, if not this processor.
        columns: those that only some rows have, for a file that is new.
    """

    def __init__(self, name: str, device: str | None = None, columns: Sequence[str] = ()) -> None:
        self._name = name
        self._device = device
        self._columns = columns
        self.all: list[Mapping[str, object]] = []

    def add(self, *rows: Mapping[str, object]) -> None:
        """Keep rows, whose columns a file that is there must have."""
        if not rows:
            return
        append(self._name, [dict.fromkeys(self._columns, "") | dict(r) for r in rows], self._device)
        self.all += rows
        print(table(rows), flush=True)


def append(name: str, rows: Sequence[Mapping[str, object]], device: str | None = None) -> Path:
    """Append rows to `results/NAME.csv` with date, commit, device and command."""
    path = FOLDER / f"{name}.csv"
    FOLDER.mkdir(exist_ok=True)
    stamp = {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": commit() or "unknown",
        "device": device or cpu_name(),
        "command": command(),
    }
    new = not path.exists()
    fields = list(stamp) + list(dict.fromkeys(k for row in rows for k in row))
    if not new:
        with path.open() as file:
            fields = next(csv.reader(file))
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields, extrasaction="raise", restval="")
        if new:
            writer.writeheader()
        writer.writerows(stamp | dict(row) for row in rows)
    return path


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as aligned text."""
    if not rows:
        return "(nothing measured)"
    columns = list(dict.fromkeys(k for row in rows for k in row))
    cells = [columns] + [[_text(row.get(c, "")) for c in columns] for row in rows]
    widths = [max(len(r[i]) for r in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(t.ljust(w) for t, w in zip(r, widths, strict=True)).rstrip() for r in cells
    )


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
