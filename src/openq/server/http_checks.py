"""Checks of unusual request heads, and the answer that refuses one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .http_names import STATUS

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 << 10
TEXT = b"text/plain; charset=utf-8"

Refusal = tuple[int, str]  # status and text


def head_refusal(method: bytes, target: bytes, version: str, fields: Mapping[bytes, bytes]) -> Refusal | None:
    if len(fields) > MAX_HEADERS:
        return 431, f"more than {MAX_HEADERS} headers"
    if len(target) + sum(map(len, fields)) + sum(map(len, fields.values())) > MAX_HEAD_BYTES:
        return 431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
    if method == b"CONNECT":
        return 501, "CONNECT is not supported"
    if version not in ("1.0", "1.1"):
        return 505, "HTTP/1.1 is required"
    return None


def body_refusal(version: str, fields: Mapping[bytes, bytes]) -> Refusal | None:
    """What a head says of its host and its body."""
    if version == "1.1" and b"host" not in fields:
        return 400, "exactly one Host header is needed"
    encoding = fields.get(b"transfer-encoding")
    if encoding is not None:
        if version == "1.0":
            return 400, "HTTP/1.0 has no transfer encodings"
        if encoding.strip().lower() != b"chunked":
            return 501, "the only transfer encoding is chunked"
    if _has_expectation(fields) and fields[b"expect"].lower() != b"100-continue":
        return 417, "the only expectation is 100-continue"
    return None


def expects_continue(version: str, fields: Mapping[bytes, bytes]) -> bool:
    return version == "1.1" and _has_expectation(fields)


def _has_expectation(fields: Mapping[bytes, bytes]) -> bool:
    """An expectation without a body has no meaning."""
    has_body = int(fields.get(b"content-length", 0)) or b"transfer-encoding" in fields
    return b"expect" in fields and bool(has_body)


def refusal(status: int, text: str, headers: bytes = b"") -> bytes:
    body = f"{text}\n".encode("utf-8", "backslashreplace")
    return b"%bContent-Type: %b\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n%b" % (
        *(STATUS[status], TEXT, len(body), headers),
        body,
    )
