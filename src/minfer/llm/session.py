"""A conversation and its KV cache in one file: written at once, verified whole before it is used.

Layout: 8 bytes of magic, SHA-256 of everything after it (32 bytes), length of the header (u64,
little-endian), the header as JSON, then the pages of each KV state in the header's order.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from minfer.engine import Engine
from minfer.errors import FormatError
from minfer.gguf import GGUFFile

MAGIC = b"MINFERS1"
_PREFIX = len(MAGIC) + 32


def save(
    path: Path,
    engine: Engine,
    file: GGUFFile,
    messages: Sequence[Mapping[str, Any]],
    ids: Sequence[int],
) -> None:
    """Write `messages` and the cached pages of their ids; replaces `path` atomically.

    Raises:
        FormatError: if the file cannot be written; what was there is left as it was.
    """
    n_tokens, pages = engine.prefix_pages(ids)
    contents = engine.read_pages(pages)
    header = {
        "model": fingerprint(file),
        "cache_type": engine.config.cache_type.name,
        "backends": list(engine.weight_bytes),
        "messages": [dict(m) for m in messages],
        "tokens": list(ids[:n_tokens]),
        "states": {state: [len(page) for page in parts] for state, parts in contents.items()},
    }
    text = json.dumps(header, ensure_ascii=False).encode()
    body = struct.pack("<Q", len(text)) + text
    body += b"".join(page for parts in contents.values() for page in parts)
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):  # there may be nothing to remove
            draft.unlink()
        raise FormatError(f"cannot be written: {error.strerror}", where=str(path)) from None


def load(path: Path, engine: Engine, file: GGUFFile) -> list[dict[str, Any]]:
    """Verify a session file, put its pages into the engine's cache, answer its messages.

    Raises:
        FormatError: naming what does not fit; nothing is changed then.
        RequestError: if its pages are more than the KV cache can hold beside those in use.
    """
    where = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", where=where) from None
    if data[: len(MAGIC)] != MAGIC:
        raise FormatError("is not a minfer session", where=where)
    body = data[_PREFIX:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : _PREFIX]:
        raise FormatError("the checksum does not match: the session is damaged", where=where)
    try:
        header, contents = _parse(body)
        saved = {key: header[key] for key in ("model", "cache_type", "backends")}
        tokens, messages = list(header["tokens"]), list(header["messages"])
    except (KeyError, TypeError, ValueError, struct.error):
        raise FormatError("is not laid out like a session", where=where) from None
    expected = {
        "model": fingerprint(file),
        "cache_type": engine.config.cache_type.name,
        "backends": list(engine.weight_bytes),
    }
    for key, value in expected.items():
        if saved[key] != value:
            raise FormatError(
                f"was saved with {key} {saved[key]!r}, this is {value!r}",
                where=where,
                remedy="Load it with the model and options it was saved with",
            )
    if tokens:
        engine.restore(tokens, contents)
    return messages


def _parse(body: bytes) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
    """The header, and the bytes of each page by KV state."""
    (length,) = struct.unpack_from("<Q", body)
    at = 8 + length
    header: dict[str, Any] = json.loads(body[8:at])
    contents: dict[str, list[bytes]] = {}
    for state, sizes in dict(header["states"]).items():
        contents[state] = []
        for size in sizes:
            contents[state].append(body[at : at + size])
            at += size
    return header, contents


def fingerprint(file: GGUFFile) -> str:
    """Identity of a model: names, types, shapes of its tensors, and a sample of their bytes."""
    digest = hashlib.sha256()
    for name, tensor in file.tensors.items():
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.data[:64].tobytes())
    return digest.hexdigest()
