"""A long run of mixed clients: answered, impatient, malformed, slow; and what is left after it.

    python -m bench.soak MODEL.gguf [--minutes 20] [--device cpu]

Fails if a request is neither answered nor refused properly, if one in a hundred waits too long, if
pages are not free at the end, or if memory grew. At the end the server is told to stop in the
middle of answers: it must finish these, and be gone within 2 s after the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from urllib.request import urlopen

from bench import results
from bench.serve import free_port, question, running

KINDS = ("whole", "stream", "leave", "malformed", "slow", "tools", "long", "embed")
PATIENCE = 120.0
LATE = 60.0
"""Seconds within which 99 of 100 answers must be there; three clients share a place."""


async def client(port: int, kind: str, source: random.Random) -> str:
    """One request of a kind; answers how it ended."""
    path, body = request(kind, source)
    data = b'{"messages": [' if kind == "malformed" else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        if kind == "leave":
            await asyncio.sleep(source.random() * 2)
            writer.transport.abort()
            return "left"
        status = (await reader.readline()).split()[1].decode()
        while await reader.read(256 if kind == "slow" else 65536):
            if kind == "slow":
                await asyncio.sleep(0.02)
        return status
    finally:
        writer.close()


def request(kind: str, source: random.Random) -> tuple[str, dict[str, object]]:
    """The path and the body of a request."""
    if kind == "embed":
        return "/v1/embeddings", {"input": [question(source)] * source.randint(1, 4)}
    text = question(source)
    if kind == "long":
        text += " and so on" * source.randint(50, 250)
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": source.randint(1, 96),
        "stream": kind in ("stream", "slow", "leave"),
        "n": source.choice((1, 1, 1, 3)),
    }
    if kind == "tools":
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        function = {"name": "f", "parameters": schema}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return "/v1/chat/completions", body


async def soak(port: int, seconds: float, n_clients: int) -> tuple[Counter[str], list[float]]:
    """Clients of all kinds until the time is over; how they ended, and how long the whole took."""
    ends: Counter[str] = Counter()
    times: list[float] = []
    over = perf_counter() + seconds

    async def go_on(number: int) -> None:
        source = random.Random(number)
        while perf_counter() < over:
            kind = source.choice(KINDS)
            began = perf_counter()
            end = await asyncio.wait_for(client(port, kind, source), PATIENCE)
            ends[f"{kind} {end}"] += 1
            if end == "200":
                times.append(perf_counter() - began)

    await asyncio.gather(*(go_on(n) for n in range(n_clients)))
    return ends, times


def metric(port: int, name: str) -> float:
    """A figure of the server."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        found = re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def resident(process: int) -> float:
    """MiB of memory a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def main() -> None:
    """Run, print, and fail where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "minfer", "serve", str(options.model), "--port", str(port)]
    command += ["--device", options.device, "--queue", "16", "--parallel", "4", "-c", "1024"]
    with running(command, port) as process:
        asyncio.run(soak(port, 20, options.clients))  # caches and pools reach their size
        before = resident(process.pid)
        ends, times = asyncio.run(soak(port, 60 * options.minutes, options.clients))
        asyncio.run(asyncio.sleep(3))
        after = resident(process.pid)
        free = metric(port, "minfer_kv_pages_free") + metric(port, "minfer_kv_pages_cached")
        total = metric(port, "minfer_kv_pages_total")
        busy = metric(port, "minfer_requests_running") + metric(port, "minfer_requests_waiting")
        lost = asyncio.run(stop_amid_answers(port, process))
        began = perf_counter()
        stopped = _wait(process, 10)
        seconds = perf_counter() - began
    for end, count in sorted(ends.items()):
        print(f"{end:20} {count}")
    times.sort()
    middle, late = times[len(times) // 2], times[-len(times) // 100]
    row = {
        "minutes": options.minutes,
        "clients": options.clients,
        "requests": ends.total(),
        "answered": sum(n for end, n in ends.items() if end.endswith(" 200")),
        "refused": sum(n for end, n in ends.items() if end.endswith((" 400", " 429"))),
        "left": ends["leave left"],
        "answer_p50_s": middle,
        "answer_p99_s": late,
        "memory_before_mib": before,
        "memory_after_mib": after,
        "pages_free_or_cached": free,
        "pages": total,
        "stopped_after_s": seconds,
    }
    print(results.table([row]))
    good = {"200", "429", "left"}
    wrong = [end for end in ends if end.split()[1] not in good and end != "malformed 400"]
    assert not wrong, wrong
    assert late < LATE
    assert free == total
    assert busy == 0
    assert after < before * 1.1 + 20
    assert lost == 0
    assert stopped == 0
    assert seconds < 2
    results.append("soak", [row])


async def stop_amid_answers(port: int, process: subprocess.Popen[bytes]) -> int:
    """Tell the server to stop while it streams; how many answers do not come to their end."""
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True}
    data = json.dumps({**body, "max_tokens": 200}).encode()
    streams = []
    for _ in range(8):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        streams.append((reader, writer))
    begun = await asyncio.gather(*(reader.readuntil(b"data: ") for reader, _ in streams))
    process.send_signal(signal.SIGTERM)
    rest = await asyncio.gather(*(reader.read() for reader, _ in streams))
    for _, writer in streams:
        writer.close()
    return len(begun) - sum(b"data: [DONE]" in text for text in rest)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    main()
