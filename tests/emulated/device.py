"""A `Device` without a GPU: host memory with watched margins, kernels run by the emulator.

It has what `CudaBackend`, `Program` and the stores of weights ask of a device. Work is done when it
is enqueued, so nothing is ever awaited; memory is filled with bytes that are NaN in every float
type, and its margins tell when a kernel wrote beside what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from emulated.build import emulator
from minfer.backends.cuda.backend import CudaBackend
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch
from minfer.errors import BackendError
from minfer.settings import Settings

HOPPER = Facts("an emulated Hopper", (9, 0), 18, 227 << 10, 60 << 20, 4 << 30)
AMPERE = Facts("an emulated Ampere", (8, 6), 8, 99 << 10, 6 << 20, 4 << 30)
"""Cards with few multiprocessors, so that blocks take several tiles each."""

ALIGNMENT = 256
MARGIN = 4096
POISON, CANARY = 0xFF, 0xA5

Bytes = NDArray[np.uint8]


class EmulatedDevice:
    """Stands in for `minfer.backends.cuda.device.Device`.

    Args:
        facts: the card to be.
        late: whether kernels run by the late schedule.
        overlaps: whether launches that may overlap do, each all those before it in its list, which
            takes copies of all memory.
    """

    def __init__(self, facts: Facts, late: bool = False, overlaps: bool = True) -> None:
        self.facts = facts
        self._overlaps = overlaps and facts.programmatic
        self.launches = 0
        self.kernels: set[Kernel] = set()
        """What has run, until somebody clears it."""
        self._emulator = emulator(facts)
        self.late = late
        self._blocks: dict[int, tuple[Bytes, int]] = {}  # address -> memory with margins, bytes

    # ---- kernels --------------------------------------------------------------------------------

    def prepare(self, kernels: Iterable[Kernel]) -> None:
        """Compile what is missing."""
        self._emulator.prepare(kernels)

    def freeze(self, launches: Sequence[Launch]) -> tuple[Launch, ...]:
        """Check launches and compile their kernels."""
        self.prepare(launch.kernel for launch in launches)
        for launch in launches:
            self._emulator.check(launch)
        return tuple(launches)

    def enqueue(self, frozen: Sequence[Launch]) -> None:
        """Run launches, and look at the margins of all memory.

        Raises:
            BackendError: when a kernel broke a rule, or wrote where nothing is.
        """
        self.kernels.update(launch.kernel for launch in frozen)
        before = self._contents() if self._overlaps and len(frozen) > 1 else []
        self._emulator.watch((start, start + size) for start, (_, size) in self._blocks.items())
        for number, launch in enumerate(frozen):
            overlaps = bool(number) and launch.overlap and self.facts.programmatic
            if not (overlaps and before):
                self._emulator.run(launch, self.late, overlaps)
                continue
            after = self._contents()
            self._restore(before)
            self._emulator.run(launch, self.late, overlaps, partial(self._restore, after))
        self._check_margins(" ".join(dict.fromkeys(launch.kernel.name for launch in frozen)))
        self.launches += len(frozen)

    def run(self, launches: Sequence[Launch]) -> None:
        """Freeze and enqueue."""
        self.enqueue(self.freeze(launches))

    def capture(self, frozen: Sequence[Launch]) -> Any:
        """The launches themselves, to be replayed."""
        return frozen

    def replay(self, graph: Any) -> None:
        """Run them."""
        self.enqueue(graph)

    # ---- memory ---------------------------------------------------------------------------------

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        return self.facts.total_bytes - self.allocated, self.facts.total_bytes

    @property
    def allocated(self) -> int:
        """Bytes taken and not given back."""
        return sum(nbytes for _, nbytes in self._blocks.values())

    def allocate(self, nbytes: int, what: str) -> int:
        """Take memory."""
        memory = np.full(nbytes + 2 * MARGIN + ALIGNMENT, CANARY, np.uint8)
        address = -(-(memory.ctypes.data + MARGIN) // ALIGNMENT) * ALIGNMENT
        self._blocks[address] = memory, nbytes
        self.fill(address, POISON, nbytes)
        return address

    def free(self, address: int) -> None:
        """Give memory back."""
        del self._blocks[address]

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set memory to one byte value."""
        self._at(address, nbytes)[:] = byte

    def upload(self, address: int, array: NDArray[np.generic]) -> None:
        """Copy an array into memory."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._at(address, data.nbytes)[:] = data

    def send(self, address: int, array: NDArray[np.generic]) -> None:
        """As `upload`: nothing is under way."""
        self.upload(address, array)

    def download(self, address: int, nbytes: int) -> Bytes:
        """A copy of memory."""
        return self._at(address, nbytes).copy()

    def fetch(self, address: int, nbytes: int) -> Callable[[], Bytes]:
        """A copy of memory as it is now."""
        data = self.download(address, nbytes)
        return lambda: data

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy within memory."""
        self._at(target, nbytes)[:] = self._at(source, nbytes)

    def _contents(self) -> list[Bytes]:
        return [memory.copy() for memory, _ in self._blocks.values()]

    def _restore(self, contents: list[Bytes]) -> None:
        for (memory, _), then in zip(self._blocks.values(), contents, strict=True):
            memory[:] = then

    def _at(self, address: int, nbytes: int) -> Bytes:
        for start, (memory, size) in self._blocks.items():
            if start <= address and address + nbytes <= start + size:
                first = address - memory.ctypes.data
                return memory[first : first + nbytes]
        raise BackendError(f"{nbytes} bytes at {address:#x} are nobody's", where="emulator")

    def _check_margins(self, where: str) -> None:
        for start, (memory, nbytes) in self._blocks.items():
            first = start - memory.ctypes.data
            for margin in (memory[:first], memory[first + nbytes :]):
                if (margin != CANARY).any():
                    raise BackendError(f"wrote beside a block of {nbytes} bytes", where=where)

    # ---- waiting and ending ---------------------------------------------------------------------

    def synchronize(self) -> None:
        """Nothing is in flight."""

    def timed(self, work: Callable[[], None]) -> float:
        """Run `work`; time is not emulated."""
        work()
        return 0.0

    def close(self) -> None:
        """Free everything."""
        self._blocks.clear()


def emulated_backend(facts: Facts, late: bool = False, **settings: Any) -> CudaBackend:
    """A CUDA backend on an emulated card.

    Args:
        facts: the card.
        late: whether kernels run by the late schedule.
        settings: of the backend.
    """
    device = EmulatedDevice(facts, late)
    with mock.patch("minfer.backends.cuda.backend.Device", lambda settings, say: device):
        return CudaBackend(Settings(**settings))
