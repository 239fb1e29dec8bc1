"""Text completions: prompts of every form, echo, log probabilities, best_of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving import Served, served

GREEDY: dict[str, Any] = {"model": "m", "prompt": "abcd", "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


def test_prompts_of_every_form(server: Served, client: openai.OpenAI) -> None:
    ids = server.service.llm.encode("abcd")
    texts = [client.completions.create(**GREEDY).choices[0].text]
    for prompt in (ids, ["abcd"], [ids], ["abcd", "xy"], [ids, ids]):
        answer = client.completions.create(**{**GREEDY, "prompt": prompt})
        texts.append(answer.choices[0].text)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        assert answer.object == "text_completion"
    assert len(set(texts)) == 1


def test_sixteen_tokens_by_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="m", prompt="abcd", extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    for more in ({}, {"echo": True}, {"n": 2, "temperature": 1, "seed": 3}):
        ask = GREEDY | more
        whole = client.completions.create(**ask)
        texts = [""] * len(whole.choices)
        usage = None
        for chunk in client.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [choice.text for choice in whole.choices]
        assert usage is not None
        assert whole.usage is not None
        assert usage.total_tokens == whole.usage.total_tokens


def test_echo_and_log_probabilities(server: Served, client: openai.OpenAI) -> None:
    answer = client.completions.create(**GREEDY, echo=True, logprobs=2).choices[0]
    logprobs = answer.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None
    n_prompt = len(server.service.llm.encode("abcd"))
    assert len(logprobs.tokens) == n_prompt + 8
    assert logprobs.token_logprobs[0] is None
    assert all(lp is not None and lp <= 0 for lp in logprobs.token_logprobs[1:])
    for token, lp, top in list(
        zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    )[n_prompt:]:
        assert top is not None
        assert max(top.values()) == lp == top[token]  # greedy
    assert logprobs.text_offset[0] == 0
    assert answer.text.startswith("abcd")
    streamed = [
        lp
        for chunk in client.completions.create(**GREEDY, echo=True, logprobs=2, stream=True)
        if (found := chunk.choices[0].logprobs) is not None
        for lp in found.token_logprobs or ()
    ]
    assert streamed == logprobs.token_logprobs


def test_scoring_a_prompt(server: Served, client: openai.OpenAI) -> None:
    """What evaluation harnesses do: no new tokens, only the prompt's probabilities."""
    answer = client.completions.create(
        model="m", prompt="abcd efgh", max_tokens=0, echo=True, logprobs=1
    )
    choice = answer.choices[0]
    assert choice.text == "abcd efgh"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert len(choice.logprobs.tokens or ()) == len(server.service.llm.encode("abcd efgh"))


def test_best_of(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {**GREEDY, "temperature": 1, "seed": 5}
    all_of_them = client.completions.create(**ask, n=4, logprobs=0).choices
    means = {
        choice.text: sum(choice.logprobs.token_logprobs or ()) / 8
        for choice in all_of_them
        if choice.logprobs is not None
    }
    answer = client.completions.create(**ask, best_of=4)
    assert len(answer.choices) == 1
    assert answer.choices[0].text == max(means, key=lambda text: means[text])
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 32


def test_a_grammar(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="m", prompt="x", extra_body={"grammar": 'root ::= "yes" | "no"'}
    )
    assert answer.choices[0].text in ("yes", "no")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "x"]}, "prompt[1]"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"prompt": ["x"] * 100, "n": 2}, "prompt"),
        ({"temperature": 1e9}, "temperature"),
    ],
)
def test_a_bad_field_is_named(server: Served, change: dict[str, Any], param: str) -> None:
    response = server.http.post("/v1/completions", json=GREEDY | change)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
