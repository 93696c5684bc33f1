"""The formats of a request and of its reply: from `Content-Type` and `Accept`."""

from __future__ import annotations

from ..documents.formats import JSON as JSON
from ..documents.formats import MSGPACK as MSGPACK
from ..documents.formats import NATIVE as NATIVE
from ..documents.formats import Format as Format
from ..documents.problem import Problem
from ..server.http_request import HttpRequest

_BY_NAME = {
    b"application/json": JSON,
    b"application/msgpack": MSGPACK,
    b"application/vnd.msgpack": MSGPACK,
    b"application/x-msgpack": MSGPACK,
}


def request_format(request: HttpRequest) -> Format:
    """The format of the request's body."""
    value = request.header(b"content-type")
    if value is None:
        if request.body:
            return JSON
        return _BY_NAME.get((request.header(b"accept") or b"").lower(), JSON)
    found = _BY_NAME.get(value)
    if found is None:
        found = _BY_NAME.get(value.partition(b";")[0].strip().lower())
    if found is None:
        if not request.body:
            return JSON
        raise Problem("unsupported_media_type", f"the body is {value.decode('latin-1')[:100]!r}")
    return found


def reply_format(request: HttpRequest, default: Format) -> Format:
    """The format of the reply: the preferred one of `Accept`, else that of the request."""
    accept = request.header(b"accept")
    if accept is None or accept == b"*/*":
        return default
    found = NATIVE if accept == NATIVE.content_type else _BY_NAME.get(accept)
    return found if found is not None else _negotiated(accept, default)


def _negotiated(accept: bytes, default: Format) -> Format:
    best: Format | None = None
    best_weight = 0.0
    for part in accept.lower().split(b","):
        name, *parameters = (piece.strip() for piece in part.split(b";"))
        found = default if name in (b"*/*", b"application/*") else _BY_NAME.get(name)
        weight = _weight(parameters)
        if found is not None and weight > best_weight:
            best, best_weight = found, weight
    if best is None:
        raise Problem("not_acceptable", f"{accept.decode('latin-1')[:100]!r} names no format of ours")
    return best


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        if parameter.startswith(b"q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0
