"""`minfer serve` as a process: it starts, drains, stops in time, and says why it cannot start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic

import httpx
import pytest
import typer

from minfer.cli.app import call
from minfer.cli.serve import Limits, Serving, configuration
from minfer.settings import Settings

ROOT = Path(__file__).parent.parent
MODEL = str(ROOT / "tests" / "data" / "models" / "tiny-llama.gguf")


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port, and its address."""
    command = [sys.executable, "-m", "minfer", "serve", MODEL, "--device", "reference"]
    running = subprocess.Popen(
        [*command, "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MINFER_API_KEYS": ""},
    )
    try:
        assert running.stderr is not None
        found = re.match(r"listening on (\S+)/v1", running.stderr.readline())
        assert found
        assert "tiny-llama on reference" in running.stderr.readline()
        yield running, found[1]
    finally:
        running.kill()
        running.wait()
        assert running.stderr is not None
        running.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_and_stops_at_once_when_idle(number: signal.Signals) -> None:
    with process() as (running, url):
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
        began = monotonic()
        running.send_signal(number)
        assert running.wait(5) == 0
        assert monotonic() - began < 2
        assert running.stderr is not None
        lines = running.stderr.read().splitlines()
    (request,) = [line for line in lines if line.startswith("{")]  # before or after the other
    assert json.loads(request)["completion_tokens"] == 3
    assert any("draining" in line for line in lines)


def test_answers_on_a_kept_connection_are_not_held_back() -> None:
    with process() as (_, url), httpx.Client(base_url=url) as client:
        times = []
        for _ in range(11):
            began = monotonic()
            assert client.get("/health").status_code == 200
            times.append(monotonic() - began)
        assert (
            median(times) < 0.03
        )  # 0.04 s where the end of an answer waits for an acknowledgement


def test_accepted_requests_are_answered_first() -> None:
    with process() as (running, url):
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 300,
            "stream": True,
            "ignore_eos": True,
        }
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            text = "\n".join(lines)
        assert '"finish_reason":"length"' in text
        assert text.rstrip().endswith("data: [DONE]")
        assert running.wait(5) == 0


def test_a_drain_has_an_end() -> None:
    with process("--drain", "1", "-c", "1024") as (running, url):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "n": 8}
        body["ignore_eos"] = True
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            next(response.iter_lines())
            running.send_signal(signal.SIGTERM)
            began = monotonic()
            assert running.wait(10) is not None
        assert monotonic() - began < 4


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert call(["serve", MODEL, "--device", "reference", "--port", port]) == 1
    message = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in message
    assert "--port" in message


def test_a_model_that_cannot_be_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    assert call(["serve", str(broken), "--device", "reference", "--port", "0"]) == 1
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--port", "70000"], "--port"),
        (["--timeout", "0"], "--timeout"),
        (["--queue", "-1"], "--queue"),
        (["--max-body", "5000"], "--max-body"),
        (["--api-key", "\x07"], "--api-key"),
    ],
)
def test_a_value_out_of_range(
    capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    assert call(["serve", MODEL, "--device", "reference", *options]) == 2
    assert named in capsys.readouterr().err


def test_keys_come_from_options_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\ntwo\n")
    settings = Settings.load({"MINFER_API_KEYS": "three,four"})
    serving = Serving(api_keys=["five"], api_key_file=file)
    config = configuration(serving, Limits(), settings)
    assert config.api_keys == {"one", "two", "three", "four", "five"}
    with pytest.raises(typer.BadParameter):
        configuration(Serving(port=-1), Limits(), settings)
