"""An operator's values are checked when the server is made."""

from __future__ import annotations

from typing import Any

import pytest

from minfer.errors import RequestError
from minfer.server import ServerConfig


@pytest.mark.parametrize(
    "change",
    [{"port": -1}, {"port": 65536}, {"max_waiting": -1}, {"timeout": 0}, {"max_body_mib": -1}],
)
def test_out_of_range(change: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        ServerConfig(**change)
    assert refused.value.where == next(iter(change))


@pytest.mark.parametrize("key", ["", "a\nb", "schlüssel"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(RequestError):
        ServerConfig(api_keys=frozenset({key}))


def test_mebibytes() -> None:
    assert ServerConfig(max_body_mib=0.5).max_body_bytes == 1 << 19
