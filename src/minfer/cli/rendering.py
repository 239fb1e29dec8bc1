"""A plan on paper: text with a summary, Graphviz DOT or JSON. For `minfer plan`, `--dump-graph`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from minfer.cli.options import Format
from minfer.cli.terminal import in_bytes, table

if TYPE_CHECKING:
    from minfer.scheduler import Plan


def render(plan: Plan, form: Format) -> str:
    """A plan as text with a summary, as Graphviz DOT or as JSON."""
    from minfer.graph import to_dot, to_json, to_text

    match form:
        case Format.txt:
            return to_text(plan.graph, plan.describe) + "\n" + _summary(plan) + "\n"
        case Format.dot:
            return to_dot(plan.graph, plan.describe)
        case Format.json:
            return to_json(plan.graph, plan.describe)


def format_of(path: Path) -> Format:
    """The form a file's ending names.

    Raises:
        typer.BadParameter: for another ending.
    """
    try:
        return Format(path.suffix[1:])
    except ValueError:
        endings = ", ".join(f".{form}" for form in Format)
        raise typer.BadParameter(
            f"value {str(path)!r} ends in none of {endings}", param_hint="--dump-graph"
        ) from None


def _summary(plan: Plan) -> str:
    rows = [("backend", "nodes", "splits", "arena")]
    for name in plan.used:
        mine = [segment for segment in plan.segments if segment.backend == name]
        n_nodes = sum(len(segment.nodes) for segment in mine)
        arena = in_bytes(plan.arena_bytes[name])
        rows.append((name, str(n_nodes), str(len(mine)), arena))
    if not plan.choices:
        return table(rows)
    return table(rows) + "\n\n" + table([("kernel", "for"), *plan.choices.items()])
