"""No hot loop of a CPU kernel keeps vector registers on the stack: a spill halves its speed.

The judge is the object code: an innermost loop that multiplies and adds vectors stores none to the
stack, but for one in fifty instructions (a constant of an exponential that found no register).
Compilers do it without a word when a tile is one register too large.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minfer.backends.cpu import _native

PRODUCTS = re.compile(r"^(vfn?madd|vdp|vpdp|vpmadd)")
VECTOR_TO_STACK = re.compile(r"^%[yz]mm\d+,[^,%]*\(%rsp\)$")
SMALLEST = 8  # products that make a loop hot
ALLOWED = 50  # instructions for each that may spill


LONGEST = 4000  # instructions of a loop

Line = tuple[int, str, str]


def instructions(library: Path) -> list[Line]:
    """Address, instruction and operands of all code; the names of functions are stripped."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = []
    for line in text.splitlines():
        if line.startswith(" "):
            address, _, rest = line.strip().partition(":\t")
            instruction, _, operands = rest.strip().partition(" ")
            lines.append((int(address, 16), instruction, operands.strip()))
    return lines


def hot_loops(code: list[Line]) -> Iterator[list[Line]]:
    """The innermost loops with many products."""
    index = {address: i for i, (address, _, _) in enumerate(code)}
    starts: list[tuple[int, int]] = []  # (end, start) of the loops so far
    for end, (_, instruction, operands) in enumerate(code):
        target = re.match(r"[0-9a-f]+", operands) if instruction.startswith("j") else None
        start = index.get(int(target[0], 16), end + 1) if target else end + 1
        if not end - LONGEST < start <= end:
            continue
        inner = False
        for e, s in reversed(starts):
            if e < start:
                break
            inner = inner or s >= start
        starts.append((end, start))
        body = code[start : end + 1]
        if not inner and sum(bool(PRODUCTS.match(i)) for _, i, _ in body) >= SMALLEST:
            yield body


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.skipif("avx2" not in _native.available_isas(), reason="no vector kernels here")
def test_hot_loops_keep_their_registers() -> None:
    n_loops = 0
    found: list[str] = []
    for body in hot_loops(instructions(Path(str(_native.__file__)))):
        n_loops += 1
        lines = [
            f"  {address:x}: {instruction} {operands}"
            for address, instruction, operands in body
            if VECTOR_TO_STACK.search(operands)
        ]
        if len(lines) * ALLOWED > len(body):
            found += [f"loop of {len(body)} instructions at {body[0][0]:x}", *lines]
    assert n_loops > 50
    assert not found, "\n".join(found)
