"""The page's server: a live model, a saved trace, misuse, and who may ask at all."""

from __future__ import annotations

import gc
import http.client
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tiny_models import expected, generate, make_engine, path_of

from minfer import LLM
from minfer.cli.app import call
from minfer.errors import RequestError, ServerError
from minfer.trace import Trace, open_sink, read_trace, record
from minfer.viz import Feed, LiveModel, SavedTrace, Source, VizServer, comparison

JSON = {"Content-Type": "application/json"}
PROMPT = {"prompt": "Hello there", "max_tokens": 4, "temperature": 0, "chat": False}


class Client:
    """Asks a server as a page would."""

    def __init__(self, server: VizServer) -> None:
        self._port = int(server.url.rsplit(":", 1)[1].strip("/"))

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, JSON if headers is None else headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        kind = reply.headers.get_content_type()
        return reply.status, json.loads(content) if kind == "application/json" else content

    @contextmanager
    def events(self) -> Iterator[Iterator[tuple[str, Any]]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", "/events")
        reply = connection.getresponse()
        assert reply.headers["Content-Type"] == "text/event-stream"

        def read() -> Iterator[tuple[str, Any]]:
            kind = ""
            while line := reply.readline().decode().strip("\n"):
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))
                    assert reply.readline() == b"\n"

        try:
            yield read()
        finally:
            reply.close()
            connection.close()


@contextmanager
def serving(
    make: Callable[[Feed], Source], compared: dict[str, Any] | None = None
) -> Iterator[Client]:
    feed = Feed()
    server = VizServer(0, feed, lambda: make(feed), compared)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Client(server)
    finally:
        server.close()
        thread.join()


def live(feed: Feed) -> LiveModel:
    return LiveModel(lambda: LLM(path_of("qwen2"), device="reference"), feed)


def until(events: Iterator[tuple[str, Any]], kind: str, state: str = "") -> list[tuple[str, Any]]:
    """Events up to one of a kind."""
    found = []
    for event in events:
        found.append(event)
        assert event[0] != "status" or state == "failed" or event[1]["state"] != "failed", event
        if event[0] == kind and (not state or event[1]["state"] == state):
            return found
    raise AssertionError(f"no {kind} {state} came")


def test_a_prompt_is_told_step_by_step() -> None:
    with serving(live) as client, client.events() as events:
        until(events, "status", "ready")
        assert client.ask("POST", "/generate", PROMPT) == (200, None)
        found = until(events, "status", "ready")
        kinds = [kind for kind, _ in found]
        assert kinds.count("step") == kinds.count("token") == 4
        assert kinds.index("prompt") < kinds.index("step") < kinds.index("usage")
        steps = [content for kind, content in found if kind == "step"]
        tokens = [content for kind, content in found if kind == "token"]
        for step, token in zip(steps, tokens, strict=True):
            assert step["top"][0][0][0] == token["token"]
            assert sum(step["nodes"][-1][-1]) == 512  # the histogram counts every logit
        status, found_weights = client.ask("GET", "/attention?layer=1&head=0")
        assert status == 200
        assert len(found_weights["weights"]) == len(found_weights["texts"])
        assert client.ask("POST", "/generate", PROMPT)[0] == 200  # tracing goes on afterwards
        assert "step" in [kind for kind, _ in until(events, "usage")]


def test_a_page_before_the_model_is_told_so() -> None:
    go = threading.Event()

    def slow(feed: Feed) -> LiveModel:
        def load() -> LLM:
            go.wait(20)
            return LLM(path_of("qwen2"), device="reference")

        return LiveModel(load, feed)

    with serving(slow) as client, client.events() as events:
        assert next(events) == ("status", {"state": "loading", "error": ""})
        for answer in (
            client.ask("POST", "/generate", PROMPT),
            client.ask("GET", "/attention?layer=0&head=0"),
        ):
            assert answer[0] == 409
            assert "not loaded yet" in answer[1]["error"]
        go.set()
        until(events, "status", "ready")


def test_a_model_that_cannot_be_loaded_is_told() -> None:
    def broken(feed: Feed) -> LiveModel:
        return LiveModel(lambda: LLM("no/such/model.gguf", device="reference"), feed)

    with serving(broken) as client, client.events() as events:
        _, status = until(events, "status", "failed")[-1]
        assert "no/such/model.gguf" in status["error"]


def test_one_prompt_at_a_time_and_stopping() -> None:
    with serving(live) as client, client.events() as events:
        until(events, "status", "ready")
        assert client.ask("POST", "/generate", PROMPT | {"max_tokens": 1000})[0] == 200
        until(events, "token")
        assert client.ask("POST", "/generate", PROMPT)[0] == 409
        assert client.ask("GET", "/attention?layer=0&head=0")[0] == 409
        assert client.ask("POST", "/stop")[0] == 200
        found = until(events, "status", "ready")
        assert ("usage", "cancelled") in [
            (kind, content.get("reason")) for kind, content in found if kind == "usage"
        ]


def test_misuse_is_told() -> None:
    with serving(live) as client, client.events() as events:
        until(events, "status", "ready")
        bad: list[tuple[Any, str]] = [
            (PROMPT | {"prompt": ""}, "the prompt is empty"),
            (PROMPT | {"max_tokens": "many"}, "[max_tokens] value 'many' is unusable"),
            (PROMPT | {"temperature": -1}, "temperature"),
            (PROMPT | {"chat": 1}, "[chat] value 1 is unusable"),
            ({}, "[prompt] value None is unusable"),
            (b"{oops", "is no JSON"),
            (b"[1]", "is no object"),
        ]
        for body, message in bad:
            status, answer = client.ask("POST", "/generate", body)
            assert status == 400
            assert message in answer["error"]
        assert client.ask("POST", "/generate", PROMPT, {"Content-Type": "text/plain"})[0] == 400
        assert client.ask("GET", "/attention?layer=0&head=x")[0] == 400
        assert "there is no text yet" in client.ask("GET", "/attention?layer=0&head=0")[1]["error"]
        for path in ("/../server.py", "/nothing.js", "/%2e%2e/server.py", "/page/"):
            assert client.ask("GET", path)[0] == 404
        assert client.ask("POST", "/else", {})[0] == 404


def test_only_this_machine_may_ask() -> None:
    with serving(live) as client:
        for headers in (
            {"Host": "evil.example:80"},
            {"Host": "127.0.0.1.evil.example"},
            {"Origin": "http://evil.example", **JSON},
        ):
            assert client.ask("POST", "/generate", PROMPT, headers)[0] == 403
            assert client.ask("GET", "/", None, headers)[0] == 403
        status, page = client.ask("GET", "/")
        assert status == 200
        assert b"<title>minfer viz</title>" in page
        assert b"//" not in page.replace(b"http://www.w3.org", b"")  # nothing from elsewhere


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    engine = make_engine("qwen2", "reference")
    recorder = record(engine, open_sink(path, "json"), model="tiny", text=str)
    generate(engine, expected("qwen2")["ids"].tolist()[:6])
    recorder.close()
    engine.close()
    return read_trace(path)


def test_a_saved_trace_needs_no_model(trace: Trace) -> None:
    compared = comparison(trace, trace)
    with serving(lambda feed: SavedTrace(trace, feed), compared) as client:
        with client.events() as events:
            status = next(content for kind, content in events if kind == "status")
            assert status == {"state": "saved", "error": ""}
        for answer in (
            client.ask("POST", "/generate", PROMPT),
            client.ask("GET", "/attention?layer=0&head=0"),
        ):
            assert answer[0] == 400
            assert "a saved trace" in answer[1]["error"]
        found = client.ask("GET", "/compare")[1]
        assert found["nodes"] == found["equal"] > 0
        assert found["parting"] is None


def test_a_port_in_use_is_refused_before_anything_is_loaded() -> None:
    def never() -> Source:
        raise AssertionError("nothing may be loaded")

    feed = Feed()
    with serving(live) as client, pytest.raises(ServerError, match="is in use"):
        VizServer(client._port, feed, never)


def test_misuse_of_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trace: Trace
) -> None:
    cut = tmp_path / "cut"
    cut.write_text('{"format":"other"}\n')
    perfetto = tmp_path / "perfetto"
    perfetto.write_text('[\n{"pid": 1}\n]')
    for arguments, message in (
        ([str(path_of("qwen2")), "--compare", str(trace.path)], "only a trace compares"),
        ([str(trace.path), "--port", "70000"], "value 70000 is no port"),
        ([str(cut)], "is no minfer trace"),
        ([str(perfetto)], "is no minfer trace"),
    ):
        assert call(["viz", *arguments, "--no-open"]) in (1, 2)
        assert message in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_ends_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_text("hello")
    for name, message in ((str(wrong), "It is not a GGUF file"), ("WRONG", "is no file")):
        assert call(["viz", name, "--port", "0", "--no-open"]) == 1
        told = capsys.readouterr().err
        assert "error: " in told and message in told
        assert ("http://" in told) == (name != "WRONG")  # nothing is served for no model at all


def test_the_end_frees_the_model_though_a_page_is_still_connected() -> None:
    """A connection's thread may live on at exit: an engine in its reach is reported as a leak."""
    made: list[weakref.ref[LLM]] = []

    def load() -> LLM:
        llm = LLM(path_of("qwen2"), device="reference")
        made.append(weakref.ref(llm))
        return llm

    feed = Feed()
    listener = feed.listen()
    model = LiveModel(load, feed)
    while '"ready"' not in (listener.get(timeout=20) or '"ready"'):
        pass
    engine = weakref.ref(model._engine)
    model.close()
    gc.collect()
    assert made[0]() is None
    assert engine() is None


def test_prompts_are_checked_before_they_are_queued() -> None:
    feed = Feed()
    model = live(feed)
    try:
        end = time.monotonic() + 20
        while model._llm is None and time.monotonic() < end:
            time.sleep(0.01)
        with pytest.raises(RequestError):
            model.generate("x", -5, 0.0, False)
        model.generate("Hello", 1, 0.0, False)
    finally:
        model.close()
