"""The command line with a real, tiny model on the reference backend: nothing is played here."""

import io
import json
import sys
from pathlib import Path

import pytest

from minfer.cli.app import call

MODEL = str(Path(__file__).parent / "data" / "models" / "tiny-qwen2.gguf")
HOW = ("--device", "reference", "--greedy", "-n", "4")


def test_run_streams_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", MODEL, "Once upon a time", "--no-template", *HOW]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "generated 4 tokens" in err
    assert "cut off by -n or the context" in err
    assert err.endswith(" s on reference\n")


def test_the_same_prompt_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for _ in range(2):
        assert call(["run", MODEL, "Hello", "--json", *HOW]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["text"] == answers[1]["text"]
    assert answers[0]["usage"]["completion_tokens"] == 4
    assert answers[0]["finish_reason"] == "length"


def test_a_session_continues_without_prefilling_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = ("--session", str(tmp_path / "s.minfer"))
    long = "word " * 100
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{long}\n"))
    assert call(["chat", MODEL, *HOW, *session]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("more\n/stats\n"))
    assert call(["chat", MODEL, *HOW, *session]) == 0
    figures = capsys.readouterr().err.splitlines()[-1]
    cached = int(figures.split(" + ")[1].split()[0])
    assert cached >= 64, figures
    with (tmp_path / "s.minfer").open("r+b") as file:
        file.seek(200)
        file.write(b"\0\0\0\0")
    assert call(["chat", MODEL, *HOW, *session]) == 1
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(("form", "start"), [("txt", "%0"), ("dot", "digraph"), ("json", "{")])
def test_plans_and_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, start: str
) -> None:
    device = ("--device", "reference")
    assert call(["plan", MODEL, *device, "--format", form]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(start)
    assert "@reference" in printed
    path = tmp_path / f"graph.{form}"
    assert call(["run", MODEL, "Hello", *HOW, "--dump-graph", str(path)]) == 0
    assert "@reference" in path.read_text()


def test_a_graph_for_no_folder_is_refused_before_loading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["run", MODEL, "Hello", *HOW, "--dump-graph", "no/such/folder/g.dot"]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_context_beyond_the_trained_one_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", MODEL, "Hello", *HOW, "-c", "100000"]) == 0
    assert capsys.readouterr().err.startswith("note: a context of 100000 tokens is more than")


def test_a_prompt_too_long_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", MODEL, "word " * 200, *HOW, "-c", "64"]) == 1
    assert "the context holds 64" in capsys.readouterr().err


def test_info_of_a_real_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["info", MODEL]) == 0
    assert "qwen2.block_count" in capsys.readouterr().out
