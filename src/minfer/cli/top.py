"""A live view of a server in the terminal: `minfer serve --top`.

It reads `/metrics` like any other program and shows what changed between two readings.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from rich.console import Group

EVERY = 0.5
"""Seconds between two readings."""
SHOWN = 12
"""Requests shown."""

Reading = Mapping[str, float]


class Top(logging.Handler):
    """Shows a server's figures and its last requests, until it is closed.

    As a log handler it takes the requests' lines, which would tear the view apart.

    Args:
        url: the server's address.
        key: an API key, where the server asks for one.
    """

    def __init__(self, url: str, key: str | None) -> None:
        super().__init__()
        self._url = url
        self._key = key
        self._lines: deque[str] = deque(maxlen=SHOWN)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="minfer-top", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        text = record.getMessage()
        if record.name.endswith(".requests"):
            note = json.loads(text)
            if note["path"] == "/metrics":
                return
            text = request_line(note)
        self._lines.append(text)

    def close(self) -> None:
        """End the view and leave its last state on the screen."""
        self._over.set()
        self._thread.join()
        super().close()

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live

        before: Reading = {}
        then = perf_counter()
        with Live(console=Console(stderr=True), auto_refresh=False) as live:
            while not self._over.wait(EVERY):
                try:
                    reading = self._read()
                except OSError:  # loading, or stopping
                    continue
                now = perf_counter()
                shown = view(self._url, reading, before, now - then, list(self._lines))
                live.update(shown, refresh=True)
                before, then = reading, now

    def _read(self) -> Reading:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        with urlopen(Request(f"{self._url}/metrics", headers=headers), timeout=5) as answer:
            return parse(answer.read().decode())


def parse(text: str) -> dict[str, float]:
    """The samples of a Prometheus page, by name and labels."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def quantile(reading: Reading, before: Reading, name: str, share: float) -> float | None:
    """A quantile of what a histogram took in between two readings; None if it took nothing.

    The answer is the upper end of a bucket.
    """
    start = f"minfer_{name}_bucket"
    counts = []
    for sample, count in reading.items():
        if sample.startswith(start):
            end = float(sample.split('le="')[1].split('"')[0])
            counts.append((end, count - before.get(sample, 0.0)))
    counts.sort()
    total = counts[-1][1] if counts else 0.0
    return next((end for end, n in counts if n >= share * total), None) if total else None


def view(url: str, reading: Reading, before: Reading, seconds: float, lines: list[str]) -> Group:
    """What is shown: figures of now, rates since the reading before, the last lines."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def now(name: str) -> float:
        return reading.get(f"minfer_{name}", 0.0)

    def rate(name: str) -> float:
        return (now(name) - before.get(f"minfer_{name}", now(name))) / max(seconds, 1e-6)

    def time(name: str, share: float) -> str:
        found = quantile(reading, before, name, share)
        return "-" if found is None else f"≤ {found * 1e3:g} ms"

    total = now("kv_pages_total")
    free, cached = now("kv_pages_free"), now("kv_pages_cached")
    prompt = now("prompt_tokens_total") + now("prompt_tokens_cached_total")
    hits = now("prompt_tokens_cached_total") / prompt if prompt else 0.0
    rows = (
        ("running", f"{now('requests_running'):g}", "waiting", f"{now('requests_waiting'):g}"),
        (
            "prompt",
            f"{rate('prompt_tokens_total'):.0f} t/s",
            "generated",
            f"{rate('generated_tokens_total'):.0f} t/s",
        ),
        (
            "first token p50",
            time("time_to_first_token_seconds", 0.5),
            "p99",
            time("time_to_first_token_seconds", 0.99),
        ),
        (
            "between tokens p50",
            time("inter_token_seconds", 0.5),
            "p99",
            time("inter_token_seconds", 0.99),
        ),
        (
            "prompt from cache",
            f"{hits:.0%}",
            "preemptions",
            f"{now('preemptions_total'):g}",
        ),
        (
            "pages in use",
            f"{total - free - cached:g} of {total:g}",
            "cached, shared",
            f"{cached:g}, {now('kv_pages_shared'):g}",
        ),
    )
    table = Table.grid(padding=(0, 3))
    for row in rows:
        table.add_row(*row)
    return Group(
        Text(f"minfer serve  {url}", style="bold"),
        table,
        ProgressBar(total=total or 1.0, completed=total - free - cached, width=60),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines),
    )


def request_line(note: Mapping[str, object]) -> str:
    """A request's line for people."""
    tokens = ""
    if "completion_tokens" in note:
        tokens = (
            f"{note['prompt_tokens']} ({note['cached_tokens']} cached) -> "
            f"{note['completion_tokens']} tokens"
        )
    return (
        f"{note.get('status', '-')} {note['method']} {note['path']}  {note['ms']} ms  "
        f"{tokens}{note.get('error', '')}"
    )
