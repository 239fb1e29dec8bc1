"""What reaches the screen: safe text, aligned tables, sizes for people."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.cli.terminal import Output, in_bytes, in_short, progress_bar, table


class Screen(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii", write_through=True)

    def isatty(self) -> bool:
        return True

    def shown(self) -> bytes:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue()


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    output = Output()
    output.write("a\x1b[2J\x07b\tc\r\x9bd\ngrün")
    assert screen.shown().decode() == "a[2Jb\tcd\ngrün"


def test_a_pipe_gets_every_character(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output()
    output.write("a\x1b[2J")
    output.end_line()
    output.end_line()
    assert capsys.readouterr().out == "a\x1b[2J\n"


def test_progress_is_drawn_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_bar() as progress:
        assert progress is None
    screen = Screen()
    screen.reconfigure(encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as progress:
        assert progress is not None
        progress("smollm2", 0, None)
        progress("smollm2", 50, 100)
        progress("smollm2", 100, 100)
    assert b"smollm2" in screen.shown()


@given(st.lists(st.tuples(*[st.text("abc", max_size=5)] * 3), min_size=1))
def test_columns_are_aligned(rows: list[tuple[str, str, str]]) -> None:
    lines = table(rows).split("\n")
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for line, row in zip(lines, rows, strict=True):
        assert line[: widths[0]].rstrip() == row[0]
        assert line[widths[0] + 2 :][: widths[1]].rstrip() == row[1]
        assert line.endswith(row[2])


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (98_362_432, "93.8 MiB")],
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert in_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999"), (134_515_008, "134.5 M"), (7e9, "7.0 B")]
)
def test_counts(count: int, text: str) -> None:
    assert in_short(count) == text
