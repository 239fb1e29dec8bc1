"""The front: what it asks, whom it asks again, and what a client sees of a lost replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from minfer.deploy.calls import Call, Head
from minfer.deploy.front import ATTEMPTS, Front
from minfer.server import ServerConfig

JSON = [(b"content-type", b"application/json")]
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Lost(Exception):
    pass


class Full(Exception):
    pass


class Answer:
    def __init__(self, *parts: Head | bytes | BaseException) -> None:
        self.parts = parts
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[Head | bytes]:
        for part in self.parts:
            await asyncio.sleep(0)
            if isinstance(part, BaseException):
                raise part
            yield part

    def cancel(self) -> None:
        self.cancelled = True


def exchange(*answers: Answer, body: bytes = b"{}") -> tuple[int, bytes, list[Call]]:
    """What a client sees, and what was asked."""
    calls: list[Call] = []
    left = list(answers)

    def ask(call: Call) -> Any:
        calls.append(call)
        return left.pop(0)

    front = Front(ask, ServerConfig(max_body_mib=0.001), lost=(Lost,), full=(Full,))
    sent: list[dict[str, Any]] = []

    async def main() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/x", "headers": JSON, "client": None}
        await front(scope, receive, send)

    asyncio.run(main())
    assert not sent[-1].get("more_body", False)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent), calls


def test_an_answer_passes_through() -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    status, text, calls = exchange(Answer(Head(201, JSON), b"a", b"b"), body=body)
    assert (status, text) == (201, b"ab")
    assert calls[0].body == body
    assert calls[0].key


def test_what_has_not_begun_is_asked_again() -> None:
    status, text, calls = exchange(Answer(Lost()), Answer(Lost()), Answer(Head(200, JSON), b"ok"))
    assert (status, text, len(calls)) == (200, b"ok", 3)
    status, text, calls = exchange(*(Answer(Lost()) for _ in range(ATTEMPTS)))
    assert status == 503
    assert json.loads(text)["error"]["type"] == "unavailable_error"


def test_a_stream_that_has_begun_ends_with_an_error() -> None:
    status, text, calls = exchange(Answer(Head(200, STREAM), b"data: 1\n\n", Lost()))
    assert (status, len(calls)) == (200, 1)
    *_, last = text.decode().strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"


def test_anything_else_that_has_begun_is_cut() -> None:
    with pytest.raises(ConnectionError):
        exchange(Answer(Head(200, JSON), b"{", Lost()))


def test_full_replicas_and_large_bodies() -> None:
    status, text, _ = exchange(Answer(Full()))
    assert status == 429
    assert json.loads(text)["error"]["code"] == "queue_full"
    status, text, calls = exchange(body=b"x" * 2000)
    assert status == 413
    assert not calls


def test_a_client_that_leaves_takes_its_work_along() -> None:
    answer = Answer(Head(200, STREAM), asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        exchange(answer)
    assert answer.cancelled
