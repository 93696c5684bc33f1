"""Publishing, confirms, transactions, direct reply-to."""

from __future__ import annotations

from .steps import (
    CLOSE_CHANNEL,
    CONFIRM,
    TX,
    ack,
    bind,
    consume,
    exchange,
    get,
    m,
    publish,
    queue,
    reject,
    script,
    slow,
    take,
)

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
