"""One generation on the screen: the streamed text, Ctrl-C, and the line of figures."""

from __future__ import annotations

import time
from dataclasses import dataclass
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
        n_pieces, seconds: pieces streamed and the time they took, by this side's clock.
    """

    text: str
    finish_reason: str
    usage: Usage | None
    n_pieces: int
    seconds: float

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.finish_reason == "interrupted"

    def figures(self) -> str:
        """Tokens and tokens a second, of the prompt and of the answer."""
        if self.usage is None:
            return f"interrupted after {_rate(self.n_pieces, self.seconds)}"
        fresh = self.usage.prompt_tokens - self.usage.cached_tokens
        cached = f" + {self.usage.cached_tokens} cached" if self.usage.cached_tokens else ""
        return (
            f"prompt {_rate(fresh, self.usage.prompt_seconds)}{cached}"
            f" | generated {_rate(self.usage.completion_tokens, self.usage.decode_seconds)}"
        )


def generate(
    llm: LLM,
    prompt: str | list[Message],
    params: SamplingParams,
    output: Output | None,
    *,
    chat: bool | None = None,
) -> Outcome:
    """Stream a generation to `output`, if any; Ctrl-C ends it and keeps what is there."""
    pieces: list[str] = []
    finish_reason, usage = "interrupted", None
    start = time.perf_counter()
    stream = llm.stream(prompt, params, chat=chat)
    try:
        for piece in stream:
            if output is not None:
                output.write(piece.text)
            pieces.append(piece.text)
            if piece.finish_reason is not None:
                finish_reason, usage = piece.finish_reason, piece.usage
    except KeyboardInterrupt:
        stream.close()  # frees the request's place in the batch
    seconds = time.perf_counter() - start
    if output is not None:
        output.end_line()
    return Outcome("".join(pieces), finish_reason, usage, len(pieces), seconds)


def _rate(n_tokens: int, seconds: float) -> str:
    rate = f" at {n_tokens / seconds:.1f} t/s" if seconds > 0 else ""
    return f"{n_tokens} token{'' if n_tokens == 1 else 's'}{rate}"
