"""The time line of a step: whose time it is, which steps count, what the rows say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import gpu_timeline as t
from bench.gpu import PREFILL_ROWS

from minfer.errors import BackendError

LAYERS = 3


def step(
    start: float, durations: Sequence[float] = (2, 6, 4), gap: float = 0.0, rows: int = 1
) -> list[t.Event]:
    """An embedding, LAYERS times a product and an attention, a head; `gap` before each kernel."""
    embed, matmul, attention = durations
    events = []
    for name, duration, blocks in (
        ("embed", embed, (rows, 1, 1)),
        *[("matmul", matmul, (132, 1, 1)), ("attention", attention, (4, rows, 1))] * LAYERS,
        ("head", 10.0, (132, 2, 1)),
    ):
        start += gap
        events.append(t.Event(name, start, duration, blocks, (256, 1, 1)))
        start += duration
    return events


def many(n: int, between: float = 1.0, **changes: Any) -> list[t.Event]:
    """So many steps, one after another."""
    events: list[t.Event] = []
    for _ in range(n):
        start = events[-1].start + events[-1].duration + between if events else 1000.0
        events += step(start, **changes)
    return events


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1000)), min_size=1, max_size=40))
def test_the_shares_add_up_to_the_record(pairs: list[tuple[int, int]]) -> None:
    events = [t.Event("k", float(s), float(d), (1,), (1,)) for s, d in sorted(pairs)]
    found = t.shares(events)
    begin, end = events[0].start, max(e.start + e.duration for e in events)
    assert sum(s.us for s in found) == end - begin
    busy = set().union(*(range(s, s + d) for s, d in pairs)) if end - begin < 5000 else None
    if busy is not None:
        assert sum(s.us - s.gap_us for s in found) == len(busy)
    for share in found:
        assert 0 <= share.gap_us <= share.us
        assert share.early_us == 0 or share.gap_us == 0


def test_a_kernel_that_starts_early_gets_only_the_time_after_its_predecessor() -> None:
    a, b = t.Event("a", 100, 50, (1,), (1,)), t.Event("b", 110, 60, (1,), (1,))
    after = t.Event("c", 175, 5, (1,), (1,))
    assert t.shares([a, b, after]) == [
        t.Share(us=50, gap_us=0, early_us=0, own_us=50),
        t.Share(us=20, gap_us=0, early_us=40, own_us=60),
        t.Share(us=10, gap_us=5, early_us=0, own_us=5),
    ]
    assert t.shares([]) == []


def test_launches_are_counted_and_timed_by_kind() -> None:
    found = t.analysed(many(5, between=1.0, gap=0.5))
    assert found.steps == 4
    assert [(line.kind[0], line.launches) for line in found.lines] == [
        ("embed", 1),
        ("matmul", LAYERS),
        ("attention", LAYERS),
        ("head", 1),
    ]
    embed, matmul, *_ = found.lines
    assert embed.share == t.Share(us=3.5, gap_us=1.5, early_us=0, own_us=2)
    assert matmul.share == t.Share(us=6.5, gap_us=0.5, early_us=0, own_us=6)
    assert found.launches == 2 + 2 * LAYERS
    assert found.idle_us == pytest.approx(1.5 + 0.5 * (1 + 2 * LAYERS))
    assert found.total_us == pytest.approx(found.idle_us + 12 + 10 * LAYERS)
    assert found.layers().launches == 2 * LAYERS
    assert found.layers().total_us == pytest.approx(11 * LAYERS)


def test_the_record_may_come_in_any_order() -> None:
    events = many(4)
    assert t.analysed(events[::-1]) == t.analysed(events)


def test_steps_of_other_work_and_a_slow_one_do_not_count() -> None:
    prompt = many(2, rows=512, durations=(50, 900, 800))
    usual = many(6)
    slow = many(1, gap=400.0)
    record: list[t.Event] = []
    for part in (prompt, usual, slow, usual):
        shift = record[-1].start + record[-1].duration + 1 - part[0].start if record else 0.0
        record += [t.Event(e.name, e.start + shift, e.duration, e.grid, e.block) for e in part]
    assert t.analysed(record).total_us == t.analysed(many(4)).total_us


@pytest.mark.parametrize("events", [[], step(0.0), step(0.0) + step(100.0, rows=2)])
def test_too_short_a_record_is_refused(events: list[t.Event]) -> None:
    with pytest.raises(BackendError, match="no step came twice"):
        t.analysed(events)


def test_rows_have_the_sums_of_a_step_a_layer_and_a_token() -> None:
    timeline = t.analysed(many(5, between=1.0))
    rows = t.rows(timeline, LAYERS, tokens=4)
    kernels, sums = rows[:4], {str(row["kernel"]): row for row in rows[4:]}
    assert kernels[1]["grid"] == "132x1x1" and kernels[1]["block"] == "256x1x1"
    assert sum(float(str(row["share"])) for row in kernels) == pytest.approx(1)
    whole, layer, token = (sums[name] for name in ("(a step)", "(a layer)", "(a token)"))
    assert (whole["launches"], layer["launches"], token["launches"]) == (8, 2, 2)
    assert (whole["total_us"], layer["total_us"], token["total_us"]) == (43, 10, 43 / 4)
    assert (whole["busy_us"], whole["idle_us"]) == (42, 1)


def test_of_a_trace_only_kernels_are_read() -> None:
    kernel = {
        "cat": "kernel",
        "name": "embed",
        "ts": 3.5,
        "dur": 1.25,
        "args": {"grid": [1, 14, 1], "block": [256, 1, 1], "stream": 7},
    }
    copy = {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 1.0, "dur": 0.5, "args": {}}
    mark = {"ph": "M", "name": "process_name"}
    assert t.kernels({"traceEvents": [mark, copy, kernel]}) == [
        t.Event("embed", 3.5, 1.25, (1, 14, 1), (256, 1, 1))
    ]


@given(st.integers(1, 64), st.sampled_from([0, 8192]))
def test_a_generation_outnumbers_its_prompts(batch: int, depth: int) -> None:
    (work,) = t.works([batch], [], depth)
    prompts = batch * -(-(depth + 1) // PREFILL_ROWS)
    assert (work.batch, work.depth) == (batch, depth)
    assert work.generate > prompts + 1


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_the_remedy_is_told() -> None:
    with pytest.raises(BackendError, match="Install torch"):
        t.Recorder()
