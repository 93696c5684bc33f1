"""The policy of a queue counts in this protocol for every operation, by the name that SQS has for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from openq.auth.rules import SQS_ACTIONS, Rule
from openq.auth.store import UserStore
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.model import DeadLetterEvent, DeliveryOptions, Draft, QueueSettings
from openq.rest.handler import ROUTES
from tests.rest.helpers import Client
from tests.server.in_process import InProcessServer, in_process_server

HOME, ABROAD, REGION = "000000000000", "111111111111", "eu-north-1"
QUEUE_ACTIONS = frozenset({"send", "receive", "peek", "manage"})


class RunningServer:
    def __init__(self, server: InProcessServer, broker: LocalBroker) -> None:
        self.url = f"http://127.0.0.1:{server.port}"
        self.store: UserStore = server.server.store
        self.broker = broker

    def user(self, name: str, *rules: Rule, account: str = HOME, target: str | None = None) -> Client:
        self.store.add_user(name, account=account, rules=list(rules))
        token = self.store.create_token(name, "test")
        return Client(self.url, headers={"authorization": f"Bearer {token}"}, account=target)

    def queue(self, name: str, *statements: Mapping[str, Any], **settings: Any) -> str:
        arn = f"arn:aws:sqs:{REGION}:{HOME}:{name}"
        full = [{"Principal": "*", "Resource": arn, **each} for each in statements]
        policy = json.dumps({"Version": "2012-10-17", "Statement": full})
        notes = {"sqs.Policy": policy} if statements else {}
        self.broker.declare(name, QueueSettings(notes=notes, **settings))
        return f"/queues/{name}"

    def dead_letter(self, dead: str, source: str, body: bytes = b"x") -> None:
        past = DeliveryOptions(deaths=(DeadLetterEvent(source, "rejected", 1, 1),))
        self.broker.publish(dead, Draft(body, past=past))

    def bodies(self, queue: str) -> list[bytes | None]:
        return [entry.body for entry in self.broker.inspect.entries(queue)]


@pytest.fixture
def running() -> Iterator[RunningServer]:
    broker = LocalBroker(None)
    config = Config(memory=True, drain_timeout_s=1, region=REGION)
    with in_process_server(broker, config) as server:
        yield RunningServer(server, broker)


def everything(pattern: str = "*") -> Rule:
    return Rule("allow", QUEUE_ACTIONS, pattern)


def ended(client: Client, started: Any) -> dict[str, Any]:
    """A task when it is over."""
    assert started.status == 202, started.data
    while (task := client.get(f"/tasks/{started.value['id']}").value)["state"] == "running":
        pass
    found: dict[str, Any] = task
    return found


# Connections, exchanges, buckets and workers have no policy: what a user may do decides alone.
NOT_ABOUT_QUEUES = ("connections", "exchanges", "kv", "workers")


def test_every_route_about_a_queue_says_what_its_policy_is_asked() -> None:
    for route in ROUTES:
        if route.scope not in ("server", "caller", "public", "visitor"):
            assert set(route.sqs_actions) <= set(SQS_ACTIONS), route.path
            assert route.sqs_actions or route.path.startswith(NOT_ABOUT_QUEUES), route.path


Ask = Callable[[Client, str], Any]
DENIED: list[tuple[str, Ask]] = [
    ("SendMessage", lambda c, q: c.post(f"{q}/messages", {"payload": "x"})),
    ("ReceiveMessage", lambda c, q: c.post(f"{q}/receive", {})),
    ("ReceiveMessage", lambda c, q: c.get(f"{q}/messages")),
    ("ReceiveMessage", lambda c, q: c.post(f"{q}/search", {})),
    ("ReceiveMessage", lambda c, q: c.get(f"/export?queue={q.rpartition('/')[2]}")),
    ("DeleteMessage", lambda c, q: c.post(f"{q}/ack", {"receipts": []})),
    ("DeleteMessage", lambda c, q: c.post(f"{q}/nack", {"receipts": [], "reject": True})),
    ("DeleteMessage", lambda c, q: c.delete(f"{q}/messages/unknown")),
    ("ChangeMessageVisibility", lambda c, q: c.post(f"{q}/nack", {"receipts": []})),
    ("ChangeMessageVisibility", lambda c, q: c.post(f"{q}/extend", {"receipts": [], "seconds": 1})),
    ("PurgeQueue", lambda c, q: c.post(f"{q}/purge")),
    ("PurgeQueue", lambda c, q: c.post(f"{q}/discard", {})),
    ("DeleteQueue", lambda c, q: c.delete(q)),
    ("CreateQueue", lambda c, q: c.post("/queues", {"name": q.rpartition("/")[2]})),
    ("SetQueueAttributes", lambda c, q: c.patch(q, {"delay": 1})),
    ("SetQueueAttributes", lambda c, q: c.post(f"{q}/pause")),
    ("GetQueueAttributes", lambda c, q: c.get(q)),
    ("GetQueueAttributes", lambda c, q: c.get(f"{q}/stats")),
    ("StartMessageMoveTask", lambda c, q: c.post(f"{q}/redrive", {"dry_run": True})),
    ("SendMessage", lambda c, q: c.post("/queues/other/redrive", {"to": q.rpartition("/")[2]})),
    ("SendMessage", lambda c, q: c.post(f"{q}/replay", {"since": 0, "dry_run": True})),
]


@pytest.mark.parametrize(("action", "ask"), DENIED)
def test_what_a_policy_denies_by_the_name_of_sqs_is_denied_here(
    running: RunningServer, action: str, ask: Ask
) -> None:
    client = running.user("ann", everything())
    running.queue("other")
    denied = running.queue("denied", {"Effect": "Deny", "Action": f"sqs:{action}"})
    free = running.queue("free", {"Effect": "Deny", "Action": "sqs:TagQueue"})

    assert ask(client, denied).status == 403
    assert ask(client, free).status != 403
    assert "denied" in running.broker.queues()


def test_who_may_only_receive_by_a_policy_cannot_settle_nor_look_at_settings(running: RunningServer) -> None:
    guest = running.user("eve", account=ABROAD, target=HOME)
    shared = running.queue(
        "shared", {"Effect": "Allow", "Principal": {"AWS": ABROAD}, "Action": "sqs:ReceiveMessage"}
    )
    running.broker.publish("shared", Draft(b"x"))

    [message] = guest.receive(shared)
    receipts = {"receipts": [message["receipt_id"]]}

    assert guest.post(f"{shared}/ack", receipts).status == 403
    assert guest.post(f"{shared}/nack", receipts).status == 403
    assert guest.post(f"{shared}/extend", {**receipts, "seconds": 9}).status == 403
    assert guest.get(shared).status == 403
    assert running.broker.stats("shared").in_flight == 1


def test_who_may_delete_what_it_received_cannot_cancel_what_it_has_not(running: RunningServer) -> None:
    guest = running.user("eve", account=ABROAD, target=HOME)
    both = ["sqs:ReceiveMessage", "sqs:DeleteMessage"]
    shared = running.queue("shared", {"Effect": "Allow", "Principal": {"AWS": ABROAD}, "Action": both})
    id = running.broker.publish("shared", Draft(b"x"))

    assert guest.delete(f"{shared}/messages/{id}").status == 403


def test_the_policy_of_a_queue_is_not_about_an_exchange_of_the_same_name(running: RunningServer) -> None:
    guest = running.user("eve", account=ABROAD, target=HOME)
    running.queue("news", {"Effect": "Allow", "Action": "sqs:SendMessage"})
    running.user("ann", everything()).put("/exchanges/news", {"kind": "fanout"})

    assert guest.post("/queues/news/messages", {"payload": "x"}).status == 201
    assert guest.post("/exchanges/news/publish", {"payload": "x"}).status == 403


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ({"DateGreaterThan": {"aws:CurrentTime": "2001-01-01T00:00:00Z"}}, 403),
        ({"DateGreaterThan": {"aws:CurrentTime": "2999-01-01T00:00:00Z"}}, 201),
        ({"NumericGreaterThan": {"aws:EpochTime": "1000000000"}}, 403),
        ({"Bool": {"aws:SecureTransport": "false"}}, 403),
        ({"StringEquals": {"aws:RequestedRegion": REGION}}, 403),
        ({"StringEquals": {"aws:PrincipalAccount": HOME}}, 403),
        ({"StringEquals": {"aws:username": "ann"}}, 403),
        ({"StringEquals": {"aws:username": "bob"}}, 201),
        ({"StringLike": {"aws:PrincipalArn": "*user/ann"}}, 403),
        ({"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}, 403),
        ({"StringLike": {"aws:UserAgent": "bad*"}}, 201),
        ({"StringEquals": {"aws:userid": "AIDA"}}, 403),  # no such thing here: nobody can say it is not
    ],
)
def test_a_conditional_deny_applies_as_in_sqs(
    running: RunningServer, condition: Mapping[str, Any], status: int
) -> None:
    client = running.user("ann", everything())
    path = running.queue("q", {"Effect": "Deny", "Action": "sqs:SendMessage", "Condition": condition})

    assert client.post(f"{path}/messages", {"payload": "x"}).status == status


# -- the way back of dead letters ----------------------------------------------------------------


def test_a_redrive_returns_dead_letters_only_to_queues_that_its_caller_may_send_to(
    running: RunningServer,
) -> None:
    narrow = running.user("ann", everything("mine*"))
    for name in ("mine", "mine-dead", "theirs"):
        running.queue(name)
    running.queue("mine-denied", {"Effect": "Deny", "Action": "sqs:SendMessage"})
    running.broker.declare(f"@{ABROAD}/mine", QueueSettings())
    for source in ("mine", "theirs", "mine-denied", f"@{ABROAD}/mine"):
        running.dead_letter("mine-dead", source, source.encode())

    assert narrow.post("/queues/mine-dead/redrive", {"dry_run": True}).value["total"] == 1
    task = ended(narrow, narrow.post("/queues/mine-dead/redrive", {}))

    assert (task["state"], task["done"]) == ("failed", 1)
    assert "theirs" not in task["error"].replace("theirs stayed", "")
    assert running.bodies("mine") == [b"mine"]
    for untouched in ("theirs", "mine-denied", f"@{ABROAD}/mine"):
        assert running.bodies(untouched) == []
    assert len(running.bodies("mine-dead")) == 3


def test_who_may_send_everywhere_redrives_everything(running: RunningServer) -> None:
    client = running.user("ann", everything())
    for name in ("a", "b", "dead"):
        running.queue(name)
    running.dead_letter("dead", "a")
    running.dead_letter("dead", "b")

    task = ended(client, client.post("/queues/dead/redrive", {}))

    assert (task["state"], task["done"]) == ("done", 2)


def test_a_restored_message_names_only_queues_that_its_sender_may_send_to(running: RunningServer) -> None:
    narrow = running.user("ann", everything("mine*"))
    for name in ("mine", "mine-dead", "theirs"):
        running.queue(name)

    def restored(source: str) -> dict[str, Any]:
        death = {"queue": source, "reason": "x", "time": "2020-01-01T00:00:00Z", "receive_count": 1}
        return {"payload": "x", "deaths": [death]}

    path = "/queues/mine-dead/messages"
    assert narrow.post(f"{path}?restore=true", restored("theirs")).status == 403
    assert narrow.post(f"{path}?restore=true", restored("mine")).status == 201
    mixed = narrow.post(f"{path}/batch?restore=true", [restored("mine"), restored("theirs")])
    assert [each.get("code") for each in mixed.value["results"]] == [None, "forbidden"]
    assert len(running.bodies("mine-dead")) == 2


def test_a_rate_that_never_ends_is_refused(running: RunningServer) -> None:
    client = running.user("ann", everything())
    path = running.queue("q")

    assert client.post(f"{path}/redrive", {"rate": 0.001}).code == "invalid_setting"
    assert client.post(f"{path}/replay", {"since": 0, "rate": 0.001}).code == "invalid_setting"
