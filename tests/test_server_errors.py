"""Which answer each error becomes, and how fields are named."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from minfer import errors
from minfer.errors import ContextFullError, MinferError, QueueFullError, RequestError
from minfer.server.errors import ApiError, api_error, error_body, field_path

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MinferError) and kind not in (ContextFullError, QueueFullError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_an_answer(kind: type[MinferError]) -> None:
    told = api_error(kind("is wrong", where="top_k", remedy="Mend it"))
    assert told.status_code in (400, 500, 503, 504)
    assert told.error["message"] == "is wrong. Mend it"
    assert told.error["param"] == ("top_k" if told.status_code == 400 else None)
    assert set(json.loads(error_body(told))["error"]) >= {"message", "type", "param", "code"}


def test_what_a_client_should_do() -> None:
    assert api_error(QueueFullError(9, 9)).headers == {"Retry-After": "1"}
    assert api_error(QueueFullError(9, 9)).status_code == 429
    assert api_error(errors.ClosedError("x")).headers == {"Retry-After": "1"}
    assert api_error(errors.BackendError("x")).headers == {"x-should-retry": "false"}
    full = api_error(ContextFullError(9, 8))
    assert (full.error["n_prompt_tokens"], full.error["n_ctx"]) == (9, 8)


def test_a_defect_keeps_its_words() -> None:
    told = api_error(ZeroDivisionError("secret"))
    assert told.status_code == 500
    assert "secret" not in json.dumps(told.error)


def test_names_are_those_of_the_request() -> None:
    error = RequestError("is wrong", where="prompt")
    assert api_error(error, {"prompt": "messages"}).error["param"] == "messages"
    assert api_error(RequestError("x", where="chat template line 3")).error["param"] is None


def test_an_answer_stays_what_it_is() -> None:
    error = ApiError(418, "no coffee", code="teapot")
    assert api_error(error) is error


def test_what_has_no_utf8_form_is_quoted() -> None:
    assert error_body(ApiError(400, "\ud800")).isascii()


@pytest.mark.parametrize(
    ("location", "body", "missing", "path"),
    [
        ((), [], False, ""),
        (("n",), {"n": "x"}, False, "n"),
        (("messages", 0, "content"), {"messages": [{"content": 5}]}, False, "messages[0].content"),
        (("messages", 0, "content", "str"), {"messages": [{"content": 5}]}, False, None),
        (("stop", "list[str]", 1), {"stop": ["x", 5]}, False, "stop[1]"),
        (("input", "list[list[int]]"), {"input": {"a": 1}}, False, "input"),
        (("messages",), {}, True, "messages"),
        (("tools", 0, "function"), {"tools": [{}]}, True, "tools[0].function"),
    ],
)
def test_places(location: Any, body: Any, missing: bool, path: str | None) -> None:
    expected = "messages[0].content" if path is None else path
    assert field_path(location, body, missing=missing) == expected
