"""Opening a GGUF model: files mapped read-only, shards joined, tensors as views of the mapping.

Nothing here copies tensor data: `TensorInfo.data` is a window into the mapped file, paged in when
it is read. What the bytes of the front matter mean is `parse`'s business, what those of a block
mean that of `quants`.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt

from minfer.dtypes import DType
from minfer.errors import ClosedError, FormatError
from minfer.gguf.parse import Header, parse
from minfer.gguf.values import Metadata

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

QUANTIZATION_VERSION = 2
"""The block layouts of `minfer.dtypes`; older layouts share their type ids."""


def shard_name(stem: str, index: int, count: int) -> str:
    """The file name of shard `index` (from 0) of a model split into `count` files."""
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"


class Shard:
    """One mapped file, to which the tensors in it refer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                stream.seek(0, 2)
                if stream.tell() == 0:
                    raise FormatError("the file is empty", where=str(path))
                mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise FormatError(
                f"the file cannot be read: {error.strerror or error}", where=str(path)
            ) from None
        self.nbytes = len(mapping)
        self.header: Header = parse(mapping, str(path))
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(mapping, np.uint8)

    def view(self, start: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """A read-only window of the file.

        Raises:
            ClosedError: after `close`.
        """
        if self._bytes is None:
            raise ClosedError("the model file was closed", where=str(self.path))
        return self._bytes[start : start + nbytes]

    def close(self) -> None:
        """Give up the mapping; it goes away with the last view of it."""
        self._bytes = None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of an open file.

    Attributes:
        name: name of the tensor.
        dtype: storage type.
        shape: sizes in GGUF order: `shape[0]` is the contiguous row, a matrix's `n_in`.
        nbytes: bytes of the data.
        alignment: power of two that divides the data's address in the mapping.
        start: where the data begins in its file.
        shard: the mapped file that holds the data.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    alignment: int
    start: int
    shard: Shard = field(repr=False)

    @property
    def n_items(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def rows(self) -> int:
        """Number of contiguous rows of `shape[0]` values."""
        return prod(self.shape[1:])

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored bytes, [nbytes], as a read-only view of the mapped file.

        Raises:
            ClosedError: after the file was closed.
        """
        return self.shard.view(self.start, self.nbytes)


class GGUFFile:
    """An open model of one file or several shards; made by `open_gguf`.

    Attributes:
        path: the file opened, the first shard of a split model.
        version: GGUF version.
        metadata: key-value part (of the first shard).
        tensors: tensors of all shards by name, in file order.
        nbytes: size of all files together.
        shards: the mapped files.
    """

    def __init__(self, shards: list[Shard]) -> None:
        first = shards[0]
        self.path = first.path
        self.version = first.header.version
        self.metadata: Metadata = first.header.metadata
        self.nbytes = sum(shard.nbytes for shard in shards)
        self.shards = tuple(shards)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_join(shards))

    def close(self) -> None:
        """Release the mapped files; views already taken stay valid until they are dropped."""
        for shard in self.shards:
            shard.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.tensors)} tensors, {self.nbytes} bytes)"


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF model, checked in full before any tensor data is touched.

    Versions 2 and 3, little-endian. A model split over `NAME-00001-of-0000N.gguf` files is
    opened by its first file.

    Raises:
        FormatError: if a file is missing, unreadable, truncated or malformed in any way, or is
            a later shard of a split model.
    """
    first = Shard(Path(path))
    metadata = first.header.metadata
    count = metadata.get_int("split.count", 1)
    shards = [first]
    if count > 1:
        for number, shard_path in enumerate(_shard_paths(first.path, metadata, count)):
            if number:
                shards.append(Shard(shard_path))
                _check_shard(shards[-1], number, count)
        total = sum(len(shard.header.tensors) for shard in shards)
        declared = metadata.get_int("split.tensors.count", total)
        if declared != total:
            raise FormatError(
                f"{declared} tensors are declared, but the {count} files hold {total}",
                where=f"{first.path}: split.tensors.count",
            )
    _check_quantization_version(shards)
    return GGUFFile(shards)


def _shard_paths(first: Path, metadata: Metadata, count: int) -> list[Path]:
    """Paths of all shards, after checking that `first` is the first and none is missing."""
    number = metadata.get_int("split.no")
    name = _SPLIT_NAME.fullmatch(first.name)
    if name is None or int(name["count"]) != count:
        raise FormatError(
            f"the file says it is part {number + 1} of {count}, but its name does not",
            where=str(first),
            remedy=f"Give the parts their names back: NAME-00001-of-{count:05d}.gguf and so on",
        )
    paths = [first.with_name(shard_name(name["stem"], i, count)) for i in range(count)]
    if number != 0 or int(name["number"]) != 1:
        raise FormatError(
            f"this is part {number + 1} of a model in {count} files",
            where=str(first),
            remedy=f"Start from {paths[0].name}",
        )
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        raise FormatError(
            f"{len(missing)} of {count} files are missing: {', '.join(missing[:5])}"
            f"{', ...' if len(missing) > 5 else ''}",
            where=str(first),
            remedy="Put all parts into one folder",
        )
    return paths


def _check_shard(shard: Shard, number: int, count: int) -> None:
    metadata = shard.header.metadata
    for key, expected in (("split.no", number), ("split.count", count)):
        found = metadata.get_int(key)
        if found != expected:
            raise FormatError(
                f"the value is {found}, but should be {expected}", where=f"{shard.path}: {key}"
            )


def _check_quantization_version(shards: list[Shard]) -> None:
    key = "general.quantization_version"
    version = shards[0].header.metadata.get_int(key, QUANTIZATION_VERSION)
    if version == QUANTIZATION_VERSION:
        return
    for shard in shards:
        if any(entry.dtype.is_quantized for entry in shard.header.tensors):
            raise FormatError(
                f"quantization version {version} is not supported; "
                f"only version {QUANTIZATION_VERSION} is",
                where=f"{shards[0].path}: {key}",
                remedy="Quantize the model again with current tools",
            )


def _join(shards: list[Shard]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        # The mapping starts on a page, so the file's alignment holds in memory up to a page.
        alignment = min(shard.header.alignment, mmap.PAGESIZE)
        for entry in shard.header.tensors:
            if entry.name in tensors:
                raise FormatError(
                    f"the tensor is also in {tensors[entry.name].shard.path.name}",
                    where=f"{shard.path}: {entry.name}",
                )
            tensors[entry.name] = TensorInfo(
                entry.name, entry.dtype, entry.shape, entry.nbytes, alignment, entry.start, shard
            )
    return tensors
