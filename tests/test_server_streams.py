"""Clients that leave: their work ends within a step, in every phase, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from time import monotonic
from typing import Any

import httpx
import pytest
from serving import Served, served, tiny

from minfer.server.streams import ClientGone, while_there


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny(max_sequences=2), max_waiting=8, ping_seconds=0.1) as running:
        yield running


def connection(server: Served, body: dict[str, Any]) -> socket.socket:
    """A request on a connection of its own, so that the test can cut it."""
    url = httpx.URL(server.url)
    sock = socket.create_connection((url.host, url.port))
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    sock.sendall(head.encode() + data)
    return sock


def ask(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "ignore_eos": True, **more}


def counts(server: Served) -> tuple[int, int]:
    engine = server.service.worker._engine
    return engine.n_running, engine.n_waiting


def generated(server: Served) -> int:
    return server.service.worker._engine.counters.generated_tokens


@pytest.mark.parametrize("stream", [True, False])
def test_while_decoding(server: Served, stream: bool) -> None:
    before = generated(server)
    with server.slow():
        sock = connection(server, ask(stream=stream))
        server.until(lambda: generated(server) > before + 2)
        sock.close()
        server.settle()
    assert generated(server) < before + 60
    assert counts(server) == (0, 0)


@pytest.mark.parametrize("stream", [True, False])
def test_while_prefilling(server: Served, stream: bool) -> None:
    before = generated(server)
    steps = server.service.worker._engine.counters.steps
    with server.slow(0.2):
        sock = connection(server, ask("x" * 900 + str(stream), stream=stream))
        server.until(lambda: server.service.worker._engine.counters.steps > steps)
        sock.close()
        server.settle()
    assert generated(server) <= before + 3


@pytest.mark.parametrize("stream", [True, False])
def test_while_waiting(server: Served, stream: bool) -> None:
    with server.slow():
        running = [connection(server, ask(str(n), stream=True)) for n in range(2)]
        server.until(lambda: counts(server) == (2, 0))
        waiting = connection(server, ask("third", stream=stream))
        server.until(lambda: counts(server) == (2, 1))
        waiting.close()
        server.until(lambda: counts(server) == (2, 0))
        for sock in running:
            sock.close()


def test_pages_are_all_back_at_the_end(server: Served) -> None:
    server.settle()
    engine = server.service.worker._engine
    free, cached, total = engine.pages
    assert free + cached == total
    engine.clear_cache()
    assert engine.pages == (total, 0, total)


def test_a_silent_stream_says_that_it_is_alive(server: Served) -> None:
    with (
        server.slow(0.4),
        server.http.stream(
            "POST", "/v1/chat/completions", json=ask(stream=True, max_tokens=2)
        ) as response,
    ):
        assert ": still working\n\n" in response.read().decode()


def test_a_failure_on_the_way_is_the_last_event(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minfer.engine import Sampler
    from minfer.errors import GrammarError

    choose = Sampler.choose
    calls = iter(range(1000))

    def fail(self: Sampler, *arguments: Any) -> Any:
        if next(calls) == 3:
            raise GrammarError("the grammar allows no token here", where="grammar")
        return choose(self, *arguments)

    monkeypatch.setattr(Sampler, "choose", fail)
    monkeypatch.setattr(Sampler, "fits_device", False)
    with server.http.stream("POST", "/v1/chat/completions", json=ask(stream=True)) as response:
        text = response.read().decode()
    assert response.status_code == 200
    *_, failure, done, _ = text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(failure.removeprefix("data: "))["error"]["code"] == "invalid_grammar"
    assert server.http.post("/v1/chat/completions", json=ask(max_tokens=2)).status_code == 200


def test_time_is_limited() -> None:
    with served(timeout=0.3) as server, server.slow(0.05):
        began = monotonic()
        whole = server.http.post("/v1/chat/completions", json=ask())
        assert whole.status_code == 504
        assert whole.json()["error"]["code"] == "timeout"
        assert whole.headers["x-should-retry"] == "false"
        with server.http.stream("POST", "/v1/chat/completions", json=ask(stream=True)) as response:
            text = response.read().decode()
        assert '"code":"timeout"' in text
        assert monotonic() - began < 3
        server.settle()


def test_work_ends_with_its_client() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    async def leave() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        asyncio.run(while_there(leave, forever(), timeout=10))
    assert ended == ["work"]
