"""Every kernel for every architecture without a GPU: it compiles, spills nothing, fits a block."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache
from itertools import repeat
from pathlib import Path
from types import ModuleType

import pytest
from cuda_sweep import ASYNC, BULK, MMA, WGMMA, examine

from minfer.backends.cuda import compile as cuda_compile
from minfer.backends.cuda import nvrtc
from minfer.backends.cuda.compile import (
    GENERIC_ARCH,
    CubinCache,
    Unit,
    compile_cubin,
    inline,
    parse_resources,
)
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel
from minfer.backends.cuda.ops import OPS
from minfer.errors import BackendError

ARCHS = ("80", "86", "89", "90a", "100a", "120a")
SAMPLED = {"86": 3, "89": 3, "100a": 3}
"""Architectures of which each third unit of a file is compiled, for time.

Registers and instructions are those of the one before, in full: of 80, and of 90a but for `wgmma`.
"""
MODULES = list(dict.fromkeys(OPS.values()))
EARLIER, HOPPER, LATER = ("80", "86", "89"), ("90a",), ("90a", "100a", "120a")
CONTAINS = (
    ("matmul_many_sm90", HOPPER, {WGMMA, BULK}),
    ("attention_prefill_sm90", HOPPER, {WGMMA, BULK}),
    ("matmul_vec", LATER, {MMA, BULK}),
    ("matmul_batch", ("100a", "120a"), {MMA, BULK}),
    ("matmul_batch_sm90", ("90a",), {WGMMA, BULK}),
    ("matmul_vec", EARLIER, {MMA, ASYNC}),
    ("matmul_batch", EARLIER, {MMA, ASYNC}),
    ("matmul_gemm", (*EARLIER, "100a", "120a"), {MMA, ASYNC}),
    ("attention_prefill", ARCHS, {MMA, ASYNC}),
    ("attention_decode", ARCHS, {MMA}),
)
"""Kernel, architectures, and the instructions without which it would be slow there."""


def facts(arch: str) -> Facts:
    number = int(arch.rstrip("a"))
    shared = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}[number] << 10
    return Facts(f"sm_{arch}", divmod(number, 10), 100, shared, 40 << 20, 16 << 30)


@pytest.fixture(scope="session")
def compiler() -> None:
    try:
        nvrtc.version()
    except BackendError as error:
        pytest.skip(str(error))


@cache
def kernels_of(module: ModuleType, arch: str) -> Sequence[Kernel]:
    return tuple(module.kernels(facts(arch)))


def test_every_source_has_a_host_side_that_names_it() -> None:
    sources = {f"ops/{p.name}" for p in (cuda_compile.ROOT / "ops").glob("*.cu")}
    named = {k.file for m in MODULES for arch in ARCHS for k in kernels_of(m, arch)}
    assert sources == named


def test_what_must_be_in_kernels_is_asked_of_kernels_there_are() -> None:
    for kernel, archs, _ in CONTAINS:
        for arch in archs:
            assert kernel in {k.name for m in MODULES for k in kernels_of(m, arch)}


@pytest.fixture(scope="module")
def workers(compiler: None) -> Iterator[Executor]:
    """A process for each core."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        yield pool


def sampled(units: Iterable[Unit], every: int) -> list[Unit]:
    """Of each file the first, and then each `every`th."""
    numbers: Counter[str] = Counter()
    found = []
    for unit in units:
        if numbers[unit.file] % every == 0:
            found.append(unit)
        numbers[unit.file] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rsplit(".", 1)[1])
def test_every_kernel_fits(workers: Executor, module: ModuleType, arch: str) -> None:
    """Nothing spilled, registers for the blocks it is bound to, the instructions it is made for."""
    kernels = kernels_of(module, arch)
    units = sampled(dict.fromkeys(k.unit for k in kernels), SAMPLED.get(arch, 1))
    wrong: list[str] = []
    for unit, found in zip(units, workers.map(examine, units, repeat(arch)), strict=True):
        names = {k.name for k in kernels if k.unit == unit}
        assert names <= set(found), f"{unit} lacks {names - set(found)}"
        for name in names:
            rows = (wanted for kernel, on, wanted in CONTAINS if kernel == name and arch in on)
            faults = found[name].faults(set().union(*rows))
            wrong += [f"{unit} {name} {fault}" for fault in faults]
    assert not wrong, f"on sm_{arch}:\n" + "\n".join(wrong)


def test_headers_are_inlined_once_and_lines_keep_their_names() -> None:
    text = inline("ops/kv_store.cu")
    assert text.count("constexpr int WARP = 32;") == 1
    assert text.startswith('#line 1 "ops/kv_store.cu"')
    assert '#line 1 "lib/base.cuh"' in text
    assert "#include" not in text


def test_an_error_names_file_and_line(compiler: None) -> None:
    with pytest.raises(BackendError, match=r"ops/embed\.cu\(\d+\): error"):
        compile_cubin("ops/embed.cu", {}, "90a")  # TYPE is not defined


def test_cache_is_keyed_by_content_and_options(tmp_path: Path, compiler: None) -> None:
    cache = CubinCache(tmp_path, "90a")
    one, two = (Unit("ops/elementwise.cu", (("OP", op), ("WIDE", 1))) for op in (0, 1))
    assert cache.path(one) != cache.path(two)
    assert cache.path(one) != CubinCache(tmp_path, "80").path(one)
    cubin = cache.load(one)
    assert cubin[:4] == b"\x7fELF"
    cache.path(one).write_bytes(b"kept")
    assert cache.load(one) == b"kept"
    assert not cache.path(two).exists()


def test_hopper_can_be_used_as_cards_before_it(tmp_path: Path, compiler: None) -> None:
    """Copies by threads, and cubins of its own."""
    unit = Unit("ops/matmul_batch.cu")
    own, generic = (examine(unit, a)["matmul_batch"].instructions for a in ("90a", GENERIC_ARCH))
    assert BULK in own and ASYNC not in own
    assert ASYNC in generic and BULK not in generic
    assert CubinCache(tmp_path, GENERIC_ARCH).path(unit) != CubinCache(tmp_path, "90").path(unit)


def test_many_kernels_compile_in_processes(tmp_path: Path, compiler: None) -> None:
    cache = CubinCache(tmp_path, "90a")
    wanted = [Unit("ops/elementwise.cu", (("OP", op), ("WIDE", 1))) for op in range(4)]
    lines: list[str] = []
    cache.build(wanted, lines.append)
    assert all(cache.path(unit).exists() for unit in wanted)
    assert 1 <= len(lines) <= 4  # a second lies between two of them, but for the last
    assert "4/4" in lines[-1]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".cubin"] * 4


def test_failures_in_processes_come_back(tmp_path: Path, compiler: None) -> None:
    cache = CubinCache(tmp_path, "90a")
    wanted = [Unit("ops/elementwise.cu", (("OP", op),)) for op in range(4)]  # WIDE missing is 0
    wanted.append(Unit("ops/embed.cu"))
    with pytest.raises(BackendError, match="TYPE"):
        cache.build(wanted)


def test_resources_are_read_from_the_assembler() -> None:
    log = """ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 64 bytes smem
ptxas info    : Compiling entry function 'g' for 'sm_90a'
ptxas info    : Function properties for g
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers"""
    found = parse_resources(log)
    assert (found["f"].registers, found["f"].spill_stores, found["f"].spill_loads) == (40, 8, 12)
    assert (found["f"].stack, found["f"].shared) == (16, 64)
    assert (found["g"].registers, found["g"].shared) == (12, 0)
