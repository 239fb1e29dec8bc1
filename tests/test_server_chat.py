"""Chat completions as the official client sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving import Served, served

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
GREEDY: dict[str, Any] = {"model": "any", "messages": HELLO, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


def test_an_answer_has_all_that_the_schema_asks_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny-llama"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "length")
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**GREEDY)
    chunks = list(
        client.chat.completions.create(
            **GREEDY, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    *said, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in said)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in said]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) == {None}
    assert all(chunk.usage is None for chunk in said)
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_the_lines_of_a_stream(server: Served) -> None:
    body = {**GREEDY, "stream": True, "max_tokens": 3}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = response.read().decode()
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    for event in events:
        chunk = json.loads(event.removeprefix("data: "))
        assert chunk["object"] == "chat.completion.chunk"
        assert "usage" not in chunk


def test_null_means_default(server: Served) -> None:
    nothing = dict.fromkeys(
        "temperature top_p n stop max_tokens max_completion_tokens presence_penalty seed "
        "frequency_penalty logit_bias logprobs top_logprobs user tools tool_choice stream "
        "response_format parallel_tool_calls stream_options reasoning_effort store metadata".split()
    )
    body = {"messages": HELLO, **nothing, "max_completion_tokens": 2}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200


def test_several_choices_differ_and_the_prompt_counts_once(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {**GREEDY, "temperature": 1, "n": 3, "seed": 7}
    answer = client.chat.completions.create(**ask)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 36
    single = client.chat.completions.create(**GREEDY)
    assert single.usage is not None
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**ask, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_seeds(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {**GREEDY, "temperature": 1}
    texts = [
        client.chat.completions.create(**ask, seed=seed).choices[0].message.content
        for seed in (5, 5, 6)
    ]
    assert texts[0] == texts[1] != texts[2]
    drawn = client.chat.completions.create(**ask)
    seed = (drawn.model_extra or {})["seed"]
    again = client.chat.completions.create(**ask, seed=seed)
    assert again.choices[0].message.content == drawn.choices[0].message.content


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 12
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob  # greedy
    text = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content)
    assert text.decode(errors="replace") == answer.choices[0].message.content
    streamed = [
        entry
        for chunk in client.chat.completions.create(
            **GREEDY, logprobs=True, top_logprobs=3, stream=True
        )
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert [e.token for e in streamed] == [e.token for e in logprobs.content]


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    assert whole is not None
    for at in range(1, 5):
        stop = whole[at : at + 2]
        answer = client.chat.completions.create(**GREEDY, stop=[stop])
        assert answer.choices[0].message.content == whole[: whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        streamed = "".join(
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(**GREEDY, stop=stop, stream=True)
        )
        assert streamed == answer.choices[0].message.content


def test_logit_bias_decides(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY, logit_bias={"65": 100})
    content = answer.choices[0].message.content
    assert content is not None
    assert len(set(content)) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**GREEDY, logit_bias={"x": 1})
    assert refused.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "x"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x"] * 99}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": "1"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"stream_options": []}, "stream_options"),
        ({"seed": 1 << 70}, "seed"),
        ({"modalities": ["audio"]}, "modalities[0]"),
    ],
)
def test_a_bad_field_is_named(server: Served, change: dict[str, Any], param: str) -> None:
    response = server.http.post("/v1/chat/completions", json=GREEDY | change)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert set(error) >= {"message", "type", "param", "code"}


def test_the_context_has_an_end(server: Served) -> None:
    def ask(n_letters: int) -> Any:
        messages = [{"role": "user", "content": "x" * n_letters}]
        return server.http.post(
            "/v1/chat/completions", json={**GREEDY, "messages": messages, "max_tokens": 5}
        )

    over = ask(2000)
    assert over.status_code == 400
    error = over.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 1024
    spare = 2000 - error["n_prompt_tokens"] + 1024
    assert ask(spare).status_code == 400
    last = ask(spare - 1).json()
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 1
