"""Examples in the pages on kernels are executed; each kernel has a page, what pages name exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "kernels").glob("*.md"))
CUDA = ROOT / "src" / "minfer" / "backends" / "cuda"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_are_right(page: Path) -> None:
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=doctest.FAIL_FAST)
    assert failed == 0


def test_the_online_softmax_is_worked_by_hand() -> None:
    text = (ROOT / "docs" / "kernels" / "attention_prefill.md").read_text()
    for number in ("4.7920", "1.7629", "8.2916", "1.6462", "5.037"):
        assert number in text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_sources_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:ops|lib)/\w+\.cuh?)", page.read_text()):
        assert (CUDA / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("path", sorted(CUDA.glob("ops/*.cu")), ids=lambda p: p.name)
def test_every_kernel_has_a_page(path: Path) -> None:
    pages = "".join(page.read_text() for page in PAGES)
    assert re.search(rf"`(ops/)?{path.name}\b", pages), f"no page of docs/kernels names {path.name}"


@pytest.mark.parametrize("path", sorted(CUDA.glob("[!_]*.py")), ids=lambda p: p.name)
def test_every_file_of_the_host_side_has_its_job_told(path: Path) -> None:
    table = (ROOT / "docs" / "cuda.md").read_text().split("## Who does what")[1].split("\n## ")[0]
    assert f"`{path.name}`" in table or f"/{path.name}`" in table
