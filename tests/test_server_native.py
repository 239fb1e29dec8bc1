"""llama-server's routes on text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served, served

from minfer.server.chat_schema import MAX_MESSAGES, MAX_TOOLS
from minfer.server.native import PART


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


def test_many_ids_are_written_in_parts(server: Served) -> None:
    text = "hello world " * PART
    plain = server.http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert len(plain) > 2 * PART
    pieces = server.http.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    assert [entry["id"] for entry in pieces["tokens"]] == plain
    assert "".join(entry["piece"] for entry in pieces["tokens"]) == text
    assert server.http.post("/tokenize", json={"content": ""}).json() == {"tokens": []}


@pytest.mark.parametrize(
    ("path", "field", "limit"),
    [
        ("/v1/chat/completions", "messages", MAX_MESSAGES),
        ("/apply-template", "messages", MAX_MESSAGES),
        ("/v1/responses", "input", MAX_MESSAGES - 1),
        ("/v1/chat/completions", "tools", MAX_TOOLS),
        ("/v1/responses", "tools", MAX_TOOLS),
    ],
)
def test_lists_have_an_end(server: Served, path: str, field: str, limit: int) -> None:
    tool = {"type": "function", "name": "f", "function": {"name": "f"}}
    message = {"role": "user", "content": "x"}
    body: dict[str, object] = {"messages": [message], "input": "x", "instructions": "x"}
    body |= {"max_output_tokens": 1, "max_tokens": 1}
    item = tool if field == "tools" else message
    over = server.http.post(path, json={**body, field: [item] * (limit + 1)})
    assert over.status_code == 400
    assert over.json()["error"]["param"] == field
    most = server.http.post(path, json={**body, field: [item] * limit})
    assert most.status_code == 200 or most.json()["error"]["code"] == "context_length_exceeded"
