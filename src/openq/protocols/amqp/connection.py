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

from ...broker.batches import is_batch
from ...errors import OpenQError
from ...properties import MalformedProperties, decode_table
from ...security.errors import Refused
from ...security.guard import Principal
from ..buffers import SMALL
from . import methods as m
from .arguments import shown, vhost_of
from .channel import Channel
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
from .frames import FRAME_MIN, HEARTBEAT, Reader, method_frame
from .outlet import Consumer, Outlet
from .publishing import Publisher, size_of_publishes
from .turns import Turns, at_once

if TYPE_CHECKING:
    from .door import AmqpDoor

log = logging.getLogger("openq.amqp")

PROTOCOL = b"AMQP\x00\x00\x09\x01"
OLD_PROTOCOL = b"AMQP\x01\x01\x00\x09"  # of 0-9, which is the same on the wire
FIRST_FRAME = 8192  # before login nobody needs more
# Where a connection is.
GREETING, STARTING, CHECKING, TUNING, OPENING, RUNNING, CLOSING, CLOSED = range(8)


class Transport(Protocol):
    @property
    def is_overfull(self) -> bool: ...
    @property
    def unsent(self) -> int: ...
    def write(self, data: bytes) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class _Gone:
    """Instead of a transport that is gone: it and the connection pointed at each other."""

    is_overfull = False
    unsent = 0

    def write(self, data: bytes) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


_GONE = _Gone()


class Connection:
    """`peer` is the client's address; `certified` the name in its certificate, if it showed one."""

    protocol = "amqp"

    def __init__(
        self, door: AmqpDoor, transport: Transport, peer: str, port: int, certified: str | None, is_tls: bool
    ) -> None:
        self.door = door
        self.site = door.site
        self.broker = door.site.broker
        self.topology = door.topology
        self.transport = transport
        self.peer = peer
        self.port = port
        self.local = ("", 0)  # this server's end; told by the door
        self.certified = certified
        self.is_tls = is_tls
        self.token = os.urandom(12).hex()
        self.stage = GREETING
        self.opened_ms = door.site.now_ms()
        self.max_frame = FIRST_FRAME
        self.max_channels = door.max_channels
        self.heartbeat_s = 0
        self.heard_s = 0.0  # when the client was last heard of; kept by the door
        self.client_properties: dict[str, Any] = {}
        self.mechanism = ""
        self.user = ""
        self.principal: Principal | None = None
        self.is_guest = False  # let in because nobody had to sign in
        self.vhost = ""
        self.account = ""
        self.label = peer
        self.publisher: Publisher  # from `_open` on
        self.channels: dict[int, Channel] = {}
        self.out: list[bytes] = []
        self.can_write = True
        self.is_stalled = False  # its answers are not taken, so it is not read on
        self.is_told_blocked = False
        self.sent = 0
        self.argument_bytes = 0  # of its consumers: kept, encoded, to be shown
        # What is to be done when everything that was read has been looked at; dicts keep the order.
        self.to_confirm: dict[Channel, None] = {}
        self.to_pump: dict[Outlet, None] = {}
        self.in_turn: Callable[..., None] = Turns(door.site.enter).take if self.broker.waits else at_once
        self.reader = Reader(self, FIRST_FRAME, door.max_body)
        self._greeting = b""
        self._held_bytes = 0  # by transactions
        self._reported = 0  # see `report`
        self._is_busy = False
        self._is_flushing = False
        self._held: tuple[Channel, bytes, bytes | list[bytes], list[bytes]] | None = None

    # -- bytes

    def data(self, data: bytes) -> None:
        if self.stage == GREETING:
            data = self._greet(data)
        if data and self.stage != CLOSED:
            self._work(partial(self.reader.feed, data))
            if self._reported or self.reader.unfinished > SMALL:
                self.report()

    def report(self) -> None:
        """How much is kept here for this client; all connections together have a ceiling."""
        size = self.reader.unfinished + self._held_bytes
        if self.argument_bytes > SMALL:
            size += self.argument_bytes
        if self._held is not None:
            _, method, wires, bodies = self._held
            size += size_of_publishes(method, wires, bodies)
        unsent = self.transport.unsent
        if unsent > SMALL:
            size += unsent
        if size != self._reported:
            self._reported = size
            self.site.buffers.hold(self, size)

    def shed(self) -> None:
        """Of all connections this one makes the server hold most, and that is too much."""
        self._reported = 0
        if self.stage == RUNNING and self.can_write:
            self.reader.end()
            text = "clients make this server hold too many bytes of unfinished messages; try again later"
            self.in_turn(self._work, partial(self.fail, AmqpError(RESOURCE_ERROR, text)))
        else:
            self.transport.abort()

    def _work(self, work: Callable[[], None]) -> None:
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
        self.settle()

    def settle(self) -> None:
        """One confirm, one hand-out and one write for everything that was read."""
        if self.to_confirm:
            tags = [(channel, channel.published) for channel in self.to_confirm]
            self.to_confirm = {}
            self.site.after_commit(partial(self._safe, tags))
        self._pump()
        self.flush()

    def _pump(self) -> None:
        while self.to_pump:
            outlets, self.to_pump = self.to_pump, {}
            for outlet in outlets:
                self.site.enter(outlet.pump)

    def _safe(self, tags: list[tuple[Channel, int]], error: OpenQError | None) -> None:
        for channel, tag in tags:
            channel.safe_up_to(tag, error)
        self.flush()

    def flush(self) -> None:
        out = self.out
        if out:
            self.out = []
            if self.stage != CLOSED:
                data = b"".join(out)
                self.sent += len(data)
                self.transport.write(data)

    def flush_soon(self) -> None:
        """For what is written outside of `_work`: one write for all that this turn of the loop brings."""
        if not self._is_busy and not self._is_flushing:
            self._is_flushing = True
            self.site.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def send(self, channel: int, method: m.Method) -> None:
        self.out.append(method_frame(channel, m.encode(method)))

    def hold(self) -> None:
        """Read no further until `go_on`: an answer is due first."""
        self.reader.held = True
        self.transport.pause_reading()

    def ease(self) -> None:
        """After an answer much larger than the question: no more questions until the client took it."""
        self.flush()
        if not self.can_write and not self.is_stalled and self.stage == RUNNING:
            self.is_stalled = True
            self.hold()

    def take_more(self) -> None:
        """The client takes what is written again."""
        self.can_write = True
        for channel in self.channels.values():
            channel.pump()
        self.settle()
        if self.is_stalled:
            self.is_stalled = False
            self.go_on()

    def go_on(self) -> None:
        if self.stage == CLOSED or self.is_stalled or self._held is not None:
            return  # there is another reason to wait
        self.reader.held = False
        self._work(self.reader.resume)
        if not self.reader.held:
            self.transport.resume_reading()

    def answer_when_safe(
        self, channel: Channel | None, answer: Callable[[], None], lost: Callable[[], None] | None = None
    ) -> None:
        """Answer once everything done so far is on disk, and read nothing before that."""
        is_late = is_done = False

        def committed(error: OpenQError | None) -> None:
            nonlocal is_done
            is_done = True
            if is_late:
                self.in_turn(finish, error)
            else:
                finish(error)

        def finish(error: OpenQError | None) -> None:
            if self.stage == CLOSED or (channel is not None and channel.is_closing):
                if lost is not None:
                    lost()
            elif error is not None:
                self.fail(from_openq(error))
                self.flush()
            elif is_late:
                self._work(answer)
            else:
                answer()
            if is_late:
                self.go_on()

        self.site.after_commit(committed)
        if not is_done:
            is_late = True
            self.hold()

    # -- the handshake

    def _greet(self, data: bytes) -> bytes:
        self._greeting += data
        if len(self._greeting) < len(PROTOCOL) and any(
            each.startswith(self._greeting) for each in (PROTOCOL, OLD_PROTOCOL)
        ):
            return b""
        if not self._greeting.startswith((PROTOCOL, OLD_PROTOCOL)):
            # What this server speaks, for a client that can use it; then the end, as the standard says.
            self.transport.write(PROTOCOL)
            self.close_now()
            return b""
        rest = self._greeting[len(PROTOCOL) :]
        self._greeting = b""
        self.stage = STARTING
        self.send(0, self.door.start_method(self.certified is not None))
        self.flush()
        return rest

    def _control(self, method: m.Method) -> None:
        """On channel 0."""
        if self.stage == CLOSING:
            if isinstance(method, m.ConnectionCloseOk):
                self.close_now()
            elif isinstance(method, m.ConnectionClose):
                self.send(0, m.ConnectionCloseOk())
            return
        if self.stage == STARTING and isinstance(method, m.ConnectionStartOk):
            self._sign_in(method)
        elif self.stage == TUNING and isinstance(method, m.ConnectionTuneOk):
            self._tune(method)
        elif self.stage == OPENING and isinstance(method, m.ConnectionOpen):
            self._open(method)
        elif self.stage == RUNNING and isinstance(method, m.ConnectionClose):
            self.release()
            self.send(0, m.ConnectionCloseOk())
            self._part()
        elif self.stage == RUNNING and isinstance(method, m.ConnectionUpdateSecret):
            self._update_secret(method)
        else:
            state = "running" if self.stage == RUNNING else "opening"
            raise AmqpError(CHANNEL_ERROR, f"unexpected method in connection state {state}")

    def _sign_in(self, method: m.ConnectionStartOk) -> None:
        self.client_properties = method.client_properties
        self.mechanism = method.mechanism
        name = method.client_properties.get("connection_name")
        self.label = _label(name) if isinstance(name, str) and name else f"{self.peer}:{self.port}"
        try:
            user, password = self._credentials(method.mechanism, method.response)
        except (ValueError, MalformedProperties):
            raise AmqpError(SYNTAX_ERROR, f"a response that {method.mechanism} does not have") from None
        self.user = user
        self.stage = CHECKING
        if method.mechanism == "EXTERNAL":
            self._signed_in(self.door.certified_user(user), None)
            return
        known = self.door.recall(user, password, self.peer)
        if known is not None:
            self._signed_in(known, None)
            return
        self.hold()
        self.site.check(partial(self.door.check_password, user, password, self.peer), self._checked)

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
        if mechanism == "EXTERNAL" and self.certified is not None:
            return self.certified, ""
        raise AmqpError(NOT_ALLOWED, f"unknown authentication mechanism '{mechanism[:40]}'")

    def _checked(self, principal: Principal | None, error: BaseException | None) -> None:
        self.in_turn(self._let_in, principal, error)

    def _let_in(self, principal: Principal | None, error: BaseException | None) -> None:
        if self.stage != CHECKING:
            return
        if error is not None and not isinstance(error, Refused):
            log.error("could not check a password: %s", error)
        self._work(partial(self._signed_in, principal, error))
        self.go_on()

    def _signed_in(self, principal: Principal | None, error: BaseException | None) -> None:
        if principal is None:
            log.warning("AMQP login of user %r from %s refused", self.user, self.peer)
            text = f"Login was refused using authentication mechanism {self.mechanism}. "
            refusal = AmqpError(ACCESS_REFUSED, text + "For details see the broker logfile.")
            if self.is_capable("authentication_failure_close"):
                refusal.ends_connection = True
                raise refusal
            self.flush()
            self.close_now()
            return
        self.principal = principal
        self.is_guest = self.site.guard.is_open
        self.stage = TUNING
        self.send(0, m.ConnectionTune(self.max_channels, self.door.max_frame, self.door.heartbeat_s))

    def is_capable(self, name: str) -> bool:
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def _tune(self, method: m.ConnectionTuneOk) -> None:
        frame = method.frame_max or self.door.max_frame
        if not FRAME_MIN <= frame <= self.door.max_frame:
            raise AmqpError(
                NOT_ALLOWED,
                f"negotiated frame_max = {frame} is lower than the minimum allowed value ({FRAME_MIN})"
                if frame < FRAME_MIN
                else f"negotiated frame_max = {frame} is higher than the maximum allowed value "
                f"({self.door.max_frame})",
            )
        channels = method.channel_max or self.door.max_channels
        if channels > self.door.max_channels:
            raise AmqpError(
                NOT_ALLOWED,
                f"negotiated channel_max = {method.channel_max} is higher than the maximum allowed value "
                f"({self.door.max_channels})",
            )
        self.max_frame = frame
        self.max_channels = channels
        self.reader.limit_frames(frame)
        self.heartbeat_s = method.heartbeat
        self.door.watch(self)
        self.stage = OPENING

    def _open(self, method: m.ConnectionOpen) -> None:
        vhost = method.virtual_host
        if not self.topology.vhost_exists(vhost):
            raise AmqpError(NOT_ALLOWED, f"vhost {vhost} not found")
        account = self.topology.account_of(vhost)
        assert self.principal is not None
        self.principal = self.door.principal_in(self.principal, account)
        if self.principal is None:
            raise AmqpError(NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{self.user}'")
        self.vhost = vhost_of(account)  # by its one name
        self.account = account
        self.publisher = Publisher(self.site, self.topology, vhost, account, self.user, self.door.kept)
        self.stage = RUNNING
        self.send(0, m.ConnectionOpenOk())
        self.door.opened(self)

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
        if self.stage == CLOSED:
            return
        if not channel:
            try:
                self._control(self.decode(payload))
            except AmqpError as error:
                self.fail(error, payload)
            return
        found = self._channel(channel, payload)
        if found is not None:
            self._on_channel(found, payload, partial(found.method, payload))

    def _channel(self, number: int, payload: bytes) -> Channel | None:
        """The channel for this method; None if it was opened by it, or nothing is to be done."""
        if self.stage == CLOSING:
            return None
        if self.stage != RUNNING:
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
            self.channels[number] = Channel(self, number)
            self.send(number, m.ChannelOpenOk())
            return None
        raise AmqpError(CHANNEL_ERROR, "expected 'channel.open'", payload=payload)

    def _on_channel(self, channel: Channel, payload: bytes, work: Callable[[], None]) -> None:
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

    def end_channel(self, channel: Channel, error: AmqpError, payload: bytes = b"") -> None:
        if error.ends_connection:
            self.fail(error, payload)
            return
        channel.release()
        self.reader.pass_over(channel.number)
        class_id, method_id = _ids(payload)
        self.send(channel.number, m.ChannelClose(error.code, error.reply_text, class_id, method_id))
        self.door.count_error(error.code)

    def drop_channel(self, channel: Channel) -> None:
        self.channels.pop(channel.number, None)
        self.reader.forget_channel(channel.number)

    def begins(self, channel: int, payload: bytes) -> bool:
        found = self._channel(channel, payload)
        return found is not None and not found.is_closing

    def publishes(self, channel: int, method: bytes, wires: bytes | list[bytes], bodies: list[bytes]) -> None:
        found = self._channel(channel, method)
        if found is not None:
            self._on_channel(found, method, partial(found.publishes, method, wires, bodies))

    def acks(self, channel: int, tags: list[int]) -> None:
        found = self.channels.get(channel)
        if found is None:
            self._channel(channel, _ACK)
            return
        self._on_channel(found, _ACK, partial(found.acks, tags))

    def refuse_content(self, channel: int, error: AmqpError) -> None:
        found = self.channels.get(channel)
        if found is not None and not found.is_closing:
            self.end_channel(found, error, _PUBLISH)

    def heartbeat(self) -> None:
        """That something came is all it says, and the door knows that already."""

    def beat(self) -> None:
        if self.stage in (OPENING, RUNNING):
            self.out.append(HEARTBEAT)
            self.flush()

    # -- permissions

    def _signed(self) -> Principal:
        assert self.principal is not None
        return self.principal

    def require(self, action: str, kind: str, name: str, of_exchange: str | None = None) -> None:
        assert self.principal is not None
        if self.principal.is_root and self.door.is_own(self.principal, self.account, kind, name):
            return
        if not self.door.may(self, action, kind, name):
            if of_exchange is not None:
                kind, name = "exchange", of_exchange
            raise AmqpError(
                ACCESS_REFUSED,
                f"access to {kind} '{name}' in vhost '{self.vhost}' refused for user '{self.user}'",
            )

    def require_onward(self, exchange: object, key: object) -> None:
        """For messages that are to go on from here by themselves: dead letters, and those with no queue."""
        if not isinstance(exchange, str | bytes):
            return
        name = shown(exchange)
        if name:
            self.require("send", "exchange", name)
        elif isinstance(key, str | bytes):
            self.require("send", "queue", shown(key))
        elif not self.site.guard.may_everywhere(self._signed(), "send", self.account):
            # Whatever key a message comes with names the queue it goes to.
            raise AmqpError(
                ACCESS_REFUSED,
                f"access to exchange 'amq.default' in vhost '{self.vhost}' refused for user '{self.user}'",
            )

    def hold_bytes(self, more: int) -> None:
        """What transactions hold in memory until they are committed; negative when they let go."""
        self._held_bytes += more
        if more:
            self.report()
        most = 2 * (
            self.door.max_body + self.door.max_frame
        )  # the largest message, with its properties, twice
        if more > 0 and self._held_bytes > most:
            raise AmqpError(RESOURCE_ERROR, f"transactions hold more than {most} bytes; commit earlier")

    def let_go_of_arguments(self, consumers: Iterable[Consumer]) -> None:
        size = sum(len(each.arguments) for each in consumers)
        self.argument_bytes -= size
        if size and self._reported:
            self.report()

    # -- a full disk

    def hold_publishes(
        self, channel: Channel, method: bytes, wires: bytes | list[bytes], bodies: list[bytes]
    ) -> None:
        self._held = (channel, method, wires, bodies)
        self.hold()
        self.report()

    @property
    def holds_back(self) -> bool:
        """Publishes for which there was no room."""
        return self._held is not None and self.stage != CLOSED

    def try_held(self) -> None:
        """There may be room again."""
        if self._held is None or self.stage == CLOSED:
            return
        channel, method, wires, bodies = self._held
        self._held = None
        done = len(bodies)

        def work() -> None:
            nonlocal done
            if not channel.is_closing:
                done = channel.try_again(method, wires, bodies)

        self._work(lambda: self._on_channel(channel, method, work))
        if done < len(bodies):
            rest = wires if isinstance(wires, bytes) else wires[done:]
            self._held = channel, method, rest, bodies[done:]
            self.door.disk_is_full()  # it may have been taken for over while this was tried
            return
        self.report()
        self.go_on()  # what came behind it may be held back in its turn

    def tell_blocked(self, reason: str | None) -> None:
        """`reason` None: no more."""
        if self.stage != RUNNING or not self.is_capable("connection.blocked"):
            return
        if reason is not None and not self.is_told_blocked:
            self.is_told_blocked = True
            self.send(0, m.ConnectionBlocked(reason))
        elif reason is None and self.is_told_blocked:
            self.is_told_blocked = False
            self.send(0, m.ConnectionUnblocked())
        self.flush_soon()

    # -- the end

    def fail(self, error: AmqpError, payload: bytes = b"") -> None:
        """Tell why, and wait for the client to have heard it."""
        if self.stage in (CLOSING, CLOSED):
            return
        self._held = None
        if self.stage < OPENING and error.code != ACCESS_REFUSED:
            log.info("connection from %s refused: %r", self.peer, error.reply_text)
            self.close_now()
            return
        self.release()
        class_id, method_id = _ids(payload or error.payload)
        self.stage = CLOSING
        self.send(0, m.ConnectionClose(error.code, error.reply_text, class_id, method_id))
        self.door.count_error(error.code)
        log.info("connection %s ends: %r", self.label, error.reply_text)
        self.door.closing(self)
        self.reader.end()
        if self.reader.held:
            self.reader.held = False
            self.transport.resume_reading()

    def stop(self) -> None:
        """The server stops."""
        self.end(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")

    def end(self, code: int, text: str) -> None:
        self.in_turn(self._work, partial(self.fail, AmqpError(code, text)))

    def release(self) -> None:
        """Everything that it held goes back."""
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.release()
        self.door.released(self)

    def _part(self) -> None:
        """After the last word. What a client still had in hand is read and dropped until it hangs up, too:
        to close on it would take the last word from it (amqplib sends `close` past what waits elsewhere).
        """
        self.flush()
        self.stage = CLOSED
        self.door.closing(self)
        self.transport.finish()

    def close_now(self) -> None:
        if self.stage != CLOSED:
            self.flush()
            self.stage = CLOSED
            self.transport.close()

    def lost(self) -> None:
        """The socket is gone."""
        self.stage = CLOSED
        self.out = []
        self.reader.close()
        self._held = None
        self.release()
        self._pump()
        self.to_confirm = {}
        self.transport = _GONE
        if self.vhost:  # it was opened
            self.publisher.forget()
        if self._reported:
            self._reported = 0
            self.site.buffers.hold(self, 0)


def _label(name: str) -> str:
    """What a client calls itself, fit for a line of the log."""
    label = "".join(char if char.isprintable() else "?" for char in name[:100])
    return f"amqp:{label}" if is_batch(label) else label


_ACK = b"\x00\x3c\x00\x50" + bytes(9)
_PUBLISH = b"\x00\x3c\x00\x28"


def _ids(payload: bytes) -> tuple[int, int]:
    """Class and method of what went wrong."""
    if len(payload) < 4:
        return 0, 0
    return int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
