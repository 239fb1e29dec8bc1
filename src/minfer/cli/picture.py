"""The arena as a picture in text: which addresses hold something, node by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minfer.cli.terminal import in_bytes, table

if TYPE_CHECKING:
    from minfer.graph import Node
    from minfer.scheduler import Plan, Resident

WIDTH = 48
INPUT, BORN, KEPT, FREE = "▒", "█", "▓", "·"


def memory_picture(plan: Plan, name: str) -> str:
    """The arena of a backend: a line a node, an address range a column.

    Blocks whose lines are the same are drawn once.
    """
    from minfer.scheduler import residents

    lived = residents(plan, name)
    arena = plan.arena_bytes[name]
    column = max(1, -(-arena // WIDTH))
    width = -(-arena // column)
    lines = [
        f"arena of {name}: {in_bytes(arena)}, {in_bytes(column)} a column. "
        f"{INPUT} input  {BORN} written by this node  {KEPT} needed later  {FREE} free"
    ]
    inputs = frozenset(node.id for node in plan.graph.inputs.values())
    rows: list[tuple[int | None, tuple[str, ...]]] = []
    for node in plan.graph.nodes:
        if plan.backend_of[node.id] == name:
            rows.append((node.layer, _row(node, lived, inputs, column, width)))
    drawn = list(_collapsed(rows))
    return "\n".join([*lines, table(drawn), "", _largest(plan, lived)])


def _row(
    node: Node, lived: list[Resident], inputs: frozenset[int], column: int, width: int
) -> tuple[str, ...]:
    cells = [FREE] * width
    used = 0
    for buffer in lived:
        if not buffer.start <= node.id <= buffer.end:
            continue
        used += buffer.nbytes
        mark = KEPT
        if buffer.nodes[0] in inputs:
            mark = INPUT
        elif node.id in buffer.nodes:
            mark = BORN
        first = buffer.offset // column
        last = max(first, (buffer.offset + buffer.nbytes - 1) // column)
        for index in range(first, last + 1):
            if cells[index] != BORN:
                cells[index] = mark
    short = node.name.removeprefix(f"blk.{node.layer}.")
    return "".join(cells), in_bytes(used), short


def _collapsed(rows: list[tuple[int | None, tuple[str, ...]]]) -> Iterator[tuple[str, ...]]:
    """The rows with their block, and equal neighbouring blocks as one."""
    blocks: list[tuple[list[int | None], list[tuple[str, ...]]]] = []
    for layer, row in rows:
        if blocks and blocks[-1][0][-1] == layer:
            blocks[-1][1].append(row)
        else:
            blocks.append(([layer], [row]))
        if len(blocks) > 2 and blocks[-2][1] == blocks[-3][1] and blocks[-2][0][0] is not None:
            blocks[-3][0].extend(blocks[-2][0])
            del blocks[-2]
    for layers, lines in blocks:
        first, last = layers[0], layers[-1]
        name = "" if first is None else f"blk.{first}" + (f"-{last}" if last != first else "")
        for index, line in enumerate(lines):
            yield (name if index == 0 else "", *line)


def _largest(plan: Plan, lived: list[Resident], shown: int = 8) -> str:
    """The largest buffers and who lives in them; equal ones of several blocks are told once."""
    alike: dict[tuple[int, int], list[Resident]] = {}
    for buffer in sorted(lived, key=lambda b: (-b.nbytes, b.start)):
        alike.setdefault((buffer.nbytes, buffer.offset), []).append(buffer)
    rows = [("largest buffers", "offset", "lives", "holds")]
    for (nbytes, offset), buffers in list(alike.items())[:shown]:
        first = buffers[0]
        names = [plan.graph.nodes[n].name for n in first.nodes]
        more = f" and {len(buffers) - 1} like it" if len(buffers) > 1 else ""
        life = f"node {first.start}-{min(first.end, len(plan.graph.nodes) - 1)}"
        rows.append((in_bytes(nbytes), f"{offset:,}", life, ", ".join(names) + more))
    return table(rows)
