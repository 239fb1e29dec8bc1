"""Partial files: resumed, verified, renamed; locks; the names of split models."""

import hashlib
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.errors import HubError
from minfer.hub import store
from minfer.settings import Settings

CONTENT = bytes(range(256)) * 40
SHA256 = store.Checksum(hashlib.sha256(CONTENT).hexdigest())


@given(st.lists(st.integers(0, len(CONTENT)), max_size=4))
def test_a_file_written_over_any_interruptions_is_whole(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int]
) -> None:
    target = tmp_path_factory.mktemp("store") / "x.gguf"
    for stop in [*sorted(stops), len(CONTENT)]:
        partial = store.Partial(target, len(CONTENT), SHA256)
        reached = list(partial.append(iter([CONTENT[partial.done : stop]])))
        assert reached == [stop]
        assert not target.exists()
    assert partial.finish("here") == target
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"x", CONTENT + b"x"])
def test_damaged_content_is_refused_and_discarded(tmp_path: Path, content: bytes) -> None:
    partial = store.Partial(tmp_path / "x.gguf", len(CONTENT), SHA256)
    list(partial.append(iter([content])))
    with pytest.raises(HubError, match=r"is damaged.*expected 10,240 bytes") as caught:
        partial.finish("here")
    assert caught.value.where == "here"
    assert list(tmp_path.iterdir()) == []


def test_a_partial_file_longer_than_the_content_is_discarded(tmp_path: Path) -> None:
    (tmp_path / "x.gguf.incomplete").write_bytes(CONTENT * 2)
    assert store.Partial(tmp_path / "x.gguf", len(CONTENT), SHA256).done == 0


def test_git_blob_hash(tmp_path: Path) -> None:
    known = store.Checksum("ce013625030ba8dba906f756967f9e9ca394464a", git=True)  # b"hello\n"
    partial = store.Partial(tmp_path / "hello", 6, known)
    list(partial.append(iter([b"hel", b"lo\n"])))
    assert partial.finish("here").read_bytes() == b"hello\n"


def test_a_full_disk_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"only [\d,]+ are free.*MINFER_CACHE_DIR"):
        store.Partial(tmp_path / "x.gguf", 1 << 60, SHA256)


def test_the_lock_excludes(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path)
    inside = threading.Event()

    def enter() -> None:
        with store.exclusive(tmp_path / "x", settings):
            inside.set()

    with store.exclusive(tmp_path / "x", settings):
        with store.exclusive(tmp_path / "y", settings):
            pass
        thread = threading.Thread(target=enter)
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(5)
    thread.join()


def test_parts_of_a_split_model() -> None:
    first = Path("a/m-00001-of-00003.gguf")
    assert [path.name[2:7] for path in store.parts_of(first)] == ["00001", "00002", "00003"]
    assert {path.parent for path in store.parts_of(first)} == {Path("a")}
    assert store.parts_of(Path("m.gguf")) == [Path("m.gguf")]
    assert store.is_first(first)
    assert store.is_first(Path("m.gguf"))
    assert not store.is_first(Path("m-00002-of-00003.gguf"))
