"""Health, models, metrics, props and slots; and the time before the model is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Served, served, tiny
from starlette.testclient import TestClient

from minfer.errors import BackendError
from minfer.llm import LLM
from minfer.scheduler import CompiledPlan
from minfer.server import ServerConfig, create_app
from minfer.server.worker import FAILURES

ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(model_name="my/model") as running:
        yield running


def metrics(server: Served) -> dict[str, float]:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_models(server: Served) -> None:
    (model,) = server.http.get("/v1/models").json()["data"]
    assert model["id"] == "my/model"
    assert model["object"] == "model"
    assert model["meta"]["n_ctx"] == 1024
    assert server.http.get("/v1/models/my/model").json() == model
    missing = server.http.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert server.http.post("/v1/chat/completions", json=ASK).json()["model"] == "my/model"


def test_metrics_count_what_happened(server: Served) -> None:
    before = metrics(server)
    usage = server.http.post("/v1/chat/completions", json=ASK).json()["usage"]
    server.http.post("/v1/chat/completions", json={})
    server.http.get("/made/up")
    after = metrics(server)

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert grown("minfer_generated_tokens_total") == usage["completion_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert grown("minfer_prompt_tokens_total") == usage["prompt_tokens"] - cached
    assert grown("minfer_time_to_first_token_seconds_count") == 1
    assert grown("minfer_inter_token_seconds_count") == usage["completion_tokens"] - 1
    assert grown("minfer_requests_total/v1/chat/completions200") == 1
    assert grown("minfer_requests_total/v1/chat/completions400") == 1
    assert grown("minfer_requests_totalnone404") == 1
    assert after["minfer_kv_pages_total"] >= after["minfer_kv_pages_free"]


def test_slots_show_what_runs_and_not_what_it_says(server: Served) -> None:
    idle = server.http.get("/slots").json()
    assert len(idle) == 8
    assert not any(slot["is_processing"] for slot in idle)
    with (
        server.slow(),
        server.http.stream(
            "POST", "/v1/chat/completions", json={**ASK, "max_tokens": 50, "stream": True}
        ) as stream,
    ):
        server.until(lambda: server.service.worker._engine.n_running == 1)
        busy = server.http.get("/slots").text
        stream.close()
    assert '"is_processing":true' in busy
    assert "hi" not in busy.replace("which", "").replace("this", "")


def test_no_free_slot_is_503_where_asked() -> None:
    with served(tiny(max_sequences=1)) as server, server.slow():
        path = "/slots?fail_on_no_slot=1"
        assert server.http.get(path).status_code == 200
        body = {**ASK, "max_tokens": 50, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as stream:
            server.until(lambda: server.service.worker._engine.n_running == 1)
            assert server.http.get(path).status_code == 503
            stream.close()


def test_props(server: Served) -> None:
    props = server.http.get("/props").json()
    assert props["total_slots"] == 8
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["chat_template"] == server.service.llm.template.source
    assert "/" not in props["model_path"]  # where it lies is nobody's business


def test_the_pages_of_the_api(server: Served) -> None:
    assert server.http.get("/docs").status_code == 200
    paths = server.http.get("/openapi.json").json()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"):
        assert "requestBody" in paths[path]["post"]
        if path != "/v1/embeddings":
            kinds = paths[path]["post"]["responses"]["200"]["content"]
            assert set(kinds) == {"application/json", "text/event-stream"}
    for operations in paths.values():
        for operation in operations.values():
            assert set(operation["responses"]) == {"200", "4XX", "5XX"}  # as they are answered
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}


def test_what_is_switched_off_says_so() -> None:
    with served(metrics=False, slots=False) as server:
        for path in ("/metrics", "/slots"):
            response = server.http.get(path)
            assert response.status_code == 501
            assert response.json()["error"]["type"] == "not_supported_error"


def test_until_the_model_is_there_everything_is_503() -> None:
    go_on = threading.Event()

    def load() -> LLM:
        go_on.wait(20)
        return tiny()

    failures: list[Exception] = []
    app = create_app(load, ServerConfig(), failed=failures.append)
    with TestClient(app) as client:
        for path in ("/health", "/v1/models", "/slots"):
            response = client.get(path)
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "unavailable_error"
        assert client.post("/v1/chat/completions", json=ASK).status_code == 503
        go_on.set()
        while client.get("/health").status_code != 200:
            continue
        assert client.post("/v1/chat/completions", json=ASK).status_code == 200
    assert not failures


def test_a_broken_engine_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BackendError("the device is gone", where="cuda")

    with served() as server:
        assert server.http.get("/health").json() == {"status": "ok"}
        monkeypatch.setattr(CompiledPlan, "enqueue", fail)
        for _ in range(FAILURES):
            failed = server.http.post("/v1/chat/completions", json=ASK)
            assert failed.status_code == 500
            assert failed.json()["error"]["code"] == "backend_error"
        server.until(lambda: server.http.get("/health").status_code == 503)
        assert "the device is gone" in server.http.get("/health").text
        assert server.http.post("/v1/chat/completions", json=ASK).status_code == 503
