"""`minfer plan`: where each node of a step would run, and why there."""

from __future__ import annotations

from typing import Annotated

import typer

from minfer.cli.loading import open_model
from minfer.cli.options import Debug, Loading, ModelName


def plan(
    model: ModelName,
    loading: Loading,
    rows: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="Token rows of the step.")
    ] = 1,
    debug: Debug = False,
) -> None:
    """Show where every node of a step would run, why there, and the memory it takes."""
    with open_model(model, loading) as llm:
        print(llm.plan(rows))
