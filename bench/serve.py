"""A server under load: output speed, time to the first token, time between tokens.

    python -m bench.serve MODEL.gguf [--clients 1 4 8 16 64] [--rates 0.5 2] [--seconds 15]
        [--rounds 3] [--rival-python PYTHON]

A closed loop of clients that each ask again once they are answered, and open arrivals at a Poisson
rate. Prompts are as people write them, of several lengths, and hardly one comes twice; answers are
greedy and end where the model ends them or at 128 tokens. The rival is `bench.llama_server`,
llama.cpp batched as llama-server does it, run by the Python that has `llama_cpp`. Both have the
same threads, places and context. Rounds of the two alternate with the same prompts; `x_rival` is
the median over rounds of the ratio in output speed, all else the round of middle speed. Client and
server share the machine, for both alike.

What is said is checked in the same run: minfer's answer to a prompt must be the same whenever it
comes and whatever runs beside it (`varying` counts prompts of which this is not so), and most
answers of the two must begin alike (`alike` is the share whose first 20 characters are the same;
a model this small soon goes another way for the least difference in arithmetic).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any
from urllib.request import urlopen

from bench import results

OWN, RIVAL = "minfer", "llama.cpp"
CONTEXT = "2048"
MAX_TOKENS = 128
BEGINNING = 20
"""Characters of an answer that are compared between servers."""
SYSTEM = "You are a helpful assistant. Answer truthfully, in plain words, and keep to the point."
QUESTIONS = (
    "What is {a}?",
    "Explain {a} to a child of six.",
    "Write a short poem about {a} and {b} in winter.",
    "How do I sort a list of records about {a} by date in Python?",
    "Give me three ideas for a cheap evening that has to do with {a}.",
    "What is the difference between {a} and {b}?",
    "Summarise what historians say about {a} in four sentences.",
    "Translate into French: Where can I find {a}, please, and is it far from {b}?",
    "Why did people begin to care about {a}? Name the reasons that matter most.",
    "Write an email to my landlord about {a}, politely but firmly.",
    "What should I read in two days if I like {a} and know nothing about {b}?",
    "A train with {a} leaves at nine and goes 240 kilometres at 80 an hour. When does it arrive?",
)
THINGS = (
    "a lighthouse", "the Roman Empire", "a broken heater", "photosynthesis", "the blue sky",
    "a sourdough starter", "compound interest", "the French Revolution", "a virus", "jazz",
    "rice and beans", "an old bicycle", "the speed of light", "a railway station", "chess",
    "Lisbon", "a bacterium", "good coffee", "plate tectonics", "the printing press", "a cello",
    "vaccines", "Romeo and Juliet", "black holes", "a tax return", "the Silk Road", "glaciers",
    "a garden in the shade", "probability", "honey bees", "the invention of zero", "a fugue",
)  # fmt: skip
SENTENCES = (
    "The harbour lay still that morning.",
    "Fishermen mended their nets on the quay while gulls circled the masts.",
    "From the market came the smell of bread and oranges.",
    "Nobody had seen the ferry since the storm, and the clerk would not say why.",
    "A child counted the boats twice and got a different number each time.",
    "In the tavern they spoke of taxes, of weather, and of the new engine in the mill.",
    "The doctor wrote three letters and burned two of them.",
    "By noon the heat had driven everyone but the dogs into the shade.",
    "An old map on the wall showed a coast that had long since moved.",
    "Her brother sold rope, lamps and, when asked politely, advice.",
    "The council met at dusk and agreed on nothing except the date of its next meeting.",
    "When the bell rang the whole square looked up and then away.",
    "It was said that the lighthouse keeper read the same book every winter.",
    "Two carts blocked the bridge, and neither driver would go back.",
)


def question(source: random.Random) -> str:
    """A question as people ask them."""
    first, second = source.sample(THINGS, 2)
    return source.choice(QUESTIONS).format(a=first, b=second)


def prompt(source: random.Random) -> str:
    """A question; one in four comes with a text of 100 to 600 words."""
    asked = question(source)
    if source.random() < 0.25:
        text = " ".join(source.choices(SENTENCES, k=source.randint(8, 50)))
        asked = f"Read this:\n\n{text}\n\nNow tell me what it is about. Then: {asked}"
    return asked


@dataclass
class Answer:
    """What one request saw.

    Attributes:
        prompt: what was asked.
        times: when pieces of text came, in seconds from its start; none if it failed.
        text: all of them.
        n_tokens: tokens generated, as the server counts them.
    """

    prompt: str
    times: list[float] = field(default_factory=list)
    text: str = ""
    n_tokens: int = 0

    @property
    def gaps(self) -> list[float]:
        """Times between pieces."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


async def ask(port: int, text: str) -> Answer:
    """Ask and read the stream. A plain socket, so that the client costs little."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    data = json.dumps({"model": "any", **body}).encode()
    answer = Answer(text)
    began = perf_counter()
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
            for choice in chunk.get("choices", ()):
                if said := choice["delta"].get("content"):
                    answer.times.append(perf_counter() - began)
                    answer.text += said
            if chunk.get("usage"):
                answer.n_tokens = chunk["usage"]["completion_tokens"]
    finally:
        writer.close()
    return answer


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    async for line in reader:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


Loaded = tuple[list[Answer], float]
Load = Callable[[int, float, float, int], Coroutine[Any, Any, Loaded]]


async def closed_loop(port: int, n_clients: float, seconds: float, seed: int) -> Loaded:
    """Clients that ask again once they are answered; all answers, and how long it took."""
    began = perf_counter()
    answers: list[Answer] = []

    async def client(number: int) -> None:
        source = random.Random(f"{seed} {number}")
        while perf_counter() - began < seconds:
            answers.append(await ask(port, prompt(source)))

    await asyncio.gather(*(client(n) for n in range(int(n_clients))))
    return answers, perf_counter() - began


async def arrivals(port: int, rate: float, seconds: float, seed: int) -> Loaded:
    """Requests at random times, `rate` a second on average, however long answers take."""
    source = random.Random(seed)
    began = perf_counter()
    running = []
    while perf_counter() - began < seconds:
        running.append(asyncio.create_task(ask(port, prompt(source))))
        await asyncio.sleep(source.expovariate(rate))
    answers = await asyncio.gather(*running)
    return answers, perf_counter() - began


def figures(answers: list[Answer], seconds: float) -> dict[str, float]:
    """The figures of a load."""
    told = [a for a in answers if a.n_tokens]
    gaps = sorted(gap for a in told for gap in a.gaps)
    firsts = sorted(a.times[0] for a in told if a.times)
    return {
        "requests": len(answers),
        "failed": len(answers) - len(told),
        "tokens_per_second": sum(a.n_tokens for a in told) / seconds,
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
    model, threads, places = str(options.model), str(options.threads), str(options.parallel)
    port = free_port()
    own = [sys.executable, "-m", "minfer", "serve", model, "--port", str(port), "-c", CONTEXT]
    own += ["--parallel", places, "--device", options.device, "--queue", "1000", "-t", threads]
    yield OWN, port, own
    if options.rival_python:
        port = free_port()
        rival = [options.rival_python, "-m", "bench.llama_server", model, "--port", str(port)]
        rival += ["--parallel", places, "--ctx", CONTEXT, "--threads", threads]
        yield RIVAL, port, [*rival, "--unified"] if options.rival_unified else rival


class Texts:
    """All that was said, by server and prompt."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, set[str]]] = {}

    def add(self, server: str, answers: list[Answer]) -> None:
        """Take answers."""
        said = self._said.setdefault(server, {})
        for answer in answers:
            said.setdefault(answer.prompt, set()).add(answer.text)

    def varying(self, server: str) -> int:
        """Prompts that got more than one answer of a server."""
        return sum(len(texts) > 1 for texts in self._said[server].values())

    def alike(self) -> float:
        """The share of prompts that both servers began to answer with the same characters."""
        own, rival = self._said[OWN], self._said[RIVAL]
        both = own.keys() & rival.keys()
        begins = {asked: {text[:BEGINNING] for text in own[asked]} for asked in both}
        same = [any(t[:BEGINNING] in begins[asked] for t in rival[asked]) for asked in both]
        return sum(same) / len(same)


def measured(
    ports: dict[str, int], load: Load, amount: float, options: argparse.Namespace, texts: Texts
) -> list[dict[str, object]]:
    """A row a server: its round of middle speed, and how it compares."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ports}
    for number in range(options.rounds):  # in turn, so that the machine's moods meet both
        for name, port in ports.items():
            answers, seconds = asyncio.run(load(port, amount, options.seconds, number))
            texts.add(name, answers)
            rounds[name].append(figures(answers, seconds))
    rows = []
    for name, found in rounds.items():
        speeds = [f["tokens_per_second"] for f in found]
        row: dict[str, object] = {"server": name}
        row["load"] = f"{amount:g} clients" if load is closed_loop else f"{amount:g}/s Poisson"
        row |= found[speeds.index(sorted(speeds)[len(speeds) // 2])]
        row |= {"least": min(speeds), "most": max(speeds), "x_rival": "", "alike": ""}
        row["varying"] = texts.varying(name)
        if name == OWN and RIVAL in rounds:
            rival = [f["tokens_per_second"] for f in rounds[RIVAL]]
            row["x_rival"] = median(a / b for a, b in zip(speeds, rival, strict=True))
            row["alike"] = texts.alike()
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print, append to the results; fail where an answer is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 8, 16, 64])
    parser.add_argument("--rates", type=float, nargs="*", default=[0.5, 2.0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rival-python")
    parser.add_argument("--rival-unified", action="store_true")
    options = parser.parse_args()
    rows = results.Rows("serve")
    texts = Texts()
    with ExitStack() as servers:
        ports: dict[str, int] = {}
        for name, port, command in commands(options):
            servers.enter_context(running(command, port))
            asyncio.run(closed_loop(port, 1, 3.0, -1))  # warm up
            ports[name] = port
        loads = [(closed_loop, float(n)) for n in options.clients]
        for load, amount in [*loads, *((arrivals, rate) for rate in options.rates)]:
            rows.add(*measured(ports, load, amount, options, texts))
        if RIVAL in ports:
            with urlopen(f"http://127.0.0.1:{ports[RIVAL]}/busy", timeout=5) as response:
                print("of its time the rival spent in llama_decode:", response.read().decode())
    assert texts.varying(OWN) == 0, "an answer depends on what else runs"
    assert RIVAL not in ports or texts.alike() > 0.5, "the two do not say the same"


if __name__ == "__main__":
    main()
