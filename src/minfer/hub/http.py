"""HTTP for the hub: metadata requests, and downloads that resume, on the standard library alone.

A download goes on where it was cut, within a run and across runs, as long as the server still
names the same content (`Range` with `If-Range`); otherwise it starts over. Credentials are sent
to the host they are meant for and dropped on a redirect to another. This module verifies nothing:
that is `store.Partial.finish`.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from minfer.errors import HubError
from minfer.hub.base import Progress
from minfer.hub.store import CHUNK, Partial

TIMEOUT = 30.0  # seconds without a byte before a connection counts as cut
ATTEMPTS = 5  # in a row without a byte gained
BACKOFF = 0.5  # seconds before the second attempt, doubled for each further one
AGENT = "minfer"


class Refused(Exception):
    """The server answered with an HTTP status that trying again does not change."""

    def __init__(self, status: int, url: str) -> None:
        super().__init__(f"HTTP {status} for {url}")
        self.status = status
        self.url = url


class _Cut(Exception):
    """The connection failed in a way that trying again may mend."""


def get_json(url: str, headers: Mapping[str, str]) -> Any:
    """The JSON document at `url`.

    Raises:
        Refused: for a status of 400 and above.
        HubError: when the server cannot be reached or does not answer JSON.
    """
    for attempt in range(ATTEMPTS):
        try:
            with _open("GET", url, headers) as response:
                return json.loads(response.read())
        except ValueError as error:
            raise HubError(f"answered no JSON: {error}", where=_shown(url)) from None
        except (_Cut, *_NETWORK) as error:
            _wait_or_give_up(attempt, url, error)
    raise AssertionError("unreachable: the last attempt raises")


def head(url: str, headers: Mapping[str, str]) -> Message:
    """The headers of `url` itself: redirects are followed within its host only.

    Raises:
        Refused: for a status of 400 and above.
        HubError: when the server cannot be reached.
    """
    for attempt in range(ATTEMPTS):
        try:
            with _open("HEAD", url, headers, _SameHostOnly()) as response:
                return response.headers
        except _Elsewhere as redirect:
            return redirect.headers
        except (_Cut, *_NETWORK) as error:
            _wait_or_give_up(attempt, url, error)
    raise AssertionError("unreachable: the last attempt raises")


def download(
    url: str, partial: Partial, headers: Mapping[str, str], what: str, progress: Progress
) -> None:
    """Fetch the rest of a partial file; it is complete, though not yet verified, afterwards.

    Raises:
        Refused: for a status of 400 and above other than 408, 416, 429 and the 500s.
        HubError: when the connection fails `ATTEMPTS` times in a row without a byte gained.
    """
    failures = 0
    progress(what, partial.done, partial.n_bytes)
    while partial.done < partial.n_bytes:
        before = partial.done
        try:
            for done in _transfer(url, partial, headers):
                progress(what, done, partial.n_bytes)
            if partial.done < partial.n_bytes:
                raise _Cut(f"the connection closed after {partial.done:,} bytes")
        except (_Cut, *_NETWORK) as error:
            failures = 0 if partial.done > before else failures + 1
            if failures:
                _wait_or_give_up(failures - 1, url, error)


def _transfer(url: str, partial: Partial, headers: Mapping[str, str]) -> Iterator[int]:
    asked = dict(headers)
    if partial.done:
        asked["Range"] = f"bytes={partial.done}-"
        if partial.validator:
            asked["If-Range"] = partial.validator
    try:
        response = _open("GET", url, asked)
    except Refused as refused:
        if refused.status == 416:  # the content is now shorter than what is here
            partial.discard()
            raise _Cut("the content changed on the server") from None
        raise
    with response:
        etag = response.headers.get("ETag")
        etag = None if etag is None or etag.startswith("W/") else etag
        if response.status == 206:
            start = (response.headers.get("Content-Range") or "").split("-")[0]
            changed = partial.validator is not None and etag not in (None, partial.validator)
            if changed or start != f"bytes {partial.done}":
                partial.discard()
                raise _Cut("the content changed on the server")
        else:
            partial.begin(etag)
        length = response.headers.get("Content-Length")
        if length is not None and partial.done + int(length) != partial.n_bytes:
            raise HubError(
                f"offers {partial.done + int(length):,} bytes, expected {partial.n_bytes:,}",
                where=_shown(url),
                remedy="Try again later",
            )
        yield from partial.append(_chunks(response, partial.n_bytes - partial.done))


def _chunks(response: http.client.HTTPResponse, n_bytes: int) -> Iterator[bytes]:
    while n_bytes > 0 and (chunk := response.read1(min(CHUNK, n_bytes))):
        n_bytes -= len(chunk)
        yield chunk


_NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def _open(
    method: str,
    url: str,
    headers: Mapping[str, str],
    redirects: urllib.request.HTTPRedirectHandler | None = None,
) -> http.client.HTTPResponse:
    opener = urllib.request.build_opener(redirects or _DropCredentials())
    request = urllib.request.Request(url, method=method)
    for name, value in {"User-Agent": AGENT, "Accept-Encoding": "identity", **headers}.items():
        request.add_header(name, value)
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (408, 429) or error.code >= 500:
            raise _Cut(f"the server answered HTTP {error.code}") from None
        raise Refused(error.code, url) from None
    return response


def _wait_or_give_up(attempt: int, url: str, error: Exception) -> None:
    if attempt + 1 >= ATTEMPTS:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise HubError(
            f"cannot be reached after {ATTEMPTS} attempts: {reason}",
            where=_shown(url),
            remedy="Check the network and run the command again; a download goes on where it was",
        ) from None
    time.sleep(BACKOFF * 2**attempt)


def _shown(url: str) -> str:
    """The address without its query, which may hold a signature."""
    return url.partition("?")[0]


class _DropCredentials(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and keeps the credentials only where the host stays the same."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if request is not None and not _same_host(req.full_url, newurl):
            request.remove_header("Authorization")
        return request


class _Elsewhere(Exception):
    """A redirect that leaves the host."""

    def __init__(self, headers: Message) -> None:
        self.headers = headers


class _SameHostOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects within a host, and raises `_Elsewhere` for any other."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not _same_host(req.full_url, urljoin(req.full_url, newurl)):
            fp.close()
            raise _Elsewhere(headers)
        return urllib.request.Request(newurl, headers=dict(req.header_items()), method="HEAD")


def _same_host(one: str, other: str) -> bool:
    return urlsplit(one)[:2] == urlsplit(other)[:2]
