"""From a name and the loading options to a model that is ready, with a progress bar for both."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import typer

from minfer.cli.options import Loading, Tracing, option_name
from minfer.cli.rendering import format_of, render
from minfer.cli.terminal import progress_bar
from minfer.errors import RequestError, SettingsError
from minfer.settings import PREFIX, Settings

if TYPE_CHECKING:
    from minfer.llm import LLM, Notice


def open_model(
    name: str,
    loading: Loading,
    tracing: Tracing,
    settings: Settings | None = None,
    **sizes: Any,
) -> LLM:
    """Load a model, downloading it first where it is not on this machine.

    Args:
        name: any name of a model.
        loading, tracing: the options.
        settings: the process's by default.
        sizes: further arguments of `LLM`.

    Raises:
        typer.BadParameter: for an option's value that cannot be used.
        MinferError: of any kind, when it cannot be found, fetched or loaded.
    """
    graph = tracing.dump_graph
    form = None if graph is None else format_of(graph)
    settings = settings or Settings.load()
    if tracing.trace is not None:
        settings = replace(settings, trace=tracing.trace)
    if tracing.trace_format is not None:
        settings = replace(settings, trace_format=tracing.trace_format.value)
    if graph is not None and not graph.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {graph.parent}", param_hint="--dump-graph")
    llm = _load(name, loading, settings, sizes)
    if graph is not None and form is not None:
        graph.write_text(render(llm.plan(), form), encoding="utf-8")
    return llm


def note(notices: Iterable[Notice]) -> None:
    """Say on stderr what may make answers slower or worse than expected."""
    for notice in notices:
        if not notice.usual:
            print(f"note: {notice}", file=sys.stderr)


def _load(name: str, loading: Loading, settings: Settings, sizes: dict[str, Any]) -> LLM:
    from minfer.llm import LLM

    given = {f.name: getattr(loading, f.name) for f in fields(loading)}
    given = {field: value for field, value in given.items() if value is not None}
    try:
        with progress_bar() as progress:
            return LLM(name, **given, **sizes, settings=settings, progress=progress)
    except (RequestError, SettingsError) as error:
        field = (error.where or "").removeprefix(PREFIX).lower()
        if field not in given:
            raise
        hint = option_name(Loading, field)
        raise typer.BadParameter(error.what, param_hint=hint) from None
