"""Who may do what through AMQP: every method, with all the rights it needs and with each of them missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.config import Config
from openq.local.broker import LocalBroker
from tests.amqp.dialogue import ConnectionEnded
from tests.amqp.dialogue_codec import METHODS_BY_NAME
from tests.amqp.raw_client import RawClient, error_of, method, publish
from tests.server.in_process import in_process_server
from tests.serving import free_port

Right = tuple[str, str]  # action, name
ALTERNATE = {"alternate-exchange": "other"}
LETTERS = {"x-dead-letter-exchange": "other"}

# The method, what it says, what it is answered with, and what it takes.
GUARDED: list[tuple[str, dict[str, Any], str, list[Right]]] = [
    ("exchange.declare", {"exchange": "new", "type": "direct"}, "", [("manage", "new")]),
    (
        "exchange.declare",
        {"exchange": "new", "type": "direct", "arguments": ALTERNATE},
        "",
        [("manage", "new"), ("send", "other")],
    ),
    ("exchange.delete", {"exchange": "x"}, "", [("manage", "x")]),
    ("exchange.bind", {"destination": "x", "source": "y"}, "", [("manage", "x"), ("manage", "y")]),
    ("exchange.unbind", {"destination": "x", "source": "y"}, "", [("manage", "x"), ("manage", "y")]),
    ("queue.declare", {"queue": "new"}, "", [("manage", "new")]),
    (
        "queue.declare",
        {"queue": "new", "arguments": LETTERS},
        "",
        [("manage", "new"), ("send", "other")],
    ),
    (
        "queue.declare",
        {"queue": "new", "arguments": {"x-dead-letter-exchange": {"!x": b"other".hex()}}},
        "",
        [("manage", "new"), ("send", "other")],
    ),
    (
        "queue.declare",
        {
            "queue": "new",
            "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "other"},
        },
        "",
        [("manage", "new"), ("send", "other")],
    ),
    (
        "queue.declare",
        {"queue": "new", "arguments": {"x-dead-letter-exchange": ""}},
        "",
        [("manage", "new"), ("send", "*")],
    ),
    (
        "exchange.declare",
        {"exchange": "new", "type": "direct", "arguments": {"alternate-exchange": ""}},
        "",
        [("manage", "new"), ("send", "*")],
    ),
    ("queue.bind", {"queue": "q", "exchange": "x"}, "", [("manage", "q"), ("manage", "x")]),
    ("queue.unbind", {"queue": "q", "exchange": "x"}, "", [("manage", "q"), ("manage", "x")]),
    ("queue.purge", {"queue": "q"}, "", [("manage", "q")]),
    ("queue.delete", {"queue": "q"}, "", [("manage", "q")]),
    ("basic.consume", {"queue": "q"}, "", [("receive", "q")]),
    ("basic.get", {"queue": "q"}, "basic.get-empty", [("receive", "q")]),
    ("basic.publish", {"routing_key": "q"}, "basic.ack", [("send", "q")]),
    ("basic.publish", {"exchange": "x"}, "basic.ack", [("send", "x")]),
    (
        "basic.publish",
        {"routing_key": "q", "headers": {"CC": ["r"]}},
        "basic.ack",
        [("send", "q"), ("send", "r")],
    ),
    (
        "basic.publish",
        {"routing_key": "q", "headers": {"BCC": ["r"]}},
        "basic.ack",
        [("send", "q"), ("send", "r")],
    ),
]
# These take nothing but to be there: they are about the channel, or about what one holds already.
FREE: list[tuple[str, dict[str, Any], str]] = [
    ("access.request", {}, ""),
    ("basic.cancel", {"consumer_tag": "none"}, ""),
    ("basic.qos", {"prefetch_count": 1}, ""),
    ("basic.recover", {"requeue": True}, ""),
    ("basic.recover-async", {"requeue": True}, "none"),
    ("channel.close", {}, ""),
    ("channel.flow", {"active": True}, ""),
    ("confirm.select", {}, ""),
    ("exchange.declare", {"exchange": "amq.topic", "passive": True}, ""),  # every vhost has it
    ("tx.select", {}, ""),
    ("connection.update-secret", {"new_secret": "s", "reason": "r"}, ""),
]
# Refused for other reasons than rights, in `test_dialogues`, or part of the handshake.
ELSEWHERE = {
    *("basic.ack", "basic.nack", "basic.reject", "tx.commit", "tx.rollback", "channel.open"),
    *("connection.start-ok", "connection.secure-ok", "connection.tune-ok", "connection.open"),
    *("connection.close", "connection.close-ok", "channel.close-ok", "channel.flow-ok", "basic.cancel-ok"),
    *("connection.blocked", "connection.unblocked"),
}
FROM_SERVERS = {"connection.start", "connection.secure", "connection.tune", "basic.return", "basic.deliver"}
PASSWORD = "a long secret"


class PermissionsServer:
    def __init__(self, port: int, store: UserStore) -> None:
        self.port = port
        self.store = store
        store.add_user("root", password=PASSWORD, role="admin", is_root=True)
        store.add_user("user", password=PASSWORD)

    def allow(self, rights: Sequence[Right], account: str | None = None) -> None:
        rules = [Rule("allow", frozenset([action]), name, account) for action, name in rights]
        # Something, so that it may come in at all.
        rules.append(Rule("allow", frozenset(["receive"]), "elsewhere", account))
        self.store.set_rules("user", rules)

    def sign_in(self, name: str, vhost: str = "/") -> RawClient:
        return RawClient(self.port, user=name, password=PASSWORD, vhost=vhost)

    def prepare(self) -> None:
        with self.sign_in("root") as root:
            for exchange in ("x", "y", "other"):
                root.call("exchange.declare", exchange=exchange, type="fanout", durable=True)
            for queue in ("q", "r"):
                root.declare(queue)
                root.call("queue.purge", queue=queue)
            root.call("queue.delete", queue="new")
            root.call("exchange.delete", exchange="new")


@pytest.fixture(scope="module")
def amqp_server() -> Iterator[PermissionsServer]:
    port = free_port()
    config = Config(memory=True, drain_timeout_s=1, amqp_port=port)
    with in_process_server(LocalBroker(), config) as server:
        yield PermissionsServer(port, server.server.guard.store)


def does(client: RawClient, name: str, fields: dict[str, Any], answer: str) -> None:
    if name == "basic.publish":
        client.confirming()
        more = dict(fields)
        headers = more.pop("headers", None)
        properties = {"headers": headers} if headers else {}
        key = more.pop("routing_key", "k")
        client.send(publish(1, key, b"x", properties=properties, **more))
        client.settled(1)
    elif answer == "none":
        client.send(method(1, name, **fields))
        client.call("basic.qos")
    else:
        channel = 0 if name.startswith("connection.") else 1
        client.call(name, answer, channel=channel, **fields)


def label(case: Any) -> str:
    return f"{case[0]} {' '.join(map(str, case[1].values()))}"


@pytest.mark.parametrize("case", GUARDED, ids=label)
def test_a_method_needs_each_of_its_permissions(amqp_server: PermissionsServer, case: Any) -> None:
    name, fields, answer, rights = case
    for missing in range(len(rights)):
        amqp_server.prepare()
        # The other actions on the same name are no substitute, nor is the right action on another one.
        action, on = rights[missing]
        wrong = [(other, on) for other in ("send", "receive", "peek", "manage") if other != action]
        wrong = [right for right in wrong if right not in rights]
        amqp_server.allow([*rights[:missing], *rights[missing + 1 :], *wrong, (action, f"{on}-not")])
        with (
            amqp_server.sign_in("user") as client,
            pytest.raises(ConnectionEnded, match=r"403.*ACCESS_REFUSED - access to"),
        ):
            does(client, name, fields, answer)
    amqp_server.prepare()
    amqp_server.allow(rights)
    with amqp_server.sign_in("user") as client:
        does(client, name, fields, answer)


@pytest.mark.parametrize("case", FREE, ids=label)
def test_methods_without_an_object_need_no_permission(amqp_server: PermissionsServer, case: Any) -> None:
    amqp_server.prepare()
    amqp_server.allow([])
    with amqp_server.sign_in("user") as client:
        does(client, *case)


# Whatever may be done with a queue or an exchange by name, and what came of it before anybody was asked.
ABOUT_QUEUES: list[tuple[str, dict[str, Any]]] = [
    ("queue.declare", {"passive": True}),
    ("queue.declare", {}),
    ("queue.declare", {"durable": True}),
    ("queue.declare", {"exclusive": True}),
    ("queue.declare", {"arguments": {"x-max-length": 5}}),
    ("queue.bind", {"exchange": "amq.topic"}),
    ("queue.unbind", {"exchange": "amq.topic"}),
    ("queue.purge", {}),
    ("queue.delete", {}),
    ("queue.delete", {"if_empty": True}),
    ("queue.delete", {"if_unused": True}),
    ("basic.get", {}),
    ("basic.consume", {}),
    ("basic.consume", {"exclusive": True}),
]
ABOUT_EXCHANGES: list[tuple[str, dict[str, Any]]] = [
    ("exchange.declare", {"passive": True}),
    ("exchange.declare", {"type": "fanout", "durable": True}),
    ("exchange.declare", {"type": "direct"}),
    ("exchange.declare", {"type": "unknown"}),
    ("exchange.delete", {}),
    ("exchange.delete", {"if_unused": True}),
    ("basic.publish", {}),
]


def test_an_unauthorized_client_cannot_learn_whether_an_object_exists(amqp_server: PermissionsServer) -> None:
    amqp_server.prepare()
    amqp_server.allow([("manage", "amq.topic"), ("manage", "y")])
    ends = ("exchange.bind", "exchange.unbind")
    cases = [
        *(("queue", "q", *case) for case in ABOUT_QUEUES),
        *(("routing_key", "q", "basic.publish", {"mandatory": mandatory}) for mandatory in (False, True)),
        *(("exchange", "x", *case) for case in ABOUT_EXCHANGES),
        *(("source", "x", name, {"destination": "y"}) for name in ends),
        *(("destination", "x", name, {"source": "y"}) for name in ends),
    ]

    def reported(name: str, fields: dict[str, Any], what: str) -> str:
        with amqp_server.sign_in("user") as client:
            return error_of(lambda: does(client, name, fields, "")).replace(f"'{what}'", "NAME")

    with amqp_server.sign_in("root") as root:
        root.call("basic.consume", queue="q")
        for field, there, name, fields in cases:
            answer = reported(name, {**fields, field: there}, there)
            assert answer == reported(name, {**fields, field: "none"}, "none"), (name, fields)
            assert "403" in answer, (name, fields)


@pytest.mark.parametrize("action", ["send", "receive", "peek", "manage"])
def test_any_permission_on_an_object_allows_a_passive_declare(
    amqp_server: PermissionsServer, action: str
) -> None:
    amqp_server.prepare()
    amqp_server.allow([(action, name) for name in ("q", "x", "none")])
    with amqp_server.sign_in("user") as client:
        client.call("queue.declare", queue="q", passive=True)
        client.call("exchange.declare", exchange="x", passive=True)
        with pytest.raises(ConnectionEnded, match="404"):
            client.call("queue.declare", queue="none", passive=True)


def test_permissions_are_checked_on_the_name_without_line_ends(amqp_server: PermissionsServer) -> None:
    """RabbitMQ drops line ends from the names of what is declared."""
    amqp_server.prepare()
    amqp_server.allow([("manage", "q?"), ("manage", "x?")])
    for name, fields in (
        ("queue.declare", {"queue": "q\n", "durable": True}),
        ("queue.declare", {"queue": "q\r", "passive": True}),
        ("exchange.declare", {"exchange": "x\n", "type": "fanout", "durable": True}),
        ("exchange.delete", {"exchange": "x\n"}),
    ):
        with amqp_server.sign_in("user") as client, pytest.raises(ConnectionEnded, match="403"):
            client.call(name, **fields)


def test_every_method_is_covered() -> None:
    answers = {name for name in METHODS_BY_NAME if name.endswith(("-ok", "-empty"))}
    checked = {case[0] for case in GUARDED} | {case[0] for case in FREE}

    assert set(METHODS_BY_NAME) - answers - FROM_SERVERS - ELSEWHERE == checked - answers


@pytest.mark.parametrize(("account", "vhost"), [("other", "/"), (None, "other")])
def test_a_permission_is_limited_to_its_vhost(
    amqp_server: PermissionsServer, account: str | None, vhost: str
) -> None:
    if amqp_server.store.user("neighbour") is None:
        amqp_server.store.add_user("neighbour", account="other", password=PASSWORD, role="manager")
    amqp_server.allow([("send", "q")])
    name = "user" if account is None else "neighbour"

    with pytest.raises(ConnectionEnded, match=f"530.*access to vhost '{vhost}' refused for user '{name}'"):
        amqp_server.sign_in(name, vhost).close()


def test_the_same_queue_name_in_two_vhosts_is_two_queues(amqp_server: PermissionsServer) -> None:
    if amqp_server.store.user("neighbour") is None:
        amqp_server.store.add_user("neighbour", account="other", password=PASSWORD, role="manager")
    amqp_server.prepare()
    with amqp_server.sign_in("neighbour", "other") as there, amqp_server.sign_in("root") as here:
        there.declare("q")
        here.confirming().publish_all("q", [b"here"])

        assert there.declare("q") == 0
        assert here.declare("q") == 1
