"""The team of threads: its size follows what waiting costs; cores are those we may use."""

from __future__ import annotations

import os

import numpy as np
import pytest
from backend_runner import backend, run
from op_cases import matmul

from minfer.backends.cpu import _native, available_isas, cores
from minfer.dtypes import BY_NAME
from minfer.errors import RequestError

MS = 1_000_000


def pace_of(pace: _native.Pace, ms: int, share_lost: float, start: int = 0) -> int:
    """Note `ms` of jobs in which all other lanes waited a share of the time; the time after."""
    for at in range(start, start + ms * MS, MS):
        pace.note(at, at + MS, int(share_lost * MS) * max(1, pace.count - 1))
    return start + ms * MS


def test_lanes_that_rarely_wait_stay() -> None:
    pace = _native.Pace(8)
    pace_of(pace, 1000, 0.2)
    assert pace.count == 8


def test_lanes_that_wait_too_much_are_reduced_to_one() -> None:
    pace = _native.Pace(2)
    pace_of(pace, 10, 0.8)
    assert pace.count == 1
    pace = _native.Pace(16)
    pace_of(pace, 200, 0.8)
    assert 1 <= pace.count < 16


def test_lanes_come_back_after_a_pause() -> None:
    pace = _native.Pace(2)
    now = pace_of(pace, 5, 0.8)
    assert pace.count == 1
    now = pace_of(pace, 40, 0.0, now)
    assert pace.count == 1
    now = pace_of(pace, 20, 0.0, now)
    assert pace.count == 2
    pace_of(pace, 100, 0.0, now)
    assert pace.count == 2


def test_the_pause_doubles_while_trying_again_does_not_help() -> None:
    pace = _native.Pace(2)
    now, tries = 0, 0
    while now < 10_000 * MS:
        tries += pace.count == 2
        now = pace_of(pace, 5, 0.8 if pace.count == 2 else 0.0, now)
    # 50, 100, 200 ... ms of pause, at most two seconds.
    assert 6 <= tries <= 12


def test_one_short_hiccup_is_no_reason() -> None:
    pace = _native.Pace(2)
    pace.note(0, MS // 10, MS // 10)
    pace_of(pace, 100, 0.0, MS)
    assert pace.count == 2


@pytest.mark.parametrize("threads", [4, 16])
def test_more_threads_than_cores_still_finish(threads: int) -> None:
    case = matmul(BY_NAME["q4_1"], 512, 80, (3, 0))
    results = []
    for count in (1, threads):
        with backend(f"cpu-{available_isas()[0]}", count) as on:
            for _ in range(20):
                (got,) = run(on, case.graph, case.inputs, case.weights)
        results.append(got)
    np.testing.assert_array_equal(*results)


def test_usable_cores_are_within_the_affinity() -> None:
    assert 1 <= cores.usable_cores() <= len(os.sched_getaffinity(0))
    kept = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(kept)})
    try:
        assert cores.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, kept)


def test_a_quota_bounds_the_cores(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path
    monkeypatch.setattr(cores, "_CGROUP", root)
    (root / "cpu.max").write_text("100000 100000\n")  # type: ignore[operator]
    assert cores.usable_cores() == 1
    (root / "memory.max").write_text("1000000\n")  # type: ignore[operator]
    (root / "memory.current").write_text("400000\n")  # type: ignore[operator]
    budget = cores.memory_budget()
    assert budget.nbytes == 600000 and "control group" in budget.how


def test_threads_far_beyond_the_cores_are_refused() -> None:
    assert cores.n_threads(0, 6) == 6
    assert cores.n_threads(32, 2) == 32
    assert cores.n_threads(256, 64) == 256
    with pytest.raises(RequestError, match="9999 is more than the 32 threads that 2 cores"):
        cores.n_threads(9999, 2)
