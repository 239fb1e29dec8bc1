"""Where downloaded files live and how they get there: locked, verified, then renamed into place.

A file under its final name is complete and had the right hash; everything else ends in
``.incomplete``. This module knows no source and no network.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minfer.errors import HubError
from minfer.settings import Settings

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

CHUNK = 1 << 20
SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
"""File name of one part of a split model."""


def models_dir(settings: Settings) -> Path:
    """The folder of the models that minfer keeps itself."""
    return settings.cache / "models"


@dataclass(frozen=True)
class Checksum:
    """What a file's content must hash to.

    Attributes:
        hexdigest: the hash in lower-case hexadecimal.
        git: whether it is Git's blob hash (SHA-1 with a header) instead of a SHA-256.
    """

    hexdigest: str
    git: bool = False

    def start(self, n_bytes: int) -> hashlib._Hash:
        """A hasher for a file of `n_bytes` bytes."""
        if self.git:
            return hashlib.sha1(b"blob %d\0" % n_bytes, usedforsecurity=False)
        return hashlib.sha256()


class Partial:
    """A file being written beside its final name, which can be resumed after an interruption.

    The validator is the server's ETag for the bytes so far; it is kept in a file of its own, so
    that a later run can ask the server for the rest of the same content.
    """

    def __init__(self, target: Path, n_bytes: int, checksum: Checksum) -> None:
        self.target = target
        self.n_bytes = n_bytes
        self.checksum = checksum
        self.path = target.with_name(target.name + ".incomplete")
        self._validator = target.with_name(target.name + ".incomplete.etag")
        self._hash = checksum.start(n_bytes)
        self.done = 0
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._resume()
        self._check_space()

    def _resume(self) -> None:
        if self.path.stat().st_size > self.n_bytes:
            self.discard()
            return
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK):
                self._hash.update(chunk)
                self.done += len(chunk)

    def _check_space(self) -> None:
        free, needed = shutil.disk_usage(self.target.parent).free, self.n_bytes - self.done
        if free < needed:
            raise HubError(
                f"needs {needed:,} bytes, but only {free:,} are free on its disk",
                where=str(self.target.parent),
                remedy="Make room, or choose another folder with MINFER_CACHE_DIR",
            )

    @property
    def validator(self) -> str | None:
        """The ETag the bytes so far came with, or None where the server gave none."""
        return self._validator.read_text() if self._validator.exists() else None

    def begin(self, validator: str | None) -> None:
        """Start over, with content that the server names `validator`."""
        self.discard()
        if validator:
            self._validator.write_text(validator)

    def append(self, chunks: Iterator[bytes]) -> Iterator[int]:
        """Write the chunks and yield the size reached after each."""
        with self.path.open("ab") as file:
            for chunk in chunks:
                file.write(chunk)
                self._hash.update(chunk)
                self.done += len(chunk)
                yield self.done
            file.flush()
            os.fsync(file.fileno())

    def discard(self) -> None:
        """Forget all bytes so far."""
        self.path.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)
        self._hash = self.checksum.start(self.n_bytes)
        self.done = 0

    def finish(self, source: str) -> Path:
        """Verify the content and move it to its final name.

        Raises:
            HubError: when size or hash are not the expected ones; the bytes are discarded.
        """
        got, done = self._hash.hexdigest(), self.done
        if done != self.n_bytes or got != self.checksum.hexdigest:
            self.discard()
            raise HubError(
                f"is damaged: {done:,} bytes with hash {got}, expected "
                f"{self.n_bytes:,} bytes with hash {self.checksum.hexdigest}",
                where=source,
                remedy="Try again; if it persists, the source has changed or is not to be trusted",
            )
        os.replace(self.path, self.target)
        self._validator.unlink(missing_ok=True)
        return self.target


@contextmanager
def exclusive(target: Path, settings: Settings) -> Iterator[None]:
    """Hold the lock of a target file, so that two processes do not write it at once."""
    locks = settings.cache / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(target.absolute()).encode()).hexdigest()[:32]
    with (locks / f"{name}.lock").open("w") as file:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def parts_of(first: Path) -> list[Path]:
    """The files of a model: `first` alone, or all parts where it is the first of a split."""
    match = SPLIT.fullmatch(first.name)
    if match is None:
        return [first]
    count = int(match["count"])
    return [
        first.with_name(f"{match['stem']}-{part:05}-of-{count:05}.gguf")
        for part in range(1, count + 1)
    ]


def is_first(path: Path) -> bool:
    """Whether `path` is a whole model or the first part of one."""
    match = SPLIT.fullmatch(path.name)
    return match is None or int(match["part"]) == 1
