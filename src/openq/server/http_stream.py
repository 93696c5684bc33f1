"""A response without an end: the connection of a reader after the head of its response is written.

The HTTP connection hands its transport over to an `HttpStream`, which has no parser and no buffers of its
own, so that ten thousand idle readers cost little. What is written belongs to a `StreamSource`. The transport
asks it to pause when the client does not read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from .buffers import SMALL

if TYPE_CHECKING:
    from .listener import Listener

MAX_UNSENT = SMALL  # bytes that a client has not read; then nothing is written until it reads


class StreamSource(Protocol):
    """What feeds a stream. Called on the loop."""

    def resumed(self) -> None:
        """The client has read: writing may continue."""

    def gone(self) -> None:
        """The connection is closed."""


class HttpStream(asyncio.Protocol):
    __slots__ = ("_held", "_listener", "_source", "_transport", "paused_since", "peer", "written_at")

    protocol = "http"

    def __init__(self, listener: Listener, peer: str, source: StreamSource) -> None:
        self._listener = listener
        self._source: StreamSource | None = source
        self._transport: asyncio.Transport | None = None
        self._held = 0
        self.peer = peer
        self.paused_since = 0.0  # of the listener's clock; 0: the client reads
        self.written_at = listener.now

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT, low=MAX_UNSENT // 4)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._listener.admission.leave()
        self._hold(0)
        source, self._source = self._source, None
        if source is not None:
            source.gone()

    def data_received(self, data: bytes) -> None:
        """Nothing more is expected from the client; requests behind this one are not answered."""

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused_since = self._listener.now
        self._hold(self.unsent)

    def resume_writing(self) -> None:
        self.paused_since = 0.0
        self._hold(0)
        if self._source is not None:
            self._source.resumed()

    @property
    def port(self) -> int:
        return peer_port(self._transport)

    # -- for the source

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> bool:
        """Write, unless the client is behind with reading: then False."""
        transport = self._transport
        if transport is None or self.paused_since or transport.get_write_buffer_size() >= MAX_UNSENT:
            return False
        transport.write(data)
        self.written_at = self._listener.now
        return True

    def end(self) -> None:
        """Send what is written, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def shed(self) -> None:
        self._held = 0
        self.abort()

    def _hold(self, size: int) -> None:
        size = size if size > SMALL else 0
        if size != self._held:
            self._held = size
            self._listener.buffers.hold(self, size)


def peer_port(transport: asyncio.Transport | None) -> int:
    """The port of the client; 0 if it is gone."""
    address = None if transport is None else transport.get_extra_info("peername")
    return int(address[1]) if isinstance(address, tuple) else 0
