"""The CPU backend: native kernels on a team of threads, each step of the model one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import Budget, Bytes, Split, Weight
from minfer.backends.cpu import _native
from minfer.backends.cpu.cores import memory_budget, n_threads, usable_cores
from minfer.backends.cpu.lower import Memory, compile_split
from minfer.backends.cpu.supports import reason_against
from minfer.backends.cpu.weights import WeightStore
from minfer.errors import BackendError, ClosedError, OutOfMemoryError, UnsupportedError
from minfer.graph import Graph, KVSpec, Node
from minfer.settings import Settings


class CpuBackend:
    """Runs splits with the kernels of one instruction set.

    Args:
        settings: `threads` and `cpu_isa` are used.

    Attributes:
        isa: instruction set of the kernels.
        threads: threads that run a step, the caller's among them.

    Raises:
        UnsupportedError: if this processor lacks the instruction set asked for.
        RequestError: for a number of threads far beyond the cores.
    """

    name = "cpu"

    def __init__(self, settings: Settings) -> None:
        cores = usable_cores()
        self.isa = _choose_isa(settings.cpu_isa)
        self.threads = n_threads(settings.threads, cores)
        self._device: _native.Device | None = _native.Device(self.isa, self.threads, cores)
        self._weights = WeightStore()
        self._states: dict[str, _State] = {}
        self._arena: _native.Region | None = None
        self._bytes: Bytes = np.empty(0, np.uint8)
        self._generation = 0

    def supports(self, node: Node, graph: Graph) -> str | None:
        """None if the kernels can run `node`, else the reason why not."""
        return reason_against(node, graph)

    def budget(self) -> Budget:
        """Memory that this process can still take, and what it has taken here."""
        return memory_budget()

    def load(self, node: Node, weights: Mapping[str, Weight]) -> int:
        """Repack the weights of `node` for its kernel; returns the bytes newly taken."""
        device = self._open()
        taken = 0
        for name in node.weights:
            weight = weights[name]
            if node.op == "embed":
                taken += self._weights.add_table(weight)
            elif len(weight.spec.shape) == 2:
                taken += self._weights.add_matrix(device, weight)
            else:
                taken += self._weights.add_vector(weight)
        return taken

    def add_state(self, spec: KVSpec) -> int:
        """Create a KV state, zeroed; returns the bytes taken."""
        self._open()
        state = _State(spec)
        self._states[spec.name] = state
        return state.nbytes

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (source, destination) in every state."""
        for state in self._states.values():
            for source, destination in pairs:
                state.pages[destination] = state.pages[source]

    def read_page(self, state: str, page: int) -> bytes:
        """The bytes of one page of a state (layout: native/kv_state.h)."""
        return bytes(self._states[state].pages[page])

    def write_page(self, state: str, page: int, data: bytes) -> None:
        """Restore what `read_page` gave."""
        self._states[state].pages[page] = np.frombuffer(data, np.uint8)

    def reserve(self, nbytes: int) -> int:
        """Make the arena at least `nbytes` large; returns its generation."""
        self._open()
        if self._arena is None or self._arena.nbytes < nbytes:
            _check_room(nbytes, "arena")
            self._arena = _native.Region(nbytes)
            self._bytes = self._arena.view()
            self._generation += 1
        return self._generation

    def upload(self, offset: int, array: NDArray[np.generic]) -> None:
        """Copy a contiguous array into the arena."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._bytes[offset : offset + data.size] = data

    def download(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> NDArray[np.generic]:
        """Copy out of the arena."""
        nbytes = prod(shape) * dtype.itemsize
        return self._bytes[offset : offset + nbytes].view(dtype).reshape(shape).copy()

    def fetch(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Callable[[], NDArray[np.generic]]:
        """Copy out of the arena at once: the work before is done."""
        found = self.download(offset, shape, dtype)
        return lambda: found

    def send(self, offset: int, array: NDArray[np.generic]) -> None:
        """Copy a contiguous array into the arena: no work is under way."""
        self.upload(offset, array)

    def compile(self, split: Split) -> Callable[[], None]:
        """Lower a split to native code; calling the result runs it to its end.

        Raises:
            BackendError: from the result, if a kernel met a token, cell, page, position or row
                count out of range, or if the arena has moved since.
        """
        device = self._open()
        if self._arena is None:
            raise BackendError("a split was compiled before memory was reserved", where=self.name)
        states = {name: state.native for name, state in self._states.items()}
        memory = Memory(self._arena.address, self._weights, states)
        program = compile_split(device, split, memory)
        generation = self._generation

        def run() -> None:
            self._open()
            if generation != self._generation:
                raise BackendError(
                    f"a split compiled for arena generation {generation} ran in generation "
                    f"{self._generation}",
                    where=self.name,
                )
            try:
                program.run()
            except RuntimeError as error:
                raise BackendError(str(error), where=self.name) from None

        return run

    def timed(self, work: Callable[[], None]) -> float:
        """Run `work`; the seconds it took."""
        began = perf_counter()
        work()
        return perf_counter() - began

    def describe(self) -> str:
        """The instruction set of the kernels and the threads that run them."""
        return f"{self.isa}, {self.threads} thread{'s' * (self.threads > 1)}"

    def synchronize(self) -> None:
        """Nothing: a split has ended when its call returns, and raised its own errors."""

    def close(self) -> None:
        """Free all memory and end the threads."""
        self._device = None
        self._weights = WeightStore()
        self._states = {}
        self._arena = None
        self._bytes = np.empty(0, np.uint8)

    def _open(self) -> _native.Device:
        if self._device is None:
            raise ClosedError("the backend was closed", where=self.name)
        return self._device


class _State:
    """A KV state in memory: the kernels' view, and its pages as [n_pages, page bytes]."""

    def __init__(self, spec: KVSpec) -> None:
        self.native = _native.KVState(
            n_pages=spec.n_pages,
            n_kv_heads=spec.n_kv_heads,
            head_dim=spec.head_dim,
            type=_native.KVType[spec.dtype.name],
        )
        self.nbytes = spec.n_pages * self.native.page_bytes
        _check_room(self.nbytes, spec.name)
        region = _native.Region(self.nbytes)
        self.native.base = region.address
        self.pages = region.view()[: self.nbytes].reshape(spec.n_pages, -1)


def _check_room(nbytes: int, where: str) -> None:
    available = memory_budget()
    if nbytes > available.nbytes:
        raise OutOfMemoryError(
            f"{nbytes:,} bytes are needed, but {available.nbytes:,} are there ({available.how})",
            where=where,
            remedy="Lower --n-ctx or take --cache-type q8_0",
        )


def available_isas() -> tuple[str, ...]:
    """Instruction sets in this build that this processor runs, best first."""
    return tuple(_native.available_isas())


def _choose_isa(wanted: str) -> str:
    available = available_isas()
    if wanted == "auto":
        return available[0]
    if wanted not in available:
        raise UnsupportedError(
            f"this processor or build has no {wanted}; it has {', '.join(available)}",
            where="cpu_isa",
            remedy="Leave MINFER_CPU_ISA unset to take the best there is",
        )
    return wanted
