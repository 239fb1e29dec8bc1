"""Fixtures of the GPU tests: backends, or a skip with the reason. A plugin, not a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minfer.backends import create_backend
from minfer.errors import BackendError
from minfer.settings import Settings

MakeGpu = Callable[..., Any]


@pytest.fixture
def make_gpu() -> Iterator[MakeGpu]:
    """Makes CUDA backends with settings given by keyword; closes them after the test."""
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        try:
            made.append(create_backend("cuda", Settings(**settings)))
        except BackendError as error:
            pytest.skip(str(error))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> Any:
    """A CUDA backend."""
    return make_gpu()
