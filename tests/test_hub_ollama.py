"""An Ollama registry, played by a server on loopback, and Ollama's own store."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback, Route

from minfer.errors import HubError
from minfer.hub import http, list_models, pull, resolve
from minfer.settings import Settings

BODY = b"a model" * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


def manifest(body: bytes) -> bytes:
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:x", "size": 1},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": len(body)},
    ]
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


def publish(server: Loopback, body: bytes) -> None:
    server.routes["/v2/library/m/manifests/1b"] = Route(manifest(body))
    digest = hashlib.sha256(body).hexdigest()
    server.routes[f"/v2/library/m/blobs/sha256:{digest}"] = Route(body, etag=f'"{digest}"')


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setattr(http, "BACKOFF", 0.001)
    with Loopback() as loopback:
        publish(loopback, BODY)
        yield loopback


@pytest.fixture
def settings(server: Loopback, tmp_path: Path) -> Settings:
    return Settings(
        cache_dir=tmp_path / "minfer",
        hf_hub_cache=tmp_path / "hub",
        ollama_models=tmp_path / "ollama",
        ollama_registry=server.url,
    )


def test_a_model_is_downloaded_once(server: Loopback, settings: Settings) -> None:
    path = resolve("ollama:m:1b", settings)
    assert path.name == "m-1b.gguf"
    assert path.read_bytes() == BODY
    assert server.seen[0].headers["Accept"].endswith("manifest.v2+json")
    server.seen.clear()
    assert resolve("ollama:m:1b", settings) == path
    assert resolve("m-1b", settings) == path
    assert server.seen == []
    assert [model.name for model in list_models(settings)] == ["ollama:m:1b"]


def test_a_cut_download_resumes(server: Loopback, settings: Settings) -> None:
    server.routes[f"/v2/library/m/blobs/sha256:{SHA256}"].cut_after = [1000]
    assert resolve("ollama:m:1b", settings).read_bytes() == BODY
    assert server.seen[-1].headers["Range"] == "bytes=1000-"


def test_pull_follows_a_tag_that_moved(server: Loopback, settings: Settings) -> None:
    path = resolve("ollama:m:1b", settings)
    publish(server, BODY + b"!")
    assert resolve("ollama:m:1b", settings).read_bytes() == BODY
    assert pull("ollama:m:1b", settings) == path
    assert path.read_bytes() == BODY + b"!"
    server.seen.clear()
    pull("ollama:m:1b", settings)
    assert [row.path for row in server.seen] == ["/v2/library/m/manifests/1b"]


def test_ollamas_own_store_is_read(server: Loopback, settings: Settings) -> None:
    host = server.url.removeprefix("http://")
    where = settings.ollama_models / "manifests" / host / "library" / "m" / "1b"
    where.parent.mkdir(parents=True)
    where.write_bytes(manifest(BODY))
    blob = settings.ollama_models / "blobs" / f"sha256-{SHA256}"
    blob.parent.mkdir()
    blob.write_bytes(BODY)
    (where.parent / "adapter").write_bytes(b'{"layers": [1, {"mediaType": "other"}]}')
    (where.parent / "broken").write_bytes(b"{")
    assert resolve("ollama:m:1b", settings) == blob
    assert [(model.name, model.path) for model in list_models(settings)] == [("ollama:m:1b", blob)]
    assert server.seen == []
    blob.write_bytes(BODY[:-1])  # Ollama is still downloading
    assert list_models(settings) == []


def test_errors(server: Loopback, settings: Settings) -> None:
    with pytest.raises(HubError, match=r"\[ollama:none:latest\] is not at .*HTTP 404"):
        resolve("ollama:none", settings)
    server.routes["/v2/library/m/manifests/1b"].body = b'{"layers": []}'
    with pytest.raises(HubError, match="has no GGUF layer"):
        resolve("ollama:m:1b", settings)
    with pytest.raises(HubError, match="MINFER_OFFLINE"):
        resolve("ollama:m:1b", Settings(**{**vars(settings), "offline": True}))


def test_wrong_content_is_refused(server: Loopback, settings: Settings) -> None:
    server.routes[f"/v2/library/m/blobs/sha256:{SHA256}"].body = bytes(len(BODY))
    with pytest.raises(HubError, match="is damaged"):
        resolve("ollama:m:1b", settings)
    assert list_models(settings) == []
