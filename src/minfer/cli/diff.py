"""`minfer diff`: the first node where two traces part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minfer.cli.options import Debug
from minfer.cli.terminal import table
from minfer.errors import FormatError

if TYPE_CHECKING:
    from minfer.trace import Difference, NodeDifference, Trace

PARTED = 1
SHOWN = 12  # nodes in the list of the furthest apart


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A trace.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another.", show_default=False)],
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            metavar="X",
            help="Relative distance that is still the same; 0.15 by default. 0 finds the first "
            "node that is not equal to the last bit.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Find the first node where two traces of the same prompt part.

    Record them with `--trace` and `--greedy`: on two devices, with two versions, or with a switch
    on and off. A distance of 1e-6 is another order of additions, 1e-2 is rounding to 8 bits, and 1
    a wrong kernel. Ends with code 1 where the traces part.
    """
    from minfer.trace import TOLERANCE, read_trace
    from minfer.trace import diff as compare

    limit = TOLERANCE if tolerance is None else tolerance
    if not 0 <= limit < float("inf"):
        raise typer.BadParameter(f"value {limit} is not a distance", param_hint="--tolerance")
    traces = read_trace(a), read_trace(b)
    for trace in traces:
        if trace.notice:
            print(f"note: {trace.notice}", file=sys.stderr)
        if not trace.steps:
            raise FormatError("holds no step", where=str(trace.path))
    found = compare(*traces, tolerance=limit)
    print("\n\n".join(_sections(traces, found, limit)))
    if found.parting or found.tokens:
        raise typer.Exit(PARTED)


def _sections(traces: tuple[Trace, Trace], found: Difference, limit: float) -> list[str]:
    sections = [table([_side(name, t) for name, t in zip("AB", traces, strict=True)])]
    equal = f"{found.n_equal:,} of {found.n_nodes:,} compared nodes are equal to the last bit"
    sections.append(f"{found.n_steps:,} steps compared; {equal}.")
    if found.parting is not None:
        sections.append(f"They part at {_where(found.parting)}:\n" + _pair(found.parting))
    elif found.first is not None and found.worst is not None:
        sections.append(
            f"They do not part: no distance is above {limit:g}. The first difference is at "
            f"{_where(found.first)} ({found.first.distance:.2g}), the largest at "
            f"{_where(found.worst)} ({found.worst.distance:.2g})."
        )
    if found.tokens is not None:
        step, what = found.tokens
        sections.append(
            f"From step {step} on they compute different tokens: {what}. Only the steps before it "
            "can be compared."
        )
    apart = sorted(found.by_name.items(), key=lambda row: -row[1])[:SHOWN]
    if apart and apart[0][1] > 0:
        rows = [("node", "largest distance"), *((name, f"{d:.2g}") for name, d in apart)]
        sections.append(table(rows))
    return sections


def _side(name: str, trace: Trace) -> tuple[str, ...]:
    head = trace.header
    where = ", ".join(f"{k} ({v})" for k, v in head.devices.items())
    return (
        name,
        str(trace.path),
        head.model,
        where,
        f"KV {head.cache_type}",
        f"minfer {head.minfer}",
    )


def _where(pair: NodeDifference) -> str:
    return f"step {pair.step}, {pair.planned_a.name} ({pair.planned_a.op})"


def _pair(pair: NodeDifference) -> str:
    """The figures of both sides below each other."""
    rows: list[tuple[str, ...]] = [
        ("", "node", "op", "backend", "weights", "rows", "min", "max", "mean", "rms", "nan", "inf")
    ]
    sides = zip("AB", (pair.a, pair.b), (pair.planned_a, pair.planned_b), strict=True)
    for name, node, planned in sides:
        weights = " ".join(dict.fromkeys(planned.weights.values()))
        figures = [_number(v) for v in (node.low, node.high, node.mean, node.rms)]
        where = (planned.name, planned.op, planned.backend, weights, str(node.rows))
        rows.append((name, *where, *figures, str(node.nans), str(node.infs)))
    samples = [
        (f"  sample {name}", *(_number(v) for v in node.sample))
        for name, node in (("A", pair.a), ("B", pair.b))
    ]
    text = f"distance {pair.distance:.3g}\n{table(rows)}"
    return text + ("\n" + table(samples) if samples[0][1:] and samples[1][1:] else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
