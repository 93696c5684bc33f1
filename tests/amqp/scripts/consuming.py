"""Consumers, basic.get, acknowledgements."""

from __future__ import annotations

from tests.amqp.dialogue import ClientMessage

from .steps import (
    CLOSE_CHANNEL,
    ack,
    consume,
    eventually,
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
