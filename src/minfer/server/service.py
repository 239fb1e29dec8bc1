"""What the routes share: the model, the thread that runs it, and how a request uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from starlette.requests import Request

from minfer.errors import ContextFullError
from minfer.llm import LLM, Usage
from minfer.server.answers import Answer, Wanted
from minfer.server.config import ServerConfig
from minfer.server.errors import ApiError
from minfer.server.metrics import Metrics
from minfer.server.schema import Body, Sampling
from minfer.server.worker import Worker
from minfer.text import ReplyStyle

_Result = TypeVar("_Result")


class Service:
    """A model being served.

    Attributes:
        llm: its text side; the engine belongs to `worker`.
        model_id: what it is called.
        created: when it was loaded, in seconds since 1970.
        style: how it writes reasoning and tool calls.
        marks: the tokens of that markup.
        fingerprint: names the program and the model, for clients that compare runs.
    """

    def __init__(self, llm: LLM, config: ServerConfig, metrics: Metrics) -> None:
        from minfer import __version__

        self.llm = llm
        self.config = config
        self.metrics = metrics
        self.model_id = config.model_name or llm.info.name
        self.created = int(time())
        self.style = ReplyStyle.of(llm.template)
        self.marks = self.style.marks(llm.tokenizer)
        self.fingerprint = f"minfer-{__version__}-{llm.info.architecture}-{llm.info.file_type}"
        self.worker = Worker(llm.lend_engine(), max_waiting=config.max_waiting)

    def answer(self, request: Request, wanted: Sequence[Wanted]) -> Answer:
        """The sequences a request asks for; not queued before they are entered."""
        return Answer(
            self.llm,
            self.worker,
            self.metrics,
            wanted,
            client=client_of(request),
            deadline=self.deadline(),
        )

    def deadline(self) -> float:
        """When something that begins now must have ended, in `perf_counter`'s seconds."""
        return perf_counter() + self.config.timeout

    def check_length(self, n_tokens: int, *, room: int = 1) -> None:
        """Refuse a prompt that cannot fit, before the engine has to look at it.

        Raises:
            ContextFullError: if it leaves no place for `room` more tokens.
        """
        if n_tokens + room > self.llm.n_ctx:
            raise ContextFullError(n_tokens, self.llm.n_ctx)

    def close(self) -> None:
        """End all work and free the model."""
        self.worker.close()
        self.llm.close()


async def in_thread(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Work on text that may take long, out of the event loop."""
    return await asyncio.to_thread(work, *arguments)


def client_of(request: Request) -> str:
    """Whose turn a request takes: the key it bears, or the address it comes from."""
    key = request.headers.get("authorization") or request.headers.get("x-api-key")
    return key or (request.client.host if request.client else "")


def _ready(request: Request) -> Service:
    service: Service | None = request.app.state.service
    if service is None:
        raise ApiError(
            503,
            "the model is loading",
            type="unavailable_error",
            code="loading",
            headers={"Retry-After": "1"},
        )
    return service


Ready = Annotated[Service, Depends(_ready)]
"""A route's parameter: the service, once its model is loaded."""


def note_body(request: Request, body: Sampling) -> None:
    """Add how a request wants its answer to its line in the log."""
    request.state.note["stream"] = body.stream
    note_unknown(request, body)


def note_unknown(request: Request, body: Body) -> None:
    """Add the fields nobody read to a request's line in the log."""
    if body.unknown:
        request.state.note["ignored"] = body.unknown


def usage_body(usages: Sequence[Usage], *, prompts: int, reasoning: int = 0) -> dict[str, Any]:
    """Usage as OpenAI counts it: each prompt once, however many answers it got.

    Args:
        usages: of all sequences; those of one prompt follow each other.
        prompts: how many prompts there were.
        reasoning: generated tokens that were reasoning.
    """
    per_prompt = len(usages) // prompts
    firsts = usages[::per_prompt]
    n_prompt = sum(u.prompt_tokens for u in firsts)
    n_completion = sum(u.completion_tokens for u in usages)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "total_tokens": n_prompt + n_completion,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in firsts)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def timings_body(usages: Sequence[Usage]) -> dict[str, Any]:
    """Speeds of a request's first sequence, as llama-server reports them."""
    u = usages[0]
    computed = u.prompt_tokens - u.cached_tokens
    return {
        "cache_n": u.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": u.prompt_seconds * 1e3,
        "prompt_per_token_ms": u.prompt_seconds * 1e3 / max(1, computed),
        "prompt_per_second": u.prompt_rate,
        "predicted_n": u.completion_tokens,
        "predicted_ms": u.decode_seconds * 1e3,
        "predicted_per_token_ms": u.decode_seconds * 1e3 / max(1, u.completion_tokens),
        "predicted_per_second": u.decode_rate,
    }
