"""Models of an Ollama registry, and those in Ollama's own store on this machine.

A manifest (JSON, OCI style) lists layers by media type and SHA-256; the layer of type
``application/vnd.ollama.image.model`` is the GGUF file. Ollama's store is only read: minfer keeps
what it downloads in its own cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minfer.errors import HubError
from minfer.hub import http, store
from minfer.hub.base import CachedModel, Progress, require_network
from minfer.hub.names import OllamaName
from minfer.settings import Settings

MODEL_LAYER = "application/vnd.ollama.image.model"
_ACCEPT = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
_DIGEST = re.compile(r"sha256:(?P<hash>[0-9a-f]{64})")


@dataclass(frozen=True)
class _Layer:
    """The GGUF file of a manifest."""

    hexdigest: str
    n_bytes: int


def find(name: OllamaName, settings: Settings) -> Path | None:
    """The file in minfer's cache or in Ollama's store, or None."""
    own = _own(name, settings)
    if own.is_file():
        return own
    manifest = _manifests(settings) / name.namespace / name.model / name.tag
    return _stored(manifest, settings) if manifest.is_file() else None


def fetch(name: OllamaName, settings: Settings, progress: Progress) -> Path:
    """Download the model's file unless it is here.

    Raises:
        HubError: when the registry has no such model, or a download fails or does not match its
            hash.
    """
    require_network(str(name), settings)
    root = f"{settings.ollama_registry}/v2/{name.namespace}/{name.model}"
    target = _own(name, settings)
    try:
        layer = _layer(http.get_json(f"{root}/manifests/{name.tag}", _ACCEPT), str(name))
        with store.exclusive(target, settings):
            digest = target.with_suffix(".sha256")  # a tag can move: this says which it was
            if not (target.is_file() and digest.is_file() and _is(digest, layer)):
                partial = store.Partial(target, layer.n_bytes, store.Checksum(layer.hexdigest))
                url = f"{root}/blobs/sha256:{layer.hexdigest}"
                http.download(url, partial, {}, str(name), progress)
                partial.finish(url)
                digest.write_text(layer.hexdigest)
    except http.Refused as refused:
        raise HubError(
            f"is not at {settings.ollama_registry} (HTTP {refused.status})",
            where=str(name),
            remedy="Check the name and the tag after the second colon",
        ) from None
    return target


def cached(settings: Settings) -> list[CachedModel]:
    """Every model in minfer's cache and in Ollama's store."""
    folder = store.models_dir(settings) / "ollama"
    models = []
    for path in sorted(folder.glob("*/*/*/*.gguf")):
        name = OllamaName(*path.parent.relative_to(folder).parts)
        models.append(CachedModel(str(name), path, path.stat().st_size, "ollama"))
    root = _manifests(settings)
    for manifest in sorted(path for path in root.glob("*/*/*") if path.is_file()):
        name = OllamaName(*manifest.relative_to(root).parts)
        blob = _stored(manifest, settings)
        if blob is not None and not _own(name, settings).is_file():
            models.append(CachedModel(str(name), blob, blob.stat().st_size, "ollama"))
    return models


def _own(name: OllamaName, settings: Settings) -> Path:
    folder = store.models_dir(settings) / "ollama" / name.namespace / name.model / name.tag
    return folder / f"{name.model}-{name.tag}.gguf"


def _manifests(settings: Settings) -> Path:
    host = urlsplit(settings.ollama_registry).netloc
    return settings.ollama_models / "manifests" / host


def _stored(manifest: Path, settings: Settings) -> Path | None:
    """The blob that a manifest of Ollama's store names, where it is complete.

    A manifest there that is no model (an adapter, another format) is none of our concern.
    """
    try:
        layer = _layer(json.loads(manifest.read_bytes()), str(manifest))
    except (ValueError, HubError):
        return None
    blob = settings.ollama_models / "blobs" / f"sha256-{layer.hexdigest}"
    return blob if blob.is_file() and blob.stat().st_size == layer.n_bytes else None


def _layer(manifest: Any, where: str) -> _Layer:
    for layer in _dicts(manifest):
        digest = _DIGEST.fullmatch(str(layer.get("digest")))
        size = layer.get("size")
        if layer.get("mediaType") == MODEL_LAYER and digest and isinstance(size, int):
            return _Layer(digest["hash"], size)
    raise HubError("has no GGUF layer in its manifest", where=where)


def _dicts(manifest: Any) -> Iterator[dict[str, Any]]:
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    yield from (layer for layer in layers or () if isinstance(layer, dict))


def _is(digest: Path, layer: _Layer) -> bool:
    return digest.read_text() == layer.hexdigest
