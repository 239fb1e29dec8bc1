"""The door of the application: takes requests in whole, hands them to replicas, passes answers on.

A replica that dies takes its answers with it. What has not begun to be answered is asked again of
another; a stream that has begun ends with an error.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from minfer.deploy.calls import Call, Head
from minfer.deploy.prefix import prefix_key
from minfer.server import ServerConfig

_log = logging.getLogger("minfer.deploy")

ATTEMPTS = 4
"""Replicas that a request may be given to."""


class Answering(Protocol):
    """An answer on its way, which can be given up."""

    def __aiter__(self) -> AsyncIterator[Head | bytes]:
        """Its head, then its body."""

    def cancel(self) -> None:
        """Tell the replica that nobody waits."""


class Front:
    """An ASGI application.

    Args:
        ask: gives a call to a replica.
        config: the server's: how large a request may be.
        lost: errors that mean that a replica, not a request, has failed.
        full: errors that mean that no replica takes more.
    """

    def __init__(
        self,
        ask: Callable[[Call], Answering],
        config: ServerConfig,
        *,
        lost: tuple[type[BaseException], ...],
        full: tuple[type[BaseException], ...],
    ) -> None:
        self._ask = ask
        self._config = config
        self._lost = lost
        self._full = full

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection's message, as ASGI has it."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > self._config.max_body_bytes:
                limit = self._config.max_body_bytes
                await _refuse(send, 413, "request_too_large", f"the body has over {limit} bytes")
                return
            if not message.get("more_body", False):
                break
        await self._pass_on(_call(scope, body), send)

    async def _pass_on(self, call: Call, send: Send) -> None:
        head: Head | None = None
        for attempt in range(ATTEMPTS):
            answer = self._ask(call)
            try:
                async for part in answer:
                    if isinstance(part, Head):
                        head = part
                        await send(
                            {
                                "type": "http.response.start",
                                "status": part.status,
                                "headers": list(part.headers),
                            }
                        )
                    else:
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            except self._full:
                await _refuse(send, 429, "queue_full", "all replicas are busy; try again later")
                return
            except self._lost as error:
                _log.warning("a replica is lost (attempt %d): %s", attempt + 1, error)
                if head is not None:
                    await _break_off(head, send)
                    return
            except BaseException:
                answer.cancel()
                raise
        await _refuse(send, 503, "unavailable", "no replica could answer; try again later")


def _call(scope: Scope, body: bytes) -> Call:
    client = scope.get("client")
    return Call(
        method=scope["method"],
        path=scope["path"],
        query=scope.get("query_string", b""),
        headers=[(bytes(name), bytes(value)) for name, value in scope["headers"]],
        client=None if client is None else (client[0], client[1]),
        body=body,
        key=prefix_key(body),
    )


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _break_off(head: Head, send: Send) -> None:
    """End an answer that has begun: a stream says so; anything else is cut, which clients see."""
    if (b"content-type", b"text/event-stream; charset=utf-8") not in head.headers:
        raise ConnectionError("the replica was lost in the middle of an answer")
    text = f"data: {json.dumps({'error': _error('the replica was lost', 'replica_lost')})}\n\n"
    await send({"type": "http.response.body", "body": text.encode(), "more_body": False})


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    headers = [(b"content-type", b"application/json")]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = json.dumps({"error": _error(message, code)}).encode()
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _error(message: str, code: str) -> dict[str, Any]:
    kind = "invalid_request_error" if code == "request_too_large" else "unavailable_error"
    return {"message": message, "type": kind, "param": None, "code": code}
