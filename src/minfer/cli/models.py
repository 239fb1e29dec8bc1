"""`minfer list` and `minfer pull`: what is on this machine, and bringing more to it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from minfer.cli.options import Debug, ModelName
from minfer.cli.terminal import in_bytes, progress_bar, table
from minfer.settings import Settings


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """List the models on this machine.

    Looks into minfer's own cache, that of Hugging Face and the store of Ollama.
    """
    from minfer import hub

    models = hub.list_models(Settings.load())
    if as_json:
        rows = [
            {"name": row.name, "path": str(row.path), "bytes": row.n_bytes, "source": row.source}
            for row in models
        ]
        print(json.dumps(rows, indent=2))
    elif models:
        print(table([(row.name, in_bytes(row.n_bytes), str(row.path)) for row in models]))
    else:
        names = ", ".join(hub.ALIASES)
        typer.echo(f"no models yet; `minfer pull NAME` brings one, e.g. {names}", err=True)


def pull(model: ModelName, debug: Debug = False) -> None:
    """Download a model or bring it up to date, and print its path."""
    from minfer import hub

    with progress_bar() as progress:
        path = hub.pull(model, Settings.load(), progress)
    print(path)
