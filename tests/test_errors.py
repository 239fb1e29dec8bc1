"""Errors read as one form and survive the trip between processes."""

import copy
import inspect
import pickle

import pytest

from minfer import errors
from minfer.errors import (
    ContextFullError,
    HubError,
    MinferError,
    QueueFullError,
    RequestError,
)

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MinferError) and kind not in (ContextFullError, QueueFullError)
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "is wrong"),
        ({"where": "top_k"}, "[top_k] is wrong"),
        ({"remedy": "Mend it"}, "is wrong. Mend it"),
        ({"where": "top_k", "remedy": "Mend it"}, "[top_k] is wrong. Mend it"),
    ],
)
def test_the_form_of_a_message(arguments: dict[str, str], message: str) -> None:
    error = HubError("is wrong", **arguments)
    assert str(error) == message
    assert error.what == "is wrong"
    assert error.where == arguments.get("where")
    assert error.remedy == arguments.get("remedy")


@pytest.mark.parametrize("kind", KINDS)
def test_errors_cross_processes(kind: type[MinferError]) -> None:
    error = kind("is wrong", where="here", remedy="Mend it")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert (twin.what, twin.where, twin.remedy) == ("is wrong", "here", "Mend it")


def test_a_full_context_is_a_bad_request_and_says_how_full() -> None:
    error = pickle.loads(pickle.dumps(ContextFullError(5000, 4096)))
    assert isinstance(error, RequestError)
    assert (error.n_prompt, error.n_ctx) == (5000, 4096)
    assert "5000 tokens" in str(error)
    assert "4096" in str(error)


def test_every_error_says_when_it_is_raised() -> None:
    for kind in KINDS:
        assert (kind.__doc__ and kind.__doc__ != MinferError.__doc__) or kind is MinferError
