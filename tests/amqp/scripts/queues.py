"""Queues: declaration, arguments, deletion; quorum queues."""

from __future__ import annotations

from typing import Any

from tests.amqp.dialogue import ClientMessage

from .steps import (
    CLOSE_CHANNEL,
    CONFIRM,
    ack,
    bind,
    consume,
    eventually,
    exchange,
    get,
    m,
    nack,
    publish,
    qos,
    queue,
    reject,
    script,
    slow,
    take,
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
