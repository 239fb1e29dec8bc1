"""Every op, shape and type against the float64 reference, on every backend there is."""

from __future__ import annotations

import numpy as np
import pytest
from backend_runner import BACKENDS, backend, run
from op_cases import Case, cases, relative_error

pytestmark = pytest.mark.usefixtures("swept_kernels")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("case", list(cases()), ids=lambda c: c.name)
def test_op(name: str, case: Case) -> None:
    with backend(name) as on:
        (got,) = run(on, case.graph, case.inputs, case.weights)
    got, expected = got[case.rows], case.expected[case.rows]
    assert np.isfinite(got).all()
    assert relative_error(got, expected) <= case.tolerance(name.partition("-")[0])
