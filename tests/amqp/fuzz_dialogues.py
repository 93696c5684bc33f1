"""Hostile dialogues for the AMQP server, repeatable by seed: `python -m tests.amqp.fuzz_dialogues`.

A whole server without sockets, and several clients at once that say anything a client can say, in any
order, and then bytes that nobody should say. Whatever comes in: no 541, nothing logged as an error, every
frame that comes out can be read by another codec, nobody waits for ever, and nothing is left of a connection
that ended. `--atheris FOLDER` lets coverage lead the way, from the seeds beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openq.amqp.transport import AmqpSocket
from openq.config import Config
from openq.errors import OpenQError
from openq.local.broker import LocalBroker
from openq.server.app import Server
from tests.amqp.dialogue_codec import (
    BODY,
    HEADER,
    METHOD,
    METHODS_BY_NAME,
    PROTOCOL_HEADER,
    content,
    decode_method,
    decode_properties,
    encode_method,
    frame,
)
from tests.server.fuzz import resident_bytes
from tests.server.fuzz_connection import FuzzFailure, Logged, MemoryTransport
from tests.server.fuzz_framing import pieces_of

SEEDS = Path(__file__).with_name("seeds")
TIMEOUT_S = 60.0  # only a failure waits as long
TURNS = 20
MAX_FRAME = 131_072


class FakeTransport(MemoryTransport):
    """The other end; `is_deaf`: it takes nothing that is written to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.is_deaf = False
        self._is_full = False

    @property
    def socket(self) -> AmqpSocket:
        assert isinstance(self.protocol, AmqpSocket)
        return self.protocol

    def write(self, data: Any) -> None:
        if self.closed:
            return  # as a socket does
        super().write(data)
        if self.is_deaf and not self._is_full:
            self._is_full = True
            self.socket.pause_writing()

    def listen(self) -> None:
        self.is_deaf = False
        if self._is_full and not self.closed:
            self._is_full = False
            self.socket.resume_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self.is_deaf else 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass


def frames_in(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Raises Found if those are not frames."""
    if data.startswith(b"AMQP"):
        if data != PROTOCOL_HEADER:
            raise FuzzFailure(f"something after the protocol header: {data[:100]!r}")
        return
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise FuzzFailure(f"half a frame: {data[at:]!r}")
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        payload = data[at + 7 : at + 7 + size]
        if len(payload) != size or data[at + 7 + size : at + 8 + size] != b"\xce" or size > MAX_FRAME - 8:
            raise FuzzFailure(f"not a frame: {data[at : at + 100]!r}")
        yield kind, channel, payload
        at += 8 + size


def read_answers(data: bytes) -> list[str]:
    """The names of all methods; raises Found for what a client cannot read."""
    names: list[str] = []
    expected: dict[int, int] = {}  # bytes of content to come, by channel; -1: its header
    for kind, channel, payload in frames_in(data):
        try:
            if kind == METHOD:
                if channel in expected:
                    raise FuzzFailure("a method in the middle of a content")
                name, fields = decode_method(payload)
                names.append(name)
                if name in ("basic.return", "basic.deliver", "basic.get-ok"):
                    expected[channel] = -1
                if name in ("connection.close", "channel.close") and fields["reply_code"] == 541:
                    raise FuzzFailure(f"541: {fields}")
            elif kind == HEADER:
                if expected.pop(channel, 0) != -1:
                    raise FuzzFailure("a content header that nobody announced")
                size = struct.unpack_from(">Q", payload, 4)[0]
                try:
                    decode_properties(payload[12:])
                except UnicodeDecodeError:
                    pass  # carried as it came
                if size:
                    expected[channel] = size
            elif kind == BODY:
                left = expected.pop(channel, 0) - len(payload)
                if left < 0:
                    raise FuzzFailure("more body than announced")
                if left:
                    expected[channel] = left
            elif payload or channel:
                raise FuzzFailure(f"frame type {kind} with {payload[:50]!r}")
        except (AssertionError, LookupError, struct.error, UnicodeDecodeError) as error:
            raise FuzzFailure(f"{error!r} in {payload[:200]!r}") from error
    if expected:
        raise FuzzFailure("half a content")
    return names


class FuzzServer:
    """A server fed by hand: in memory, or with a journal in `path`."""

    def __init__(self, path: Path | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        kept = {"history_bytes": 1 << 16}
        self.broker = LocalBroker(**kept) if path is None else LocalBroker(path, **kept)  # type: ignore[arg-type]
        config = Config(memory=True, limits="testing", max_message_bytes=1 << 20)
        self.server = Server(config, self.broker, self.loop)
        self.amqp_server = self.server.amqp
        self.amqp_server.start()
        self.logged = Logged()
        log = logging.getLogger("openq")
        log.addHandler(self.logged)
        self._level = log.level
        log.setLevel(logging.INFO)

    def close(self) -> None:
        log = logging.getLogger("openq")
        log.removeHandler(self.logged)
        log.setLevel(self._level)
        self.amqp_server.stop()
        self.server.context.close()
        self.broker.close()
        self.loop.close()

    def __enter__(self) -> FuzzServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def connect(self) -> FakeTransport:
        wire = FakeTransport(self.loop)
        wire.protocol = self.amqp_server.protocol()  # type: ignore[assignment]
        wire.socket.connection_made(wire)
        return wire

    def feed(self, wire: FakeTransport, data: bytes) -> None:
        """Once it is listened to, as a socket would."""
        self.settle(lambda: wire.reading or wire.is_deaf or wire.closed)
        if not wire.closed and wire.reading:
            wire.socket.data_received(data)

    def settle(self, done: Any) -> None:
        until = time.monotonic() + TIMEOUT_S
        turns = 0
        while not done():
            self.turn()
            turns += 1
            if turns > TURNS:
                time.sleep(0.0005)  # a thread of the server works
            if time.monotonic() > until:
                raise FuzzFailure("a client is not listened to any more")

    def finish(self, wires: Sequence[FakeTransport]) -> list[list[str]]:
        """Close all. Returns what each received; raises FuzzFailure if anything is left of them."""
        for wire in wires:
            wire.listen()
        for wire in wires:
            self.settle(lambda wire=wire: wire.reading or wire.closed)
        self._settle_commits()
        for wire in wires:
            if not wire.closed:
                wire.close()
        self.turn()
        self.turn()
        self._settle_commits()
        self.turn()
        received = [read_answers(wire.written) for wire in wires]
        self._check()
        return received

    def _settle_commits(self) -> None:
        done: list[object] = []
        self.server.context.after_commit(done.append)
        self.settle(lambda: bool(done))

    def _check(self) -> None:
        if self.logged.errors:
            errors, self.logged.errors = self.logged.errors, []
            raise FuzzFailure(f"logged: {errors}")
        amqp_server = self.amqp_server
        queues = self.broker.engine.queues
        left = {
            "connections": list(amqp_server.open_connections),
            "dispatchers": [each.queue_key for each in amqp_server.dispatchers],
            "deliveries": not amqp_server.dispatchers.is_idle,
            "replies": len(amqp_server.replies),
            "leases": [name for name, queue in queues.items() if queue.leases],
            "watched": [name for name, queue in queues.items() if queue.watched],
        }
        if any(left.values()):
            for each in amqp_server.dispatchers:  # reported once
                amqp_server.dispatchers.remove_dispatcher(each)
            raise FuzzFailure(f"left of connections that ended: {[(k, v) for k, v in left.items() if v]}")

    def tidy(self) -> None:
        for name in list(self.broker.queues()):
            try:
                self.broker.delete(name)
            except OpenQError:
                pass
        for exchange in self.broker.engine.router.exchanges():
            try:
                self.broker.exchanges.delete_exchange(exchange.name)
            except OpenQError:
                pass


# -- what clients say ------------------------------------------------------------------------------

RARELY = 0.03  # how often something is said that cannot be right

_GOOD: dict[str, Sequence[Any]] = {
    "queue": ("q", "q", "q", "r", "s"),
    "exchange": ("", "", "", "x", "x", "amq.topic", "amq.fanout", "amq.headers", "delayed"),
    "source": ("x", "amq.topic", "amq.fanout", "amq.direct"),
    "destination": ("x", "amq.topic", "y"),
    "routing_key": ("q", "q", "q", "r", "s", "#", "a.*", "a.b", ""),
    "type": ("direct", "fanout", "topic", "headers", "x-delayed-message"),
    "consumer_tag": ("", "", "", "c", "d"),
    "virtual_host": ("/",),
    "mechanism": ("PLAIN", "AMQPLAIN"),
    "delivery_tag": (1, 2),
    "prefetch_count": (0, 1, 2, 100),
    "prefetch_size": (0,),
    "frame_max": (0, 4096, 131_072),
}
_BAD: dict[str, Sequence[Any]] = {
    "queue": ("", "amq.gen-x", "amq.rabbitmq.reply-to", "x" * 255, "grün"),
    "exchange": ("nowhere", "amq.rabbitmq.trace", "x" * 255),
    "source": ("", "nowhere"),
    "destination": ("", "nowhere"),
    "routing_key": ("amq.rabbitmq.reply-to", "amq.rabbitmq.reply-to.x", "#.#.#", "x" * 255),
    "type": ("nonsense", ""),
    "consumer_tag": ("x" * 255,),
    "virtual_host": ("nowhere",),
    "mechanism": ("EXTERNAL", "x"),
    "delivery_tag": (0, 9, 1 << 63),
    "prefetch_count": (65_535,),
    "prefetch_size": (1,),
    "frame_max": (1, 1 << 31),
}
_ARGUMENTS: dict[str, tuple[dict[str, Any], ...]] = {
    "queue.declare": (
        {},
        {},
        {"x-max-length": 2},
        {"x-max-length": 1, "x-overflow": "reject-publish"},
        {"x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "x"},
        {"x-max-length-bytes": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s"},
        {"x-message-ttl": 0},
        {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "r"},
        {"x-expires": 1000},
        {"x-max-priority": 5},
        {"x-single-active-consumer": True},
        {"x-queue-type": "quorum", "x-delivery-limit": 1},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"},
    ),
    "exchange.declare": ({}, {}, {"alternate-exchange": "y"}),
    "queue.bind": ({}, {}, {"x-match": "any", "a": 1}, {"x-match": "all", "a": 1}),
    "basic.consume": ({}, {}, {"x-priority": 3}, {"x-priority": -3}),
}
_BAD_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"x-queue-type": "stream"},
    {"x-dead-letter-exchange": 5},
    {"x-match": "nonsense"},
    {"x-max-length": -1},
    {"x-message-ttl": {"!l": 1 << 62}},
    {"x-priority": "high"},
    {"x-unknown": [1, {"deep": [{}]}]},
)
_PROPERTIES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"delivery_mode": 2},
    {"priority": 9},
    {"expiration": "0"},
    {"expiration": "1"},
    {"user_id": "guest"},
    {"type": "t", "message_id": "m", "correlation_id": "c", "timestamp": 1 << 63},
    {"headers": {"CC": ["r", "s"], "BCC": ["q"]}},
    {"headers": {"x-delay": 1, "openq.delay": 1}},
    {"headers": {"x-delay": -1, "openq.delay": "no"}},
    {"headers": {"x-group-id": "g", "x-deduplication-header": "d"}},
    {"headers": {"x-death": [{"count": "many"}], "x-first-death-queue": 5, "a": 1}},
    {"headers": {"x-death": "none", "a": {"!x": "ff00"}, "b": {"!T": 1 << 40}, "c": {"!V": None}}},
)
_BAD_PROPERTIES: tuple[dict[str, Any], ...] = (
    {"delivery_mode": 7},
    {"expiration": "x"},
    {"expiration": "99999999999999999999"},
    {"reply_to": "amq.rabbitmq.reply-to"},
    {"user_id": "other"},
    {"headers": {"CC": 5}},
)
_COMMON = (
    *("basic.publish",) * 12,
    *("basic.consume",) * 4,
    *("basic.ack",) * 6,
    *("basic.nack", "basic.reject") * 2,
    *("basic.get",) * 3,
    *("basic.qos", "basic.cancel", "queue.declare", "queue.bind", "queue.unbind", "queue.delete"),
    *("queue.purge", "exchange.declare", "exchange.delete", "exchange.bind", "confirm.select"),
    *("tx.select", "channel.close", "channel.flow", "basic.recover"),
)
_ALL = tuple(METHODS_BY_NAME)
_BITS = {
    "requeue": 0.9,
    "durable": 0.95,
    "passive": 0.1,
    "exclusive": 0.1,
    "auto_delete": 0.1,
    "no_wait": 0.2,
    "mandatory": 0.3,
    "immediate": 0.005,
    "active": 0.7,
    "internal": 0.1,
    "if_unused": 0.3,
    "if_empty": 0.3,
}


class RandomClient:
    """One client: what it says next, by chance."""

    def __init__(self, chance: random.Random) -> None:
        self._random_fraction = chance
        self._leased: dict[int, list[int]] = {}  # delivery tags by channel
        self._transactional: set[int] = set()

    def greeting(self, is_first: bool = True) -> bytes:
        """Signed in, with two channels open; each in one piece, as nobody has to be waited for."""
        chance = self._random_fraction
        password = "guest" if chance.random() < 0.97 else "wrong"
        capabilities = {"consumer_cancel_notify": chance.random() < 0.8, "connection.blocked": True}
        start = {
            "client_properties": {"capabilities": capabilities},
            "mechanism": "PLAIN",
            "response": f"\0guest\0{password}",
            "locale": "en_US",
        }
        tune = {"channel_max": 0, "frame_max": chance.choice((0, 4096, 131_072)), "heartbeat": 0}
        return b"".join(
            (
                PROTOCOL_HEADER,
                frame(METHOD, 0, encode_method("connection.start-ok", start)),
                frame(METHOD, 0, encode_method("connection.tune-ok", tune)),
                frame(METHOD, 0, encode_method("connection.open", {"virtual_host": "/"})),
                frame(METHOD, 1, encode_method("channel.open", {})),
                frame(METHOD, 2, encode_method("channel.open", {})),
                *(self._topology() if is_first else ()),
                *(self.method(2, "basic.consume") for _ in range(chance.randrange(3))),
            )
        )

    def _topology(self) -> Iterator[bytes]:
        fixed = {"passive": False, "durable": True, "internal": False, "exclusive": False}
        for queue in "qrs":
            yield self.method(
                1, "queue.declare", queue=queue, **{k: fixed[k] for k in ("passive", "durable")}
            )
        del fixed["exclusive"]
        yield self.method(1, "exchange.declare", exchange="y", type="fanout", arguments={}, **fixed)
        yield self.method(1, "exchange.declare", exchange="x", type="direct", arguments={}, **fixed)
        delayed = {"x-delayed-type": "direct"}
        kind = "x-delayed-message"
        yield self.method(1, "exchange.declare", exchange="delayed", type=kind, arguments=delayed, **fixed)

    def method(self, channel: int, name: str, **fields: Any) -> bytes:
        return frame(METHOD, channel, encode_method(name, {**self._fields(name, channel), **fields}))

    def next_bytes(self) -> bytes:
        chance = self._random_fraction
        roll = chance.random()
        channel = chance.choice((1, 1, 1, 2, 2)) if chance.random() < 0.99 else 3
        if roll < 0.02:
            return b"\x08\0\0\0\0\0\0\xce"
        if roll < 0.025:
            return frame(METHOD, channel, encode_method("channel.open", {}))
        if roll < 0.03:
            return frame(METHOD, channel, encode_method("channel.close-ok", {}))
        name = chance.choice(_COMMON) if roll < 0.99 else chance.choice(_ALL)
        is_settling = name in ("basic.ack", "basic.nack", "basic.reject")
        if is_settling and not self._leased.get(channel) and chance.random() > RARELY:
            name = "basic.get"
        if name == "channel.close":
            return self.reopen(channel, "channel.close")
        if name.startswith("connection.") and chance.random() < 0.9:
            channel = 0
        said = self.method(channel, name)
        if name == "tx.select":
            self._transactional.add(channel)
        if channel in self._transactional and chance.random() < 0.3:
            said += self.method(channel, chance.choice(("tx.commit", "tx.rollback")))
        if name == "basic.publish":
            body = chance.choice((b"", b"x", b"body", b"y" * 4000, b"z" * 300))
            known = _PROPERTIES if chance.random() > RARELY else _BAD_PROPERTIES
            said = (said + content(channel, chance.choice(known), body)) * chance.choice((1, 1, 2, 7))
        return said

    def reopen(self, channel: int, last_word: str = "channel.close-ok") -> bytes:
        self._leased.pop(channel, None)
        self._transactional.discard(channel)
        words = (last_word, "channel.open")
        return b"".join(frame(METHOD, channel, encode_method(word, {})) for word in words)

    def receive(self, received: bytes) -> bytes:
        """What it says to channels that were closed on it; most clients go on with others."""
        said = b""
        for kind, channel, payload in frames_in(received):
            if kind == METHOD and payload[:4] in (b"\0\x3c\0\x3c", b"\0\x3c\0\x47"):
                self._leased.setdefault(channel, []).append(decode_method(payload)[1]["delivery_tag"])
            if kind == METHOD and payload[:4] == b"\0\x14\0\x28" and self._random_fraction.random() < 0.9:
                said += self.reopen(channel)
        return said

    def _tag(self, channel: int) -> int:
        leased = self._leased.get(channel)
        if leased and self._random_fraction.random() > RARELY:
            return leased.pop(self._random_fraction.randrange(min(len(leased), 3)))
        bad: int = self._random_fraction.choice(_BAD["delivery_tag"])
        return bad

    def _fields(self, name: str, channel: int) -> dict[str, Any]:
        chance = self._random_fraction
        fields: dict[str, Any] = {}
        for field, kind in METHODS_BY_NAME[name].fields:
            if field.startswith("reserved"):
                continue
            if field == "delivery_tag":
                fields[field] = self._tag(channel)
            elif field in _GOOD:
                pools = _GOOD if chance.random() > RARELY else _BAD
                fields[field] = chance.choice(pools[field])
            elif kind == "bit":
                fields[field] = chance.random() < _BITS.get(field, 0.3)
            elif kind == "table":
                is_bad = chance.random() < RARELY
                fields[field] = chance.choice(_BAD_ARGUMENTS if is_bad else _ARGUMENTS.get(name, ({},)))
            elif kind in ("string", "long_string"):
                fields[field] = chance.choice(("", "x", "\0guest\0guest"))
            else:
                fields[field] = chance.choice((0, 1, 200))
        return fields


# What is broken is broken where it hurts: sizes, channels, types, ends.
_TOKENS = (
    b"\xce", b"\x01\0\1", b"\x02\0\1", b"\x03\0\1\0\0\0\0\xce", b"\x08\0\1\0\0\0\0\xce", b"\0\x3c\0\x28",
    b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\1\xff\xf8", PROTOCOL_HEADER,
    frame(METHOD, 1, b"\0\x3c\0\x28" + bytes(5)), frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 5) + b"\0\0"),
    frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1 << 63) + b"\xff\xff"), frame(BODY, 1, b"x"),
    frame(METHOD, 1, b"\0\x3c\0\x50" + bytes(9)), frame(METHOD, 1, b"\0\x3c\0\x50" + b"\xff" * 9),
)  # fmt: skip


def corrupt(chance: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(raw) + 1)
        what = chance.randrange(6)
        if what == 0 and raw:
            raw[min(at, len(raw) - 1)] ^= 1 << chance.randrange(8)
        elif what == 1:
            raw[at:at] = chance.choice(_TOKENS)
        elif what == 2:
            del raw[at : at + chance.randrange(1, 12)]
        elif what == 3:
            raw[at : at + 4] = chance.choice(_TOKENS[6:10])
        elif what == 4:
            raw[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            raw[at:at] = raw[at : at + chance.randrange(1, 60)]
    return bytes(raw)


class Dialogues:
    """One to three clients, taking turns."""

    def __init__(self, server: FuzzServer, *, breaks: bool) -> None:
        self.server = server
        self._breaks = breaks

    def one(self, chance: random.Random) -> list[list[str]]:
        server = self.server
        wires: list[FakeTransport] = []
        said: list[tuple[int, bytes]] = []
        try:
            speakers = [RandomClient(chance) for _ in range(chance.choice((1, 1, 2, 3)))]
            heard = [0] * len(speakers)
            for at, speaker in enumerate(speakers):
                wires.append(server.connect())
                said.append((at, speaker.greeting(is_first=at == 0)))
                server.feed(wires[at], said[-1][1])
            for _ in range(chance.randrange(1, 30)):
                at = chance.randrange(len(speakers))
                wire = wires[at]
                if chance.random() < 0.03:
                    wire.is_deaf = not wire.is_deaf
                    if not wire.is_deaf:
                        wire.listen()
                data = speakers[at].receive(wire.written[heard[at] :])
                heard[at] = len(wire.written)
                data += b"".join(speakers[at].next_bytes() for _ in range(chance.choice((1, 1, 3, 8))))
                if self._breaks and chance.random() < 0.15:
                    data = corrupt(chance, data)
                for piece in pieces_of(chance, data) if chance.random() < 0.2 else (data,):
                    said.append((at, piece))
                    server.feed(wire, piece)
                if chance.random() < 0.02:
                    wire.listen()
                    wire.close()
                    server.turn()
                if chance.random() < 0.3:
                    server.turn()
            return server.finish(wires)
        except FuzzFailure as found:
            raise FuzzFailure(f"{found}: {[(at, data.hex()) for at, data in said]}"[:6000]) from found
        finally:
            for wire in wires:
                wire.close()
            server.turn()
            server.turn()
            server.tidy()


def replay(server: FuzzServer, data: bytes) -> None:
    """One signed-in client that says these bytes; the first one says in how many pieces."""
    wire = server.connect()
    try:
        server.feed(wire, RandomClient(random.Random(1)).greeting())
        size = (data[0] if data else 0) * 16 + 1
        rest = data[1:]
        for at in range(0, len(rest), size) if len(rest) < 20 * size else (0,):
            server.feed(wire, rest[at : at + size] if len(rest) < 20 * size else rest)
        server.finish([wire])
    finally:
        wire.close()
        server.turn()
        server.tidy()


def seeds(count: int = 24) -> Iterator[bytes]:
    """Small, and each with another mixture of what can be said."""
    for n in range(count):
        chance = random.Random(f"seed {n}")
        speaker = RandomClient(chance)
        data = b"\xff" + b"".join(speaker.next_bytes() for _ in range(6))
        if len(data) < 3000:
            yield data


def handshakes(server: FuzzServer, chance: random.Random) -> None:
    """Broken before anybody knows who it is."""
    wire = server.connect()
    data = corrupt(chance, RandomClient(chance).greeting())
    try:
        for piece in pieces_of(chance, data):
            server.feed(wire, piece)
        server.finish([wire])
    except FuzzFailure as found:
        raise FuzzFailure(f"{found}: {data.hex()}") from found
    finally:
        wire.close()
        server.turn()


# -- campaigns --------------------------------------------------------------------------------------


def run_atheris(folder: str, arguments: list[str]) -> None:
    import atheris  # type: ignore[import-untyped,unused-ignore]

    server = FuzzServer()
    logging.getLogger("openq").propagate = False

    def one_input(data: bytes) -> None:
        replay(server, data)

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], folder, str(SEEDS), *arguments], one_input)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(random.randbytes(3)))
    parser.add_argument("--seeds", action="store_true", help="write the seeds anew and stop")
    parser.add_argument("--atheris", metavar="FOLDER", help="coverage-guided, with this folder as corpus")
    options, rest = parser.parse_known_args()
    if options.seeds:
        SEEDS.mkdir(exist_ok=True)
        for n, data in enumerate(seeds()):
            (SEEDS / f"{n:02}").write_bytes(data)
        return 0
    if options.atheris:
        run_atheris(options.atheris, rest)
        return 0
    logging.getLogger("openq").propagate = False
    print(f"seed {options.seed}")
    until = time.monotonic() + options.minutes * 60
    complaints, count, settled = 0, 0, 0
    with (
        tempfile.TemporaryDirectory() as folder,
        FuzzServer() as light,
        FuzzServer(Path(folder) / "d") as durable,
    ):
        kinds = {
            "said": Dialogues(light, breaks=False).one,
            "broken": Dialogues(light, breaks=True).one,
            "durable": Dialogues(durable, breaks=True).one,
            "handshakes": lambda chance: handshakes(light, chance),
        }
        while time.monotonic() < until:
            for kind, one in kinds.items():
                for number in range(count, count + 50):
                    try:
                        one(random.Random(f"{kind} {options.seed} {number}"))
                    except FuzzFailure as found:
                        complaints += 1
                        print(f"{kind}, seed {options.seed}, case {number}: {str(found)[:3000]}", flush=True)
            count += 50
            settled = settled or (resident_bytes() if count >= 1000 else 0)
        grown = resident_bytes() - settled if settled else 0
    print(f"{count} of each kind, {complaints} complaints, grown by {grown >> 10} KiB since the first 1,000")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
