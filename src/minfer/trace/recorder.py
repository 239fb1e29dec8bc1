"""Runs the steps of an engine node by node, and records what each node did.

It changes nothing that is computed: the same kernels run on the same memory in the same order. It
costs a wait and a download a node, so a traced step is slower, its nodes' own times are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.dtypes import F32
from minfer.engine import Chunk, Engine
from minfer.graph import Cost, Load, Node, costs, real_rows
from minfer.scheduler import CompiledPlan, Plan
from minfer.trace.records import (
    SAMPLES,
    Candidate,
    NodeRecord,
    PlanNode,
    PlanRecord,
    RunRecord,
    StepRecord,
)
from minfer.trace.sinks import Sink

Values = NDArray[np.float32]
TOP = 5
"""Candidates a row of logits keeps."""
BINS = 24
"""Bins of a histogram."""


def timed_nodes(compiled: CompiledPlan) -> Iterator[tuple[Node, float, float]]:
    """Run a step of a plan that was compiled node by node.

    Yields:
        Each node once it has run, when it began (`perf_counter`) and the seconds it took. Its value
        is still in memory then. A copy between backends counts to no node.
    """
    plan = compiled.plan
    compiled.upload_inputs()
    for node, step in compiled.steps():
        if node is None:
            step()
            continue
        began = perf_counter()
        yield node, began, plan.backend(plan.backend_of[node.id]).timed(step)


def load_of(compiled: CompiledPlan, chunks: Sequence[Chunk]) -> Load:
    """What a step whose inputs are filled really holds."""
    runs = tuple((c.start, c.count) for c in chunks)
    return Load(runs, int(compiled.inputs["counts"][2]))


class Recorder:
    """The watcher of an engine that writes to a sink.

    Args:
        engine: whose steps.
        sink: where the records go; closed with the recorder.
        text: answers the text of a token.
        histograms: count the values of every node in `BINS` bins too.
    """

    def __init__(
        self, engine: Engine, sink: Sink, text: Callable[[int], str], *, histograms: bool = False
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._text = text
        self._histograms = histograms
        self._began = perf_counter()
        self._plans: dict[int, tuple[int, Plan]] = {}  # keeps the plans, so that ids stay theirs
        self._n_steps = 0

    def run(self, compiled: CompiledPlan, chunks: Sequence[Chunk]) -> None:
        """Run a step and write its record."""
        began = perf_counter()
        plan = compiled.plan
        number = self._plan(plan)
        load = load_of(compiled, chunks)
        by_node = costs(plan.graph, load)
        filled = _filled(compiled, load)
        nodes = []
        value: Values | None = None
        for node, start, seconds in timed_nodes(compiled):
            value = _value(compiled, node, filled[node.id])
            cost = by_node[node.id]
            bins = _histogram(value) if self._histograms else ()
            nodes.append(_node(node, start - began, seconds, cost, value, bins))
        top = () if value is None else self._top(value)
        self._sink.write(
            StepRecord(
                n=self._n_steps,
                plan=number,
                at=round(began - self._began, 6),
                seconds=round(perf_counter() - began, 6),
                runs=tuple(self._run(c) for c in chunks),
                pages=self._engine.pages,
                top=top,
                nodes=tuple(nodes),
            )
        )
        self._n_steps += 1

    def close(self) -> None:
        """End the trace, and let the engine run its steps itself again."""
        self._engine.watch(None)
        self._sink.close()

    def _plan(self, plan: Plan) -> int:
        """The number of a plan, which is written the first time."""
        if id(plan) not in self._plans:
            self._plans[id(plan)] = (len(self._plans), plan)
            self._sink.write(plan_record(len(self._plans) - 1, plan))
        return self._plans[id(plan)][0]

    def _run(self, chunk: Chunk) -> RunRecord:
        tokens = tuple(chunk.sequence.tokens[chunk.start : chunk.start + chunk.count])
        texts = tuple(map(self._text, tokens))
        return RunRecord(chunk.sequence.priority, chunk.start, tokens, texts, chunk.single)

    def _top(self, logits: Values) -> tuple[tuple[Candidate, ...], ...]:
        if logits.shape[1] != self._engine.model.n_vocab:
            return ()  # hidden states
        return tuple(self._candidates(row) for row in logits)

    def _candidates(self, row: Values) -> tuple[Candidate, ...]:
        if not np.isfinite(row).all():
            return ()
        wide = row.astype(np.float64)
        best = np.argpartition(-wide, TOP)[:TOP]
        best = best[np.lexsort((best, -wide[best]))]
        log_sum = wide.max() + np.log(np.exp(wide - wide.max()).sum())
        return tuple(
            Candidate(
                token,
                self._text(token),
                _exact(row[token]),
                round(float(np.exp(wide[token] - log_sum)), 6),
            )
            for token in best.tolist()
        )


def plan_record(number: int, plan: Plan) -> PlanRecord:
    """A plan as a trace has it."""
    graph = plan.graph
    marked = real_rows(graph, Load(((0, 1),), 0))
    return PlanRecord(
        number,
        tuple(
            PlanNode(
                name=node.name,
                op=node.op,
                layer=node.layer,
                backend=plan.backend_of[node.id],
                shape=node.shape,
                srcs=node.srcs,
                weights={name: str(graph.weights[name].dtype) for name in node.weights},
                output_rows=marked[node.id] == 0,
            )
            for node in graph.nodes
        ),
    )


def _filled(compiled: CompiledPlan, load: Load) -> list[NDArray[np.int64]]:
    """For every node, the rows that hold something: those of padding are anything."""
    n_single, n_other, n_out = (int(n) for n in compiled.inputs["counts"])
    graph = compiled.plan.graph
    positions = np.asarray(compiled.inputs["positions"])
    rows = np.flatnonzero(positions >= 0)
    assert len(rows) == n_single + n_other
    marked = real_rows(graph, Load(load.runs, 0))
    return [np.arange(n_out) if count == 0 else rows for count in marked]


def _value(compiled: CompiledPlan, node: Node, rows: NDArray[np.int64]) -> Values | None:
    """The rows of a node's output that hold something, [rows, features]."""
    if not node.nbytes or node.dtype is not F32 or not len(rows):
        return None
    whole: NDArray[Any] = compiled.read(node, int(rows[-1]) + 1)
    return np.asarray(whole[rows], np.float32)


def _histogram(value: Values | None) -> tuple[int, ...]:
    """How many values lie in each of `BINS` equal parts of what is between the least and the most.

    Empty where something is not finite.
    """
    if value is None or not np.isfinite(value).all():
        return ()
    return tuple(np.histogram(value, BINS)[0].tolist())


def _node(
    node: Node,
    at: float,
    seconds: float,
    cost: Cost,
    value: Values | None,
    histogram: tuple[int, ...],
) -> NodeRecord:
    if value is None:
        found = _Statistics()
    else:
        found = _Statistics.of(value.reshape(-1))
    return NodeRecord(
        node=node.id,
        at_us=round(at * 1e6, 1),
        us=round(seconds * 1e6, 2),
        nbytes=cost.nbytes,
        flops=cost.flops,
        rows=0 if value is None else len(value),
        low=found.low,
        high=found.high,
        mean=found.mean,
        absmax=found.absmax,
        rms=found.rms,
        nans=found.nans,
        infs=found.infs,
        sample=found.sample,
        histogram=histogram,
    )


class _Statistics:
    """Figures of an array of values."""

    low: float | None = None
    high: float | None = None
    mean: float | None = None
    absmax: float | None = None
    rms: float | None = None
    nans: int = 0
    infs: int = 0
    sample: tuple[float, ...] = ()

    @staticmethod
    def of(values: Values) -> _Statistics:
        found = _Statistics()
        finite = values
        if not np.isfinite(values).all():
            found.nans = int(np.isnan(values).sum())
            found.infs = int(np.isinf(values).sum())
            finite = values[np.isfinite(values)]
        if finite.size:
            low, high = finite.min(), finite.max()
            found.low, found.high = _exact(low), _exact(high)
            found.absmax = _exact(max(abs(low), abs(high)))
            found.mean = float(f"{finite.mean(dtype=np.float64):.7g}")
            found.rms = float(f"{np.sqrt(np.mean(np.square(finite, dtype=np.float64))):.7g}")
        index = np.linspace(0, values.size - 1, min(SAMPLES, values.size)).astype(np.int64)
        found.sample = tuple(_exact(v) for v in values[index])
        return found


def _exact(value: np.float32 | float) -> float:
    """A float whose shortest text reads back as the same float32."""
    return float(str(np.float32(value)))
