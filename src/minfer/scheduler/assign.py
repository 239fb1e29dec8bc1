"""Pass 1: give every node to a backend, and refuse a graph nobody can run."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from minfer.errors import UnsupportedError
from minfer.graph import Node
from minfer.scheduler.plan import Device, Plan


def assign(plan: Plan) -> Plan:
    """Give each node to the first backend that may take it and supports it.

    A backend takes part only if it supports every node with weights that its layers hold:
    otherwise each step would cross between memories for that node, and nobody would know why it
    is slow.

    Raises:
        UnsupportedError: naming the node no backend runs, with each backend's reason.
    """
    taking_part = []
    shut_out = ""
    for device in plan.devices:
        loser = _first_unsupported(device, plan)
        if loser is None:
            taking_part.append(device)
        else:
            shut_out = loser
    chosen: list[str] = []
    reasons: dict[int, str] = {}
    for node in plan.graph.nodes:
        if node.op == "input":
            chosen.append("")
            continue
        name, passed_over = _place(_bound(node, plan), taking_part, plan)
        if not name:
            raise UnsupportedError(
                f"no backend runs this node: {shut_out or '; '.join(passed_over)}",
                where=f"{node.op} {node.name}",
            )
        chosen.append(name)
        if passed_over or shut_out:
            reasons[node.id] = "; ".join(passed_over) or shut_out
    return replace(plan, backend_of=tuple(chosen), reasons=MappingProxyType(reasons))


def _first_unsupported(device: Device, plan: Plan) -> str | None:
    """Why `device` takes no part, or None."""
    for node in plan.graph.nodes:
        if node.weights and device.may_take(node):
            reason = device.backend.supports(node, plan.graph)
            if reason is not None:
                return f"{device.backend.name}: {node.name}: {reason}"
    return None


def _bound(node: Node, plan: Plan) -> list[Node]:
    """The nodes that must run where `node` does: those that share its KV state."""
    state = getattr(node.attrs, "state", None)
    if state is None:
        return [node]
    return [n for n in plan.graph.nodes if getattr(n.attrs, "state", None) == state]


def _place(nodes: list[Node], devices: list[Device], plan: Plan) -> tuple[str, list[str]]:
    """The first device that runs all of `nodes`, and why those before it do not."""
    passed_over: list[str] = []
    for device in devices:
        reason = None
        for node in nodes:
            if not device.may_take(node):
                reason = f"beyond its {device.n_layers} layers"
            else:
                reason = reason or device.backend.supports(node, plan.graph)
        if reason is None:
            return device.backend.name, passed_over
        passed_over.append(f"{device.backend.name}: {reason}")
    return "", passed_over
