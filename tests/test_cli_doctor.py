"""`minfer doctor` says what is there, and never fails for what is not."""

import importlib.util

import pytest

from minfer.backends import cuda
from minfer.cli.app import call


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"driver": "missing: no NVIDIA driver. Install one"}
    monkeypatch.setattr(cuda, "doctor", lambda settings: missing)


def test_every_part_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINFER_THREADS", "3")
    assert call(["doctor"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["settings"] == "threads=3"
    assert rows["pip"] == "found"
    assert rows["driver"].startswith("missing: no NVIDIA driver")
    assert " may be used" in rows["CPUs"]


def test_a_missing_pip_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert call(["doctor"]) == 0
    assert "ensurepip" in capsys.readouterr().out
