"""llama-server's routes on text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served, served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


def post(server: Served, path: str, **body: Any) -> Any:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_tokenize_and_back(server: Served) -> None:
    text = "héllo <|im_end|> 😊"
    tokenizer = server.service.llm.tokenizer
    for special in (True, False):
        tokens = post(server, "/tokenize", content=text, parse_special=special)["tokens"]
        assert tokens == tokenizer.encode(text, special=special, add_bos=False)
        assert post(server, "/detokenize", tokens=tokens)["content"] == text
    assert tokenizer.token_id("<|im_end|>") in post(server, "/tokenize", content=text)["tokens"]


def test_bos_where_it_is_asked_for(server: Served) -> None:
    tokenizer = server.service.llm.tokenizer
    tokens = post(server, "/tokenize", content="a", add_special=True)["tokens"]
    assert tokens == tokenizer.encode("a", special=True)


def test_pieces_are_text_or_bytes(server: Served) -> None:
    pieces = post(server, "/tokenize", content="a😊", with_pieces=True)["tokens"]
    data = b"".join(
        piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"])
        for piece in pieces
    )
    assert data.decode() == "a😊"


def test_a_conversation_as_its_prompt(server: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    template = server.service.llm.template
    prompt = post(server, "/apply-template", messages=messages)["prompt"]
    assert prompt == template.render(messages)
    without = post(server, "/apply-template", messages=messages, add_generation_prompt=False)
    assert without["prompt"] == template.render(messages, add_generation_prompt=False)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        (
            "/apply-template",
            {"messages": [{"role": "user"}], "chat_template_kwargs": {"messages": 1}},
            "chat_template_kwargs.messages",
        ),
    ],
)
def test_a_bad_field_is_named(server: Served, path: str, body: Any, param: str) -> None:
    response = server.http.post(path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
