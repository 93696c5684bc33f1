"""The streams of a server: open connections, dispatchers, the check of every second, draining."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib

from ..documents.formats import JSON, MSGPACK, NATIVE, Format
from ..documents.problem import Problem
from ..model import MessageFilter
from ..server.buffers import SMALL
from ..server.connection_info import ConnectionInfo, IdOf, client_of
from ..server.context import ServerContext
from ..server.dispatcher import DispatchHub, QueueDispatcher
from ..server.http_request import HttpRequest
from ..server.stream_login import StreamLogin
from .access import StreamAccess
from .connection import CLOSED_BY_OPERATOR, StreamConnection
from .inspection import describe_stream
from .socket import StreamSocket
from .subscription import QueueConsumer

PING_S = 20.0  # without a byte from the client
IDLE_S = 60.0
CLOSE_S = 5.0  # for the client to answer a close frame
STOP_S = 0.5  # the same when the server stops
TICK_S = 1.0

_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
SUBPROTOCOLS: dict[str, Format] = {"openq.json": JSON, "openq.msgpack": MSGPACK, "openq.native": NATIVE}

DispatcherKey = tuple[str, int | None, MessageFilter | None]


class StreamServer:
    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.hub = DispatchHub(context)
        self.hub.traffic = context.traffic.push
        self.hub.start()
        self.sockets: set[StreamSocket] = set()
        self.closing = 0  # disconnected, but still returning their messages
        self.opened = 0
        self.cut = 0  # clients that did not read, or did not answer
        self.idle_s = IDLE_S
        self.max_frame_bytes = context.config.max_request_bytes
        self._dispatchers: dict[DispatcherKey, QueueDispatcher[QueueConsumer]] = {}
        self._generation = context.guard.store.generation
        self._known_queues: set[str] = set()
        self._ticker: asyncio.TimerHandle | None = None

    # -- connections

    def upgrade(self, request: HttpRequest, login: StreamLogin, account: str) -> None:
        """Answer the handshake of a stream. Raises Problem."""
        accept, subprotocol = read_handshake(request)
        access = StreamAccess(self.context, login, login.principal, account, request.peer, request.is_tls)
        format = SUBPROTOCOLS.get(subprotocol, JSON)
        client = client_of(request)

        def make(socket: StreamSocket) -> StreamConnection:
            return StreamConnection(self, socket, access, format, socket.port, client)

        headers = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n" % accept
        if subprotocol:
            headers += b"Sec-WebSocket-Protocol: %b\r\n" % subprotocol.encode()
        self.opened += 1
        if self._ticker is None:
            self._ticker = self.context.loop.call_later(TICK_S, self._tick)
        request.upgrade(StreamSocket(self, make, request.peer), headers)

    def drain(self) -> None:
        """Return all messages, ask the clients to close, and abort the rest after STOP_S."""
        for socket in list(self.sockets):
            socket.stop(1012, "the server is stopping")
        self.context.loop.call_later(STOP_S, self.stop)

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for socket in list(self.sockets):
            socket.abort()

    # -- dispatchers

    def open_dispatcher(
        self, queue_key: str, lease_ms: int | None, wanted: MessageFilter | None
    ) -> QueueDispatcher[QueueConsumer]:
        key = (queue_key, lease_ms, wanted)
        found = self._dispatchers.get(key)
        if found is None or not found.consumers:
            found = self._dispatchers[key] = QueueDispatcher(
                self.hub,
                queue_key,
                shared_label="ws",
                on_unused=self._remove_dispatcher,
                lease_ms=lease_ms,
                wanted=wanted,
            )
        return found

    def consumer_removed(self, dispatcher: QueueDispatcher[QueueConsumer]) -> None:
        if not dispatcher.consumers:
            self._remove_dispatcher(dispatcher)

    def _remove_dispatcher(self, dispatcher: QueueDispatcher[QueueConsumer]) -> None:
        key = (dispatcher.queue_key, dispatcher.lease_ms, dispatcher.wanted)
        if self._dispatchers.get(key) is dispatcher:
            del self._dispatchers[key]

    # -- every second

    def _tick(self) -> None:
        now_s = self.context.loop.time()
        for socket in list(self.sockets):
            self._check_timeouts(socket, now_s)
        self._check_access()
        if any(socket.has_patterns for socket in self.sockets):
            self.context.enter(self._join_queues)
        else:
            self._known_queues = set()
        if self.hub.has_requeues:
            self.context.enter(self.hub.retry_requeues)
        self._ticker = self.context.loop.call_later(TICK_S, self._tick)

    def _check_timeouts(self, socket: StreamSocket, now_s: float) -> None:
        if socket.unsent_bytes > SMALL:
            socket.report()
        if socket.closing_s:
            if now_s - socket.closing_s > CLOSE_S:
                socket.abort()
        elif socket.paused_s:
            if now_s - socket.paused_s > self.context.config.body_timeout_s:
                self.cut += 1
                socket.abort()
        elif socket.is_idle:
            silent_s = now_s - socket.last_received_s
            if silent_s > self.idle_s:
                self.cut += 1
                socket.abort()
            elif silent_s > PING_S and now_s - socket.pinged_s > PING_S:
                socket.ping(now_s)

    def _check_access(self) -> None:
        """End connections whose login ended, and apply changed rules to the others."""
        generation = self.context.guard.store.generation
        has_changed = generation != self._generation
        self._generation = generation
        now_ms = self.context.now_ms()
        for socket in list(self.sockets):
            connection = socket.connection
            if connection is not None and (has_changed or connection.access.login.may_have_expired(now_ms)):
                socket.check_access()

    def _join_queues(self) -> None:
        """Queues that were created since join the subscriptions whose pattern they match."""
        queues = self.context.broker.queues()
        new = [each for each in queues if each not in self._known_queues]
        if new or len(queues) < len(self._known_queues):
            self._known_queues = set(queues)
            for socket in list(self.sockets):
                if socket.has_patterns:
                    socket.join_queues(new)

    # -- inspection

    def described(self, id_of: IdOf) -> list[ConnectionInfo]:
        """In a thread."""
        found = [(each, each.connection) for each in list(self.sockets)]
        return [
            describe_stream(connection, socket.unsent_bytes, id_of)
            for socket, connection in found
            if connection is not None
        ]

    def close_numbered(self, number: int, reason: str) -> bool:
        for socket in list(self.sockets):
            if socket.connection is not None and socket.connection.number == number:
                socket.stop(CLOSED_BY_OPERATOR, reason)
                return True
        return False

    def consumers(self) -> int:
        return sum(len(each.consumers) for each in self._dispatchers.values())


def read_handshake(request: HttpRequest) -> tuple[bytes, str]:
    """The value of Sec-WebSocket-Accept, and the subprotocol, "" for none. Raises Problem."""
    if not request.can_upgrade:
        raise Problem("upgrade_required", "this address takes a WebSocket handshake")
    if request.header(b"sec-websocket-version") != b"13":
        raise Problem("upgrade_required", "the version of WebSocket is 13", b"Sec-WebSocket-Version: 13\r\n")
    key = (request.header(b"sec-websocket-key") or b"").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        is_key = False
    if not is_key:
        raise Problem("malformed", "Sec-WebSocket-Key must be 16 bytes in base64")
    offered = [value for name, value in request.headers if name == b"sec-websocket-protocol"]
    names = [part.strip().decode("latin-1") for value in offered for part in value.split(b",")]
    chosen = next((name for name in names if name in SUBPROTOCOLS), "")
    accept = base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID, usedforsecurity=False).digest())
    return accept, chosen
