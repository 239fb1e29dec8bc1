"""Answers that leave when the client does: waiting for work, and server-sent events.

A client that goes away cancels its work at the next await, whether the answer streams or not.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minfer.server.errors import ApiError, api_error

_log = logging.getLogger("minfer.server")
_Result = TypeVar("_Result")
Write = Callable[..., Awaitable[None]]

GONE = 499
"""Status in the log of a request whose client went away."""


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


async def while_there(
    receive: Receive, work: Coroutine[Any, Any, _Result], timeout: float
) -> _Result:
    """The result of `work`, which is cancelled if the client leaves or the time is up.

    Args:
        receive: the connection; the request's body has been read from it.
        work: what to do.
        timeout: seconds.

    Raises:
        ClientGone: if the client left.
        ApiError: if the time is up.
    """
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        done, _ = await asyncio.wait(
            (doing, watching), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if doing in done:
            return doing.result()
        if watching in done:
            raise ClientGone
        raise ApiError(
            504,
            f"the request took more than {timeout:g} seconds",
            type="server_error",
            code="timeout",
            headers={"x-should-retry": "false"},
        )
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events from a generator of JSON objects, and how they end.

    A failure after the headers cannot change the status: it is sent as an error object.

    Args:
        request: what it answers.
        events: JSON objects; where one has a `type`, it names the event.
        close: called at the end, however it comes.
        timeout: seconds it may take.
        ping: seconds of silence after which a comment is sent.
        done: the last line of data, if there is one.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        events: AsyncGenerator[dict[str, Any], None],
        *,
        close: Callable[[], None],
        timeout: float,
        ping: float,
        done: str | None,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._events = events
        self._close = close
        self._timeout = timeout
        self._ping = ping
        self._done = done
        self._wrote = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        try:
            await self._stream(receive, send)
        finally:
            self._close()

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )

        async def write(text: str, *, more: bool = True) -> None:
            body = text.encode("utf-8", errors="replace")
            await send({"type": "http.response.body", "body": body, "more_body": more})

        async def pump() -> None:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._wrote = True
                    await write(_event(event))

        pinging = asyncio.ensure_future(self._ping_when_silent(write))
        try:
            await while_there(receive, pump(), self._timeout)
        except ClientGone:
            self._request.state.note["status"] = GONE
            return
        except Exception as error:
            told = api_error(error)
            if told.status_code >= 500:
                _log.error("a stream failed", exc_info=error)
            self._request.state.error = told.error
            await write(_event({"error": told.error}))
        finally:
            pinging.cancel()
        if self._done is not None:
            await write(f"data: {self._done}\n\n")
        await write("", more=False)

    async def _ping_when_silent(self, write: Write) -> None:
        while True:
            self._wrote = False
            await asyncio.sleep(self._ping)
            if not self._wrote:
                await write(": still working\n\n")


def _event(data: dict[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    name = f"event: {data['type']}\n" if isinstance(data.get("type"), str) else ""
    return f"{name}data: {text}\n\n"
