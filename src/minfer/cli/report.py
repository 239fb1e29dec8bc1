"""How a command ends: one line on stderr and an exit code, whatever went wrong.

| code | meaning |
|---|---|
| 0 | done |
| 1 | an error, told in one line |
| 2 | the command itself is wrong: an unknown option, a value out of range, a bad `MINFER_*` |
| 130 | interrupted with Ctrl-C |
| 141 | whoever read the output went away |
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from minfer.errors import MinferError, SettingsError
from minfer.settings import Settings

FAILED, MISUSED, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

# typer carries its own copy of click in new versions and imports click in older ones, so the
# bases of its public exceptions are the one way to name them that holds for all.
_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
_CLI_ERROR: type[Any] = typer.BadParameter.__mro__[2]


def ending(command: Callable[[], int | None], *, debug: bool) -> int:
    """Run a command and answer its exit code.

    Args:
        command: answers its exit code, or None for 0.
        debug: show tracebacks.
    """
    try:
        return command() or 0
    except (KeyboardInterrupt, typer.Abort):
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except typer.Exit as end:
        return end.exit_code
    except Exception as error:
        if debug or _debug_setting():
            traceback.print_exc()
        return _tell(error)


def leave(code: int) -> NoReturn:
    """End the process now, with all that was written but without taking the interpreter apart.

    For a server: taking it apart is nearly all of the work between its last answer and its end,
    0.2 s of a core, which takes seconds where others keep the cores busy. It also would wait for a
    model that is still being loaded.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody is there to be told
            stream.flush()
    os._exit(code)


def piped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, ending quietly when whoever reads its output has gone."""

    @functools.wraps(verb)
    def call(*arguments: Any, **options: Any) -> None:
        try:
            verb(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is left in the buffer has no reader; give it one before the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None

    return call


def _tell(error: Exception) -> int:
    if isinstance(error, _CLI_ERROR):
        context = getattr(error, "ctx", None)
        verb = f" See {context.command_path} --help" if context is not None else ""
        # new versions of typer hand on the prefix of the library that checks values for them
        message = " ".join(error.format_message().split()).replace(": Value error, ", ": ")
        print(f"error: {message.rstrip('.')}.{verb}", file=sys.stderr)
        return MISUSED if isinstance(error, _USAGE_ERROR) else FAILED
    if isinstance(error, MinferError):
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return MISUSED if isinstance(error, SettingsError) else FAILED
    if isinstance(error, OSError):
        print("error:", error, file=sys.stderr)
        return FAILED
    print(
        f"error: {type(error).__name__}: {error}. This is a defect of minfer; "
        "run again with --debug and report what it prints",
        file=sys.stderr,
    )
    return FAILED


def _debug_setting() -> bool:
    try:
        return Settings.load().debug
    except SettingsError:
        return False
