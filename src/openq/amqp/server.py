"""The AMQP server: its connections, heartbeats and timeouts, and the parts that all connections share."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..errors import OpenQError
from ..logs import emit
from ..server.buffers import SMALL
from ..server.connection_info import ConnectionInfo, IdOf
from ..server.context import ServerContext
from .access import Logins
from .connection import AmqpConnection
from .disk_alarm import DiskAlarm
from .dispatchers import Dispatchers
from .errors import CONNECTION_FORCED, AmqpError
from .handshake import CLOSING, RUNNING
from .inspection import channel_info, connection_info, consumer_info, describe_connection
from .peers import ANNOUNCE_S
from .publishing import PublishCacheCount
from .replies import DirectReplies
from .topology import Topology
from .transport import AmqpSocket

log = logging.getLogger("openq.amqp")

HANDSHAKE_TIMEOUT_S = 10.0  # from the TCP connect to an open vhost
CLOSE_TIMEOUT_S = 5.0  # for the client to confirm connection.close
STOP_TIMEOUT_S = 0.5  # the same when the server stops: clients that only send do not read it
TICK_S = 1.0


class AmqpServer:
    def __init__(self, context: ServerContext, topology: Topology) -> None:
        self.context = context
        self.topology = topology
        self.max_body = context.config.max_message_bytes
        self.open_connections: dict[AmqpConnection, AmqpSocket] = {}
        self.closing_connections = 0  # disconnected, but still requeueing their messages
        self.errors: Counter[int] = Counter()  # channels and connections ended, by reply code
        self.logins = Logins(context)
        self.dispatchers = Dispatchers(context, topology)
        self.replies = DirectReplies()
        self.disk_alarm = DiskAlarm(context, self.open_connections)
        self.publish_cache = PublishCacheCount()
        self.consumers_of = self.dispatchers.consumers_of
        topology.on_vhost_deleted = self._close_vhost
        self._peers = topology.peers
        self._announced_s = 0.0
        self._generation = context.guard.store.generation
        self._ticker: asyncio.TimerHandle | None = None

    # -- life cycle

    def start(self) -> None:
        self.dispatchers.start()
        self._tick()

    def protocol(self) -> AmqpSocket:
        return AmqpSocket(self)

    def drain(self) -> None:
        """Ask all clients to close, and abort the rest after STOP_TIMEOUT_S."""
        for connection in list(self.open_connections):
            connection.stop()
        self.context.loop.call_later(STOP_TIMEOUT_S, self.stop)

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for socket in list(self.open_connections.values()):
            socket.abort()

    # -- connections

    def connect(
        self,
        socket: AmqpSocket,
        *,
        peer: tuple[str, int],
        local: tuple[str, int],
        certificate_name: str | None,
        is_tls: bool,
    ) -> AmqpConnection:
        connection = AmqpConnection(
            self, socket, peer=peer, local=local, certificate_name=certificate_name, is_tls=is_tls
        )
        self.open_connections[connection] = socket
        return connection

    def connection_opened(self, connection: AmqpConnection) -> None:
        """The handshake is done."""
        emit(log, logging.INFO, "connection_opened", **_log_fields(connection))
        self.disk_alarm.connection_opened(connection)

    def connection_closing(self, connection: AmqpConnection) -> None:
        socket = self.open_connections.get(connection)
        if socket is not None:
            socket.closing_s = self.context.loop.time()

    def disconnect(self, connection: AmqpConnection) -> None:
        """The socket is lost."""
        socket = self.open_connections.pop(connection)
        if connection.vhost:
            duration_s = round(self.context.loop.time() - socket.connected_s, 3)
            emit(log, logging.INFO, "connection_closed", **_log_fields(connection), duration_s=duration_s)
        self.closing_connections += 1
        connection.run_in_order(self._release, connection)

    def _release(self, connection: AmqpConnection) -> None:
        try:
            connection.on_socket_lost()
        finally:
            self.closing_connections -= 1

    def count_error(self, code: int) -> None:
        self.errors[code] += 1

    def _close_vhost(self, vhost: str) -> None:
        for connection in list(self.open_connections):
            if connection.state == RUNNING and connection.vhost == vhost:
                connection.end(CONNECTION_FORCED, f"vhost '{vhost}' is deleted")

    # -- every second

    def _tick(self) -> None:
        now_s = self.context.loop.time()
        for connection, socket in list(self.open_connections.items()):
            if socket.unsent_bytes > SMALL:
                connection.report_buffered()
            self._check_timeouts(connection, socket, now_s)
        self._check_users()
        if not self._peers.is_single and now_s - self._announced_s >= ANNOUNCE_S:
            self._announced_s = now_s
            self.context.enter(self._refresh_peers)
        if self.dispatchers.hub.has_requeues:
            self.context.enter(self.dispatchers.hub.retry_requeues)
        self._ticker = self.context.loop.call_later(TICK_S, self._tick)

    def _check_timeouts(self, connection: AmqpConnection, socket: AmqpSocket, now_s: float) -> None:
        if connection.state < RUNNING:
            if now_s - socket.connected_s > HANDSHAKE_TIMEOUT_S:
                log.info("connection from %s: no handshake in %d s", connection.peer, HANDSHAKE_TIMEOUT_S)
                socket.abort()
        elif connection.state >= CLOSING:
            if now_s - socket.closing_s > CLOSE_TIMEOUT_S:
                socket.abort()
        elif connection.heartbeat_s:
            # While reading is paused, no heartbeat can arrive.
            if connection.reader.is_paused or socket.is_backlogged:
                connection.last_received_s = now_s
            elif now_s - connection.last_received_s > 2 * connection.heartbeat_s:
                log.warning("connection %s: missed heartbeats from client", connection.label)
                socket.abort()
                return
            if now_s - socket.last_sent_s >= connection.heartbeat_s / 2:
                connection.send_heartbeat()

    def _check_users(self) -> None:
        """End connections of removed or disabled users, and apply changed rules to the others."""
        guard = self.context.guard
        is_open, generation = guard.is_open, guard.store.generation
        if generation == self._generation:
            return
        self._generation = generation
        for connection in list(self.open_connections):
            if connection.state != RUNNING or is_open:
                continue
            access = connection.access
            current = None if access.is_guest else guard.current(access.principal)
            if current is None or self.logins.in_account(current, connection.account) is None:
                connection.end(CONNECTION_FORCED, f"user '{connection.user}' may not be here any more")
            else:
                access.set_principal(current)

    def _refresh_peers(self) -> None:
        """For servers that share a store: exchange consumers, and clean up after servers that died."""
        self.dispatchers.refresh_peers()
        try:
            self.topology.delete_orphans()
            for connection in list(self.open_connections):
                if connection.state == RUNNING and not self.topology.vhost_exists(connection.vhost):
                    connection.end(CONNECTION_FORCED, f"vhost '{connection.vhost}' is deleted")
        except (OpenQError, AmqpError) as error:
            log.warning("objects of dead servers are not deleted yet: %s", error)

    # -- inspection

    def close_connections(self, matches: Callable[[dict[str, Any]], bool], reason: str) -> None:
        """`matches` gets what `connections` shows."""
        for connection in list(self.open_connections):
            if connection.state == RUNNING and matches(connection_info(connection)):
                connection.end(CONNECTION_FORCED, reason)

    def described(self, id_of: IdOf) -> list[ConnectionInfo]:
        """In a thread."""
        found = [each for each in list(self.open_connections.items()) if each[0].state == RUNNING]
        return [describe_connection(each, socket.unsent_bytes, id_of) for each, socket in found]

    def close_numbered(self, number: int, reason: str) -> bool:
        for connection in list(self.open_connections):
            if connection.number == number and connection.state == RUNNING:
                connection.end(CONNECTION_FORCED, reason)
                return True
        return False

    def connections(self) -> list[dict[str, Any]]:
        return [connection_info(each) for each in self.open_connections if each.state == RUNNING]

    def channels(self) -> list[dict[str, Any]]:
        return [
            channel_info(channel)
            for connection in self.open_connections
            for channel in connection.channels.values()
        ]

    def consumers(self) -> list[dict[str, Any]]:
        return [
            consumer_info(channel, consumer)
            for connection in self.open_connections
            for channel in connection.channels.values()
            for consumer in channel.consumers.by_tag.values()
        ]


def _log_fields(connection: AmqpConnection) -> dict[str, object]:
    return {
        "protocol": "amqp",
        "conn": f"{connection.peer}:{connection.port}",
        "user": connection.user,
        "vhost": connection.vhost,
        "client": connection.label,
    }
