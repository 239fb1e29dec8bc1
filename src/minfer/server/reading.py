"""Reading a JSON body: what JSON forbids or leaves undefined is refused, not guessed at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from minfer.server.errors import ApiError

LARGE = 1 << 18
"""Bytes from which a body is read in a thread, so that the others do not wait for it."""


DEPTH = 128
"""Brackets within brackets: what reads a body later may call itself once or twice for each."""


class JsonRequest(Request):
    """A request whose JSON is read strictly."""

    async def json(self) -> Any:
        """The body as JSON.

        Raises:
            ApiError: if it is not JSON in UTF-8, repeats a key, is nested too deeply, or holds
                NaN, Infinity or half of a surrogate pair.
        """
        body = await self.body()
        if len(body) < LARGE:
            return strict_json(body)
        return await asyncio.to_thread(strict_json, body)


class StrictRoute(APIRoute):
    """A route whose handler reads its body with `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler as FastAPI makes it, given another request."""
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            if self.body_field is not None:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise ApiError(
                        400,
                        f"the body's content type is {kind[:80]!r}, not application/json. Send "
                        "`Content-Type: application/json`",
                        code="invalid_content_type",
                    )
            return await handle(JsonRequest(request.scope, request.receive))

        return read_strictly


def strict_json(body: bytes) -> Any:
    """A JSON text's value; see `JsonRequest.json`."""
    try:
        value = json.loads(body, object_pairs_hook=_object, parse_constant=_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
        if body.count(b"{") + body.count(b"[") > DEPTH and _is_deep(value):
            raise RecursionError
        return value
    except UnicodeEncodeError as error:
        raise ApiError(
            400,
            f"the body is not text: \\u{ord(error.object[error.start]):04x} is half of a character",
            code="invalid_json",
        ) from None
    except (ValueError, RecursionError) as error:
        deep = f"it is nested too deeply; {DEPTH} levels are allowed"
        reason = deep if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not JSON: {reason}", code="invalid_json") from None


def _is_deep(value: Any) -> bool:
    level: list[Any] = [[value]]
    for _ in range(DEPTH + 1):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        left = dict(pairs)
        twice = next(name for name, _ in pairs if left.pop(name, found) is found)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
