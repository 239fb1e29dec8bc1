"""`minfer viz`: a page on the graph at work."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minfer.cli.loading import open_model
from minfer.cli.options import Debug, Loading, Tracing
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.llm import LLM
    from minfer.viz import Source


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

    The page is on this machine only. Ctrl-C ends it.
    """
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
    feed = Feed()

    def source() -> Source:
        if saved is not None:
            return SavedTrace(saved, feed)
        return LiveModel(lambda: _load(model, loading), feed)

    server = VizServer(port, feed, source, compared)
    print(f"{server.url}  (Ctrl-C ends it)", file=sys.stderr)
    if not no_open:
        webbrowser.open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.closing.set()
        server.source.close()


def _load(model: str, loading: Loading) -> LLM:
    # a replayed graph has no nodes to look at
    settings = replace(Settings.load(), no_cuda_graph=True)
    try:
        return open_model(model, loading, Tracing(), settings)
    except Exception as error:  # the page tells it too, but may not be open
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        raise


def _is_trace(path: Path) -> bool:
    """Whether a file is JSON: a trace, or one that `read_trace` refuses in its own words."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1) in (b"{", b"[")
