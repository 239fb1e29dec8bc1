"""The table of verbs, and the reading of `minfer MODEL PROMPT` as `minfer run MODEL PROMPT`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from minfer import __version__
from minfer.cli.bench import bench
from minfer.cli.bundles import flat
from minfer.cli.chat import chat
from minfer.cli.diff import diff
from minfer.cli.doctor import doctor
from minfer.cli.fidelity import fidelity
from minfer.cli.info import info
from minfer.cli.models import list_models, pull
from minfer.cli.perplexity import perplexity
from minfer.cli.plan import plan
from minfer.cli.report import ending, piped
from minfer.cli.run import run
from minfer.cli.serve import serve
from minfer.cli.viz import viz

VERBS: dict[str, Callable[..., None]] = {
    "run": run,
    "chat": chat,
    "serve": serve,
    "info": info,
    "plan": plan,
    "bench": bench,
    "perplexity": perplexity,
    "fidelity": fidelity,
    "diff": diff,
    "viz": viz,
    "doctor": doctor,
    "list": list_models,
    "pull": pull,
}
"""Verb -> the function that does it. One row and one file a verb."""

GLOBAL = ("--help", "--version")


def build() -> typer.Typer:
    """The application with all verbs."""
    app = typer.Typer(
        name="minfer",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_top)
    for name, verb in VERBS.items():
        app.command(name)(flat(piped(verb)))
    return app


def call(arguments: Sequence[str]) -> int:
    """Carry out a command line, given without the program's name, and answer the exit code."""
    return ending(
        lambda: build()(with_verb(arguments), prog_name="minfer", standalone_mode=False),
        debug="--debug" in arguments,
    )


def with_verb(arguments: Sequence[str]) -> list[str]:
    """The arguments with `run` put before a model's name.

    Raises:
        typer.BadParameter: where the first word is nearly a verb and no file.
    """
    first = arguments[0] if arguments else "--help"
    if first in VERBS or first in GLOBAL:
        return [first, *arguments[1:]]
    close = difflib.get_close_matches(first, VERBS, n=1, cutoff=0.6)
    if close and not Path(first).exists():
        raise typer.BadParameter(
            f"{first!r} is no verb; did you mean {close[0]!r}? For a model write "
            f"`minfer run {first}`",
            param_hint="MODEL",
        )
    return ["run", *arguments]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"minfer {__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run GGUF language models on CPUs and NVIDIA GPUs, with kernels of its own."""
