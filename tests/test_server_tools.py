"""Tools, reasoning and structured output through the API, streaming and whole alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving import Served, served

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["c", "f"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    },
}
HERMES = "<tool_call> <think> </think>"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"unit": "c", "days": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


def whole(client: openai.OpenAI, **more: Any) -> dict[str, Any]:
    """The parts of an answer."""
    answer = client.chat.completions.create(model="m", messages=MESSAGES, **more)
    choice = answer.choices[0]
    return {
        "content": choice.message.content or "",
        "reasoning": (choice.message.model_extra or {}).get("reasoning_content", ""),
        "calls": [
            (call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ],
        "reason": choice.finish_reason,
    }


def streamed(client: openai.OpenAI, **more: Any) -> dict[str, Any]:
    """The same parts, put together from a stream."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "reason": None}
    calls: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True, **more):
        (choice,) = chunk.choices
        found["content"] += choice.delta.content or ""
        found["reasoning"] += (choice.delta.model_extra or {}).get("reasoning_content", "")
        for call in choice.delta.tool_calls or ():
            entry = calls.setdefault(call.index, ["", ""])
            assert call.function is not None
            entry[0] += call.function.name or ""
            entry[1] += call.function.arguments or ""
        found["reason"] = choice.finish_reason or found["reason"]
    found["calls"] = [tuple(calls[index]) for index in sorted(calls)]
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello < there </ you", {"content": "Hello < there </ you", "reason": "stop"}),
        (CALL, {"calls": 1, "reason": "tool_calls"}),
        ("Let me see. " + CALL + "\n" + CALL, {"content": "Let me see.", "calls": 2}),
        ("<think>\na <b> </thin\n</think>\n\nYes", {"content": "Yes", "reasoning": "a <b> </thin"}),
        ("<think>hm</think>" + CALL, {"reasoning": "hm", "calls": 1, "reason": "tool_calls"}),
        ("<tool_call>\n{broken", {"content": "", "calls": 0, "reason": "stop"}),
        ("<tool_call> is a tag", {"calls": 0, "reason": "stop"}),
    ],
)
def test_replies_are_taken_apart_alike(
    server: Served, client: openai.OpenAI, text: str, expected: dict[str, Any]
) -> None:
    with server.says(text, HERMES):
        found = whole(client, tools=[WEATHER])
        assert streamed(client, tools=[WEATHER]) == found
    for name, value in expected.items():
        assert (len(found[name]) if name == "calls" else found[name]) == value
    for name, arguments in found["calls"]:
        assert name == "get_weather"
        assert json.loads(arguments) == {"unit": "c", "days": 2}


def test_arguments_stream_as_they_are_written(server: Served, client: openai.OpenAI) -> None:
    with server.says("Well. " + CALL + CALL, HERMES):
        stream = client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, tools=[WEATHER]
        )
        parts = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    for index in (0, 1):
        first, *rest = [part for part in parts if part.index == index]
        assert first.id
        assert first.type == "function"
        assert first.function is not None
        assert first.function.name == "get_weather"
        assert len(rest) > 10  # about one a token
        assert all(part.id is None and part.type is None for part in rest)


@pytest.mark.parametrize("max_tokens", range(40, 64, 3))
def test_a_call_that_is_cut_off(server: Served, client: openai.OpenAI, max_tokens: int) -> None:
    with server.says(CALL, HERMES):
        found = whole(client, tools=[WEATHER], max_tokens=max_tokens)
        assert streamed(client, tools=[WEATHER], max_tokens=max_tokens) == found
    assert found["reason"] == "length"
    assert found["content"] == ""
    arguments = '{"unit": "c", "days": 2}'
    for name, begun in found["calls"]:
        assert name == "get_weather"
        assert begun == arguments[: len(begun)]


def test_no_tools_no_calls(server: Served, client: openai.OpenAI) -> None:
    with server.says(CALL, HERMES):
        assert whole(client)["content"] == CALL
        found = whole(client, tools=[WEATHER], tool_choice="none")
        assert found["calls"] == []
        assert found["reason"] == "stop"


def test_one_call_only_where_only_one_is_wanted(server: Served, client: openai.OpenAI) -> None:
    with server.says(CALL + "\n" + CALL, HERMES):
        more: dict[str, Any] = {"tools": [WEATHER], "parallel_tool_calls": False}
        found = whole(client, **more)
        assert len(found["calls"]) == 1
        assert streamed(client, **more) == found


def test_reasoning_tokens_are_counted(server: Served, client: openai.OpenAI) -> None:
    with server.says("<think>abcdefgh</think>x", HERMES):
        usage = client.chat.completions.create(model="m", messages=MESSAGES).usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_call_that_must_come(client: openai.OpenAI, choice: Any) -> None:
    more: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "seed": 3}
    found = whole(client, **more)
    assert streamed(client, **more) == found
    assert found["reason"] == "tool_calls"
    ((name, arguments),) = found["calls"]
    assert name == "get_weather"
    assert json.loads(arguments)["days"] in (1, 2, 3)


def test_a_strict_function_is_held_to_its_schema_when_it_is_called(client: openai.OpenAI) -> None:
    strict: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    for seed in range(4):
        found = whole(client, tools=[strict], seed=seed, max_tokens=300, logit_bias={"123": 30})
        for name, arguments in found["calls"]:  # bare JSON: a bias for `{` makes it call
            assert name == "get_weather"
            assert set(json.loads(arguments)) == {"unit", "days"}
    assert found["calls"]


def test_the_result_of_a_call_goes_back(client: openai.OpenAI) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages: list[Any] = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(
        model="m", messages=messages, tools=[WEATHER], max_tokens=3
    )
    assert answer.choices[0].finish_reason == "length"


def test_structured_output(client: openai.OpenAI) -> None:
    schema = WEATHER["function"]["parameters"]
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    for seed in range(3):
        found = whole(client, response_format=form, seed=seed)
        value = json.loads(found["content"])
        assert value["unit"] in ("c", "f")
        assert set(value) == {"unit", "days"}
        assert streamed(client, response_format=form, seed=seed) == found


def test_other_forms(client: openai.OpenAI) -> None:
    any_object: Any = {"type": "json_object"}
    found = whole(client, response_format=any_object, seed=1, max_tokens=900)
    assert isinstance(json.loads(found["content"]), dict)
    for extra in (
        {"grammar": 'root ::= "yes" | "no"'},
        {"response_format": {"type": "regex", "regex": "yes|no"}},
        {"response_format": {"type": "lark", "lark": 'start: "yes" | "no"'}},
        {"response_format": {"type": "grammar", "grammar": 'root ::= "yes" | "no"'}},
    ):
        assert whole(client, extra_body=extra)["content"] in ("yes", "no")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"properties": {"a": {"not": {}}}}},
                }
            },
            "response_format.json_schema.schema.properties.a",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "regex"}}, "response_format.regex"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"grammar": "root ::= [a-", "stream": True}, "grammar"),
        ({"grammar": 'root ::= "x"', "response_format": {"type": "json_object"}}, "grammar"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
def test_forms_that_cannot_be_kept(server: Served, more: dict[str, Any], param: str) -> None:
    response = server.http.post("/v1/chat/completions", json={"messages": MESSAGES, **more})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
