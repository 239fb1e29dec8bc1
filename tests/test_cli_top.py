"""The live view: what it reads, and what it makes of two readings."""

from __future__ import annotations

import io
import logging
from time import sleep

import pytest
from rich.console import Console
from serving import served

from minfer.cli.app import call
from minfer.cli.top import Top, parse, quantile, request_line, view

PAGE = """# HELP minfer_inter_token_seconds x
minfer_inter_token_seconds_bucket{le="0.01"} %d
minfer_inter_token_seconds_bucket{le="0.1"} %d
minfer_inter_token_seconds_bucket{le="+Inf"} %d
minfer_generated_tokens_total %d
minfer_kv_pages_total 100.0
minfer_kv_pages_free 40.0
minfer_kv_pages_cached 10.0
"""


def test_rates_and_quantiles_are_of_the_time_between() -> None:
    before, now = parse(PAGE % (10, 10, 10, 100)), parse(PAGE % (10, 19, 20, 160))
    assert quantile(now, before, "inter_token_seconds", 0.5) == 0.1
    assert quantile(now, before, "inter_token_seconds", 0.99) == float("inf")
    assert quantile(now, {}, "inter_token_seconds", 0.5) == 0.01
    assert quantile(now, now, "inter_token_seconds", 0.5) is None
    assert quantile(now, {}, "time_to_first_token_seconds", 0.5) is None
    console = Console(file=io.StringIO(), width=100)
    console.print(view("http://x", now, before, 2.0, ["200 GET /health"]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "30 t/s" in text
    assert "50 of 100" in text
    assert "200 GET /health" in text


def test_a_request_in_words() -> None:
    note = {"status": 400, "method": "POST", "path": "/x", "ms": 1.5, "error": "no"}
    assert request_line(note) == "400 POST /x  1.5 ms  no"
    told = {**note, "prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 2, "error": ""}
    assert "9 (4 cached) -> 2 tokens" in request_line(told)


def test_it_watches_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("minfer.cli.top.EVERY", 0.02)
    log = logging.getLogger("minfer.server")
    level = log.level
    with served(api_keys=frozenset({"k"})) as server:
        top = Top(server.url, "k")
        log.addHandler(top)
        log.setLevel(logging.INFO)
        server.http.get("/v1/models", headers={"X-Api-Key": "k"})
        server.until(lambda: bool(top._lines))
        sleep(0.1)
        log.removeHandler(top)
        log.setLevel(level)
        top.close()
    seen = capsys.readouterr().err
    assert "running" in seen
    assert "GET /v1/models" in seen


def test_it_needs_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["serve", "x.gguf", "--top", "--no-metrics"]) == 2
    assert "--top" in capsys.readouterr().err
