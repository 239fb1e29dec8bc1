"""The page of the GPU's figures is what its rows say."""

from __future__ import annotations

from pathlib import Path

from bench import figures

PAGE = Path(__file__).parent.parent / "docs" / "gpu_figures.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == figures.page(), "run python -m bench.figures > docs/gpu_figures.md"


def test_the_newest_row_of_a_work_counts() -> None:
    row = {"model": "m", "test": "pp512", "switches": "", "error": ""}
    old, new = row | {"tokens_per_second": "1"}, row | {"tokens_per_second": "2"}
    failed = row | {"tokens_per_second": "", "error": "it broke"}
    assert figures.speeds([old, new, failed]) == {("m", "pp512", ""): new}
