"""The generated pages are those of the source."""

from pathlib import Path

import pytest

from minfer.cli.app import VERBS
from minfer.cli.docs import pages
from minfer.settings import PREFIX, ROWS

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("name", pages())
def test_a_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], (
        "run `python -m minfer.cli.docs`"
    )


def test_nothing_is_left_out() -> None:
    assert all(f"## minfer {verb}\n" in pages()["cli.md"] for verb in VERBS)
    assert all(f"`{PREFIX}{row.name.upper()}`" in pages()["settings.md"] for row in ROWS)
