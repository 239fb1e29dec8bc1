"""Models of the Hugging Face hub, in the cache layout that its own tools use.

Layout: ``models--owner--name/`` with ``refs/<revision>`` (a commit), ``blobs/<etag>`` (content) and
``snapshots/<commit>/<file>`` (relative links to blobs). What another tool has downloaded is found
here, and what minfer downloads is found by other tools. Source: the hub's documentation of its
cache and the headers of its `resolve` route.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import quote

from minfer.errors import HubError
from minfer.hub import http, store
from minfer.hub.base import CachedModel, Progress, require_network
from minfer.hub.names import HuggingFaceName
from minfer.settings import Settings

USUAL = ("Q4_K_M", "Q8_0", "Q4_0", "Q5_K_M", "Q6_K", "F16", "BF16")
"""Quantizations to prefer, in order, where a name does not say which."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")
_NOT_MODELS = re.compile(r"(?i)(^|[-._/])(mmproj|imatrix)([-._]|$)")


def find(name: HuggingFaceName, settings: Settings) -> Path | None:
    """The file (of a split model, the first part) in the cache, or None."""
    folder = _repo_dir(name.repo, settings)
    snapshot = _snapshot(folder, name.revision)
    if snapshot is None:
        return None
    files = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf")]
    chosen = _choose(files, name.selector)
    if isinstance(chosen, str):
        return None
    first = snapshot / chosen[0]
    return first if all(part.is_file() for part in store.parts_of(first)) else None


def fetch(name: HuggingFaceName, settings: Settings, progress: Progress) -> Path:
    """Download the file, or all parts of it, unless the cache has this very content.

    Raises:
        HubError: when the repository, revision or file does not exist or needs a token, or a
            download fails or does not match its hash.
    """
    require_network(str(name), settings)
    headers = {"Authorization": f"Bearer {settings.hf_token}"} if settings.hf_token else {}
    root = f"{settings.hf_endpoint}/api/models/{name.repo}/revision/"
    try:
        url = root + quote(name.revision, safe="")
        commit, files = _listing(http.get_json(url, headers), url)
        chosen = _choose(files, name.selector)
        if isinstance(chosen, str):
            raise HubError(chosen, where=str(name), remedy="Add :file or :quantization")
        folder = _repo_dir(name.repo, settings)
        for number, file in enumerate(chosen, 1):
            count = f" ({number}/{len(chosen)})" if len(chosen) > 1 else ""
            remote = _remote(name.repo, commit, file, settings, headers)
            _fetch_file(remote, folder, headers, file + count, settings, progress)
    except http.Refused as refused:
        _explain(refused, name, settings)
    ref = folder / "refs" / name.revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    return folder / "snapshots" / commit / chosen[0]


def cached(settings: Settings) -> list[CachedModel]:
    """Every model in the cache that a name would find."""
    models = []
    for folder in sorted(settings.hf_hub_cache.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        for ref in sorted(path for path in folder.glob("refs/**/*") if path.is_file()):
            revision = ref.relative_to(folder / "refs").as_posix()
            snapshot = _snapshot(folder, revision)
            for path in sorted(snapshot.rglob("*.gguf")) if snapshot else ():
                parts = store.parts_of(path)
                if store.is_first(path) and all(part.is_file() for part in parts):
                    file = path.relative_to(snapshot).as_posix() if snapshot else path.name
                    name = str(HuggingFaceName(repo, revision, file))
                    n_bytes = sum(part.stat().st_size for part in parts)
                    models.append(CachedModel(name, path, n_bytes, "hf"))
    return models


@dataclass(frozen=True)
class _Remote:
    """One file of a commit, as the server describes it."""

    url: str
    commit: str
    file: str
    n_bytes: int
    etag: str  # also the name of the blob
    checksum: store.Checksum


def _listing(answer: Any, url: str) -> tuple[str, list[str]]:
    """The commit and the GGUF files in a description of a repository."""
    try:
        files = [str(row["rfilename"]) for row in answer["siblings"]]
        return str(answer["sha"]), [file for file in files if file.endswith(".gguf")]
    except (KeyError, TypeError):
        raise HubError("answered without a commit and a list of files", where=url) from None


def _remote(
    repo: str, commit: str, file: str, settings: Settings, headers: dict[str, str]
) -> _Remote:
    if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts or "\\" in file:
        raise HubError(f"lists a file that would leave its folder: {file!r}", where=repo)
    url = f"{settings.hf_endpoint}/{repo}/resolve/{commit}/{quote(file)}"
    found = http.head(url, headers)
    etag = (found["X-Linked-Etag"] or found["ETag"] or "").removeprefix("W/").strip('"')
    size = found["X-Linked-Size"] or found["Content-Length"] or ""
    git = _GIT_SHA1.fullmatch(etag) is not None
    if not (git or _SHA256.fullmatch(etag)) or not size.isdecimal():
        raise HubError(
            f"states no hash and size for the file (ETag {etag!r}, size {size!r})",
            where=url,
            remedy="Download the file by hand and name its path",
        )
    return _Remote(url, commit, file, int(size), etag, store.Checksum(etag, git))


def _fetch_file(
    remote: _Remote,
    folder: Path,
    headers: dict[str, str],
    what: str,
    settings: Settings,
    progress: Progress,
) -> None:
    blob = folder / "blobs" / remote.etag
    link = folder / "snapshots" / remote.commit / remote.file
    with store.exclusive(blob, settings):
        if not (blob.is_file() and blob.stat().st_size == remote.n_bytes):
            partial = store.Partial(blob, remote.n_bytes, remote.checksum)
            http.download(remote.url, partial, headers, what, progress)
            partial.finish(remote.url)
        if not link.is_file():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)  # a link whose blob is gone
            up = "../" * (len(PurePosixPath(remote.file).parts) + 1)
            link.symlink_to(f"{up}blobs/{remote.etag}")


def _repo_dir(repo: str, settings: Settings) -> Path:
    return settings.hf_hub_cache / f"models--{repo.replace('/', '--')}"


def _snapshot(folder: Path, revision: str) -> Path | None:
    """The snapshot of a branch, tag or full commit, or None."""
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _choose(files: Sequence[str], selector: str | None) -> list[str] | str:
    """The files that a selector means, in order of their parts, or why there is no such choice."""
    firsts = sorted(
        file for file in files if store.is_first(Path(file)) and not _NOT_MODELS.search(file)
    )
    if not firsts:
        return "has no GGUF file"
    if selector is None:
        matching = firsts
        for quantization in USUAL if len(firsts) > 1 else ():
            if usual := [file for file in firsts if _has_quantization(file, quantization)]:
                matching = usual
                break
    elif selector.endswith(".gguf"):
        matching = [file for file in firsts if selector in (file, PurePosixPath(file).name)]
    else:
        matching = [file for file in firsts if _has_quantization(file, selector)]
    if len(matching) != 1:
        found = "several files" if matching else "no file"
        listed = ", ".join(matching or firsts)
        return f"has {found} for {selector or 'the name alone'}; there are: {listed}"
    first = PurePosixPath(matching[0])
    return [(first.parent / part.name).as_posix() for part in store.parts_of(Path(first))]


def _has_quantization(file: str, quantization: str) -> bool:
    return re.search(rf"(?i)(^|[-._/]){re.escape(quantization)}[-./]", file) is not None


def _explain(refused: http.Refused, name: HuggingFaceName, settings: Settings) -> NoReturn:
    if refused.status in (401, 403):
        token = "the token in HF_TOKEN has no access" if settings.hf_token else "no token is set"
        raise HubError(
            f"is not open to everyone, or does not exist, and {token} (HTTP {refused.status})",
            where=str(name),
            remedy=f"Accept its licence at {settings.hf_endpoint}/{name.repo} and set HF_TOKEN",
        )
    if refused.status == 404:
        raise HubError(
            f"does not exist at {settings.hf_endpoint} (HTTP 404)",
            where=str(name),
            remedy="Check owner, repository, revision and file",
        )
    raise HubError(f"was refused with HTTP {refused.status}", where=refused.url)
