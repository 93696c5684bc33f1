"""The head of a request that a client sends again and again: parsed once."""

from __future__ import annotations

from .http_names import UNCACHEABLE_HEADERS
from .http_request import HttpRequest

MAX_CACHED_HEADS = 4  # heads that a connection caches
MAX_CACHED_HEAD_BYTES = 4 << 10  # of each
MAX_CACHE_TRIES = 16


class CachedHead:
    """The bytes of the head of a request, and its parsed fields."""

    __slots__ = ("fields", "head", "method", "size", "target")

    def __init__(self, head: bytes, request: HttpRequest) -> None:
        self.head = head
        self.size = len(head)
        self.method = request.method
        self.target = request.target
        self.fields = request.fields


def cached_head(data: bytes, request: HttpRequest, body_size: int) -> CachedHead | None:
    """None: the head cannot be reused. `data` is the whole request, `body_size` the announced length."""
    size = len(data) - len(request.body)
    if size > MAX_CACHED_HEAD_BYTES:
        return None  # bounds the cache of a connection
    whole = data.find(b"\r\n\r\n") + 4 == size and len(request.body) == body_size
    return (
        CachedHead(data[:size], request) if whole and UNCACHEABLE_HEADERS.isdisjoint(request.fields) else None
    )
