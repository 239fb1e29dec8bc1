"""Reading a text character by character, for parsers that must not care how it arrives.

A reader is a generator that takes one character at each bare `yield` and `END` at the end. As no
reader ever sees a piece, streaming and parsing a whole text are the same computation. The functions
here are the phrases readers are made of, used with `yield from`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

END = "\udfff"  # a lone surrogate, which no text holds

_Result = TypeVar("_Result")
Reader = Generator[None, str, _Result]
Emit = Callable[[str], None]


@dataclass(frozen=True)
class Value:
    """A JSON value as it was written.

    Attributes:
        text: its characters.
        complete: whether it was read to its end.
        after: the character read behind it, or END.
    """

    text: str
    complete: bool
    after: str


def through(tag: str, emit: Emit, ahead: str = "") -> Reader[bool]:
    """Read through the next occurrence of a tag, emitting what comes before it.

    Args:
        tag: what to look for.
        emit: takes the text before the tag, as soon as it cannot be part of it.
        ahead: characters that were read already; the tag does not end in them.

    Returns:
        Whether the tag was found; if not, all is emitted.
    """
    held = ""
    unread = iter(ahead)
    while True:
        char = next(unread, None) or (yield)
        if char == END:
            emit(held)
            return False
        held += char
        while not tag.startswith(held):
            emit(held[0])
            held = held[1:]
        if held == tag:
            return True


def literal(text: str, first: str) -> Reader[tuple[str, str | None]]:
    """Read a text as far as it agrees with what comes.

    Returns:
        What was read of it, and the first character that disagreed; None where all agreed.
    """
    read = ""
    char = first
    while char != END and char == text[len(read)]:
        read += char
        if read == text:
            return read, None
        char = yield
    return read, char


def blanks(first: str | None = None) -> Reader[tuple[str, str]]:
    """Read white space; return it, and the character behind it."""
    space = ""
    char = (yield) if first is None else first
    while char != END and char.isspace():
        space += char
        char = yield
    return space, char


def json_value(first: str, watch: Callable[[str], bool]) -> Reader[Value]:
    """Read a JSON object or array whose opening bracket was read, to its closing bracket.

    Only brackets and strings are followed; whether it is valid JSON is for the caller to find.

    Args:
        first: the bracket.
        watch: called with every character, the first too, as it comes; False ends the reading,
            and leaves the character unread.
    """
    text = first
    watch(first)
    depth = 1
    in_string = escaped = False
    while depth:
        char = yield
        if char == END or not watch(char):
            return Value(text, False, char)
        text += char
        if escaped:
            escaped = False
        elif in_string:
            escaped = char == "\\"
            in_string = char != '"'
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
    return Value(text, True, (yield))
