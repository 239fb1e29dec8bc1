"""From a name and the loading options to a model that is ready, with a progress bar for both."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from minfer.cli.options import Loading, Tracing
from minfer.cli.terminal import progress_bar
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.llm import LLM


def open_model(name: str, loading: Loading, tracing: Tracing | None = None) -> LLM:
    """Load a model, downloading it first where it is not on this machine.

    Raises:
        MinferError: of any kind, when it cannot be found, fetched or loaded.
    """
    from minfer.llm import LLM

    settings = Settings.load()
    if tracing is not None and tracing.trace is not None:
        settings = replace(settings, trace=tracing.trace)
    given = {f.name: getattr(loading, f.name) for f in fields(loading)}
    given = {name: value for name, value in given.items() if value is not None}
    with progress_bar() as progress:
        return LLM(name, **given, settings=settings, progress=progress)
