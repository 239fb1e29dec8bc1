"""What makes two requests alike for a prefix cache, and which replica is theirs.

A conversation is known by its beginning: the system's words and the user's first. Its later turns
then meet the replica that computed the earlier ones. Replicas are ranked for a key by rendezvous
hashing: when one comes or goes, only its own keys move.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

BEGINNING = 512
"""Characters of a text that count as its beginning."""


def prefix_key(body: bytes) -> str:
    """What a request begins with; empty where it has no beginning, so that it may go anywhere."""
    try:
        request = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(request, dict):
        return ""
    beginning: list[Any] = [request.get("instructions")]
    for name in ("messages", "input", "prompt"):
        given = request.get(name)
        if isinstance(given, list):
            for item in given:
                beginning.append(item)
                if isinstance(item, dict) and item.get("role") == "user":
                    break
                if len(beginning) > BEGINNING:
                    break
        elif isinstance(given, str):
            beginning.append(given[:BEGINNING])
    if len(beginning) == 1:
        return ""
    text = json.dumps(beginning, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def ranked(key: str, names: Iterable[str]) -> list[str]:
    """Replicas by name, the one `key` belongs to first."""
    return sorted(names, key=lambda name: _weight(key, name))


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key} {name}".encode(), digest_size=8).digest()
