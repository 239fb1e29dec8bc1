"""The forms of messages a template takes, and turning messages into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minfer.errors import TemplateError
from minfer.text.messages import Forms, plain_data

STRINGS = Forms(strings=True, parts=False, null="empty", arguments="any")


def echo(messages: list[dict[str, Any]]) -> str:
    return str(messages[0]["content"])


def parts(messages: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in messages[0]["content"])


def either(messages: list[dict[str, Any]]) -> str:
    return parts(messages) if isinstance(messages[0]["content"], list) else echo(messages)


def neither(messages: list[dict[str, Any]]) -> str:
    raise ValueError("a system message must come first")


@pytest.mark.parametrize(
    ("render", "strings_and_parts"),
    [
        (echo, (True, False)),
        (parts, (False, True)),
        (either, (True, True)),
        (neither, (True, True)),
    ],
)
def test_content_forms_are_found_by_asking(
    render: Callable[[list[dict[str, Any]]], str], strings_and_parts: tuple[bool, bool]
) -> None:
    forms = Forms.of("", render)
    assert (forms.strings, forms.parts) == strings_and_parts


@pytest.mark.parametrize(
    ("source", "null"),
    [
        ("{% if message.content is not none %}", "keep"),
        ("{% if message['content'] is none %}", "keep"),
        ("{% if message.reasoning_content is not none %}{{ message.content }}", "empty"),
        ("{% if message.content is defined %}", "drop"),
        ("{% if 'content' in message %}", "drop"),
    ],
)
def test_what_stands_for_null_is_read_off_the_source(source: str, null: str) -> None:
    forms = Forms.of(source, echo)
    assert forms.null == null
    (message,) = forms.adapt([{"role": "assistant", "content": None, "name": None}])
    assert (
        message
        == {
            "keep": {"role": "assistant", "content": None},
            "empty": {"role": "assistant", "content": ""},
            "drop": {"role": "assistant"},
        }[null]
    )


@pytest.mark.parametrize(
    ("source", "given", "taken"),
    [
        ("{{ call.arguments | tojson }}", '{"a": 1}', {"a": 1}),
        ("{{ call['arguments']|tojson }}", {"a": 1}, {"a": 1}),
        ("{{ call.arguments | tojson }}", "{broken", "{broken"),
        ("{{ call.arguments | tojson }}", "[1]", "[1]"),
        ("{{ call.arguments | tojson }}", '{"a":' * 9999, '{"a":' * 9999),
        ("{{ '' + call.arguments }}", {"a": "é"}, '{"a": "é"}'),
        ("{{ '' + call.arguments }}", '{"a": 1}', '{"a": 1}'),
        ("{% if call.arguments is string %}{{ call.arguments | tojson }}", '{"a":1}', '{"a":1}'),
        ("{{ tool_calls }}", '{"a":1}', '{"a":1}'),
    ],
)
def test_tool_arguments_take_the_form_the_template_reads(
    source: str, given: Any, taken: Any
) -> None:
    calls = [{"function": {"name": "f", "arguments": given}}, {"name": "g", "arguments": given}, 1]
    (message,) = Forms.of(source, echo).adapt([{"role": "assistant", "tool_calls": calls}])
    assert message["tool_calls"][0]["function"]["arguments"] == taken
    assert message["tool_calls"][1]["arguments"] == taken
    assert calls[0]["function"]["arguments"] == given  # type: ignore[index]  # a copy was changed


def test_reasoning_goes_by_its_other_names() -> None:
    (message,) = STRINGS.adapt([{"role": "assistant", "content": "a", "reasoning": "b"}])
    assert message["reasoning_content"] == message["thinking"] == "b"


def test_text_parts_are_joined_and_other_parts_refused() -> None:
    text = {"type": "text", "text": "a"}
    (message,) = STRINGS.adapt([{"role": "user", "content": [text, text]}])
    assert message["content"] == "a\na"
    with pytest.raises(TemplateError, match=r"messages\[0\].content\] has a part of type 'str'"):
        STRINGS.adapt([{"role": "user", "content": ["a"]}])


def test_only_plain_data_gets_through() -> None:
    class Text(str):
        __slots__ = ()

    plain = plain_data({"a": [Text("b"), 1, 2.5, None, True, ("c",)]}, "here")
    assert plain == {"a": ["b", 1, 2.5, None, True, ["c"]]}
    assert type(plain["a"][0]) is str
    with pytest.raises(TemplateError, match=r"\[here.a\[0\]\] is a set"):
        plain_data({"a": [set()]}, "here")
