"""Which of several errors is reported, and names of types."""

from __future__ import annotations

from .steps import exchange, m, publish, queue, script, take

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
