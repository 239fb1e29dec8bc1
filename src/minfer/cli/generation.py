"""One generation on the screen: the streamed text, Ctrl-C, and the line of figures."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any

from minfer.cli.terminal import Output

if TYPE_CHECKING:
    from minfer.engine import SamplingParams
    from minfer.llm import LLM, Usage

Message = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a generation.

    Attributes:
        text: all that was streamed.
        finish_reason: the engine's, or ``interrupted``.
        usage: the engine's count; None for an interrupted generation.
        n_tokens, seconds: tokens streamed and the time they took, by this side's clock.
    """

    text: str
    finish_reason: str
    usage: Usage | None
    n_tokens: int
    seconds: float

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.finish_reason == "interrupted"

    def figures(self) -> str:
        """Tokens and tokens a second, of the prompt and of the answer."""
        usage = self.usage
        if usage is None:
            rate = self.n_tokens / self.seconds if self.seconds > 0 else 0.0
            return f"interrupted | generated {_count(self.n_tokens, rate)}"
        computed = _count(usage.prompt_tokens - usage.cached_tokens, usage.prompt_rate)
        cached = f" + {usage.cached_tokens} cached" if usage.cached_tokens else ""
        generated = _count(usage.completion_tokens, usage.decode_rate)
        cut = ", cut off by -n or the context" if self.finish_reason == "length" else ""
        return f"prompt {computed}{cached} | generated {generated}{cut}"


def generate(
    llm: LLM,
    prompt: str | list[Message],
    params: SamplingParams,
    output: Output | None,
    *,
    chat: bool = False,
    reuse_decoded: bool = False,
) -> Outcome:
    """Stream a generation to `output`, if any; Ctrl-C ends it and keeps what is there.

    Raises:
        KeyboardInterrupt: at the second Ctrl-C, which does not wait for the step to end.
    """
    text, n_tokens = [], 0
    finish_reason, usage = "interrupted", None
    start = time.perf_counter()
    with _ctrl_c() as stop:
        # Dropping the iterator, as the end of this function does, cancels the request.
        for piece in llm.stream(prompt, params, chat=chat, reuse_decoded=reuse_decoded):
            if output is not None:
                output.write(piece.text)
            text.append(piece.text)
            n_tokens += piece.choice is not None
            if piece.finish_reason is not None:
                finish_reason, usage = piece.finish_reason, piece.usage
            elif stop.is_set():
                break
    seconds = time.perf_counter() - start
    if output is not None:
        output.end_line()
    return Outcome("".join(text), finish_reason, usage, n_tokens, seconds)


@contextmanager
def _ctrl_c() -> Iterator[Event]:
    """An event that the first Ctrl-C sets, so that no step is torn apart; the second raises."""
    stop = Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _count(n_tokens: int, rate: float) -> str:
    at = f" at {rate:.1f} t/s" if rate > 0 else ""
    return f"{n_tokens} token{'' if n_tokens == 1 else 's'}{at}"
