"""`minfer bench` on a tiny model: forms, misuse, interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import path_of

from minfer.cli.app import call
from minfer.llm import Notice, make_engine

MODEL = str(path_of("llama"))
SMALL = ("-p", "16", "-n", "2", "-r", "2", "--device", "cpu", "-t", "2")


def test_a_table_and_rows_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["bench", MODEL, *SMALL, "-oe", "jsonl"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("|")[6].strip() for line in out.splitlines()[2:4]] == ["pp16", "tg2"]
    rows = [json.loads(line) for line in err.splitlines()]
    assert [(r["n_prompt"], r["n_gen"]) for r in rows] == [(16, 0), (0, 2)]
    assert all(len(r["samples_ns"]) == 2 for r in rows)


def test_lists_make_rows(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("-p", "8-16+8", "-n", "0", "-ctk", "f16,f32", "-ub", "8", "-r", "1", "-o", "json")
    assert call(["bench", MODEL, *options, "--device", "cpu", "-t", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["type_k"], r["type_v"], r["n_prompt"]) for r in rows] == [
        *(("f16", "f16", 8), ("f16", "f16", 16), ("f32", "f32", 8), ("f32", "f32", 16))
    ]
    assert {r["n_ubatch"] for r in rows} == {8}
    assert {r["model_type"] for r in rows} == {"llama 1M F16"}


@pytest.mark.parametrize("words", ["bench -p 8 -n 0 -r 1 -ub 4,8", "perplexity -c 16 -f TEXT"])
def test_what_a_user_should_know_is_told_once(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*args: Any, **sizes: Any) -> Any:
        engine, config, notices = make_engine(*args, **sizes)
        return engine, config, [*notices, Notice("2 of 28 blocks fit"), Notice("no GPU", True)]

    monkeypatch.setattr("minfer.measure.bench.make_engine", made)
    text = tmp_path / "text"
    text.write_text("One text, which is long enough for a chunk or two of it. " * 4)
    command, *options = words.replace("TEXT", str(text)).split()
    assert call([command, MODEL, *options, "--device", "cpu"]) == 0
    assert capsys.readouterr().err == "note: 2 of 28 blocks fit\n"


def test_ops_floor_and_chart(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["bench", MODEL, *SMALL, "--floor", "--ops", "--chart"]) == 0
    out = capsys.readouterr().out
    assert "of floor" in out
    assert "a step of tg2" in out
    assert "matmul f16" in out
    assert "█" in out


def test_a_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "speed.svg"
    assert call(["bench", MODEL, *SMALL, "-d", "0,16", "-o", "csv", "--plot", str(path)]) == 0
    assert "tokens a second" in path.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "x"], "[-p] value 'x' is neither a number nor a range"),
        (["-pg", "5"], "[-pg] value '5' is not a pair"),
        (["-p", "0", "-n", "0"], "there is nothing to time"),
        (["-r", "0"], "-r: value 0 is less than 1"),
        (["-ctk", "f16", "-ctv", "f32"], "minfer stores both in one type"),
        (["-ctk", "q4_0"], "none of f32, f16, q8_0"),
        (["-ctk", "f16", "-ctv", "f16,f32"], "2 types of V for 1 of K"),
        (["--plot", "x.pdf"], "ends in none of .png, .svg"),
        (["-o", "xml"], "jsonl"),
    ],
)
def test_misuse_is_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert call(["bench", MODEL, "--device", "cpu", *options]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


def test_what_was_measured_before_ctrl_c_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from minfer.measure import bench

    real = bench.time_case

    def interrupted(model, setup, test, *rest):  # type: ignore[no-untyped-def]
        if test.n_gen:
            raise KeyboardInterrupt
        return real(model, setup, test, *rest)

    monkeypatch.setattr(bench, "time_case", interrupted)
    assert call(["bench", MODEL, *SMALL, "-o", "json"]) == 130
    (row,) = json.loads(capsys.readouterr().out)
    assert row["n_prompt"] == 16
