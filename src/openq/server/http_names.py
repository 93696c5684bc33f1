"""Names of HTTP: status lines, methods, and headers with rules of their own."""

from __future__ import annotations

from http import HTTPStatus

STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
# Two of these would be ambiguous (request smuggling).
SINGLE_HEADERS = frozenset(
    (b"host", b"authorization", b"content-type", b"x-amz-target", b"x-amz-date", b"origin")
)
UNCACHEABLE_HEADERS = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
