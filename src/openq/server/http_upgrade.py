"""Requests that change the protocol of their connection: `Upgrade: websocket` of the stream.

All other offers to upgrade are ignored. The parser stops after the head of such a request. Bytes that arrive
before the answer are kept here, within a limit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_UPGRADE_HEADERS = frozenset((b"upgrade", b"connection", b"http2-settings"))
MAX_EARLY_BYTES = 64 << 10  # sent before the answer: no client needs to


class PendingUpgrade:
    """From the head of the request to its answer."""

    __slots__ = ("early", "protocol")

    def __init__(self) -> None:
        self.early = b""
        self.protocol: asyncio.Protocol | None = None  # the successor, once the answer is 101

    def feed(self, data: bytes) -> bool:
        """Keep the bytes, or pass them on. False: there are too many."""
        if self.protocol is not None:
            self.protocol.data_received(data)
            return True
        self.early += data
        return len(self.early) <= MAX_EARLY_BYTES


def is_websocket_offer(method: bytes, target: bytes, version: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether this head asks for the stream: `GET /api/v1/stream`, or that of another account."""
    path = target.partition(b"?")[0]
    return (
        fields[b"upgrade"].strip().lower() == b"websocket"
        and method == b"GET"
        and version == "1.1"
        and b"host" in fields
        and path.startswith(b"/api/v1/")
        and path.endswith(b"/stream")
        and fields.get(b"content-length", b"0").strip() == b"0"
        and b"transfer-encoding" not in fields
    )


def head_without_offer(method: bytes, target: bytes, version: str, fields: Mapping[bytes, bytes]) -> bytes:
    """The head of a request whose offer is ignored, for another parser."""
    lines = b"".join(b"%b: %b\r\n" % each for each in fields.items() if each[0] not in _UPGRADE_HEADERS)
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), lines)
