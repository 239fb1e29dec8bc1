"""A server under load: output speed, time to the first token, time between tokens.

    python -m bench.serve MODEL.gguf [--clients 1 4 8 16 64] [--rates 0.5 2] [--seconds 30]
        [--rounds 3] [--rival-python PYTHON]

A closed loop of clients that each ask again once they are answered, and open arrivals at a Poisson
rate. Prompts are real ones of several lengths, answers end where the model ends them or at 128
tokens. The rival is the server of `llama-cpp-python`, run by the Python that has it installed; it
answers one request at a time. Rounds of the two alternate; a row is the round of middle speed.
Client and server share the machine, for both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from urllib.request import urlopen

from bench import results

MAX_TOKENS = 128
SYSTEM = "You are a helpful assistant. Answer truthfully, in plain words, and keep to the point."
QUESTIONS = (
    "What is the capital of France?",
    "Explain why the sky is blue to a child of six.",
    "Write a short poem about a lighthouse in winter.",
    "How do I sort a list of dictionaries by a key in Python?",
    "Give me three ideas for a cheap dinner with rice and beans.",
    "What is the difference between a virus and a bacterium?",
    "Summarise the plot of Romeo and Juliet in four sentences.",
    "Translate into French: Where is the nearest railway station, please?",
    "Why did the Roman Empire fall? Name the reasons historians discuss most.",
    "Write an email to my landlord about a broken heater, politely but firmly.",
    "What should I see in Lisbon in two days if I like architecture and good coffee?",
    "A train leaves at nine and travels 240 kilometres at 80 an hour. When does it arrive?",
)
PASSAGE = (
    "The harbour lay still that morning. Fishermen mended their nets on the quay while gulls "
    "circled the masts, and from the market came the smell of bread and oranges. "
)


def question(source: random.Random) -> str:
    """A question as people ask them; one in four brings a passage of 100 to 600 words."""
    asked = source.choice(QUESTIONS)
    if source.random() < 0.25:
        passage = PASSAGE * source.randint(3, 18)
        asked = f"Read this:\n\n{passage}\n\nNow tell me what it is about. Then: {asked}"
    return asked


@dataclass
class Answer:
    """What one request saw, in seconds from its start."""

    asked: float
    tokens: list[float] = field(default_factory=list)  # none if it failed

    @property
    def first(self) -> float:
        """Time to the first token."""
        return self.tokens[0]

    @property
    def gaps(self) -> list[float]:
        """Times between tokens."""
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


async def ask(port: int, text: str) -> Answer:
    """Ask and read the stream. A plain socket, so that the client costs little."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
    data = json.dumps({"model": "any", **body}).encode()
    answer = Answer(perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            print("failed:", (status + await reader.read())[:300], file=sys.stderr)
            return answer
        async for chunk in _chunks(reader):
            choices = chunk.get("choices") or [{}]
            if choices[0].get("delta", {}).get("content"):
                answer.tokens.append(perf_counter() - answer.asked)
    finally:
        writer.close()
    return answer


async def _chunks(
    reader: asyncio.StreamReader,
) -> AsyncIterator[dict[str, list[dict[str, dict[str, str]]]]]:
    async for line in reader:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


async def closed_loop(port: int, n_clients: int, seconds: float) -> tuple[list[Answer], float]:
    """Clients that ask again once they are answered; all answers, and how long it took."""
    began = perf_counter()
    answers: list[Answer] = []

    async def client(number: int) -> None:
        source = random.Random(number)
        while perf_counter() - began < seconds:
            answers.append(await ask(port, question(source)))

    await asyncio.gather(*(client(n) for n in range(n_clients)))
    return answers, perf_counter() - began


async def arrivals(port: int, rate: float, seconds: float) -> tuple[list[Answer], float]:
    """Requests at random times, `rate` a second on average, however long answers take."""
    source = random.Random(7)
    began = perf_counter()
    running = []
    while perf_counter() - began < seconds:
        running.append(asyncio.create_task(ask(port, question(source))))
        await asyncio.sleep(source.expovariate(rate))
    answers = await asyncio.gather(*running)
    return answers, perf_counter() - began


def row(server: str, load: str, answers: list[Answer], seconds: float) -> dict[str, object]:
    """The figures of a load."""
    told = [a for a in answers if a.tokens]
    gaps = sorted(gap for a in told for gap in a.gaps)
    firsts = sorted(a.first for a in told)
    return {
        "server": server,
        "load": load,
        "requests": len(answers),
        "failed": len(answers) - len(told),
        "tokens_per_second": sum(len(a.tokens) for a in told) / seconds,
        "ttft_p50_ms": median(firsts) * 1e3,
        "ttft_p99_ms": _quantile(firsts, 0.99) * 1e3,
        "between_p50_ms": median(gaps) * 1e3,
        "between_p99_ms": _quantile(gaps, 0.99) * 1e3,
    }


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server on a port while the block runs."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = perf_counter() + 120
        while not _is_up(port):
            if process.poll() is not None or perf_counter() > end:
                raise RuntimeError(f"does not start: {' '.join(command)}")
            sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _is_up(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def commands(options: argparse.Namespace) -> Iterator[tuple[str, int, list[str]]]:
    """Each server's name, its port, and how it is started."""
    model, context = str(options.model), "2048"
    port = free_port()
    own = [sys.executable, "-m", "minfer", "serve", model, "--port", str(port), "-c", context]
    own += ["--parallel", str(options.parallel), "--device", options.device, "--queue", "1000"]
    yield "minfer", port, own
    if options.rival_python:
        port = free_port()
        rival = [options.rival_python, "-m", "llama_cpp.server", "--model", model]
        rival += ["--port", str(port), "--n_ctx", context, "--interrupt_requests", "False"]
        yield "llama-cpp-python", port, rival


def middle(rows: list[dict[str, object]]) -> dict[str, object]:
    """The row of the middle speed, of several rounds of one load."""
    return sorted(rows, key=lambda r: float(str(r["tokens_per_second"])))[len(rows) // 2]


def main() -> None:
    """Measure, print, append to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 8, 16, 64])
    parser.add_argument("--rates", type=float, nargs="*", default=[0.5, 2.0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rival-python")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with ExitStack() as servers:
        ports: dict[str, int] = {}
        for name, port, command in commands(options):
            servers.enter_context(running(command, port))
            asyncio.run(closed_loop(port, 1, 3.0))  # warm up
            ports[name] = port
        loads = [(f"{n} clients", closed_loop, n) for n in options.clients]
        loads += [(f"{rate:g}/s Poisson", arrivals, rate) for rate in options.rates]
        for load, drive, amount in loads:
            rounds: dict[str, list[dict[str, object]]] = {name: [] for name in ports}
            for _ in range(options.rounds):  # in turn, so that the machine's moods meet both
                for name, port in ports.items():
                    answers, seconds = asyncio.run(drive(port, amount, options.seconds))
                    rounds[name].append(row(name, load, answers, seconds))
            rows += [middle(found) for found in rounds.values()]
            print(results.table(rows[-len(ports) :]), flush=True)
    results.append("serve", rows)


if __name__ == "__main__":
    main()
