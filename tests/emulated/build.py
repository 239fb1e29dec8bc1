"""From a unit to a library of this machine, cached by content, and launches run on it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from emulated.translate import translate
from minfer.backends.cuda.compile import Unit, inline
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, check_geometry, convert_args
from minfer.errors import BackendError
from minfer.settings import Settings

HERE = Path(__file__).parent
RUNTIME = ("runtime.cpp", "async.cpp", "halves.cpp", "races.cpp", "watched.cpp")
HEADERS = ("runtime.h", "races.h", "state.h", "cuda.h", "ptx.h")
PROCESSES = 2
_ONE_AT_A_TIME = Lock()  # the emulated card runs one launch
_LANGUAGE = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off")
_KERNEL = ("-O1", "-w", "-fno-math-errno", "-g1")
_WATCHED = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")
_RUNTIME = ("-O2", "-ftree-vectorize", "-U_FORTIFY_SOURCE")  # which forbids jumps between fibers
_KEYWORDS = (
    "-D__global__=",
    "-D__device__=",
    "-D__forceinline__=inline",
    "-D__noinline__=__attribute__((noinline))",
    "-D__launch_bounds__(...)=",
    "-D__align__(n)=alignas(n)",
)
_LINE_OF_OWN = re.compile(r'^# (\d+) "([^"]*)".*$', re.M)


@cache
def compiler() -> str | None:
    """The C++ compiler's command."""
    return shutil.which(os.environ.get("CXX", "g++"))


def reason_against() -> str | None:
    """None if kernels can be emulated here, else why not."""
    if not sys.platform.startswith("linux"):
        return "the emulator of CUDA kernels runs on Linux"
    return None if compiler() else "there is no C++ compiler to emulate CUDA kernels with"


def _run(command: Sequence[str], text: str, what: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"the emulated kernel does not compile:\n{done.stderr}", where=what)
    return done.stdout


@cache
def _sources() -> str:
    return "".join((HERE / name).read_text() for name in (*RUNTIME, *HEADERS, "translate.py"))


def _folder() -> Path:
    folder = Settings().cache / "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _library(name: str, key: Iterable[str], build: Any) -> Path:
    """The library of this content; `build` makes it at the path it is given."""
    parts = (str(compiler()), _sources(), *_LANGUAGE, *_KERNEL, *_WATCHED, *_RUNTIME, *key)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    path = _folder() / f"{name}-{digest}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            made = Path(work) / path.name
            build(made)
            os.replace(made, path)
    return path


def _build_runtime() -> Path:
    command = [
        str(compiler()),
        *_LANGUAGE,
        *_RUNTIME,
        "-shared",
        *(str(HERE / name) for name in RUNTIME),
        "-o",
    ]
    return _library("runtime", (), lambda to: _run([*command, str(to)], "", "runtime"))


def _macros(unit: Unit, capability: tuple[int, int], generic: bool) -> list[str]:
    macros = [f"-D{name}={value}" for name, value in unit.defines]
    macros.append(f"-D__CUDA_ARCH__={capability[0] * 100 + capability[1] * 10}")
    if generic:
        macros.append("-DGENERIC")
    elif capability == (9, 0):
        macros.append("-D__CUDA_ARCH_FEAT_SM90_ALL")
    return macros


def _build_unit(unit: Unit, capability: tuple[int, int], generic: bool) -> Path:
    macros = _macros(unit, capability, generic)
    source = inline(unit.file)

    def build(to: Path) -> None:
        expand = [str(compiler()), "-E", "-x", "c++", "-", *_KEYWORDS, *macros]
        text = _LINE_OF_OWN.sub(r'#line \1 "\2"', _run(expand, source, str(unit)))
        command = [str(compiler()), *_LANGUAGE, *_KERNEL, *_WATCHED, f"-I{HERE}"]
        command += ["-x", "c++", "-", "-c", "-o"]
        made = str(to.with_suffix(".o"))
        _run([*command, made], translate(text), str(unit))
        # apart, so that the sanitizer's own library stays away
        _run([str(compiler()), "-shared", made, "-o", str(to)], "", str(unit))

    return _library(Path(unit.file).stem, (source, *macros), build)


@cache
def _runtime() -> Any:
    library = ctypes.CDLL(str(_build_runtime()), mode=ctypes.RTLD_GLOBAL)
    library.emulated_launch.restype = ctypes.c_char_p
    return library


class Emulator:
    """Kernels for one kind of card, compiled and run by this processor.

    Args:
        capability: compute capability of the card.
        generic: as `Facts` has it.
        shared_limit: shared memory a block may take, bytes.
    """

    def __init__(
        self, capability: tuple[int, int], generic: bool = False, shared_limit: int = 227 << 10
    ) -> None:
        self._capability = capability
        self._generic = generic
        self._shared_limit = shared_limit
        self._libraries: dict[Unit, Any] = {}
        self._entries: dict[Kernel, Any] = {}

    def prepare(self, kernels: Iterable[Kernel]) -> None:
        """Compile what is missing, `PROCESSES` at a time, and load it."""
        wanted = [k for k in dict.fromkeys(kernels) if k not in self._entries]
        units = [u for u in dict.fromkeys(k.unit for k in wanted) if u not in self._libraries]
        _runtime()
        with ThreadPoolExecutor(PROCESSES) as pool:
            paths = pool.map(lambda unit: _build_unit(unit, self._capability, self._generic), units)
            for unit, path in zip(units, paths, strict=True):
                self._libraries[unit] = ctypes.CDLL(str(path))
        for kernel in wanted:
            self._entries[kernel] = self._load(kernel)

    def _load(self, kernel: Kernel) -> Any:
        library = self._libraries[kernel.unit]
        sizes = (ctypes.c_int * 64)()
        getattr(library, f"{kernel.name}__sizes")(sizes)
        found = tuple(n for n in sizes if n)
        if found != kernel.sizes:
            raise BackendError(
                f"the signature '{kernel.signature}' takes {kernel.sizes} bytes, not {found}",
                where=f"{kernel.file} {kernel.name}",
            )
        return getattr(library, f"{kernel.name}__run")

    def check(self, launch: Launch) -> None:
        """Refuse what a device would refuse."""
        check_geometry(launch, self._shared_limit)
        convert_args(launch)

    def watch(self, memory: Iterable[tuple[int, int]]) -> None:
        """Watch accesses to this memory (begin and end of each part) in the launches that follow.

        They may overlap; what ran before has ended.
        """
        ends = [address for part in sorted(memory) for address in part]
        with _ONE_AT_A_TIME:
            _runtime().emulated_memory((ctypes.c_uint64 * len(ends))(*ends), len(ends) // 2)

    def run(
        self,
        launch: Launch,
        late: bool = False,
        overlaps: bool = False,
        before_ends: Callable[[], None] | None = None,
    ) -> None:
        """Run a launch, whose addresses are of this process, to its end.

        Args:
            launch: whose kernel is prepared.
            late: whether by the late schedule (`runtime.cpp`).
            overlaps: whether it may begin before the launch before has ended.
            before_ends: called when that one is to end, if memory is as it was before it.

        Raises:
            BackendError: when a kernel breaks a rule that the emulator knows.
        """
        self.check(launch)
        letters = launch.kernel.signature.split()
        words = [
            struct.pack(_WORDS[letter], value)
            for letter, value in zip(letters, convert_args(launch), strict=True)
        ]
        with _ONE_AT_A_TIME:
            failure = _runtime().emulated_launch(
                self._entries[launch.kernel],
                b"".join(words),
                (ctypes.c_uint32 * 3)(*launch.grid),
                launch.block,
                launch.shared,
                launch.cluster,
                int(late),
                int(self._capability >= (9, 0) and not self._generic),
                int(overlaps),
                ctypes.CFUNCTYPE(None)(before_ends) if before_ends else None,
            )
        if failure:
            text = _PLACE.sub(_line_of, failure.decode())
            raise BackendError(text, where=str(launch.kernel.unit))


_PLACE = re.compile(r"\[(\S+)\+(0x[0-9a-f]+)\]")


def _line_of(place: re.Match[str]) -> str:
    """File and line of a place in a library, and where that was inlined."""
    tool = shutil.which("addr2line")
    if not tool:
        return place[0]
    found = _run([tool, "-i", "-e", place[1], place[2]], "", place[0]).splitlines()
    names = ["/".join(Path(line.split()[0]).parts[-2:]) for line in found if "emulated" not in line]
    return " in ".join(dict.fromkeys(names)) or place[0]


_WORDS = {"p": "<Q", "i": "<i4x", "u": "<I4x", "l": "<q", "f": "<f4x"}
"""How an argument lies in its 8 bytes; tensor maps are not emulated."""


@cache
def emulator(facts: Facts) -> Emulator:
    """The emulator of a card; what it compiled serves all who ask."""
    return Emulator(facts.capability, facts.generic, facts.shared_limit)
