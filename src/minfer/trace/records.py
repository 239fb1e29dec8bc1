"""What a trace is made of: a header, plans, steps, and in a step what each node did. Data only.

A trace file holds these records as JSON Lines, one object a line, in the order they happened:

    {"type": "header", "format": "minfer-trace", "version": 1, ...}  first, once
    {"type": "plan", "id": 0, "nodes": [...]}                        before its first step
    {"type": "step", "n": 0, "plan": 0, "nodes": [[...], ...], ...}  one a step, whole
    {"type": "end", "steps": 12}                                     last, unless it was cut off

The fields are those of the dataclasses here. A node of a step is an array in the order of
`NodeRecord`'s fields, because names would be most of the file. Values are float32, written so that
they read back exactly; what is not a number is written as "nan", "inf" or "-inf".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from minfer.errors import FormatError

FORMAT = "minfer-trace"
VERSION = 1
SAMPLES = 8
"""Values of a node's output that a step keeps, evenly spaced over its real rows."""


@dataclass(frozen=True)
class Header:
    """What the whole trace is about.

    Attributes:
        minfer: its version.
        model, architecture: names.
        devices: backend -> its device.
        began: when, ISO 8601.
        n_ctx, cache_type: of the engine.
        n_pages: pages of the KV cache.
    """

    minfer: str
    model: str
    architecture: str
    devices: Mapping[str, str]
    began: str
    n_ctx: int
    cache_type: str
    n_pages: int


@dataclass(frozen=True)
class PlanNode:
    """A node as it was planned; nodes are numbered by their place in the plan.

    Attributes:
        output_rows: whether its rows are those whose logits are wanted, not the step's.
        weights: name -> type.
    """

    name: str
    op: str
    layer: int | None
    backend: str
    shape: tuple[int, ...]
    srcs: tuple[int, ...]
    weights: Mapping[str, str]
    output_rows: bool


@dataclass(frozen=True)
class PlanRecord:
    """A plan, written before its first step."""

    id: int
    nodes: tuple[PlanNode, ...]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a node did in a step.

    Attributes:
        node: its place in the plan.
        at_us: start, microseconds after the step's.
        us: microseconds it took by its device's clock.
        nbytes, flops: what it had to move and compute at least (`minfer.graph.costs`).
        rows: rows of the output that hold something.
        low, high, mean, absmax, rms: of the finite values of those rows; None without any.
        nans, infs: how many values are not numbers, and not finite.
        sample: `SAMPLES` values, evenly spaced.
        histogram: values in equal bins from `low` to `high`; empty where nobody asked for it.
    """

    node: int
    at_us: float
    us: float
    nbytes: int
    flops: int
    rows: int
    low: float | None
    high: float | None
    mean: float | None
    absmax: float | None
    rms: float | None
    nans: int
    infs: int
    sample: tuple[float, ...]
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class RunRecord:
    """Rows of one sequence in a step.

    Attributes:
        seq: number of the request, in order of arrival.
        start: position of its first row.
        tokens: their ids.
        texts: their texts.
        single: whether they took the row-at-a-time path.
    """

    seq: int
    start: int
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    single: bool


@dataclass(frozen=True)
class Candidate:
    """One of the most likely next tokens."""

    token: int
    text: str
    logit: float
    probability: float


@dataclass(frozen=True)
class StepRecord:
    """A step of the engine.

    Attributes:
        n: number of the step.
        plan: id of its plan.
        at: seconds after the trace began.
        seconds: of the whole step, tracing included.
        runs: whose rows it computed.
        pages: of the KV cache: (free, held by the prefix cache only, all).
        top: for each row of logits, the most likely tokens, best first.
        nodes: what each node did, in the order of execution.
    """

    n: int
    plan: int
    at: float
    seconds: float
    runs: tuple[RunRecord, ...]
    pages: tuple[int, int, int]
    top: tuple[tuple[Candidate, ...], ...]
    nodes: tuple[NodeRecord, ...]


Record = Header | PlanRecord | StepRecord
NODE_FIELDS = tuple(f.name for f in fields(NodeRecord))


def to_json(record: Record) -> dict[str, Any]:
    """A record as the object its line holds."""
    match record:
        case Header():
            return {"type": "header", "format": FORMAT, "version": VERSION, **asdict(record)}
        case PlanRecord():
            return {"type": "plan", **asdict(record)}
        case StepRecord():
            whole = {f.name: getattr(record, f.name) for f in fields(record)}
            whole["runs"] = [asdict(r) for r in record.runs]
            whole["top"] = [[astuple(c) for c in row] for row in record.top]
            whole["nodes"] = [_node_to_json(n) for n in record.nodes]
            return {"type": "step", **whole}


def from_json(line: Mapping[str, Any]) -> Record:
    """The record of a line's object.

    Raises:
        FormatError: if it is none of a trace of this version.
    """
    kind = line.get("type")
    rest = {k: v for k, v in line.items() if k not in ("type", "format", "version")}
    try:
        if kind == "header":
            return Header(**rest)
        if kind == "plan":
            nodes = tuple(
                PlanNode(**n | {"shape": tuple(n["shape"]), "srcs": tuple(n["srcs"])})
                for n in rest["nodes"]
            )
            return PlanRecord(rest["id"], nodes)
        if kind == "step":
            rest["runs"] = tuple(
                RunRecord(**r | {"tokens": tuple(r["tokens"]), "texts": tuple(r["texts"])})
                for r in rest["runs"]
            )
            rest["top"] = tuple(tuple(Candidate(*c) for c in row) for row in rest["top"])
            rest["nodes"] = tuple(_node_from_json(n) for n in rest["nodes"])
            rest["pages"] = tuple(rest["pages"])
            return StepRecord(**rest)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise FormatError(f"a {kind} record is malformed: {error}") from None
    raise FormatError(f"a record has the unknown type {kind!r}")


def _node_to_json(node: NodeRecord) -> list[Any]:
    named = {name: getattr(node, name) for name in NODE_FIELDS}
    named["sample"] = [v if abs(v) < float("inf") else str(v) for v in node.sample]
    return list(named.values())


def _node_from_json(values: Sequence[Any]) -> NodeRecord:
    named = dict(zip(NODE_FIELDS, values, strict=True))
    named["sample"] = tuple(float(v) for v in named["sample"])
    named["histogram"] = tuple(named["histogram"])
    return NodeRecord(**named)
