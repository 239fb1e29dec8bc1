"""The way between host and device memory: pinned buffers, so copies run beside the host's work.

Uploads are collected and go out together just before the next work in the stream, neighbours as
one copy: the inputs of a step are many small arrays side by side. Who orders the work is `device`.

A copy in the stream holds up the kernels around it, by some 5 us. So what can be copied beside the
work has streams of its own, one a direction, and an event where the ways part or meet.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import aligned
from minfer.backends.cuda import driver
from minfer.errors import ClosedError

SLOTS = 4
SLOT_BYTES = 8 << 20
LANDING_BYTES = 4 << 10
_NO_TIMING = 2  # flag of an event
_NON_BLOCKING = 1  # flag of a stream: it never waits for the default stream

Bytes = NDArray[np.uint8]


class Pinned:
    """Page-locked host memory, as an array."""

    def __init__(self, nbytes: int) -> None:
        self._cuda = driver.bindings()
        self.address = int(driver.check(self._cuda.cuMemAllocHost(nbytes), "pinning host memory"))
        buffer = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.array: Bytes = np.frombuffer(memoryview(buffer), dtype=np.uint8)

    def close(self) -> None:
        """Free the memory."""
        driver.check(self._cuda.cuMemFreeHost(self.address), "freeing pinned memory")


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a fetched copy arrives, and the event that tells."""

    pinned: Pinned
    event: Any


class Staging:
    """A ring of pinned slots in front of a stream.

    Args:
        stream: handle of the stream all copies are ordered by.
        wait: waits, within bounds, for an event, or for the stream to be idle if that is None;
            raises BackendError otherwise.
    """

    def __init__(self, stream: int, wait: Callable[[str, Any], None]) -> None:
        self._cuda = driver.bindings()
        self._stream = stream
        self._wait = wait
        self._inward, self._outward = (
            driver.check(self._cuda.cuStreamCreate(_NON_BLOCKING), "creating a stream")
            for _ in range(2)
        )
        self._slots = [Pinned(SLOT_BYTES) for _ in range(SLOTS)]
        self._events: list[Any] = [self._new_event() for _ in range(SLOTS)]
        self._crossing = self._new_event()
        self._slot = 0
        self._used = 0
        self._pending: list[tuple[int, int, int]] = []  # device address, slot offset, bytes
        self._block = 0  # allocation the last of them goes to
        self._landings: list[Landing] = []
        self._free: list[Landing] = []
        self.copies = 0
        """Copies to the device issued so far."""

    def _new_event(self) -> Any:
        return driver.check(self._cuda.cuEventCreate(_NO_TIMING), "creating an event")

    def _record(self, event: Any, stream: Any) -> None:
        driver.check(self._cuda.cuEventRecord(event, stream), "recording an event")

    def _order(self, first: Any, then: Any) -> None:
        """Let later work of the stream `then` wait for what is in `first` so far."""
        # a wait holds on to the record before it, so one event serves all crossings
        self._record(self._crossing, first)
        driver.check(self._cuda.cuStreamWaitEvent(then, self._crossing, 0), "ordering two streams")

    def upload(self, target: int, data: Bytes, block: int) -> None:
        """Take over `data` for the device address `target`; it goes out with the next flush.

        Args:
            target: where it goes.
            data: the bytes; they may change once this returns.
            block: the allocation `target` lies in; one copy cannot span two.
        """
        position = 0
        while position < data.nbytes:
            room = SLOT_BYTES - self._used
            if room == 0:
                self._next_slot()
                continue
            n = min(room, data.nbytes - position)
            start = self._used
            self._slots[self._slot].array[start : start + n] = data[position : position + n]
            self._add(target + position, start, n, block)
            self._used = min(aligned(start + n), SLOT_BYTES)
            position += n

    def _add(self, target: int, start: int, n: int, block: int) -> None:
        if self._pending and self._block == block:
            last_target, last_start, last_n = self._pending[-1]
            end = aligned(last_n)
            if last_target + end == target and last_start + end == start:
                # the gap holds the padding between two buffers, which belongs to nobody
                self._pending[-1] = (last_target, last_start, end + n)
                return
        self._pending.append((target, start, n))
        self._block = block

    def send(self, target: int, data: Bytes) -> None:
        """Copy `data` to the device beside the work under way; work enqueued later waits for it.

        Args:
            target: where it goes, which no work under way touches.
            data: the bytes; they may change once this returns.
        """
        for position in range(0, data.nbytes, SLOT_BYTES):
            part = data[position : position + SLOT_BYTES]
            if part.nbytes > SLOT_BYTES - self._used:
                self._next_slot()
            slot, start = self._slots[self._slot], self._used
            slot.array[start : start + part.nbytes] = part
            self._used = min(aligned(start + part.nbytes), SLOT_BYTES)
            source = slot.address + start
            driver.check(
                self._cuda.cuMemcpyHtoDAsync(target + position, source, part.nbytes, self._inward),
                "copying to the device",
            )
            self.copies += 1
            # and so a slot is free when the stream is past it
            self._order(self._inward, self._stream)

    def flush(self) -> None:
        """Enqueue what was uploaded; called before any other work enters the stream."""
        if not self._pending:
            return
        base = self._slots[self._slot].address
        for target, start, n in self._pending:
            driver.check(
                self._cuda.cuMemcpyHtoDAsync(target, base + start, n, self._stream),
                "copying to the device",
            )
        self.copies += len(self._pending)
        self._pending.clear()

    def _next_slot(self) -> None:
        self.flush()
        self._record(self._events[self._slot], self._stream)
        self._slot = (self._slot + 1) % SLOTS
        self._used = 0
        self._wait("waiting for an upload", self._events[self._slot])

    def download(self, source: int, nbytes: int) -> Bytes:
        """Wait for the work before, and copy from the device address `source`."""
        self.flush()
        out = np.empty(nbytes, dtype=np.uint8)
        if not nbytes:  # nothing waits, so what uploads in flight read must stay as it is
            return out
        # a slot that no upload in flight uses: the stream is idle once a wait has returned
        slot = self._slots[self._slot]
        for position in range(0, nbytes, SLOT_BYTES):
            n = min(SLOT_BYTES, nbytes - position)
            driver.check(
                self._cuda.cuMemcpyDtoHAsync(slot.address, source + position, n, self._stream),
                "copying from the device",
            )
            self._wait("copying from the device", None)
            out[position : position + n] = slot.array[:n]
        self._used = 0
        return out

    def fetch(self, source: int, nbytes: int) -> Callable[[], Bytes]:
        """Enqueue a copy from the device; the result waits for it, not for what comes after.

        It is made beside what comes after, which leaves the source alone until then.
        """
        self.flush()
        landing = next((x for x in self._free if x.pinned.array.nbytes >= nbytes), None)
        if landing is None:
            landing = Landing(Pinned(max(nbytes, LANDING_BYTES)), self._new_event())
            self._landings.append(landing)
        else:
            self._free.remove(landing)
        target, event = landing.pinned, landing.event
        self._order(self._stream, self._outward)
        driver.check(
            self._cuda.cuMemcpyDtoHAsync(target.address, source, nbytes, self._outward),
            "copying from the device",
        )
        self._record(event, self._outward)
        waited = False

        def arrived() -> Bytes:
            nonlocal waited
            if not self._landings:
                raise ClosedError("the backend was closed before the copy was read", where="cuda")
            if not waited:
                self._wait("copying from the device", event)
                waited = True
            return target.array[:nbytes].copy()

        # a place is free again when its result is forgotten, read or not: copies keep their order
        weakref.finalize(arrived, self._free.append, landing).atexit = False
        return arrived

    def join(self) -> None:
        """Let the stream wait for all copies beside it: once it is idle, so are they."""
        self.flush()
        self._order(self._outward, self._stream)

    def close(self) -> None:
        """Free everything; the stream, joined, is idle."""
        for landing in self._landings:
            landing.pinned.close()
            driver.check(self._cuda.cuEventDestroy(landing.event), "destroying an event")
        self._landings.clear()
        for slot in self._slots:
            slot.close()
        for event in (*self._events, self._crossing):
            driver.check(self._cuda.cuEventDestroy(event), "destroying an event")
        for stream in (self._inward, self._outward):
            driver.check(self._cuda.cuStreamDestroy(stream), "destroying a stream")
