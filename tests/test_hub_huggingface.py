"""The Hugging Face hub, played by a server on loopback, and its cache layout."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback, Route

from minfer.errors import HubError
from minfer.hub import http, list_models, pull, resolve
from minfer.settings import Settings

COMMIT, LATER = "c" * 40, "d" * 40
FILES = {
    "README.md": b"read me",
    "m-Q4_K_M.gguf": b"four bits" * 1000,
    "m-Q8_0.gguf": b"eight bits" * 1000,
    "mmproj-m-F16.gguf": b"a projector",
    "big/m-BF16-00001-of-00002.gguf": b"first part",
    "big/m-BF16-00002-of-00002.gguf": b"second part",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setattr(http, "BACKOFF", 0.001)
    with Loopback() as loopback:
        publish(loopback, FILES, COMMIT)
        yield loopback


@pytest.fixture
def settings(server: Loopback, tmp_path: Path) -> Settings:
    return Settings(
        cache_dir=tmp_path / "minfer",
        hf_hub_cache=tmp_path / "hub",
        hf_endpoint=server.url,
        ollama_models=tmp_path / "ollama",
    )


def publish(server: Loopback, files: dict[str, bytes], commit: str) -> None:
    """Make `main` of o/r this commit: large files on another host's path, as the hub does."""
    listing = {"sha": commit, "siblings": [{"rfilename": name} for name in files]}
    for revision in ("main", commit):
        server.routes[f"/api/models/o/r/revision/{revision}"] = Route(json.dumps(listing).encode())
    for name, body in files.items():
        sha256 = hashlib.sha256(body).hexdigest()
        headers = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(body))}
        where = f"http://localhost:{server.url.rpartition(':')[2]}/cdn/{sha256}"
        server.routes[f"/o/r/resolve/{commit}/{name}"] = Route(redirect=where, headers=headers)
        server.routes[f"/cdn/{sha256}"] = Route(body, etag=f'"{sha256[:8]}"')


def test_a_download_fills_the_cache_as_the_hubs_own_tools_do(
    server: Loopback, settings: Settings
) -> None:
    path = resolve("hf:o/r:m-Q8_0.gguf", settings)
    folder = settings.hf_hub_cache / "models--o--r"
    sha256 = hashlib.sha256(FILES["m-Q8_0.gguf"]).hexdigest()
    assert path == folder / "snapshots" / COMMIT / "m-Q8_0.gguf"
    assert path.readlink() == Path("../../blobs") / sha256
    assert path.read_bytes() == FILES["m-Q8_0.gguf"]
    assert (folder / "refs" / "main").read_text() == COMMIT
    assert [blob.name for blob in (folder / "blobs").iterdir()] == [sha256]


def test_the_hubs_own_library_finds_what_minfer_downloaded(
    server: Loopback, settings: Settings
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    path = resolve("hf:o/r:Q8_0", settings)
    found = hub.try_to_load_from_cache("o/r", "m-Q8_0.gguf", cache_dir=settings.hf_hub_cache)
    assert found == str(path)


@pytest.mark.parametrize(
    ("selector", "file"),
    [
        ("", "m-Q4_K_M.gguf"),
        (":Q8_0", "m-Q8_0.gguf"),
        (":q8_0", "m-Q8_0.gguf"),
        (":m-Q8_0.gguf", "m-Q8_0.gguf"),
        (":BF16", "big/m-BF16-00001-of-00002.gguf"),
        (":big/m-BF16-00001-of-00002.gguf", "big/m-BF16-00001-of-00002.gguf"),
        (f"@{COMMIT}:Q8_0", "m-Q8_0.gguf"),
    ],
)
def test_which_file_a_name_means(settings: Settings, selector: str, file: str) -> None:
    path = resolve(f"hf:o/r{selector}", settings)
    assert path.as_posix().endswith(f"snapshots/{COMMIT}/{file}")
    assert path.read_bytes() == FILES[file]


@pytest.mark.parametrize("selector", ["Q4", "Q5_K_M", "none.gguf", "m-BF16-00002-of-00002.gguf"])
def test_a_selector_without_a_file_lists_the_files(settings: Settings, selector: str) -> None:
    with pytest.raises(HubError, match=r"has no file for .*m-Q4_K_M\.gguf, m-Q8_0\.gguf"):
        resolve(f"hf:o/r:{selector}", settings)


def test_a_split_model_comes_whole(settings: Settings) -> None:
    told: set[str] = set()
    path = resolve("hf:o/r:BF16", settings, progress=lambda what, *_: told.add(what))
    assert path.with_name("m-BF16-00002-of-00002.gguf").read_bytes() == b"second part"
    assert {what.rpartition(" ")[2] for what in told} == {"(1/2)", "(2/2)"}


def test_what_is_cached_needs_no_network(server: Loopback, settings: Settings) -> None:
    path = resolve("hf:o/r:Q8_0", settings)
    server.seen.clear()
    assert resolve("hf:o/r:Q8_0", settings) == path
    assert resolve("hf:o/r", settings) == path  # what is here is preferred over the usual
    assert resolve("m-Q8_0", settings) == path
    assert server.seen == []
    assert [model.name for model in list_models(settings)] == ["hf:o/r:m-Q8_0.gguf"]


def test_pull_brings_a_newer_commit_and_no_byte_twice(server: Loopback, settings: Settings) -> None:
    old = resolve("hf:o/r:Q8_0", settings)
    publish(server, FILES, LATER)
    server.seen.clear()
    new = pull("hf:o/r:Q8_0", settings)
    assert (old.parent.name, new.parent.name) == (COMMIT, LATER)
    assert not [row for row in server.seen if row.path.startswith("/cdn/")]
    assert resolve("hf:o/r:Q8_0", settings) == new


def test_an_incomplete_split_model_is_not_found(settings: Settings) -> None:
    path = resolve("hf:o/r:BF16", settings)
    path.with_name("m-BF16-00002-of-00002.gguf").unlink()
    assert list_models(settings) == []
    assert resolve("hf:o/r:BF16", settings).with_name("m-BF16-00002-of-00002.gguf").is_file()


def test_a_cut_download_resumes_in_a_later_run(
    server: Loopback, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ATTEMPTS", 1)
    route = server.routes["/cdn/" + hashlib.sha256(FILES["m-Q8_0.gguf"]).hexdigest()]
    route.cut_after = [4000, 0]
    with pytest.raises(HubError, match="goes on where it was"):
        resolve("hf:o/r:Q8_0", settings)
    assert list_models(settings) == []
    assert resolve("hf:o/r:Q8_0", settings).read_bytes() == FILES["m-Q8_0.gguf"]
    assert server.seen[-1].headers["Range"] == "bytes=4000-"


def test_wrong_content_never_reaches_the_cache(server: Loopback, settings: Settings) -> None:
    body = FILES["m-Q8_0.gguf"]
    server.routes["/cdn/" + hashlib.sha256(body).hexdigest()].body = bytes(len(body))
    with pytest.raises(HubError, match="is damaged"):
        resolve("hf:o/r:Q8_0", settings)
    assert list_models(settings) == []


def test_the_token_goes_to_the_hub_alone(server: Loopback, settings: Settings) -> None:
    resolve("hf:o/r:Q8_0", Settings(**{**vars(settings), "hf_token": "secret"}))
    for row in server.seen:
        expected = None if row.path.startswith("/cdn/") else "Bearer secret"
        assert row.headers.get("Authorization") == expected, row.path


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "no token is set.*Accept its licence at .*/o/r and set HF_TOKEN"),
        (403, "no token is set"),
        (404, "does not exist.*Check owner"),
        (400, "was refused with HTTP 400"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/api/models/o/r/revision/main", f"/o/r/resolve/{COMMIT}/m-Q8_0.gguf"]
)
def test_refusals_are_explained(
    server: Loopback, settings: Settings, path: str, status: int, message: str
) -> None:
    server.routes[path].statuses = [status]
    with pytest.raises(HubError, match=message):
        resolve("hf:o/r:Q8_0", settings)


@pytest.mark.parametrize("file", ["../../evil.gguf", "/etc/evil.gguf", "a\\..\\evil.gguf"])
def test_a_file_name_cannot_leave_its_folder(
    server: Loopback, settings: Settings, file: str
) -> None:
    publish(server, {file: b"x"}, COMMIT)
    with pytest.raises(HubError, match="would leave its folder"):
        resolve("hf:o/r", settings)


@pytest.mark.parametrize(
    "answer", [b"[]", b"{}", b'{"sha": "x"}', b'{"sha": "x", "siblings": [1]}']
)
def test_a_strange_answer_is_an_error(server: Loopback, settings: Settings, answer: bytes) -> None:
    server.routes["/api/models/o/r/revision/main"].body = answer
    with pytest.raises(HubError, match="answered without"):
        resolve("hf:o/r", settings)


def test_a_server_that_states_no_hash_is_refused(server: Loopback, settings: Settings) -> None:
    server.routes[f"/o/r/resolve/{COMMIT}/m-Q8_0.gguf"] = Route(FILES["m-Q8_0.gguf"], etag='"x"')
    with pytest.raises(HubError, match="states no hash"):
        resolve("hf:o/r:Q8_0", settings)


def test_offline_is_an_error_that_says_so(server: Loopback, settings: Settings) -> None:
    with pytest.raises(HubError, match="MINFER_OFFLINE=1 forbids"):
        resolve("hf:o/r", Settings(**{**vars(settings), "offline": True}))
    assert server.seen == []
