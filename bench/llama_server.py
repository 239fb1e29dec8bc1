"""The rival of `bench.serve`: llama.cpp behind HTTP, batched the way llama-server batches.

    python -m bench.llama_server MODEL.gguf --port 8080 [--parallel 16] [--ctx 2048] [--threads 2]

`llama-cpp-python` brings llama.cpp but no server that answers requests together, so this is one:
llama-server's loop (tools/server, `update_slots`) over `llama_decode`. Each step holds a token of
every running answer, then as many prompt tokens as the batch takes; a request goes to the free
slot whose cached tokens it shares most of, and computes only the rest. KV in f16, flash attention
as llama.cpp chooses. HTTP is the least that the bench's client needs, so it costs less than
llama-server's own; `GET /busy` tells how much of its time the loop spent inside of `llama_decode`.

Needs only numpy and `llama_cpp`.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import ctypes
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

N_BATCH = 2048
N_UBATCH = 512
"""llama-server's defaults."""


@dataclass(eq=False)
class Job:
    """A request.

    Attributes:
        ids: its prompt.
        max_tokens: tokens it may get.
        tell: called in the loop's thread with each piece of text; None at the end.
    """

    ids: list[int]
    max_tokens: int
    tell: Callable[[str | None], None]
    text: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    n_generated: int = 0


@dataclass(eq=False)
class Slot:
    """A sequence of the KV cache.

    Attributes:
        tokens: what the cache holds of it.
        job: whose it is, None while it is free.
        pending: tokens to compute.
        used: when it was used last.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    job: Job | None = None
    pending: list[int] = field(default_factory=list)
    used: float = 0.0


class Rows:
    """A `llama_batch` over arrays of our own, so that it is filled without a loop."""

    def __init__(self, c: Any) -> None:
        self.token = np.zeros(N_BATCH, np.int32)
        self.pos = np.zeros(N_BATCH, np.int32)
        self.seq = np.zeros(N_BATCH, np.int32)
        self.wanted = np.zeros(N_BATCH, np.int8)
        self._ones = np.ones(N_BATCH, np.int32)
        self._pointers = self.seq.ctypes.data + 4 * np.arange(N_BATCH, dtype=np.uintp)
        self.n = 0
        self.batch = c.llama_batch()
        for name, array in (
            ("token", self.token),
            ("pos", self.pos),
            ("n_seq_id", self._ones),
            ("seq_id", self._pointers),
            ("logits", self.wanted),
        ):
            kind = dict(c.llama_batch._fields_)[name]
            setattr(self.batch, name, ctypes.cast(array.ctypes.data, kind))

    def add(self, slot: Slot, n: int) -> None:
        """Rows for the first `n` pending tokens of a slot; the last token's logits are wanted."""
        at = slice(self.n, self.n + n)
        start = len(slot.tokens)
        self.token[at] = slot.pending[:n]
        self.pos[at] = np.arange(start, start + n)
        self.seq[at] = slot.number
        self.wanted[at] = 0
        self.wanted[self.n + n - 1] = n == len(slot.pending)
        self.n += n


class Llama:
    """A model, its context, and the loop that answers."""

    def __init__(self, path: Path, *, parallel: int, ctx: int, threads: int, unified: bool) -> None:
        from llama_cpp import llama_cpp as c

        self._c: Any = c
        self._quiet = c.llama_log_callback(lambda level, text, data: None)
        c.llama_log_set(self._quiet, ctypes.c_void_p(0))
        c.llama_backend_init()
        self._model: Any = c.llama_model_load_from_file(
            str(path).encode(), c.llama_model_default_params()
        )
        self._vocab: Any = c.llama_model_get_vocab(self._model)
        self._n_vocab = c.llama_vocab_n_tokens(self._vocab)
        params = c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = ctx * parallel, N_BATCH, N_UBATCH
        params.n_seq_max, params.kv_unified = parallel, unified
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = c.GGML_TYPE_F16
        params.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._context: Any = c.llama_init_from_model(self._model, params)
        self._memory: Any = c.llama_get_memory(self._context)
        self._rows = Rows(c)
        self._slots = [Slot(number) for number in range(parallel)]
        self._waiting: deque[Job] = deque()
        self._wake = threading.Condition()
        self.decoding = self.running = 0.0
        threading.Thread(target=self._main, daemon=True).start()

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """The ids of a conversation, by the model's own template."""
        c = self._c
        chat = (c.llama_chat_message * len(messages))()
        for at, message in enumerate(messages):
            chat[at].role = message["role"].encode()
            chat[at].content = message["content"].encode()
        out = ctypes.create_string_buffer(4 * sum(len(m["content"]) + 64 for m in messages))
        template = c.llama_model_chat_template(self._model, None)
        n = c.llama_chat_apply_template(template, chat, len(messages), True, out, len(out))
        text = out.raw[:n]
        ids = (c.llama_token * (len(text) + 8))()
        n = c.llama_tokenize(self._vocab, text, len(text), ids, len(ids), True, True)
        return list(ids[:n])

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._wake:
            self._waiting.append(job)
            self._wake.notify()

    def _main(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and all(slot.job is None for slot in self._slots):
                    self._wake.wait()
                began = perf_counter()
                while self._waiting and any(slot.job is None for slot in self._slots):
                    self._start(self._waiting.popleft())
            self._step()
            self.running += perf_counter() - began

    def _start(self, job: Job) -> None:
        free = [slot for slot in self._slots if slot.job is None]
        shared = {slot: _common(slot.tokens, job.ids) for slot in free}
        slot = max(free, key=lambda slot: (shared[slot], -slot.used))
        n_known = min(shared[slot], len(job.ids) - 1)
        self._c.llama_memory_seq_rm(self._memory, slot.number, n_known, -1)
        slot.tokens, slot.pending, slot.job = job.ids[:n_known], job.ids[n_known:], job

    def _step(self) -> None:
        rows, running = self._rows, [slot for slot in self._slots if slot.job is not None]
        rows.n = 0
        counts: dict[Slot, int] = {}
        for slot in sorted(running, key=lambda slot: len(slot.pending) > 1):  # answers first
            counts[slot] = min(len(slot.pending), N_BATCH - rows.n)
            if counts[slot]:
                rows.add(slot, counts[slot])
        rows.batch.n_tokens = rows.n
        began = perf_counter()
        status = self._c.llama_decode(self._context, rows.batch)
        self._c.llama_synchronize(self._context)
        self.decoding += perf_counter() - began
        if status:
            raise RuntimeError(f"llama_decode answered {status}")
        at = -1
        for slot, n in counts.items():
            at += n
            slot.tokens += slot.pending[:n]
            slot.pending = slot.pending[n:]
            if n and not slot.pending:
                self._choose(slot, at)

    def _choose(self, slot: Slot, row: int) -> None:
        logits = self._c.llama_get_logits_ith(self._context, row)
        token = int(np.ctypeslib.as_array(logits, (self._n_vocab,)).argmax())
        job = slot.job
        assert job is not None
        ended = self._c.llama_vocab_is_eog(self._vocab, token)
        if not ended:
            job.n_generated += 1
            job.tell(job.text.decode(self._piece(token)))
            slot.pending = [token]
        if ended or job.n_generated == job.max_tokens:
            slot.job, slot.pending, slot.used = None, [], perf_counter()
            job.tell(None)

    def _piece(self, token: int) -> bytes:
        out = ctypes.create_string_buffer(256)
        n = self._c.llama_token_to_piece(self._vocab, token, out, len(out), 0, False)
        return out.raw[:n]


def _common(a: list[int], b: list[int]) -> int:
    """How many leading tokens are the same."""
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


async def answer(llama: Llama, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request: a chat, streamed; or a question whether the server is there."""
    loop = asyncio.get_running_loop()
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    if not head.startswith("POST"):
        share = llama.decoding / llama.running if llama.running else 0.0
        body = json.dumps({"share_in_llama_decode": share}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()
        return
    length = next(
        int(line.split(":")[1])
        for line in head.split("\r\n")
        if line.lower().startswith("content-length:")
    )
    asked = json.loads(await reader.readexactly(length))
    ids = await asyncio.to_thread(llama.prompt, asked["messages"])
    pieces: asyncio.Queue[str | None] = asyncio.Queue()

    def tell(text: str | None) -> None:
        loop.call_soon_threadsafe(pieces.put_nowait, text)

    job = Job(ids, asked["max_tokens"], tell)
    llama.submit(job)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    while (text := await pieces.get()) is not None:
        _write(writer, {"choices": [{"index": 0, "delta": {"content": text}}]})
    usage = {"prompt_tokens": len(ids), "completion_tokens": job.n_generated}
    _write(writer, {"choices": [], "usage": usage})
    writer.write(b"data: [DONE]\n\n")
    await writer.drain()
    writer.close()


def _write(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def serve(llama: Llama, port: int) -> None:
    """Listen on this machine until the process ends."""
    server = await asyncio.start_server(
        lambda reader, writer: answer(llama, reader, writer), "127.0.0.1", port
    )
    await server.serve_forever()


def main() -> None:
    """Load the model and serve it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=2048, help="tokens a request may have")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--unified", action="store_true", help="one KV buffer for all slots")
    given = parser.parse_args()
    llama = Llama(
        given.model,
        parallel=given.parallel,
        ctx=given.ctx,
        threads=given.threads,
        unified=given.unified,
    )
    asyncio.run(serve(llama, given.port))


if __name__ == "__main__":
    main()
