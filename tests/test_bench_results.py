"""Rows of measurements: in the file at once, with the columns it has."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import results


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    return tmp_path / "results"


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_row_is_kept_before_the_next_is_measured(folder: Path) -> None:
    rows = results.Rows("some", "a device", ("us", "error"))
    rows.add({"us": 1.5})
    assert [(r["us"], r["error"], r["device"]) for r in read(folder / "some.csv")] == [
        ("1.5", "", "a device")
    ]
    rows.add({"us": 2, "error": "too hot"}, {"us": 3})
    assert [r["us"] for r in read(folder / "some.csv")] == ["1.5", "2", "3"]
    assert rows.all == [{"us": 1.5}, {"us": 2, "error": "too hot"}, {"us": 3}]


def test_nothing_measured_writes_nothing(folder: Path) -> None:
    results.Rows("some").add()
    assert not folder.exists()


def test_a_column_that_the_file_lacks_is_an_error(folder: Path) -> None:
    results.Rows("some").add({"us": 1})
    with pytest.raises(ValueError, match="watts"):
        results.Rows("some").add({"us": 1, "watts": 700})
    assert len(read(folder / "some.csv")) == 1
