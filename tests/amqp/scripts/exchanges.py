"""Exchanges, bindings and routing."""

from __future__ import annotations

from typing import Any

from tests.amqp.dialogue import ClientMessage

from .steps import CONFIRM, bind, exchange, m, publish, queue, script, slow, take

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
