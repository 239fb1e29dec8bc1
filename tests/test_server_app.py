"""The application's life: it ends at once, even while its model is still being loaded."""

from __future__ import annotations

import threading
from time import monotonic

import pytest
from serving import tiny
from starlette.testclient import TestClient

from minfer.errors import ClosedError, FormatError
from minfer.llm import LLM
from minfer.server import ServerConfig, create_app


@pytest.mark.parametrize("loads", [True, False])
def test_nobody_waits_for_a_model_that_is_still_being_loaded(loads: bool) -> None:
    go_on = threading.Event()
    found: list[LLM] = []

    def load() -> LLM:
        go_on.wait(20)
        if not loads:
            raise FormatError("it is broken")
        found.append(tiny())
        return found[0]

    failures: list[Exception] = []
    began = monotonic()
    with TestClient(create_app(load, ServerConfig(), failed=failures.append)) as client:
        assert client.get("/health").status_code == 503
    assert monotonic() - began < 5
    (loading,) = [t for t in threading.enumerate() if t.name == "minfer-load"]
    assert loading.daemon
    go_on.set()
    loading.join(20)
    assert not failures
    if loads:
        with pytest.raises(ClosedError):
            found[0].generate("hello")


def test_a_model_that_cannot_be_loaded() -> None:
    def load() -> LLM:
        raise FormatError("it is broken")

    failures: list[Exception] = []
    with TestClient(create_app(load, ServerConfig(), failed=failures.append)) as client:
        while not failures:
            assert client.get("/health").status_code == 503
    with pytest.raises(FormatError), TestClient(create_app(load, ServerConfig())):
        pass
