"""From what the engine says of a request to what its caller reads: text, stop strings, usage."""

from __future__ import annotations

from time import perf_counter

from minfer.engine import Event
from minfer.engine import Sequence as Run
from minfer.llm.results import Piece, Usage
from minfer.text import TextStream


class PieceMaker:
    """Makes the pieces of one request from its events, in their order.

    A stop string is found here and not in the engine, which knows no text: whoever drives the
    engine cancels the request of a piece that ends with `stop` set.
    """

    def __init__(self, text: TextStream) -> None:
        self._text = text
        self._n_tokens = 0

    def piece(self, run: Run, event: Event) -> Piece:
        """The text an event brings, and the end of the stream if it is one."""
        choice, reason = event.choice, event.finish_reason
        text = ""
        if choice is not None:
            self._n_tokens += 1
            if reason != "stop":
                text = self._text.push(choice.token)
        if reason is not None and self._text.stopped is None:
            text += self._text.finish()
        if self._text.stopped is not None:
            reason = "stop"
        if reason is None:
            return Piece(text, choice)
        return Piece(text, choice, reason, self._usage(run), self._text.stopped)

    def _usage(self, run: Run) -> Usage:
        end = run.ended or perf_counter()
        first = run.first_token or end
        started = run.started or first
        return Usage(
            prompt_tokens=run.n_prompt,
            completion_tokens=self._n_tokens,
            cached_tokens=run.n_cached,
            prompt_seconds=first - started,
            decode_seconds=end - first,
        )
