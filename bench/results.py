"""Rows of measurements: printed as a table, appended to `bench/results`, never overwritten."""

from __future__ import annotations

import csv
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent / "results"


def commit() -> str:
    """Short hash of the checked-out commit, with `+` where the tree differs from it."""
    git = ["git", "-C", str(FOLDER.parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "--", "../src"], capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if dirty.strip() else "")


def cpu_name() -> str:
    """Model of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def append(name: str, rows: Sequence[Mapping[str, object]], device: str | None = None) -> Path:
    """Append rows to `results/NAME.csv` with date, commit, device and command."""
    path = FOLDER / f"{name}.csv"
    stamp = {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": commit(),
        "device": device or cpu_name(),
        "command": "python -m bench." + Path(sys.argv[0]).stem + " " + " ".join(sys.argv[1:]),
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
