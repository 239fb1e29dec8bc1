"""Freed memory goes back to the system."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from minfer.llm.heap import give_back


def resident_mib() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to")
def test_pieces_under_one_that_stays_are_given_back() -> None:
    pieces = [bytes(1000) for _ in range(100_000)]
    last = bytes(1000)  # above them, so that the heap cannot shrink from its end
    full = resident_mib()
    pieces.clear()
    give_back()
    assert resident_mib() < full - 60
    assert len(last) == 1000
