"""Attention that does what follows the projections, emulated: `test_cuda_projections.py`."""

from __future__ import annotations

import pytest
from emulated import HOPPER, emulated_backend, reason_against
from test_cuda_projections import CASES, check

REASON = reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_two_launches(name: str, late: bool) -> None:
    check(emulated_backend(HOPPER, late), CASES[name])
