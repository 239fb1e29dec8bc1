"""Calls of functions written as tags, Qwen-Coder's way, passed on while they are being written.

    <function=name><parameter=key>value</parameter>...</function>

A parameter's value stands there as it is, without quotes. Text streams; of anything else only the
whole value shows what it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minfer.text.calls import TakeCall, ToolCall
from minfer.text.chars import END, Emit, Reader, literal, through

_FUNCTION = "function="
_PARAMETER = "parameter="


class Tools:
    """The functions a conversation offers, by name, with the types of their parameters."""

    def __init__(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        """Take OpenAI-style schemas: `{"type": "function", "function": {"name", "parameters"}}`."""
        functions = [schema.get("function", schema) for schema in schemas]
        self._types = {
            function["name"]: {
                name: prop.get("type")
                for name, prop in (
                    (function.get("parameters") or {}).get("properties") or {}
                ).items()
                if isinstance(prop, Mapping)
            }
            for function in functions
        }

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def is_text(self, function: str, parameter: str) -> bool:
        """Whether a parameter is declared to be a string, and nothing else."""
        return self._types.get(function, {}).get(parameter) == "string"


@dataclass(frozen=True)
class Between:
    """What was found between the tags of a call.

    Attributes:
        text: all of it, where no call began; it is none then.
        begun: whether a call was passed on.
        closed: whether the closing tag came.
    """

    text: str
    begun: bool
    closed: bool


def function_tags(
    first: str, end: str, tools: Tools, call: TakeCall, unfinished: Emit
) -> Reader[Between]:
    """Read calls up to the tag `end`, of which the first character was read.

    Args:
        first: that character.
        end: the closing tag, which begins like any tag.
        tools: the functions on offer.
        call: takes the calls, in parts.
        unfinished: takes what belongs to no call between them.
    """
    opening, after = yield from literal("<" + _FUNCTION, first)
    name = ""
    char = (yield) if after is None else after
    while after is None and char not in (">", "<", END) and not char.isspace():
        name += char
        char = yield
    if char != ">" or not name:
        inner: list[str] = []
        closed = yield from through(end, inner.append, opening + name + char)
        return Between("".join(inner), begun=False, closed=closed)
    writer = _Writer(tools, call)
    writer.begin(name)

    def scrap(text: str) -> None:
        if not text.isspace():
            unfinished(text)

    while (yield from through("<", scrap)):
        inside: list[str] = []
        if not (yield from through(">", inside.append)):
            break
        tag = "".join(inside)
        if f"<{tag}>" == end:
            writer.end()
            return Between("", begun=True, closed=True)
        if tag == "/function":
            writer.end()
        elif tag.startswith(_FUNCTION):
            writer.begin(tag.removeprefix(_FUNCTION))
        elif not tag.startswith(_PARAMETER):
            unfinished(f"<{tag}>")
        elif not (yield from writer.parameter(tag.removeprefix(_PARAMETER))):
            break
    return Between("", begun=True, closed=False)


class _Writer:
    """Writes the arguments of calls as JSON."""

    def __init__(self, tools: Tools, call: TakeCall) -> None:
        self._tools = tools
        self._call = call
        self._name = ""  # of the call that is open
        self._n_arguments = 0

    def begin(self, name: str) -> None:
        """A call begins; one that is open ends."""
        self.end()
        if name:
            self._name = name
            self._n_arguments = 0
            self._call(ToolCall(name, "{"))

    def end(self) -> None:
        """The open call ends, if there is one."""
        if self._name:
            self._write("}")
        self._name = ""

    def parameter(self, key: str) -> Reader[bool]:
        """Read a parameter's value, without the line breaks around it; False if it has no end."""
        parts: list[str] = []
        streams = self._tools.is_text(self._name, key)
        if self._name:
            self._write(f"{', ' if self._n_arguments else ''}{json.dumps(key)}: ")
            self._n_arguments += 1
        value = _Lines(self._write_text if streams else parts.append)
        if streams:
            self._write('"')
        ended = yield from through("</parameter>", value.take)
        if ended:
            self._write('"' if streams else _json_of("".join(parts)))
        return ended

    def _write_text(self, text: str) -> None:
        self._write(json.dumps(text, ensure_ascii=False)[1:-1])

    def _write(self, text: str) -> None:
        if self._name and text:
            self._call(ToolCall("", text))


class _Lines:
    """Passes a text on without a line break at its beginning and at its end."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._fresh = True
        self._held = ""

    def take(self, text: str) -> None:
        """Take the next characters."""
        for char in text:
            if char != "\n":
                self._emit(self._held + char)
                self._held = ""
            elif not self._fresh:
                self._emit(self._held)
                self._held = char
            self._fresh = False


def _json_of(text: str) -> str:
    """A value as JSON: what it says in JSON, else the text itself."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
