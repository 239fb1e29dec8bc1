"""From a `.cu` file to a cubin: headers inlined, specialised by macros, cached on disk by content.

Works without a GPU and without a driver; only NVRTC is needed, and no CUDA headers, since kernels
use `lib/base.cuh` and nothing else. Loading and launching are `device`'s and `launch`'s business.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from time import monotonic

from minfer.backends.cuda import nvrtc
from minfer.errors import BackendError

ROOT = Path(__file__).parent
"""Folder that `.cu` files and their includes are named from."""

Defines = Mapping[str, int | float | str]

GENERIC_ARCH = "90 generic"
"""Hopper, used as cards before it are: what those lack is compiled out."""

_INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"(?P<own>[^"]+)"|<(?P<system>[^>]+)>)', re.M)
TELL_S = 1.0
"""From a line of progress to the next."""
_IN_PROCESS = 2  # so few compiles are done before a worker process would have started


@cache
def inline(file: str) -> str:
    """The text of `file` (relative to `ROOT`) with its own headers pasted in, each once.

    Raises:
        BackendError: for a missing header, or a system header, which a kernel must not need.
    """
    return _inline(file, set())


def _inline(file: str, seen: set[str]) -> str:
    seen.add(file)
    try:
        text = (ROOT / file).read_text()
    except OSError as error:
        raise BackendError(f"cannot read the kernel source: {error}", where=file) from None
    lines = [f'#line 1 "{file}"']
    for number, line in enumerate(text.split("\n"), 1):
        found = _INCLUDE.match(line)
        if not found:
            lines.append(line)
        elif found["system"]:
            raise BackendError(
                f"includes <{found['system']}>; kernels use own headers only",
                where=f"{file}:{number}",
            )
        elif found["own"] in seen:
            lines.append("")
        else:
            lines += [_inline(found["own"], seen), f'#line {number + 1} "{file}"']
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Unit:
    """One compilation: a source file with its macros.

    Attributes:
        file: path from this folder, e.g. `ops/rms_norm.cu`.
        defines: macros, sorted by name.
    """

    file: str
    defines: tuple[tuple[str, int | float | str], ...] = ()

    def options(self, arch: str) -> tuple[str, ...]:
        """NVRTC's options for an architecture such as `90a`."""
        macros = [f"--define-macro={name}={value}" for name, value in self.defines]
        if arch == GENERIC_ARCH:
            arch, macros = arch.split()[0], [*macros, "--define-macro=GENERIC"]
        return (f"--gpu-architecture=sm_{arch}", "--std=c++17", "-lineinfo", *macros)

    def __str__(self) -> str:
        return " ".join([self.file, *(f"{k}={v}" for k, v in self.defines)])


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler says a kernel takes: registers a thread, bytes of the rest."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int


def compile_cubin(source_file: str, defines: Defines, arch: str) -> bytes:
    """Compile one file for one architecture (`80`, `90a`, ...), without the cache.

    Raises:
        BackendError: with the compiler's messages.
    """
    unit = Unit(source_file, tuple(sorted(defines.items())))
    return nvrtc.compile_source(str(unit), inline(source_file), unit.options(arch))[0]


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def parse_resources(log: str) -> dict[str, Resources]:
    """Read the assembler's `-v` report: kernel name -> resources."""
    found: dict[str, Resources] = {}
    entry, frame = "", (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, frame = match[1], (0, 0, 0)
        elif match := _STACK.search(line):
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif entry and (match := _USED.search(line)):
            found[entry] = Resources(
                int(match[1]), frame[1], frame[2], frame[0], int(match[2] or 0)
            )
            entry = ""
    return found


class CubinCache:
    """Compiled units on disk, keyed by source, options and compiler version.

    An entry is written to a temporary name and renamed, so readers never see half of one.

    Args:
        folder: where the entries live; made when first needed.
        arch: architecture to compile for.
    """

    def __init__(self, folder: Path, arch: str) -> None:
        self._folder = folder
        self._arch = arch

    @cached_property
    def _compiler(self) -> str:
        return ".".join(map(str, nvrtc.version()))

    def path(self, unit: Unit) -> Path:
        """Where the unit's cubin is or will be."""
        parts = (self._compiler, *unit.options(self._arch), inline(unit.file))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self._folder / f"{digest[:40]}.cubin"

    def build(self, units: Iterable[Unit], progress: Callable[[str], None] | None = None) -> None:
        """Compile the units that are not there yet, in parallel processes when there are many.

        NVRTC compiles one source at a time in a process, so threads would not help.

        Args:
            units: what is needed.
            progress: called with a line for people, about once a second and at the end.
        """
        wanted = {self.path(unit): unit for unit in units}
        missing = [(path, unit) for path, unit in wanted.items() if not path.exists()]
        if not missing:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        jobs = [
            Job(str(unit), inline(unit.file), unit.options(self._arch), str(path))
            for path, unit in missing
        ]
        say = progress or (lambda line: None)
        if len(jobs) <= _IN_PROCESS:
            for job in jobs:
                write_cubin(job)
        else:
            _build_in_processes(jobs, say)

    def load(self, unit: Unit) -> bytes:
        """The cubin of a unit, compiled now if it has to be."""
        path = self.path(unit)
        if not path.exists():
            self.build([unit])
        return path.read_bytes()


@dataclass(frozen=True, slots=True)
class Job:
    """One compile, as it travels to a worker process."""

    name: str
    source: str
    options: tuple[str, ...]
    target: str


def write_cubin(job: Job) -> None:
    """Compile a job and put its cubin in place atomically."""
    cubin, _ = nvrtc.compile_source(job.name, job.source, job.options)
    target = Path(job.target)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(cubin)
    os.replace(file.name, target)


_WORKER = "import sys; sys.path[:] = {path!r}; from minfer.backends.cuda.worker import main; main()"


def _build_in_processes(jobs: Sequence[Job], say: Callable[[str], None]) -> None:
    n_workers = min(len(jobs), len(os.sched_getaffinity(0)))
    workers = []
    for share in (jobs[i::n_workers] for i in range(n_workers)):
        worker = subprocess.Popen(
            [sys.executable, "-c", _WORKER.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        workers.append((worker, share))
    failures: list[str] = []
    done, told = 0, -TELL_S
    for worker, share in workers:
        assert worker.stdin is not None
        for job in share:
            worker.stdin.write(json.dumps([job.name, job.source, job.options, job.target]) + "\n")
        worker.stdin.close()
    for worker, share in workers:
        assert worker.stdout is not None
        answers = 0
        for line in worker.stdout:
            name, error = json.loads(line)
            answers += 1
            done += 1
            if error:
                failures.append(error)
            if done == len(jobs) or monotonic() - told >= TELL_S:
                told = monotonic()
                say(f"compiling CUDA kernels, once: {done}/{len(jobs)} ({name})")
        worker.stdout.close()
        if worker.wait() or answers < len(share):
            failures.append(f"a compiler process ended with status {worker.returncode}")
    if failures:
        raise BackendError("\n".join(failures), where="NVRTC")
