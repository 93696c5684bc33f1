"""Webhooks of events send what the user who declared them may see, as long as that user may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from openq.auth.rules import Rule
from openq.broker.events import ALERT, Event
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, Draft, QueueSettings
from openq.webhooks.declarer import Declarer
from openq.webhooks.model import EventSelection, Webhook
from openq.webhooks.store import WebhookStore
from tests.http_endpoint import Endpoint
from tests.rest.helpers import Client
from tests.server.in_process import InProcessServer, in_process_server
from tests.waiting import until

CONFIG = Config(memory=True, drain_timeout_s=1, webhook_allow=("127.0.0.1",))
EVERYTHING = Rule("allow", frozenset({"manage", "receive", "send", "peek"}), "*")


class Place:
    def __init__(self, server: InProcessServer, broker: LocalBroker, endpoint: Endpoint) -> None:
        self._context = server.server.context
        self.store = server.server.store
        self.broker = broker
        self.endpoint = endpoint
        self._url = f"http://127.0.0.1:{server.port}"

    def user(self, name: str, *rules: Rule, **fields: Any) -> Client:
        self.store.add_user(name, rules=list(rules), **fields)
        token = self.store.create_token(name, "test")
        return Client(self._url, headers={"authorization": f"Bearer {token}"})

    def declarer(self, user: str) -> Declarer:
        webhook = Webhook(name="all", url=self.endpoint.url, events=EventSelection(), declared_by=user)
        return Declarer(self._context, webhook)

    def guest(self) -> Client:
        return Client(self._url)

    def declare(self, client: Client, *queues: str) -> None:
        events = {"queues": list(queues), "events": ["published", ALERT], "bodies": True}
        made = client.put("/webhooks/all", {"url": self.endpoint.url, "events": events})
        assert made.status == 201, made.data

    def publish(self, queue: str, body: str) -> None:
        self.broker.publish(queue, Draft(body.encode(), encoding=ENCODING_TEXT))

    def sent_until(self, body: str) -> list[str]:
        """The payloads and the texts of alerts that were sent, once the message with this body was."""
        self.publish("open", body)
        until(lambda: body in self._sent())
        return self._sent()

    def _sent(self) -> list[str]:
        found = [json.loads(each) for each in self.endpoint.bodies]
        return [each["message"]["payload"] if "message" in each else each["detail"]["text"] for each in found]

    def deny(self, queue: str, user: str) -> None:
        statement = {
            "Effect": "Deny",
            "Principal": {"AWS": f"arn:aws:iam::000000000000:user/{user}"},
            "Action": "sqs:ReceiveMessage",
            "Resource": f"arn:aws:sqs:us-east-1:000000000000:{queue}",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.broker.declare(queue, QueueSettings(notes={"sqs.Policy": policy}))


@pytest.fixture
def place(endpoint: Endpoint) -> Iterator[Place]:
    broker = LocalBroker()
    with in_process_server(broker, CONFIG) as server:
        broker.declare("open", QueueSettings())
        yield Place(server, broker, endpoint)


@pytest.mark.parametrize("queues", [(), ("*",), ("open", "c*")])
def test_a_pattern_leaves_out_queues_whose_policy_denies_them_to_its_user(
    place: Place, queues: tuple[str, ...]
) -> None:
    boss = place.user("boss", EVERYTHING)
    place.user("friend", EVERYTHING)
    place.declare(boss, *queues)
    place.deny("closed", "boss")
    place.deny("closed-to-friend", "friend")
    place.publish("closed", "secret")
    place.publish("closed-to-friend", "for boss")

    assert place.sent_until("last") == ["for boss", "last"]


def test_queues_with_a_policy_are_left_out_once_the_user_is_gone(place: Place) -> None:
    boss = place.user("boss", EVERYTHING)
    place.user("friend", EVERYTHING)
    place.declare(boss)
    place.deny("closed-to-friend", "friend")
    place.publish("closed-to-friend", "for boss")
    assert place.sent_until("first") == ["for boss", "first"]

    place.store.remove_user("boss")
    place.publish("closed-to-friend", "for nobody")

    assert place.sent_until("last") == ["for boss", "first", "last"]


def test_the_last_policy_of_a_queue_still_counts_once_the_queue_is_deleted(place: Place) -> None:
    place.user("boss", EVERYTHING)
    place.user("friend", EVERYTHING)
    place.deny("closed", "boss")
    boss, friend = place.declarer("boss"), place.declarer("friend")
    event = Event("1", "published", 0, "closed")
    assert (boss.may_see(event), friend.may_see(event)) == (False, True)

    place.broker.delete("closed")
    boss.refresh()
    friend.refresh()

    assert (boss.may_see(event), friend.may_see(event)) == (False, True)


def test_of_a_queue_that_was_deleted_unseen_the_rules_of_the_user_decide(place: Place) -> None:
    event = Event("1", "published", 0, "gone")
    place.user("admin", role="admin")
    place.user("boss", EVERYTHING)
    place.user("other", Rule("allow", frozenset({"peek"}), "open"))
    place.user("removed", EVERYTHING)
    place.store.remove_user("removed")

    assert [place.declarer(user).may_see(event) for user in ("admin", "boss", "other", "removed")] == [
        True,
        True,
        False,
        False,
    ]


def test_alerts_of_the_whole_server_are_sent_for_administrators(place: Place) -> None:
    place.declare(place.user("admin", role="admin"))
    place.broker.events.add(ALERT, "", {"text": "the disk is filling"})

    assert place.sent_until("last") == ["the disk is filling", "last"]


def test_alerts_of_the_whole_server_are_not_sent_for_others(place: Place) -> None:
    place.declare(place.user("boss", EVERYTHING))
    place.broker.events.add(ALERT, "", {"text": "the disk is filling"})
    place.broker.events.add(ALERT, "open", {"text": "many wait"})

    assert place.sent_until("last") == ["many wait", "last"]


def test_a_webhook_of_an_earlier_version_gets_no_alerts_of_the_whole_server(endpoint: Endpoint) -> None:
    broker = LocalBroker()
    broker.declare("open", QueueSettings())
    selected = EventSelection(events=["published", ALERT], bodies=True)
    old = Webhook(name="all", url=endpoint.url, events=selected, mode="json", position=broker.events.end())
    WebhookStore(broker.kv).change("all", lambda _: old)
    with in_process_server(broker, CONFIG) as server:
        broker.events.add(ALERT, "", {"text": "the disk is filling"})

        assert Place(server, broker, endpoint).sent_until("last") == ["last"]


def test_without_users_a_webhook_sends_everything_of_its_account(place: Place) -> None:
    place.declare(place.guest())
    place.broker.declare("@111111111111/open", QueueSettings())
    place.publish("@111111111111/open", "of others")
    place.broker.events.add(ALERT, "", {"text": "the disk is filling"})

    assert place.sent_until("last") == ["the disk is filling", "last"]
