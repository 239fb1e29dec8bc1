"""`minfer perplexity` and `minfer fidelity` on a tiny model: rows, saved bases, misuse, Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tiny_models import path_of

from minfer import measure
from minfer.cli.app import call

MODEL = str(path_of("llama"))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    return str(path)


def test_perplexity(capsys: pytest.CaptureFixture[str], text: str) -> None:
    options = ("-f", text, "-c", "32", "--chunks", "2", "--device", "reference")
    assert call(["perplexity", MODEL, *options]) == 0
    assert "over 2 of 2 chunks of 32 tokens (30 predictions)" in capsys.readouterr().out
    found = []
    for path in ([], ["--decode"]):
        assert call(["perplexity", MODEL, *options, "--json", *path]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["perplexity"] == pytest.approx(found[1]["perplexity"], rel=0.02)


def test_a_table_of_caches_and_paths(
    capsys: pytest.CaptureFixture[str], text: str, tmp_path: Path
) -> None:
    base = str(tmp_path / "base")
    options = ("--device", "cpu", "-ctk", "f16,q8_0", "--path", "prefill,decode")
    cut = ("-f", text, "-c", "32", "--chunks", "2")
    assert call(["fidelity", MODEL, *cut, *options, "--save-base", base]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("base: llama 1M F16 on reference, f32 cache; 30 positions in 2 chunks")
    assert [line.split()[4:6] for line in out.splitlines()[3:]] == [
        *(["f16", "prefill"], ["f16", "decode"], ["q8_0", "prefill"], ["q8_0", "decode"])
    ]
    assert f"saved 2 chunks in {base}" in err
    assert call(["fidelity", MODEL, "--base", base, *options, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["positions"] for r in rows] == [30] * 4
    assert rows[0]["mean_kl"] < rows[2]["mean_kl"] < 0.2
    assert rows[0]["same_best"] > 0.95


def test_a_plot_of_percentiles(text: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "kl.svg"
    cut = ("-f", text, "-c", "32", "--chunks", "1", "--device", "cpu")
    assert call(["fidelity", MODEL, *cut, "--plot", str(path)]) == 0
    assert "percent of positions" in path.read_text()


def test_ctrl_c_keeps_the_chunks_that_are_done(
    capsys: pytest.CaptureFixture[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measure.compare

    def interrupted(*arguments: Any, **options: Any) -> Iterator[measure.Distances]:
        yield next(iter(real(*arguments, **options)))
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "compare", interrupted)
    cut = ("-f", text, "-c", "32", "--chunks", "3", "--device", "reference")
    assert call(["fidelity", MODEL, *cut]) == 130
    assert "(1 of 3 chunks)" in capsys.readouterr().out


@pytest.mark.parametrize("n_done", [0, 2])
def test_ctrl_c_in_the_base_run_compares_the_chunks_it_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, n_done: int
) -> None:
    real = measure.record_base

    def interrupted(*arguments: Any, **options: Any) -> Iterator[measure.Base]:
        yield from islice(real(*arguments, **options), n_done)
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "record_base", interrupted)
    cut = ("-f", text, "-c", "32", "--chunks", "3", "--device", "reference")
    assert call(["fidelity", MODEL, *cut]) == 130
    told = capsys.readouterr()
    if n_done:
        assert "30 positions in 2 chunks" in told.out
        assert len(told.out.splitlines()) == 4
        assert "interrupted: comparing 2 chunks" in told.err
    else:
        assert told.out == ""
        assert "interrupted before a chunk was compared" in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["perplexity", MODEL], "a text is needed"),
        (["perplexity", MODEL, "-f", "no/such"], "[no/such] cannot be read"),
        (["perplexity", MODEL, "-f", MODEL], "is not UTF-8"),
        (["perplexity", MODEL, "-f", "TEXT", "--chunks", "0"], "value 0 is no count"),
        (["perplexity", MODEL, "-f", "TEXT", "-c", "4096"], "Give a longer text"),
        (["fidelity", MODEL, "-f", "TEXT", "--device", "gpu"], "value 'gpu' is none of auto"),
        (["fidelity", MODEL, "-f", "TEXT", "-ctk", "q4_0"], "value 'q4_0' is none of f32"),
        (["fidelity", MODEL, "-f", "TEXT", "--path", "x"], "value 'x' is none of prefill"),
        (["fidelity", MODEL, "-f", "TEXT", "--plot", "x.gif"], "none of .png, .svg"),
    ],
)
def test_misuse_is_one_line(
    capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], message: str
) -> None:
    assert call([text if a == "TEXT" else a for a in arguments]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
