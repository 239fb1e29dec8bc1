"""Fixtures of every test: the backends to run on."""

from __future__ import annotations

import pytest
from cuda_layers import prepare

from minfer.backends import create_backend
from minfer.errors import BackendError
from minfer.settings import Settings


@pytest.fixture(params=["reference", "cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend; skips where it cannot be made, with the reason."""
    try:
        create_backend(request.param, Settings()).close()
    except (BackendError, ImportError) as error:
        pytest.skip(f"no {request.param} backend: {error}")
    return request.param


@pytest.fixture(scope="session")
def swept_kernels() -> None:
    """On a GPU, the kernels of the sweeps over types and sizes, compiled together."""
    try:
        backend = create_backend("cuda", Settings())
    except BackendError:
        return
    prepare(backend)
    backend.close()
