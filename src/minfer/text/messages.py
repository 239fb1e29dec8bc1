"""Conversations as chat templates take them: plain data, in the forms one template can read.

Clients send what the OpenAI API allows: content as a string, as parts or null, tool arguments as a
JSON string. Templates are written against one of these forms each, and fail or print nonsense on
the others. A form the template takes passes through untouched; otherwise it is turned into one the
template takes, with the same meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minfer.errors import TemplateError

# A message's reasoning goes by three names; templates read the first or, for gpt-oss, the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_PROBE = "minfer-probe"

_CONTENT = r"(?<!\w)content['\"]?\]?\s+is\s+(?:not\s+)?"
_ASKS_NONE = re.compile(_CONTENT + "none")
_ASKS_ABSENT = re.compile(_CONTENT + r"(?:un)?defined|['\"]content['\"]\s+(?:not\s+)?in\s")
_ARGUMENTS = r"(?<!\w)arguments['\"]?\]?\s*"
_DUMPS_ARGUMENTS = re.compile(_ARGUMENTS + r"(?:\|\s*(?:tojson|items|dictsort)|\.items)")
_ASKS_ARGUMENTS = re.compile(_ARGUMENTS + r"is\s+(?:not\s+)?(?:string|mapping)")


@dataclass(frozen=True)
class Forms:
    """The forms of a message that one template takes.

    Attributes:
        strings: content as a string.
        parts: content as a list of parts.
        null: what stands for null content: `keep` None, `drop` the key, or an `empty` string.
        arguments: tool arguments as `string`, as `object`, or `any` of the two.
    """

    strings: bool
    parts: bool
    null: str
    arguments: str

    @classmethod
    def of(cls, source: str, render: Callable[[list[dict[str, Any]]], str]) -> Forms:
        """Find out what a template takes, by reading it and by asking it.

        Args:
            source: its Jinja source.
            render: renders a conversation with it; may raise anything.
        """
        strings = _takes(render, _PROBE)
        parts = _takes(render, [{"type": "text", "text": _PROBE}])
        if not strings and not parts:  # it wants more than a lone question; it gets what comes
            strings = parts = True
        null = "empty"
        if _ASKS_NONE.search(source):
            null = "keep"
        elif _ASKS_ABSENT.search(source):
            null = "drop"
        arguments = "object" if _DUMPS_ARGUMENTS.search(source) else "string"
        if _ASKS_ARGUMENTS.search(source) or "arguments" not in source:
            arguments = "any"
        return cls(strings, parts, null, arguments)

    def adapt(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a conversation in these forms.

        Raises:
            TemplateError: it is empty or not made of objects, or has content beyond text where the
                template only takes text.
        """
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise TemplateError(
                f"is a {type(messages).__name__}, not a list of messages", where="messages"
            )
        if not messages:
            raise TemplateError("the conversation is empty", where="messages")
        return [self._adapt(message, f"messages[{at}]") for at, message in enumerate(messages)]

    def _adapt(self, message: Mapping[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise TemplateError(
                f"is a {type(message).__name__}, not an object with role and content", where=where
            )
        given = {key: value for key, value in message.items() if value is not None}
        plain: dict[str, Any] = plain_data(given, where)
        reasoning = next((plain[name] for name in _REASONING if name in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        content = plain.get("content")
        if content is None:
            if "content" in message and self.null != "drop":
                plain["content"] = None if self.null == "keep" else ""
        elif isinstance(content, list) and not self.parts:
            plain["content"] = _joined(content, f"{where}.content")
        elif isinstance(content, str) and not self.strings:
            plain["content"] = [{"type": "text", "text": content}]
        for call in plain.get("tool_calls") or []:
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and "arguments" in function:
                function["arguments"] = self._adapt_arguments(function["arguments"])
        return plain

    def _adapt_arguments(self, arguments: Any) -> Any:
        if self.arguments == "object" and isinstance(arguments, str):
            try:
                parsed = json.loads(arguments)
            except (
                ValueError,
                RecursionError,
            ):  # a model's own slip; it reads its words as it wrote them
                return arguments
            return parsed if isinstance(parsed, dict) else arguments
        if self.arguments == "string" and isinstance(arguments, dict):
            return json.dumps(arguments, ensure_ascii=False)
        return arguments


def plain_data(value: Any, where: str) -> Any:
    """Return a copy made of JSON types only, so that no object's methods reach a template.

    Raises:
        TemplateError: there is anything else in it.
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): plain_data(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{where}[{at}]") for at, item in enumerate(value)]
    raise TemplateError(
        f"is a {type(value).__name__}, which has no place in a chat template", where=where
    )


def _takes(render: Callable[[list[dict[str, Any]]], str], content: Any) -> bool:
    try:
        text = render([{"role": "user", "content": content}])
    except Exception:  # however a template says that it does not take this
        return False
    # The text must appear, and not as the printed form of a list of parts.
    return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text


def _joined(parts: list[Any], where: str) -> str:
    texts = []
    for part in parts:
        if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise TemplateError(
                f"has a part of type {kind!r}, and this model's template only takes text",
                where=where,
            )
        texts.append(part["text"])
    return "\n".join(texts)
