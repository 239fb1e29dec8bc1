"""The bench of one GPU: works by name, the engines they need, switches, and rows of a small run."""

from __future__ import annotations

import csv
import sys
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import gpu, results, synthetic
from bench.engines import Minfer, switches
from bench_shapes import shrink

from minfer.engine import Engine
from minfer.settings import Settings

MODEL = "qwen2-7b-q4_k_m"
SETTINGS = Settings(device="cpu", threads=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the 7B is a model of two small layers, and no tiny model is checked."""
    shrink(monkeypatch, MODEL)
    monkeypatch.setattr(gpu, "TINY", tmp_path)
    monkeypatch.setattr(gpu, "N_CTX", 320)
    return tmp_path


@pytest.mark.parametrize(
    ("test", "sizes"),
    [
        ("pp512", (512, 0, 0, 1)),
        ("tg128", (0, 128, 0, 1)),
        ("tg64 x16", (0, 64, 0, 16)),
        ("tg64 @ d8192 x4", (0, 64, 8192, 4)),
    ],
)
def test_a_name_says_what_the_work_is(test: str, sizes: tuple[int, ...]) -> None:
    work = gpu.work(test)
    assert (work.prompt, work.generate, work.depth, work.batch) == sizes
    assert work.tokens == sizes[0] + sizes[1] * sizes[3]


@pytest.mark.parametrize("test", ["", "pp", "tg0", "pp512 x4", "pp512 @ d64", "tg 64", "tg64x4"])
def test_other_names_are_refused(test: str) -> None:
    with pytest.raises(ValueError, match="is no work"):
        gpu.work(test)


def test_named_tests_keep_what_is_known_of_them() -> None:
    assert gpu.chosen(MODEL, None) is gpu.WORKS[MODEL]
    decode, other = gpu.chosen(MODEL, "tg128, tg8 x2")
    assert decode in gpu.WORKS[MODEL] and decode.rival == 280
    assert other == gpu.work("tg8 x2")


def test_an_engine_has_no_more_context_than_its_works_need() -> None:
    groups = gpu.by_context(gpu.WORKS[MODEL])
    assert sorted(groups) == [gpu.N_CTX, 16384 + 128, 32768 + 128]
    assert [*chain(*groups.values())] == gpu.WORKS[MODEL]


def test_models_without_a_rival_are_measured_only_when_named() -> None:
    assert gpu.RIVALLED == ["qwen2-7b-q4_k_m", "qwen2-7b-q8_0", "qwen2-0.5b-mix"]
    assert set(gpu.WORKS) <= set(synthetic.MODELS)


def test_each_switch_is_measured_alone() -> None:
    names = [switches(variant) for variant in gpu.variants(Settings(gpu_mem=9), True)]
    assert names[0] == "MINFER_GPU_MEM=9"
    assert names[1] == "MINFER_GPU_MEM=9 MINFER_NO_CUDA_GRAPH=1"
    assert len(set(names)) == len(names) == 1 + len(gpu.SWITCHES)
    # one that is on anyway has nothing to compare
    assert len(gpu.variants(Settings(no_fuse_qkv=True), True)) == len(gpu.SWITCHES)
    assert gpu.variants(SETTINGS, False) == [SETTINGS]


def test_switches_read_as_the_environment_and_tell_no_secret() -> None:
    assert switches(Settings()) == ""
    private = Settings(device="cuda", api_keys="secret", cache_dir=Path("folder"))
    assert switches(private) == ""
    assert switches(Settings(no_fa_prefill=True, cache_type="q8_0")) == (
        "MINFER_CACHE_TYPE=q8_0 MINFER_NO_FA_PREFILL=1"
    )


def test_a_run_writes_a_row_for_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = (results.FOLDER / "gpu.csv").read_text().splitlines()[0]
    (folder / "gpu.csv").write_text(header + "\n")  # the real one has every column
    monkeypatch.setattr(results, "FOLDER", folder)
    monkeypatch.setenv("MINFER_THREADS", "2")
    words = ["gpu.py", "--switches", "--tests", "pp16,tg4 x2,pp200", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*words, "--runs", "1", "--folder", str(folder)])
    gpu.main()
    assert "tg4 x2" in capsys.readouterr().out
    with (folder / "gpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = {row["switches"] for row in rows}
    assert len(names) == 1 + len(gpu.SWITCHES) and "MINFER_THREADS=2" in names
    usual = [row for row in rows if row["switches"] == "MINFER_THREADS=2"]
    tests = [(row["test"], row["n_ctx"]) for row in usual]
    assert tests == [
        (test, n_ctx)
        for n_ctx, works in (("320", ("pp16", "tg4 x2")), ("328", ("pp200",)))
        for test in ("load", "prefill against decode", *works, "memory")
    ]
    assert not any(row["error"] for row in rows)
    for row in rows:
        if row["test"] in ("pp16", "tg4 x2", "pp200"):
            assert float(row["tokens_per_second"]) > 0
            assert bool(row["x_unswitched"]) == (row["switches"] != "MINFER_THREADS=2")
        if row["test"] == "memory":
            assert int(row["device_bytes"]) > int(row["kv_bytes"]) > 0
            assert 0.8 < float(row["x_file"]) < 2


def test_what_does_not_fit_is_a_row_with_the_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = synthetic.find(MODEL, folder)
    found = list(gpu.measured(path, SETTINGS, 320, [gpu.work("tg4"), gpu.work("pp400")], 1))
    assert [row["test"] for row in found][2:4] == ["tg4", "pp400"]
    assert "error" not in found[2] and "400" in str(found[3]["error"])


class Counting:
    """Stands in for the CUDA backend of an engine that runs elsewhere: seven kernels a step."""

    name = "cuda"

    def __init__(self, engine: Engine) -> None:
        self.graphs = True
        self._engine = engine

    def statistics(self) -> dict[str, int]:
        """Steps count only where graphs are off, as the real ones do."""
        steps = 0 if self.graphs else self._engine.counters.steps
        return {"eager": steps, "launches": 7 * steps}


def test_launches_are_counted_with_graphs_off(folder: Path) -> None:
    engine = Minfer(synthetic.find(MODEL, folder), SETTINGS, n_ctx=320, batch=2)
    assert engine.launches_a_step(lambda: engine.decode(3)) is None
    real, engine.backend = engine.backend, cast(Any, Counting(engine.engine))
    assert engine.launches_a_step(lambda: engine.decode(3, batch=2)) == 7
    assert engine.launches_a_step(lambda: engine.prefill([1, 2, 3])) == 7
    with pytest.raises(ZeroDivisionError):
        engine.launches_a_step(lambda: 1 / 0)
    assert cast(Any, engine.backend).graphs
    engine.backend = real
    engine.close()
