"""Priorities, length limits, time to live, dead letters."""

from __future__ import annotations

from typing import Any

from tests.amqp.dialogue import ClientMessage, DialogueStep

from .steps import (
    CONFIRM,
    bind,
    consume,
    eventually,
    free,
    get,
    m,
    nack,
    publish,
    queue,
    reject,
    script,
    slow,
    take,
)

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
