"""A real server on loopback with a tiny model, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

import httpx
import uvicorn

from minfer.engine import Choice, Sampler
from minfer.llm import LLM
from minfer.server import ServerConfig, create_app
from minfer.server.service import Service
from minfer.text import ChatTemplate, ReplyStyle

MODELS = Path(__file__).parent / "data" / "models"


def tiny(name: str = "tiny-llama", **options: Any) -> LLM:
    """A tiny model on the reference backend."""
    return LLM(MODELS / f"{name}.gguf", device="reference", **options)


@dataclass
class Served:
    """A running server.

    Attributes:
        url: its address.
        http: a client for it.
        service: its inside.
    """

    url: str
    http: httpx.Client
    service: Service

    def settle(self, seconds: float = 5.0) -> None:
        """Wait until nothing is open."""
        self.until(lambda: self.service.worker.n_open == 0, seconds)

    def until(self, done: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait for something to become true."""
        end = monotonic() + seconds
        while not done():
            assert monotonic() < end, "still not so"
            sleep(0.005)

    @contextmanager
    def says(self, text: str, template: str = "") -> Iterator[None]:
        """Let the model answer `text`, in the style of a chat template, while the block runs."""
        tokenizer = self.service.llm.tokenizer
        ids = [*tokenizer.encode(text, special=True, add_bos=False), min(tokenizer.stop_ids)]
        style = self.service.style

        def choose(sampler: Sampler, logits: Any, history: Any) -> Choice:
            at = sampler.__dict__.setdefault("said", 0)
            sampler.__dict__["said"] = at + 1
            return Choice(ids[min(at, len(ids) - 1)])

        self.service.style = ReplyStyle.of(ChatTemplate(template))
        # the host chooses, so that it can be told what
        with patch.multiple(Sampler, choose=choose, fits_device=False):
            try:
                yield
            finally:
                self.settle()
                self.service.style = style

    @contextmanager
    def slow(self, seconds: float = 0.02) -> Iterator[None]:
        """Make every step take longer while the block runs."""
        engine = self.service.worker._engine
        step = engine.step

        def slowly() -> Any:
            sleep(seconds)
            return step()

        engine.step = slowly  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.settle()
            del engine.step  # type: ignore[method-assign]


@contextmanager
def served(llm: LLM | None = None, **config: Any) -> Iterator[Served]:
    """Serve a model while the block runs."""
    model = llm or tiny()
    app = create_app(lambda: model, ServerConfig(**config))
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = monotonic() + 10
        while not (server.started and app.state.service):
            assert thread.is_alive()
            assert monotonic() < end
            sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30) as http:
            yield Served(url, http, app.state.service)
    finally:
        server.should_exit = True
        thread.join()
