"""How commands end, in processes of their own where signals and pipes matter."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from minfer.cli import report
from minfer.errors import HubError, SettingsError

DRIVER = str(Path(__file__).parent / "fake_llm.py")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, DRIVER, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_a_generation_and_shows_the_figures() -> None:
    process = start("run", "m", "p")
    assert process.stdout is not None
    assert process.stdout.readline() == "and so on\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.startswith("interrupted | generated ")
    assert "t/s | loaded in 0.25 s" in err
    assert "Traceback" not in err
    assert out == "and so on\n" * out.count("\n")


def test_a_broken_pipe_is_quiet() -> None:
    with start("run", "m", "p") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == ""


def raising(error: BaseException) -> object:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (HubError("is gone", where="x", remedy="Find it"), 1, "error: [x] is gone. Find it\n"),
        (HubError("has\ntwo lines"), 1, "error: has two lines\n"),
        (SettingsError("is bad", where="MINFER_X"), 2, "error: [MINFER_X] is bad\n"),
        (typer.BadParameter("no", param_hint="--x"), 2, "error: Invalid value for --x: no.\n"),
        (FileNotFoundError(2, "No such file", "y"), 1, "error: [Errno 2] No such file: 'y'\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
        (typer.Abort(), 130, "\ninterrupted\n"),
        (typer.Exit(7), 7, ""),
        (
            ZeroDivisionError("oops"),
            1,
            "error: ZeroDivisionError: oops. This is a defect of minfer; run again with --debug "
            "and report what it prints\n",
        ),
    ],
)
def test_an_error_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    assert report.ending(raising(error), debug=False) == code  # type: ignore[arg-type]
    assert capsys.readouterr().err == message


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = raising(HubError("is gone"))
    assert report.ending(failing, debug=True) == 1  # type: ignore[arg-type]
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("MINFER_DEBUG", "1")
    assert report.ending(failing, debug=False) == 1  # type: ignore[arg-type]
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("MINFER_DEBUG", "perhaps")
    assert report.ending(failing, debug=False) == 1  # type: ignore[arg-type]
    assert "Traceback" not in capsys.readouterr().err


def test_a_code_is_passed_on() -> None:
    assert report.ending(lambda: None, debug=False) == 0
    assert report.ending(lambda: 5, debug=False) == 5


def test_the_table_of_codes_is_the_truth() -> None:
    assert report.__doc__ is not None
    codes = (report.FAILED, report.MISUSED, report.INTERRUPTED, report.BROKEN_PIPE)
    assert all(f"| {code} |" in report.__doc__ for code in (0, *codes))
