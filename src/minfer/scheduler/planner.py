"""From a graph to a plan: the passes in their order, which is the design."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from minfer.errors import GraphError
from minfer.graph import Graph, verify
from minfer.scheduler.allocate import allocate
from minfer.scheduler.assign import assign
from minfer.scheduler.fuse import fuse
from minfer.scheduler.plan import Device, Plan
from minfer.scheduler.split import split
from minfer.settings import Settings

Pass = Callable[[Plan], Plan]


def passes(settings: Settings) -> list[tuple[str, Pass]]:
    """The passes by name, in order."""
    return [
        ("assign", assign),
        ("fuse", partial(fuse, qkv=not settings.no_fuse_qkv, ffn=not settings.no_fuse_ffn)),
        ("split", split),
        ("allocate", allocate),
    ]


def make_plan(graph: Graph, devices: Sequence[Device], settings: Settings) -> Plan:
    """Plan `graph` for `devices`, given in order of preference.

    Raises:
        UnsupportedError: if some node runs nowhere.
        GraphError: with `settings.verify`, naming the pass after which the graph is not legal.
    """
    plan = Plan(graph, tuple(devices))
    if settings.verify:
        _verify(plan, "build")
    for name, step in passes(settings):
        plan = step(plan)
        if settings.verify:
            _verify(plan, name)
    return plan


def _verify(plan: Plan, after: str) -> None:
    try:
        verify(plan.graph)
    except GraphError as error:
        raise GraphError(f"{error.what} (after {after})", where=error.where) from None
