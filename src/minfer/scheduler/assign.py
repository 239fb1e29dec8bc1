"""Pass 1: give every node to a backend, and refuse a graph nobody can run."""

from __future__ import annotations

from collections.abc import Mapping
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
    sharing = _by_state(plan)
    shut_out = {d.backend.name: _first_unsupported(d, plan) for d in plan.devices}
    chosen: list[str] = []
    reasons: dict[int, str] = {}
    for node in plan.graph.nodes:
        if node.op == "input":
            chosen.append("")
            continue
        together = sharing.get(_state(node), [node])
        name, passed_over = _place(together, shut_out, plan)
        if not name:
            raise UnsupportedError(
                f"no backend runs this node: {'; '.join(passed_over)}",
                where=f"{node.op} {node.name}",
            )
        chosen.append(name)
        if passed_over:
            reasons[node.id] = "; ".join(passed_over)
    return replace(plan, backend_of=tuple(chosen), reasons=MappingProxyType(reasons))


def _first_unsupported(device: Device, plan: Plan) -> str | None:
    """Why `device` takes no part, or None."""
    for node in plan.graph.nodes:
        if node.weights and device.may_take(node):
            reason = device.backend.supports(node, plan.graph)
            if reason is not None:
                return f"{node.name}: {reason}"
    return None


def _state(node: Node) -> str:
    """The KV state a node reads or writes, "" for none."""
    return getattr(node.attrs, "state", "")


def _by_state(plan: Plan) -> dict[str, list[Node]]:
    """The nodes that must run in one place because they share a KV state, by its name."""
    found: dict[str, list[Node]] = {}
    for node in plan.graph.nodes:
        if _state(node):
            found.setdefault(_state(node), []).append(node)
    return found


def _place(
    nodes: list[Node], shut_out: Mapping[str, str | None], plan: Plan
) -> tuple[str, list[str]]:
    """The first device that runs all of `nodes`, and why those before it do not."""
    passed_over: list[str] = []
    for device in plan.devices:
        name = device.backend.name
        reason = shut_out[name]
        for node in nodes:
            if reason is None and not device.may_take(node):
                reason = f"beyond its {device.n_layers} layers"
            reason = reason or device.backend.supports(node, plan.graph)
        if reason is None:
            return name, passed_over
        passed_over.append(f"{name}: {reason}")
    return "", passed_over
