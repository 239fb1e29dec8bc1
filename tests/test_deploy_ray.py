"""Replicas on one machine: one killed under load, where nothing is lost without an error; and more
of them when there is more to do.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

ray = pytest.importorskip("ray", reason="needs the extra `ray`")

ROOT = Path(__file__).parent.parent
MODEL = str(ROOT / "tests" / "data" / "models" / "tiny-llama.gguf")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


PORT = random.randint(20000, 40000)
URL = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    from ray import serve

    ray.init(
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT / "src")}},
    )
    serve.start(http_options={"port": PORT})
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def url(cluster: None) -> str:
    from ray import serve

    from minfer.deploy import application

    serve.run(application(MODEL, replicas=2, device="reference", cpus=0.5))
    return URL


def ask(url: str, text: str, **more: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{url}/v1/chat/completions", json=body | more, timeout=60)


def replicas() -> set[int]:
    """Process ids of the replicas."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::ServeReplica:default:minfer-replica"):
            found.add(int(path.parent.name))
    return found


def test_conversations_stay_with_their_replica(url: str) -> None:
    for n in range(4):
        first = ask(url, f"Question {n}: " + "tell me more, please. " * 8).json()
        again = ask(url, f"Question {n}: " + "tell me more, please. " * 8).json()
        assert first["choices"][0]["message"] == again["choices"][0]["message"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 64


def test_streams_and_errors_pass_through(url: str) -> None:
    text = ask(url, "hello", stream=True).text
    assert text.startswith("data: {")
    assert text.endswith("data: [DONE]\n\n")
    assert ask(url, "hello", temperature=-1).json()["error"]["param"] == "temperature"
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_one_replica_killed_under_load(url: str) -> None:
    expected = [ask(url, f"Number {n}").json()["choices"][0]["message"] for n in range(12)]
    before = replicas()
    assert len(before) == 2

    def one(n: int) -> str:
        stream = n % 3 == 0
        try:
            response = ask(url, f"Number {n % 12}", stream=stream, max_tokens=8)
        except httpx.TransportError:
            return "cut"  # the client sees it
        if response.status_code != 200:
            assert response.json()["error"]["message"]
            return "refused"
        if stream:
            assert "[DONE]" in response.text or '"error"' in response.text
            return "error" if '"error"' in response.text else "answered"
        assert response.json()["choices"][0]["message"] == expected[n % 12]
        return "answered"

    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(one, n) for n in range(120)]
        time.sleep(0.5)
        os.kill(min(before), 9)
        ends = [future.result(90) for future in running]
    assert ends.count("answered") >= 100
    until(lambda: len(replicas()) == 2 and replicas() != before, "the replica was not replaced")
    assert all(one(n) == "answered" for n in range(12))


def test_the_number_of_replicas_follows_the_load(cluster: None) -> None:
    from ray import serve

    from minfer.deploy import application

    quickly = {
        "metrics_interval_s": 0.2,
        "look_back_period_s": 1,
        "upscale_delay_s": 0.5,
        "downscale_delay_s": 1,
    }
    options: dict[str, Any] = {"device": "reference", "cpus": 0.5, "max_sequences": 2}
    serve.run(application(MODEL, replicas=1, max_replicas=2, autoscaling=quickly, **options))
    until(lambda: len(replicas()) == 1, "the earlier replicas go on")

    busy = True

    def one(n: int) -> None:
        while busy:
            assert ask(URL, f"Number {n}", max_tokens=64).status_code == 200

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(one, n) for n in range(8)]
        try:
            until(lambda: len(replicas()) == 2, "no second replica came")
        finally:
            busy = False
        for future in running:
            future.result(90)
    until(lambda: len(replicas()) == 1, "the second replica stays")
    assert ask(URL, "hello").status_code == 200


def until(done: Callable[[], bool], otherwise: str) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, otherwise
        time.sleep(0.2)
