"""What kernels became for an architecture, from the compiler's own reports. Not a test.

Needs NVRTC and neither a GPU nor a driver. `examine` is made to run in worker processes, since
NVRTC compiles one source at a time in a process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from minfer.backends.cuda.compile import Resources, Unit, inline, parse_resources

REGISTERS_A_SM = 64 << 10
ALLOCATED_BY = 8
"""Registers of a thread are given out in eights."""
MOST_REGISTERS = 255
MOST_THREADS = 1024
STATIC_SHARED = 48 << 10
WGMMA, MMA = "wgmma.mma_async", "mma.sync"
BULK, ASYNC = "cp.async.bulk.shared", "cp.async.cg.shared"
INSTRUCTIONS = (WGMMA, MMA, BULK, ASYNC)
"""Tensor cores of Hopper and of all; copies by the TMA unit and by the threads."""

_ENTRY = re.compile(r"\.entry (\w+)\(.*?\)(.*?)\{", re.S)


@dataclass(frozen=True, slots=True)
class Examined:
    """One kernel for one architecture.

    Attributes:
        used: what the assembler says it takes.
        threads: most threads a block, by its launch bounds.
        blocks: blocks that have to fit a multiprocessor, by its launch bounds.
        instructions: those of `INSTRUCTIONS` it contains.
        remarks: the assembler's performance warnings, as of tensor core work put in sequence.
    """

    used: Resources
    threads: int
    blocks: int
    instructions: frozenset[str]
    remarks: tuple[str, ...]

    @property
    def ceiling(self) -> int:
        """Most registers a thread with which the blocks it is bound to still fit."""
        fit = REGISTERS_A_SM // (self.threads * self.blocks)
        return min(MOST_REGISTERS, fit // ALLOCATED_BY * ALLOCATED_BY)

    def faults(self, wanted: Set[str]) -> Iterator[str]:
        """What is wrong with it, if it should contain the instructions `wanted`."""
        used = self.used
        if used.spill_stores or used.spill_loads:
            yield f"spills: {used.spill_stores} bytes stored, {used.spill_loads} loaded"
        if used.registers > self.ceiling:
            yield f"takes {used.registers} registers, {self.ceiling} at most fit"
        if used.shared > STATIC_SHARED:
            yield f"takes {used.shared} bytes of shared memory, {STATIC_SHARED} at most fit"
        if wanted - self.instructions:
            yield f"lacks {', '.join(sorted(wanted - self.instructions))}"
        yield from self.remarks


def examine(unit: Unit, arch: str) -> dict[str, Examined]:
    """Compile a unit and answer what each of its kernels is, by name."""
    log, ptx = _reports(unit, arch)
    used = parse_resources(log)
    entries = list(_ENTRY.finditer(ptx))
    ends = [entry.start() for entry in entries[1:]] + [len(ptx)]
    found = {}
    for entry, end in zip(entries, ends, strict=True):
        name, body = entry[1], ptx[entry.end() : end]
        lost = (x for x in log.splitlines() if "Performance Loss" in x and f"'{name}'" in x)
        found[name] = Examined(
            used[name],
            _bound(entry[2], "maxntid", MOST_THREADS),
            _bound(entry[2], "minnctapersm", 1),
            frozenset(i for i in INSTRUCTIONS if re.search(rf"\b{re.escape(i)}\b", body)),
            tuple(lost),
        )
    return found


def _bound(text: str, directive: str, otherwise: int) -> int:
    match = re.search(rf"\.{directive} (\d+)", text)
    return int(match[1]) if match else otherwise


def _reports(unit: Unit, arch: str) -> tuple[str, str]:
    """The log of the compiler and its assembler, and the PTX between the two."""
    from cuda.bindings import nvrtc

    def text(size: Any, get: Any) -> str:
        buffer = b" " * size(program)[1]
        get(program, buffer)
        return buffer.decode()

    source = inline(unit.file).encode()
    _, program = nvrtc.nvrtcCreateProgram(source, str(unit).encode(), 0, [], [])
    options = [o.encode() for o in (*unit.options(arch), "--ptxas-options=-v")]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, f"{unit} for sm_{arch}:\n{log}"
    ptx = text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    nvrtc.nvrtcDestroyProgram(program)
    return log, ptx
