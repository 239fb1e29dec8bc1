"""Many requests at once give what each gives alone, whatever is cached, and share what they can."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Served, served, tiny

from minfer.settings import Settings

SYSTEM = "You are a helper who answers with care and in few words. " * 4


def ask(n: int) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Question {n}: " + "why? " * (n % 7)},
    ]
    return {"messages": messages, "temperature": 0, "max_tokens": 8 + n % 5}


def text(server: Served, body: dict[str, Any]) -> str:
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def alone() -> list[str]:
    settings = Settings.load({"MINFER_NO_PREFIX_CACHE": "1"})
    with served(tiny(settings=settings, max_sequences=1)) as server:
        return [text(server, ask(n)) for n in range(33)]


@pytest.mark.parametrize("cached", [True, False])
def test_alone_or_among_32_others(alone: list[str], cached: bool) -> None:
    settings = Settings.load({} if cached else {"MINFER_NO_PREFIX_CACHE": "1"})
    with (
        served(tiny(settings=settings, max_sequences=8, n_cells=4096)) as server,
        ThreadPoolExecutor(33) as pool,
    ):
        for _ in range(2):
            assert list(pool.map(lambda n: text(server, ask(n)), range(33))) == alone
        counters = server.service.worker._engine.counters
        assert (counters.cached_tokens > 0) == cached


def test_with_too_few_pages_for_all(alone: list[str]) -> None:
    with (
        served(tiny(max_sequences=8, n_ctx=512, n_cells=1024)) as server,
        ThreadPoolExecutor(33) as pool,
    ):
        assert list(pool.map(lambda n: text(server, ask(n)), range(33))) == alone


def test_a_system_prompt_is_computed_once() -> None:
    with served(tiny(max_sequences=8, n_cells=4096)) as server, ThreadPoolExecutor(8) as pool:
        with server.slow(0.05):
            list(pool.map(lambda n: text(server, ask(n)), range(8)))
        counters = server.service.worker._engine.counters
        n_system = len(SYSTEM)  # a character a token, nearly
        assert counters.prefix_hits == 7
        assert counters.prompt_tokens < 2.5 * n_system


def test_several_choices_share_their_prompt() -> None:
    with served(tiny(max_sequences=8, n_cells=4096)) as server:
        response = server.http.post(
            "/v1/chat/completions", json={**ask(0), "n": 8, "temperature": 1, "seed": 1}
        ).json()
        assert len({choice["message"]["content"] for choice in response["choices"]}) > 1
        counters = server.service.worker._engine.counters
        assert counters.prompt_tokens < 2 * response["usage"]["prompt_tokens"]


def test_too_many_are_told_to_come_again() -> None:
    with (
        served(tiny(max_sequences=1), max_waiting=2) as server,
        ThreadPoolExecutor(12) as pool,
        server.slow(0.01),
    ):
        responses = list(
            pool.map(lambda n: server.http.post("/v1/chat/completions", json=ask(n)), range(12))
        )
        refused = [r for r in responses if r.status_code == 429]
        assert {r.status_code for r in responses} == {200, 429}
        for response in refused:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
