"""`minfer chat` against a stand-in for the model, driven through a pipe."""

import io
import signal
import sys
from pathlib import Path

import pytest
from fake_llm import FakeLLM, replaced

from minfer.cli.app import call
from minfer.cli.chat import HELP
from minfer.errors import ContextFullError


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM(answers=iter([["first"], ["second"], ["third"], ["fourth"]]))
    monkeypatch.setattr("minfer.llm.LLM", replaced(fake))
    return fake


def talk(monkeypatch: pytest.MonkeyPatch, lines: str, *options: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert call(["chat", "fake", *options]) == 0


def turns(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


SYSTEM = [{"role": "system", "content": "Be brief."}]


def asked(llm: FakeLLM) -> list[object]:
    return [prompt for prompt, _, _ in llm.asked]


def test_a_conversation_grows(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(monkeypatch, "hello\n\nmore\n")
    assert asked(llm) == [turns("hello"), turns("hello", "first", "more")]
    assert capsys.readouterr() == ("first\nsecond\n", "")
    assert llm.closed


def test_a_turn_reuses_the_tokens_of_the_last_answer(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(monkeypatch, "hello\n")
    assert llm.asked[0][2]["reuse_decoded"] is True


def test_exit_leaves(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(monkeypatch, "/exit\nhello\n")
    assert llm.asked == []


def test_clear_keeps_the_system_message(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(monkeypatch, "hello\n/clear\nagain\n", "--system", "Be brief.")
    assert asked(llm) == [SYSTEM + turns("hello"), SYSTEM + turns("again")]


def test_regen_asks_again(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(monkeypatch, "/regen\nhello\n/regen\nmore\n")
    assert asked(llm) == [turns("hello"), turns("hello"), turns("hello", "second", "more")]


def test_system_is_set_shown_and_replaced(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(monkeypatch, "/system\n/system Be long.\n/system Be brief.\n/system\nhello\n")
    assert asked(llm) == [SYSTEM + turns("hello")]
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "no system message",
        "the system message is set",
        "the system message is set",
        "Be brief.",
    ]


def test_stats_help_and_unknown_commands(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(monkeypatch, "/stats\nhello\n/stats\n/help\n/nonsense\n")
    err = capsys.readouterr().err
    assert err.startswith("nothing was generated yet\nprompt 10 tokens at 100.0 t/s + 4 cached")
    assert all(f"/{name} " in err for name in HELP)
    assert "no command /nonsense; there are /exit, /clear" in err


def test_a_session_is_saved_and_taken_up(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "session"
    talk(monkeypatch, "hello\n", "--session", str(path))
    assert llm.sessions == {path: turns("hello", "first")}
    talk(monkeypatch, "more\n", "--session", str(path))
    assert asked(llm)[-1] == turns("hello", "first", "more")
    assert llm.sessions == {path: turns("hello", "first", "more", "second")}


def test_a_turn_that_does_not_fit_ends_the_turn_alone(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(list[str]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            raise ContextFullError(9, 8)

    llm.answers = iter([Full(), ["whole"]])
    talk(monkeypatch, "much too long\nhello\n")
    assert asked(llm)[-1] == turns("hello")
    assert "error: [prompt] the prompt has 9 tokens" in capsys.readouterr().err


def test_a_session_in_no_folder_is_refused_at_once(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["chat", "fake", "--session", "no/such/folder/s"]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_said(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(list[str]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield "half an "
            signal.raise_signal(signal.SIGINT)
            yield "answer"
            yield " never shown"

    llm.answers = iter([Interrupted(), ["whole"]])
    talk(monkeypatch, "hello\nmore\n/stats\n")
    assert asked(llm)[-1] == turns("hello", "half an answer", "more")
    assert capsys.readouterr().out == "half an answer\nwhole\n"


def test_an_answer_without_text_is_a_turn_too(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.answers = iter([[], ["whole"]])
    talk(monkeypatch, "hello\nmore\n")
    assert asked(llm)[-1] == turns("hello", "", "more")
