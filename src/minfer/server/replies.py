"""How a route answers once it knows what to ask the engine: whole, or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from time import perf_counter
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from minfer.llm import Usage
from minfer.server.answers import Answer
from minfer.server.service import Service
from minfer.server.streams import EventStream, while_there

CHAT_DONE = "[DONE]"
"""What ends OpenAI's older streams; the newer ones end with an event."""


STREAMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` as events",
        "content": {"text/event-stream": {}},
    }
}
"""What the API's description says of a route that streams."""


class Reply(Protocol):
    """An answer in the shape of one route; it is taken whole or in events, once."""

    @property
    def answer(self) -> Answer:
        """The sequences it is made from."""

    @property
    def usages(self) -> list[Usage]:
        """Usage of every sequence that has ended."""

    async def whole(self) -> dict[str, Any]:
        """The answer when it is complete."""

    def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as it is made."""


async def send(
    request: Request, service: Service, reply: Reply, *, stream: bool, done: str | None = CHAT_DONE
) -> Response:
    """Answer a request, and add what it used to its line in the log.

    What can be refused is refused before a stream begins: it begins once the engine has queued all
    of its sequences.

    Raises:
        MinferError: as the engine does.
        ClientGone: if nobody waits for the answer any more.
    """
    began = perf_counter()
    timeout = service.config.timeout
    if not stream:
        whole = await while_there(request.receive, reply.whole(), timeout)
        _note(request, reply.usages, began)
        return JSONResponse(whole)
    await while_there(request.receive, reply.answer.begin(), timeout)

    async def noted() -> AsyncGenerator[dict[str, Any], None]:
        async for event in reply.events():
            yield event
        _note(request, reply.usages, began)

    return EventStream(
        request,
        noted(),
        close=reply.answer.close,
        timeout=timeout,
        ping=service.config.ping_seconds,
        done=done,
    )


def _note(request: Request, usages: list[Usage], began: float) -> None:
    request.state.note.update(
        prompt_tokens=sum(u.prompt_tokens for u in usages),
        cached_tokens=sum(u.cached_tokens for u in usages),
        completion_tokens=sum(u.completion_tokens for u in usages),
        prompt_ms=round(sum(u.prompt_seconds for u in usages) * 1e3, 1),
        decode_ms=round(sum(u.decode_seconds for u in usages) * 1e3, 1),
        answer_ms=round((perf_counter() - began) * 1e3, 1),
    )
