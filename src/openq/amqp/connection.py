"""One connection without its socket: frames in, channels, frames out. The socket is in `transport.py`.

The frame reader calls it (`frames.FrameHandler`). Answers are collected in `out` and leave as one write
when everything that was read is processed. An `AmqpError` ends a channel or the connection.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import OpenQError
from ..server.buffers import SMALL
from ..server.dispatcher import QueueDispatcher
from ..server.serial import SerialRunner, run_now
from . import methods as m
from .access import ConnectionAccess
from .channel import AmqpChannel
from .channel_context import ChannelContext
from .channel_publisher import ChannelPublisher
from .consumer import AmqpConsumer
from .errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
    from_openq,
)
from .frames import HEARTBEAT, FrameReader, method_frame
from .handshake import (
    AWAITING_HEADER,
    CLOSED,
    CLOSING,
    MAX_CHANNELS,
    MAX_FRAME,
    OPENING,
    RUNNING,
    Handshake,
)
from .method_codec import MalformedMethod, UnknownMethod, decode_method, encode_method
from .publishing import PublishRun, VhostPublisher
from .transport import CLOSED_TRANSPORT, ConnectionTransport

if TYPE_CHECKING:
    from .server import AmqpServer

log = logging.getLogger("openq.amqp")

HANDSHAKE_MAX_FRAME = 8192  # before the login, no client needs more
_ACK_METHOD = b"\x00\x3c\x00\x50" + bytes(9)
_PUBLISH_METHOD = b"\x00\x3c\x00\x28"


class AmqpConnection:
    """`peer` and `local`: address and port of the client and of the server."""

    protocol = "amqp"

    # Set by the handshake when a vhost is opened.
    access: ConnectionAccess
    publisher: VhostPublisher

    def __init__(
        self,
        server: AmqpServer,
        transport: ConnectionTransport,
        *,
        peer: tuple[str, int],
        local: tuple[str, int],
        certificate_name: str | None,
        is_tls: bool,
    ) -> None:
        self.server = server
        self.context = server.context
        self.broker = server.context.broker
        self.topology = server.topology
        self.transport = transport
        self.peer, self.port = peer
        self.local = local
        self.is_tls = is_tls
        self.token = os.urandom(12).hex()  # identifies it to other servers of the store
        self.state = AWAITING_HEADER
        self.opened_ms = server.context.now_ms()
        self.number = 0  # see `server/connections.py`
        self.max_frame = HANDSHAKE_MAX_FRAME
        self.max_channels = MAX_CHANNELS
        self.heartbeat_s = 0
        self.last_received_s = 0.0  # set by the socket
        self.client_properties: dict[str, Any] = {}
        self.mechanism = ""
        self.user = ""
        self.vhost = ""
        self.account = ""
        self.label = self.peer
        self.channels: dict[int, AmqpChannel] = {}
        self.out: list[bytes] = []
        self.can_write = True
        self.is_stalled = False  # the client does not read its answers, so it is not read from
        self.is_blocked = False  # the client was sent connection.blocked
        self.received_bytes = self.sent_bytes = 0
        self.published = self.delivered = 0
        self.last_error = ""
        self.argument_bytes = 0  # encoded arguments of its consumers
        # Pending until everything that was read is processed; dicts, because they keep the order.
        self.to_confirm: dict[ChannelPublisher, None] = {}
        self.to_dispatch: dict[QueueDispatcher[AmqpConsumer], None] = {}
        self.run_in_order: Callable[..., None] = (
            SerialRunner(server.context.enter).run if self.broker.storage.waits else run_now
        )
        self.reader = FrameReader(self, HANDSHAKE_MAX_FRAME, server.max_body)
        self._handshake: Handshake | None = Handshake(self, certificate_name)
        self._transaction_bytes = 0
        self._reported_bytes = 0
        self._is_busy = False
        self._is_flushing = False
        self._blocked_publish: tuple[ChannelPublisher, PublishRun] | None = None

    # -- bytes

    def feed(self, data: bytes) -> None:
        if self.state == AWAITING_HEADER and self._handshake is not None:
            data = self._handshake.read_header(data)
        if data and self.state != CLOSED:
            self.run(partial(self.reader.feed, data))
            if self._reported_bytes or self.reader.pending_bytes > SMALL:
                self.report_buffered()

    def report_buffered(self) -> None:
        """Report the bytes held in memory for this client; all connections share one limit."""
        size = self.reader.pending_bytes + self._transaction_bytes
        if self.argument_bytes > SMALL:
            size += self.argument_bytes
        if self._blocked_publish is not None:
            size += self._blocked_publish[1].size
        unsent = self.transport.unsent_bytes
        if unsent > SMALL:
            size += unsent
        if size != self._reported_bytes:
            self._reported_bytes = size
            self.context.buffers.hold(self, size)

    def shed(self) -> None:
        """Called when the limit is exceeded and this connection holds the most."""
        self._reported_bytes = 0
        if self.state == RUNNING and self.can_write:
            self.reader.end()
            text = "clients make this server hold too many bytes of unfinished messages; try again later"
            self.run_in_order(self.run, partial(self.fail, AmqpError(RESOURCE_ERROR, text)))
        else:
            self.transport.abort()

    def run(self, work: Callable[[], None]) -> None:
        """Run `work`, then send what it produced. An error in it ends the connection."""
        self._is_busy = True
        try:
            work()
        except AmqpError as error:
            self.fail(error)
        except OpenQError as error:
            self.fail(from_openq(error))
        except Exception:
            log.exception("internal error: connection %s is closed", self.label)
            self.fail(AmqpError(INTERNAL_ERROR, "internal error; see the server's log"))
        finally:
            self._is_busy = False
        self.finish_batch()

    def finish_batch(self) -> None:
        """One confirm, one dispatch and one write for everything that was read."""
        if self.to_confirm:
            tags = [(publisher, publisher.published) for publisher in self.to_confirm]
            self.to_confirm = {}
            self.context.after_commit(partial(self._committed, tags))
        self._dispatch()
        self.flush()

    def _dispatch(self) -> None:
        while self.to_dispatch:
            dispatchers, self.to_dispatch = self.to_dispatch, {}
            for dispatcher in dispatchers:
                self.context.enter(dispatcher.dispatch)

    def _committed(self, tags: list[tuple[ChannelPublisher, int]], error: OpenQError | None) -> None:
        for publisher, tag in tags:
            publisher.confirm_up_to(tag, error)
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
        """For output outside of `run`: one write for everything in this iteration of the loop."""
        if not self._is_busy and not self._is_flushing:
            self._is_flushing = True
            self.context.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def send(self, channel: int, method: m.Method) -> None:
        self.out.append(method_frame(channel, encode_method(method)))

    # -- flow control

    def pause(self) -> None:
        """Process nothing more until `resume`: an answer must be sent first."""
        self.reader.is_paused = True
        self.transport.pause_reading()

    def resume(self) -> None:
        if self.state == CLOSED or self.is_stalled or self._blocked_publish is not None:
            return  # there is another reason to wait
        self.reader.is_paused = False
        self.run(self.reader.resume)
        if not self.reader.is_paused:
            self.transport.resume_reading()

    def apply_backpressure(self) -> None:
        """After an answer much larger than its request: process no more until the client has read it."""
        self.flush()
        if not self.can_write and not self.is_stalled and self.state == RUNNING:
            self.is_stalled = True
            self.pause()

    def on_writable(self) -> None:
        """The client reads again."""
        self.can_write = True
        for channel in self.channels.values():
            channel.consumers.dispatch()
        self.finish_batch()
        if self.is_stalled:
            self.is_stalled = False
            self.resume()

    def answer_after_commit(
        self, channel: ChannelContext, answer: Callable[[], None], lost: Callable[[], None] | None = None
    ) -> None:
        """Answer once everything done so far is durable, and process nothing before that.

        `lost` is called instead if the channel or the connection has ended by then.
        """
        is_late = is_done = False

        def committed(error: OpenQError | None) -> None:
            nonlocal is_done
            is_done = True
            if is_late:
                self.run_in_order(finish, error)
            else:
                finish(error)

        def finish(error: OpenQError | None) -> None:
            if self.state == CLOSED or channel.is_closing:
                if lost is not None:
                    lost()
            elif error is not None:
                self.fail(from_openq(error))
                self.flush()
            elif is_late:
                self.run(answer)
            else:
                answer()
            if is_late:
                self.resume()

        self.context.after_commit(committed)
        if not is_done:
            is_late = True
            self.pause()

    # -- FrameHandler: what the reader calls

    def decode(self, payload: bytes) -> m.Method:
        try:
            return decode_method(payload)
        except UnknownMethod as error:
            raise AmqpError(COMMAND_INVALID, str(error)) from error
        except MalformedMethod as error:
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
            try:
                found.method(payload)
            except (AmqpError, OpenQError) as error:
                self._channel_failed(found, error, payload)

    def begin_publish(self, channel: int, payload: bytes) -> bool:
        found = self._channel(channel, payload)
        return found is not None and not found.is_closing

    def publish(
        self, channel: int, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> None:
        found = self._channel(channel, method)
        if found is not None:
            try:
                found.publish(method, all_properties, bodies)
            except (AmqpError, OpenQError) as error:
                self._channel_failed(found, error, method)

    def ack(self, channel: int, tags: list[int]) -> None:
        found = self.channels.get(channel)
        if found is None:
            self._channel(channel, _ACK_METHOD)
            return
        try:
            found.ack(tags)
        except (AmqpError, OpenQError) as error:
            self._channel_failed(found, error, _ACK_METHOD)

    def refuse_content(self, channel: int, error: AmqpError) -> None:
        found = self.channels.get(channel)
        if found is not None and not found.is_closing:
            self.end_channel(found, error, _PUBLISH_METHOD)

    def heartbeat(self) -> None:
        """The socket has noted the time already."""

    def send_heartbeat(self) -> None:
        if self.state in (OPENING, RUNNING):
            self.out.append(HEARTBEAT)
            self.flush()

    # -- connection methods

    def _connection_method(self, method: m.Method) -> None:
        if self.state == CLOSING:
            if isinstance(method, m.ConnectionCloseOk):
                self.close_now()
            elif isinstance(method, m.ConnectionClose):
                self.send(0, m.ConnectionCloseOk())
        elif self._handshake is not None:
            self._handshake.method(method)
        elif isinstance(method, m.ConnectionClose):
            self.release()
            self.send(0, m.ConnectionCloseOk())
            self._finish_close()
        elif isinstance(method, m.ConnectionUpdateSecret):
            self.send(0, m.ConnectionUpdateSecretOk())  # logins do not expire during a connection
        else:
            raise AmqpError(CHANNEL_ERROR, "unexpected method in connection state running")

    def handshake_done(self) -> None:
        self.state = RUNNING
        self._handshake = None  # they reference each other

    def client_supports(self, capability: str) -> bool:
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    # -- channels

    def _channel(self, number: int, payload: bytes) -> AmqpChannel | None:
        """The channel of a method; None if the method opened it, or is to be ignored."""
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

    def _channel_failed(self, channel: AmqpChannel, error: AmqpError | OpenQError, payload: bytes) -> None:
        self.end_channel(channel, error if isinstance(error, AmqpError) else from_openq(error), payload)

    def end_channel(self, channel: AmqpChannel, error: AmqpError, payload: bytes = b"") -> None:
        if error.ends_connection:
            self.fail(error, payload)
            return
        channel.release()
        self.reader.skip_content(channel.number)
        class_id, method_id = _method_ids(payload)
        self.last_error = error.reply_text
        self.send(channel.number, m.ChannelClose(error.code, error.reply_text, class_id, method_id))
        self.server.count_error(error.code)

    def drop_channel(self, channel: AmqpChannel) -> None:
        self.channels.pop(channel.number, None)
        self.reader.discard_channel(channel.number)

    # -- memory

    def add_transaction_bytes(self, more: int) -> None:
        """Bytes that transactions hold until they are committed; negative when they are released."""
        self._transaction_bytes += more
        if more:
            self.report_buffered()
        limit = 2 * (self.server.max_body + MAX_FRAME)  # twice the largest message with its properties
        if more > 0 and self._transaction_bytes > limit:
            raise AmqpError(RESOURCE_ERROR, f"transactions hold more than {limit} bytes; commit earlier")

    def release_arguments(self, consumers: Iterable[AmqpConsumer]) -> None:
        size = sum(len(each.arguments) for each in consumers)
        self.argument_bytes -= size
        if size and self._reported_bytes:
            self.report_buffered()

    # -- a full disk

    def block_publish(self, publisher: ChannelPublisher, run: PublishRun) -> None:
        """Keep a publish without confirms, and read nothing more, until there is space for it."""
        self._blocked_publish = publisher, run
        self.pause()
        self.report_buffered()

    @property
    def has_blocked_publish(self) -> bool:
        return self._blocked_publish is not None and self.state != CLOSED

    def retry_blocked_publish(self) -> None:
        """Called when the disk may have space again."""
        if self._blocked_publish is None or self.state == CLOSED:
            return
        publisher, blocked = self._blocked_publish
        self._blocked_publish = None
        rest: PublishRun | None = None

        def work() -> None:
            nonlocal rest
            try:
                rest = publisher.retry(blocked)
            except (AmqpError, OpenQError) as error:
                channel = self.channels.get(publisher.channel_number)
                if channel is not None:
                    self._channel_failed(channel, error, blocked.method)

        self.run(work)
        if rest is not None:
            self._blocked_publish = publisher, rest
            self.server.disk_alarm.raise_()  # it may have been cleared during the attempt
            return
        self.report_buffered()
        self.resume()  # later publishes may be blocked in turn

    def notify_blocked(self, reason: str | None) -> None:
        """Send connection.blocked, or connection.unblocked if `reason` is None."""
        if self.state != RUNNING or not self.client_supports("connection.blocked"):
            return
        if reason is not None and not self.is_blocked:
            self.is_blocked = True
            self.send(0, m.ConnectionBlocked(reason))
        elif reason is None and self.is_blocked:
            self.is_blocked = False
            self.send(0, m.ConnectionUnblocked())
        self.flush_soon()

    # -- closing

    def fail(self, error: AmqpError, payload: bytes = b"") -> None:
        """Send connection.close and wait for the client's close-ok."""
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
        self.run_in_order(self.run, partial(self.fail, AmqpError(code, text)))

    def release(self) -> None:
        """Close all channels, requeue their messages and delete the exclusive queues."""
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.release()
        self.topology.delete_exclusive_queues(self)

    def _finish_close(self) -> None:
        """Send the last frame, then read and discard until the client closes the socket.

        Closing with unread input would reset the socket, and the client might lose the last frame: amqplib
        sends `close` ahead of other data.
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
        self.state = CLOSED
        self.out = []
        self.reader.close()
        self._blocked_publish = None
        self.release()
        self._dispatch()
        self.to_confirm = {}
        self.transport = CLOSED_TRANSPORT
        self._handshake = None
        if self.vhost:  # the handshake was completed
            self.publisher.clear_cache()
        if self._reported_bytes:
            self._reported_bytes = 0
            self.context.buffers.hold(self, 0)


def _method_ids(payload: bytes) -> tuple[int, int]:
    """Class and method id, for the close method that answers it."""
    if len(payload) < 4:
        return 0, 0
    return int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
