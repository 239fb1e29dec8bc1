"""The backend contract on one GPU: weights, states, an arena, and splits compiled into launches.

What a node's kernels are is its op module's; how launches run and are replayed is `program`'s.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import ALIGNMENT, Budget, Split, Weight
from minfer.backends.cuda import foresight
from minfer.backends.cuda.device import Device
from minfer.backends.cuda.joins import joins
from minfer.backends.cuda.kv import ELEMENT_BYTES, KVState
from minfer.backends.cuda.ops import OPS, lowered
from minfer.backends.cuda.ops.base import COUNTERS_BYTES, Context, Store
from minfer.backends.cuda.ops.matmul_choose import keeps_halves
from minfer.backends.cuda.program import Counters, Program
from minfer.errors import BackendError, ClosedError, GraphError
from minfer.graph import Graph, KVSpec, Node
from minfer.settings import Settings

SCRATCH_SPARE = 8
"""A block of scratch is an eighth larger than asked."""
RESERVE_BYTES = 512 << 20
"""Memory left alone by the budget: the driver's own, loaded kernels, scratch."""


def reason_against(node: Node, graph: Graph) -> str | None:
    """None if the kernels can run `node`, else why not; asks no GPU."""
    if node.op not in OPS:
        return f"the op {node.op} has no CUDA kernel"
    state = getattr(node.attrs, "state", None)
    if state is not None:
        dtype = graph.states[state].dtype
        if dtype not in ELEMENT_BYTES:
            return f"a KV cache of type {dtype} has no CUDA kernel"
    return OPS[node.op].supports(node, graph)


class CudaBackend:
    """An engine's backend on the first GPU; two of them never wait for each other.

    Args:
        settings: memory budget, cache folder, whether graphs are captured.

    Raises:
        BackendError: when something is missing, with how to get it.
    """

    name = "cuda"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.device = Device(settings, _say)
        self.counters = Counters()
        """What ran so far: eager runs, captures, replays, launches."""
        self.graphs = not settings.no_cuda_graph
        """Whether splits are captured; turned off for good by the first failure."""
        keeps = keeps_halves(self.device.facts, settings)
        if settings.cuda_halves and not keeps:
            _say("MINFER_CUDA_HALVES keeps nothing on Hopper: its kernels expand nothing apart")
        self._store = Store(self.device, keeps)
        self._states: dict[str, KVState] = {}
        self._arena = (0, 0)  # address, bytes
        self._generation = 0
        self._scratch: dict[str, tuple[int, int]] = {}  # name -> address, bytes
        self._zeros = 0
        self._open = True

    # ---- what can run here ----------------------------------------------------------------------

    def supports(self, node: Node, graph: Graph) -> str | None:
        """None if the node can run here, else the reason why not, for people."""
        return reason_against(node, graph)

    def budget(self) -> Budget:
        """Memory this backend may use in all."""
        free, total = self.device.memory()
        room = max(0, free + self.device.allocated - RESERVE_BYTES)
        if self._settings.gpu_mem:
            limit = self._settings.gpu_mem << 20
            if limit <= room:
                return Budget(limit, f"MINFER_GPU_MEM={self._settings.gpu_mem} MiB")
        return Budget(room, f"free of the {total >> 20} MiB of {self.device.facts.name}")

    def footprint(self, splits: Sequence[Split], weights: Mapping[str, Weight]) -> int:
        """Bytes that loading and running `splits` would take beside the arena; takes nothing."""
        return foresight.footprint(splits, weights, self.device.facts, self._settings)

    def kernels(self, split: Split) -> Mapping[int, tuple[str, ...]]:
        """For each node the kernels it launches, in order; none where its readers take it in."""
        return foresight.kernels(split, self.device.facts, self._settings)

    @property
    def when(self) -> Mapping[str, str]:
        """For kernels among which a step's rows decide, which rows take it."""
        return foresight.WHEN

    # ---- what stays -----------------------------------------------------------------------------

    def load(self, node: Node, weights: Mapping[str, Weight]) -> int:
        """Make the weights of `node` resident in the layout its kernel reads."""
        self._check_open()
        before = self._store.nbytes
        load = getattr(OPS[node.op], "load", None)
        if load is not None:
            load(node, weights, self._store)
        return self._store.nbytes - before

    def add_state(self, spec: KVSpec) -> int:
        """Create a persistent KV state, zeroed; returns the bytes taken."""
        self._check_open()
        if spec.name in self._states:
            raise GraphError("the KV state exists already", where=spec.name)
        nbytes = KVState(spec, 0).nbytes
        state = KVState(spec, self.device.allocate(nbytes, f"the KV cache {spec.name}"))
        self.device.fill(state.address, 0, nbytes)
        self._states[spec.name] = state
        return nbytes

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (source, destination) in every state, ordered with the work."""
        for state in self._states.values():
            for source, target in pairs:
                self._check_page(state, source)
                self._check_page(state, target)
                for base, nbytes in state.planes:
                    self.device.copy(base + target * nbytes, base + source * nbytes, nbytes)

    def read_page(self, state: str, page: int) -> bytes:
        """The bytes of one page of a state: its part of each plane, in order; synchronises."""
        self._check_page(self._states[state], page)
        planes = self._states[state].planes
        parts = [self.device.download(base + page * n, n).tobytes() for base, n in planes]
        return b"".join(parts)

    def write_page(self, state: str, page: int, data: bytes) -> None:
        """Restore what `read_page` gave."""
        self._check_page(self._states[state], page)
        planes = self._states[state].planes
        if len(data) != sum(n for _, n in planes):
            expected = sum(n for _, n in planes)
            raise BackendError(f"{len(data)} bytes for a page of {expected}", where=state)
        position = 0
        for base, nbytes in planes:
            part = np.frombuffer(data, np.uint8, nbytes, position)
            self.device.upload(base + page * nbytes, part)
            position += nbytes

    def _check_page(self, state: KVState, page: int) -> None:
        if not 0 <= page < state.spec.n_pages:
            raise BackendError(
                f"page {page} of a state of {state.spec.n_pages} pages", where=state.spec.name
            )

    # ---- the arena ------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> int:
        """Make the arena at least `nbytes` large; what it held is lost when it moves."""
        self._check_open()
        address, size = self._arena
        if nbytes > size:
            self.device.synchronize()
            if address:
                self.device.free(address)
                self._arena = (0, 0)
            self._generation += 1
            self._arena = (self.device.allocate(nbytes, "the arena of activations"), nbytes)
        return self._generation

    def upload(self, offset: int, array: NDArray[np.generic]) -> None:
        """Copy a contiguous array into the arena; it may be changed once this returns."""
        self._check_range(offset, array.nbytes)
        self.device.upload(self._arena[0] + offset, array)

    def download(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> NDArray[np.generic]:
        """Wait for the work before, and copy out of the arena."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        self._check_range(offset, nbytes)
        return self.device.download(self._arena[0] + offset, nbytes).view(dtype).reshape(shape)

    def fetch(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Callable[[], NDArray[np.generic]]:
        """Enqueue a copy out of the arena; the result waits for it, not for what comes after."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        self._check_range(offset, nbytes)
        arrived = self.device.fetch(self._arena[0] + offset, nbytes)
        return lambda: arrived().view(dtype).reshape(shape)

    def send(self, offset: int, array: NDArray[np.generic]) -> None:
        """As `upload`, but beside the work under way, which must not touch the place."""
        self._check_range(offset, array.nbytes)
        self.device.send(self._arena[0] + offset, array)

    def _check_range(self, offset: int, nbytes: int) -> None:
        self._check_open()
        if offset % ALIGNMENT or offset < 0 or offset + nbytes > self._arena[1]:
            raise BackendError(
                f"{nbytes} bytes at offset {offset} of an arena of {self._arena[1]} bytes "
                f"(alignment {ALIGNMENT})",
                where="arena",
            )

    # ---- running --------------------------------------------------------------------------------

    def compile(self, split: Split) -> Callable[[], None]:
        """Specialise and check everything; the result enqueues the split's work."""
        self._check_open()
        base, size = self._arena
        for index in (*split.nodes, *(n.id for n in split.graph.inputs.values())):
            node = split.graph.nodes[index]
            if node.nbytes and split.offsets[index] + node.nbytes > size:
                raise GraphError(f"its output lies outside of the arena of {size}", where=node.name)
        context = Context(
            graph=split.graph,
            facts=self.device.facts,
            settings=self._settings,
            base=base,
            offsets=split.offsets,
            weights=self._store.address,
            states=self._states,
            joins=joins(split, self.device.facts, self._settings),
            constant=self._constant,
            find=self._store.find,
            scratch=self._take_scratch,
            counters=self._take_counters,
        )
        launches = [made for _, some in lowered(split.nodes, context) for made in some]
        # The first launch waits for the step before, so that the others may read the step's inputs
        # ahead of `pdl_wait`.
        launches[:1] = [replace(launch, overlap=False) for launch in launches[:1]]
        frozen = self.device.freeze(launches)
        # A single node is one that is looked into, as by a trace: there is nothing to gain.
        return Program(self, frozen, self._generation, replays=len(split.nodes) > 1)

    @property
    def generation(self) -> int:
        """Of the arena."""
        return self._generation

    def disable_graphs(self, error: BackendError) -> None:
        """Launch eagerly from now on, and say so once."""
        if self.graphs:
            self.graphs = False
            warnings.warn(
                f"CUDA graphs are off for this engine, decoding will be slower: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _constant(self, array: NDArray[np.generic]) -> int:
        key: Hashable = ("constant", array.dtype.str, array.tobytes())
        return self._store.resident(
            key, array.nbytes, lambda address: self.device.upload(address, array)
        )

    def _take_scratch(self, nbytes: int, name: str = "work") -> int:
        # an outgrown block stays allocated: programs compiled earlier use it
        address, size = self._scratch.get(name, (0, 0))
        if nbytes > size:
            # of an expanded weight, whatever the rows, a longer prompt needs no more
            wanted = nbytes + nbytes // SCRATCH_SPARE
            address = self.device.allocate(wanted, f"kernels' scratch ({name})")
            self._scratch[name] = (address, wanted)
        return address

    def _take_counters(self, count: int) -> int:
        if 4 * count > COUNTERS_BYTES:
            raise BackendError(f"{count} counters asked, there are {COUNTERS_BYTES // 4}")
        if not self._zeros:
            self._zeros = self.device.allocate(COUNTERS_BYTES, "kernels' counters")
            self.device.fill(self._zeros, 0, COUNTERS_BYTES)
        return self._zeros

    def timed(self, work: Callable[[], None]) -> float:
        """Run `work`, which enqueues here, and wait for it; the seconds between two events."""
        self._check_open()
        return self.device.timed(work)

    def describe(self) -> str:
        """The GPU and its architecture."""
        return f"{self.device.facts.name}, sm_{self.device.facts.arch}"

    def synchronize(self) -> None:
        """Wait, within bounds, for all work; raise BackendError if any of it failed."""
        self._check_open()
        self.device.synchronize()

    def close(self) -> None:
        """Free everything. Closing twice is allowed."""
        self._open = False
        self.device.close()

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("the backend was closed", where="cuda")

    def statistics(self) -> dict[str, Any]:
        """Counters and memory, for benches: runs, launches, bytes."""
        return {
            **asdict(self.counters),
            "launches": self.device.launches,
            "weight_bytes": self._store.nbytes,
            "allocated_bytes": self.device.allocated,
            "graphs": self.graphs,
        }


def _say(line: str) -> None:
    print(f"minfer: {line}", file=sys.stderr)
