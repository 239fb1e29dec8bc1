"""Tool calls in a reply: where each family of models writes them, and how.

Every format is a reader (see `chars`): it passes text on as content, takes calls out of it, and
gives back as content, unchanged, whatever looked like a call and is none. The exception is a call
that goes wrong after its first parts were passed on, or that the end of the reply cuts off after
its opening tag: what is left of it is kept apart, for no user wants half of it on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

from minfer.text.call_tags import Tools, function_tags
from minfer.text.calls import ArgumentStream, CallStream, TakeCall, ToolCall
from minfer.text.chars import END, Emit, Reader, Value, blanks, json_value, literal, through


@dataclass(frozen=True)
class Sink:
    """Where a reader puts what it finds; calls come in parts."""

    content: Emit
    call: TakeCall
    unfinished: Emit


Format = Callable[[Tools, Sink], Generator[None, str, None]]


class _Content:
    """Content without the white space next to calls, which is their layout."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._space = ""
        self._after_call = False

    def text(self, text: str) -> None:
        for char in text:
            if char.isspace():
                self._space += char
            else:
                self._sink.content(("" if self._after_call else self._space) + char)
                self._space = ""
                self._after_call = False

    def call(self, part: ToolCall) -> None:
        self._sink.call(part)
        self._space = ""
        self._after_call = True

    def no_call(self, text: str, *, cut_off: bool) -> None:
        """Take what looked like a call and is none, or might have become one."""
        if cut_off:
            self._sink.unfinished(text)
        else:
            self.text(text)

    def end(self) -> None:
        if not self._after_call:
            self._sink.content(self._space)


def tagged(begin: str, end: str) -> Format:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number: Hermes, Qwen and others.

    Between the tags, Qwen-Coder's `<function=name><parameter=key>value</parameter></function>` is
    understood too. The closing tag may be missing behind a complete object.
    """

    def read(tools: Tools, sink: Sink) -> Reader[None]:
        content = _Content(sink)
        ahead = ""
        while (yield from through(begin, content.text, ahead)):
            space, char = yield from blanks()
            opened = begin + space
            if char == "{":
                calls = CallStream(content.call, accepts=bool)
                value = yield from json_value(char, calls.take)
                if calls.begun and not value.complete:
                    closed = yield from through(end, sink.unfinished, value.after)
                    ahead = "" if closed else END
                    continue
                gap, char = yield from blanks(value.after)
                closing, after = yield from literal(end, char)
                ahead = "" if after is None else closing + after
                if not calls.begun:
                    layout = gap + ("" if ahead else closing)
                    content.no_call(opened + value.text + layout, cut_off=not value.complete)
            else:
                found = yield from function_tags(char, end, tools, content.call, sink.unfinished)
                ahead = "" if found.closed else END
                if not found.begun:
                    layout = end if found.closed else ""
                    content.no_call(opened + found.text + layout, cut_off=not found.closed)
        content.end()

    return read


_NAME = re.compile(r"[\w.-]+")


def mistral(tools: Tools, sink: Sink) -> Reader[None]:
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` repeated."""
    begin = "[TOOL_CALLS]"
    content = _Content(sink)
    between: Emit = content.text
    ahead = ""
    while (yield from through(begin, between, ahead)):
        between = content.text
        space, char = yield from blanks()
        head = ""
        while char not in ("{", END) and (head or char != "["):
            head += char
            char = yield
        name = head.split("[")[0].strip()
        begun = False
        if char == END:
            value = Value("", False, END)
        elif _NAME.fullmatch(name):
            begun = True
            value = yield from json_value(char, ArgumentStream(name, content.call).take)
        elif name:
            value = yield from json_value(char, _look_away)
        else:
            calls = CallStream(content.call, accepts=bool)
            value = yield from json_value(char, calls.take)
            begun = calls.begun
        if not begun:
            content.no_call(begin + space + head + value.text, cut_off=not value.complete)
        elif not value.complete:
            between = sink.unfinished
        ahead = value.after
    content.end()


def _look_away(_: str) -> bool:
    return True


def bare(tools: Tools, sink: Sink) -> Reader[None]:
    """A reply that is JSON: `{"name": …, "parameters": {…}}`, or several, or an array of them.

    Llama 3 may begin with `<|python_tag|>` and puts `;` between calls; Gemma and others fence the
    JSON as a code block. Without a tag any answer in JSON looks the same, so only calls of the
    functions on offer count, and anything else is content.
    """
    content = _Content(sink)
    rest: Emit = content.text
    space, char = yield from blanks()
    opening, kind, char = yield from _opening(char)
    raw = space + opening
    while kind != "text" and char in ("{", "["):
        calls = CallStream(content.call, accepts=tools.__contains__)
        value = yield from json_value(char, calls.take)
        char = value.after
        if not calls.begun:
            cut_off = kind == "tag" and not value.complete
            content.no_call(raw + value.text, cut_off=cut_off)
            raw = ""
            break
        raw = ""
        if not value.complete:
            rest = sink.unfinished
            break
        _, char = yield from blanks(char)
        if char == ";":
            _, char = yield from blanks()
        if kind == "fence":
            raw, after = yield from literal("```", char)
            if after is None:
                kind, raw, char = "text", "", (yield)
            else:
                char = after
    content.text(raw)
    while char != END:
        rest(char)
        char = yield
    content.end()


def _opening(char: str) -> Reader[tuple[str, str, str]]:
    """Read what may stand before bare JSON.

    Returns:
        Its text; `tag`, `fence` or `none`, or `text` if it is neither; the character behind it.
    """
    if char == "<":
        read, after = yield from literal("<|python_tag|>", char)
        if after is not None:
            return read, "text", after
        space, char = yield from blanks()
        return read + space, "tag", char
    if char == "`":
        read, after = yield from literal("```", char)
        if after is not None:
            return read, "text", after
        while (char := (yield)) not in ("\n", END):
            read += char
        space, char = yield from blanks(char)
        return read + space, "fence", char
    return "", "none", char


HERMES = tagged("<tool_call>", "</tool_call>")

# What a chat template mentions, and the format its model then writes.
FORMATS: tuple[tuple[str, Format], ...] = (
    ("<tool_call>", HERMES),
    ("[TOOL_CALLS]", mistral),
    ("<|tool_call|>", tagged("<|tool_call|>", "<|/tool_call|>")),
)


def tool_format(template: str) -> Format:
    """Return how the model of a chat template writes calls; bare JSON where it names no tag."""
    return next((form for mark, form in FORMATS if mark in template), bare)
