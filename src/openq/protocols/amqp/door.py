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

from ..._version import __version__
from ...broker.base import Receipt
from ...errors import OpenQError, OutOfRoom, StoreError
from ...model import Delivery
from ...names import full_name, owner_of, split_namespace
from ...properties import decode_table
from ...security.errors import LoginRefused
from ...security.guard import Principal
from ..admission import MAX_LEAVING
from ..buffers import SMALL
from ..facts import known_facts
from ..site import Site
from ..sqs.settings import POLICY
from . import methods as m
from .arguments import Declaration
from .channel import Channel
from .connection import CLOSING, RUNNING, Connection
from .errors import CONNECTION_FORCED, AmqpError
from .frames import method_frame
from .neighbours import BEAT_S, Found, Presence
from .outgoing import ALWAYS, NEVER, WHEN_AGAIN
from .outlet import Outlet
from .publishing import REPLY_TO, Kept
from .topology import Topology

log = logging.getLogger("openq.amqp")

REFUSAL_S = 5.0  # a refused connection that says nothing is cut then

MAX_FRAME = 131_072
MAX_CHANNELS = 2047
HEARTBEAT_S = 60
HANDSHAKE_S = 10.0  # from the connect to an open connection
CLOSE_S = 5.0  # for a client to hear why its connection ends
STOP_S = 0.5  # the same when the server stops: who only sends does not listen, and must not delay it
TICK_S = 1.0
ROOM_S = 0.2  # how often a full disk is looked at again
BUFFER = 512 * 1024  # bytes a client may leave unread before it gets no more messages
MAX_BUFFER = 8 * 1024 * 1024  # and before it is not listened to any more
MAX_KEPT = 512 * 1024  # bytes of a client that wait until what it said before is done
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


class AmqpDoor:
    max_frame = MAX_FRAME
    max_channels = MAX_CHANNELS
    heartbeat_s = HEARTBEAT_S

    def __init__(self, site: Site, topology: Topology) -> None:
        self.site = site
        self.topology = topology
        self.max_body = site.config.max_message_bytes
        self.connections_open: dict[Connection, Socket] = {}
        self.errors: Counter[int] = Counter()
        self.kept = Kept()
        self.parting = 0  # connections that are gone, and are giving back what they held
        self._outlets: dict[str, Outlet] = {}
        self._replies: dict[str, Channel] = {}
        self._thread = threading.get_ident()
        self._arrivals: list[tuple[Outlet, list[Delivery]]] = []
        self._unreturned: list[tuple[str, list[Receipt]]] = []
        self._is_full = False
        self._generation = site.guard.store.generation
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
        self.neighbours = topology.neighbours
        self.neighbours.present = self._present
        self._beat_s = 0.0
        topology.in_use = lambda full: self.consumers_of(full, now=True) > 0
        topology.forgotten = self.queue_gone
        topology.vhost_gone = self._end_vhost

    # -- the life of the door

    def start(self) -> None:
        self._thread = threading.get_ident()
        self._tick()

    def protocol(self) -> Socket:
        return Socket(self)

    def drain(self) -> None:
        """No more new connections; those that are open are told."""
        for connection in list(self.connections_open):
            connection.stop()
        self.site.loop.call_later(STOP_S, self.stop)

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for socket in list(self.connections_open.values()):
            socket.abort()

    def _tick(self) -> None:
        loop = self.site.loop
        now_s = loop.time()
        for connection, socket in list(self.connections_open.items()):
            if socket.unsent > SMALL:
                connection.report()
            if connection.stage < RUNNING:
                if now_s - socket.since_s > HANDSHAKE_S:
                    log.info("connection from %s: no handshake in %d s", connection.peer, HANDSHAKE_S)
                    socket.abort()
            elif connection.stage >= CLOSING:
                if now_s - socket.closing_s > CLOSE_S:
                    socket.abort()
            elif connection.heartbeat_s:
                # While nothing is read, nothing can be heard.
                if connection.reader.held or socket.is_behind:
                    connection.heard_s = now_s
                elif now_s - connection.heard_s > 2 * connection.heartbeat_s:
                    log.warning("connection %s: missed heartbeats from client", connection.label)
                    socket.abort()
                    continue
                if now_s - socket.wrote_s >= connection.heartbeat_s / 2:
                    connection.beat()
        self._check_users()
        if not self.neighbours.is_alone and now_s - self._beat_s >= BEAT_S:
            self._beat_s = now_s
            self.site.enter(self._beat)
        if self._unreturned:
            self.site.enter(self._return)
        self._ticker = loop.call_later(TICK_S, self._tick)

    def _beat(self) -> None:
        """Where servers share a store: say what is here, and look what became of the others."""
        self.neighbours.beat()
        for outlet in list(self._outlets.values()):
            if outlet.single_active:
                self.site.enter(outlet.pump)  # it may be its turn now
        try:
            self.topology.drop_orphans()
            for connection in list(self.connections_open):
                if connection.stage == RUNNING and not self.topology.vhost_exists(connection.vhost):
                    connection.end(CONNECTION_FORCED, f"vhost '{connection.vhost}' is deleted")
        except (OpenQError, AmqpError) as error:
            log.warning("what servers left behind that are gone stays for now: %s", error)

    def _present(self) -> Found:
        return {
            outlet.full: Presence(len(outlet.consumers), outlet.exclusive, outlet.since_ms)
            for outlet in self._outlets.values()
            if outlet.consumers
        }

    def _check_users(self) -> None:
        """Who was removed, disabled or given other rights meanwhile: a connection may last for months."""
        guard = self.site.guard
        is_open, generation = guard.is_open, guard.store.generation
        if generation == self._generation:
            return
        self._generation = generation
        for connection in list(self.connections_open):
            if connection.stage != RUNNING or connection.principal is None or is_open:
                continue
            current = None if connection.is_guest else guard.current(connection.principal)
            if current is None or self.principal_in(current, connection.account) is None:
                connection.end(CONNECTION_FORCED, f"user '{connection.user}' may not be here any more")
            else:
                connection.principal = current

    def _end_vhost(self, vhost: str) -> None:
        for connection in list(self.connections_open):
            if connection.stage == RUNNING and connection.vhost == vhost:
                connection.end(CONNECTION_FORCED, f"vhost '{vhost}' is deleted")

    def watch(self, connection: Connection) -> None:
        connection.heard_s = self.site.loop.time()

    def opened(self, connection: Connection) -> None:
        log.info("connection %s: user %r in vhost %r", connection.label, connection.user, connection.vhost)
        if self._is_full:
            connection.tell_blocked(_FULL)

    def closing(self, connection: Connection) -> None:
        socket = self.connections_open.get(connection)
        if socket is not None:
            socket.closing_s = self.site.loop.time()

    def released(self, connection: Connection) -> None:
        """Its exclusive queues go with it."""
        self.topology.release(connection)

    def count_error(self, code: int) -> None:
        self.errors[code] += 1

    # -- the handshake

    def start_method(self, has_certificate: bool) -> m.ConnectionStart:
        mechanisms = b"PLAIN AMQPLAIN EXTERNAL" if has_certificate else b"PLAIN AMQPLAIN"
        return m.ConnectionStart(0, 9, self._properties, mechanisms, b"en_US")

    def recall(self, user: str, password: str, peer: str) -> Principal | None:
        """Whoever is known without work. Without users there is guest, as on every RabbitMQ."""
        guard = self.site.guard
        if guard.is_open:
            return guard.anyone() if user == GUEST and password == GUEST else None
        try:
            return guard.recall(user, password, peer)
        except OpenQError:
            return None  # too many failures: said in full by `check_password`

    def check_password(self, user: str, password: str, peer: str) -> Principal:
        """In a thread. Raises Refused."""
        guard = self.site.guard
        if guard.is_open:
            if user == GUEST and password == GUEST:
                return guard.anyone()
            raise LoginRefused
        return guard.basic(user, password, peer)

    def certified_user(self, name: str) -> Principal | None:
        guard = self.site.guard
        return guard.anyone() if guard.is_open else guard.named(name)

    def principal_in(self, principal: Principal, account: str) -> Principal | None:
        """The same in a vhost, if it may be there at all."""
        guard = self.site.guard
        if guard.is_open:
            return guard.anyone(account)
        owner = owner_of(account)
        if principal.account == owner:
            return principal
        is_known = any(rule.account in ("*", account, owner) for rule in principal.rules)
        return principal if is_known else None

    # -- permissions

    def is_own(self, principal: Principal, account: str, kind: str, name: str) -> bool:
        """Whether it is the caller's own, and no policy has a say in it."""
        return principal.account == owner_of(account) and (
            kind != "queue" or self._policy(account, name) is None
        )

    def _policy(self, account: str, name: str) -> str | None:
        queue = self.site.broker.known(full_name(account, name))
        return None if queue is None else queue.settings.notes.get(POLICY)

    def may(self, connection: Connection, action: str, kind: str, name: str) -> bool:
        guard, account = self.site.guard, connection.account
        principal = connection.principal
        assert principal is not None
        policy = self._policy(account, name) if kind == "queue" else None
        if policy is None:
            return guard.may(principal, action, account, name)
        region = split_namespace(account)[0] or self.site.config.region
        context = known_facts(connection.is_tls, connection.peer, principal, region, self.site.now_ms())
        return guard.may(principal, action, account, name, policy=policy, context=context)

    # -- queues and their consumers

    def outlet(self, full: str) -> Outlet:
        declared = self.topology.declaration(full)  # before all else: the store may have to be asked
        outlet = self._outlets.get(full)
        if outlet is None or not outlet.consumers:  # one that nobody came to, or of a queue that was
            is_single = declared.arguments.get("x-single-active-consumer") is True
            outlet = self._outlets[full] = Outlet(self, full, is_single)
            # What is got one by one always tells, what is pushed only from the second time on.
            outlet.counting = min(_counting(declared), WHEN_AGAIN)
        return outlet

    def leads(self, outlet: Outlet) -> bool:
        return self.neighbours.is_alone or self.neighbours.leads(outlet.full, outlet.since_ms)

    def consumer_came(self, outlet: Outlet) -> None:
        if len(outlet.consumers) == 1 and not self.neighbours.is_alone:
            self._tell()

    def _tell(self) -> None:
        try:
            self.neighbours.tell()
        except OpenQError as error:
            log.warning("the other servers do not hear of a consumer yet: %s", error)

    def forget_outlet(self, outlet: Outlet) -> None:
        """It was only looked at: the next one may be another queue of that name."""
        if not outlet.consumers:
            self._outlets.pop(outlet.full, None)

    def counting(self, full: str) -> int:
        """RabbitMQ's classic queues do not tell how often a message was delivered; its quorum queues do."""
        return _counting(self.topology.declaration(full))

    def consumers_of(self, full: str, *, now: bool = False) -> int:
        """On all servers of the store; `now` if something depends on it."""
        here = self.consumer_count(full)
        if self.neighbours.is_alone or (now and here):
            return here
        return here + sum(each.consumers for each in self.neighbours.elsewhere(full, now=now))

    def consumer_count(self, full: str) -> int:
        """On this one."""
        outlet = self._outlets.get(full)
        return 0 if outlet is None else len(outlet.consumers)

    def consumer_left(self, outlet: Outlet) -> None:
        if outlet.consumers:
            return
        self.forget(outlet)
        self.topology.touch(outlet.full)
        try:
            if self.topology.declaration(outlet.full).auto_delete:
                self.neighbours.tell()
                if not self.consumers_of(outlet.full, now=True):
                    self.topology.drop(outlet.full)
        except (OpenQError, AmqpError) as error:
            log.info("queue %r: %s", outlet.full, error)  # gone already, or it stays: the disk is full

    def queue_gone(self, full: str) -> None:
        outlet = self._outlets.get(full)
        if outlet is not None:
            outlet.end()

    def forget(self, outlet: Outlet) -> None:
        if self._outlets.get(outlet.full) is outlet:
            del self._outlets[outlet.full]

    def return_later(self, full: str, receipts: list[Receipt]) -> None:
        """Messages that nobody holds any more, though the disk is too full to say so, or the store away."""
        self._unreturned.append((full, receipts))

    def _return(self) -> None:
        unreturned, self._unreturned = self._unreturned, []
        for full, receipts in unreturned:
            try:
                self.site.broker.nack_many(full, receipts)
            except (OutOfRoom, StoreError):
                self._unreturned.append((full, receipts))
            except OpenQError:
                pass  # the queue is gone, or the broker is

    def served(self, outlet: Outlet, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""
        if threading.get_ident() != self._thread:
            try:
                self.site.loop.call_soon_threadsafe(self.site.enter, outlet.arrived, deliveries)
            except RuntimeError:
                pass  # the loop is closed; a restart returns what connections held
            return
        if not self._arrivals:
            self.site.loop.call_soon(self._hand_over)
        self._arrivals.append((outlet, deliveries))

    def _hand_over(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for outlet, deliveries in arrivals:
            self.site.enter(outlet.arrived, deliveries)

    # -- direct replies

    def add_reply_consumer(self, channel: Channel) -> None:
        self._replies[self.reply_address(channel)] = channel

    def remove_reply_consumer(self, channel: Channel) -> None:
        self._replies.pop(self.reply_address(channel), None)

    def reply_address(self, channel: Channel) -> str:
        if not channel.reply_token:
            channel.reply_token = secrets.token_urlsafe(18)
        return f"{REPLY_TO}.{channel.reply_token}"

    def reply_channel(self, address: str) -> Channel | None:
        return self._replies.get(address)

    def can_reply(self, address: str) -> bool:
        return address in self._replies

    # -- a full disk

    def disk_is_full(self) -> None:
        if self._is_full:
            return
        self._is_full = True
        log.warning("the disk is full: publishers are told to wait, consumers go on")
        for connection in list(self.connections_open):
            connection.tell_blocked(_FULL)
        self._look_later()

    def _look_later(self) -> None:
        self.site.loop.call_later(ROOM_S, self.site.enter, self._look_for_room)

    def _look_for_room(self) -> None:
        is_full = self.site.broker.health().disk_full
        if not is_full:
            # What was held back may need more room than there is.
            for connection in list(self.connections_open):
                connection.in_turn(connection.try_held)
            is_full = any(connection.holds_back for connection in self.connections_open)
        if is_full:
            self._look_later()
            return
        self._is_full = False
        log.warning("there is room on the disk again")
        for connection in list(self.connections_open):
            connection.tell_blocked(None)

    # -- looking

    def close_connections(self, is_meant: Callable[[dict[str, Any]], bool], reason: str) -> None:
        """By what `connections` tells of each."""
        for connection in list(self.connections_open):
            if connection.stage == RUNNING and is_meant(_about_connection(connection)):
                connection.end(CONNECTION_FORCED, reason)

    def connections(self) -> list[dict[str, Any]]:
        return [_about_connection(each) for each in self.connections_open if each.stage == RUNNING]

    def channels(self) -> list[dict[str, Any]]:
        return [
            _about_channel(channel)
            for connection in self.connections_open
            for channel in connection.channels.values()
        ]

    def consumers(self) -> list[dict[str, Any]]:
        found = []
        for outlet in self._outlets.values():
            for consumer in outlet.consumers:
                channel = cast(Channel, consumer.channel)
                found.append(
                    {
                        "consumer_tag": consumer.tag,
                        "queue": {"name": outlet.queue, "vhost": channel.connection.vhost},
                        "channel_details": _channel_details(channel),
                        "ack_required": not consumer.no_ack,
                        "exclusive": consumer.exclusive,
                        "prefetch_count": consumer.prefetch,
                        "active": outlet.is_active(consumer),
                        "arguments": decode_table(consumer.arguments)[0] if consumer.arguments else {},
                    }
                )
        return found


_FULL = "low on disk"


def _counting(declared: Declaration) -> int:
    if declared.is_foreign:
        return WHEN_AGAIN
    return ALWAYS if declared.arguments.get("x-queue-type") == "quorum" else NEVER


def _name_of(connection: Connection) -> str:
    return f"{_end(connection.peer, connection.port)} -> {_end(*connection.local)}"


def _end(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _channel_details(channel: Channel) -> dict[str, Any]:
    connection = channel.connection
    return {
        "name": f"{_name_of(connection)} ({channel.number})",
        "number": channel.number,
        "user": connection.user,
        "connection_name": _name_of(connection),
        "peer_host": connection.peer,
        "peer_port": connection.port,
    }


def _about_connection(connection: Connection) -> dict[str, Any]:
    name = connection.client_properties.get("connection_name")
    return {
        "name": _name_of(connection),
        **({"user_provided_name": name} if isinstance(name, str) else {}),
        "host": connection.local[0],
        "port": connection.local[1],
        "user": connection.user,
        "vhost": connection.vhost,
        "state": "blocked" if connection.is_told_blocked else "running",
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


def _about_channel(channel: Channel) -> dict[str, Any]:
    return {
        **_channel_details(channel),
        "connection_details": {
            "name": _name_of(channel.connection),
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


class Socket(asyncio.Protocol):
    """The thin part that owns the socket."""

    def __init__(self, door: AmqpDoor) -> None:
        self._door = door
        self._loop_time = door.site.loop.time
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._is_stalled = False  # it takes nothing, so nothing is taken from it
        self._is_waiting = door.site.broker.waits  # for the store, now and then: bytes are kept meanwhile
        self._kept_bytes = 0
        self.is_behind = False  # more of them than may be
        self._is_refused = False
        self.since_s = self.wrote_s = self.closing_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        door = self._door
        self.since_s = self.wrote_s = self._loop_time()
        if not door.site.admission.enter("amqp"):
            self._turn_away(door.site)
            return
        self._transport.set_write_buffer_limits(high=BUFFER, low=BUFFER // 4)
        address = transport.get_extra_info("peername") or ("", 0)
        certificate = transport.get_extra_info("peercert")
        is_tls = transport.get_extra_info("ssl_object") is not None
        self._connection = Connection(
            door, self, str(address[0]), int(address[1]), _common_name(certificate), is_tls
        )
        own = transport.get_extra_info("sockname") or ("", 0)
        self._connection.local = str(own[0]), int(own[1])
        self._connection.heard_s = self.since_s
        door.connections_open[self._connection] = self

    def _turn_away(self, site: Site) -> None:
        """The reason is sent once the client has begun to speak; only so many wait for that at a time."""
        assert self._transport is not None
        log.warning("too many connections (%d): an AMQP one is refused", site.admission.open)
        if site.admission.leaving >= MAX_LEAVING:
            self._transport.abort()
            return
        site.admission.leaving += 1
        self._is_refused = True
        site.loop.call_later(REFUSAL_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if self._is_refused and self._transport is not None and not self._transport.is_closing():
            error = AmqpError(CONNECTION_FORCED, "too many connections; try again later")
            close = m.ConnectionClose(error.code, error.reply_text, 0, 0)
            self._transport.write(method_frame(0, m.encode(close)))
            self._transport.close()
        elif connection is not None:
            connection.heard_s = self._loop_time()
            if self._is_waiting:
                self._keep(connection, data)
            else:
                self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        connection.data(data)
        if not connection.can_write and self.is_overfull:
            self._is_stalled = True
            self.pause_reading()

    def _keep(self, connection: Connection, data: bytes) -> None:
        """For a connection that may be waiting for the store: only so much, before no more is read."""
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_KEPT:
            self.is_behind = True
            self.pause_reading()
        connection.in_turn(self._take_kept, connection, data)

    def _take_kept(self, connection: Connection, data: bytes) -> None:
        self._take(connection, data)
        self._kept_bytes -= len(data)
        if self.is_behind and self._kept_bytes <= MAX_KEPT // 4:
            self.is_behind = False
            if not connection.reader.held:
                self.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        connection, self._connection = self._connection, None
        self._transport = None
        if self._is_refused:
            self._is_refused = False
            self._door.site.admission.leaving -= 1
        if connection is not None:
            self._door.site.admission.leave()
            del self._door.connections_open[connection]
            self._door.parting += 1
            connection.in_turn(self._part, connection)

    def _part(self, connection: Connection) -> None:
        try:
            connection.lost()
        finally:
            self._door.parting -= 1

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.can_write = False
            self._connection.report()

    def resume_writing(self) -> None:
        connection = self._connection
        if connection is not None:
            if self._is_stalled:
                self._is_stalled = False
                if not connection.reader.held:
                    self.resume_reading()
            connection.report()
            connection.in_turn(connection.take_more)

    # -- what a connection may do with it

    @property
    def is_overfull(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > MAX_BUFFER

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self.wrote_s = self._loop_time()
            self._transport.write(data)

    def finish(self) -> None:
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
        if self._is_stalled or self.is_behind or self._transport is None or self._transport.is_closing():
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
