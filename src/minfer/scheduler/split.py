"""Pass 3: cut the nodes into maximal runs of one backend, and list what crosses each boundary."""

from __future__ import annotations

from dataclasses import replace

from minfer.scheduler.plan import Copy, Plan, Segment


def split(plan: Plan) -> Plan:
    """Fill `segments`. A value is copied to a backend once, before its first reader there."""
    segments: list[Segment] = []
    present: set[tuple[int, str]] = set()
    run: list[int] = []
    copies: list[Copy] = []
    current = ""

    def close() -> None:
        if run:
            segments.append(Segment(current, tuple(run), tuple(copies)))
            run.clear()
            copies.clear()

    for node in plan.graph.nodes:
        name = plan.backend_of[node.id]
        if node.op == "input":
            continue
        if name != current:
            close()
            current = name
        for src in dict.fromkeys(node.srcs):
            home = plan.backend_of[src]
            crosses = home not in ("", name) and (src, name) not in present
            if crosses and plan.graph.nodes[src].nbytes:
                copies.append(Copy(src, home, name))
                present.add((src, name))
        run.append(node.id)
    close()
    return replace(plan, segments=tuple(segments))
