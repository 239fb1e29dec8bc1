"""The responses API as the official client sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving import Served, served
from test_server_tools import CALL, HERMES, WEATHER

TOOL = {"type": "function", **WEATHER["function"]}
ASK: dict[str, Any] = {"model": "m", "input": "hello", "temperature": 0, "max_output_tokens": 12}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


def test_a_text(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASK)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens == 12
    chat = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hello"}],
        temperature=0,
        max_tokens=12,
    )
    assert response.output_text == chat.choices[0].message.content


def test_the_events_of_a_text(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    events = list(client.responses.create(**ASK, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    delta = "response.output_text.delta"
    assert [kind for at, kind in enumerate(kinds) if at == 0 or kind != kinds[at - 1]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        delta,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == delta)
    last = events[-1]
    assert last.type == "response.incomplete"
    assert text == whole.output_text == last.response.output_text


def test_reasoning_text_and_calls_are_items(server: Served, client: openai.OpenAI) -> None:
    with server.says("<think>hm</think>Let me see. " + CALL + CALL, HERMES):
        ask: dict[str, Any] = {"model": "m", "input": "hello", "tools": [TOOL]}
        whole = client.responses.create(**ask)
        events = list(client.responses.create(**ask, stream=True))
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    call = whole.output[2]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"unit": "c", "days": 2}
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == kinds
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in done] == [
        item.model_dump() for item in last.response.output
    ]
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [event.output_index for event in added] == [0, 1, 2, 3]
    arguments = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert len(arguments) == 2
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 20  # about one a token
    for done_event in arguments:
        parts = [e.delta for e in deltas if e.item_id == done_event.item_id]
        assert "".join(parts) == done_event.arguments
    thoughts = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "hm"


def test_a_call_that_is_cut_off_is_incomplete(server: Served, client: openai.OpenAI) -> None:
    with server.says(CALL, HERMES):
        ask: dict[str, Any] = {"model": "m", "input": "hello", "tools": [TOOL]}
        n_tokens = len(server.service.llm.tokenizer.encode(CALL, special=True, add_bos=False))
        response = client.responses.create(**ask, max_output_tokens=n_tokens - 15)
    assert response.status == "incomplete"
    (call,) = response.output
    assert call.type == "function_call"
    assert call.status == "incomplete"
    assert '{"unit": "c", "days": 2}'.startswith(call.arguments)


def test_a_conversation_of_items(server: Served, client: openai.OpenAI) -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {"type": "message", "role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    ]
    response = client.responses.create(
        model="m", input=items, instructions="Be kind.", max_output_tokens=3, tools=[TOOL]
    )
    assert response.output_text


def test_structured_output_and_a_call_that_must_come(client: openai.OpenAI) -> None:
    schema = WEATHER["function"]["parameters"]
    response = client.responses.create(
        model="m",
        input="hello",
        text={"format": {"type": "json_schema", "name": "w", "schema": schema, "strict": True}},
    )
    assert set(json.loads(response.output_text)) == {"unit", "days"}
    forced = client.responses.create(
        model="m",
        input="hello",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "get_weather"},
    )
    assert [item.type for item in forced.output] == ["function_call"]


def test_logprobs(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASK, top_logprobs=2)
    message = response.output[0]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    text = b"".join(bytes(entry.bytes) for entry in part.logprobs)
    assert text.decode(errors="replace") == response.output_text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"temperature": -1}, "temperature"),
        ({"input": "x" * 2000}, "input"),
    ],
)
def test_a_bad_field_is_named(server: Served, more: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        response = server.http.post("/v1/responses", json={**ASK, **more, "stream": stream})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


def test_a_failure_on_the_way(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from minfer.engine import Sampler

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Sampler, "choose", fail)
    response = server.http.post("/v1/responses", json={**ASK, "stream": True})
    name, data = response.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: response.failed"
    failed = json.loads(data.removeprefix("data: "))["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["message"]
    assert server.http.post("/v1/responses", json=ASK).status_code == 500
