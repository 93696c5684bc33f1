"""The head of a request that a client sends again and again: parsed once."""

from __future__ import annotations

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
