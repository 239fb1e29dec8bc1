"""A request on its way from the front to a replica, and ASGI at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Call:
    """An HTTP request, whole.

    Attributes:
        method, path, query, headers, client: as in an ASGI scope.
        body: all of it.
        key: what its prefix is known by.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    client: tuple[str, int] | None
    body: bytes
    key: str

    def scope(self) -> dict[str, Any]:
        """The ASGI scope of it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": [tuple(pair) for pair in self.headers],
            "client": self.client,
            "server": None,
        }


@dataclass(frozen=True)
class Head:
    """How a response begins."""

    status: int
    headers: Headers


async def run(app: ASGIApp, call: Call) -> AsyncGenerator[Head | bytes, None]:
    """Let an application answer a call: its head, then its body as it comes.

    Closing the generator tells the application that the client has gone.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": call.body, "more_body": False})
    answering = asyncio.ensure_future(app(call.scope(), incoming.get, messages.put))
    answering.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        while (message := await messages.get()) is not None:
            if message["type"] == "http.response.start":
                yield Head(message["status"], list(message.get("headers", ())))
            else:
                yield message.get("body", b"")
                if not message.get("more_body", False):
                    break
    finally:
        incoming.put_nowait({"type": "http.disconnect"})
        await answering
