"""Embeddings: vectors of length 1, alike in every form they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from serving import Served, served, tiny

from minfer.server.embeddings import pooled


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


def vectors(client: openai.OpenAI, given: Any, **more: Any) -> np.ndarray[Any, Any]:
    answer = client.embeddings.create(model="m", input=given, **more)
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return np.asarray([entry.embedding for entry in answer.data])


def test_every_form_gives_the_same(server: Served, client: openai.OpenAI) -> None:
    ids = server.service.llm.encode("a long walk")
    first = vectors(client, "a long walk")  # base64, as the client asks unasked
    assert first.shape == (1, server.service.llm.info.width)
    for given in (["a long walk"], ids, [ids]):
        np.testing.assert_array_equal(vectors(client, given), first)
    np.testing.assert_allclose(vectors(client, "a long walk", encoding_format="float"), first)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)


def test_as_the_library_computes_them(client: openai.OpenAI) -> None:
    long = "word " * 150  # more than one part
    with tiny() as llm:
        np.testing.assert_allclose(vectors(client, long)[0], llm.embed(long), atol=1e-6)


def test_several_and_shorter(client: openai.OpenAI) -> None:
    whole = vectors(client, ["one", "two"])
    short = vectors(client, ["one", "two"], dimensions=16)
    assert short.shape == (2, 16)
    expected = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)


def test_they_wait_for_a_place_beside_streams() -> None:
    with served(tiny(max_sequences=1)) as server, server.slow(0.01):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20, "stream": True}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as stream:
            server.until(lambda: server.service.worker._engine.n_running == 1)
            response = server.http.post("/v1/embeddings", json={"input": "x"})
            assert response.status_code == 200
            stream.read()


def test_a_vector_of_nothing_is_no_division_by_zero() -> None:
    assert not pooled([np.zeros(4)], None).any()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": {"a": 1}}, "input"),
        ({"input": [1, 99999]}, "input"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 99999}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x" * 3000}, "input"),
        ({"input": ["x"] * 3000}, "input"),
    ],
)
def test_a_bad_field_is_named(server: Served, body: dict[str, Any], param: str) -> None:
    response = server.http.post("/v1/embeddings", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
