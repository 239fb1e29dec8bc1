"""Pinned staging without a GPU: copies run whenever streams and events let them."""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.backends.cuda import driver
from minfer.backends.cuda import staging as module
from minfer.backends.cuda.staging import Staging

MAIN = 0


class Status(IntEnum):
    CUDA_SUCCESS = 0


SUCCESS = Status.CUDA_SUCCESS


class Driver:
    """A driver whose streams run nothing until somebody waits, and then in any order there may be.

    Args:
        seed: of the order.
    """

    def __init__(self, seed: int = 0) -> None:
        self.device = np.zeros(4096, np.uint8)
        self.streams: dict[int, deque[Callable[[], bool]]] = {MAIN: deque()}
        self.log: list[str] = []  # what entered the main stream
        self.alive = 0  # streams and events made and not destroyed
        self._memory: list[Any] = []
        self._records: dict[int, int] = {}  # event -> number of its newest record
        self._done: set[int] = set()
        self._n_records = 0
        self._order = random.Random(seed)

    def cuMemAllocHost(self, nbytes: int) -> tuple[Status, int]:
        self._memory.append(ctypes.create_string_buffer(nbytes))
        return SUCCESS, ctypes.addressof(self._memory[-1])

    def cuMemFreeHost(self, address: int) -> tuple[Status]:
        return (SUCCESS,)

    def cuStreamCreate(self, flags: int) -> tuple[Status, int]:
        self.alive += 1
        self.streams[len(self.streams)] = deque()
        return SUCCESS, len(self.streams) - 1

    def cuEventCreate(self, flags: int) -> tuple[Status, int]:
        self.alive += 1
        self._records[len(self._records)] = -1
        return SUCCESS, len(self._records) - 1

    def cuStreamDestroy(self, stream: int) -> tuple[Status]:
        assert not self.streams[stream], "a stream ends with its work"
        self.alive -= 1
        return (SUCCESS,)

    def cuEventDestroy(self, event: int) -> tuple[Status]:
        self.alive -= 1
        return (SUCCESS,)

    def enqueue(self, stream: int, work: Callable[[], bool], what: str) -> tuple[Status]:
        if stream == MAIN:
            self.log.append(what)
        self.streams[stream].append(work)
        return (SUCCESS,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, n: int, stream: int) -> tuple[Status]:
        target = self.device[to:].ctypes.data
        return self.enqueue(stream, lambda: bool(ctypes.memmove(target, source, n)), "copy")

    def cuMemcpyDtoHAsync(self, to: int, source: int, n: int, stream: int) -> tuple[Status]:
        start = self.device[source:].ctypes.data
        return self.enqueue(stream, lambda: bool(ctypes.memmove(to, start, n)), "copy")

    def cuEventRecord(self, event: int, stream: int) -> tuple[Status]:
        number = self._n_records
        self._n_records += 1
        self._records[event] = number
        return self.enqueue(stream, lambda: self._done.add(number) or True, "record")

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[Status]:
        number = self._records[event]
        return self.enqueue(stream, lambda: number in self._done, "wait")

    def _is_done(self, event: int) -> bool:
        return self._records[event] in self._done | {-1}  # one that nobody recorded is done

    def wait(self, doing: str = "", event: int | None = None) -> None:
        """Run streams, whichever comes first, until the event is there or the main one is idle."""
        while self.streams[MAIN] if event is None else not self._is_done(event):
            ready = [s for s in self.streams.values() if s]
            stream = self._order.choice(ready)
            if stream[0]():
                stream.popleft()


@pytest.mark.parametrize("nbytes", [0, 16])
def test_an_upload_in_flight_outlives_a_download(
    monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    """A download of nothing waits for nothing, so it frees nothing."""
    fake = Driver()
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    staging = Staging(MAIN, fake.wait)
    staging.upload(0, np.full(16, 1, np.uint8), 0)
    assert staging.download(2048, nbytes).nbytes == nbytes
    staging.upload(1024, np.full(16, 2, np.uint8), 0)
    staging.flush()
    fake.wait()
    assert fake.device[:16].tolist() == [1] * 16
    assert fake.device[1024:1040].tolist() == [2] * 16


SIDE = 1024
"""Bytes of a step's inputs: a token, and behind it what else the step reads."""


@given(
    seed=st.integers(0, 2**32),
    chains=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    slot_bytes=st.sampled_from([1024, 4096, 8 << 20]),
)
def test_steps_that_take_turns_meet_their_own_inputs(
    seed: int, chains: list[int], slot_bytes: int
) -> None:
    """Chains of steps as a compiled plan starts them; each is left with a step under way."""
    fake = Driver(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "bindings", lambda: fake)
        patch.setattr(module, "SLOT_BYTES", slot_bytes)
        staging = Staging(MAIN, fake.wait)

        def step(side: int) -> bool:
            """The device's part: the next token, of the token and of all else."""
            mine, other = fake.device[side * SIDE :], fake.device[(1 - side) * SIDE :]
            assert len(set(mine[256:512].tolist())) == 1, "inputs of one step"
            other[0] = (31 * int(mine[0]) + int(mine[256])) % 251
            return True

        for n_steps in chains:
            token, right, fetched = 7, [], []
            for n in range(n_steps):
                side, rest = n % 2, np.full(256, (17 * n + seed) % 256, np.uint8)
                if n == 0:
                    staging.upload(0, np.concatenate([np.full(256, token, np.uint8), rest]), 0)
                elif n == 1:
                    staging.upload(SIDE + 256, rest, 0)
                else:
                    assert fetched[n - 2]()[0] == right[n - 2]
                    staging.send(side * SIDE + 256, rest)
                staging.flush()
                fake.enqueue(MAIN, lambda side=side: step(side), "step")  # type: ignore[misc]
                fetched.append(staging.fetch((1 - side) * SIDE, 1))
                token = (31 * token + int(rest[0])) % 251
                right.append(token)
            begins = [i for i, what in enumerate(fake.log) if what == "step"][-n_steps:]
            if n_steps > 2 and slot_bytes > 4096:  # no copy holds up a step
                for one, two in pairwise(begins[1:]):
                    assert fake.log[one + 1 : two] == ["record", "wait"]
        assert fetched[-1]()[0] == right[-1]
        staging.join()
        fake.wait()
        staging.close()
    assert fake.alive == 0


@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(0, 1024), min_size=1, max_size=4))
def test_what_is_sent_may_be_larger_than_a_slot(seed: int, sizes: list[int]) -> None:
    fake = Driver(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "bindings", lambda: fake)
        patch.setattr(module, "SLOT_BYTES", 256)
        staging = Staging(MAIN, fake.wait)
        parts = [np.random.default_rng([seed, n]).integers(0, 256, n, np.uint8) for n in sizes]
        for i, part in enumerate(parts):
            staging.send(1024 * i, part)
        fake.wait()
        for i, part in enumerate(parts):
            assert fake.device[1024 * i :][: part.nbytes].tolist() == part.tolist()
