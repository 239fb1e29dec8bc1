"""A scripted HTTP server on loopback for the hub's tests: serves files, and fails as told to.

Every request is recorded. `Route` is what a path answers; a test changes routes between requests
to play a cut connection, a moved file or a hostile server.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Route:
    """The answer of one path.

    Attributes:
        body: the whole content.
        headers: further headers, e.g. ``X-Linked-Etag``.
        etag: the ETag, with its quotes, or None for a server that gives none.
        statuses: statuses to answer with, one a request, before the content is served.
        cut_after: bytes after which each GET closes the connection, one entry a request.
        ranges: whether `Range` is honoured.
        if_range: whether `If-Range` is.
        redirect: address to send the client to instead of serving.
    """

    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    etag: str | None = None
    statuses: list[int] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    ranges: bool = True
    if_range: bool = True
    redirect: str | None = None


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: Message


class Loopback:
    """The server; a context manager."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.seen: list[Seen] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """The root address, without a final slash."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Loopback:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def gets(self, path: str) -> list[Seen]:
        """The GET requests for a path so far."""
        return [row for row in self.seen if (row.method, row.path) == ("GET", path)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_HEAD(self) -> None:
                self._answer()

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _answer(self) -> None:
                loopback.seen.append(Seen(self.command, self.path, self.headers))
                self.close_connection = True
                route = loopback.routes.get(self.path)
                if route is None:
                    self._send(404, b"", {})
                elif route.statuses:
                    self._send(route.statuses.pop(0), b"", {})
                elif route.redirect:
                    self._send(302, b"", {**route.headers, "Location": route.redirect})
                else:
                    self._serve(route)

            def _serve(self, route: Route) -> None:
                headers = dict(route.headers)
                if route.etag:
                    headers["ETag"] = route.etag
                asked = self.headers.get("Range") if route.ranges else None
                changed = self.headers.get("If-Range", route.etag) != route.etag
                if asked is None or (changed and route.if_range):
                    self._send(200, route.body, headers, route)
                    return
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                total = len(route.body)
                if start >= total:
                    self._send(416, b"", {"Content-Range": f"bytes */{total}"})
                    return
                headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
                self._send(206, route.body[start:], headers, route)

            def _send(
                self,
                status: int,
                body: bytes,
                headers: dict[str, str],
                route: Route | None = None,
            ) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    cut = route.cut_after.pop(0) if route and route.cut_after else len(body)
                    self.wfile.write(body[:cut])

        return Handler
