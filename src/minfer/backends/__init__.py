"""Where and how an op runs. The door: the contract, and `create_backend` over one table."""

from __future__ import annotations

import difflib
import importlib
from typing import cast

from minfer.backends.base import (
    ALIGNMENT,
    Backend,
    Budget,
    Foreseeing,
    Split,
    Weight,
    aligned,
)
from minfer.errors import UnsupportedError
from minfer.graph import Graph, Node
from minfer.settings import Settings

BACKENDS: dict[str, str] = {
    "cuda": "minfer.backends.cuda",
    "cpu": "minfer.backends.cpu",
    "reference": "minfer.backends.reference",
}
"""Backend name -> its folder: `create(settings)`, `reason_against(node, graph)`; best first."""


def create_backend(name: str, settings: Settings) -> Backend:
    """Make a backend by name.

    Raises:
        UnsupportedError: for an unknown name.
        BackendError: when the device or its libraries are missing, saying how to get them.
    """
    if name not in BACKENDS:
        close = difflib.get_close_matches(name, BACKENDS, n=1)
        raise UnsupportedError(
            f"unknown backend {name!r}; there are {', '.join(BACKENDS)}",
            where="device",
            remedy=f"Did you mean {close[0]}?" if close else None,
        )
    return cast(Backend, importlib.import_module(BACKENDS[name]).create(settings))


def reason_against(name: str, node: Node, graph: Graph) -> str | None:
    """None if the backend's kernels can run `node`, else why not; needs no device."""
    reason = importlib.import_module(BACKENDS[name]).reason_against(node, graph)
    return cast("str | None", reason)


__all__ = [
    "ALIGNMENT",
    "BACKENDS",
    "Backend",
    "Budget",
    "Foreseeing",
    "Split",
    "Weight",
    "aligned",
    "create_backend",
    "reason_against",
]
