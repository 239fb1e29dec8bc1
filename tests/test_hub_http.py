"""Downloads against a server on loopback that cuts, moves, shrinks and refuses."""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback, Route

from minfer.errors import HubError
from minfer.hub import http, store
from minfer.hub.base import silent

CONTENT = random.Random(1).randbytes(300_000)
SHA256 = store.Checksum(hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setattr(http, "BACKOFF", 0.001)
    with Loopback() as loopback:
        yield loopback


@pytest.fixture
def partial(tmp_path: Path) -> store.Partial:
    return store.Partial(tmp_path / "x.gguf", len(CONTENT), SHA256)


def fetch(server: Loopback, partial: store.Partial) -> bytes:
    http.download(f"{server.url}/x", partial, {}, "x", silent)
    return partial.finish("x").read_bytes()


def ranges(server: Loopback) -> list[str | None]:
    return [row.headers.get("Range") for row in server.gets("/x")]


def test_a_download_reports_its_progress(server: Loopback, partial: store.Partial) -> None:
    server.routes["/x"] = Route(CONTENT, etag='"1"')
    told: list[tuple[str, int, int | None]] = []
    http.download(f"{server.url}/x", partial, {}, "x", lambda *row: told.append(row))
    assert partial.finish("x").read_bytes() == CONTENT
    assert told[0] == ("x", 0, len(CONTENT))
    assert told[-1] == ("x", len(CONTENT), len(CONTENT))
    assert [row[1] for row in told] == sorted(row[1] for row in told)


def test_a_cut_connection_resumes_where_it_was(server: Loopback, partial: store.Partial) -> None:
    server.routes["/x"] = Route(CONTENT, etag='"1"', cut_after=[100_000, 50_000])
    assert fetch(server, partial) == CONTENT
    assert ranges(server) == [None, "bytes=100000-", "bytes=150000-"]
    assert server.gets("/x")[1].headers["If-Range"] == '"1"'


def test_a_later_run_resumes_too(server: Loopback, partial: store.Partial) -> None:
    server.routes["/x"] = Route(CONTENT, etag='"1"', cut_after=[100_000] + [0] * 99)
    with pytest.raises(HubError, match=r"after 5 attempts.*goes on where it was"):
        fetch(server, partial)
    server.routes["/x"] = Route(CONTENT, etag='"1"')
    again = store.Partial(partial.target, len(CONTENT), SHA256)
    assert again.done == 100_000
    assert fetch(server, again) == CONTENT
    assert ranges(server)[-1] == "bytes=100000-"


def test_a_changed_etag_starts_over(server: Loopback, partial: store.Partial) -> None:
    old = bytes(len(CONTENT))
    server.routes["/x"] = Route(old, etag='"old"', cut_after=[100_000] + [0] * 99)
    with pytest.raises(HubError):
        fetch(server, partial)
    server.routes["/x"] = Route(CONTENT, etag='"new"')
    assert fetch(server, store.Partial(partial.target, len(CONTENT), SHA256)) == CONTENT


def test_a_server_that_ignores_if_range_is_caught(server: Loopback, partial: store.Partial) -> None:
    partial.begin('"old"')
    list(partial.append(iter([b"other content"])))
    server.routes["/x"] = Route(CONTENT, etag='"new"', if_range=False)
    assert fetch(server, partial) == CONTENT
    assert ranges(server) == ["bytes=13-", None]


def test_resuming_without_an_etag_relies_on_the_hash(
    server: Loopback, partial: store.Partial
) -> None:
    list(partial.append(iter([b"other content"])))
    server.routes["/x"] = Route(CONTENT)
    with pytest.raises(HubError, match="is damaged"):
        fetch(server, partial)
    assert fetch(server, store.Partial(partial.target, len(CONTENT), SHA256)) == CONTENT


def test_a_server_without_ranges_starts_over(server: Loopback, partial: store.Partial) -> None:
    server.routes["/x"] = Route(CONTENT, etag='"1"', cut_after=[100_000], ranges=False)
    assert fetch(server, partial) == CONTENT


def test_416_starts_over(server: Loopback, partial: store.Partial) -> None:
    list(partial.append(iter([bytes(200_000)])))
    server.routes["/x"] = Route(CONTENT, statuses=[416])
    assert fetch(server, partial) == CONTENT
    assert ranges(server) == ["bytes=200000-", None]


def test_a_wrong_hash_is_refused(server: Loopback, partial: store.Partial) -> None:
    server.routes["/x"] = Route(bytes(len(CONTENT)))
    with pytest.raises(HubError, match="is damaged"):
        fetch(server, partial)
    assert not partial.target.exists()
    assert not partial.path.exists()


def test_a_wrong_size_is_refused_before_it_is_read(
    server: Loopback, partial: store.Partial
) -> None:
    server.routes["/x"] = Route(CONTENT[:-1])
    with pytest.raises(HubError, match=r"offers 299,999 bytes, expected 300,000"):
        fetch(server, partial)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_not_tried_again(
    server: Loopback, partial: store.Partial, status: int
) -> None:
    server.routes["/x"] = Route(CONTENT, statuses=[status])
    with pytest.raises(http.Refused) as caught:
        fetch(server, partial)
    assert caught.value.status == status
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_tried_again(
    server: Loopback, partial: store.Partial, status: int
) -> None:
    server.routes["/x"] = Route(CONTENT, statuses=[status, status])
    assert fetch(server, partial) == CONTENT


def test_an_unreachable_server_is_an_error(server: Loopback, partial: store.Partial) -> None:
    with pytest.raises(HubError, match="cannot be reached") as caught:
        http.download("http://127.0.0.1:9/x?signature=secret", partial, {}, "x", silent)
    assert caught.value.where == "http://127.0.0.1:9/x"


def test_credentials_stay_with_their_host(server: Loopback, partial: store.Partial) -> None:
    with Loopback() as other:
        other.routes["/blob"] = Route(CONTENT)
        server.routes["/x"] = Route(redirect="/y")
        server.routes["/y"] = Route(redirect=f"{other.url}/blob")
        http.download(f"{server.url}/x", partial, {"Authorization": "Bearer t"}, "x", silent)
        assert [row.headers.get("Authorization") for row in server.seen] == ["Bearer t"] * 2
        assert [row.headers.get("Authorization") for row in other.seen] == [None]


def test_head_stops_at_the_edge_of_its_host(server: Loopback) -> None:
    with Loopback() as other:
        server.routes["/x"] = Route(redirect="/y")
        server.routes["/y"] = Route(redirect=f"{other.url}/blob", headers={"X-Linked-Size": "7"})
        assert http.head(f"{server.url}/x", {})["X-Linked-Size"] == "7"
        assert other.seen == []
        assert {row.method for row in server.seen} == {"HEAD"}


def test_json(server: Loopback) -> None:
    server.routes["/j"] = Route(b'{"a": 1}', statuses=[503])
    server.routes["/k"] = Route(b"<html>")
    assert http.get_json(f"{server.url}/j", {}) == {"a": 1}
    with pytest.raises(HubError, match="answered no JSON"):
        http.get_json(f"{server.url}/k", {})
