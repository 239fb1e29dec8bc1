"""`minfer run` against a stand-in for the model."""

import io
import json
import sys
from pathlib import Path

import pytest
from fake_llm import FakeLLM, replaced

from minfer.cli.app import call
from minfer.engine import SamplingParams
from minfer.llm import Notice

CHAT = {"chat": True, "reuse_decoded": False}


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr("minfer.llm.LLM", replaced(fake))
    return fake


def pipe_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_the_answer_is_on_stdout_and_the_figures_on_stderr(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["fake", "Capital of France?"]) == 0
    out, err = capsys.readouterr()
    assert out == "Paris.\n"
    assert err == (
        "prompt 10 tokens at 100.0 t/s + 4 cached | generated 9 tokens at 160.0 t/s "
        "| loaded in 0.25 s on cpu\n"
    )
    assert llm.asked == [("Capital of France?", SamplingParams(), CHAT)]
    assert llm.model == "fake"
    assert llm.closed


def test_what_makes_answers_slower_is_told_before_them(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.notices = [Notice("no GPU here", usual=True), Notice("2 of 28 blocks fit")]
    assert call(["run", "fake", "p"]) == 0
    assert capsys.readouterr().err.startswith("note: 2 of 28 blocks fit\nprompt ")


def test_an_answer_that_ends_its_line_gets_no_second(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.answers = iter([["Paris.\n"]])
    call(["fake", "p"])
    assert capsys.readouterr().out == "Paris.\n"


def test_options_reach_the_model_and_the_request(llm: FakeLLM) -> None:
    words = "-n 3 --temp 0.5 --seed 9 --stop X -ngl 5 -t 2 -c 512 --cache-type q8_0 --device cpu"
    assert call(["run", *words.split(), "fake", "p", "--trace", "t.json"]) == 0
    params = SamplingParams(max_tokens=3, temperature=0.5, seed=9, stop=("X",))
    assert llm.asked == [("p", params, CHAT)]
    settings = llm.options.pop("settings")
    assert settings.trace == Path("t.json")
    assert llm.options == {
        "device": "cpu",
        "n_ctx": 512,
        "cache_type": "q8_0",
        "threads": 2,
        "gpu_layers": "5",
        "progress": None,
    }


def test_what_is_not_given_is_left_to_the_settings(llm: FakeLLM) -> None:
    call(["run", "fake", "p"])
    assert set(llm.options) == {"settings", "progress"}


def test_a_system_message(llm: FakeLLM) -> None:
    call(["run", "fake", "p", "-sys", "Be brief."])
    assert llm.asked[0][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "p"},
    ]


def test_without_a_template_the_text_goes_on(llm: FakeLLM) -> None:
    call(["run", "fake", "Once", "--no-template"])
    llm.template.is_default = True
    call(["run", "fake", "Once"])
    assert [options["chat"] for _, _, options in llm.asked] == [False, False]


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        (b"one line\n", "one line"),
        (b"two\nlines\n\n", "two\nlines\n"),
        ("grüße 🌍".encode(), "grüße 🌍"),
    ],
)
def test_the_prompt_may_be_piped_in(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, content: bytes, prompt: str
) -> None:
    pipe_in(monkeypatch, content)
    assert call(["fake"]) == 0
    assert llm.asked[0][0] == prompt


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "the prompt is empty"), (b"\xff", "is not UTF-8")]
)
def test_an_unusable_pipe_is_refused(
    llm: FakeLLM,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    message: str,
) -> None:
    pipe_in(monkeypatch, content)
    assert call(["fake"]) == 2
    assert message in capsys.readouterr().err


def test_a_terminal_without_a_prompt_is_told(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe_in(monkeypatch, b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert call(["fake"]) == 2
    assert "minfer chat" in capsys.readouterr().err


def test_json(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.answers = iter([["Grü", "ße"]])
    assert call(["run", "fake", "p", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["text"], answer["finish_reason"]) == (
        "Fake 1B",
        "Grüße",
        "stop",
    )
    assert answer["usage"]["completion_tokens"] == 9
