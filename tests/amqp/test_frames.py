"""The reader: whatever way bytes arrive, the same calls come out, and nothing wrong gets through."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from openq.amqp import methods as m
from openq.amqp.errors import AmqpError
from openq.amqp.frames import (
    BODY,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    FrameReader,
    content_frames,
    content_head,
    method_frame,
)
from openq.amqp.method_codec import encode_method

MAX_FRAME = 4096
PERSISTENT = b"\x10\x00\x02"  # delivery mode 2


class RecordingHandler:
    """What a reader tells, message by message."""

    def __init__(self) -> None:
        self.calls_received: list[tuple[Any, ...]] = []
        self.calls = 0

    def method(self, channel: int, payload: bytes) -> None:
        self.calls_received.append(("method", channel, payload))

    def begin_publish(self, channel: int, payload: bytes) -> bool:
        return True

    def publish(
        self, channel: int, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]
    ) -> None:
        self.calls += 1
        each = [all_properties] * len(bodies) if isinstance(all_properties, bytes) else all_properties
        self.calls_received += [
            ("publish", channel, method, amqp_properties, body)
            for amqp_properties, body in zip(each, bodies, strict=True)
        ]

    def ack(self, channel: int, tags: list[int]) -> None:
        self.calls_received += [("ack", channel, tag) for tag in tags]

    def heartbeat(self) -> None:
        self.calls_received.append(("heartbeat",))

    def refuse_content(self, channel: int, error: AmqpError) -> None:
        self.calls_received.append(("refused", channel, error.code))


def publish(key: str, body: bytes, channel: int = 1, amqp_properties: bytes = PERSISTENT) -> bytes:
    method = encode_method(m.BasicPublish("", key, False, False))
    return method_frame(channel, method) + content_frames(channel, amqp_properties, body, MAX_FRAME)


def ack(tag: int, multiple: bool = False, channel: int = 1) -> bytes:
    return method_frame(channel, encode_method(m.BasicAck(tag, multiple)))


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + end


def read(data: bytes, step: int, max_body: int = 1 << 20) -> RecordingHandler:
    handler = RecordingHandler()
    reader = FrameReader(handler, MAX_FRAME, max_body)
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    return handler


def a_conversation(seed: int) -> bytes:
    """Runs, changes of size, channel, key and properties, bodies of several frames, acks, all mixed."""
    chance = random.Random(seed)
    parts = []
    for _ in range(60):
        kind = chance.randrange(6)
        channel = chance.choice((1, 1, 1, 2))
        if kind < 3:
            size = chance.choice((0, 1, 50, 50, 50, 4088, 4089, 9000))
            key = chance.choice(("a", "a", "b"))
            amqp_properties = chance.choice((PERSISTENT, PERSISTENT, b"\x00\x00"))
            parts += [publish(key, chance.randbytes(size), channel, amqp_properties)] * chance.randrange(1, 5)
        elif kind == 3:
            parts += [ack(chance.randrange(1, 99), chance.random() < 0.2, channel) for _ in range(5)]
        elif kind == 4:
            parts.append(HEARTBEAT)
        else:
            parts.append(method_frame(channel, encode_method(m.BasicQos(0, 1, False))))
    return b"".join(parts)


@pytest.mark.parametrize("step", [1, 5, 37, 4096, 1 << 20])
@pytest.mark.parametrize("seed", range(5))
def test_the_calls_do_not_depend_on_how_the_bytes_are_split(seed: int, step: int) -> None:
    data = a_conversation(seed)

    assert read(data, step).calls_received == read(data, 1 << 30).calls_received


def test_every_frame_of_a_conversation_is_reported() -> None:
    bodies = [b"x" * size for size in (10, 10, 10, 20, 20, 30, 10, 5000, 0, 10)]

    handler = read(b"".join(publish("q", body) for body in bodies), 1 << 20)

    assert [each[4] for each in handler.calls_received] == bodies


def test_methods_and_properties_of_partial_messages_count_as_pending() -> None:
    reader = FrameReader(RecordingHandler(), MAX_FRAME, 1 << 20)
    amqp_properties = b"\x20\x00" + (3000).to_bytes(4, "big") + b"x" * 3000
    halves = [publish("q", b"x", channel, amqp_properties)[: -FRAME_OVERHEAD - 1] for channel in (1, 2)]
    reader.feed(halves[0])
    of_one = reader.pending_bytes
    assert 3000 < of_one < 3100

    reader.feed(halves[1])
    assert reader.pending_bytes == 2 * of_one
    reader.skip_content(1)
    assert reader.pending_bytes == of_one
    for channel in (1, 2):
        reader.feed(frame(BODY, channel, b"x"))
    assert reader.pending_bytes == 0


def test_long_properties_are_not_cached() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, 1 << 17, 1 << 20)
    all_properties = [
        b"\x20\x00" + (size).to_bytes(4, "big") + b"x" * size for size in (20_000, 20_000, 30_000)
    ]
    method = method_frame(1, encode_method(m.BasicPublish("", "q", False, False)))
    messages = [
        method + content_frames(1, amqp_properties, b"hello", 1 << 17)
        for amqp_properties in all_properties * 2
    ]

    reader.feed(b"".join(messages))

    assert [each[3] for each in handler.calls_received] == all_properties * 2
    assert reader.pending_bytes == 0
    assert reader._run is not None
    assert len(reader._run.same) < 1000


def test_equal_messages_arrive_in_one_call() -> None:
    handler = read(publish("q", b"hello") * 500, 1 << 20)

    assert len(handler.calls_received) == 500
    assert handler.calls == 2  # the first, by which the others are recognised, and those


def test_messages_of_one_method_arrive_in_one_call_despite_other_properties() -> None:
    all_properties = [b"\x00\x80\x03id%d" % number for number in range(10)]

    handler = read(
        b"".join(
            publish("q", b"hello", amqp_properties=amqp_properties) for amqp_properties in all_properties
        ),
        1 << 20,
    )

    assert [each[3] for each in handler.calls_received] == all_properties
    assert handler.calls == 2


def test_several_acks_of_one_message_are_gathered_and_multiple_ones_are_methods() -> None:
    handler = read(ack(1) + ack(2) + ack(3) + ack(9, multiple=True) + ack(10), 1 << 20)

    assert handler.calls_received[:3] == [("ack", 1, 1), ("ack", 1, 2), ("ack", 1, 3)]
    assert handler.calls_received[3][0] == "method"
    assert handler.calls_received[4] == ("ack", 1, 10)


@pytest.mark.parametrize("step", [1000, 1 << 20])
@pytest.mark.parametrize("size", [MAX_FRAME - FRAME_OVERHEAD, MAX_FRAME - 1, MAX_FRAME])
def test_a_body_frame_may_be_over_the_limit_by_its_own_overhead(size: int, step: int) -> None:
    method = encode_method(m.BasicPublish("", "q", False, False))
    head = method_frame(1, method) + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, size) + PERSISTENT)
    whole = head + frame(BODY, 1, b"x" * size)
    # Of a body in several frames each one may be so large.
    double = method_frame(1, method) + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 2 * size) + PERSISTENT)
    double += 2 * frame(BODY, 1, b"x" * size)

    handler = read(3 * whole + double, step)

    assert [len(each[4]) for each in handler.calls_received] == [size, size, size, 2 * size]


@pytest.mark.parametrize("before", [b"", publish("q", b"hello") * 3], ids=["first", "in a run"])
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(METHOD, 1, b"\x00\x3c\x00\x0a" + bytes(7), end=b"\xcd"), 501),
        (frame(9, 1, b""), 501),
        (b"\x01\x00\x01\xff\xff\xff\xff", 501),
        (b"\x01\x00\x01" + (MAX_FRAME + 1).to_bytes(4, "big"), 501),
        (b"\x03\x00\x01" + (MAX_FRAME + 1).to_bytes(4, "big"), 501),
        (
            method_frame(1, encode_method(m.BasicPublish("", "q", False, False)))
            + frame(HEADER, 1, b"\x00\x3c" + bytes(MAX_FRAME - FRAME_OVERHEAD - 1)),
            501,
        ),
        (frame(8, 3, b""), 505),
        (frame(8, 0, b"beat"), 501),
        (
            method_frame(1, encode_method(m.BasicPublish("", "q", False, False)))
            + frame(HEADER, 1, b"\x00\x3c\x00\x01" + bytes(10)),
            505,
        ),
        (frame(BODY, 1, b"body"), 505),
        (frame(HEADER, 1, b"\x00\x3c" + bytes(12)), 505),
        (frame(HEADER, 0, b"\x00\x3c" + bytes(12)), 504),
        (publish("q", b"hello")[:-1] + b"\x00", 501),
        (method_frame(1, encode_method(m.BasicPublish("", "q", False, False))) * 2, 505),
        (method_frame(1, encode_method(m.BasicPublish("", "q", False, False))) + frame(BODY, 1, b"x"), 505),
        (
            method_frame(1, encode_method(m.BasicPublish("", "q", False, False))) + frame(HEADER, 1, b"\x00"),
            501,
        ),
        (
            method_frame(1, encode_method(m.BasicPublish("", "q", False, False)))
            + frame(HEADER, 1, b"\x00\x0a" + bytes(12)),
            505,
        ),
        (publish("q", b"hello" * 2000).replace(b"\x00\x00\x27\x10", b"\x00\x00\x13\x88", 1), 505),
        (publish("q", b"x" * 9000)[:5000] + ack(1), 501),
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_protocol_errors_close_the_connection(before: bytes, wrong: bytes, code: int, step: int) -> None:
    with pytest.raises(AmqpError) as caught:
        read(before + wrong + publish("q", b"never") * 100, step)

    assert caught.value.code == code
    assert caught.value.ends_connection


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_connection_methods_after_an_error_are_still_read(step: int) -> None:
    publishing = method_frame(1, encode_method(m.BasicPublish("", "q", False, False)))
    get = method_frame(1, encode_method(m.BasicGet("q", True)))
    last = encode_method(m.ConnectionCloseOk())
    data = publishing * 2 + get + publishing + get + method_frame(0, last)
    handler = RecordingHandler()
    reader = FrameReader(handler, MAX_FRAME, 1 << 20)

    for start in range(0, len(data), step):
        try:
            reader.feed(data[start : start + step])
        except AmqpError:
            reader.end()
    reader.feed(b"")

    assert handler.calls_received == [("method", 0, last)]


def test_a_body_in_several_frames_may_be_interrupted_by_another_channel_only() -> None:
    long = publish("long", b"y" * 9000)
    cut = long.index(b"\xce\x03", 100) + 1
    other = publish("short", b"z", channel=2)

    handler = read(long[:cut] + other + long[cut:], 1 << 20)

    assert [(each[1], len(each[4])) for each in handler.calls_received] == [(2, 1), (1, 9000)]
    with pytest.raises(AmqpError) as caught:
        read(publish("q", b"z") * 2 + long[:cut] + publish("q", b"z"), 1 << 20)
    assert caught.value.code == 505


def test_a_message_that_is_too_large_is_refused_before_its_body_is_kept() -> None:
    handler = read(publish("q", b"x" * 9000) + publish("q", b"fits"), 1 << 20, max_body=1000)

    assert handler.calls_received[0] == ("refused", 1, 406)
    assert [each[4] for each in handler.calls_received[1:]] == [b"fits"]


def test_a_paused_reader_reports_nothing_until_it_resumes() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, MAX_FRAME, 1 << 20)
    data = (
        publish("q", b"one") + method_frame(1, encode_method(m.BasicQos(0, 1, False))) + publish("q", b"two")
    )

    reader.is_paused = True
    reader.feed(data[:20])
    reader.feed(data[20:])
    assert handler.calls_received == []
    reader.resume()

    assert [each[0] for each in handler.calls_received] == ["publish", "method", "publish"]


def test_a_content_in_one_frame_and_in_many_is_written_alike() -> None:
    body = b"b" * 100
    whole = content_head(1, PERSISTENT, len(body)) + body + b"\xce"

    assert whole == content_frames(1, PERSISTENT, body, MAX_FRAME)
    method = method_frame(1, encode_method(m.BasicPublish("", "q", False, False)))
    big = bytes(range(256)) * 100
    handler = read(method + content_frames(1, PERSISTENT, big, MAX_FRAME), 1 << 20)
    assert handler.calls_received == [
        ("publish", 1, encode_method(m.BasicPublish("", "q", False, False)), PERSISTENT, big)
    ]
