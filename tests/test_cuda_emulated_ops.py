"""Every case of the op table on the CUDA kernels themselves, emulated: no GPU is needed.

Each runs by two schedules that a GPU may choose between, and must give the same bits by both.
"""

from __future__ import annotations

import numpy as np
import pytest
from backend_runner import run
from cuda_layers import table_launches
from emulated import AMPERE, HOPPER, emulated_backend, emulator, reason_against
from op_cases import Case, cases, relative_error

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.ops import matmul_pack

REASON = reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(scope="module", params=[HOPPER, AMPERE], ids=["hopper", "ampere"])
def card(request: pytest.FixtureRequest) -> Facts:
    """A card, its kernels of the table compiled together."""
    facts: Facts = request.param
    kernels = [*matmul_pack.kernels(), *(launch.kernel for launch in table_launches(facts))]
    emulator(facts).prepare(kernels)
    return facts


@pytest.mark.parametrize("case", list(cases()), ids=lambda c: c.name)
def test_op(card: Facts, case: Case) -> None:
    early, late = (
        run(emulated_backend(card, late), case.graph, case.inputs, case.weights)[0][case.rows]
        for late in (False, True)
    )
    expected = case.expected[case.rows]
    assert np.isfinite(early).all()
    assert relative_error(early, expected) <= case.tolerance("cuda")
    np.testing.assert_array_equal(early, late)
