"""Kernels and launches as data: a typed signature, a geometry, arguments. Nothing here is loaded.

An op describes its work as `Launch` records, which need no GPU; `device` compiles, loads and
freezes them. CUDA itself checks neither the number nor the size of a kernel's arguments, so a
signature is compared with the compiled kernel when that is loaded, and every argument is converted
by its letter when a launch is frozen: never per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.backends.cuda.compile import Unit
from minfer.errors import BackendError

LETTERS: dict[str, tuple[type[Any], int]] = {
    "p": (np.uint64, 8),  # address in device memory
    "i": (np.int32, 4),
    "u": (np.uint32, 4),
    "l": (np.int64, 8),
    "f": (np.float32, 4),
    "t": (object, 128),  # tensor map, passed as it is
}
"""Letter of a signature -> the exact type an argument becomes, and its bytes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel by its source.

    Attributes:
        file: path from the backend's folder, e.g. `ops/rms_norm.cu`.
        name: the `extern "C"` function.
        signature: a letter of `LETTERS` for each parameter, separated by spaces.
        defines: macros that specialise the source, sorted by name.
    """

    file: str
    name: str
    signature: str
    defines: tuple[tuple[str, int | float | str], ...] = ()

    @property
    def unit(self) -> Unit:
        """The compilation this kernel comes from; kernels of one file and macros share it."""
        return Unit(self.file, self.defines)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each parameter."""
        return tuple(LETTERS[letter][1] for letter in self.signature.split())


def kernel(file: str, name: str, signature: str, **defines: int | float | str) -> Kernel:
    """Make a Kernel with its macros given as keywords."""
    return Kernel(file, name, signature, tuple(sorted(defines.items())))


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: what to run.
        grid: blocks in x, y, z.
        block: threads a block, in x.
        args: addresses as int, numbers as int or float, by the kernel's signature.
        shared: dynamic shared memory a block, bytes; more than 48 KiB is arranged for.
        cluster: blocks a cluster, in x; `grid[0]` is a multiple of it.
        overlap: launch programmatically: the kernel starts before its predecessor in the stream
            ends, and calls `pdl_wait()` in every block before it touches shared data.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    args: tuple[Any, ...]
    shared: int = 0
    cluster: int = 1
    overlap: bool = True


def convert_args(launch: Launch) -> tuple[Any, ...]:
    """The arguments in the exact types of the signature.

    Raises:
        BackendError: for a wrong count, a value of the wrong kind or out of its type's range.
    """
    where = f"{launch.kernel.file} {launch.kernel.name}"
    letters = launch.kernel.signature.split()
    if len(letters) != len(launch.args):
        raise BackendError(
            f"{len(launch.args)} arguments for the {len(letters)} of '{launch.kernel.signature}'",
            where=where,
        )
    return tuple(_convert(letter, a, where) for letter, a in zip(letters, launch.args, strict=True))


def _convert(letter: str, value: Any, where: str) -> Any:
    if letter == "t":
        return value
    kind, _ = LETTERS[letter]
    wanted: tuple[type, ...] = (int, float) if letter == "f" else (int,)
    if isinstance(value, bool) or not isinstance(value, (*wanted, np.number)):
        raise BackendError(f"argument {value!r} for a parameter '{letter}'", where=where)
    try:
        converted = kind(value)
    except OverflowError:
        raise BackendError(f"argument {value} overflows '{letter}'", where=where) from None
    if letter != "f" and int(converted) != value:
        raise BackendError(f"argument {value} overflows '{letter}'", where=where)
    return int(converted) if letter == "p" else converted


def check_geometry(launch: Launch, shared_limit: int) -> None:
    """Refuse a launch the device could not take.

    Raises:
        BackendError: with the value and the limit.
    """
    where = f"{launch.kernel.file} {launch.kernel.name}"
    x, y, z = launch.grid
    if not (0 < x < 2**31 and 0 < y < 2**16 and 0 < z < 2**16):
        raise BackendError(f"grid {launch.grid} is outside of 1..2^31-1, 65535, 65535", where=where)
    if not 0 < launch.block <= 1024:
        raise BackendError(f"{launch.block} threads a block; there are at most 1024", where=where)
    if launch.shared > shared_limit:
        raise BackendError(
            f"{launch.shared} bytes of shared memory a block; the device has {shared_limit}",
            where=where,
        )
    if x % launch.cluster:
        raise BackendError(f"{x} blocks do not fill clusters of {launch.cluster}", where=where)


def units(launches: Sequence[Launch]) -> list[Unit]:
    """The compilations that launches need, each once, in order."""
    return list(dict.fromkeys(launch.kernel.unit for launch in launches))
