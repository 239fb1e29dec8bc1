"""A stand-in for `LLM` that answers from a list, so that the command line is tested alone.

Run as a script, this file is `minfer` with the stand-in, which answers without end.
"""

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import minfer.llm
from minfer.engine import Choice
from minfer.llm import Notice, Piece, Usage

USAGE = Usage(
    prompt_tokens=14,
    completion_tokens=9,
    cached_tokens=4,
    prompt_seconds=0.1,
    decode_seconds=0.05,
)


@dataclass
class FakeLLM:
    """Answers each request with the next of `answers`; remembers everything it was asked."""

    model: str = "fake"
    options: dict[str, Any] = field(default_factory=dict)
    answers: Iterator[list[str]] = field(default_factory=lambda: itertools.repeat(["Par", "is."]))
    asked: list[tuple[Any, Any, dict[str, bool]]] = field(default_factory=list)
    closed: bool = False
    load_seconds: float = 0.25
    n_ctx: int = 4096
    info: Any = field(
        default_factory=lambda: types.SimpleNamespace(
            name="Fake 1B", backends=("cpu",), n_ctx_train=4096
        )
    )
    template: Any = field(default_factory=lambda: types.SimpleNamespace(is_default=False))
    notices: list[Notice] = field(default_factory=list)
    error: Exception | None = None
    sessions: dict[Path, list[dict[str, Any]]] = field(default_factory=dict)

    def stream(self, prompt: Any, params: Any, **options: bool) -> Iterator[Piece]:
        """The next answer, in pieces of a token each."""
        self.asked.append((prompt, params, options))
        for text in next(self.answers):
            yield Piece(text, Choice(0, 0.0))
        yield Piece("", None, "stop", USAGE)

    def save_session(self, path: Path, messages: list[dict[str, Any]]) -> None:
        """Keep a conversation."""
        self.sessions[path] = list(messages)
        path.write_text("saved")

    def load_session(self, path: Path) -> list[dict[str, Any]]:
        """Give it back."""
        return list(self.sessions[path])

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def replaced(llm: FakeLLM) -> Callable[..., FakeLLM]:
    """What to put in the place of `minfer.llm.LLM`, so that it answers `llm`."""

    def make(model: str, **options: Any) -> FakeLLM:
        llm.model, llm.options = model, options
        if llm.error is not None:
            raise llm.error
        return llm

    return make


def _endless() -> Iterator[list[str]]:
    class Pieces(list[str]):
        def __iter__(self) -> Iterator[str]:
            while True:
                time.sleep(0.01)
                yield "and so on\n"

    yield Pieces()


if __name__ == "__main__":
    from minfer.cli import main

    minfer.llm.LLM = replaced(FakeLLM(answers=_endless()))  # type: ignore[misc, assignment]
    main()
