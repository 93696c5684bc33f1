"""Answers `/ui/` and everything below it.

The dashboard is a single-page application: an address that is not that of a file is a screen, and gives
`index.html`. Nothing here needs authentication, because the files are the same for everybody; the page logs
in and reads by the REST API (docs/decisions/0025-dashboard.md).
"""

from __future__ import annotations

import time
from pathlib import Path

from ..server.http_request import HttpRequest
from .files import HASHED, PACKAGE, PAGES, STATIC, WebFile, WebFiles

PREFIX = "/ui/"
# Written by `make web` while it builds; one that is older is of a build that was killed.
MARKER = PACKAGE / ".building"
_MAX_BUILD_S = 600

CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    b"Content-Security-Policy: " + CONTENT_SECURITY_POLICY + b"\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Opener-Policy: same-origin\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
    b"X-Frame-Options: DENY\r\n"
)
_IMMUTABLE = b"Cache-Control: public, max-age=31536000, immutable\r\n"
_CHECKED = b"Cache-Control: no-cache\r\n"  # kept, and checked by its ETag
_NOT_KEPT = b"Cache-Control: no-store\r\n"
_TEXT = b"text/plain; charset=utf-8"


class UiHandler:
    def __init__(self, built: Path | None = None) -> None:
        self._built = WebFiles(STATIC if built is None else built)
        self._pages = WebFiles(PAGES)

    def handle(self, request: HttpRequest) -> None:
        path = request.path
        if request.method not in ("GET", "HEAD"):
            request.answer(405, b"only GET\n", _TEXT, b"Allow: GET, HEAD\r\n" + SECURITY_HEADERS)
        elif path == "/ui":
            redirect(request)
        else:
            self._answer(request, path[len(PREFIX) :])

    def _answer(self, request: HttpRequest, name: str) -> None:
        index = self._built.find("index.html")
        if index is None:
            self._answer_unbuilt(request, name)
        elif not _is_file_name(name):
            _answer_file(request, index, _CHECKED)
        else:
            file = self._built.find(name)
            if file is None:
                _answer_missing(request)
            else:
                _answer_file(request, file, _IMMUTABLE if name.startswith(HASHED) else _CHECKED)

    def _answer_unbuilt(self, request: HttpRequest, name: str) -> None:
        """There is no build: a clone without Node.js, or one that builds right now."""
        if _is_file_name(name):
            file = self._pages.find(name)
        else:
            file = self._pages.find("building.html" if _is_building() else "missing.html")
        if file is None:
            _answer_missing(request)
        else:
            _answer_file(request, file, _NOT_KEPT)


def redirect(request: HttpRequest) -> None:
    """To the dashboard."""
    request.answer(302, b"", _TEXT, b"Location: /ui/\r\n" + _NOT_KEPT + SECURITY_HEADERS)


def _is_file_name(name: str) -> bool:
    """Of a build: at the top or below `assets/`. Elsewhere a dot is of a name: `queues/orders.fifo`."""
    return name.startswith(HASHED) or ("." in name and "/" not in name)


def _is_building() -> bool:
    try:
        return time.time() - MARKER.stat().st_mtime < _MAX_BUILD_S
    except OSError:
        return False


def _answer_missing(request: HttpRequest) -> None:
    request.answer(404, b"not found\n", _TEXT, _NOT_KEPT + SECURITY_HEADERS)


def _answer_file(request: HttpRequest, file: WebFile, caching: bytes) -> None:
    body, etag, headers = file.body, file.etag, caching + SECURITY_HEADERS
    if file.compressed is not None:
        headers += b"Vary: Accept-Encoding\r\n"
        if _takes_gzip(request):
            body, etag = file.compressed, etag + b"-gz"
            headers += b"Content-Encoding: gzip\r\n"
    headers += b'ETag: "%b"\r\n' % etag
    is_known = _is_known(request, etag)
    request.answer(304 if is_known else 200, body, file.content_type, headers)


def _takes_gzip(request: HttpRequest) -> bool:
    for part in (request.header(b"accept-encoding") or b"").lower().split(b","):
        coding, _, quality = part.partition(b";")
        if coding.strip() in (b"gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def _is_known(request: HttpRequest, etag: bytes) -> bool:
    given = request.header(b"if-none-match")
    if given is None:
        return False
    known = {each.strip().removeprefix(b"W/").strip(b'"') for each in given.split(b",")}
    return etag in known or b"*" in known
