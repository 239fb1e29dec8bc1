"""The screen: streamed text on stdout, figures and progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from minfer.hub import Progress

# Control characters except tab and newline: a model must not move the cursor or retitle a window.
_UNSAFE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class Output:
    """Text written piece by piece, in UTF-8, made safe where a terminal would interpret it."""

    def __init__(self) -> None:
        self._stream: TextIO = sys.stdout
        self._is_terminal = self._stream.isatty()
        self._at_line_start = True
        reconfigure = getattr(self._stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8")

    def write(self, text: str) -> None:
        """Show a piece at once."""
        if self._is_terminal:
            text = text.translate(_UNSAFE)
        if text:
            self._stream.write(text)
            self._stream.flush()
            self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line unless at the start of one."""
        if not self._at_line_start:
            self.write("\n")


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A progress callback that draws on stderr while the block runs; None where no one looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import (
        Progress as Bars,
    )

    tasks: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


@contextmanager
def status_line(*, always: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that shows what is going on in a line on stderr, and "" to clear it.

    Args:
        always: write lines even where no terminal shows them.
    """
    terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        if terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif always and text:
            print(text, file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if terminal:
            say("")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; the last column is never padded or cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]]
        )
        for row in rows
    )


def in_bytes(n_bytes: int) -> str:
    """A size for people, in binary units."""
    size, units = float(n_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def in_short(count: int) -> str:
    """A count for people: 134.5 M."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return str(count)
