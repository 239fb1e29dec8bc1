"""Turns read from a pipe: lines, continued lines, quoted blocks."""

import io
import sys

import pytest

from minfer.cli.prompt import Prompt


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        ("", []),
        ("one\ntwo", ["one", "two"]),
        ("one\r\n\n", ["one", ""]),
        ("a\\\nb\\\nc\nd\n", ["a\nb\nc", "d"]),
        ("a\\\n", ["a\n"]),
        ('"""\na\n\nb\n"""\nc\n', ["a\n\nb", "c"]),
        ('"""a\nb"""\n', ["a\nb"]),
        ('"""a"""\n', ["a"]),
        ('"""never\nclosed\n', ["never\nclosed"]),
    ],
)
def test_turns(monkeypatch: pytest.MonkeyPatch, content: str, turns: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(content))
    prompt = Prompt()
    assert not prompt.is_terminal
    assert list(iter(prompt.read, None)) == turns
    assert prompt.read() is None


def test_a_terminal_goes_on_after_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = Prompt()
    prompt.is_terminal = True
    events = iter([KeyboardInterrupt, "hello", EOFError])

    def answer(mark: str) -> str:
        event = next(events)
        if isinstance(event, str):
            return event
        raise event

    monkeypatch.setattr("builtins.input", answer)
    assert prompt.read() == "hello"
    assert "Ctrl-D or /exit" in capsys.readouterr().err
    assert prompt.read() is None
