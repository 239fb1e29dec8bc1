"""Prompt rows of a step follow the time steps take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.engine.pace import LEAST, Pace


def settled(seconds_a_row: float, most: int = 512) -> int:
    """The rows a pace comes to on a device of some speed."""
    pace = Pace(most, 0.1)
    for _ in range(30):
        rows = pace.rows(beside_streams=True)
        pace.note(1, rows, seconds_a_row * rows)
    return pace.rows(beside_streams=True)


@pytest.mark.parametrize(
    ("seconds_a_row", "rows"), [(1e-6, 512), (0.0005, 128), (0.002, 32), (1.0, LEAST)]
)
def test_rows_settle_by_speed(seconds_a_row: float, rows: int) -> None:
    assert settled(seconds_a_row) == rows


@given(st.floats(1e-6, 0.005))
def test_steps_end_in_time_once_settled(seconds_a_row: float) -> None:
    assert settled(seconds_a_row) * seconds_a_row <= 0.1


def test_prompts_alone_may_take_longer() -> None:
    pace = Pace(512, 0.1)
    pace.note(0, 512, 0.3)
    assert pace.rows(beside_streams=False) == 512
    pace.note(0, 512, 0.6)
    assert pace.rows(beside_streams=False) == 256
    assert pace.rows(beside_streams=True) == 128


def test_small_steps_teach_nothing_about_large_ones() -> None:
    pace = Pace(512, 0.1)
    for _ in range(10):
        pace.note(1, 3, 1e-5)
        pace.note(1, 0, 9.0)
    assert pace.rows(beside_streams=True) == 128


def test_a_slow_device_is_known_after_one_step() -> None:
    pace = Pace(512, 0.1)  # 7B parameters on two cores: 20 prompt rows a second
    pace.note(0, LEAST, LEAST / 20)
    assert pace.rows(beside_streams=False) == LEAST
    assert pace.rows(beside_streams=True) == LEAST


def test_it_recovers_from_one_slow_step() -> None:
    pace = Pace(512, 0.1)
    pace.note(1, 128, 5.0)
    assert pace.rows(beside_streams=True) == LEAST
    for beside, most in ((True, 256), (False, 512)):
        for _ in range(10):
            rows = pace.rows(beside_streams=beside)
            pace.note(beside, rows, rows * 2e-4)
        assert pace.rows(beside_streams=beside) == most


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 512), st.floats(1e-6, 100))))
def test_rows_stay_powers_of_two_within_limits(steps: list[tuple[int, int, float]]) -> None:
    pace = Pace(512, 0.1)
    for step in steps:
        pace.note(*step)
        for beside in (True, False):
            rows = pace.rows(beside_streams=beside)
            assert LEAST <= rows <= 512
            assert rows.bit_count() == 1
