"""The page over HTTP, on this machine only: files, a stream of events, and four questions.

Python's own server does: one user, a handful of connections. A request must name this machine as
its host, so that no other page in the browser can reach it under a name of its own.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from minfer.errors import BusyError, MinferError, RequestError, ServerError
from minfer.viz.feed import Feed

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PING_SECONDS = 15.0
BODY_BYTES = 1 << 20
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"


class Source(Protocol):
    """What the page shows: a live model or a saved trace."""

    def generate(self, prompt: str, max_tokens: int, temperature: float, chat: bool) -> None:
        """Run a prompt."""

    def attention(self, layer: int, head: int) -> dict[str, Any]:
        """The attention weights of a head."""

    def stop(self) -> None:
        """End the prompt that runs."""

    def close(self) -> None:
        """Free everything."""


class VizServer:
    """Serves the page until it is closed.

    Args:
        port: 0 takes a free one.
        feed: what pages are told.
        source: what runs; made after the port is known to be free.
        compared: the comparison with a second trace, if one was given.

    Raises:
        ServerError: if the port is in use.
    """

    def __init__(
        self,
        port: int,
        feed: Feed,
        source: Callable[[], Source],
        compared: dict[str, Any] | None = None,
    ) -> None:
        self.feed = feed
        self.compared = compared
        self.closing = Event()
        try:
            self._http = _Http((HOST, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServerError(
                    f"port {port} is in use", where="--port", remedy="Take another, or 0 for any"
                ) from None
            raise ServerError(f"port {port}: {error.strerror}", where="--port") from None
        self._http.viz = self
        self.source = source()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self._http.server_address[1]}/"

    def run(self) -> None:
        """Serve until `stop`, `close` or Ctrl-C."""
        self._http.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `run`, which is under way or about to begin in another thread."""
        self._http.shutdown()

    def release(self) -> None:
        """End all streams, free the port and the source; nothing runs any more."""
        self.closing.set()
        self._http.server_close()
        self.source.close()

    def close(self) -> None:
        """Stop and release."""
        self.closing.set()
        self.stop()
        self.release()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    viz: VizServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed in the middle of an answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads a log of this."""

    def do_GET(self) -> None:
        """Files, events, and questions."""
        if not self._local():
            return
        url = urlsplit(self.path)
        if url.path == "/events":
            self._events()
        elif url.path == "/compare":
            self._answer(lambda: self.server.viz.compared)
        elif url.path == "/attention":
            query = {k: v[0] for k, v in parse_qs(url.query).items()}
            self._answer(
                lambda: self.server.viz.source.attention(
                    _whole(query, "layer"), _whole(query, "head")
                )
            )
        else:
            self._file("index.html" if url.path == "/" else url.path[1:])

    def do_POST(self) -> None:
        """Run or stop a prompt."""
        if not self._local():
            return
        source = self.server.viz.source
        if self.path == "/stop":
            self._answer(source.stop)
        elif self.path == "/generate":
            self._answer(lambda: self._generate(source))
        else:
            self._reply(HTTPStatus.NOT_FOUND, {"error": f"no such route: {self.path}"})

    def _generate(self, source: Source) -> None:
        body = self._body()
        source.generate(
            prompt=_field(body, "prompt", str),
            max_tokens=_field(body, "max_tokens", int),
            temperature=float(_field(body, "temperature", (int, float))),
            chat=_field(body, "chat", bool),
        )

    def _body(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json":
            raise RequestError("the body is not application/json", where="Content-Type")
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES:
            raise RequestError(f"{length} bytes are more than {BODY_BYTES}", where="body")
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError as error:
            raise RequestError(f"is no JSON: {error}", where="body") from None
        if not isinstance(body, dict):
            raise RequestError("is no object", where="body")
        return body

    def _local(self) -> bool:
        """Whether the request is for this machine, from a page of this machine."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        origin = self.headers.get("Origin")
        ours = origin is None or urlsplit(origin).hostname in NAMES
        if host in NAMES and ours:
            return True
        self._reply(HTTPStatus.FORBIDDEN, {"error": "only this machine may ask"})
        return False

    def _answer(self, ask: Callable[[], Any]) -> None:
        try:
            self._reply(HTTPStatus.OK, ask())
        except BusyError as error:
            self._reply(HTTPStatus.CONFLICT, {"error": str(error)})
        except MinferError as error:
            self._reply(HTTPStatus.BAD_REQUEST, {"error": str(error)})

    def _reply(self, status: HTTPStatus, content: Any) -> None:
        self._send(status, "application/json", json.dumps(content, ensure_ascii=False).encode())

    def _file(self, name: str) -> None:
        path = PAGE / name
        if path.parent != PAGE or path.suffix not in TYPES or not path.is_file():
            self._reply(HTTPStatus.NOT_FOUND, {"error": f"no such file: {name}"})
            return
        self._send(HTTPStatus.OK, TYPES[path.suffix], path.read_bytes())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def _events(self) -> None:
        """Everything the feed tells, until the page goes."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        listener = self.server.viz.feed.listen()
        waited = 0.0
        try:
            while not self.server.viz.closing.is_set():
                text = listener.get(timeout=0.5)
                waited = 0.0 if text else waited + 0.5
                if text is None and waited < PING_SECONDS:
                    continue
                self.wfile.write((text or ": still here\n\n").encode())
                self.wfile.flush()
                waited = 0.0
        finally:
            self.server.viz.feed.leave(listener)


def _field(body: dict[str, Any], name: str, kind: Any) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RequestError(f"value {value!r} is unusable", where=name)
    return value


def _whole(query: dict[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text.isdecimal():
        raise RequestError(f"value {text!r} is no number", where=name)
    return int(text)
