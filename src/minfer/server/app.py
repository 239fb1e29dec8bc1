"""The application: routes, gate, errors, and the model's life within the server's.

The model loads while the server already answers `/health`; until then everything else is refused
with 503.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from minfer.errors import MinferError
from minfer.llm import LLM
from minfer.server import chat, completions, embeddings, native, responses, status
from minfer.server.config import ServerConfig
from minfer.server.errors import ErrorBody, answer_error
from minfer.server.gate import Gate
from minfer.server.metrics import Metrics
from minfer.server.service import Service
from minfer.server.streams import GONE, ClientGone

_log = logging.getLogger("minfer.server")

ROUTERS = (
    chat.router,
    completions.router,
    embeddings.router,
    responses.router,
    native.router,
    status.router,
)
Failed = Callable[[Exception], None]


def create_app(
    load: Callable[[], LLM], config: ServerConfig, *, failed: Failed | None = None
) -> FastAPI:
    """The ASGI application that serves one model.

    Args:
        load: answers the model; called once, in a thread, when the server starts.
        config: what the operator decided.
        failed: told why the model could not be loaded; without it, starting fails.
    """
    from minfer import __version__

    metrics = Metrics()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async def open_model() -> None:
            try:
                app.state.service = Service(await _loaded(load), config, metrics)
            except Exception as error:
                if failed is None:
                    raise
                failed(error)

        opening = asyncio.create_task(open_model())
        if failed is None:
            await opening
        try:
            yield
        finally:
            opening.cancel()  # a model that nobody waits for any more
            await asyncio.gather(opening, return_exceptions=True)
            if app.state.service is not None:
                await asyncio.to_thread(app.state.service.close)

    app = FastAPI(
        title="minfer",
        version=__version__,
        description="A GGUF language model behind OpenAI's API.",
        lifespan=life,
        middleware=_middleware(config, metrics),
        redoc_url=None,
    )
    app.state.service = None
    refusals: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorBody, "description": "The request is refused"},
        "5XX": {"model": ErrorBody, "description": "The server cannot answer"},
    }
    for router in ROUTERS:
        app.include_router(router, responses=refusals)
    for kind in (MinferError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(ClientGone, _nobody)
    return app


async def _loaded(load: Callable[[], LLM]) -> LLM:
    """What `load` answers, in a thread that does not keep the process from ending.

    A model that comes when nobody waits for it any more is closed.
    """
    loop = asyncio.get_running_loop()
    model: asyncio.Future[LLM] = loop.create_future()

    def hand_over(found: LLM | Exception) -> None:
        if isinstance(found, Exception):
            if not model.done():
                model.set_exception(found)
        elif model.done():
            found.close()
        else:
            model.set_result(found)

    def work() -> None:
        found: LLM | Exception
        try:
            found = load()
        except Exception as error:
            found = error
        try:
            loop.call_soon_threadsafe(hand_over, found)
        except RuntimeError:  # the loop has ended
            if not isinstance(found, Exception):
                found.close()

    threading.Thread(target=work, name="minfer-load", daemon=True).start()
    return await model


def _middleware(config: ServerConfig, metrics: Metrics) -> list[Middleware]:
    found = [Middleware(Gate, config=config, metrics=metrics)]
    if config.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
        found.insert(0, cors)
    return found


async def _nobody(_: Request, error: Exception) -> Response:
    """The answer to a client that is not there; its status is for the log."""
    _log.debug("a client went away", exc_info=error)
    return Response(status_code=GONE)
