"""No loop of the CPU's matrix products keeps a vector on the stack.

A tile that is one register too large halves a kernel's speed and changes no result, so nothing else
would notice. The files are compiled to assembly with the flags of CMakeLists.txt.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "src" / "minfer" / "backends" / "cpu" / "native"
COMPILER = shutil.which("g++")

STORE = re.compile(r"vmov\w+\s+%[xyz]mm\d+, -?\d*\(%r[sb]p\)$")
PRODUCT = re.compile(r"vpdp|vpmadd|vfn?madd")
JUMP = re.compile(r"j\w+\s+(\.L\w+)$")
FUNCTION = re.compile(r"([_A-Za-z]\w*):")


def flags(isa: str) -> list[str]:
    found = re.search(rf"set\(flags_{isa}\s+([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())
    assert found
    return found[1].split()


def loops(lines: list[str]) -> list[list[str]]:
    """The bodies of all loops: from a label to a jump back to it."""
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    bodies = []
    for i, line in enumerate(lines):
        jump = JUMP.match(line)
        if jump and labels.get(jump[1], i) < i:
            bodies.append(lines[labels[jump[1]] : i])
    return bodies


def spills(assembly: str) -> dict[str, list[str]]:
    """Vector stores to the stack in loops that multiply, by function."""
    found: dict[str, list[str]] = {}
    name, lines = "", []
    for raw in assembly.splitlines():
        line = raw.strip()
        start = FUNCTION.fullmatch(raw)
        if start:
            name, lines = start[1], []
        elif line.startswith(".cfi_endproc"):
            bodies = [b for b in loops(lines) if any(map(PRODUCT.match, b))]
            stores = [line for body in bodies for line in body if STORE.match(line)]
            if stores:
                found[name] = stores
        elif line and (line.endswith(":") or not line.startswith((".", "#"))):
            lines.append(line)
    return found


def test_the_search_finds_a_spill() -> None:
    body = ["f:", ".L1:", "vfmadd231ps %zmm1, %zmm2, %zmm3", "vmovaps %zmm3, -64(%rsp)", "jne .L1"]
    assert spills("\n".join([*body, ".cfi_endproc"])) == {"f": ["vmovaps %zmm3, -64(%rsp)"]}
    assert not spills("\n".join([*body[:-1], ".cfi_endproc"]))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="looks at x86 code")
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize(
    "file", ["matmul_exact", "matmul_exact_gemm", "matmul_int8_gemm", "matmul_numbers"]
)
def test_products_stay_in_registers(file: str, isa: str, tmp_path: Path) -> None:
    out = tmp_path / "out.s"
    subprocess.run(
        [
            *(str(COMPILER), "-std=c++20", "-O3", "-w", "-ffp-contract=off", "-fno-math-errno"),
            *("-fno-trapping-math", "-fPIC", *flags(isa)),
            *(f"-DMINFER_ISA={isa}", f"-DMINFER_ISA_{isa}"),
            *("-S", str(NATIVE / f"{file}.cpp"), "-o", str(out)),
        ],
        check=True,
    )
    assert not spills(out.read_text())
