"""`LLM`: strings in, strings out. The public face of minfer.

Many threads may use one `LLM`. There is no thread behind it: whoever waits for a token takes a
turn and runs a step for everybody, so an idle model costs nothing and nothing outlives `close`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.engine import Choice, Constraint, Engine, Event, SamplingParams
from minfer.engine import Sequence as Run
from minfer.errors import ClosedError, RequestError
from minfer.gguf import open_gguf
from minfer.hub import resolve
from minfer.llm import session
from minfer.llm.drafting import make_drafter
from minfer.llm.heap import give_back
from minfer.llm.loading import make_engine, model_info
from minfer.llm.pieces import PieceMaker
from minfer.llm.results import Completion, Piece
from minfer.llm.stream import PieceStream
from minfer.llm.turns import FairLock
from minfer.scheduler import Plan
from minfer.settings import Settings
from minfer.text import ChatTemplate, Grammar, GrammarCompiler, GrammarKind, TextStream, Tokenizer
from minfer.trace import Recorder, open_sink, record

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
Progress = Callable[[str, int, int | None], None]
DRY_BREAKERS = ("\n", ":", '"', "*")
"""Texts that end a repeated sequence for DRY, as in llama.cpp."""


class LLM:
    """A model ready to generate.

    Args:
        model: a file, or any name `minfer.hub` resolves (`smollm2`, `hf:owner/repo:Q4_K_M`).
        device: `auto`, `cpu`, `cuda` or `reference`.
        n_ctx: tokens of context; 0 takes what the model was trained for.
        cache_type: element type of the KV cache: `f32`, `f16` or `q8_0`.
        threads: CPU threads.
        gpu_layers: blocks on the GPU: a number, `auto` or `all`.
        max_sequences: requests that run at the same time.
        n_cells: tokens of KV cache for all of them together; 0 takes what all could fill, as far
            as memory allows.
        draft: what guesses tokens ahead, which saves steps and changes nothing: `lookup` for the
            text itself, or a smaller model of the same vocabulary.
        n_draft: tokens it guesses at most.
        settings: everything else; read from the environment by default.
        progress: called as `progress(what, done_bytes, total_bytes)` while downloading and loading.

    Attributes:
        info: facts about the model.
        tokenizer: its tokenizer.
        template: its chat template.
        load_seconds: how long making it took.
        notices: what a user should know about the choice of devices and sizes.

    Raises:
        MinferError: of the kind that fits: a name that cannot be resolved, a malformed file, an
            unsupported architecture or type, too little memory.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        n_ctx: int | None = None,
        cache_type: str | None = None,
        threads: int | None = None,
        gpu_layers: int | str | None = None,
        max_sequences: int = 8,
        n_cells: int | None = None,
        draft: str | Path | None = None,
        n_draft: int = 8,
        settings: Settings | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._closed = True
        settings = _with(
            settings or Settings.load(),
            device=device,
            cache_type=cache_type,
            threads=threads,
            gpu_layers=None if gpu_layers is None else str(gpu_layers),
        )
        self.path = resolve(str(model), settings, progress=progress)
        sink = None if settings.trace is None else open_sink(settings.trace, settings.trace_format)
        if sink is not None:  # a replayed graph has no nodes to look at
            settings = replace(settings, no_cuda_graph=True)
        began = perf_counter()
        self._file = open_gguf(self.path)
        try:
            self.tokenizer = Tokenizer.from_metadata(self._file.metadata)
            self.template = ChatTemplate.from_metadata(self._file.metadata)
            give_back()
            self._engine, self._config, self.notices = make_engine(
                self._file,
                settings,
                n_ctx=n_ctx,
                n_cells=n_cells,
                max_sequences=max_sequences,
                progress=None
                if progress is None
                else partial_progress(progress, self._file.nbytes),
            )
            if draft is not None:
                self._speculate(draft, n_draft, settings, progress)
        except BaseException:
            self._file.close()
            raise
        self._lock = FairLock()
        self._inboxes: dict[Run, deque[Event]] = {}
        self._abandoned: deque[Run] = deque()
        self._lent = False
        self._compiler: GrammarCompiler | None = None
        self._compiling = Lock()
        self._recorder: Recorder | None = None
        self._closed = False
        self.info = model_info(self.path, self._file, self._config, self._engine)
        if sink is not None:
            self._recorder = record(self._engine, sink, model=self.info.name, text=self._text_of)
        self.load_seconds = perf_counter() - began

    # -- generating -------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        constraint: Constraint | None = None,
        reuse_decoded: bool = False,
        **template_args: Any,
    ) -> PieceStream:
        """Generate piece by piece. Closing or dropping the iterator early cancels the request.

        Args:
            prompt: a text to continue, token ids, or a conversation (dicts with `role` and
                `content`), which goes through the model's chat template.
            chat: treat a text as the user's message of a conversation.
            tools: JSON schemas of functions, for the template.
            constraint: a grammar.
            reuse_decoded: reuse cached keys and values of generated tokens too, so that a
                conversation computes its new turn only; their rounding differs a little from a
                fresh computation's.
            template_args: variables for the template.

        Raises:
            MinferError: for a prompt or parameter that cannot be used, and for a failure while
                generating.
        """
        self._check_open()
        params = self.complete(params or SamplingParams())
        ids = self.encode(prompt, chat=chat, tools=tools, **template_args)
        maker = PieceMaker(TextStream(self.tokenizer, stop=params.stop))
        with self._turn():
            run = self._engine.add(
                ids,
                params,
                stop_ids=self.tokenizer.stop_ids,
                constraint=constraint,
                reuse_decoded=reuse_decoded,
            )
            stream = PieceStream(run, maker, self._next_event, self._abandon)
            self._inboxes[run] = stream.events
        return stream

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """Generate a whole answer; arguments as `stream`."""
        return _completion(list(self.stream(prompt, params, **options)), params)

    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Completion:
        """Answer a conversation, or a single message given as text."""
        return self.generate(messages, params, chat=True, **options)

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[Piece]:
        """`stream` for asyncio: the steps run in a worker thread."""
        pieces = await asyncio.to_thread(self.stream, prompt, params, **options)
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        finally:
            pieces.close()

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """`generate` for asyncio; cancelling the task cancels the request."""
        pieces = [piece async for piece in self.astream(prompt, params, **options)]
        return _completion(pieces, params)

    # -- text and numbers -------------------------------------------------------------------

    def encode(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_args: Any,
    ) -> list[int]:
        """The ids of a prompt, with BOS and the template as the model wants them."""
        if isinstance(prompt, str):
            if not chat:
                return self.tokenizer.encode(prompt, special=True)
            prompt = [{"role": "user", "content": prompt}]
        ids = [int(item) for item in prompt if isinstance(item, int | np.integer)]
        if len(ids) == len(prompt):
            return ids
        messages = [dict(m) for m in prompt if isinstance(m, Mapping)]
        if len(messages) != len(prompt):
            raise RequestError(
                "a prompt is a text, a list of token ids, or a list of messages", where="prompt"
            )
        return self.template.encode(self.tokenizer, messages, tools=tools, **template_args)

    def tokenize(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        """The ids of a text, without anything added."""
        return self.tokenizer.encode(text, special=special, add_bos=add_bos)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self.tokenizer.decode(ids)

    def logits(self, ids: Sequence[int], *, single: bool = False) -> NDArray[np.float32]:
        """Logits of every position, [n, n_vocab]; `single` takes the decode path."""
        with self._turn():
            return self._engine.forward(ids, single=single)

    def embed(self, text: str | Sequence[int]) -> NDArray[np.float32]:
        """The mean of the final hidden states of a text, scaled to length 1: [width]."""
        ids = self.encode(text)
        with self._turn():
            pooled = self._engine.forward(ids, hidden=True).mean(axis=0, dtype=np.float64)
        return np.asarray(pooled / np.linalg.norm(pooled), np.float32)

    def plan(self, single_rows: int = 1, other_rows: int = 0) -> Plan:
        """The plan of a step with so many decode and prompt rows."""
        with self._turn():
            return self._engine.plan(single_rows, other_rows)

    # -- sessions ---------------------------------------------------------------------------

    def save_session(self, path: str | Path, messages: Sequence[Message]) -> None:
        """Save a conversation with its KV cache; see `minfer.llm.session`."""
        ids = self.encode(messages, add_generation_prompt=False)
        with self._turn():
            session.save(Path(path), self._engine, self._file, messages, ids)

    def load_session(self, path: str | Path) -> list[dict[str, Any]]:
        """Restore a saved conversation; its next turn computes new tokens only.

        Raises:
            FormatError: if the file is damaged or was saved by another model.
        """
        with self._turn():
            return session.load(Path(path), self._engine, self._file)

    # -- life -------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Tokens of context."""
        return self._engine.config.n_ctx

    @property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars for this vocabulary; the first use takes up to a second.

        Raises:
            UnsupportedError: if the extra `grammar` is not installed.
        """
        with self._compiling:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self.tokenizer)
            return self._compiler

    def constraint(self, source: Any, kind: GrammarKind = "json_schema") -> Constraint:
        """A grammar for one answer, to be given to `stream`, `generate` or `chat`.

        Args:
            source: a JSON schema as an object, or text in the notation of `kind`.
            kind: `json_schema`, `regex`, `lark` or `gbnf`.

        Raises:
            GrammarError: for what is malformed or cannot be enforced, with its place.
            UnsupportedError: if the extra `grammar` is not installed.
        """
        grammar = Grammar(kind, source)
        return self.grammars.compile("start: @answer", {"answer": grammar})()

    def lend_engine(self) -> Engine:
        """Hand the engine to a caller that drives it alone, such as a server's thread.

        Text and templates stay usable here; generating is an error from now on. The borrower
        stops using the engine before `close`.

        Raises:
            ClosedError: if the model is closed or the engine is lent already.
        """
        with self._turn():
            self._lent = True
        return self._engine

    def close(self) -> None:
        """Free all memory. Closing twice is allowed; using the model afterwards is an error."""
        if self._closed:
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                if self._recorder is not None:
                    self._recorder.close()
                self._engine.close()
                self._file.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.info.name!r}, n_ctx={self.n_ctx}"
        return f"LLM({state})"

    # -- inside -----------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The engine for one caller; requests left behind are cancelled before and after."""
        with self._lock:
            self._check_open()
            self._cancel_abandoned()
            yield
        self._tidy()

    def _next_event(self, stream: PieceStream) -> Event:
        """Wait for the stream's next event, running steps for everybody meanwhile."""
        while not stream.events:
            with self._turn():
                if stream.events:  # brought by the turn of another
                    break
                if stream.closed:
                    return Event(None, "cancelled")
                for run, event in self._engine.step():
                    inbox = self._inboxes.get(run)
                    if inbox is not None:
                        inbox.append(event)
        return stream.events.popleft()

    def _abandon(self, run: Run) -> None:
        """Forget a request that has ended or is not wanted any more.

        May be called by a finalizer, in any thread and in the middle of a step: so it waits for
        nothing, and what cannot be cancelled now is cancelled after the turn in progress.
        """
        self._inboxes.pop(run, None)
        if run.finish_reason is None:
            self._abandoned.append(run)
            self._tidy()

    def _tidy(self) -> None:
        """Cancel what was abandoned, unless another has the engine and will do it."""
        while self._abandoned and not self._lent and self._lock.try_acquire():
            try:
                self._cancel_abandoned()
            finally:
                self._lock.release()

    def _cancel_abandoned(self) -> None:
        while self._abandoned:
            self._engine.cancel(self._abandoned.popleft())

    def _text_of(self, token: int) -> str:
        return self.tokenizer.decode([token])

    def complete(self, params: SamplingParams) -> SamplingParams:
        """`params` with what depends on the vocabulary filled in."""
        if params.dry_multiplier > 0.0 and not params.dry_sequence_breakers:
            ids = {t for text in DRY_BREAKERS for t in self.tokenize(text)}
            params = replace(params, dry_sequence_breakers=tuple(sorted(ids)))
        return params

    def _speculate(
        self, draft: str | Path, n_draft: int, settings: Settings, progress: Progress | None
    ) -> None:
        if n_draft < 1:
            raise RequestError(
                f"value {n_draft} is out of range; expected at least 1", where="n_draft"
            )
        sizes = self._engine.config
        try:
            drafter = make_drafter(
                draft,
                self._file,
                settings,
                n_ctx=sizes.n_ctx,
                max_sequences=sizes.max_sequences,
                progress=progress,
            )
        except BaseException:
            self._engine.close()
            raise
        self._engine.speculate(drafter, n_draft)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", where="LLM")
        if self._lent:
            raise ClosedError("the engine belongs to a server", where="LLM")


def partial_progress(progress: Progress, nbytes: int) -> Callable[[int, int], None]:
    """The engine's progress callback, which counts nodes, in terms of the caller's, in bytes."""
    return lambda done, total: progress("loading", nbytes * done // total, nbytes)


def _completion(pieces: Sequence[Piece], params: SamplingParams | None) -> Completion:
    """The whole answer that `pieces` make."""
    last = pieces[-1]
    choices = tuple(p.choice for p in pieces if p.choice is not None)
    assert last.finish_reason is not None and last.usage is not None
    wants_logprobs = params is not None and params.logprobs is not None
    return Completion(
        text="".join(p.text for p in pieces),
        token_ids=tuple(c.token for c in choices),
        finish_reason=last.finish_reason,
        usage=last.usage,
        stop=last.stop,
        logprobs=choices if wants_logprobs else (),
    )


def _with(settings: Settings, **changes: Any) -> Settings:
    """`settings` with the given values, checked as if they came from the environment."""
    given = {f"MINFER_{k.upper()}": str(v) for k, v in changes.items() if v is not None}
    checked = Settings.load(given)
    return replace(
        settings, **{k: getattr(checked, k) for k, v in changes.items() if v is not None}
    )


__all__ = ["LLM", "Choice", "Message", "Progress", "Prompt"]
