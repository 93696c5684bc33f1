"""The AMQP door: sockets, heartbeats, who may do what, and what all connections share."""

from __future__ import annotations

import asyncio
import logging
import platform
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from .._version import __version__
from ..amqp_fields import decode_table
from ..auth.errors import LoginFailed
from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE
from ..broker.interface import Receipt
from ..errors import OpenQError, OutOfRoom, StoreError
from ..model import Delivery
from ..names import owner_of, qualified_name, split_namespace
from ..server.admission import MAX_LINGERING
from ..server.buffers import SMALL
from ..server.condition_keys import connection_condition_keys
from ..server.context import ServerContext
from . import methods as m
from .arguments import QueueDeclaration
from .channel import AmqpChannel
from .connection import CLOSING, RUNNING, AmqpConnection
from .delivery_properties import COUNT_ALWAYS, COUNT_NEVER, COUNT_REDELIVERED
from .dispatcher import QueueDispatcher
from .errors import CONNECTION_FORCED, AmqpError
from .frames import method_frame
from .peers import ANNOUNCE_S, ConsumerPresence, PresenceByQueue
from .publishing import DIRECT_REPLY_TO, PublishCacheCount
from .topology import Topology

log = logging.getLogger("openq.amqp")

REFUSAL_TIMEOUT_S = 5.0  # a refused connection that says nothing is cut then

MAX_FRAME = 131_072
MAX_CHANNELS = 2047
HEARTBEAT_S = 60
HANDSHAKE_TIMEOUT_S = 10.0  # from the connect to an open connection
CLOSE_TIMEOUT_S = 5.0  # for a client to hear why its connection ends
STOP_TIMEOUT_S = 0.5  # the same when the server stops: who only sends does not listen, and must not delay it
TICK_S = 1.0
DISK_CHECK_S = 0.2  # how often a full disk is looked at again
WRITE_BUFFER_BYTES = 512 * 1024  # bytes a client may leave unread before it gets no more messages
MAX_WRITE_BUFFER_BYTES = 8 * 1024 * 1024  # and before it is not listened to any more
MAX_QUEUED_BYTES = 512 * 1024  # bytes of a client that wait until what it said before is done
GUEST = "guest"

# Clients choose how to behave by these. kombu takes RabbitMQ from 3.3 to before 4.0 for a server on which
# basic.qos with `global` changes the prefetch of consumers that are there, which is how it is here.
PRODUCT = "RabbitMQ"
PRODUCT_VERSION = "3.13.7"
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


class AmqpServer:
    max_frame = MAX_FRAME
    max_channels = MAX_CHANNELS
    heartbeat_s = HEARTBEAT_S

    def __init__(self, context: ServerContext, topology: Topology) -> None:
        self.context = context
        self.topology = topology
        self.max_body = context.config.max_message_bytes
        self.open_connections: dict[AmqpConnection, AmqpSocket] = {}
        self.errors: Counter[int] = Counter()
        self.publish_cache = PublishCacheCount()
        self.closing_connections = 0  # connections that are gone, and are giving back what they held
        self._dispatchers: dict[str, QueueDispatcher] = {}
        self._reply_channels: dict[str, AmqpChannel] = {}
        self._thread = threading.get_ident()
        self._ready_deliveries: list[tuple[QueueDispatcher, list[Delivery]]] = []
        self._to_requeue: list[tuple[str, list[Receipt]]] = []
        self._is_disk_full = False
        self._generation = context.guard.store.generation
        self._ticker: asyncio.TimerHandle | None = None
        self._properties = {
            "capabilities": CAPABILITIES,
            "cluster_name": "openq",
            "copyright": "",
            "information": "OpenQ, speaking AMQP 0-9-1 as RabbitMQ does",
            "platform": f"Python {platform.python_version()}",
            "product": PRODUCT,
            "version": PRODUCT_VERSION,
            "openq_version": __version__,
        }
        self.peers = topology.peers
        self.peers.local_consumers = self._local_consumers
        self._announced_s = 0.0
        topology.has_consumers = lambda queue_key: self.consumers_of(queue_key, now=True) > 0
        topology.on_queue_deleted = self.queue_deleted
        topology.on_vhost_deleted = self._close_vhost

    # -- the life of the door

    def start(self) -> None:
        self._thread = threading.get_ident()
        self._tick()

    def protocol(self) -> AmqpSocket:
        return AmqpSocket(self)

    def drain(self) -> None:
        """No more new connections; those that are open are told."""
        for connection in list(self.open_connections):
            connection.stop()
        self.context.loop.call_later(STOP_TIMEOUT_S, self.stop)

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for socket in list(self.open_connections.values()):
            socket.abort()

    def _tick(self) -> None:
        loop = self.context.loop
        now_s = loop.time()
        for connection, socket in list(self.open_connections.items()):
            if socket.unsent_bytes > SMALL:
                connection.report_buffered()
            if connection.state < RUNNING:
                if now_s - socket.connected_s > HANDSHAKE_TIMEOUT_S:
                    log.info("connection from %s: no handshake in %d s", connection.peer, HANDSHAKE_TIMEOUT_S)
                    socket.abort()
            elif connection.state >= CLOSING:
                if now_s - socket.closing_s > CLOSE_TIMEOUT_S:
                    socket.abort()
            elif connection.heartbeat_s:
                # While nothing is read, nothing can be heard.
                if connection.reader.is_paused or socket.is_backlogged:
                    connection.last_received_s = now_s
                elif now_s - connection.last_received_s > 2 * connection.heartbeat_s:
                    log.warning("connection %s: missed heartbeats from client", connection.label)
                    socket.abort()
                    continue
                if now_s - socket.last_sent_s >= connection.heartbeat_s / 2:
                    connection.beat()
        self._check_users()
        if not self.peers.is_single and now_s - self._announced_s >= ANNOUNCE_S:
            self._announced_s = now_s
            self.context.enter(self._refresh_peers)
        if self._to_requeue:
            self.context.enter(self._requeue)
        self._ticker = loop.call_later(TICK_S, self._tick)

    def _refresh_peers(self) -> None:
        """Where servers share a store: say what is here, and look what became of the others."""
        self.peers.beat()
        for dispatcher in list(self._dispatchers.values()):
            if dispatcher.single_active:
                self.context.enter(dispatcher.dispatch)  # it may be its turn now
        try:
            self.topology.delete_orphans()
            for connection in list(self.open_connections):
                if connection.state == RUNNING and not self.topology.vhost_exists(connection.vhost):
                    connection.end(CONNECTION_FORCED, f"vhost '{connection.vhost}' is deleted")
        except (OpenQError, AmqpError) as error:
            log.warning("what servers left behind that are gone stays for now: %s", error)

    def _local_consumers(self) -> PresenceByQueue:
        return {
            dispatcher.queue_key: ConsumerPresence(
                len(dispatcher.consumers), dispatcher.exclusive, dispatcher.since_ms
            )
            for dispatcher in self._dispatchers.values()
            if dispatcher.consumers
        }

    def _check_users(self) -> None:
        """Who was removed, disabled or given other rights meanwhile: a connection may last for months."""
        guard = self.context.guard
        is_open, generation = guard.is_open, guard.store.generation
        if generation == self._generation:
            return
        self._generation = generation
        for connection in list(self.open_connections):
            if connection.state != RUNNING or connection.principal is None or is_open:
                continue
            current = None if connection.is_guest else guard.current(connection.principal)
            if current is None or self.principal_in_account(current, connection.account) is None:
                connection.end(CONNECTION_FORCED, f"user '{connection.user}' may not be here any more")
            else:
                connection.principal = current

    def _close_vhost(self, vhost: str) -> None:
        for connection in list(self.open_connections):
            if connection.state == RUNNING and connection.vhost == vhost:
                connection.end(CONNECTION_FORCED, f"vhost '{vhost}' is deleted")

    def mark_heard(self, connection: AmqpConnection) -> None:
        connection.last_received_s = self.context.loop.time()

    def connection_opened(self, connection: AmqpConnection) -> None:
        log.info("connection %s: user %r in vhost %r", connection.label, connection.user, connection.vhost)
        if self._is_disk_full:
            connection.notify_blocked(_BLOCKED_REASON)

    def connection_closing(self, connection: AmqpConnection) -> None:
        socket = self.open_connections.get(connection)
        if socket is not None:
            socket.closing_s = self.context.loop.time()

    def connection_released(self, connection: AmqpConnection) -> None:
        """Its exclusive queues go with it."""
        self.topology.delete_exclusive_queues(connection)

    def count_error(self, code: int) -> None:
        self.errors[code] += 1

    # -- the handshake

    def start_method(self, has_certificate: bool) -> m.ConnectionStart:
        mechanisms = b"PLAIN AMQPLAIN EXTERNAL" if has_certificate else b"PLAIN AMQPLAIN"
        return m.ConnectionStart(0, 9, self._properties, mechanisms, b"en_US")

    def cached_login(self, user: str, password: str, peer: str) -> Principal | None:
        """Whoever is known without work. Without users there is guest, as on every RabbitMQ."""
        guard = self.context.guard
        if guard.is_open:
            return guard.open_principal() if user == GUEST and password == GUEST else None
        try:
            return guard.cached_login(user, password, peer)
        except OpenQError:
            return None  # too many failures: said in full by `check_password`

    def check_password(self, user: str, password: str, peer: str) -> Principal:
        """In a thread. Raises Refused."""
        guard = self.context.guard
        if guard.is_open:
            if user == GUEST and password == GUEST:
                return guard.open_principal()
            raise LoginFailed
        return guard.basic(user, password, peer)

    def certificate_user(self, name: str) -> Principal | None:
        guard = self.context.guard
        return guard.open_principal() if guard.is_open else guard.named(name)

    def principal_in_account(self, principal: Principal, account: str) -> Principal | None:
        """The same in a vhost, if it may be there at all."""
        guard = self.context.guard
        if guard.is_open:
            return guard.open_principal(account)
        owner = owner_of(account)
        if principal.account == owner:
            return principal
        is_known = any(rule.account in ("*", account, owner) for rule in principal.rules)
        return principal if is_known else None

    # -- permissions

    def is_unrestricted(self, principal: Principal, account: str, kind: str, name: str) -> bool:
        """Whether it is the caller's own, and no policy has a say in it."""
        return principal.account == owner_of(account) and (
            kind != "queue" or self._policy(account, name) is None
        )

    def _policy(self, account: str, name: str) -> str | None:
        queue = self.context.broker.find_queue(qualified_name(account, name))
        return None if queue is None else queue.settings.notes.get(POLICY_NOTE)

    def may(self, connection: AmqpConnection, action: str, kind: str, name: str) -> bool:
        guard, account = self.context.guard, connection.account
        principal = connection.principal
        assert principal is not None
        policy = self._policy(account, name) if kind == "queue" else None
        if policy is None:
            return guard.may(principal, action, account, name)
        region = split_namespace(account)[0] or self.context.config.region
        condition_keys = connection_condition_keys(
            connection.is_tls, connection.peer, principal, region, self.context.now_ms()
        )
        return guard.may(principal, action, account, name, policy=policy, condition_keys=condition_keys)

    # -- queues and their consumers

    def dispatcher(self, queue_key: str) -> QueueDispatcher:
        declared = self.topology.declaration(queue_key)  # before all else: the store may have to be asked
        dispatcher = self._dispatchers.get(queue_key)
        if dispatcher is None or not dispatcher.consumers:  # one that nobody came to, or of a queue that was
            is_single = declared.arguments.get("x-single-active-consumer") is True
            dispatcher = self._dispatchers[queue_key] = QueueDispatcher(self, queue_key, is_single)
            # What is got one by one always tells, what is pushed only from the second time on.
            dispatcher.count_mode = min(_count_mode(declared), COUNT_REDELIVERED)
        return dispatcher

    def is_leader(self, dispatcher: QueueDispatcher) -> bool:
        return self.peers.is_single or self.peers.is_leader(dispatcher.queue_key, dispatcher.since_ms)

    def consumer_added(self, dispatcher: QueueDispatcher) -> None:
        if len(dispatcher.consumers) == 1 and not self.peers.is_single:
            self._announce()

    def _announce(self) -> None:
        try:
            self.peers.announce()
        except OpenQError as error:
            log.warning("the other servers do not hear of a consumer yet: %s", error)

    def discard_unused(self, dispatcher: QueueDispatcher) -> None:
        """It was only looked at: the next one may be another queue of that name."""
        if not dispatcher.consumers:
            self._dispatchers.pop(dispatcher.queue_key, None)

    def count_mode(self, queue_key: str) -> int:
        """RabbitMQ's classic queues do not tell how often a message was delivered; its quorum queues do."""
        return _count_mode(self.topology.declaration(queue_key))

    def consumers_of(self, queue_key: str, *, now: bool = False) -> int:
        """On all servers of the store; `now` if something depends on it."""
        here = self.local_consumer_count(queue_key)
        if self.peers.is_single or (now and here):
            return here
        return here + sum(each.consumers for each in self.peers.consumers_elsewhere(queue_key, now=now))

    def local_consumer_count(self, queue_key: str) -> int:
        """On this one."""
        dispatcher = self._dispatchers.get(queue_key)
        return 0 if dispatcher is None else len(dispatcher.consumers)

    def consumer_removed(self, dispatcher: QueueDispatcher) -> None:
        if dispatcher.consumers:
            return
        self.remove_dispatcher(dispatcher)
        self.topology.mark_used(dispatcher.queue_key)
        try:
            if self.topology.declaration(dispatcher.queue_key).auto_delete:
                self.peers.announce()
                if not self.consumers_of(dispatcher.queue_key, now=True):
                    self.topology.delete_by_key(dispatcher.queue_key)
        except (OpenQError, AmqpError) as error:
            log.info(
                "queue %r: %s", dispatcher.queue_key, error
            )  # gone already, or it stays: the disk is full

    def queue_deleted(self, queue_key: str) -> None:
        dispatcher = self._dispatchers.get(queue_key)
        if dispatcher is not None:
            dispatcher.close()

    def remove_dispatcher(self, dispatcher: QueueDispatcher) -> None:
        if self._dispatchers.get(dispatcher.queue_key) is dispatcher:
            del self._dispatchers[dispatcher.queue_key]

    def requeue_later(self, queue_key: str, receipts: list[Receipt]) -> None:
        """Messages that nobody holds any more, though the disk is too full to say so, or the store away."""
        self._to_requeue.append((queue_key, receipts))

    def _requeue(self) -> None:
        unreturned, self._to_requeue = self._to_requeue, []
        for queue_key, receipts in unreturned:
            try:
                self.context.broker.nack_many(queue_key, receipts)
            except (OutOfRoom, StoreError):
                self._to_requeue.append((queue_key, receipts))
            except OpenQError:
                pass  # the queue is gone, or the broker is

    def deliveries_ready(self, dispatcher: QueueDispatcher, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""
        if threading.get_ident() != self._thread:
            try:
                self.context.loop.call_soon_threadsafe(
                    self.context.enter, dispatcher.on_deliveries, deliveries
                )
            except RuntimeError:
                pass  # the loop is closed; a restart returns what connections held
            return
        if not self._ready_deliveries:
            self.context.loop.call_soon(self._pass_on_ready)
        self._ready_deliveries.append((dispatcher, deliveries))

    def _pass_on_ready(self) -> None:
        arrivals, self._ready_deliveries = self._ready_deliveries, []
        for dispatcher, deliveries in arrivals:
            self.context.enter(dispatcher.on_deliveries, deliveries)

    # -- direct replies

    def add_reply_consumer(self, channel: AmqpChannel) -> None:
        self._reply_channels[self.reply_address(channel)] = channel

    def remove_reply_consumer(self, channel: AmqpChannel) -> None:
        self._reply_channels.pop(self.reply_address(channel), None)

    def reply_address(self, channel: AmqpChannel) -> str:
        if not channel.reply_token:
            channel.reply_token = secrets.token_urlsafe(18)
        return f"{DIRECT_REPLY_TO}.{channel.reply_token}"

    def reply_channel(self, address: str) -> AmqpChannel | None:
        return self._reply_channels.get(address)

    def can_reply(self, address: str) -> bool:
        return address in self._reply_channels

    # -- a full disk

    def on_disk_full(self) -> None:
        if self._is_disk_full:
            return
        self._is_disk_full = True
        log.warning("the disk is full: publishers are told to wait, consumers go on")
        for connection in list(self.open_connections):
            connection.notify_blocked(_BLOCKED_REASON)
        self._check_disk_later()

    def _check_disk_later(self) -> None:
        self.context.loop.call_later(DISK_CHECK_S, self.context.enter, self._check_disk)

    def _check_disk(self) -> None:
        is_full = self.context.broker.health().disk_full
        if not is_full:
            # What was held back may need more room than there is.
            for connection in list(self.open_connections):
                connection.run_in_order(connection.retry_blocked_publish)
            is_full = any(connection.has_blocked_publish for connection in self.open_connections)
        if is_full:
            self._check_disk_later()
            return
        self._is_disk_full = False
        log.warning("there is room on the disk again")
        for connection in list(self.open_connections):
            connection.notify_blocked(None)

    # -- looking

    def close_connections(self, matches: Callable[[dict[str, Any]], bool], reason: str) -> None:
        """By what `connections` tells of each."""
        for connection in list(self.open_connections):
            if connection.state == RUNNING and matches(_connection_info(connection)):
                connection.end(CONNECTION_FORCED, reason)

    def connections(self) -> list[dict[str, Any]]:
        return [_connection_info(each) for each in self.open_connections if each.state == RUNNING]

    def channels(self) -> list[dict[str, Any]]:
        return [
            _channel_info(channel)
            for connection in self.open_connections
            for channel in connection.channels.values()
        ]

    def consumers(self) -> list[dict[str, Any]]:
        found = []
        for dispatcher in self._dispatchers.values():
            for consumer in dispatcher.consumers:
                channel = cast(AmqpChannel, consumer.channel)
                found.append(
                    {
                        "consumer_tag": consumer.tag,
                        "queue": {"name": dispatcher.queue, "vhost": channel.connection.vhost},
                        "channel_details": _channel_details(channel),
                        "ack_required": not consumer.no_ack,
                        "exclusive": consumer.exclusive,
                        "prefetch_count": consumer.prefetch,
                        "active": dispatcher.is_active(consumer),
                        "arguments": decode_table(consumer.arguments)[0] if consumer.arguments else {},
                    }
                )
        return found


_BLOCKED_REASON = "low on disk"


def _count_mode(declared: QueueDeclaration) -> int:
    if declared.is_from_other_protocol:
        return COUNT_REDELIVERED
    return COUNT_ALWAYS if declared.arguments.get("x-queue-type") == "quorum" else COUNT_NEVER


def _connection_name(connection: AmqpConnection) -> str:
    return f"{_endpoint(connection.peer, connection.port)} -> {_endpoint(*connection.local)}"


def _endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _channel_details(channel: AmqpChannel) -> dict[str, Any]:
    connection = channel.connection
    return {
        "name": f"{_connection_name(connection)} ({channel.number})",
        "number": channel.number,
        "user": connection.user,
        "connection_name": _connection_name(connection),
        "peer_host": connection.peer,
        "peer_port": connection.port,
    }


def _connection_info(connection: AmqpConnection) -> dict[str, Any]:
    name = connection.client_properties.get("connection_name")
    return {
        "name": _connection_name(connection),
        **({"user_provided_name": name} if isinstance(name, str) else {}),
        "host": connection.local[0],
        "port": connection.local[1],
        "user": connection.user,
        "vhost": connection.vhost,
        "state": "blocked" if connection.is_blocked else "running",
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": connection.mechanism,
        "ssl": connection.is_tls,
        "peer_host": connection.peer,
        "peer_port": connection.port,
        "channels": len(connection.channels),
        "channel_max": connection.max_channels,
        "frame_max": connection.max_frame,
        "timeout": connection.heartbeat_s,
        "connected_at": connection.opened_ms,
        "client_properties": connection.client_properties,
    }


def _channel_info(channel: AmqpChannel) -> dict[str, Any]:
    return {
        **_channel_details(channel),
        "connection_details": {
            "name": _connection_name(channel.connection),
            "peer_host": channel.connection.peer,
            "peer_port": channel.connection.port,
        },
        "vhost": channel.connection.vhost,
        "state": "running" if channel.is_flowing else "flow",
        "confirm": channel.is_confirming,
        "transactional": channel.is_transactional,
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": len(channel.unacked),
        "messages_unconfirmed": channel.published - channel.confirmed,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.shared_prefetch,
    }


class AmqpSocket(asyncio.Protocol):
    """The thin part that owns the socket."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._loop_time = server.context.loop.time
        self._transport: asyncio.Transport | None = None
        self._connection: AmqpConnection | None = None
        self._is_stalled = False  # it takes nothing, so nothing is taken from it
        self._is_waiting = (
            server.context.broker.waits
        )  # for the store, now and then: bytes are kept meanwhile
        self._queued_bytes = 0
        self.is_backlogged = False  # more of them than may be
        self._is_refused = False
        self.connected_s = self.last_sent_s = self.closing_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        server = self._server
        self.connected_s = self.last_sent_s = self._loop_time()
        if not server.context.admission.enter("amqp"):
            self._refuse(server.context)
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=WRITE_BUFFER_BYTES // 4)
        address = transport.get_extra_info("peername") or ("", 0)
        certificate = transport.get_extra_info("peercert")
        is_tls = transport.get_extra_info("ssl_object") is not None
        self._connection = AmqpConnection(
            server, self, str(address[0]), int(address[1]), _common_name(certificate), is_tls
        )
        own = transport.get_extra_info("sockname") or ("", 0)
        self._connection.local = str(own[0]), int(own[1])
        self._connection.last_received_s = self.connected_s
        server.open_connections[self._connection] = self

    def _refuse(self, context: ServerContext) -> None:
        """The reason is sent once the client has begun to speak; only so many wait for that at a time."""
        assert self._transport is not None
        log.warning("too many connections (%d): an AMQP one is refused", context.admission.open)
        if context.admission.lingering >= MAX_LINGERING:
            self._transport.abort()
            return
        context.admission.lingering += 1
        self._is_refused = True
        context.loop.call_later(REFUSAL_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if self._is_refused and self._transport is not None and not self._transport.is_closing():
            error = AmqpError(CONNECTION_FORCED, "too many connections; try again later")
            close = m.ConnectionClose(error.code, error.reply_text, 0, 0)
            self._transport.write(method_frame(0, m.encode(close)))
            self._transport.close()
        elif connection is not None:
            connection.last_received_s = self._loop_time()
            if self._is_waiting:
                self._enqueue(connection, data)
            else:
                self._feed(connection, data)

    def _feed(self, connection: AmqpConnection, data: bytes) -> None:
        connection.feed(data)
        if not connection.can_write and self.is_write_buffer_full:
            self._is_stalled = True
            self.pause_reading()

    def _enqueue(self, connection: AmqpConnection, data: bytes) -> None:
        """For a connection that may be waiting for the store: only so much, before no more is read."""
        self._queued_bytes += len(data)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self.is_backlogged = True
            self.pause_reading()
        connection.run_in_order(self._feed_queued, connection, data)

    def _feed_queued(self, connection: AmqpConnection, data: bytes) -> None:
        self._feed(connection, data)
        self._queued_bytes -= len(data)
        if self.is_backlogged and self._queued_bytes <= MAX_QUEUED_BYTES // 4:
            self.is_backlogged = False
            if not connection.reader.is_paused:
                self.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        connection, self._connection = self._connection, None
        self._transport = None
        if self._is_refused:
            self._is_refused = False
            self._server.context.admission.lingering -= 1
        if connection is not None:
            self._server.context.admission.leave()
            del self._server.open_connections[connection]
            self._server.closing_connections += 1
            connection.run_in_order(self._release, connection)

    def _release(self, connection: AmqpConnection) -> None:
        try:
            connection.on_socket_lost()
        finally:
            self._server.closing_connections -= 1

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.can_write = False
            self._connection.report_buffered()

    def resume_writing(self) -> None:
        connection = self._connection
        if connection is not None:
            if self._is_stalled:
                self._is_stalled = False
                if not connection.reader.is_paused:
                    self.resume_reading()
            connection.report_buffered()
            connection.run_in_order(connection.on_writable)

    # -- what a connection may do with it

    @property
    def is_write_buffer_full(self) -> bool:
        return (
            self._transport is not None and self._transport.get_write_buffer_size() > MAX_WRITE_BUFFER_BYTES
        )

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self.last_sent_s = self._loop_time()
            self._transport.write(data)

    def write_eof(self) -> None:
        """Nothing more is said; the client hangs up, or is hung up on after a while."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_stalled or self.is_backlogged or self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()


def _common_name(certificate: Any) -> str | None:
    """Of a certificate that was checked; None without one."""
    if not certificate:
        return None
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return None
