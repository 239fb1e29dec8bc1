"""One turn of a conversation as it is being said: its parts, its tokens, its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from minfer.engine import Choice
from minfer.llm import Piece, Usage
from minfer.text import Reply, ReplyParser


@dataclass
class Turn:
    """One choice of an answer, as far as it has come.

    Attributes:
        parser: tells its parts apart.
        reply: its parts.
        n_calls: calls begun, shown or not.
        choices: its tokens.
        n_reasoning: how many of them were reasoning.
        finish_reason: set at its end.
        usage: set at its end.
    """

    parser: ReplyParser
    reply: Reply = field(default_factory=Reply)
    n_calls: int = 0
    choices: list[Choice] = field(default_factory=list)
    n_reasoning: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None

    def take(self, piece: Piece, *, one_call: bool) -> Reply:
        """What a piece adds."""
        said = self.parser.push(piece.text)
        if piece.finish_reason is not None:
            said += self.parser.finish()
        calls = []
        for call in said.tool_calls:
            self.n_calls += bool(call.name)
            if self.n_calls == 1 or not one_call:
                calls.append(call)
        said = replace(said, tool_calls=tuple(calls))
        self.reply += said
        if piece.choice is not None:
            self.choices.append(piece.choice)
            self.n_reasoning += bool(said.reasoning)
        if piece.finish_reason is not None:
            called = self.reply.tool_calls and piece.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else piece.finish_reason
            self.usage = piece.usage
        return said
