"""Lists and ranges of numbers as llama-bench writes them: `512,1024`, `1-4`, `0-64+16`, `1-8*2`."""

from __future__ import annotations

import re

from minfer.errors import RequestError

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
MOST = 10_000
"""Values a list may have."""


def numbers(text: str, *, where: str) -> list[int]:
    """The numbers of a list of numbers and ranges `first-last`, `first-last+step`, `first-last*by`.

    Raises:
        RequestError: for anything else, under the name `where`.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise RequestError(
                f"value {part!r} is neither a number nor a range", where=where, remedy=_FORMS
            )
        first, last = int(match[1]), int(match[2] or match[1])
        by = int(match[4] or 1)
        if last < first or by < (2 if match[3] == "*" else 1) or (match[3] == "*" and not first):
            raise RequestError(f"range {part!r} does not end", where=where, remedy=_FORMS)
        value = first
        while value <= last and len(found) <= MOST:
            found.append(value)
            value = value * by if match[3] == "*" else value + by
    if len(found) > MOST:
        raise RequestError(f"value {text!r} stands for more than {MOST} numbers", where=where)
    return found


def pairs(text: str, *, where: str) -> list[tuple[int, int]]:
    """The pairs of `512,128` or `512,128;2048,64`: prompt and generated tokens.

    Raises:
        RequestError: for anything else, under the name `where`.
    """
    found = []
    for part in text.split(";"):
        match = re.fullmatch(r"(\d+),(\d+)", part.strip())
        if match is None:
            raise RequestError(
                f"value {part!r} is not a pair", where=where, remedy="Write 512,128 for pp512+tg128"
            )
        found.append((int(match[1]), int(match[2])))
    return found


_FORMS = "Write 512, 512,1024, 1-4, 0-64+16 or 1-8*2"
