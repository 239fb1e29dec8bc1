"""Calls of functions written as JSON, passed on while they are being written.

The name of a call is passed on once its arguments begin, then the arguments as they stand,
character by character, for as long as they may still become a JSON object. A call that is spelled
in another order, or with its arguments quoted, is passed on when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from minfer.text.json_follow import JsonFollower

ARGUMENTS = ("arguments", "parameters")
"""The keys that calls have their arguments under."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a function, or the next part of one.

    Attributes:
        name: the function; empty in what continues the call before it.
        arguments: a JSON object, as text. Of a call that goes wrong or is cut off, what there was
            of it till then.
    """

    name: str
    arguments: str


TakeCall = Callable[[ToolCall], None]


def joined(parts: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Calls, each with what continues it; what continues a call that is not there stays apart."""
    calls: list[ToolCall] = []
    for part in parts:
        if calls and not part.name:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + part.arguments)
        else:
            calls.append(part)
    return tuple(calls)


class ArgumentStream:
    """Watches the arguments of a call, a JSON object, and passes them on.

    Args:
        name: of the function; the call begins at once.
        call: takes the parts.
    """

    def __init__(self, name: str, call: TakeCall) -> None:
        self._call = call
        self._follower = JsonFollower()
        call(ToolCall(name, ""))

    def take(self, char: str) -> bool:
        """Take the next character; False, and nothing passed on, if it cannot stand there."""
        text = self._follower.take(char)
        if text is None:
            return False
        self._call(ToolCall("", text))
        return True


class CallStream:
    """Watches an object, or an array of objects, and passes on the calls that they spell.

    Args:
        call: takes the calls and their parts.
        accepts: whether a call may have this name.

    Attributes:
        begun: whether anything was passed on.
    """

    def __init__(self, call: TakeCall, accepts: Callable[[str], bool]) -> None:
        self.begun = False
        self._call = call
        self._accepts = accepts
        self._follower = JsonFollower()
        self._is_call = True  # as far as one can tell
        self._outside = 0  # brackets around a call
        self._text: list[str] = []  # of the call being read
        self._key = self._name = ""
        self._passed_on = self._in_arguments = False

    def take(self, char: str) -> bool:
        """Take the next character; False if it cannot stand there and calls were passed on."""
        if not self._is_call:
            return True
        depth = self._follower.depth
        text = self._follower.take(char)
        if text is None:
            self._is_call = False
            return not self.begun
        if not depth:
            self._outside = int(char == "[")
        elif depth == self._outside and char not in "{}[], \t\n\r":
            self._is_call = self.begun  # an item that is no object
        if max(depth, self._follower.depth) > self._outside:
            self._text.append(text)
            self._in_call(char, text, depth)
        return True

    def _in_call(self, char: str, text: str, depth: int) -> None:
        """Go on by a character of a call, read at `depth`."""
        follower = self._follower
        inside = self._outside + 1
        if self._in_arguments:
            self._call(ToolCall("", text))
            self._in_arguments = follower.depth > inside
        elif follower.depth < inside:
            self._end()
        elif follower.depth == inside and char == '"' and not follower.in_string:
            if follower.ended_key:
                self._key = follower.string
            elif self._key == "name":
                self._name = json.loads(f'"{follower.string}"')
        elif depth == inside and follower.depth > inside and self._may_pass_on(char):
            self._pass_on(ToolCall(self._name, "{"))
            self._in_arguments = True

    def _may_pass_on(self, opening: str) -> bool:
        """Whether the value that begins here is the arguments of a call with a name."""
        named = bool(self._name) and self._accepts(self._name)
        return named and not self._passed_on and opening == "{" and self._key in ARGUMENTS

    def _end(self) -> None:
        """The call's object is closed; it is one only now, or never, if it was not passed on."""
        if not self._passed_on:
            call = call_of("".join(self._text))
            if call is not None and self._accepts(call.name):
                self._pass_on(call)
        self._is_call = self.begun
        self._text = []
        self._key = self._name = ""
        self._passed_on = False

    def _pass_on(self, call: ToolCall) -> None:
        self.begun = self._passed_on = True
        self._call(call)


def call_of(text: str) -> ToolCall | None:
    """Return the call that a JSON text spells, None where it is something else."""
    try:
        value: Any = json.loads(text)
        if isinstance(value.get("function"), dict):
            value = value["function"]
        name = value.get("name")
        arguments: Any = next((value[key] for key in ARGUMENTS if key in value), {})
        if isinstance(arguments, str):  # some models quote the object once more
            arguments = json.loads(arguments)
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError, AttributeError):
        return None
