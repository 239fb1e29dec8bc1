"""Measuring: what is on the clock, the floor under it, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tiny_models import path_of

from minfer.errors import RequestError, UnsupportedError
from minfer.graph import Load, costs, total
from minfer.measure import (
    Case,
    Floor,
    Opened,
    Setup,
    bars,
    configured,
    cpu_floor,
    floor_of,
    opened,
    run,
    step_seconds,
    time_case,
    time_ops,
)
from minfer.settings import Settings

SETUP = Setup("tiny", n_ubatch=16)
PATH = path_of("llama")


@pytest.fixture(params=["reference", "cpu"])
def model(request: pytest.FixtureRequest) -> Iterator[Opened]:
    settings = Settings(device=request.param, threads=2)
    with opened(SETUP, PATH, settings, 160) as found:
        yield found


def test_a_test_is_timed_as_often_as_asked(model: Opened) -> None:
    seen: list[str] = []
    for test in (Case(40, 0), Case(0, 3), Case(20, 2, 64)):
        samples = time_case(model, SETUP, test, 3, progress=seen.append)
        assert len(samples) == 3
        assert all(ns > 0 for ns in samples)
    assert "pp40: warming up" in seen
    assert "pp20+tg2 @ d64: 3/3" in seen
    assert "tg3: warming up" in seen
    free, _, whole = model.engine.pages
    assert free == whole


def test_rows_come_one_by_one_with_their_floor() -> None:
    settings = Settings(device="cpu", threads=2)
    todo = [(SETUP, PATH), (replace(SETUP, type_k="f32", type_v="f32"), PATH)]
    rows = run(todo, [Case(16, 0), Case(0, 2)], settings, repetitions=1, floor=True)
    first = next(rows)
    assert first.test.name == "pp16"
    assert first.floor_ts is not None
    assert first.floor_ts > 0
    assert first.bound in ("memory", "compute")
    assert [r.setup.type_k for r in rows] == ["f16", "f32", "f32"]


def test_the_floor_is_the_longer_of_memory_and_compute(model: Opened) -> None:
    slow_memory = Floor(read_bytes=1.0, float_ops=1e30, int8_ops=1e30, how="")
    slow_compute = Floor(read_bytes=1e30, float_ops=1.0, int8_ops=1.0, how="")
    plan = model.engine.plan(1, 0)
    load = Load(((9, 1),), 1)
    whole = total(costs(plan.graph, load))
    assert step_seconds(plan, load, slow_memory) == {"memory": whole.nbytes, "compute": 0}
    assert step_seconds(plan, load, slow_compute)["compute"] == whole.flops
    # twice the tokens take twice the time, give or take the cache's growth
    one, bound = floor_of(model.engine, SETUP, Case(0, 8), slow_memory)
    two, _ = floor_of(model.engine, SETUP, Case(0, 16), slow_memory)
    assert bound == "memory"
    assert 2 * one < two < 2.1 * one
    assert floor_of(model.engine, SETUP, Case(64, 0), slow_compute)[1] == "compute"


def test_this_machine_has_limits() -> None:
    floor = cpu_floor(1)
    assert 1e8 < floor.read_bytes < 1e13
    assert 1e8 < floor.float_ops < 1e14
    assert 1e8 < floor.int8_ops < 1e15
    assert floor.how.startswith("1 thread, ")


@pytest.mark.parametrize("test", [Case(32, 0), Case(0, 4, 64)], ids=lambda t: t.name)
def test_ops_add_up_to_the_step(model: Opened, test: Case) -> None:
    floor = Floor(1e9, 1e9, 1e9, "")
    rows = time_ops(model.engine, SETUP, test, floor)
    plan = model.engine.plan(*((1, 0) if test.n_gen else (0, 16)))
    assert sum(r.calls for r in rows) == sum(n.op != "input" for n in plan.graph.nodes)
    load = Load(((64, 1),) if test.n_gen else ((0, 16),), 1)
    assert sum(r.nbytes for r in rows) == total(costs(plan.graph, load)).nbytes
    assert sum(r.flops for r in rows) == total(costs(plan.graph, load)).flops
    assert [r.seconds for r in rows] == sorted((r.seconds for r in rows), reverse=True)
    assert all(r.floor_seconds is not None for r in rows)
    assert len(model.engine.forward([1, 2])) == 2  # the engine goes on as before


def test_what_cannot_be_set_up_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="stores both in one type"):
        configured(Setup("m", type_k="q8_0"), Settings())
    with pytest.raises(RequestError, match="none of f32, f16, q8_0"):
        configured(Setup("m", type_k="q4_0", type_v="q4_0"), Settings())
    with pytest.raises(RequestError, match="computes nothing"):
        configured(Setup("m", n_batch=0), Settings())


def test_bars_are_as_long_as_their_values() -> None:
    text = bars([("a", 1.0, "one"), ("bb", 0.5, "half"), ("c", 0.0, "none")], 8)
    assert text.splitlines() == [" a ████████ one", "bb ████ half", " c  none"]
    assert bars([], 8) == ""
