"""`minfer plan`: where each node of a step runs, what it costs, and what memory it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from minfer.cli.loading import open_model
from minfer.cli.options import Debug, Format, Loading, ModelName, Tracing, option
from minfer.cli.picture import memory_picture
from minfer.cli.rendering import render
from minfer.cli.terminal import in_bytes, in_short, table

if TYPE_CHECKING:
    from minfer.engine import Engine
    from minfer.graph import Cost
    from minfer.measure import Fit, Floor
    from minfer.scheduler import Plan

_more = partial(option, "What to show")


@dataclass(frozen=True)
class Showing:
    """What is shown instead of the list of nodes."""

    ops: Annotated[
        bool, _more("Bytes and operations of each op, and the launches of a step.", "--ops")
    ] = False
    floor: Annotated[
        bool, _more("With --ops: the time this machine needs at least, measured.", "--floor")
    ] = False
    memory: Annotated[bool, _more("A picture of the arena: who lives where, when.", "--memory")] = (
        False
    )
    budget: Annotated[
        str | None, _more("What fits so much memory.", "--budget", metavar="SIZE")
    ] = None
    depth: Annotated[
        int, _more("Tokens in the KV cache before the step.", "-d", "--depth", metavar="N")
    ] = 0


def plan(
    model: ModelName,
    loading: Loading,
    showing: Showing,
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
    """Show where every node of a step would run, and why there; what it costs; what fits.

    A node that a preferred backend does not take says what that backend lacks.
    """
    for name, rows in (("--decode-rows", decode_rows), ("--prompt-rows", prompt_rows)):
        if rows < 0:
            raise typer.BadParameter(f"value {rows} is less than 0", param_hint=name)
    if decode_rows + prompt_rows == 0:
        raise typer.BadParameter("a step needs a row", param_hint="--decode-rows")
    if showing.depth < 0:
        raise typer.BadParameter(f"value {showing.depth} is less than 0", param_hint="--depth")
    budget = _budget(showing.budget)
    with open_model(model, loading, Tracing(debug=debug)) as llm:
        made = llm.plan(decode_rows, prompt_rows)
        engine = llm.lend_engine()
        sections: list[str] = []
        if showing.ops or showing.floor:
            sections.append(_ops(engine, made, decode_rows, prompt_rows, showing))
        if showing.memory:
            sections += [memory_picture(made, name) for name in made.used]
        if budget is not None:
            from minfer.measure import fit

            sections.append(_fit(fit(engine, budget)))
        if not sections:
            sections.append(render(made, form).rstrip("\n"))
        if form is Format.txt:
            sections += [f"note: {notice}" for notice in llm.notices]
    print("\n\n".join(sections))


def _budget(text: str | None) -> int | None:
    if text is None:
        return None
    from minfer.measure import parse_bytes

    return parse_bytes(text, where="--budget")


def _ops(engine: Engine, plan: Plan, decode_rows: int, prompt_rows: int, showing: Showing) -> str:
    """Costs by op, largest first, and of the whole step."""
    from minfer.graph import Load, costs, total
    from minfer.measure import kind_of, measure_floor

    runs = ((showing.depth, 1),) * decode_rows
    if prompt_rows:
        runs += ((showing.depth, prompt_rows),)
    by_node = costs(plan.graph, Load(runs, max(1, decode_rows)))
    floor = measure_floor(engine, _threads()) if showing.floor else None
    kinds: dict[str, list[int]] = {}
    for node in plan.graph.nodes:
        if node.op != "input":
            kinds.setdefault(kind_of(plan.graph, node), []).append(node.id)
    kinds = dict(sorted(kinds.items(), key=lambda row: -total(by_node[i] for i in row[1]).nbytes))
    kinds["all"] = [node.id for node in plan.graph.nodes if node.op != "input"]
    head = ["op", "nodes", "weights", "KV", "activations", "operations"]
    lines = [head + ["at least"] * (floor is not None)]
    for kind, ids in kinds.items():
        cost = total(by_node[i] for i in ids)
        sizes = (cost.weight_bytes, cost.state_bytes, cost.activation_bytes)
        line = [kind, str(len(ids)), *map(in_bytes, sizes), in_short(cost.flops)]
        if floor is not None:
            line.append(f"{1e6 * _least(plan, ids, by_node, floor):,.1f} µs")
        lines.append(line)
    launches = engine.launches(decode_rows, prompt_rows)
    words = ("kernel launch", "kernel launches") if "cuda" in plan.used else ("call", "calls")
    rows = f"{decode_rows} decode and {prompt_rows} prompt rows at depth {showing.depth}"
    notes = [f"a step of {rows}: {launches} {words[launches != 1]}"]
    if floor is not None:
        whole = total(by_node)
        notes += [_limits(floor), f"{whole.flops / whole.nbytes:.1f} operations a byte"]
    return table(lines) + "\n\n" + "\n".join(notes)


def _least(plan: Plan, ids: list[int], by_node: Sequence[Cost], floor: Floor) -> float:
    """Seconds that some nodes take at least."""
    return sum(
        floor.node_seconds(plan.graph, plan.graph.nodes[i], by_node[i].nbytes, by_node[i].flops)[0]
        for i in ids
    )


def _limits(floor: Floor) -> str:
    speeds = (
        f"{floor.read_bytes / 1e9:,.1f} GB/s",
        f"{floor.float_ops / 1e9:,.0f} GFLOP/s",
        f"{floor.int8_ops / 1e9:,.0f} G 8-bit operations a second",
    )
    return f"limits measured: {', '.join(speeds)} ({floor.how})"


def _threads() -> int:
    from minfer.backends.cpu import usable_cores
    from minfer.settings import Settings

    return Settings.load().threads or usable_cores()


def _fit(found: Fit) -> str:
    """What a budget holds, in words."""
    rows = [
        ("budget", in_bytes(found.budget)),
        ("weights", in_bytes(found.weights)),
        ("values of a step", in_bytes(found.arena)),
        *((f"tokens of {name} cache", f"{n:,}") for name, n in found.tokens.items()),
    ]
    if found.everything:
        longest = max(found.tokens.values())
        most = min(longest, found.n_ctx_train)
        last = (
            f"All {found.n_layers} blocks fit, with a context of {found.n_ctx:,} as asked for and "
            f"up to {most:,} (trained for {found.n_ctx_train:,})."
        )
    else:
        last = (
            f"{found.n_blocks} of {found.n_layers} blocks fit with a context of {found.n_ctx:,}: "
            f"--gpu-layers {found.n_blocks}, a smaller -c, or a smaller quantization."
        )
    return table(rows) + "\n\n" + last
