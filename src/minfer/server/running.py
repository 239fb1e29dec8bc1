"""Running the application: uvicorn on one port, signals, and a drain with an end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from minfer.errors import ServerError
from minfer.llm import LLM
from minfer.server.app import create_app
from minfer.server.config import ServerConfig

_log = logging.getLogger("minfer.server")


class _Server(uvicorn.Server):
    """Takes a signal as the wish to stop, not as a death: the process then ends well."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
            _log.warning("stopping without waiting for requests")
        else:
            self.should_exit = True
            _log.info("draining: accepted requests may end, new ones are refused")


def serve(
    load: Callable[[], LLM],
    config: ServerConfig,
    *,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; accepted requests then have `drain_timeout` seconds to end.

    Args:
        load: answers the model.
        config: what the operator decided.
        ready: told the address once the port is open.

    Raises:
        ServerError: if the address cannot be had.
        MinferError: if the model cannot be loaded.
    """
    failures: list[Exception] = []

    def failed(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    server = _Server(
        uvicorn.Config(
            create_app(load, config, failed=failed),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=max(1, round(config.drain_timeout)),
        )
    )
    with open_socket(config) as sock:
        if ready is not None:
            host, port = sock.getsockname()[:2]
            ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        server.run(sockets=[sock])
    if failures:
        raise failures[0]


def open_socket(config: ServerConfig) -> socket.socket:
    """A socket that listens where the operator wants; port 0 takes a free one.

    Raises:
        ServerError: if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # named as TCP, or the event loop would not see that it may send small packets at once
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.host, config.port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise ServerError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            where="port",
            remedy="Choose another with --port, or 0 for a free one",
        ) from None
    return sock
