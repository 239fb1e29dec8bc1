"""What every request passes before a route sees it: key, size, time; and its line in the log.

Plain ASGI, so that streams and disconnects pass through untouched.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from time import perf_counter
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minfer.server.config import ServerConfig
from minfer.server.errors import ApiError, answer_error
from minfer.server.metrics import Metrics

_log = logging.getLogger("minfer.server")
_requests = logging.getLogger("minfer.server.requests")

OPEN_PATHS = frozenset({"/health", "/v1/health", "/", "/docs", "/openapi.json"})
"""What may be read without a key."""


class Gate:
    """Checks requests, and logs each with what its route noted in `request.state.note`."""

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self._app = app
        self._config = config
        self._metrics = metrics
        self._keys = [key.encode() for key in config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection's message, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        request = Request(scope)
        request_id = f"req-{uuid4().hex}"
        note: dict[str, Any] = {"id": request_id, "method": scope["method"], "path": scope["path"]}
        request.state.note = note
        body = _Body(receive, self._config)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                note["status"] = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        try:
            refusal = self._refusal(request)
            if refusal is not None:
                await (await answer_error(request, refusal))(scope, receive, answer)
            else:
                await self._app(scope, body.receive, answer)
        except Exception as failure:
            if "status" in note:  # too late to say so
                raise
            _log.error("%s %s failed", note["method"], note["path"], exc_info=failure)
            await (await answer_error(request, failure))(scope, receive, answer)
        finally:
            error = getattr(request.state, "error", None)
            if error is not None:
                note["error"] = error["message"]
            note["ms"] = round((perf_counter() - began) * 1e3, 1)
            note["client"] = request.client.host if request.client else None
            self._metrics.requests.labels(_route(scope), note.get("status", 0)).inc()
            _requests.info("%s", json.dumps(note, default=str))

    def _refusal(self, request: Request) -> ApiError | None:
        if self._keys and request.url.path not in OPEN_PATHS and request.method != "OPTIONS":
            kind, _, key = request.headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not key:
                key = request.headers.get("x-api-key", "")
            given = key.strip().encode()
            # every key is compared, so that the time tells nothing about which one nearly fits
            if not sum(hmac.compare_digest(given, known) for known in self._keys):
                return ApiError(
                    401,
                    "the API key is missing or wrong. Send it as `Authorization: Bearer KEY`",
                    type="authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._config.max_body_bytes:
            return too_large(self._config.max_body_bytes)
        return None


def _route(scope: Scope) -> str:
    """The route's own path, so that what clients make up adds no series."""
    return getattr(scope.get("route"), "path", "none")


class _Body:
    """The body of a request as it arrives, within limits of size and time."""

    def __init__(self, receive: Receive, config: ServerConfig) -> None:
        self._receive = receive
        self._config = config
        self._deadline = asyncio.get_running_loop().time() + config.body_timeout
        self._n_bytes = 0
        self._whole = False

    async def receive(self) -> Message:
        """The next message of the client.

        Raises:
            ApiError: for a body that is too large or takes too long.
        """
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {self._config.body_timeout:g} seconds",
                code="request_timeout",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            self._n_bytes += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._n_bytes > self._config.max_body_bytes:
                raise too_large(self._config.max_body_bytes)
        return message


def too_large(limit: int) -> ApiError:
    """The refusal of a body over the limit."""
    return ApiError(
        413,
        f"the body has more than {limit} bytes",
        code="request_too_large",
        headers={"Connection": "close"},
    )
