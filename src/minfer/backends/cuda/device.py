"""One GPU as an engine uses it: a stream of its own, memory, loaded kernels, checked waits.

Everything that enters the stream passes through `Device`, in order: uploads, launches, graphs,
copies. Failures come back from `synchronize`, the one place that waits, within bounds. What the
kernels compute is unknown here.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends.cuda import driver, nvrtc
from minfer.backends.cuda.compile import GENERIC_ARCH, CubinCache, Unit
from minfer.backends.cuda.launch import Kernel, Launch, check_geometry, convert_args
from minfer.backends.cuda.staging import Bytes, Pinned, Staging
from minfer.errors import BackendError, OutOfMemoryError
from minfer.settings import Settings

PATIENCE_S = 120.0
"""Longest wait for the device before it is called wedged."""
SMALLER = "Use a smaller context, fewer GPU layers (--gpu-layers) or a smaller model"
"""What helps where memory does not suffice."""
OPT_IN_SHARED = 48 << 10
"""Dynamic shared memory above which a kernel has to ask once."""
_SPIN_S = 0.002  # a decode step ends within this; sleeping would add its wake-up time
_SPECIFIC = {(9, 0), (10, 0), (12, 0)}  # whose own instructions need the architecture's "a" form

Frozen = tuple[Any, Any, tuple[Any, ...]]
"""A launch with everything resolved: configuration, loaded kernel, exact arguments."""


def arch_name(capability: tuple[int, int]) -> str:
    """The architecture to compile for: `90a` for compute capability (9, 0)."""
    major, minor = capability
    return f"{major}{minor}{'a' if capability in _SPECIFIC else ''}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a device is.

    Attributes:
        name: as the driver spells it.
        capability: compute capability, e.g. (9, 0).
        n_sms: multiprocessors.
        shared_limit: shared memory one block may take, bytes.
        l2_bytes: second-level cache.
        total_bytes: memory of the card.
        generic: whether it is used as cards before Hopper are: no warpgroup products, no bulk
            copies, no programmatic launches.
    """

    name: str
    capability: tuple[int, int]
    n_sms: int
    shared_limit: int
    l2_bytes: int
    total_bytes: int
    generic: bool = False

    @property
    def arch(self) -> str:
        """The architecture kernels are compiled for."""
        return GENERIC_ARCH if self.generic else arch_name(self.capability)

    @property
    def hopper(self) -> bool:
        """Whether kernels of Hopper's own instructions run."""
        return self.capability == (9, 0) and not self.generic

    @property
    def programmatic(self) -> bool:
        """Whether a kernel may start before its predecessor ends."""
        return self.capability >= (9, 0) and not self.generic


class Faults:
    """Failures planted by tests, by site: `launch`, `capture`, `instantiate`, `replay`, ...

    A site that is armed raises BackendError once for each time it was armed.
    """

    def __init__(self) -> None:
        self._armed: dict[str, int] = {}

    def arm(self, site: str, times: int = 1) -> None:
        """Let the next `times` passes through `site` fail."""
        self._armed[site] = times

    def pass_through(self, site: str) -> None:
        """Raise if the site is armed."""
        if self._armed.get(site, 0) > 0:
            self._armed[site] -= 1
            raise BackendError("planted failure", where=site)


class Device:
    """The first GPU of this process.

    Args:
        settings: where compiled kernels are cached.
        say: receives lines for people while kernels compile.

    Raises:
        BackendError: when something is missing, with what and how to get it.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None] | None = None) -> None:
        self._cuda = driver.bindings()
        self._core = driver.core()
        driver.initialise()
        driver.check_compiler(nvrtc.version())
        self._errors = driver.cuda_errors()
        self._thread = threading.local()
        self._say = say
        self._device = self._core.Device(0)
        self._bind()
        self.facts = replace(_facts(self._cuda), generic=settings.cuda_generic)
        if self.facts.capability < (8, 0):
            raise BackendError(
                f"{self.facts.name} has compute capability {self.facts.capability[0]}."
                f"{self.facts.capability[1]}; the kernels need 8.0 (Ampere) or later",
                where="cuda",
                remedy="Use --device cpu",
            )
        self.stream = self._device.create_stream()
        self._handle = int(self.stream.handle)
        self.faults = Faults()
        self._limit = settings.gpu_mem << 20
        self.launches = 0
        """Kernels launched eagerly so far."""
        self._cubins = CubinCache(settings.cache / "cubin", self.facts.arch)
        self._modules: dict[Unit, Any] = {}
        self._kernels: dict[Kernel, Any] = {}
        self._shared: dict[Kernel, int] = {}
        self._blocks: dict[int, int] = {}
        self._starts: list[int] = []  # the keys of _blocks, sorted

    # ---- kernels --------------------------------------------------------------------------------

    def prepare(self, kernels: Iterable[Kernel]) -> None:
        """Compile what is missing, in parallel, and load."""
        wanted = [k for k in dict.fromkeys(kernels) if k not in self._kernels]
        if not wanted:
            return
        self._bind()
        self._cubins.build(dict.fromkeys(k.unit for k in wanted), self._say)
        for kernel in wanted:
            self._kernels[kernel] = self._load(kernel)

    def _load(self, kernel: Kernel) -> Any:
        if kernel.unit not in self._modules:
            cubin = self._cubins.load(kernel.unit)
            self._modules[kernel.unit] = self._core.ObjectCode.from_cubin(cubin)
        loaded = self._modules[kernel.unit].get_kernel(kernel.name)
        sizes = tuple(parameter.size for parameter in loaded.arguments_info)
        if sizes != kernel.sizes:
            raise BackendError(
                f"the signature '{kernel.signature}' takes {kernel.sizes} bytes, the compiled "
                f"kernel {sizes}",
                where=f"{kernel.file} {kernel.name}",
            )
        return loaded

    def freeze(self, launches: Sequence[Launch]) -> tuple[Frozen, ...]:
        """Resolve launches into what `enqueue` needs: all checking happens here.

        Raises:
            BackendError: when a kernel does not compile, or an argument or geometry is wrong.
        """
        self.prepare(launch.kernel for launch in launches)
        return tuple(self._freeze(launch) for launch in launches)

    def _freeze(self, launch: Launch) -> Frozen:
        check_geometry(launch, self.facts.shared_limit)
        loaded = self._kernels[launch.kernel]
        if launch.shared > max(OPT_IN_SHARED, self._shared.get(launch.kernel, 0)):
            driver.check(
                self._cuda.cuKernelSetAttribute(
                    self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    launch.shared,
                    int(loaded.handle),
                    0,
                ),
                f"raising the shared memory of {launch.kernel.name} to {launch.shared} bytes",
            )
            self._shared[launch.kernel] = launch.shared
        x, y, z = launch.grid
        options: dict[str, Any] = {"grid": launch.grid, "block": launch.block}
        if launch.cluster > 1:
            options |= {"grid": (x // launch.cluster, y, z), "cluster": (launch.cluster, 1, 1)}
        config = self._core.LaunchConfig(
            **options,
            shmem_size=launch.shared,
            programmatic_stream_serialization=launch.overlap and self.facts.programmatic,
        )
        return (config, loaded, convert_args(launch))

    def issue(self, target: Any, frozen: Sequence[Frozen]) -> None:
        """Launch into `target`: the stream, or a graph builder that captures from it."""
        launch = self._core.launch
        for config, kernel, args in frozen:
            launch(target, config, kernel, *args)

    def enqueue(self, frozen: Sequence[Frozen]) -> None:
        """Launch into the stream, in order, after everything before."""
        self._bind()
        self.faults.pass_through("launch")
        self.staging.flush()
        try:
            self.issue(self.stream, frozen)
        except self._errors as error:
            raise _explained(error, "launching kernels") from error
        self.launches += len(frozen)

    def run(self, launches: Sequence[Launch]) -> None:
        """Freeze and enqueue once, as for repacking a weight."""
        self.enqueue(self.freeze(launches))

    # ---- captured graphs ------------------------------------------------------------------------

    def capture(self, frozen: Sequence[Frozen]) -> Any:
        """Record the launches as a graph; nothing runs.

        Raises:
            BackendError: when capturing or instantiating fails; the stream stays usable.
        """
        self._bind()
        self.staging.flush()
        self.faults.pass_through("capture")
        try:
            builder = self.stream.create_graph_builder()
            # thread_local: an unsafe call of this thread is refused, other threads are free
            builder.begin_building("thread_local")
            try:
                self.issue(builder, frozen)
            finally:
                builder.end_building()
            self.faults.pass_through("instantiate")
            graph = builder.complete()
            graph.upload(self.stream)
        except self._errors as error:
            raise _explained(error, "capturing a graph") from error
        return graph

    def replay(self, graph: Any) -> None:
        """Enqueue a captured graph."""
        self._bind()
        self.faults.pass_through("replay")
        self.staging.flush()
        try:
            graph.launch(self.stream)
        except self._errors as error:
            raise _explained(error, "replaying a graph") from error

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds between an event before `work` and one after it, by the device's clock.

        The stream is held until everything is enqueued, so the host's time does not count. `work`
        must not wait for the device.
        """
        self._bind()
        self.synchronize()
        options = self._core.EventOptions(timing_enabled=True)
        gate = self._gate.array.view(np.uint32)
        gate[0] = 0
        equal = self._cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        driver.check(
            self._cuda.cuStreamWaitValue32(self._handle, self._gate.address, 1, int(equal)),
            "holding the stream",
        )
        try:
            begin = self.stream.record(options=options)
            work()
            end = self.stream.record(options=options)
            gate[0] = 1
            self._wait("timing", None)
            return float(end - begin) / 1e3
        except self._errors as error:
            raise _explained(error, "timing") from error
        finally:
            gate[0] = 1

    # ---- memory ---------------------------------------------------------------------------------

    @cached_property
    def staging(self) -> Staging:
        """The pinned buffers that uploads and downloads pass through."""
        self._bind()
        return Staging(self._handle, self._wait)

    @cached_property
    def _gate(self) -> Pinned:
        return Pinned(4)

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        self._bind()
        free, total = driver.check(self._cuda.cuMemGetInfo(), "asking for free memory")
        return int(free), int(total)

    def allocate(self, nbytes: int, what: str) -> int:
        """Take device memory, aligned to at least 256 bytes.

        Args:
            nbytes: how much; 0 is allowed and answers an address that must not be read.
            what: what it is for, for the message.

        Raises:
            OutOfMemoryError: before anything is allocated.
        """
        self._bind()
        self.faults.pass_through("allocate")
        free, total = self.memory()
        if self._limit:
            free = min(free, self._limit - self.allocated)
        if nbytes > free:
            raise OutOfMemoryError(
                f"{what} needs {nbytes:,} bytes; {free:,} of the GPU's {total:,} may be taken",
                where="cuda",
                remedy=SMALLER,
            )
        status, address = self._cuda.cuMemAlloc(max(nbytes, 1))
        if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise OutOfMemoryError(
                f"{what} needs {nbytes:,} bytes; {free:,} are free, but in pieces",
                where="cuda",
                remedy=SMALLER,
            )
        driver.check((status,), f"allocating {nbytes} bytes")
        self._blocks[int(address)] = nbytes
        bisect.insort(self._starts, int(address))
        return int(address)

    def free(self, address: int) -> None:
        """Give back what `allocate` gave; nothing in flight uses it."""
        self._bind()
        del self._blocks[address]
        self._starts.remove(address)
        driver.check(self._cuda.cuMemFree(address), "freeing memory")

    @property
    def allocated(self) -> int:
        """Bytes taken by `allocate` and not given back."""
        return sum(self._blocks.values())

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set memory to one byte value, in order with the work."""
        self._bind()
        self.staging.flush()
        if nbytes:
            driver.check(
                self._cuda.cuMemsetD8Async(address, byte, nbytes, self._handle), "filling memory"
            )

    def upload(self, address: int, array: NDArray[np.generic]) -> None:
        """Copy a contiguous array to the device, in order; it may be changed once this returns."""
        self._bind()
        self.faults.pass_through("upload")
        block = self._starts[bisect.bisect_right(self._starts, address) - 1]
        self.staging.upload(address, _bytes_of(array), block)

    def send(self, address: int, array: NDArray[np.generic]) -> None:
        """As `upload`, beside the work under way, which does not touch the place."""
        self._bind()
        self.faults.pass_through("upload")
        self.staging.send(address, _bytes_of(array))

    def download(self, address: int, nbytes: int) -> Bytes:
        """Wait for the work before, and copy from the device."""
        self._bind()
        self.faults.pass_through("download")
        return self.staging.download(address, nbytes)

    def fetch(self, address: int, nbytes: int) -> Callable[[], Bytes]:
        """Enqueue a copy from the device; the result waits for it, not for what comes after."""
        self._bind()
        self.faults.pass_through("download")
        fetched = self.staging.fetch(address, nbytes)

        def arrived() -> Bytes:
            self._bind()
            return fetched()

        return arrived

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy within the device, in order with the work."""
        self._bind()
        self.staging.flush()
        driver.check(
            self._cuda.cuMemcpyDtoDAsync(target, source, nbytes, self._handle),
            "copying within the device",
        )

    # ---- waiting and ending ---------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for everything enqueued.

        Raises:
            BackendError: when any of it failed, or the device does not answer in `PATIENCE_S`.
        """
        self._bind()
        self.staging.join()
        self._wait("waiting for the device", None)

    def _wait(self, doing: str, event: Any) -> None:
        self.faults.pass_through("synchronize")
        start = time.perf_counter()
        while True:
            (status,) = (
                self._cuda.cuStreamQuery(self._handle)
                if event is None
                else self._cuda.cuEventQuery(event)
            )
            if int(status) == 0:
                return
            if status.name != "CUDA_ERROR_NOT_READY":
                raise driver.explain(status.name, doing)
            waited = time.perf_counter() - start
            if waited > PATIENCE_S:
                raise BackendError(
                    f"the device did not answer within {PATIENCE_S:.0f} s while {doing}",
                    where="cuda",
                    remedy="Look at nvidia-smi and the kernel log for a hung GPU",
                )
            if waited > _SPIN_S:
                time.sleep(50e-6)

    def close(self) -> None:
        """Wait for the work and free everything; closing twice is allowed."""
        if self.stream is None:
            return
        try:
            self.synchronize()
        finally:
            self._free_all()

    def _free_all(self) -> None:
        if "staging" in self.__dict__:
            self.staging.close()
        if "_gate" in self.__dict__:
            self._gate.close()
        for address in list(self._blocks):
            self.free(address)
        self._kernels.clear()
        self._modules.clear()
        self.stream.close()
        self.stream = None

    def _bind(self) -> None:
        # CUDA's current device belongs to a thread; the engine may change threads
        if not getattr(self._thread, "bound", False):
            self._device.set_current()
            self._thread.bound = True


def _bytes_of(array: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _explained(error: Exception, doing: str) -> BackendError:
    text = str(error)
    name = next((n for n in driver.STICKY if n in text), "")
    return (
        driver.explain(name, doing) if name else BackendError(f"{text} while {doing}", where="cuda")
    )


def _facts(cuda: Any) -> Facts:
    attribute = cuda.CUdevice_attribute

    def ask(name: str) -> int:
        which = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.check(cuda.cuDeviceGetAttribute(which, 0), "asking the device"))

    name = driver.check(cuda.cuDeviceGetName(256, 0), "asking the device")
    return Facts(
        name=name.split(b"\0", 1)[0].decode(),
        capability=(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        n_sms=ask("MULTIPROCESSOR_COUNT"),
        shared_limit=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=ask("L2_CACHE_SIZE"),
        total_bytes=int(driver.check(cuda.cuDeviceTotalMem(0), "asking the device")),
    )


__all__ = ["Device", "Facts", "Faults", "Frozen", "arch_name"]
