"""A model at work for the page: one thread loads it, runs what is asked, and tells every step.

The thread owns the engine; everybody else leaves a job and reads the feed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from minfer.engine import Engine, SamplingParams
from minfer.errors import BusyError, RequestError
from minfer.gguf import open_gguf
from minfer.llm import LLM, PieceMaker
from minfer.text import TextStream
from minfer.trace import Record, Recorder, record, to_json
from minfer.viz.attention import attention_pattern
from minfer.viz.feed import Feed

NOT_READY = "the model is not loaded yet"


class LiveModel:
    """A model that runs prompts from the page.

    Args:
        load: makes the model; called in the thread.
        feed: where everything is told.
    """

    def __init__(self, load: Callable[[], LLM], feed: Feed) -> None:
        self._load = load
        self._feed = feed
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stop = Event()
        self._running = Event()
        self._llm: LLM | None = None
        self._engine: Engine | None = None
        self._recorder: Recorder | None = None
        self._tokens: list[int] = []
        self._thread = Thread(target=self._work, name="viz")
        self._tell("loading")
        self._thread.start()

    # -- asked from other threads -----------------------------------------------------------

    def generate(self, prompt: str, max_tokens: int, temperature: float, chat: bool) -> None:
        """Run a prompt; the feed tells what comes of it.

        Raises:
            BusyError: while a prompt runs, or before the model is loaded.
            RequestError: for parameters out of range.
        """
        llm = self._ready()
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
        if not prompt:
            raise RequestError("the prompt is empty", where="prompt")
        if self._running.is_set():
            raise BusyError("a prompt is running", where="viz", remedy="Stop it or wait")
        ids = llm.encode(prompt, chat=chat and not llm.template.is_default)
        self._running.set()
        self._jobs.put(lambda: self._generate(ids, llm.complete(params)))

    def stop(self) -> None:
        """End the prompt that runs, if one does."""
        self._stop.set()

    def attention(self, layer: int, head: int) -> dict[str, Any]:
        """The attention weights of a head over the tokens of the latest run.

        Raises:
            BusyError: while a prompt runs, or before the model is loaded.
            RequestError: without tokens, or for a block or head that is not there.
        """
        llm = self._ready()
        if self._running.is_set():
            raise BusyError("a prompt is running", where="viz", remedy="Stop it or wait")
        if len(self._tokens) < 2:
            raise RequestError("there is no text yet", where="attention", remedy="Run a prompt")
        answer: Future[dict[str, Any]] = Future()

        def work() -> None:
            try:
                answer.set_result(self._attention(llm, layer, head))
            except BaseException as error:
                answer.set_exception(error)

        self._jobs.put(work)
        return answer.result(timeout=120)

    def close(self) -> None:
        """End the thread and free the model."""
        self._stop.set()
        self._jobs.put(None)
        self._thread.join()

    def _ready(self) -> LLM:
        if self._llm is None:
            raise BusyError(NOT_READY, where="viz", remedy="Wait until the page says it is")
        return self._llm

    # -- the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            llm = self._load()
        except Exception as error:  # the page must hear of it, whatever it is
            self._tell("failed", str(error))
            return
        with llm:
            self._engine = llm.lend_engine()
            self._watch(llm)
            facts = {
                "n_layers": llm.info.n_layers,
                "n_heads": self._engine.model.n_heads,
                "chat": not llm.template.is_default,
            }
            self._feed.send("model", facts, lasting="model")
            self._llm = llm
            self._tell("ready")
            while (job := self._jobs.get()) is not None:
                job()
        # a page's connection may outlive this thread, and holds this object
        self._llm = self._engine = self._recorder = None

    def _watch(self, llm: LLM) -> None:
        assert self._engine is not None
        self._recorder = record(
            self._engine,
            FeedSink(self._feed),
            model=llm.info.name,
            text=lambda token: llm.tokenizer.decode([token]),
            histograms=True,
        )

    def _generate(self, ids: list[int], params: SamplingParams) -> None:
        llm, engine = self._llm, self._engine
        assert llm is not None and engine is not None
        self._stop.clear()
        self._feed.clear()
        texts = [llm.tokenizer.decode([token]) for token in ids]
        self._feed.send("prompt", {"tokens": ids, "texts": texts})
        self._tell("running")
        try:
            run = engine.add(ids, params, stop_ids=llm.tokenizer.stop_ids)
            maker = PieceMaker(TextStream(llm.tokenizer))
            while run.finish_reason is None:
                if self._stop.is_set():
                    engine.cancel(run)
                for _, event in engine.step():
                    if event.error is not None:
                        raise event.error
                    piece = maker.piece(run, event)
                    token = None if piece.choice is None else piece.choice.token
                    self._feed.send("token", {"token": token, "text": piece.text})
                    if piece.usage is not None:
                        rates = {
                            "prompt_rate": piece.usage.prompt_rate,
                            "decode_rate": piece.usage.decode_rate,
                            "reason": piece.finish_reason,
                        }
                        self._feed.send("usage", rates)
            self._tokens = list(run.tokens)
            self._tell("ready")
        except Exception as error:  # told to the page; the next prompt may fare better
            self._tell("ready", str(error))
        finally:
            self._running.clear()

    def _attention(self, llm: LLM, layer: int, head: int) -> dict[str, Any]:
        engine = self._engine
        assert engine is not None
        try:
            with open_gguf(llm.path) as file:
                weights = attention_pattern(engine, file, self._tokens, layer, head)
        finally:
            engine.watch(self._recorder)
        shown = self._tokens[-len(weights) :]
        return {
            "texts": [llm.tokenizer.decode([token]) for token in shown],
            "weights": [
                [round(float(w), 4) for w in row[: i + 1]] for i, row in enumerate(weights)
            ],
        }

    def _tell(self, state: str, error: str = "") -> None:
        self._feed.send("status", {"state": state, "error": error}, lasting="status")


class FeedSink:
    """Where the recorder's records go: on to the page."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def write(self, record: Record) -> None:
        """Tell a record; headers and plans are kept for pages that open later."""
        content = to_json(record)
        kind = content["type"]
        lasting = {"header": "header", "plan": f"plan {content.get('id')}"}.get(kind)
        self._feed.send(kind, content, lasting=lasting)

    def close(self) -> None:
        """The feed goes on."""
