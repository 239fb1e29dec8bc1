"""`minfer serve`: a model behind OpenAI's API."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minfer.cli.loading import open_model
from minfer.cli.options import Loading, ModelName, Tracing, option, option_name
from minfer.cli.top import Top
from minfer.errors import RequestError, ServerError
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.llm import LLM
    from minfer.server import ServerConfig

_serve = partial(option, "Serving")
_limit = partial(option, "Limits")


@dataclass(frozen=True)
class Serving:
    """Where a server listens and who may call it; the fields carry the names of `ServerConfig`."""

    host: Annotated[
        str, _serve("Address to listen on; 0.0.0.0 for all networks.", "--host", metavar="ADDRESS")
    ] = "127.0.0.1"
    port: Annotated[int, _serve("Port; 0 takes a free one.", "--port", metavar="N")] = 8080
    model_name: Annotated[
        str | None, _serve("What clients see as the model's name.", "--alias", metavar="NAME")
    ] = None
    api_keys: Annotated[
        list[str] | None,
        _serve("A key that requests must bear; repeatable.", "--api-key", metavar="KEY"),
    ] = None
    api_key_file: Annotated[
        Path | None,
        _serve("A file with such keys, one a line.", "--api-key-file", metavar="FILE"),
    ] = None
    cors_origins: Annotated[
        list[str] | None,
        _serve(
            "A web page's origin that may call, or `*`; repeatable.",
            "--cors-origin",
            metavar="ORIGIN",
        ),
    ] = None
    no_metrics: Annotated[bool, _serve("Do not answer /metrics.", "--no-metrics")] = False
    no_slots: Annotated[bool, _serve("Do not answer /slots.", "--no-slots")] = False
    top: Annotated[
        bool, _serve("Show what the server is doing, live, instead of a log.", "--top")
    ] = False


@dataclass(frozen=True)
class Limits:
    """How much a server takes on."""

    parallel: Annotated[
        int, _limit("Sequences that run at the same time.", "-np", "--parallel", metavar="N")
    ] = 8
    kv_cells: Annotated[
        int,
        _limit(
            "Tokens of KV cache for all of them; 0 for all they could fill, as far as memory "
            "allows.",
            "--kv-cells",
            metavar="N",
        ),
    ] = 0
    max_waiting: Annotated[
        int, _limit("Sequences that may wait; more are refused.", "--queue", metavar="N")
    ] = 64
    timeout: Annotated[
        float, _limit("Seconds a request may take.", "--timeout", metavar="SECONDS")
    ] = 600.0
    drain_timeout: Annotated[
        float,
        _limit(
            "Seconds that accepted requests have when the server is told to stop.",
            "--drain",
            metavar="SECONDS",
        ),
    ] = 30.0
    max_body_mib: Annotated[
        int, _limit("Size of a request in MiB.", "--max-body", metavar="MIB")
    ] = 16


def serve(
    model: ModelName,
    loading: Loading,
    serving: Serving,
    limits: Limits,
    tracing: Tracing,
) -> None:
    """Answer requests over HTTP as OpenAI's API does.

    Ctrl-C or SIGTERM ends it: requests already accepted are answered first. A line for each request
    goes to standard error, as JSON.
    """
    try:
        from minfer.server import serve as run
    except ModuleNotFoundError as error:
        raise ServerError(
            f"the package {error.name!r} is missing",
            where="serve",
            remedy="Install it with `pip install 'minfer[server]'`",
        ) from None
    config = configuration(serving, limits, Settings.load())
    log = logging.getLogger("minfer.server")
    log.setLevel(logging.INFO)

    def load() -> LLM:
        llm = open_model(
            model, loading, tracing, max_sequences=limits.parallel, n_cells=limits.kv_cells
        )
        for notice in llm.notices:
            print(notice, file=sys.stderr)
        print(
            f"{llm.info.name} on {' and '.join(llm.info.backends)}, loaded in "
            f"{llm.load_seconds:.2f} s",
            file=sys.stderr,
        )
        return llm

    def ready(url: str) -> None:
        print(f"listening on {url}/v1", file=sys.stderr)
        log.addHandler(Top(url, min(config.api_keys, default=None)) if serving.top else _stderr())

    try:
        run(load, config, ready=ready)
    finally:
        for handler in list(log.handlers):
            log.removeHandler(handler)
            handler.close()


def configuration(serving: Serving, limits: Limits, settings: Settings) -> ServerConfig:
    """The server's record of what the options and the environment say.

    Raises:
        typer.BadParameter: for a value that cannot be used, under the name of its option.
    """
    from minfer.server import ServerConfig

    if serving.top and serving.no_metrics:
        raise typer.BadParameter("needs /metrics", param_hint="--top")
    keys = {key for key in settings.api_keys.split(",") if key} | set(serving.api_keys or ())
    if serving.api_key_file is not None:
        lines = serving.api_key_file.read_text(encoding="utf-8").split()
        keys |= set(lines)
    try:
        return ServerConfig(
            host=serving.host,
            port=serving.port,
            model_name=serving.model_name,
            api_keys=frozenset(keys),
            cors_origins=tuple(serving.cors_origins or ()),
            metrics=not serving.no_metrics,
            slots=not serving.no_slots,
            max_waiting=limits.max_waiting,
            timeout=limits.timeout,
            drain_timeout=limits.drain_timeout,
            max_body_mib=limits.max_body_mib,
        )
    except RequestError as error:
        field = error.where or ""
        bundle = Serving if field in Serving.__dataclass_fields__ else Limits
        raise typer.BadParameter(error.what, param_hint=option_name(bundle, field)) from None


def _stderr() -> logging.Handler:
    """Shows the server's log: a JSON object a request, and words for everything else."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    return handler


class _Lines(logging.Formatter):
    """A request's line as it is; others with their level, and their traceback if they have one."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name.endswith(".requests"):
            return record.getMessage()
        return f"{record.levelname.lower()}: {super().format(record)}"
