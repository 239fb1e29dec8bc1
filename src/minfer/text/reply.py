"""A model's reply taken apart as it streams: reasoning, content, tool calls.

The deltas of a stream added up are the reply parsed as a whole, for every way to cut it, because
both come from readers that see one character at a time (see `chars`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from minfer.text.call_tags import Tools
from minfer.text.calls import ToolCall, joined
from minfer.text.chars import END
from minfer.text.reasoning import ReasoningTags, read_reasoning, reasoning_tags
from minfer.text.template import ChatTemplate
from minfer.text.tokenizer import Tokenizer
from minfer.text.tools import Format, Sink, tool_format

# Control tokens in some vocabularies, which a stream would leave out of the text.
_TOOL_MARKS = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|tool_call|>",
    "<|/tool_call|>",
)


@dataclass(frozen=True)
class Reply:
    """A reply, or the part of one that a piece of text completed.

    Attributes:
        content: what is for the user.
        reasoning: what the model said to itself.
        tool_calls: calls, in order; in a part, the first may continue the call before it.
        unfinished: what is left of tool calls that the reply broke off in, as text.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    unfinished: str = ""

    def __add__(self, other: Reply) -> Reply:
        return Reply(
            self.content + other.content,
            self.reasoning + other.reasoning,
            joined(self.tool_calls + other.tool_calls),
            self.unfinished + other.unfinished,
        )


@dataclass(frozen=True)
class ReplyStyle:
    """How a model writes its replies.

    Attributes:
        reasoning: the tags around reasoning; None takes everything as content.
        tools: the format of tool calls.
    """

    reasoning: ReasoningTags | None
    tools: Format

    @classmethod
    def of(cls, template: ChatTemplate) -> ReplyStyle:
        """Return the style that a model's chat template shows."""
        return cls(reasoning_tags(template.source), tool_format(template.source))

    def marks(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the tokens of this markup: a `TextStream` must keep them for the parser."""
        tags = (self.reasoning.begin, self.reasoning.end) if self.reasoning else ()
        ids = (tokenizer.token_id(text) for text in (*_TOOL_MARKS, *tags))
        return frozenset(token for token in ids if token is not None)


class ReplyParser:
    """Takes a reply piece by piece and tells its parts apart."""

    def __init__(
        self,
        style: ReplyStyle,
        *,
        prompt: str = "",
        tools: Sequence[Any] | None = None,
    ) -> None:
        """Begin a reply.

        Args:
            style: how the model writes.
            prompt: the rendered prompt, or its end: whether it opens the reasoning.
            tools: schemas of the functions on offer; None leaves calls in the content.
        """
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._unfinished: list[str] = []
        self._answer: Generator[None, str, None] | None = None
        if tools is not None:
            sink = Sink(self._content.append, self._calls.append, self._unfinished.append)
            self._answer = style.tools(Tools(tools), sink)
            next(self._answer)
        self._reader: Generator[None, str, None] | None = None
        if style.reasoning is not None:
            self._reader = read_reasoning(
                style.reasoning,
                inside=style.reasoning.opened_by(prompt),
                reasoning=self._reasoning.append,
                answer=self._take_answer,
            )
            next(self._reader)

    def push(self, text: str) -> Reply:
        """Take the next piece and return what it adds to the reply."""
        if self._reader is None:
            self._take_answer(text)
        else:
            for char in text:
                self._reader.send(char)
        return self._taken()

    def finish(self) -> Reply:
        """Return what the end of the reply adds; call it once, last."""
        for reader in (self._reader, self._answer):
            if reader is not None:
                _end(reader)
        return self._taken()

    def _take_answer(self, text: str) -> None:
        if self._answer is None:
            self._content.append(text)
        else:
            for char in text:
                self._answer.send(char)

    def _taken(self) -> Reply:
        taken = Reply(
            "".join(self._content),
            "".join(self._reasoning),
            joined(self._calls),
            "".join(self._unfinished),
        )
        self._content.clear()
        self._reasoning.clear()
        self._calls.clear()
        self._unfinished.clear()
        return taken


def parse_reply(
    style: ReplyStyle, text: str, *, prompt: str = "", tools: Sequence[Any] | None = None
) -> Reply:
    """Return the parts of a whole reply; see `ReplyParser` for the arguments."""
    parser = ReplyParser(style, prompt=prompt, tools=tools)
    return parser.push(text) + parser.finish()


def _end(reader: Generator[None, str, None]) -> None:
    try:
        reader.send(END)
    except StopIteration:
        return
    raise AssertionError("a reader goes on after the end of the text")
