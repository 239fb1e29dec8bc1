"""`minfer plan`: where each node of a step runs, and why there."""

from __future__ import annotations

from typing import Annotated

import typer

from minfer.cli.loading import open_model
from minfer.cli.options import Debug, Format, Loading, ModelName, Tracing
from minfer.cli.rendering import render


def plan(
    model: ModelName,
    loading: Loading,
    decode_rows: Annotated[
        int, typer.Option("--decode-rows", metavar="N", help="Rows that decode a token.")
    ] = 1,
    prompt_rows: Annotated[
        int, typer.Option("--prompt-rows", metavar="N", help="Rows of a prompt.")
    ] = 0,
    form: Annotated[
        Format, typer.Option("--format", help="What to print; dot is for Graphviz.")
    ] = Format.txt,
    debug: Debug = False,
) -> None:
    """Show where every node of a step would run, and why there.

    A node that a preferred backend does not take says what that backend lacks.
    """
    for name, rows in (("--decode-rows", decode_rows), ("--prompt-rows", prompt_rows)):
        if rows < 0:
            raise typer.BadParameter(f"value {rows} is less than 0", param_hint=name)
    if decode_rows + prompt_rows == 0:
        raise typer.BadParameter("a step needs a row", param_hint="--decode-rows")
    with open_model(model, loading, Tracing(debug=debug)) as llm:
        text = render(llm.plan(decode_rows, prompt_rows), form)
        if form is Format.txt:
            text += "".join(f"note: {notice}\n" for notice in llm.notices)
    print(text, end="")
