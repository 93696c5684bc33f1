"""What clients do to queues, exchanges and bindings, step by step, and what RabbitMQ answered to each step.

The answers are in `topology_answers.json`. Record them anew from a RabbitMQ with

    python -m tests.amqp.topology_steps PORT

A step is (connection, verb, what it is given); two connections, `a` and `b`, are enough for who may do what.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

Step = tuple[str, str, dict[str, Any]]
Answer = list[Any]  # ["ok", what it said], or [code, text]

ANSWERS = Path(__file__).with_name("topology_answers.json")


def q(name: str = "q", arguments: dict[str, Any] | None = None, by: str = "a", **flags: bool) -> Step:
    return by, "declare_queue", {"name": name, "arguments": arguments or {}, **flags}


def x(name: str = "x", kind: str = "direct", arguments: dict[str, Any] | None = None, **flags: bool) -> Step:
    return "a", "declare_exchange", {"name": name, "kind": kind, "arguments": arguments or {}, **flags}


def bind(queue: str = "q", exchange: str = "x", key: str = "k", by: str = "a", **arguments: Any) -> Step:
    return by, "bind_queue", {"queue": queue, "exchange": exchange, "key": key, "arguments": arguments}


def unbind(queue: str = "q", exchange: str = "x", key: str = "k", by: str = "a", **arguments: Any) -> Step:
    return by, "unbind_queue", {"queue": queue, "exchange": exchange, "key": key, "arguments": arguments}


def join(destination: str, source: str, key: str = "k") -> Step:
    return "a", "bind_exchange", {"destination": destination, "source": source, "key": key, "arguments": {}}


def part(destination: str, source: str, key: str = "k") -> Step:
    return "a", "unbind_exchange", {"destination": destination, "source": source, "key": key, "arguments": {}}


def drop(name: str = "q", by: str = "a", **flags: bool) -> Step:
    return by, "delete_queue", {"name": name, **flags}


def purge(name: str = "q", by: str = "a") -> Step:
    return by, "purge_queue", {"name": name}


def drop_exchange(name: str = "x", **flags: bool) -> Step:
    return "a", "delete_exchange", {"name": name, **flags}


def publish(exchange: str = "", key: str = "q") -> Step:
    return "a", "publish", {"exchange": exchange, "key": key}


_ODD: list[object] = [-1, 0, 1, "a", "", True, None, 2**31, 2**40, 2**63 - 1, ["a"], {"a": 1}]
_NUMBERS = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-delivery-limit",
    "x-max-in-memory-length",
    "x-quorum-initial-group-size",
)
_TEXTS = (
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-queue-type",
    "x-queue-leader-locator",
    "x-single-active-consumer",
    "x-queue-master-locator",
)
_TEN_YEARS_MS = 10 * 365 * 86_400_000  # the longest that RabbitMQ takes
_GIVEN: dict[str, list[object]] = {
    "x-message-ttl": [_TEN_YEARS_MS, _TEN_YEARS_MS + 1],
    "x-expires": [_TEN_YEARS_MS, _TEN_YEARS_MS + 1],
    "x-overflow": ["drop-head", "reject-publish", "reject-publish-dlx", "drop-tail"],
    "x-queue-mode": ["default", "lazy", "eager"],
    "x-queue-type": ["classic", "quorum", "stripe"],
    "x-dead-letter-exchange": ["nowhere"],
    "x-single-active-consumer": [False],
    "x-max-priority": [255, 256, 10],
    "x-queue-version": [2, 3],
    "x-dead-letter-strategy": ["at-most-once", "at-least-once", "never"],
    "x-queue-leader-locator": ["client-local", "balanced", "min-masters"],
}


def _situations() -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for name in (*_NUMBERS, *_TEXTS, "x-something", "x-cancel-on-ha-failover"):
        for value in (*_ODD, *_GIVEN.get(name, [])):
            found[f"argument {name} of {value!r}"] = [q("q", {name: value}, durable=True)]
            if name in (*_NUMBERS[:6], "x-overflow", "x-dead-letter-strategy") and value in (
                *(-1, 1, "a", 2**40),
                *_GIVEN.get(name, []),
            ):
                arguments = {"x-queue-type": "quorum", name: value}
                found[f"quorum argument {name} of {value!r}"] = [q("q", arguments, durable=True)]
    one: list[tuple[str, object, object]] = [
        ("x-message-ttl", 1000, 2000),
        ("x-message-ttl", 1000, 1000),
        ("x-message-ttl", 1000, 2**40),
        ("x-message-ttl", 1000, "1000"),
        ("x-expires", 60000, 70000),
        ("x-max-length", 5, 6),
        ("x-max-length-bytes", 5, 6),
        ("x-max-priority", 5, 6),
        ("x-overflow", "drop-head", "reject-publish"),
        ("x-dead-letter-exchange", "a", "b"),
        ("x-dead-letter-routing-key", "a", "b"),
        ("x-queue-mode", "lazy", "default"),
        ("x-queue-type", "classic", "quorum"),
        ("x-single-active-consumer", True, False),
        ("x-delivery-limit", 2, 3),
        ("x-something", "a", "b"),
        ("x-queue-version", 1, 2),
        ("x-queue-master-locator", "min-masters", "client-local"),
    ]
    for name, old, new in one:
        base: dict[str, Any] = {"x-dead-letter-exchange": "dead"} if "routing-key" in name else {}
        first = q("q", {**base, name: old}, durable=True)
        found[f"again with {name} {new!r} for {old!r}"] = [first, q("q", {**base, name: new}, durable=True)]
        found[f"again without {name} {old!r}"] = [first, q("q", base, durable=True)]
        found[f"again with new {name} {old!r}"] = [
            q("q", base, durable=True),
            q("q", {**base, name: old}, durable=True),
        ]
    for old in (False, True):
        for flag in ("durable", "auto_delete", "exclusive"):
            found[f"again with {flag} {not old} for {old}"] = [q(**{flag: old}), q(**{flag: not old})]
            found[f"again passively with {flag} {not old} for {old}"] = [
                q(**{flag: old}),
                q(passive=True, **{flag: not old}),
            ]
    many = {"x-max-length": 3, "x-expires": 60000, "x-message-ttl": 7}
    found |= {
        "several differences at once": [q(durable=True), q("q", many, auto_delete=True)],
        "several arguments differ": [q(), q("q", many)],
        "durable and auto_delete differ": [q(durable=True), q(auto_delete=True)],
        "argument and type differ": [
            q(durable=True),
            q("q", {"x-queue-type": "quorum", **many}, durable=True),
        ],
        "classic said and not said": [q("q", {"x-queue-type": "classic"}), q()],
        "classic not said and said": [q(), q("q", {"x-queue-type": "classic"})],
        "quorum not said": [q("q", {"x-queue-type": "quorum"}, durable=True), q(durable=True)],
        "quorum said": [q("q", {"x-queue-type": "quorum"}, durable=True)] * 2,
        "quorum not durable": [q("q", {"x-queue-type": "quorum"})],
        "quorum exclusive": [q("q", {"x-queue-type": "quorum"}, durable=True, exclusive=True)],
        "quorum auto_delete": [q("q", {"x-queue-type": "quorum"}, durable=True, auto_delete=True)],
        "quorum lazy": [q("q", {"x-queue-type": "quorum", "x-queue-mode": "lazy"}, durable=True)],
        "passive and missing": [q(passive=True)],
        "passive and missing without a name": [q("", passive=True)],
        "passive counts": [q(), publish(), publish(), q(passive=True), q()],
        "reserved": [q("amq.mine"), q("amq.mine", passive=True)],
        "exclusive of another": [
            q(exclusive=True),
            *(q(by="b"), q(by="b", exclusive=True), q(by="b", passive=True), purge(by="b"), drop(by="b")),
            *(bind(by="b", exchange="amq.direct"), unbind(by="b", exchange="amq.direct"), bind(by="b")),
            *(drop(by="b", if_empty=True), q(), q(exclusive=True), drop()),
        ],
        "dead letter key without exchange": [q("q", {"x-dead-letter-routing-key": "a"})],
        "overflow of a priority queue": [q("q", {"x-max-priority": 3, "x-overflow": "reject-publish-dlx"})],
        "name too strange": [q("a\rb"), q("a\nb"), q("ä b/@")],
        "name of another account's shape": [q("@v/q"), q("@v/q", passive=True), drop("@v/q")],
        # -- deleting and purging
        "delete": [q(), publish(), publish(), drop(), drop(), q(passive=True)],
        "delete if empty": [q(), publish(), drop(if_empty=True), purge(), drop(if_empty=True)],
        "delete if unused": [q(), drop(if_unused=True)],
        "delete what is not there": [drop("none"), drop("none", if_empty=True)],
        "purge": [q(), publish(), publish(), publish(), purge(), purge(), purge("none")],
        # -- exchanges
        "kinds": [x(kind, kind) for kind in ("direct", "fanout", "topic", "headers", "x-other", "")],
        "unknown kind of an exchange that exists": [x(), x(kind="x-other")],
        "exchange again": [x(durable=True), x(durable=True), x("x", "direct", passive=True)],
        "exchange passive and missing": [x(passive=True)],
        "exchange passive of another kind": [x(durable=True), x(kind="fanout", passive=True)],
        "exchange otherwise kind": [x(), x(kind="fanout")],
        "exchange otherwise durable": [x(durable=True), x()],
        "exchange otherwise auto_delete": [x(auto_delete=True), x()],
        "exchange otherwise internal": [x(internal=True), x()],
        "exchange otherwise alternate": [
            x(arguments={"alternate-exchange": "a"}),
            x(),
            x(arguments={"alternate-exchange": "b"}),
            x(arguments={"alternate-exchange": "a"}),
        ],
        "exchange otherwise argument": [x(arguments={"x-a": 1}), x(), x(arguments={"x-a": 2})],
        "exchange alternate of a wrong type": [x(arguments={"alternate-exchange": 5})],
        "exchange alternate empty": [x(arguments={"alternate-exchange": ""})],
        "exchange reserved": [
            x("amq.mine"),
            x("amq.direct", durable=True),
            x("amq.direct"),
            x("amq.direct", "topic"),
        ],
        "exchange reserved passive": [x("amq.direct", passive=True), x("amq.none", passive=True)],
        "exchange without a name": [x(""), x("", passive=True)],
        "exchange strange name": [x("a\rb"), x("a\nb"), x("ä b/@")],
        "exchange delete": [x(), drop_exchange(), drop_exchange(), x(passive=True)],
        "exchange delete reserved": [
            drop_exchange("amq.direct"),
            drop_exchange("amq.none"),
            drop_exchange(""),
        ],
        "exchange delete if unused": [
            *(x(), q(), bind(), drop_exchange(if_unused=True)),
            *(unbind(), drop_exchange(if_unused=True), drop_exchange(if_unused=True)),
        ],
        "exchange delete if unused as a destination": [
            *(x(), x("y"), join("x", "y"), drop_exchange("y", if_unused=True)),
            *(drop_exchange("x", if_unused=True), drop_exchange("y", if_unused=True)),
        ],
        # -- bindings
        "bind": [x(), q(), bind(), bind(), unbind(), unbind()],
        "bind what is not there": [
            bind(),
            q(),
            bind(),
            unbind(),
            x(),
            bind(queue="none"),
            unbind(queue="none"),
        ],
        "bind to the default exchange": [
            q(),
            bind(exchange=""),
            unbind(exchange=""),
            bind(exchange="", queue="no"),
        ],
        "bind headers": [
            *(x(kind="headers"), q(), bind(**{"x-match": "all", "a": 1}), bind(**{"x-match": "some"})),
            *(bind(**{"x-match": 5}), bind(**{"x-match": "any-with-x"}), bind(a="b"), bind()),
            unbind(**{"x-match": "some"}),
        ],
        "bind headers wrongly to a direct exchange": [x(), q(), bind(**{"x-match": "some"})],
        "bind exchanges": [
            *(x(), x("y"), join("y", "x"), join("y", "x"), part("y", "x"), part("y", "x")),
            *(join("none", "x"), join("x", "none"), part("none", "x"), part("x", "none")),
            *(join("", "x"), join("x", ""), part("", "x"), part("x", ""), join("x", "x")),
        ],
        "auto_delete exchange goes with its last binding": [
            *(x(auto_delete=True), q(), bind(), bind(key="l"), unbind(), x(passive=True)),
            *(unbind(key="l"), x(passive=True)),
        ],
        "auto_delete exchange goes with its last queue": [
            *(x(auto_delete=True), q(), bind(), drop(), x(passive=True)),
        ],
        "auto_delete exchange goes with its last exchange": [
            *(x(auto_delete=True), x("y"), join("y", "x"), drop_exchange("y"), x(passive=True)),
        ],
        "auto_delete destination stays": [
            *(x(), x("y", auto_delete=True), join("y", "x"), part("y", "x"), x("y", passive=True)),
        ],
        "durable exchange to a queue that is not": [x(durable=True), q(), bind()],
    }
    return found


SITUATIONS = _situations()


def _record(port: int) -> dict[str, list[Answer]]:
    import pika
    from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, StreamLostError

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    where = pika.ConnectionParameters("127.0.0.1", port)
    answers: dict[str, list[Answer]] = {}
    for title, steps in SITUATIONS.items():
        links: dict[str, Any] = {}
        answers[title] = []
        for by, verb, given in steps:
            if by not in links:
                links[by] = pika.BlockingConnection(where)
            signal.alarm(10)
            try:
                answers[title].append(["ok", _do(links[by].channel(), verb, dict(given))])
            except ChannelClosedByBroker as error:
                answers[title].append([error.reply_code, error.reply_text])
            except ConnectionClosedByBroker as error:
                answers[title].append([error.reply_code, error.reply_text])
                links.pop(by)
            except (StreamLostError, TimeoutError):  # something it cannot answer: the channel just dies
                answers[title].append([541, "INTERNAL_ERROR"])
                links.pop(by)
            finally:
                signal.alarm(0)
        cleaner = pika.BlockingConnection(where) if "a" not in links else links["a"]
        for _, verb, given in steps:
            if verb in ("declare_queue", "declare_exchange"):
                try:
                    channel = cleaner.channel()
                    channel.queue_delete(given["name"]) if "queue" in verb else channel.exchange_delete(
                        given["name"]
                    )
                except ChannelClosedByBroker:
                    pass
        for link in {**links, "cleaner": cleaner}.values():
            if link.is_open:
                link.close()
    return answers


def _do(channel: Any, verb: str, given: dict[str, Any]) -> object:
    if verb == "declare_queue":
        answer = channel.queue_declare(given.pop("name"), **given).method
        return answer.message_count
    if verb == "declare_exchange":
        return channel.exchange_declare(given.pop("name"), given.pop("kind"), **given) and None
    if verb == "delete_queue":
        return channel.queue_delete(given.pop("name"), **given).method.message_count
    if verb == "purge_queue":
        return channel.queue_purge(given.pop("name")).method.message_count
    if verb == "delete_exchange":
        return channel.exchange_delete(given.pop("name"), **given) and None
    if verb == "publish":
        channel.confirm_delivery()
        return channel.basic_publish(given["exchange"], given["key"], b"")
    given["routing_key"] = given.pop("key")
    act = {
        "bind_queue": channel.queue_bind,
        "unbind_queue": channel.queue_unbind,
        "bind_exchange": channel.exchange_bind,
        "unbind_exchange": channel.exchange_unbind,
    }
    return act[verb](**given) and None


if __name__ == "__main__":
    recorded = _record(int(sys.argv[1]))
    lines = [f"{json.dumps(title)}: {json.dumps(each)}" for title, each in recorded.items()]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
