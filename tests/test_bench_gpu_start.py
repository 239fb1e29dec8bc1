"""The bench of starts: a row for each, in processes of their own."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import gpu_start, results
from bench_shapes import shrink

MODEL = "qwen2-7b-q4_k_m"


def test_a_run_writes_a_row_for_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, MODEL)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    words = ["gpu_start.py", "--models", MODEL, "--device", "cpu", "--starts", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--folder", str(tmp_path)])
    gpu_start.main()
    with (tmp_path / "gpu_start.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["start"] for row in rows] == ["first", "later"]
    for row in rows:
        parts = [float(row[f"{part}_seconds"]) for part in ("driver", "load", "tokens")]
        assert min(parts) > 0
        assert sum(parts) < float(row["start_seconds"])
        assert row["kernels_compiled"] == "0"  # there are none to compile on a CPU


def test_compiled_kernels_are_counted(tmp_path: Path) -> None:
    assert gpu_start.n_kernels(tmp_path) == 0
    (tmp_path / "cubin").mkdir()
    (tmp_path / "cubin" / "a.cubin").touch()
    (tmp_path / "cubin" / "half-written").touch()
    assert gpu_start.n_kernels(tmp_path) == 1
