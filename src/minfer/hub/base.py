"""What every source of models shares: the progress callback and the record of a cached model.

A source is a module with two functions, `find(name, settings)`, which looks on this machine only,
and `fetch(name, settings, progress)`, which may use the network and answers a verified file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minfer.errors import HubError
from minfer.settings import Settings

Progress = Callable[[str, int, int | None], None]
"""Called as `progress(what, done_bytes, total_bytes)`; the total is None while unknown."""


@dataclass(frozen=True)
class CachedModel:
    """A model on this machine.

    Attributes:
        name: what to pass to `resolve` to get it again, e.g. ``smollm2`` or ``hf:a/b:x.gguf``.
        path: its file; of a split model, the first part.
        n_bytes: size of the file, or of all parts together.
        source: the form of name it came by: ``pypi``, ``hf`` or ``ollama``.
    """

    name: str
    path: Path
    n_bytes: int
    source: str


def silent(what: str, done: int, total: int | None) -> None:
    """Report no progress."""


def require_network(what: str, settings: Settings) -> None:
    """Refuse to go on where the settings forbid the network.

    Raises:
        HubError: when `settings.offline` is set.
    """
    if settings.offline:
        raise HubError(
            "is not in the cache, and MINFER_OFFLINE=1 forbids downloading it",
            where=what,
            remedy="Unset MINFER_OFFLINE, or see `minfer list` for what is here",
        )
