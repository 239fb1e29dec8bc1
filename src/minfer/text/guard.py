"""Keeping control tokens out of what people write in a chat.

A user who types `<|im_end|>` must get six plain characters, not the end of their turn; the same
text in the template's scaffolding must be the token. After rendering the two look alike, so every
control token spelled out in the conversation is broken before rendering: a private-use character
that occurs nowhere else (the mark) goes behind its first character. Templates trim, split, compare
and serialize such a string as they would the original. Afterwards the rendered text is cut at its
control tokens, all of them the template's, and the marks are taken out of the texts in between,
which are encoded as plain text.

A string that ends like the beginning of a control token gets a mark at its end, so that it cannot
join with what the template puts behind it. Reasoning tags are exempt: templates split on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minfer.errors import TemplateError
from minfer.text.tokenizer import Tokenizer

# Tags that templates look for inside an assistant's content. None of them begins or ends a turn.
_EXEMPT = frozenset({"<think>", "</think>", "[THINK]", "[/THINK]"})
# Fields whose values templates compare with names of their own, and never end in markup.
_NAMES = frozenset({"role", "type"})
_MARKS = range(0xE000, 0xF900)


class ControlGuard:
    """Breaks and mends control tokens for one tokenizer's vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # A token of one character cannot be broken; no chat vocabulary has one.
        self._controls = {
            text for text in tokenizer.control_tokens() if len(text) > 1 and text not in _EXEMPT
        }
        self._beginnings = {text[:n] for text in self._controls for n in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)

    def protect(self, data: Any, source: str) -> tuple[Any, str]:
        """Return a copy of plain data with control tokens broken, and the mark that breaks them.

        Args:
            data: strings, numbers, lists and dicts; the keys of dicts are protected like their
                values, except for the beginnings of tokens at their ends.
            source: the template's own text, in which the mark must not occur either.

        Raises:
            TemplateError: the data and the template hold every private-use character there is.
        """
        texts = [source, *_strings(data)]
        used = set().union(*texts)
        mark = next(
            (
                chr(code)
                for code in _MARKS
                if chr(code) not in used and not any(_escaped(chr(code)) in text for text in texts)
            ),
            None,
        )
        if mark is None:
            raise TemplateError(
                "the conversation uses all private-use characters U+E000..U+F8FF",
                where="messages",
            )
        return self._walk(data, mark, ends=True), mark

    def encode(self, text: str, mark: str) -> list[int]:
        """Return the ids of a text rendered from protected data, without a BOS of the file's own.

        Args:
            text: the rendered template.
            mark: what `protect` returned.
        """
        escaped = _escaped(mark)
        if mark not in text and escaped not in text:
            return self._tokenizer.encode(text, special=True, add_bos=False)
        ids: list[int] = []
        for part in self._tokenizer.split_special(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                plain = part.replace(mark, "").replace(escaped, "")
                ids += self._tokenizer.encode(plain, add_bos=False)
        return ids

    def _walk(self, data: Any, mark: str, *, ends: bool) -> Any:
        if isinstance(data, str):
            return self._break(data, mark, ends=ends)
        if isinstance(data, dict):
            return {
                self._break(key, mark, ends=False): self._walk(value, mark, ends=key not in _NAMES)
                for key, value in data.items()
            }
        if isinstance(data, list):
            return [self._walk(item, mark, ends=ends) for item in data]
        return data

    def _break(self, text: str, mark: str, *, ends: bool) -> str:
        # Breaking one token may bare another that overlapped it, hence the loop.
        while True:
            broken = [
                part[0] + mark + part[1:] if found and part in self._controls else part
                for part, found in self._tokenizer.find_special(text)
            ]
            mended = "".join(broken)
            if mended == text:
                break
            text = mended
        if ends:
            body = text.rstrip()  # templates trim
            tail = range(1, min(self._longest, len(body)) + 1)
            if any(body[-n:] in self._beginnings for n in tail):
                return body + mark + text[len(body) :]
        return text


def _escaped(mark: str) -> str:
    """Return what JSON in ASCII makes of a mark."""
    return f"\\u{ord(mark):04x}"


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _strings(value)
    elif isinstance(data, list):
        for item in data:
            yield from _strings(item)
