"""Where two traces part: the first node whose values differ by more than rounding explains.

Steps are matched by number, and nodes by name. A fused node is matched with the node of its chain
that has its value: the product or norm that adds a residual with that `add`, and `fused_qkv` with
the `q` that attention reads. What only one of the traces has a value of is passed over.

The distance of two nodes is the larger of the differences of their samples (root mean square) and
of their own root mean squares, relative to the size of what is larger, samples or whole values: 8
bits round an element by a part of its neighbours' size, so small samples of large values may differ
by a quarter of their own. Powers of ten tell causes apart: 1e-6 is another order of
additions, 1e-2 rounding of activations to 8 bits, up to 1e-1 where many blocks add theirs up, and
about 1 a wrong kernel or layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minfer.trace.reader import Trace
from minfer.trace.records import NodeRecord, PlanNode, PlanRecord, StepRecord

TOLERANCE = 0.15
"""What rounding to 8 bits explains after thirty blocks (0.05 to 0.08), with a margin."""


@dataclass(frozen=True)
class NodeDifference:
    """A node of a step in both traces.

    Attributes:
        step: number of the step.
        a, b: what it did.
        planned_a, planned_b: how it was planned.
        distance: how far apart the values are; infinite where one has what is no number.
    """

    step: int
    a: NodeRecord
    b: NodeRecord
    planned_a: PlanNode
    planned_b: PlanNode
    distance: float


@dataclass(frozen=True)
class Difference:
    """How two traces compare.

    Attributes:
        n_steps: steps compared.
        n_nodes: pairs of nodes compared.
        n_equal: pairs whose figures and samples are equal to the last bit.
        first: the first pair that is not.
        parting: the first pair beyond the tolerance.
        worst: the pair furthest apart.
        tokens: a step whose tokens differ, which ends the comparison, and the positions' tokens.
        by_name: the largest distance of each node, over all steps, in order of execution.
    """

    n_steps: int
    n_nodes: int
    n_equal: int
    first: NodeDifference | None
    parting: NodeDifference | None
    worst: NodeDifference | None
    tokens: tuple[int, str] | None
    by_name: dict[str, float]


def diff(a: Trace, b: Trace, tolerance: float = TOLERANCE) -> Difference:
    """Compare two traces step by step."""
    n_steps = n_nodes = n_equal = 0
    first: NodeDifference | None = None
    parting: NodeDifference | None = None
    worst: NodeDifference | None = None
    tokens: tuple[int, str] | None = None
    by_name: dict[str, float] = {}
    for step_a, step_b in zip(a.steps, b.steps, strict=False):
        tokens = _tokens_differ(step_a, step_b)
        if tokens:
            break
        n_steps += 1
        for pair in compare(a, step_a, b, step_b):
            n_nodes += 1
            name = pair.planned_a.name
            by_name[name] = max(by_name.get(name, 0.0), pair.distance)
            if pair.distance == 0.0 and _figures(pair.a) == _figures(pair.b):
                n_equal += 1
            else:
                first = first or pair
            if pair.distance > tolerance:
                parting = parting or pair
            if worst is None or pair.distance > worst.distance:
                worst = pair
    return Difference(n_steps, n_nodes, n_equal, first, parting, worst, tokens, by_name)


def compare(a: Trace, step_a: StepRecord, b: Trace, step_b: StepRecord) -> Iterator[NodeDifference]:
    """Every pair of nodes of two steps that stand for the same value, in the order of `a`."""
    plan_a, plan_b = a.plans[step_a.plan], b.plans[step_b.plan]
    same = matches(plan_a, plan_b)
    done_b = {n.node: n for n in step_b.nodes}
    for node_a in step_a.nodes:
        node_b = done_b.get(same.get(node_a.node, -1))
        if node_b is None or not node_a.rows or not node_b.rows:
            continue
        planned = plan_a.nodes[node_a.node], plan_b.nodes[node_b.node]
        yield NodeDifference(step_a.n, node_a, node_b, *planned, distance(node_a, node_b))


def matches(a: PlanRecord, b: PlanRecord) -> dict[int, int]:
    """For nodes of `a`, the node of `b` with the same value."""
    names_b = {node.name: index for index, node in enumerate(b.nodes)}
    found: dict[int, int] = {}
    for index, node in enumerate(a.nodes):
        other = names_b.get(node.name)
        if other is not None:
            if _adds(node) == _adds(b.nodes[other]):
                found[index] = other
            elif _adds(node):
                _put(found, index, _adder(b, other))
            else:
                _put(found, _adder(a, index), other)
    for index, node in enumerate(a.nodes):
        if node.op == "fused_qkv" and index not in found:
            _put(found, index, _query(b, node.layer))
    for index, node in enumerate(b.nodes):
        if node.op == "fused_qkv" and index not in found.values():
            query = _query(a, node.layer)
            _put(found, query, index)
    return found


def distance(a: NodeRecord, b: NodeRecord) -> float:
    """How far two outputs are apart, relative to their size."""
    if (a.nans, a.infs) != (b.nans, b.infs) or a.rows != b.rows or len(a.sample) != len(b.sample):
        return math.inf
    if a.rms is None or b.rms is None:
        return 0.0 if a.rms is b.rms else math.inf
    pairs = [(x, y) for x, y in zip(a.sample, b.sample, strict=True) if math.isfinite(x - y)]
    of_a, of_b = _size([x for x, _ in pairs]), _size([y for _, y in pairs])
    apart = max(_size([x - y for x, y in pairs]), abs(a.rms - b.rms))
    return apart / max(of_a, of_b, a.rms, b.rms) if apart else 0.0


def _size(values: Sequence[float]) -> float:
    """Root mean square."""
    return math.sqrt(sum(v * v for v in values) / len(values)) if values else 0.0


def _figures(node: NodeRecord) -> tuple[object, ...]:
    return (node.low, node.high, node.mean, node.absmax, node.rms, node.nans, node.infs)


def _tokens_differ(a: StepRecord, b: StepRecord) -> tuple[int, str] | None:
    for run_a, run_b in zip(a.runs, b.runs, strict=False):
        if (run_a.start, run_a.tokens) != (run_b.start, run_b.tokens):
            return a.n, (
                f"A computes {_run(run_a.start, run_a.tokens)}, B {_run(run_b.start, run_b.tokens)}"
            )
    if len(a.runs) != len(b.runs):
        return a.n, f"A computes {len(a.runs)} sequences, B {len(b.runs)}"
    return None


def _run(start: int, tokens: tuple[int, ...]) -> str:
    shown = " ".join(map(str, tokens[:6])) + (" …" if len(tokens) > 6 else "")
    return f"{len(tokens)} tokens from position {start} ({shown})"


def _adds(node: PlanNode) -> bool:
    """Whether a product or a norm also adds a residual."""
    return node.op in ("matmul", "rms_norm") and len(node.srcs) == 2


def _adder(plan: PlanRecord, product: int) -> int | None:
    """The `add` that reads a product."""
    for index, node in enumerate(plan.nodes):
        if node.op == "add" and product in node.srcs:
            return index
    return None


def _query(plan: PlanRecord, layer: int | None) -> int | None:
    """The node whose value is the rotated q of a block."""
    for node in plan.nodes:
        if node.op == "attention" and node.layer == layer:
            return node.srcs[0]
    return None


def _put(found: dict[int, int], a: int | None, b: int | None) -> None:
    if a is not None and b is not None:
        found[a] = b
