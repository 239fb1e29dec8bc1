"""Pinned staging without a GPU: copies that have not run yet keep what they were given."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from minfer.backends.cuda import driver
from minfer.backends.cuda.staging import Staging


class Status(IntEnum):
    CUDA_SUCCESS = 0


class Driver:
    """A driver whose stream runs nothing until it is waited for."""

    def __init__(self) -> None:
        self.device = np.zeros(4096, np.uint8)
        self.queue: list[tuple[int, int, int]] = []
        self.memory: list[Any] = []

    def cuMemAllocHost(self, nbytes: int) -> tuple[Status, int]:
        self.memory.append(ctypes.create_string_buffer(nbytes))
        return Status.CUDA_SUCCESS, ctypes.addressof(self.memory[-1])

    def cuEventCreate(self, flags: int) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, 0

    def cuMemcpyHtoDAsync(self, to: int, source: int, n: int, stream: int) -> tuple[Status]:
        self.queue.append((to, source, n))
        return (Status.CUDA_SUCCESS,)

    def cuMemcpyDtoHAsync(self, to: int, source: int, n: int, stream: int) -> tuple[Status]:
        self.run()
        ctypes.memmove(to, self.device[source:].ctypes.data, n)
        return (Status.CUDA_SUCCESS,)

    def run(self, doing: str = "", event: Any = None) -> None:
        for to, source, n in self.queue:
            ctypes.memmove(self.device[to:].ctypes.data, source, n)
        self.queue.clear()


@pytest.mark.parametrize("nbytes", [0, 16])
def test_an_upload_in_flight_outlives_a_download(
    monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    """A download of nothing waits for nothing, so it frees nothing."""
    fake = Driver()
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    staging = Staging(0, fake.run)
    staging.upload(0, np.full(16, 1, np.uint8), 0)
    assert staging.download(2048, nbytes).nbytes == nbytes
    staging.upload(1024, np.full(16, 2, np.uint8), 0)
    staging.flush()
    fake.run()
    assert fake.device[:16].tolist() == [1] * 16
    assert fake.device[1024:1040].tolist() == [2] * 16
