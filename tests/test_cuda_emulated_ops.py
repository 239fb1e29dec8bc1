"""Every case of the op table on the CUDA kernels themselves, emulated: no GPU is needed.

Each runs by two schedules that a GPU may choose between, and must give the same bits by both.
"""

from __future__ import annotations

import numpy as np
import pytest
from backend_runner import run
from cuda_lowering import lower
from emulated import AMPERE, HOPPER, emulated_backend, emulator, reason_against
from op_cases import Case, cases, relative_error

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.ops import matmul_pack

REASON = reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


ON_AMPERE = ("matmul", "fused_ffn"), ("f16", "q4_1", "q4_K", "q6_K", "q8_0", "iq4_nl")
"""Ops that have kernels of their own on cards before Hopper, and a type of each kind of layout."""


def on_ampere(case: Case) -> bool:
    """Whether a case is worth running there, too."""
    op, *rest = case.name.split("-")
    return op in ON_AMPERE[0] and rest[0] in ON_AMPERE[1]


CASES = list(cases())
TABLE = [(HOPPER, case) for case in CASES]
TABLE += [(AMPERE, case) for case in CASES if on_ampere(case)]


@pytest.fixture(scope="module")
def compiled() -> None:
    """The kernels of the table, compiled together."""
    for card in (HOPPER, AMPERE):
        launches = [x for facts, case in TABLE if facts is card for x in lower(case.graph, card)]
        kernels = (launch.kernel for launch in launches)
        emulator(card).prepare([*kernels, *(matmul_pack.kernels() if card is HOPPER else ())])


@pytest.mark.parametrize(("card", "case"), TABLE, ids=lambda v: v.name.rpartition(" ")[2].lower())
def test_op(compiled: None, card: Facts, case: Case) -> None:
    early, late = (
        run(emulated_backend(card, late), case.graph, case.inputs, case.weights)[0][case.rows]
        for late in (False, True)
    )
    expected = case.expected[case.rows]
    assert np.isfinite(early).all()
    assert relative_error(early, expected) <= case.tolerance("cuda")
    np.testing.assert_array_equal(early, late)
