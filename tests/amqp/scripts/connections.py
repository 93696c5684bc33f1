"""Handshake, connection and channel."""

from __future__ import annotations

import struct
from typing import Any

from tests.amqp.dialogue import CAPABILITIES, ClientMessage
from tests.amqp.dialogue_codec import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    content,
    encode_method,
    encode_properties,
    frame,
)

from .steps import CLOSE_CHANNEL, late, m, method_frame, publish, queue, raw, script, slow, take

# --- handshake ---------------------------------------------------------------------------------


def start_ok(user: str = "guest", password: str = "guest", **fields: Any) -> ClientMessage:
    whole: dict[str, Any] = {
        "client_properties": {"capabilities": CAPABILITIES},
        "mechanism": "PLAIN",
        "response": f"\0{user}\0{password}",
        "locale": "en_US",
        **fields,
    }
    return m("connection.start-ok", "r", **whole)


HELLO = raw(PROTOCOL_HEADER)


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> ClientMessage:
    return m("connection.tune-ok", "r", channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)


OPEN = m("connection.open", "r", virtual_host="/")
SIGNED_IN = (HELLO, start_ok(), tune_ok(), OPEN)

script(
    "handshake",
    HELLO,
    start_ok(),
    (tune_ok(), OPEN),
    m("channel.open", "r1"),
    m("connection.close", "r", reply_code=200, reply_text="bye"),
)
script("handshake in one go", (HELLO, start_ok(), tune_ok(), OPEN, m("channel.open", "r1")))
script(
    "handshake: AMQPLAIN",
    HELLO,
    start_ok(mechanism="AMQPLAIN", response="\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"),
)
script("handshake: protocol header of 1.0 with SASL", raw(b"AMQP\x03\x01\x00\x00"))
script("handshake: protocol header of 0-9", raw(b"AMQP\x01\x01\x00\x09"))
script("handshake: protocol header of 0-8", raw(b"AMQP\x01\x01\x08\x00"))
script("handshake: protocol header 0.0.9.0", raw(b"AMQP\x00\x00\x09\x00"))
script("handshake: no AMQP at all", raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
script("handshake: unknown mechanism", HELLO, late(start_ok(mechanism="CRAM-MD5")))
script("handshake: mechanism EXTERNAL without TLS", HELLO, late(start_ok(mechanism="EXTERNAL", response="")))
script("handshake: PLAIN response is malformed", HELLO, late(start_ok(response="guest")))
script("handshake: wrong password", HELLO, start_ok(password="wrong"))
script(
    "handshake: wrong password, capability not named",
    HELLO,
    slow(start_ok(password="wrong", client_properties={}), settle=4.0),
)
script("handshake: unknown user", HELLO, start_ok(user="nobody"))
script("handshake: empty password", HELLO, start_ok(password=""))
script(
    "handshake: unknown vhost", HELLO, start_ok(), (tune_ok(), m("connection.open", "r", virtual_host="none"))
)
script("handshake: empty vhost", HELLO, start_ok(), (tune_ok(), m("connection.open", "r", virtual_host="")))
script(
    "handshake: tune frame_max above the server's", HELLO, start_ok(), late(tune_ok(frame_max=200_000), OPEN)
)
script("handshake: tune frame_max 0", HELLO, start_ok(), late(tune_ok(frame_max=0), OPEN))
script("handshake: tune frame_max below 4096", HELLO, start_ok(), late(tune_ok(frame_max=100), OPEN))
script(
    "handshake: tune channel_max above the server's", HELLO, start_ok(), late(tune_ok(channel_max=3000), OPEN)
)
script("handshake: tune channel_max 0", HELLO, start_ok(), late(tune_ok(channel_max=0), OPEN))
script("handshake: open before tune-ok", HELLO, start_ok(), late(OPEN))
script("handshake: open before start-ok", HELLO, late(OPEN))
script("handshake: tune-ok before start-ok", HELLO, late(tune_ok()))
script("handshake: channel method before open", HELLO, start_ok(), tune_ok(), m("channel.open", "r1"))
script("handshake: second start-ok", HELLO, start_ok(), late(start_ok()))
script(
    "handshake: close before open",
    HELLO,
    start_ok(),
    tune_ok(),
    m("connection.close", "r", reply_code=200, reply_text="bye"),
)
script(
    "handshake: close instead of start-ok",
    HELLO,
    late(m("connection.close", "r", reply_code=200, reply_text="bye")),
)
script("handshake: frame too large before tune", HELLO, late(raw(frame(METHOD, 0, b"\0" * 5000))))


# --- connection ---------------------------------------------------------------------------------

script("connection: second open", m("connection.open", "a", virtual_host="/"))
script("connection: start-ok when open", m("connection.start-ok", "a", mechanism="PLAIN"))
script("connection: update-secret", m("connection.update-secret", "a", new_secret="guest", reason="test"))
script("connection: close-ok unasked", m("connection.close-ok", "a"))
script("connection: method on channel 0", m("queue.declare", "a", queue="q"))
script("connection: channel.open on channel 0", m("channel.open", "a"))
script("connection: connection method on channel 1", m("connection.close", reply_code=200, reply_text="x"))
script("connection: unknown class", m("channel.open"), raw(frame(METHOD, 1, struct.pack(">HH", 99, 1)), "a1"))
script(
    "connection: unknown method", m("channel.open"), raw(frame(METHOD, 1, struct.pack(">HH", 60, 99)), "a1")
)
script(
    "connection: unknown method on channel 0",
    m("channel.open"),
    raw(frame(METHOD, 0, struct.pack(">HH", 10, 99)), "a1"),
)
script(
    "connection: method frame too short",
    m("channel.open"),
    raw(frame(METHOD, 1, struct.pack(">HH", 50, 10)), "a1"),
)
script(
    "connection: method frame with bytes left over",
    m("channel.open"),
    raw(frame(METHOD, 1, encode_method("basic.qos", {}) + b"zz"), "a1"),
)
script("connection: method frame of one byte", m("channel.open"), raw(frame(METHOD, 1, b"\0"), "a1"))
script(
    "connection: table with an unknown type",
    m("channel.open"),
    raw(frame(METHOD, 1, struct.pack(">HHHB", 50, 10, 0, 1) + b"q\x00" + b"\0\0\0\x03\x01aZ"), "a1"),
)
script(
    "connection: table longer than the frame",
    m("channel.open"),
    raw(frame(METHOD, 1, struct.pack(">HHHB", 50, 10, 0, 1) + b"q\x00" + b"\0\0\x03\x03\x01aZ"), "a1"),
)
script(
    "connection: queue name is not UTF-8",
    m("channel.open"),
    raw(frame(METHOD, 1, struct.pack(">HHHB", 50, 10, 0, 2) + b"\xff\xfe\x00" + b"\0\0\0\0"), "a1"),
)
script("connection: unknown frame type", m("channel.open"), raw(frame(7, 1, b"x"), "a1"))
script("connection: unknown frame type on channel 0", m("channel.open"), raw(frame(7, 0, b"x"), "a1"))
script(
    "connection: frame end is wrong",
    m("channel.open"),
    raw(frame(METHOD, 1, encode_method("basic.qos", {}))[:-1] + b"x", "a1"),
)
script(
    "connection: frame too large",
    m("channel.open"),
    raw(struct.pack(">BHI", BODY, 1, 200_000) + b"x" * 100, "a1"),
)
script(
    "connection: frame of exactly frame_max",
    queue("q"),
    (
        raw(
            method_frame("basic.publish", 1, routing_key="q")
            + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 131_064) + encode_properties({}))
            + frame(BODY, 1, b"x" * 131_064),
            "a1",
        ),
    ),
    take("q"),
)
script("connection: heartbeat", raw(frame(HEARTBEAT, 0, b""), "a"), m("channel.open"))
script("connection: heartbeat on channel 1", m("channel.open"), raw(frame(HEARTBEAT, 1, b""), "a1"))
script("connection: heartbeat with a payload", m("channel.open"), raw(frame(HEARTBEAT, 0, b"xyz"), "a"))
script("connection: frame on a channel that is not open", *SIGNED_IN, m("queue.declare", "r5", queue="q"))
script("connection: content on a channel that is not open", *SIGNED_IN, raw(content(5, {}, b"x")))
script("connection: channel beyond channel_max", *SIGNED_IN, m("channel.open", "r2048"))
script(
    "connection: channel number beyond a negotiated channel_max",
    HELLO,
    start_ok(),
    (tune_ok(channel_max=3), OPEN),
    m("channel.open", "r4"),
)
script(
    "connection: more channels than negotiated",
    HELLO,
    start_ok(),
    (tune_ok(channel_max=2), OPEN),
    m("channel.open", "r1"),
    m("channel.open", "r2"),
    m("channel.open", "r3"),
)
script(
    "connection: header without publish",
    m("channel.open"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1) + b"\0\0"), "a1"),
)
script("connection: body without publish", m("channel.open"), raw(frame(BODY, 1, b"x"), "a1"))
script(
    "connection: method instead of header",
    m("channel.open"),
    m("basic.publish", routing_key="q"),
    m("basic.qos"),
)
script(
    "connection: body instead of header",
    m("channel.open"),
    m("basic.publish", routing_key="q"),
    raw(frame(BODY, 1, b"x"), "a1"),
)
script(
    "connection: method instead of body",
    m("channel.open"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 10) + b"\0\0"), "a1"),
    m("basic.qos"),
)
script(
    "connection: header instead of body",
    m("channel.open"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 10) + b"\0\0"), "a1"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 10) + b"\0\0"), "a1"),
)
script(
    "connection: body longer than announced",
    queue("q"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 3) + b"\0\0") + frame(BODY, 1, b"abcdef"), "a1"),
    take("q"),
)
script(
    "connection: body in many frames",
    queue("q"),
    m("basic.publish", routing_key="q"),
    raw(
        frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 6) + b"\0\0")
        + frame(BODY, 1, b"abc")
        + frame(BODY, 1, b"")
        + frame(BODY, 1, b"def"),
        "a1",
    ),
    take("q"),
)
script("connection: empty body", queue("q"), publish("q", ""), take("q"))
script("connection: body of 300 kB", queue("q"), publish("q", "x" * 300_000), take("q"))
script(
    "connection: body size beyond the limit",
    queue("q"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1 << 40) + b"\0\0"), "a1"),
)
script(
    "connection: header of another class",
    m("channel.open"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 50, 0, 1) + b"\0\0"), "a1"),
)
script(
    "connection: header with weight 1",
    queue("q"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 1, 1) + b"\0\0") + frame(BODY, 1, b"x"), "a1"),
    take("q"),
)
script(
    "connection: header with malformed properties",
    queue("q"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1) + b"\xff\xf8\x01") + frame(BODY, 1, b"x"), "a1"),
)
script(
    "connection: header with flags continued",
    queue("q"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1) + b"\x00\x01\x00\x00") + frame(BODY, 1, b"x"), "a1"),
    take("q"),
)
script(
    "connection: header too short",
    queue("q"),
    m("basic.publish", routing_key="q"),
    raw(frame(HEADER, 1, b"\0\x3c\0\0"), "a1"),
)
script(
    "connection: close with open channels",
    queue("q", exclusive=True),
    m("connection.close", "a", reply_code=200, reply_text="x"),
    queue("q", "b1", passive=True),
)
script("connection: server method from the client", m("channel.open"), m("queue.declare-ok", queue="q"))
script(
    "connection: server deliver from the client",
    m("channel.open"),
    ClientMessage("a1", "basic.deliver", {"consumer_tag": "t"}, {}, b"x"),
)
script("connection: server connection method from the client", m("connection.tune", "a"))


# --- channels -----------------------------------------------------------------------------------

script("channel: open twice", m("channel.open"), m("channel.open"))
script("channel: open, close, open", m("channel.open"), CLOSE_CHANNEL, m("channel.open"), CLOSE_CHANNEL)
script("channel: close-ok unasked", m("channel.open"), m("channel.close-ok"))
script(
    "channel: closed by an error, frames in flight are dropped",
    (m("queue.declare", queue="none", passive=True), queue("q1"), publish("q1"), m("basic.qos")),
    m("channel.open"),
    queue("q1", passive=True),
)
script("channel: close-ok for a channel never opened", *SIGNED_IN, m("channel.close-ok", "r1"))
script("channel: close for a channel never opened", *SIGNED_IN, m("channel.close", "r1"))
script(
    "channel: error on one leaves the other",
    queue("q", on="a2"),
    m("queue.declare", queue="none", passive=True),
    queue("q", on="a2"),
)
script("channel: flow off", m("channel.open"), m("channel.flow", active=False))
script("channel: flow on", m("channel.open"), m("channel.flow", active=True))
script("channel: flow-ok unasked", m("channel.open"), m("channel.flow-ok", active=True))
script("channel: access request", m("access.request", realm="/data"))
