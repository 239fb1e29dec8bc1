"""Keys, sizes, broken bodies, foreign pages, the log: what every request passes."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, served

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        api_keys=frozenset({"sesame", "other"}),
        max_body_mib=0.01,
        body_timeout=0.5,
        cors_origins=("https://good.example",),
    ) as running:
        running.http.headers["Authorization"] = "Bearer sesame"
        yield running


def test_keys(server: Served) -> None:
    with httpx.Client(base_url=server.url) as stranger:
        assert stranger.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
            refused = stranger.post(CHAT, json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "authentication_error"
        for path in ("/metrics", "/slots", "/props", "/v1/models"):
            assert stranger.get(path).status_code == 401
        for headers in ({"Authorization": "bearer other"}, {"X-Api-Key": "sesame"}):
            assert stranger.post(CHAT, json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{:", "not JSON"),
        (b"", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "-Infinity"),
        (b'{"n": 1, "n": 2}', "'n' is there twice"),
        (b'{"a": {"b": 1, "b": 2}}', "'b' is there twice"),
        (b"[" * 5000, "too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"model": "\xff"}', "not JSON"),
    ],
)
def test_bodies_that_are_not_json(server: Served, content: bytes, says: str) -> None:
    response = server.http.post(CHAT, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


def test_lone_surrogates_are_refused_and_quoted_safely(server: Served) -> None:
    for body in ({"messages": [{"role": "user", "content": "\ud800"}]}, {"messages": "\ud800"}):
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json; charset=utf-8"}
        response = server.http.post(CHAT, content=content, headers=headers)
        assert response.status_code == 400
        assert "\\ud800 is half of a character" in response.json()["error"]["message"]


def test_another_content_type(server: Served) -> None:
    response = server.http.post(CHAT, content=json.dumps(BODY), headers={"Content-Type": "text/x"})
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


def test_large_bodies_are_refused_before_they_are_read(server: Served) -> None:
    declared = server.http.post(CHAT, json={**BODY, "user": "x" * 20_000})
    assert declared.status_code == 413

    def parts() -> Iterator[bytes]:
        yield b'{"user": "'
        for _ in range(20):
            yield b"x" * 1000

    in_chunks = server.http.post(
        CHAT, content=parts(), headers={"Content-Type": "application/json"}
    )
    assert in_chunks.status_code == 413
    assert in_chunks.json()["error"]["code"] == "request_too_large"


def test_a_body_that_does_not_come(server: Served) -> None:
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), timeout=5) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesame\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 408 ")


def test_paths_that_are_not_there(server: Served) -> None:
    for path in ("/nope", "/../../etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "//x"):
        response = server.http.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
    assert server.http.get(CHAT).status_code == 405


def test_only_named_pages_may_call(server: Served) -> None:
    def preflight(origin: str) -> httpx.Response:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        return server.http.options(CHAT, headers=headers)

    name = "access-control-allow-origin"
    assert preflight("https://good.example").headers[name] == "https://good.example"
    assert name not in preflight("https://bad.example").headers


def test_a_line_a_request(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    secret = "the user's words"
    with caplog.at_level(logging.INFO, "minfer.server.requests"):
        body = {"messages": [{"role": "user", "content": secret}], "max_tokens": 2, "color": 1}
        response = server.http.post(CHAT, json=body)
        server.http.post(CHAT, json={})

        def lines() -> list[dict[str, Any]]:
            records = [r for r in caplog.records if r.name.endswith(".requests")]
            return [json.loads(record.message) for record in records]

        server.until(lambda: len(lines()) == 2)
    good, bad = lines()
    assert good["status"] == 200
    assert good["path"] == CHAT
    assert good["ignored"] == ["color"]
    assert good["completion_tokens"] == 2
    assert good["id"] == response.headers["x-request-id"]
    assert good["ms"] > 0
    assert bad["status"] == 400
    assert "messages" in bad["error"]
    assert secret not in caplog.text
    assert "sesame" not in caplog.text


def test_a_defect_is_a_500_that_keeps_its_words_to_the_log(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(server.service.llm.template, "encode", broken)
    response = server.http.post(CHAT, json=BODY)
    assert response.status_code == 500
    assert "inside" not in response.text
    assert response.json()["error"]["type"] == "server_error"
    assert "inside" in caplog.text
    monkeypatch.undo()
    assert server.http.post(CHAT, json=BODY).status_code == 200


def test_no_file_of_this_machine_is_read_for_a_client(server: Served) -> None:
    here = Path(__file__).as_uri()
    for part in ({"type": "image_url", "image_url": {"url": here}}, {"type": "file", "file": here}):
        body = {"messages": [{"role": "user", "content": [part]}]}
        assert server.http.post(CHAT, json=body).status_code == 400
