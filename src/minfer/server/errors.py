"""Errors as OpenAI's API spells them: which status, type and code each of ours becomes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from minfer.errors import (
    BackendError,
    BusyError,
    ClosedError,
    ContextFullError,
    DeadlineError,
    GrammarError,
    MinferError,
    OutOfMemoryError,
    QueueFullError,
    RequestError,
    TemplateError,
    TokenizerError,
    UnsupportedError,
)

INVALID = "invalid_request_error"

# Class of error -> status, type, code. The first row that fits counts.
_ROWS: tuple[tuple[type[MinferError], int, str, str | None], ...] = (
    (ContextFullError, 400, "exceed_context_size_error", "context_length_exceeded"),
    (RequestError, 400, INVALID, "invalid_value"),
    (TemplateError, 400, INVALID, "invalid_messages"),
    (TokenizerError, 400, INVALID, "invalid_text"),
    (GrammarError, 400, INVALID, "invalid_grammar"),
    (UnsupportedError, 400, INVALID, "unsupported"),
    (QueueFullError, 429, "rate_limit_error", "queue_full"),
    (BusyError, 503, "unavailable_error", "busy"),
    (ClosedError, 503, "unavailable_error", "unavailable"),
    (DeadlineError, 504, "server_error", "timeout"),
    (OutOfMemoryError, 500, "server_error", "out_of_memory"),
    (BackendError, 500, "server_error", "backend_error"),
    (MinferError, 500, "server_error", None),
)

_PARTS = re.compile(r"[.\[]")
_FIELD = re.compile(r"[a-z_]+([.\[].*)?")
RETRY_AFTER = 1
"""Seconds a client is asked to wait where the server is busy."""


class ErrorDetail(BaseModel):
    """What is wrong with a request, or with the server."""

    model_config = ConfigDict(extra="allow")

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is none."""

    error: ErrorDetail


class ApiError(HTTPException):
    """A refusal with all that a client may want to read.

    Args:
        status: HTTP status.
        message: one sentence, and what to do about it.
        type: OpenAI's kind of error.
        param: the field of the request concerned.
        code: a word for programs.
        headers: further headers of the answer.
        more: further fields of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.error = {"message": message, "type": type, "param": param, "code": code, **more}


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A refusal of one field of a request."""
    return ApiError(400, message, param=param, code=code)


def api_error(error: Exception, fields: Mapping[str, str] = MappingProxyType({})) -> ApiError:
    """Any exception as what a client is told of it; a defect of ours keeps its words to the log.

    Args:
        error: what was raised.
        fields: names in our errors -> names of the request's fields, where they differ.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        kind = "not_found_error" if error.status_code == 404 else INVALID
        told = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return ApiError(
            error.status_code, str(error.detail), type=kind, code=told, headers=error.headers
        )
    if isinstance(error, RequestValidationError):
        return _validation(error)
    if not isinstance(error, MinferError):
        return ApiError(500, "internal error; see the server's log", type="server_error")
    _, status, kind, code = next(row for row in _ROWS if isinstance(error, row[0]))
    param = None
    if status == 400 and error.where is not None and _FIELD.fullmatch(error.where):
        param = fields.get(error.where, error.where)
    headers = {"Retry-After": str(RETRY_AFTER)} if status in (429, 503) else {}
    more = {}
    if isinstance(error, ContextFullError):
        more = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
    if status >= 500 and status != 503:
        headers["x-should-retry"] = "false"  # OpenAI's clients would repeat it
    return ApiError(
        status,
        f"{error.what}. {error.remedy}" if error.remedy else error.what,
        type=kind,
        param=param,
        code=code,
        headers=headers,
        **more,
    )


def error_body(error: ApiError) -> bytes:
    """The JSON text of an error, in ASCII: it may quote what has no UTF-8 form."""
    return json.dumps({"error": error.error}).encode()


async def answer_error(request: Request, error: Exception) -> Response:
    """The response to a request that raised."""
    told = api_error(error, getattr(request.state, "fields", {}))
    request.state.error = told.error
    return Response(
        error_body(told),
        status_code=told.status_code,
        headers=told.headers,
        media_type="application/json",
    )


def _validation(error: RequestValidationError) -> ApiError:
    """The first thing pydantic found wrong, with the field as a client writes it."""
    found = [
        (field_path(e["loc"][1:], error.body, missing=e["type"] == "missing"), e)
        for e in error.errors()
    ]
    # of a union's branches, the one that came furthest is the one that was meant
    param, first = max(
        found, key=lambda pair: (len(_PARTS.findall(pair[0])), pair[1]["type"] != "missing")
    )
    location = first["loc"][1:]
    if first["type"] == "missing":
        message, code = f"the field is missing; {param} is required", "missing_field"
    else:
        message, code = _told(first), "invalid_type"
    if not location:
        return ApiError(
            400,
            "the body is not a JSON object",
            code="invalid_body",
        )
    return ApiError(400, message, param=param or None, code=code)


def _told(found: Mapping[str, Any]) -> str:
    text = str(found["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    given = json.dumps(found.get("input"), default=str)
    shown = given if len(given) <= 80 else given[:77] + "..."
    return f"value {shown} {text[0].lower()}{text[1:]}"


def field_path(location: Sequence[int | str], body: Any, *, missing: bool = False) -> str:
    """A place in a request as `messages[0].content`; names of types that pydantic adds go.

    Args:
        location: as pydantic gives it.
        body: the request.
        missing: whether the place's last part is not there.
    """
    path = ""
    value = body
    for at, part in enumerate(location):
        if isinstance(part, int):
            if not isinstance(value, list) or part >= len(value):
                continue
            path += f"[{part}]"
            value = value[part]
        elif isinstance(value, dict) and (part in value or (missing and at == len(location) - 1)):
            path += f".{part}" if path else part
            value = value.get(part)
    return path
