"""`minfer viz`: a page on the graph at work."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minfer.cli.loading import open_model
from minfer.cli.options import Debug, Loading, Tracing
from minfer.cli.terminal import progress_bar
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.llm import LLM
    from minfer.viz import Source

FAREWELL_SECONDS = 1.0
"""How long pages that are open can still hear why a model was not loaded."""


def viz(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|TRACE",
            help="A model to run, or a trace that was recorded with --trace.",
            show_default=False,
        ),
    ],
    loading: Loading,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="TRACE", help="A second trace to compare the first with."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8081,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    debug: Debug = False,
) -> None:
    """Serve a page that shows the graph at work: what runs where, how long, and with what values.

    The page is on this machine only. Ctrl-C ends it, and so does a model that cannot be loaded.
    """
    from minfer import hub
    from minfer.trace import read_trace
    from minfer.viz import Feed, LiveModel, SavedTrace, VizServer, comparison

    if not 0 <= port < 1 << 16:
        raise typer.BadParameter(f"value {port} is no port", param_hint="--port")
    saved = read_trace(Path(model)) if _is_trace(Path(model)) else None
    if compare is not None and saved is None:
        raise typer.BadParameter("only a trace compares with a trace", param_hint="--compare")
    compared: dict[str, Any] | None = None
    if saved is not None and compare is not None:
        compared = comparison(saved, read_trace(compare))
    if saved is not None and saved.notice:
        print(f"note: {saved.notice}", file=sys.stderr)
    # a replayed graph has no nodes to look at
    settings = replace(Settings.load(), no_cuda_graph=True)
    if saved is None:
        with progress_bar() as bar:
            model = str(hub.resolve(model, settings, progress=bar))
    feed = Feed()
    failures: SimpleQueue[Exception] = SimpleQueue()

    def load() -> LLM:
        try:
            return open_model(model, loading, Tracing(), settings)
        except Exception as error:
            failures.put(error)
            raise

    def source() -> Source:
        return LiveModel(load, feed) if saved is None else SavedTrace(saved, feed)

    server = VizServer(port, feed, source, compared)
    failed: list[Exception] = []

    def end_after_failure() -> None:
        failed.append(failures.get())
        sleep(FAREWELL_SECONDS)
        server.stop()

    Thread(target=end_after_failure, name="viz-failure", daemon=True).start()
    print(f"{server.url}  (Ctrl-C ends it)", file=sys.stderr)
    if not no_open:
        webbrowser.open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.release()
    if failed:
        raise failed[0]


def _is_trace(path: Path) -> bool:
    """Whether a file is JSON: a trace, or one that `read_trace` refuses in its own words."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1) in (b"{", b"[")
