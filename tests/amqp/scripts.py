"""What the client says in each dialogue. What RabbitMQ answered is in `dialogues.json`."""

from __future__ import annotations

import struct
from typing import Any

from tests.amqp.dialogue import (
    BODY,
    CAPABILITIES,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    ClientMessage,
    DialogueStep,
    Script,
    content,
    encode_method,
    encode_properties,
    frame,
)

SCRIPTS: list[Script] = []


def script(
    name: str, *steps: DialogueStep | ClientMessage | tuple[ClientMessage, ...], **options: Any
) -> None:
    whole = []
    for step in steps:
        if isinstance(step, DialogueStep):
            whole.append(step)
        elif isinstance(step, ClientMessage):
            whole.append(DialogueStep((step,)))
        else:
            whole.append(DialogueStep(step))
    SCRIPTS.append(Script(name, tuple(whole), options))


def m(method: str, on: str = "a1", **fields: Any) -> ClientMessage:
    return ClientMessage(on, method, fields)


def raw(data: bytes, on: str = "r") -> ClientMessage:
    return ClientMessage(on, raw=data)


def slow(*says: ClientMessage, settle: float = 1.0) -> DialogueStep:
    return DialogueStep(says, settle=settle)


def late(*says: ClientMessage) -> DialogueStep:
    """RabbitMQ lets three seconds pass before it hangs up on somebody who is not signed in."""
    return DialogueStep(says, settle=4.0)


def eventually(*says: ClientMessage) -> DialogueStep:
    """Asked again until the answer is the recorded one: time must pass, or an end be noticed."""
    return DialogueStep(says, settle=1.5, again=True)


def free(*says: ClientMessage, settle: float = 0.0) -> DialogueStep:
    """The order of the answers is the broker's free choice."""
    return DialogueStep(says, settle=settle, unordered=True)


def queue(name: str, on: str = "a1", arguments: dict[str, Any] | None = None, **fields: Any) -> ClientMessage:
    return m("queue.declare", on, queue=name, **fields, arguments=arguments or {})


def exchange(
    name: str, kind: str, on: str = "a1", arguments: dict[str, Any] | None = None, **fields: Any
) -> ClientMessage:
    return m("exchange.declare", on, exchange=name, type=kind, **fields, arguments=arguments or {})


def bind(
    queue: str, exchange: str, key: str = "", on: str = "a1", arguments: dict[str, Any] | None = None
) -> ClientMessage:
    return m("queue.bind", on, queue=queue, exchange=exchange, routing_key=key, arguments=arguments or {})


def publish(
    key: str,
    body: str = "x",
    exchange: str = "",
    on: str = "a1",
    mandatory: bool = False,
    immediate: bool = False,
    **properties: Any,
) -> ClientMessage:
    fields: dict[str, Any] = {"exchange": exchange, "routing_key": key}
    if mandatory:
        fields["mandatory"] = True
    if immediate:
        fields["immediate"] = True
    return ClientMessage(on, "basic.publish", fields, properties, body.encode())


def get(queue: str, on: str = "a1", no_ack: bool = False) -> ClientMessage:
    return m("basic.get", on, queue=queue, no_ack=no_ack)


def take(queue: str, on: str = "a1") -> ClientMessage:
    return get(queue, on, no_ack=True)


def consume(
    queue: str, tag: str = "", on: str = "a1", arguments: dict[str, Any] | None = None, **fields: Any
) -> ClientMessage:
    return m("basic.consume", on, queue=queue, consumer_tag=tag, **fields, arguments=arguments or {})


def ack(tag: int, on: str = "a1", multiple: bool = False) -> ClientMessage:
    return m("basic.ack", on, delivery_tag=tag, multiple=multiple)


def nack(tag: int, on: str = "a1", multiple: bool = False, requeue: bool = True) -> ClientMessage:
    return m("basic.nack", on, delivery_tag=tag, multiple=multiple, requeue=requeue)


def reject(tag: int, on: str = "a1", requeue: bool = True) -> ClientMessage:
    return m("basic.reject", on, delivery_tag=tag, requeue=requeue)


def qos(count: int, on: str = "a1", everyone: bool = False, size: int = 0) -> ClientMessage:
    return m("basic.qos", on, prefetch_size=size, prefetch_count=count, **{"global": everyone})


def method_frame(name: str, channel: int = 0, **fields: Any) -> bytes:
    return frame(METHOD, channel, encode_method(name, fields))


CONFIRM = m("confirm.select")
TX = m("tx.select")
CLOSE_CHANNEL = m("channel.close", reply_code=200, reply_text="bye")


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

# --- exchanges ----------------------------------------------------------------------------------

for _kind in ("direct", "fanout", "topic", "headers"):
    script(
        f"exchange: declare {_kind}",
        exchange("x", _kind),
        exchange("x", _kind),
        exchange("x", _kind, passive=True),
    )
script(
    "exchange: passive looks at the name only",
    exchange("x", "direct", durable=True),
    exchange("x", "fanout", passive=True),
)
script(
    "exchange: passive with no type", exchange("x", "direct", durable=True), exchange("x", "", passive=True)
)
script(
    "exchange: passive with an unknown type",
    exchange("x", "direct", durable=True),
    exchange("x", "nope", passive=True),
)
script("exchange: passive missing", exchange("none", "direct", passive=True))
script("exchange: unknown type", exchange("x", "nope"))
script("exchange: empty type", exchange("x", ""))
script("exchange: type differs", exchange("x", "direct"), exchange("x", "fanout"))
script("exchange: durable differs", exchange("x", "direct"), exchange("x", "direct", durable=True))
script("exchange: auto_delete differs", exchange("x", "direct"), exchange("x", "direct", auto_delete=True))
script("exchange: internal differs", exchange("x", "direct"), exchange("x", "direct", internal=True))
script(
    "exchange: alternate differs",
    exchange("x", "direct"),
    exchange("x", "direct", arguments={"alternate-exchange": "y"}),
)
script(
    "exchange: alternate differs the other way",
    exchange("x", "direct", arguments={"alternate-exchange": "y"}),
    exchange("x", "direct"),
)
script(
    "exchange: alternate differs in value",
    exchange("x", "direct", arguments={"alternate-exchange": "y"}),
    exchange("x", "direct", arguments={"alternate-exchange": "z"}),
)
script("exchange: alternate of a wrong type", exchange("x", "direct", arguments={"alternate-exchange": 5}))
script(
    "exchange: other arguments do not matter",
    exchange("x", "direct", arguments={"foo": 1}),
    exchange("x", "direct"),
)
script("exchange: reserved name", exchange("amq.mine", "direct"))
script("exchange: reserved name passive missing", exchange("amq.mine", "direct", passive=True))
script(
    "exchange: predeclared",
    exchange("amq.direct", "direct", durable=True),
    exchange("amq.topic", "topic", passive=True),
    exchange("amq.match", "headers", durable=True),
    exchange("amq.headers", "headers", durable=True),
    exchange("amq.fanout", "fanout", durable=True),
)
script("exchange: predeclared with another type", exchange("amq.direct", "fanout", durable=True))
script("exchange: predeclared not durable", exchange("amq.direct", "direct"))
script("exchange: amq.rabbitmq.trace", exchange("amq.rabbitmq.trace", "topic", passive=True))
script("exchange: declare the default one", exchange("", "direct", durable=True))
script("exchange: passive declare of the default one", exchange("", "direct", passive=True))
script("exchange: delete the default one", m("exchange.delete", exchange=""))
script("exchange: delete a predeclared one", m("exchange.delete", exchange="amq.direct"))
script("exchange: delete missing", m("exchange.delete", exchange="none"))
script("exchange: delete reserved missing", m("exchange.delete", exchange="amq.none"))
script(
    "exchange: delete",
    exchange("x", "direct"),
    m("exchange.delete", exchange="x"),
    exchange("x", "direct", passive=True),
)
script(
    "exchange: delete if unused, in use",
    exchange("x", "direct"),
    queue("q"),
    bind("q", "x"),
    m("exchange.delete", exchange="x", if_unused=True),
)
script(
    "exchange: delete if unused, unused",
    exchange("x", "direct"),
    m("exchange.delete", exchange="x", if_unused=True),
)
script("exchange: delete if unused missing", m("exchange.delete", exchange="none", if_unused=True))
script(
    "exchange: delete if unused, source of an exchange",
    exchange("x", "direct"),
    exchange("y", "direct"),
    m("exchange.bind", destination="y", source="x"),
    m("exchange.delete", exchange="x", if_unused=True),
)
script(
    "exchange: delete if unused, only destination",
    exchange("x", "direct"),
    exchange("y", "direct"),
    m("exchange.bind", destination="y", source="x"),
    m("exchange.delete", exchange="y", if_unused=True),
)
script(
    "exchange: no_wait",
    (exchange("x", "direct", no_wait=True), exchange("x", "direct", passive=True)),
    (m("exchange.delete", exchange="x", no_wait=True), exchange("x", "direct", passive=True)),
)
script("exchange: line feed in the name", exchange("x\ny", "direct"), exchange("xy", "direct", passive=True))
script(
    "exchange: auto-delete goes with its last binding",
    exchange("x", "direct", auto_delete=True),
    queue("q"),
    bind("q", "x", "1"),
    bind("q", "x", "2"),
    m("queue.unbind", queue="q", exchange="x", routing_key="1"),
    exchange("x", "direct", passive=True),
    m("queue.unbind", queue="q", exchange="x", routing_key="2"),
    exchange("x", "direct", passive=True),
)
script(
    "exchange: auto-delete goes with its last queue",
    exchange("x", "direct", auto_delete=True),
    queue("q"),
    bind("q", "x", "1"),
    m("queue.delete", queue="q"),
    exchange("x", "direct", passive=True),
)
script(
    "exchange: auto-delete never bound stays",
    exchange("x", "direct", auto_delete=True),
    exchange("x", "direct", passive=True),
)
script(
    "exchange: auto-delete cascade",
    exchange("x", "direct", auto_delete=True),
    exchange("y", "direct", auto_delete=True),
    queue("q"),
    m("exchange.bind", destination="y", source="x", routing_key="k"),
    bind("q", "y", "k"),
    m("queue.delete", queue="q"),
    exchange("y", "direct", passive=True),
    exchange("x", "direct", passive=True),
)
script(
    "exchange: internal refuses publishes", exchange("x", "fanout", internal=True), publish("k", exchange="x")
)
script(
    "exchange: internal routes what comes from another",
    exchange("x", "fanout", internal=True),
    exchange("y", "fanout"),
    queue("q"),
    bind("q", "x"),
    m("exchange.bind", destination="x", source="y"),
    publish("k", exchange="y"),
    slow(take("q")),
)
script(
    "exchange: alternate",
    exchange("x", "direct", arguments={"alternate-exchange": "y"}),
    exchange("y", "fanout"),
    queue("q"),
    bind("q", "y"),
    CONFIRM,
    publish("k", exchange="x", mandatory=True),
    take("q"),
)
script(
    "exchange: alternate missing",
    exchange("x", "direct", arguments={"alternate-exchange": "none"}),
    CONFIRM,
    publish("k", exchange="x", mandatory=True),
)
script("exchange: publish to missing", m("channel.open"), publish("k", exchange="none"))
script("exchange: publish to missing with confirms", CONFIRM, publish("k", exchange="none"))
script(
    "exchange: publish to missing, more in flight",
    CONFIRM,
    (publish("k", exchange="none"), publish("k"), m("basic.qos")),
    m("channel.open"),
)

# --- bindings -----------------------------------------------------------------------------------

script("bind: queue missing", exchange("x", "direct"), bind("none", "x"))
script("bind: exchange missing", queue("q"), bind("q", "none"))
script("bind: both missing", bind("none", "nonex"))
script("bind: default exchange", queue("q"), bind("q", "", "k"))
script(
    "bind: twice",
    queue("q"),
    bind("q", "amq.direct", "k"),
    bind("q", "amq.direct", "k"),
    publish("k", exchange="amq.direct"),
    take("q"),
    take("q"),
)
script(
    "bind: two keys, one copy",
    queue("q"),
    bind("q", "amq.topic", "a.#"),
    bind("q", "amq.topic", "*.b"),
    publish("a.b", exchange="amq.topic"),
    take("q"),
    take("q"),
)
script("bind: no queue named, none declared", bind("", "amq.direct", "k"))
script(
    "bind: no queue named, the last declared",
    queue(""),
    bind("", "amq.direct", ""),
    publish("", exchange="amq.direct"),
    take(""),
)
script(
    "bind: no queue and no key named: key is the queue's name",
    queue("q"),
    bind("", "amq.direct", ""),
    publish("q", exchange="amq.direct"),
    take("q"),
    publish("", exchange="amq.direct"),
    take("q"),
)
script(
    "bind: queue named, key not: key is empty",
    queue("q"),
    bind("q", "amq.direct", ""),
    publish("q", exchange="amq.direct"),
    take("q"),
    publish("", exchange="amq.direct"),
    take("q"),
)
script("bind: another's exclusive queue", queue("q", "b1", exclusive=True), bind("q", "amq.direct", "k"))
script("bind: durable exchange and transient queue", queue("q"), bind("q", "amq.direct", "k"))
script(
    "bind: no_wait",
    queue("q"),
    (m("queue.bind", queue="q", exchange="amq.direct", routing_key="k", no_wait=True), m("basic.qos")),
)
script(
    "unbind: never bound", queue("q"), m("queue.unbind", queue="q", exchange="amq.direct", routing_key="k")
)
script("unbind: queue missing", m("queue.unbind", queue="none", exchange="amq.direct", routing_key="k"))
script("unbind: exchange missing", queue("q"), m("queue.unbind", queue="q", exchange="none", routing_key="k"))
script("unbind: default exchange", queue("q"), m("queue.unbind", queue="q", exchange="", routing_key="q"))
script(
    "unbind: arguments must match",
    queue("q"),
    bind("q", "amq.headers", "", arguments={"a": 1}),
    m("queue.unbind", queue="q", exchange="amq.headers"),
    publish("", exchange="amq.headers", headers={"a": 1}),
    take("q"),
)
script(
    "exchange bind: source missing",
    exchange("x", "direct"),
    m("exchange.bind", destination="x", source="none"),
)
script(
    "exchange bind: destination missing",
    exchange("x", "direct"),
    m("exchange.bind", destination="none", source="x"),
)
script(
    "exchange bind: default as source",
    exchange("x", "direct"),
    m("exchange.bind", destination="x", source=""),
)
script(
    "exchange bind: default as destination",
    exchange("x", "direct"),
    m("exchange.bind", destination="", source="x"),
)
script("exchange unbind: default", exchange("x", "direct"), m("exchange.unbind", destination="", source="x"))
script(
    "exchange unbind: never bound",
    exchange("x", "direct"),
    exchange("y", "direct"),
    m("exchange.unbind", destination="y", source="x"),
)
script("exchange unbind: missing", m("exchange.unbind", destination="noney", source="nonex"))
script(
    "exchange bind: circle",
    exchange("x", "fanout"),
    exchange("y", "fanout"),
    m("exchange.bind", destination="y", source="x"),
    m("exchange.bind", destination="x", source="y"),
    queue("q"),
    bind("q", "y"),
    publish("k", exchange="x"),
    take("q"),
    take("q"),
)
script(
    "exchange bind: route",
    exchange("x", "topic"),
    exchange("y", "direct"),
    queue("q"),
    m("exchange.bind", destination="y", source="x", routing_key="a.*"),
    bind("q", "y", "a.b"),
    publish("a.b", exchange="x"),
    take("q"),
    publish("a.c", exchange="x"),
    take("q"),
    m("exchange.unbind", destination="y", source="x", routing_key="a.*"),
    publish("a.b", exchange="x"),
    take("q"),
)

# --- routing ------------------------------------------------------------------------------------

_TOPICS = (
    "",
    "#",
    "*",
    "a.b",
    "a.*",
    "a.#",
    "#.b",
    "*.b",
    "a.*.c",
    "a.#.c",
    "#.#",
    "*.#",
    "a.b.#",
    "..",
    "a..c",
)
for _key in ("", "a", "a.b", "a.b.c", "a..c", ".", "b", "a.x.y.c"):
    script(
        f"topic: {_key!r}",
        *[
            step
            for pattern in _TOPICS
            for step in (
                queue("q"),
                bind("q", "amq.topic", pattern),
                publish(_key, pattern, exchange="amq.topic"),
                take("q"),
                m("queue.delete", queue="q"),
            )
        ],
    )


def headers_match(name: str, arguments: dict[str, Any], *tries: dict[str, Any]) -> None:
    steps: list[ClientMessage] = [queue("q"), bind("q", "amq.headers", "", arguments=arguments)]
    for headers in tries:
        steps += [publish("", exchange="amq.headers", headers=headers), take("q")]
    script(f"headers exchange: {name}", *steps)


headers_match(
    "all by default", {"a": "1", "b": 2}, {"a": "1", "b": 2}, {"a": "1"}, {"a": "1", "b": 2, "c": 3}, {}
)
headers_match("any", {"x-match": "any", "a": "1", "b": 2}, {"a": "1"}, {"b": 2}, {"a": "2"}, {})
headers_match("all without conditions", {"x-match": "all"}, {}, {"a": 1})
headers_match("any without conditions", {"x-match": "any"}, {}, {"a": 1})
headers_match("all-with-x", {"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, {"x-a": 2}, {})
headers_match("any-with-x", {"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, {"x-a": 2}, {})
headers_match("all passes over x- headers", {"x-match": "all", "x-a": 1, "b": 1}, {"b": 1}, {"x-a": 1})
headers_match("void means present", {"a": {"!V": None}}, {"a": 1}, {"a": "x"}, {"b": 1})
headers_match(
    "types of numbers",
    {"a": 1},
    {"a": {"!l": 1}},
    {"a": {"!d": 1.0}},
    {"a": "1"},
    {"a": True},
    {"a": {"!s": 1}},
)
headers_match("text and bytes", {"a": "1"}, {"a": {"!x": "31"}}, {"a": 1})
headers_match("booleans", {"a": True}, {"a": True}, {"a": False}, {"a": 1})
headers_match(
    "tables and lists",
    {"a": {"b": 1}, "c": [1, "x"]},
    {"a": {"b": 1}, "c": [1, "x"]},
    {"a": {"b": 1}, "c": [1]},
)
script(
    "headers exchange: unknown x-match",
    queue("q"),
    bind("q", "amq.headers", "", arguments={"x-match": "some", "a": 1}),
)
script(
    "headers exchange: x-match is a number",
    queue("q"),
    bind("q", "amq.headers", "", arguments={"x-match": 5, "a": 1}),
)
script(
    "headers exchange: message without headers",
    queue("q"),
    bind("q", "amq.headers", "", arguments={"x-match": "any", "a": 1}),
    publish("", exchange="amq.headers"),
    take("q"),
)

# --- queues -------------------------------------------------------------------------------------

script(
    "queue: declare",
    queue("q"),
    publish("q"),
    queue("q"),
    queue("q", passive=True),
    m("queue.delete", queue="q"),
    queue("q", passive=True),
)
script(
    "queue: server-named",
    queue(""),
    queue("$gen1", passive=True),
    publish("$gen1"),
    take(""),
    m("queue.delete", queue="$gen1"),
)
script("queue: two server-named", queue(""), queue(""), take(""), m("queue.delete", queue=""))
script("queue: passive of the last declared", queue("q"), queue("", passive=True))
script("queue: passive missing", queue("none", passive=True))
script("queue: passive with no name and none declared", queue("", passive=True))
script(
    "queue: passive ignores arguments",
    queue("q", arguments={"x-message-ttl": 5000}),
    queue("q", passive=True, durable=True, arguments={"x-message-ttl": 1}),
)
script("queue: reserved name", queue("amq.mine"))
script("queue: reserved name passive missing", queue("amq.mine", passive=True))
script("queue: line feed in the name", queue("q\n1"))
script("queue: no name, nothing declared", get(""))
script("queue: no name, the last one was deleted", queue("q"), m("queue.delete", queue="q"), get(""))
script("queue: no name, nothing declared: consume", consume(""))
script("queue: no name, nothing declared: purge", m("queue.purge", queue=""))
script("queue: no name, nothing declared: delete", m("queue.delete", queue=""))
script("queue: last declared belongs to the channel", queue("q"), get("", on="a2"))
script(
    "queue: exclusive, other connection: declare",
    queue("q", exclusive=True),
    queue("q", "b1", exclusive=True),
)
script(
    "queue: exclusive, other connection: declare not exclusive", queue("q", exclusive=True), queue("q", "b1")
)
script(
    "queue: exclusive, other connection: passive", queue("q", exclusive=True), queue("q", "b1", passive=True)
)
script("queue: exclusive, other connection: consume", queue("q", exclusive=True), consume("q", on="b1"))
script("queue: exclusive, other connection: get", queue("q", exclusive=True), get("q", "b1"))
script(
    "queue: exclusive, other connection: delete",
    queue("q", exclusive=True),
    m("queue.delete", "b1", queue="q"),
)
script(
    "queue: exclusive, other connection: purge", queue("q", exclusive=True), m("queue.purge", "b1", queue="q")
)
script(
    "queue: exclusive, other connection: publish is fine",
    queue("q", exclusive=True),
    publish("q", on="b1"),
    slow(m("basic.qos", "b1")),
    take("q"),
)
script(
    "queue: exclusive goes with its connection",
    queue("q", exclusive=True),
    m("connection.close", "a", reply_code=200),
    queue("q", "b1", passive=True),
)
script(
    "queue: exclusive goes with a dropped connection",
    queue("q", exclusive=True),
    consume("q"),
    slow(ClientMessage("a", "drop")),
    eventually(queue("q", "b1", passive=True)),
)
script(
    "queue: exclusive survives its channel",
    queue("q", exclusive=True),
    CLOSE_CHANNEL,
    queue("q", "a2", passive=True),
)
script("queue: durable differs", queue("q"), queue("q", durable=True))
script("queue: durable differs the other way", queue("q", durable=True), queue("q"))
script("queue: auto_delete differs", queue("q"), queue("q", auto_delete=True))
script("queue: exclusive differs", queue("q"), queue("q", exclusive=True))
script("queue: exclusive differs the other way", queue("q", exclusive=True), queue("q"))
script(
    "queue: durable exclusive",
    queue("q", durable=True, exclusive=True),
    queue("q", durable=True, exclusive=True),
)

_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "x-message-ttl": (5000, 6000),
    "x-expires": (50_000, 60_000),
    "x-max-length": (5, 6),
    "x-max-length-bytes": (500, 600),
    "x-max-priority": (5, 6),
    "x-dead-letter-exchange": ("amq.direct", "amq.fanout"),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-queue-mode": ("default", "lazy"),
    "x-single-active-consumer": (True, False),
    "x-queue-type": ("classic", "quorum"),
    "x-queue-version": (1, 2),
    "x-queue-master-locator": ("client-local", "min-masters"),
}
for _name, (_one, _two) in _ARGUMENTS.items():
    script(
        f"queue: {_name} differs",
        queue("q", durable=True, arguments={_name: _one}),
        queue("q", durable=True, arguments={_name: _one}),
        queue("q", durable=True, arguments={_name: _two}),
    )
    script(
        f"queue: {_name} only now",
        queue("q", durable=True),
        queue("q", durable=True, arguments={_name: _one}),
    )
    script(
        f"queue: {_name} no longer",
        queue("q", durable=True, arguments={_name: _one}),
        queue("q", durable=True),
    )
_QUORUM = {"x-queue-type": "quorum"}
script(
    "queue: x-delivery-limit differs",
    queue("q", durable=True, arguments={**_QUORUM, "x-delivery-limit": 2}),
    queue("q", durable=True, arguments={**_QUORUM, "x-delivery-limit": 3}),
)
script(
    "queue: x-dead-letter-routing-key differs",
    queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"}),
    queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}),
)
script(
    "queue: number types are equivalent",
    queue("q", arguments={"x-message-ttl": 5000}),
    queue("q", arguments={"x-message-ttl": {"!l": 5000}}),
    queue("q", arguments={"x-message-ttl": {"!s": 5000}}),
)
script(
    "queue: unknown arguments are ignored",
    queue("q", arguments={"x-foo": 1, "bar": "x"}),
    queue("q"),
    queue("q", arguments={"x-foo": 2}),
)
script(
    "queue: several arguments differ",
    queue("q", arguments={"x-message-ttl": 1000, "x-max-length": 5}),
    queue("q", arguments={"x-message-ttl": 2000, "x-max-length": 6}),
)
for _name in (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-delivery-limit",
):
    for _value in ("5", -1, 0, 1.5, True, {"!l": 1 << 40}, {"!V": None}, 256):
        script(
            f"queue: {_name} = {_value!r}",
            queue(
                "q",
                durable=True,
                arguments={_name: _value if not isinstance(_value, float) else {"!d": _value}},
            ),
        )
for _name, _values in {
    "x-dead-letter-exchange": (5, True, "none"),
    "x-dead-letter-routing-key": ("k", 5),
    "x-overflow": ("nope", 5, "reject-publish-dlx"),
    "x-queue-type": ("nope", 5, "stream"),
    "x-queue-mode": ("nope", 5),
    "x-single-active-consumer": ("yes", 1),
    "x-dead-letter-strategy": ("at-least-once", "at-most-once", "nope"),
    "x-max-in-memory-length": (5,),
    "x-max-age": ("1h",),
    "x-queue-leader-locator": ("client-local", "nope"),
    "x-queue-version": (3, "1"),
    "x-quorum-initial-group-size": (1, 0),
    "x-queue-master-locator": ("nope",),
}.items():
    for _value in _values:
        script(f"queue: {_name} = {_value!r}", queue("q", durable=True, arguments={_name: _value}))
script(
    "queue: x-dead-letter-routing-key with 5 and an exchange",
    queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5}),
)
script("quorum: transient", queue("q", arguments=_QUORUM))
script("quorum: exclusive", queue("q", durable=True, exclusive=True, arguments=_QUORUM))
script("quorum: auto_delete", queue("q", durable=True, auto_delete=True, arguments=_QUORUM))
script("quorum: server-named", queue("", durable=True, arguments=_QUORUM))
for _name, _value in (
    ("x-max-priority", 5),
    ("x-message-ttl", 5000),
    ("x-queue-mode", "lazy"),
    ("x-overflow", "reject-publish-dlx"),
    ("x-overflow", "reject-publish"),
    ("x-expires", 50_000),
    ("x-max-length", 5),
    ("x-delivery-limit", -1),
    ("x-delivery-limit", "2"),
):
    script(f"quorum: {_name} = {_value!r}", queue("q", durable=True, arguments={**_QUORUM, _name: _value}))
script("stream: declare", queue("s", durable=True, arguments={"x-queue-type": "stream"}))
script("stream: transient", queue("s", arguments={"x-queue-type": "stream"}))

script(
    "queue: purge",
    queue("q"),
    (publish("q"), publish("q"), publish("q")),
    get("q"),
    m("queue.purge", queue="q"),
    m("queue.purge", queue="q"),
    nack(1),
    queue("q", passive=True),
)
script("queue: purge missing", m("queue.purge", queue="none"))
script(
    "queue: purge no_wait",
    queue("q"),
    (publish("q"), m("queue.purge", queue="q", no_wait=True), queue("q", passive=True)),
)
script(
    "queue: delete counts ready messages",
    queue("q"),
    (publish("q"), publish("q"), publish("q")),
    get("q"),
    queue("q", passive=True),
    m("queue.delete", queue="q"),
)
script("queue: delete missing", m("queue.delete", queue="none"))
script("queue: delete missing if empty", m("queue.delete", queue="none", if_empty=True))
script(
    "queue: delete if empty, not empty", queue("q"), publish("q"), m("queue.delete", queue="q", if_empty=True)
)
script(
    "queue: delete if empty, one unacknowledged",
    queue("q"),
    publish("q"),
    get("q"),
    m("queue.delete", queue="q", if_empty=True),
)
script("queue: delete if empty", queue("q"), m("queue.delete", queue="q", if_empty=True))
script(
    "queue: delete if unused, in use",
    queue("q"),
    consume("q", "t"),
    m("queue.delete", queue="q", if_unused=True),
)
script(
    "queue: delete if unused and if empty, both fail",
    queue("q"),
    qos(1),
    consume("q", "t"),
    publish("q", "1"),
    publish("q", "2"),
    m("queue.delete", queue="q", if_unused=True, if_empty=True),
)
script("queue: delete if unused", queue("q"), m("queue.delete", queue="q", if_unused=True))
script(
    "queue: delete no_wait",
    queue("q"),
    (m("queue.delete", queue="q", no_wait=True), queue("q", passive=True)),
)
script("queue: declare no_wait", (queue("q", no_wait=True), queue("q", passive=True)))
script("queue: declare no_wait, error", queue("q"), queue("q", durable=True, no_wait=True))
script(
    "queue: auto-delete goes with its last consumer",
    queue("q", auto_delete=True),
    consume("q", "t"),
    consume("q", "u"),
    m("basic.cancel", consumer_tag="t"),
    queue("q", passive=True),
    m("basic.cancel", consumer_tag="u"),
    queue("q", passive=True),
)
script(
    "queue: auto-delete goes with its consumer's channel",
    queue("q", auto_delete=True),
    consume("q", "t", on="a2"),
    m("channel.close", "a2"),
    slow(m("basic.qos")),
    queue("q", passive=True),
)
script(
    "queue: auto-delete never consumed stays",
    queue("q", auto_delete=True),
    get("q"),
    queue("q", passive=True),
)
script(
    "queue: auto-delete goes with its last consumer, others' gets too",
    queue("q", auto_delete=True),
    publish("q"),
    get("q", on="a2"),
    consume("q", "t"),
    m("basic.cancel", consumer_tag="t"),
    ack(1, on="a2"),
    queue("q", on="a3", passive=True),
)
# Asking for the queue itself would keep it alive; the exchange that goes with its last binding tells.
script(
    "queue: x-expires",
    exchange("x", "direct", auto_delete=True),
    queue("q", arguments={"x-expires": 600}),
    bind("q", "x"),
    consume("q", "t"),
    m("basic.cancel", consumer_tag="t"),
    eventually(exchange("x", "direct", on="a2", passive=True)),
    queue("q", passive=True),
)
script(
    "queue: delete notifies the consumers",
    queue("q"),
    consume("q", "t"),
    consume("q", "u", on="a2"),
    m("queue.delete", "a3", queue="q"),
)
script(
    "queue: delete notifies the consumer on the same channel",
    queue("q"),
    consume("q", "t"),
    m("queue.delete", queue="q"),
    m("basic.cancel", consumer_tag="t"),
)
script(
    "queue: delete does not notify who cannot be",
    queue("q"),
    consume("q", "t", on="b1"),
    m("queue.delete", queue="q"),
    m("basic.qos", "b1"),
    b={"capabilities": {}},
)
script(
    "queue: acknowledge after the queue is gone",
    queue("q"),
    publish("q"),
    get("q"),
    m("queue.delete", queue="q"),
    ack(1),
    m("basic.qos"),
)

# --- consuming ----------------------------------------------------------------------------------

script("consume: missing queue", consume("none", "t"))
script(
    "consume: generated tag", queue("q"), consume("q"), publish("q"), m("basic.cancel", consumer_tag="$tag1")
)
script("consume: duplicate tag", queue("q"), consume("q", "t"), consume("q", "t"))
script("consume: same tag on another channel", queue("q"), consume("q", "t"), consume("q", "t", on="a2"))
script("consume: no_wait", queue("q"), (consume("q", "t", no_wait=True), m("basic.qos")), publish("q"))
script(
    "consume: no_wait without a tag",
    queue("q"),
    (consume("q", "", no_wait=True), m("basic.qos")),
    publish("q"),
)
script(
    "consume: exclusive, another is there",
    queue("q"),
    consume("q", "t"),
    consume("q", "u", on="a2", exclusive=True),
)
script(
    "consume: exclusive is there", queue("q"), consume("q", "t", exclusive=True), consume("q", "u", on="a2")
)
script(
    "consume: exclusive is there, get works", queue("q"), consume("q", "t", exclusive=True), get("q", on="a2")
)
script(
    "consume: exclusive after the other is gone",
    queue("q"),
    consume("q", "t"),
    m("basic.cancel", consumer_tag="t"),
    consume("q", "u", exclusive=True),
)
script(
    "consume: deliver what waits",
    queue("q"),
    (publish("q", "1"), publish("q", "2")),
    consume("q", "t"),
    ack(2, multiple=True),
    queue("q", passive=True),
)
script(
    "consume: no_ack",
    queue("q"),
    (publish("q", "1"), publish("q", "2")),
    consume("q", "t", no_ack=True),
    queue("q", passive=True),
    ack(1),
)
script("consume: cancel unknown", m("basic.cancel", consumer_tag="none"))
script(
    "consume: cancel",
    queue("q"),
    consume("q", "t"),
    publish("q"),
    m("basic.cancel", consumer_tag="t"),
    publish("q", "2"),
    queue("q", passive=True),
    ack(1),
    take("q"),
)
script(
    "consume: cancel no_wait",
    queue("q"),
    consume("q", "t"),
    (m("basic.cancel", consumer_tag="t", no_wait=True), m("basic.qos")),
    queue("q", passive=True),
)
script(
    "consume: unacknowledged survive cancel, not the channel",
    queue("q"),
    publish("q"),
    consume("q", "t", on="a2"),
    m("basic.cancel", "a2", consumer_tag="t"),
    take("q"),
    m("channel.close", "a2"),
    slow(m("basic.qos")),
    take("q"),
)
script(
    "consume: prefetch 1",
    queue("q"),
    (publish("q", "1"), publish("q", "2"), publish("q", "3")),
    qos(1),
    consume("q", "t"),
    ack(1),
    ack(2),
    ack(3),
)
script(
    "consume: prefetch per consumer",
    queue("q"),
    publish("q", "0"),
    (publish("q", "1"), publish("q", "2"), publish("q", "3")),
    qos(1),
    consume("q", "t"),
    consume("q", "u"),
    ack(1),
    ack(2),
)
script(
    "consume: prefetch of a channel",
    queue("q"),
    (publish("q", "0"), publish("q", "1"), publish("q", "2"), publish("q", "3")),
    qos(2, everyone=True),
    consume("q", "t"),
    consume("q", "u"),
    slow(ack(1)),
)
script(
    "consume: qos later does not change earlier consumers",
    queue("q"),
    (publish("q", "0"), publish("q", "1"), publish("q", "2")),
    qos(1),
    consume("q", "t"),
    qos(5),
    ack(1),
)
script(
    "consume: qos of the channel raised",
    queue("q"),
    (publish("q", "0"), publish("q", "1"), publish("q", "2")),
    qos(1, everyone=True),
    consume("q", "t"),
    qos(2, everyone=True),
    qos(0, everyone=True),
)
script("consume: prefetch size", qos(1, size=1000))
script("consume: prefetch size on a channel", qos(0, everyone=True, size=1))
script(
    "consume: prefetch and get",
    queue("q"),
    (publish("q", "0"), publish("q", "1"), publish("q", "2")),
    qos(1),
    get("q"),
    get("q"),
    consume("q", "t"),
)
script(
    "consume: channel prefetch counts gets",
    queue("q"),
    (publish("q", "0"), publish("q", "1"), publish("q", "2")),
    qos(1, everyone=True),
    get("q"),
    get("q"),
    consume("q", "t"),
    ack(1),
    ack(2),
)
script(
    "consume: round robin",
    queue("q"),
    qos(10),
    consume("q", "t"),
    consume("q", "u"),
    publish("q", "1"),
    publish("q", "2"),
    publish("q", "3"),
    publish("q", "4"),
)
script(
    "consume: priority",
    queue("q"),
    qos(2),
    consume("q", "low"),
    consume("q", "high", arguments={"x-priority": 5}),
    publish("q", "1"),
    publish("q", "2"),
    publish("q", "3"),
)
script("consume: priority is not a number", queue("q"), consume("q", "t", arguments={"x-priority": "5"}))
script(
    "consume: priority negative",
    queue("q"),
    qos(1),
    consume("q", "low", arguments={"x-priority": -5}),
    consume("q", "zero"),
    publish("q", "1"),
    publish("q", "2"),
)
script("consume: no_local is ignored", queue("q"), consume("q", "t", no_local=True), publish("q"))
script(
    "consume: single active",
    queue("q", arguments={"x-single-active-consumer": True}),
    qos(1),
    consume("q", "t"),
    consume("q", "u"),
    publish("q", "1"),
    publish("q", "2"),
    queue("q", passive=True),
    ack(1),
    m("basic.cancel", consumer_tag="t"),
)
script(
    "consume: single active, exclusive asked",
    queue("q", arguments={"x-single-active-consumer": True}),
    consume("q", "t", exclusive=True),
)
script(
    "consume: single active goes with its channel",
    queue("q", arguments={"x-single-active-consumer": True}),
    consume("q", "t", on="a2"),
    consume("q", "u"),
    publish("q", "1"),
    slow(m("channel.close", "a2")),
)
script(
    "consume: x-cancel-on-ha-failover and other arguments",
    queue("q"),
    consume("q", "t", arguments={"x-cancel-on-ha-failover": True, "foo": 1}),
)
script(
    "consume: stream offset on a classic queue",
    queue("q"),
    consume("q", "t", arguments={"x-stream-offset": "first"}),
)

# --- get, acknowledge, give back ----------------------------------------------------------------

script("get: empty", queue("q"), get("q"))
script("get: missing", get("none"))
script(
    "get: counts what is left",
    queue("q"),
    (publish("q", "1"), publish("q", "2"), publish("q", "3")),
    get("q"),
    get("q"),
    take("q"),
    get("q"),
)
script("ack: unknown tag", m("channel.open"), ack(5))
script("ack: unknown tag, multiple", m("channel.open"), ack(5, multiple=True))
script("ack: zero", m("channel.open"), ack(0))
script("ack: zero multiple, nothing there", m("channel.open"), ack(0, multiple=True), m("basic.qos"))
script(
    "ack: zero multiple takes all",
    queue("q"),
    (publish("q", "1"), publish("q", "2")),
    get("q"),
    get("q"),
    ack(0, multiple=True),
    CLOSE_CHANNEL,
    queue("q", "a2", passive=True),
)
script("ack: twice", queue("q"), publish("q"), get("q"), ack(1), ack(1))
script(
    "ack: multiple up to one already acknowledged",
    queue("q"),
    (publish("q", "1"), publish("q", "2"), publish("q", "3")),
    get("q"),
    get("q"),
    get("q"),
    ack(2),
    ack(2, multiple=True),
    m("basic.qos"),
)
script("ack: multiple beyond the last", queue("q"), publish("q"), get("q"), ack(7, multiple=True))
script(
    "ack: multiple",
    queue("q"),
    (publish("q", "1"), publish("q", "2"), publish("q", "3")),
    get("q"),
    get("q"),
    get("q"),
    ack(2, multiple=True),
    CLOSE_CHANNEL,
    slow(queue("q", "a2", passive=True)),
    take("q", "a2"),
)
script("ack: of another channel", queue("q"), publish("q"), get("q"), ack(1, on="a2"))
script("reject: unknown tag", m("channel.open"), reject(5))
script("nack: unknown tag", m("channel.open"), nack(5))
script("nack: unknown tag multiple", m("channel.open"), nack(5, multiple=True))
script("nack: zero multiple, nothing there", m("channel.open"), nack(0, multiple=True), m("basic.qos"))
script(
    "reject: give back",
    queue("q"),
    (publish("q", "1"), publish("q", "2")),
    get("q"),
    reject(1),
    get("q"),
    get("q"),
)
script(
    "reject: throw away",
    queue("q"),
    (publish("q", "1"), publish("q", "2")),
    get("q"),
    reject(1, requeue=False),
    get("q"),
)
script(
    "nack: multiple back in order",
    queue("q"),
    tuple(publish("q", str(n)) for n in range(4)),
    get("q"),
    get("q"),
    get("q"),
    nack(2, multiple=True),
    get("q"),
    get("q"),
    get("q"),
)
script(
    "nack: zero multiple gives all back",
    queue("q"),
    tuple(publish("q", str(n)) for n in range(3)),
    get("q"),
    get("q"),
    nack(0, multiple=True),
    get("q"),
    get("q"),
    get("q"),
)
script(
    "nack: one from the middle goes to its place",
    queue("q"),
    tuple(publish("q", str(n)) for n in range(4)),
    get("q"),
    get("q"),
    get("q"),
    reject(2),
    reject(1),
    get("q"),
    get("q"),
    get("q"),
)
script(
    "reject: a consumer gets it again",
    queue("q"),
    qos(1),
    consume("q", "t"),
    publish("q"),
    reject(1),
    reject(2),
    reject(3, requeue=False),
)
script(
    "channel close: gives back in order",
    queue("q"),
    tuple(publish("q", str(n)) for n in range(3)),
    get("q", "a2"),
    get("q", "a2"),
    slow(m("channel.close", "a2")),
    get("q"),
    get("q"),
    get("q"),
)
script(
    "connection drop: gives back in order",
    queue("q"),
    tuple(publish("q", str(n)) for n in range(3)),
    get("q", "b1"),
    get("q", "b1"),
    slow(ClientMessage("b", "drop")),
    eventually(queue("q", passive=True)),
    get("q"),
    get("q"),
    get("q"),
)
script(
    "recover: requeue",
    queue("q"),
    tuple(publish("q", str(n)) for n in range(2)),
    get("q"),
    get("q"),
    m("basic.recover", requeue=True),
    get("q"),
    get("q"),
)
script(
    "recover: to the consumer", queue("q"), consume("q", "t"), publish("q"), m("basic.recover", requeue=True)
)
script("recover: without requeue", queue("q"), publish("q"), get("q"), m("basic.recover", requeue=False))
script("recover: async", queue("q"), publish("q"), get("q"), m("basic.recover-async", requeue=True), get("q"))
script("recover: nothing", m("channel.open"), m("basic.recover", requeue=True))

# --- publishing ---------------------------------------------------------------------------------

script("publish: mandatory, no queue", m("channel.open"), publish("none", mandatory=True, message_id="m1"))
script(
    "publish: mandatory to an exchange without bindings",
    exchange("x", "direct"),
    publish("k", exchange="x", mandatory=True, headers={"a": 1}),
)
script("publish: mandatory and reached", queue("q"), publish("q", mandatory=True), take("q"))
script("publish: not mandatory, no queue", m("channel.open"), publish("none"), m("basic.qos"))
script("publish: immediate", m("channel.open"), publish("q", immediate=True))
script("publish: return comes before the confirm", CONFIRM, publish("none", mandatory=True), publish("none"))
script("confirm: select twice", CONFIRM, CONFIRM)
script("confirm: select no_wait", (m("confirm.select", no_wait=True), m("basic.qos")), publish("none"))
script(
    "confirm: counts from one",
    queue("q"),
    publish("q", "0"),
    CONFIRM,
    publish("q", "1"),
    publish("q", "2"),
    publish("q", "3", delivery_mode=2),
)
script(
    "confirm: durable queue, persistent",
    queue("q", durable=True),
    CONFIRM,
    publish("q", delivery_mode=2),
    take("q"),
)
script("confirm: on a tx channel", TX, CONFIRM)
script("tx: on a confirm channel", CONFIRM, TX)
script("tx: select twice", TX, TX)
script("tx: commit without select", m("tx.commit"))
script("tx: rollback without select", m("tx.rollback"))
script(
    "tx: commit",
    queue("q"),
    TX,
    publish("q"),
    queue("q", "a2", passive=True),
    m("tx.commit"),
    take("q", "a2"),
)
script(
    "tx: rollback",
    queue("q"),
    TX,
    publish("q"),
    m("tx.rollback"),
    queue("q", passive=True),
    m("tx.commit"),
    queue("q", passive=True),
)
script(
    "tx: acknowledge",
    queue("q"),
    publish("q"),
    TX,
    get("q"),
    ack(1),
    m("tx.rollback"),
    ack(1),
    m("tx.commit"),
    CLOSE_CHANNEL,
    slow(m("basic.qos", "a2")),
    take("q", "a2"),
)
script(
    "tx: acknowledge lost with the channel",
    queue("q"),
    publish("q"),
    TX,
    get("q"),
    ack(1),
    CLOSE_CHANNEL,
    slow(m("basic.qos", "a2")),
    take("q", "a2"),
)
script(
    "tx: reject",
    queue("q"),
    publish("q"),
    TX,
    get("q"),
    reject(1),
    take("q", "a2"),
    m("tx.commit"),
    slow(m("basic.qos", "a2")),
    take("q", "a2"),
)
script("tx: acknowledge unknown tag", TX, ack(9))
script("tx: publish to a missing exchange", TX, publish("k", exchange="none"))
script("tx: mandatory is returned at commit", TX, publish("none", mandatory=True), m("tx.commit"))
script("publish: user_id differs", m("channel.open"), publish("q", user_id="somebody"))
script("publish: user_id fits", queue("q"), publish("q", user_id="guest"), take("q"))
for _value in ("abc", "-1", "1.5", "", "0", " 5", "99999999999"):
    script(f"publish: expiration {_value!r}", queue("q"), publish("q", expiration=_value), m("basic.qos"))
script(
    "publish: all properties",
    queue("q"),
    publish(
        "q",
        "body",
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="z",
        headers={
            "s": "x",
            "i": 1,
            "l": {"!l": 1 << 40},
            "t": True,
            "d": {"!d": 1.5},
            "f": {"!f": 0.5},
            "v": {"!V": None},
            "T": {"!T": 1_600_000_000},
            "D": {"!D": [2, 314]},
            "x": {"!x": "00ff"},
            "F": {"n": {"m": 1}},
            "A": [1, "a", [2]],
            "b": {"!b": -1},
            "B": {"!B": 200},
            "s16": {"!s": -2},
            "u": {"!u": 65_535},
            "i32": {"!i": 4_000_000_000},
        },
    ),
    take("q"),
)
script("publish: no properties", queue("q"), publish("q"), take("q"))
script("publish: empty headers", queue("q"), publish("q", headers={}), take("q"))
script("publish: delivery_mode 7", queue("q"), publish("q", delivery_mode=7), take("q"))
script(
    "publish: CC", queue("q"), queue("r"), publish("q", headers={"CC": ["r"], "a": 1}), take("q"), take("r")
)
script(
    "publish: BCC", queue("q"), queue("r"), publish("q", headers={"BCC": ["r"], "a": 1}), take("q"), take("r")
)
script(
    "publish: CC and BCC and no route of its own",
    queue("q"),
    queue("r"),
    publish("none", headers={"CC": ["q"], "BCC": ["r"]}, mandatory=True),
    take("q"),
    take("r"),
)
script(
    "publish: CC to the same queue",
    queue("q"),
    publish("q", headers={"CC": ["q", "q"]}),
    take("q"),
    take("q"),
)
script("publish: CC is not a list", m("channel.open"), publish("q", headers={"CC": "r"}))
script("publish: CC holds a number", m("channel.open"), publish("q", headers={"CC": [5]}))
script("publish: BCC is not a list", m("channel.open"), publish("q", headers={"BCC": "r"}))
script(
    "publish: CC through a topic exchange",
    queue("q"),
    bind("q", "amq.topic", "a.*"),
    publish("none", exchange="amq.topic", headers={"CC": ["a.b"]}),
    take("q"),
)
script(
    "publish: to fanout twice bound",
    queue("q"),
    bind("q", "amq.fanout", "1"),
    bind("q", "amq.fanout", "2"),
    publish("k", exchange="amq.fanout"),
    take("q"),
    take("q"),
)
script("publish: default exchange uses queue names only", queue("q"), publish("q.x", mandatory=True))

# --- priorities, length, time to live -----------------------------------------------------------

script(
    "priority: order",
    queue("q", arguments={"x-max-priority": 5}),
    tuple(publish("q", f"{n}", priority=n) for n in (1, 3, 0, 9, 5, 3)),
    publish("q", "none"),
    *[take("q") for _ in range(8)],
)
script(
    "priority: ignored without x-max-priority",
    queue("q"),
    publish("q", "1", priority=1),
    publish("q", "9", priority=9),
    take("q"),
    take("q"),
)
script(
    "priority: given back",
    queue("q", arguments={"x-max-priority": 5}),
    publish("q", "low", priority=1),
    get("q"),
    publish("q", "high", priority=5),
    reject(1),
    take("q"),
    take("q"),
)
script(
    "length: drops the oldest",
    queue("q", arguments={"x-max-length": 2}),
    CONFIRM,
    publish("q", "1"),
    publish("q", "2"),
    publish("q", "3"),
    take("q"),
    take("q"),
    take("q"),
)
script(
    "length: reject-publish",
    queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}),
    CONFIRM,
    publish("q", "1"),
    publish("q", "2"),
    publish("q", "3", mandatory=True),
    take("q"),
    take("q"),
)
script(
    "length: reject-publish without confirms",
    queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}),
    publish("q", "1"),
    publish("q", "2"),
    take("q"),
    take("q"),
)
script(
    "length: reject-publish at one of two queues",
    queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}),
    queue("r"),
    bind("q", "amq.fanout"),
    bind("r", "amq.fanout"),
    CONFIRM,
    publish("", "1", exchange="amq.fanout"),
    publish("", "2", exchange="amq.fanout"),
    queue("q", passive=True),
    queue("r", passive=True),
)
script(
    "length: unacknowledged do not count",
    queue("q", arguments={"x-max-length": 1}),
    publish("q", "1"),
    get("q"),
    publish("q", "2"),
    publish("q", "3"),
    queue("q", passive=True),
    take("q"),
)
script(
    "length: given back beyond the limit",
    queue("q", arguments={"x-max-length": 1}),
    publish("q", "1"),
    get("q"),
    publish("q", "2"),
    reject(1),
    slow(queue("q", passive=True)),
    take("q"),
)
script(
    "length: zero",
    queue("q", arguments={"x-max-length": 0}),
    CONFIRM,
    publish("q", "1"),
    take("q"),
    consume("q", "t"),
    publish("q", "2"),
)
script(
    "length: bytes",
    queue("q", arguments={"x-max-length-bytes": 5}),
    publish("q", "abc"),
    publish("q", "def"),
    publish("q", "x"),
    take("q"),
    take("q"),
    take("q"),
)
script(
    "length: one message larger than the limit in bytes",
    queue("q", arguments={"x-max-length-bytes": 5}),
    CONFIRM,
    publish("q", "abcdefgh"),
    take("q"),
)
script("ttl: zero without a consumer", queue("q"), publish("q", expiration="0"), take("q"))
script("ttl: zero with a consumer", queue("q"), consume("q", "t"), publish("q", expiration="0"))
script(
    "ttl: queue with zero and a consumer",
    queue("q", arguments={"x-message-ttl": 0}),
    consume("q", "t"),
    publish("q"),
)
script("ttl: queue with zero, get", queue("q", arguments={"x-message-ttl": 0}), publish("q"), take("q"))

# --- dead letters -------------------------------------------------------------------------------


def dying(
    name: str,
    arguments: dict[str, Any],
    *steps: DialogueStep | ClientMessage | tuple[ClientMessage, ...],
    durable: bool = False,
) -> None:
    script(
        f"dead letter: {name}",
        queue("dead"),
        queue(
            "q",
            durable=durable,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **arguments},
        ),
        *steps,
    )


dying(
    "rejected",
    {},
    consume("dead", "d", on="a2", no_ack=True),
    publish("q", headers={"a": 1}, message_id="m"),
    get("q"),
    reject(1, requeue=False),
)
dying(
    "nacked multiple, in order",
    {},
    consume("dead", "d", on="a2", no_ack=True),
    (publish("q", "1"), publish("q", "2")),
    get("q"),
    get("q"),
    nack(2, multiple=True, requeue=False),
)
dying(
    "expired by message",
    {},
    consume("dead", "d", on="a2", no_ack=True),
    slow(publish("q", expiration="50", headers={"a": 1})),
)
dying(
    "expired by queue",
    {"x-message-ttl": 50},
    consume("dead", "d", on="a2", no_ack=True),
    slow(publish("q", "1")),
)
dying(
    "expired at once",
    {"x-message-ttl": 0},
    consume("dead", "d", on="a2", no_ack=True),
    slow(publish("q", "1")),
)
dying(
    "the lower time to live wins",
    {"x-message-ttl": 50},
    consume("dead", "d", on="a2", no_ack=True),
    slow(publish("q", "1", expiration="60000")),
)
dying(
    "only the head expires",
    {},
    consume("dead", "d", on="a2", no_ack=True),
    slow(publish("q", "1", expiration="600"), publish("q", "2", expiration="1"), settle=1.5),
)
dying(
    "too many",
    {"x-max-length": 1},
    consume("dead", "d", on="a2", no_ack=True),
    publish("q", "1"),
    slow(publish("q", "2")),
    take("q"),
)
dying(
    "too many, reject-publish-dlx",
    {"x-max-length": 1, "x-overflow": "reject-publish-dlx"},
    CONFIRM,
    consume("dead", "d", on="a2", no_ack=True),
    publish("q", "1"),
    free(publish("q", "2"), settle=1.0),
)
dying("purge is no death", {}, publish("q"), m("queue.purge", queue="q"), take("dead"))
dying("delete is no death", {}, publish("q"), m("queue.delete", queue="q"), take("dead"))
dying(
    "from an exchange with CC",
    {},
    consume("dead", "d", on="a2", no_ack=True),
    publish("q", headers={"CC": ["other"], "BCC": ["secret"]}),
    get("q"),
    reject(1, requeue=False),
)
script(
    "dead letter: own key without x-dead-letter-routing-key",
    queue("q", arguments={"x-dead-letter-exchange": "amq.topic"}),
    queue("dead"),
    bind("dead", "amq.topic", "#"),
    bind("q", "amq.direct", "k"),
    consume("dead", "d", on="a2", no_ack=True),
    publish("k", exchange="amq.direct", headers={"CC": ["cc"], "BCC": ["bcc"]}),
    get("q"),
    reject(1, requeue=False),
)
script(
    "dead letter: exchange missing",
    queue("q", arguments={"x-dead-letter-exchange": "none"}),
    publish("q"),
    get("q"),
    reject(1, requeue=False),
    m("basic.qos"),
)
script(
    "dead letter: twice, two queues",
    queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "r"}),
    queue("r", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}),
    queue("dead"),
    consume("dead", "d", on="a2", no_ack=True),
    publish("q"),
    get("q"),
    reject(1, requeue=False),
    eventually(queue("r", passive=True)),
    get("r"),
    reject(2, requeue=False),
)
script(
    "dead letter: retry loop counts",
    queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}),
    queue(
        "retry",
        arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"},
    ),
    consume("work", "w"),
    publish("work", headers={"a": 1}),
    slow(reject(1, requeue=False)),
    slow(reject(2, requeue=False)),
    slow(reject(3, requeue=False)),
)
script(
    "dead letter: circle without rejection is dropped",
    queue(
        "q", arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    ),
    slow(publish("q")),
    eventually(queue("q", passive=True)),
)
script(
    "dead letter: circle with rejection goes on",
    queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}),
    consume("q", "t"),
    publish("q"),
    slow(reject(1, requeue=False)),
    slow(reject(2, requeue=False)),
)
script(
    "dead letter: headers from the client",
    queue("dead"),
    queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}),
    consume("dead", "d", on="a2", no_ack=True),
    publish("q", headers={"x-death": "nonsense", "x-first-death-queue": "mine"}),
    get("q"),
    reject(1, requeue=False),
)
script(
    "dead letter: mandatory is not returned again",
    queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "none"}),
    publish("q", mandatory=True),
    get("q"),
    reject(1, requeue=False),
    m("basic.qos"),
)

# --- quorum queues ------------------------------------------------------------------------------

script(
    "quorum: delivery limit 2 without dead letters",
    slow(queue("q", durable=True, arguments={**_QUORUM, "x-delivery-limit": 2})),
    CONFIRM,
    publish("q"),
    slow(consume("q", "t")),
    slow(reject(1)),
    slow(reject(2)),
    slow(reject(3)),
    slow(queue("q", durable=True, passive=True)),
)
script(
    "quorum: delivery limit 2 with dead letters",
    queue("dead"),
    slow(
        queue(
            "q",
            durable=True,
            arguments={
                **_QUORUM,
                "x-delivery-limit": 2,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "dead",
            },
        )
    ),
    CONFIRM,
    consume("dead", "d", on="a2", no_ack=True),
    publish("q"),
    slow(consume("q", "t")),
    slow(reject(1)),
    slow(reject(2)),
    slow(reject(3)),
)
script(
    "quorum: x-delivery-count",
    slow(queue("q", durable=True, arguments=_QUORUM)),
    CONFIRM,
    publish("q", headers={"a": 1}),
    slow(get("q")),
    slow(reject(1)),
    slow(get("q")),
    slow(CLOSE_CHANNEL),
    slow(get("q", "a2")),
)
script(
    "quorum: global prefetch",
    slow(queue("q", durable=True, arguments=_QUORUM)),
    qos(5, everyone=True),
    slow(consume("q", "t")),
)
script(
    "quorum: rejected",
    queue("dead"),
    slow(
        queue(
            "q",
            durable=True,
            arguments={**_QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        )
    ),
    CONFIRM,
    consume("dead", "d", on="a2", no_ack=True),
    publish("q"),
    slow(get("q")),
    slow(reject(1, requeue=False)),
)

# --- direct reply-to ----------------------------------------------------------------------------

_REPLY = "amq.rabbitmq.reply-to"
script("reply-to: consume with acknowledgements", consume(_REPLY, "t"))
script("reply-to: consume", consume(_REPLY, "t", no_ack=True), m("basic.cancel", consumer_tag="t"))
script("reply-to: consume twice", consume(_REPLY, "t", no_ack=True), consume(_REPLY, "u", no_ack=True))
script("reply-to: publish without a consumer", queue("q"), publish("q", reply_to=_REPLY))
script("reply-to: passive declare", queue(_REPLY, passive=True))
script("reply-to: declare", queue(_REPLY))
script("reply-to: delete", m("queue.delete", queue=_REPLY))
script("reply-to: get", get(_REPLY, no_ack=True))
script(
    "reply-to: round trip",
    queue("rpc"),
    consume("rpc", "s", on="b1", no_ack=True),
    consume(_REPLY, "t", no_ack=True),
    publish("rpc", "question", reply_to=_REPLY, correlation_id="1"),
    publish("$reply1", "answer", on="b1", correlation_id="1", mandatory=True),
    queue("$reply1", "b1", passive=True),
)
script(
    "reply-to: the asker is gone",
    queue("rpc"),
    consume("rpc", "s", on="b1", no_ack=True),
    consume(_REPLY, "t", on="a2", no_ack=True),
    publish("rpc", "question", on="a2", reply_to=_REPLY),
    m("channel.close", "a2"),
    publish("$reply1", "answer", on="b1", mandatory=True),
    queue("$reply1", "b1", passive=True),
)
script(
    "reply-to: made-up address",
    m("channel.open"),
    publish("amq.rabbitmq.reply-to.nonsense", mandatory=True),
    queue("amq.rabbitmq.reply-to.nonsense", passive=True),
)

# --- which of several mistakes is named, and names of types ------------------------------------

script(
    "checks: exchange, everything differs",
    exchange("x", "direct"),
    exchange(
        "x", "fanout", durable=True, auto_delete=True, internal=True, arguments={"alternate-exchange": "y"}
    ),
)
script(
    "checks: exchange, all but the type",
    exchange("x", "direct"),
    exchange(
        "x", "direct", durable=True, auto_delete=True, internal=True, arguments={"alternate-exchange": "y"}
    ),
)
script(
    "checks: exchange, auto_delete and internal",
    exchange("x", "direct"),
    exchange("x", "direct", auto_delete=True, internal=True, arguments={"alternate-exchange": "y"}),
)
script(
    "checks: exchange, internal and alternate",
    exchange("x", "direct"),
    exchange("x", "direct", internal=True, arguments={"alternate-exchange": "y"}),
)
script(
    "checks: queue, everything differs",
    queue("q"),
    queue("q", durable=True, exclusive=True, auto_delete=True, arguments={"x-message-ttl": 5}),
)
script(
    "checks: queue, durable and auto_delete and argument",
    queue("q"),
    queue("q", durable=True, auto_delete=True, arguments={"x-message-ttl": 5}),
)
script(
    "checks: queue, auto_delete and argument",
    queue("q"),
    queue("q", auto_delete=True, arguments={"x-message-ttl": 5}),
)
script(
    "checks: queue, invalid argument and inequivalent",
    queue("q"),
    queue("q", durable=True, arguments={"x-message-ttl": -5}),
)
for _letter, _value in (("l", 5), ("s", 5), ("b", 5), ("B", 5), ("u", 5), ("i", 5), ("T", 5)):
    script(
        f"checks: type {_letter} of a number",
        queue("q"),
        queue("q", arguments={"x-message-ttl": {f"!{_letter}": _value}}),
    )
for _letter, _given in (
    ("f", {"!f": 5.0}),
    ("D", {"!D": [0, 5]}),
    ("x", {"!x": "35"}),
    ("F", {"a": 1}),
    ("A", [5]),
):
    script(f"checks: type {_letter} is no number", queue("q", arguments={"x-message-ttl": _given}))
script("checks: the longest x-message-ttl", queue("q", arguments={"x-message-ttl": {"!l": 315_360_000_000}}))
script(
    "checks: an x-message-ttl too long by one",
    queue("q", arguments={"x-message-ttl": {"!l": 315_360_000_001}}),
)
script("checks: CC with text and a number", queue("q"), publish("none", headers={"CC": [5, "q"]}), take("q"))
script(
    "checks: publish to amq.rabbitmq.trace", m("channel.open"), publish("k", exchange="amq.rabbitmq.trace")
)
