"""One connection: the handshake, its channels, and what is written back. No sockets: see `door.py`.

The reader tells it what came (`frames.Sink`); it answers into `out`, which leaves as one write when all that
was read has been dealt with. What ends a channel or the connection is an `AmqpError`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..amqp_fields import MalformedProperties, decode_table
from ..auth.errors import AuthenticationFailed
from ..auth.guard import Principal
from ..broker.subscriptions import is_batch
from ..errors import OpenQError
from ..server.buffers import SMALL
from . import methods as m
from .arguments import as_text, vhost_of
from .channel import AmqpChannel
from .dispatcher import AmqpConsumer, QueueDispatcher
from .errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
    from_openq,
)
from .frames import FRAME_MIN, HEARTBEAT, FrameReader, method_frame
from .publishing import Publisher, publish_size
from .serial import SerialRunner, run_now

if TYPE_CHECKING:
    from .server import AmqpServer

log = logging.getLogger("openq.amqp")

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
OLD_PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x09"  # of 0-9, which is the same on the wire
HANDSHAKE_MAX_FRAME = 8192  # before login nobody needs more
# Where a connection is.
AWAITING_HEADER, STARTING, AUTHENTICATING, TUNING, OPENING, RUNNING, CLOSING, CLOSED = range(8)


class ConnectionTransport(Protocol):
    @property
    def is_write_buffer_full(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class _ClosedTransport:
    """Instead of a transport that is gone: it and the connection pointed at each other."""

    is_write_buffer_full = False
    unsent_bytes = 0

    def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


_CLOSED_TRANSPORT = _ClosedTransport()


class AmqpConnection:
    """`peer` is the client's address; `certified` the name in its certificate, if it showed one."""

    protocol = "amqp"

    def __init__(
        self,
        server: AmqpServer,
        transport: ConnectionTransport,
        peer: str,
        port: int,
        certificate_name: str | None,
        is_tls: bool,
    ) -> None:
        self.server = server
        self.context = server.context
        self.broker = server.context.broker
        self.topology = server.topology
        self.transport = transport
        self.peer = peer
        self.port = port
        self.local = ("", 0)  # this server's end; told by the door
        self.certificate_name = certificate_name
        self.is_tls = is_tls
        self.token = os.urandom(12).hex()
        self.state = AWAITING_HEADER
        self.opened_ms = server.context.now_ms()
        self.max_frame = HANDSHAKE_MAX_FRAME
        self.max_channels = server.max_channels
        self.heartbeat_s = 0
        self.last_received_s = 0.0  # when the client was last heard of; kept by the door
        self.client_properties: dict[str, Any] = {}
        self.mechanism = ""
        self.user = ""
        self.principal: Principal | None = None
        self.is_guest = False  # let in because nobody had to sign in
        self.vhost = ""
        self.account = ""
        self.label = peer
        self.publisher: Publisher  # from `_open` on
        self.channels: dict[int, AmqpChannel] = {}
        self.out: list[bytes] = []
        self.can_write = True
        self.is_stalled = False  # its answers are not taken, so it is not read on
        self.is_blocked = False
        self.sent_bytes = 0
        self.argument_bytes = 0  # of its consumers: kept, encoded, to be shown
        # What is to be done when everything that was read has been looked at; dicts keep the order.
        self.to_confirm: dict[AmqpChannel, None] = {}
        self.to_dispatch: dict[QueueDispatcher, None] = {}
        self.run_in_order: Callable[..., None] = (
            SerialRunner(server.context.enter).run if self.broker.waits else run_now
        )
        self.reader = FrameReader(self, HANDSHAKE_MAX_FRAME, server.max_body)
        self._header = b""
        self._transaction_bytes = 0  # by transactions
        self._reported_bytes = 0  # see `report`
        self._is_busy = False
        self._is_flushing = False
        self._blocked_publish: tuple[AmqpChannel, bytes, bytes | list[bytes], list[bytes]] | None = None

    # -- bytes

    def feed(self, data: bytes) -> None:
        if self.state == AWAITING_HEADER:
            data = self._read_header(data)
        if data and self.state != CLOSED:
            self._run(partial(self.reader.feed, data))
            if self._reported_bytes or self.reader.pending_bytes > SMALL:
                self.report_buffered()

    def report_buffered(self) -> None:
        """How much is kept here for this client; all connections together have a ceiling."""
        size = self.reader.pending_bytes + self._transaction_bytes
        if self.argument_bytes > SMALL:
            size += self.argument_bytes
        if self._blocked_publish is not None:
            _, method, all_properties, bodies = self._blocked_publish
            size += publish_size(method, all_properties, bodies)
        unsent = self.transport.unsent_bytes
        if unsent > SMALL:
            size += unsent
        if size != self._reported_bytes:
            self._reported_bytes = size
            self.context.buffers.hold(self, size)

    def shed(self) -> None:
        """Of all connections this one makes the server hold most, and that is too much."""
        self._reported_bytes = 0
        if self.state == RUNNING and self.can_write:
            self.reader.end()
            text = "clients make this server hold too many bytes of unfinished messages; try again later"
            self.run_in_order(self._run, partial(self.fail, AmqpError(RESOURCE_ERROR, text)))
        else:
            self.transport.abort()

    def _run(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong in it ends the connection, in order."""
        self._is_busy = True
        try:
            work()
        except AmqpError as error:
            self.fail(error)
        except OpenQError as error:
            self.fail(from_openq(error))
        except Exception:
            log.exception("a mistake of this server ends connection %s", self.label)
            self.fail(AmqpError(INTERNAL_ERROR, "a mistake of this server; its log tells more"))
        finally:
            self._is_busy = False
        self.finish_batch()

    def finish_batch(self) -> None:
        """One confirm, one hand-out and one write for everything that was read."""
        if self.to_confirm:
            tags = [(channel, channel.published) for channel in self.to_confirm]
            self.to_confirm = {}
            self.context.after_commit(partial(self._committed, tags))
        self._dispatch()
        self.flush()

    def _dispatch(self) -> None:
        while self.to_dispatch:
            dispatchers, self.to_dispatch = self.to_dispatch, {}
            for dispatcher in dispatchers:
                self.context.enter(dispatcher.dispatch)

    def _committed(self, tags: list[tuple[AmqpChannel, int]], error: OpenQError | None) -> None:
        for channel, tag in tags:
            channel.confirm_up_to(tag, error)
        self.flush()

    def flush(self) -> None:
        out = self.out
        if out:
            self.out = []
            if self.state != CLOSED:
                data = b"".join(out)
                self.sent_bytes += len(data)
                self.transport.write(data)

    def flush_soon(self) -> None:
        """For what is written outside of `_work`: one write for all that this turn of the loop brings."""
        if not self._is_busy and not self._is_flushing:
            self._is_flushing = True
            self.context.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def send(self, channel: int, method: m.Method) -> None:
        self.out.append(method_frame(channel, m.encode(method)))

    def hold(self) -> None:
        """Read no further until `go_on`: an answer is due first."""
        self.reader.is_paused = True
        self.transport.pause_reading()

    def apply_backpressure(self) -> None:
        """After an answer much larger than the question: no more questions until the client took it."""
        self.flush()
        if not self.can_write and not self.is_stalled and self.state == RUNNING:
            self.is_stalled = True
            self.hold()

    def on_writable(self) -> None:
        """The client takes what is written again."""
        self.can_write = True
        for channel in self.channels.values():
            channel.dispatch()
        self.finish_batch()
        if self.is_stalled:
            self.is_stalled = False
            self.resume()

    def resume(self) -> None:
        if self.state == CLOSED or self.is_stalled or self._blocked_publish is not None:
            return  # there is another reason to wait
        self.reader.is_paused = False
        self._run(self.reader.resume)
        if not self.reader.is_paused:
            self.transport.resume_reading()

    def answer_after_commit(
        self, channel: AmqpChannel | None, answer: Callable[[], None], lost: Callable[[], None] | None = None
    ) -> None:
        """Answer once everything done so far is on disk, and read nothing before that."""
        is_late = is_done = False

        def committed(error: OpenQError | None) -> None:
            nonlocal is_done
            is_done = True
            if is_late:
                self.run_in_order(finish, error)
            else:
                finish(error)

        def finish(error: OpenQError | None) -> None:
            if self.state == CLOSED or (channel is not None and channel.is_closing):
                if lost is not None:
                    lost()
            elif error is not None:
                self.fail(from_openq(error))
                self.flush()
            elif is_late:
                self._run(answer)
            else:
                answer()
            if is_late:
                self.resume()

        self.context.after_commit(committed)
        if not is_done:
            is_late = True
            self.hold()

    # -- the handshake

    def _read_header(self, data: bytes) -> bytes:
        self._header += data
        if len(self._header) < len(PROTOCOL_HEADER) and any(
            each.startswith(self._header) for each in (PROTOCOL_HEADER, OLD_PROTOCOL_HEADER)
        ):
            return b""
        if not self._header.startswith((PROTOCOL_HEADER, OLD_PROTOCOL_HEADER)):
            # What this server speaks, for a client that can use it; then the end, as the standard says.
            self.transport.write(PROTOCOL_HEADER)
            self.close_now()
            return b""
        rest = self._header[len(PROTOCOL_HEADER) :]
        self._header = b""
        self.state = STARTING
        self.send(0, self.server.start_method(self.certificate_name is not None))
        self.flush()
        return rest

    def _connection_method(self, method: m.Method) -> None:
        """On channel 0."""
        if self.state == CLOSING:
            if isinstance(method, m.ConnectionCloseOk):
                self.close_now()
            elif isinstance(method, m.ConnectionClose):
                self.send(0, m.ConnectionCloseOk())
            return
        if self.state == STARTING and isinstance(method, m.ConnectionStartOk):
            self._authenticate(method)
        elif self.state == TUNING and isinstance(method, m.ConnectionTuneOk):
            self._tune(method)
        elif self.state == OPENING and isinstance(method, m.ConnectionOpen):
            self._open(method)
        elif self.state == RUNNING and isinstance(method, m.ConnectionClose):
            self.release()
            self.send(0, m.ConnectionCloseOk())
            self._finish_close()
        elif self.state == RUNNING and isinstance(method, m.ConnectionUpdateSecret):
            self._update_secret(method)
        else:
            state = "running" if self.state == RUNNING else "opening"
            raise AmqpError(CHANNEL_ERROR, f"unexpected method in connection state {state}")

    def _authenticate(self, method: m.ConnectionStartOk) -> None:
        self.client_properties = method.client_properties
        self.mechanism = method.mechanism
        name = method.client_properties.get("connection_name")
        self.label = _label(name) if isinstance(name, str) and name else f"{self.peer}:{self.port}"
        try:
            user, password = self._credentials(method.mechanism, method.response)
        except (ValueError, MalformedProperties):
            raise AmqpError(SYNTAX_ERROR, f"a response that {method.mechanism} does not have") from None
        self.user = user
        self.state = AUTHENTICATING
        if method.mechanism == "EXTERNAL":
            self._finish_login(self.server.certificate_user(user), None)
            return
        known = self.server.cached_login(user, password, self.peer)
        if known is not None:
            self._finish_login(known, None)
            return
        self.hold()
        self.context.check(
            partial(self.server.check_password, user, password, self.peer), self._password_checked
        )

    def _credentials(self, mechanism: str, response: bytes) -> tuple[str, str]:
        if mechanism == "PLAIN":
            _, user, password = response.split(b"\x00")
            return user.decode(), password.decode()
        if mechanism == "AMQPLAIN":
            table, _ = decode_table(len(response).to_bytes(4, "big") + response)
            name, secret = table.get("LOGIN"), table.get("PASSWORD")
            if isinstance(name, str) and isinstance(secret, str):
                return name, secret
            raise ValueError("LOGIN and PASSWORD")
        if mechanism == "EXTERNAL" and self.certificate_name is not None:
            return self.certificate_name, ""
        raise AmqpError(NOT_ALLOWED, f"unknown authentication mechanism '{mechanism[:40]}'")

    def _password_checked(self, principal: Principal | None, error: BaseException | None) -> None:
        self.run_in_order(self._continue_login, principal, error)

    def _continue_login(self, principal: Principal | None, error: BaseException | None) -> None:
        if self.state != AUTHENTICATING:
            return
        if error is not None and not isinstance(error, AuthenticationFailed):
            log.error("could not check a password: %s", error)
        self._run(partial(self._finish_login, principal, error))
        self.resume()

    def _finish_login(self, principal: Principal | None, error: BaseException | None) -> None:
        if principal is None:
            log.warning("AMQP login of user %r from %s refused", self.user, self.peer)
            text = f"Login was refused using authentication mechanism {self.mechanism}. "
            refusal = AmqpError(ACCESS_REFUSED, text + "For details see the broker logfile.")
            if self.client_supports("authentication_failure_close"):
                refusal.ends_connection = True
                raise refusal
            self.flush()
            self.close_now()
            return
        self.principal = principal
        self.is_guest = self.context.guard.is_open
        self.state = TUNING
        self.send(0, m.ConnectionTune(self.max_channels, self.server.max_frame, self.server.heartbeat_s))

    def client_supports(self, name: str) -> bool:
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def _tune(self, method: m.ConnectionTuneOk) -> None:
        frame = method.frame_max or self.server.max_frame
        if not FRAME_MIN <= frame <= self.server.max_frame:
            raise AmqpError(
                NOT_ALLOWED,
                f"negotiated frame_max = {frame} is lower than the minimum allowed value ({FRAME_MIN})"
                if frame < FRAME_MIN
                else f"negotiated frame_max = {frame} is higher than the maximum allowed value "
                f"({self.server.max_frame})",
            )
        channels = method.channel_max or self.server.max_channels
        if channels > self.server.max_channels:
            raise AmqpError(
                NOT_ALLOWED,
                f"negotiated channel_max = {method.channel_max} is higher than the maximum allowed value "
                f"({self.server.max_channels})",
            )
        self.max_frame = frame
        self.max_channels = channels
        self.reader.limit_frames(frame)
        self.heartbeat_s = method.heartbeat
        self.server.mark_heard(self)
        self.state = OPENING

    def _open(self, method: m.ConnectionOpen) -> None:
        vhost = method.virtual_host
        if not self.topology.vhost_exists(vhost):
            raise AmqpError(NOT_ALLOWED, f"vhost {vhost} not found")
        account = self.topology.account_of(vhost)
        assert self.principal is not None
        self.principal = self.server.principal_in_account(self.principal, account)
        if self.principal is None:
            raise AmqpError(NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{self.user}'")
        self.vhost = vhost_of(account)  # by its one name
        self.account = account
        self.publisher = Publisher(
            self.context, self.topology, vhost, account, self.user, self.server.publish_cache
        )
        self.state = RUNNING
        self.send(0, m.ConnectionOpenOk())
        self.server.connection_opened(self)

    def _update_secret(self, method: m.ConnectionUpdateSecret) -> None:
        """Passwords do not run out while a connection lasts: nothing changes, whatever the new one is."""
        self.send(0, m.ConnectionUpdateSecretOk())

    # -- what the reader tells

    def decode(self, payload: bytes) -> m.Method:
        try:
            return m.decode(payload)
        except m.UnknownMethod as error:
            raise AmqpError(COMMAND_INVALID, str(error)) from error
        except m.MalformedMethod as error:
            raise AmqpError(FRAME_ERROR, f"cannot decode {error}") from error

    def method(self, channel: int, payload: bytes) -> None:
        if self.state == CLOSED:
            return
        if not channel:
            try:
                self._connection_method(self.decode(payload))
            except AmqpError as error:
                self.fail(error, payload)
            return
        found = self._channel(channel, payload)
        if found is not None:
            self._run_on_channel(found, payload, partial(found.method, payload))

    def _channel(self, number: int, payload: bytes) -> AmqpChannel | None:
        """The channel for this method; None if it was opened by it, or nothing is to be done."""
        if self.state == CLOSING:
            return None
        if self.state != RUNNING:
            raise AmqpError(UNEXPECTED_FRAME, f"a method on channel {number} before the connection is open")
        found = self.channels.get(number)
        if found is not None:
            return found
        method = self.decode(payload)
        if isinstance(method, m.ChannelOpen):
            if len(self.channels) >= self.max_channels:
                raise AmqpError(
                    NOT_ALLOWED,
                    f"number of channels opened ({len(self.channels)}) has reached the negotiated "
                    f"channel_max ({self.max_channels})",
                )
            self.channels[number] = AmqpChannel(self, number)
            self.send(number, m.ChannelOpenOk())
            return None
        raise AmqpError(CHANNEL_ERROR, "expected 'channel.open'", payload=payload)

    def _run_on_channel(self, channel: AmqpChannel, payload: bytes, work: Callable[[], None]) -> None:
        """What ends only the channel is answered here."""
        try:
            work()
        except AmqpError as error:
            if error.ends_connection:
                self.fail(error, payload)
            else:
                self.end_channel(channel, error, payload)
        except OpenQError as failure:
            self.end_channel(channel, from_openq(failure), payload)

    def end_channel(self, channel: AmqpChannel, error: AmqpError, payload: bytes = b"") -> None:
        if error.ends_connection:
            self.fail(error, payload)
            return
        channel.release()
        self.reader.skip_content(channel.number)
        class_id, method_id = _method_ids(payload)
        self.send(channel.number, m.ChannelClose(error.code, error.reply_text, class_id, method_id))
        self.server.count_error(error.code)

    def drop_channel(self, channel: AmqpChannel) -> None:
        self.channels.pop(channel.number, None)
        self.reader.discard_channel(channel.number)

    def begin_publish(self, channel: int, payload: bytes) -> bool:
        found = self._channel(channel, payload)
        return found is not None and not found.is_closing

    def publish(
        self, channel: int, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> None:
        found = self._channel(channel, method)
        if found is not None:
            self._run_on_channel(found, method, partial(found.publish, method, all_properties, bodies))

    def ack(self, channel: int, tags: list[int]) -> None:
        found = self.channels.get(channel)
        if found is None:
            self._channel(channel, _ACK_METHOD)
            return
        self._run_on_channel(found, _ACK_METHOD, partial(found.ack, tags))

    def refuse_content(self, channel: int, error: AmqpError) -> None:
        found = self.channels.get(channel)
        if found is not None and not found.is_closing:
            self.end_channel(found, error, _PUBLISH_METHOD)

    def heartbeat(self) -> None:
        """That something came is all it says, and the door knows that already."""

    def beat(self) -> None:
        if self.state in (OPENING, RUNNING):
            self.out.append(HEARTBEAT)
            self.flush()

    # -- permissions

    def _require_principal(self) -> Principal:
        assert self.principal is not None
        return self.principal

    def require(self, action: str, kind: str, name: str, of_exchange: str | None = None) -> None:
        assert self.principal is not None
        if self.principal.is_root and self.server.is_unrestricted(self.principal, self.account, kind, name):
            return
        if not self.server.may(self, action, kind, name):
            if of_exchange is not None:
                kind, name = "exchange", of_exchange
            raise AmqpError(
                ACCESS_REFUSED,
                f"access to {kind} '{name}' in vhost '{self.vhost}' refused for user '{self.user}'",
            )

    def require_forwarding(self, exchange: object, key: object) -> None:
        """For messages that are to go on from here by themselves: dead letters, and those with no queue."""
        if not isinstance(exchange, str | bytes):
            return
        name = as_text(exchange)
        if name:
            self.require("send", "exchange", name)
        elif isinstance(key, str | bytes):
            self.require("send", "queue", as_text(key))
        elif not self.context.guard.may_everywhere(self._require_principal(), "send", self.account):
            # Whatever key a message comes with names the queue it goes to.
            raise AmqpError(
                ACCESS_REFUSED,
                f"access to exchange 'amq.default' in vhost '{self.vhost}' refused for user '{self.user}'",
            )

    def add_transaction_bytes(self, more: int) -> None:
        """What transactions hold in memory until they are committed; negative when they let go."""
        self._transaction_bytes += more
        if more:
            self.report_buffered()
        most = 2 * (
            self.server.max_body + self.server.max_frame
        )  # the largest message, with its properties, twice
        if more > 0 and self._transaction_bytes > most:
            raise AmqpError(RESOURCE_ERROR, f"transactions hold more than {most} bytes; commit earlier")

    def release_arguments(self, consumers: Iterable[AmqpConsumer]) -> None:
        size = sum(len(each.arguments) for each in consumers)
        self.argument_bytes -= size
        if size and self._reported_bytes:
            self.report_buffered()

    # -- a full disk

    def block_publish(
        self, channel: AmqpChannel, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> None:
        self._blocked_publish = (channel, method, all_properties, bodies)
        self.hold()
        self.report_buffered()

    @property
    def has_blocked_publish(self) -> bool:
        """Publishes for which there was no room."""
        return self._blocked_publish is not None and self.state != CLOSED

    def retry_blocked_publish(self) -> None:
        """There may be room again."""
        if self._blocked_publish is None or self.state == CLOSED:
            return
        channel, method, all_properties, bodies = self._blocked_publish
        self._blocked_publish = None
        done = len(bodies)

        def work() -> None:
            nonlocal done
            if not channel.is_closing:
                done = channel.retry_publish(method, all_properties, bodies)

        self._run(lambda: self._run_on_channel(channel, method, work))
        if done < len(bodies):
            rest = all_properties if isinstance(all_properties, bytes) else all_properties[done:]
            self._blocked_publish = channel, method, rest, bodies[done:]
            self.server.on_disk_full()  # it may have been taken for over while this was tried
            return
        self.report_buffered()
        self.resume()  # what came behind it may be held back in its turn

    def notify_blocked(self, reason: str | None) -> None:
        """`reason` None: no more."""
        if self.state != RUNNING or not self.client_supports("connection.blocked"):
            return
        if reason is not None and not self.is_blocked:
            self.is_blocked = True
            self.send(0, m.ConnectionBlocked(reason))
        elif reason is None and self.is_blocked:
            self.is_blocked = False
            self.send(0, m.ConnectionUnblocked())
        self.flush_soon()

    # -- the end

    def fail(self, error: AmqpError, payload: bytes = b"") -> None:
        """Tell why, and wait for the client to have heard it."""
        if self.state in (CLOSING, CLOSED):
            return
        self._blocked_publish = None
        if self.state < OPENING and error.code != ACCESS_REFUSED:
            log.info("connection from %s refused: %r", self.peer, error.reply_text)
            self.close_now()
            return
        self.release()
        class_id, method_id = _method_ids(payload or error.payload)
        self.state = CLOSING
        self.send(0, m.ConnectionClose(error.code, error.reply_text, class_id, method_id))
        self.server.count_error(error.code)
        log.info("connection %s ends: %r", self.label, error.reply_text)
        self.server.connection_closing(self)
        self.reader.end()
        if self.reader.is_paused:
            self.reader.is_paused = False
            self.transport.resume_reading()

    def stop(self) -> None:
        """The server stops."""
        self.end(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")

    def end(self, code: int, text: str) -> None:
        self.run_in_order(self._run, partial(self.fail, AmqpError(code, text)))

    def release(self) -> None:
        """Everything that it held goes back."""
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.release()
        self.server.connection_released(self)

    def _finish_close(self) -> None:
        """After the last word. What a client still had in hand is read and dropped until it hangs up, too:
        to close on it would take the last word from it (amqplib sends `close` past what waits elsewhere).
        """
        self.flush()
        self.state = CLOSED
        self.server.connection_closing(self)
        self.transport.write_eof()

    def close_now(self) -> None:
        if self.state != CLOSED:
            self.flush()
            self.state = CLOSED
            self.transport.close()

    def on_socket_lost(self) -> None:
        """The socket is gone."""
        self.state = CLOSED
        self.out = []
        self.reader.close()
        self._blocked_publish = None
        self.release()
        self._dispatch()
        self.to_confirm = {}
        self.transport = _CLOSED_TRANSPORT
        if self.vhost:  # it was opened
            self.publisher.clear_cache()
        if self._reported_bytes:
            self._reported_bytes = 0
            self.context.buffers.hold(self, 0)


def _label(name: str) -> str:
    """What a client calls itself, fit for a line of the log."""
    label = "".join(char if char.isprintable() else "?" for char in name[:100])
    return f"amqp:{label}" if is_batch(label) else label


_ACK_METHOD = b"\x00\x3c\x00\x50" + bytes(9)
_PUBLISH_METHOD = b"\x00\x3c\x00\x28"


def _method_ids(payload: bytes) -> tuple[int, int]:
    """Class and method of what went wrong."""
    if len(payload) < 4:
        return 0, 0
    return int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
