"""Every route, by every role, from two accounts: what the table promises is what happens."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openq.auth.rules import ROLES, Rule
from openq.auth.store import UserStore
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from openq.rest.handler import ROUTES
from openq.rest.routes import EVENT_STREAM, Route
from tests.rest.helpers import Answer, Client
from tests.serving import Served, served
from tests.waiting import until

HOME, ABROAD = "000000000000", "111111111111"
QUEUE = "guarded"
PASSWORD = "canary-password-3141"


@dataclass
class Guarded:
    server: Served
    tokens: dict[tuple[str, str], str]  # account and role -> token

    def client(self, account: str, role: str, target: str | None = None) -> Client:
        token = self.tokens[account, role]
        return Client(self.server.url, headers={"authorization": f"Bearer {token}"}, account=target)


def with_policy(data: Path, queue: str, effect: str, principal: object, action: str) -> None:
    arn = f"arn:aws:sqs:us-east-1:{HOME}:{queue}"
    statement = {"Effect": effect, "Principal": principal, "Action": action, "Resource": arn}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    broker = LocalBroker(data)
    broker.declare(queue, QueueSettings(notes={"sqs.Policy": policy}))
    broker.sync()
    broker.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data: Path = tmp_path_factory.mktemp("guarded") / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    tokens: dict[tuple[str, str], str] = {}
    for account, role in itertools.product((HOME, ABROAD), ROLES):
        name = f"{role}-{account}"
        store.add_user(name, account=account, role=role, password=PASSWORD if role == "viewer" else None)
        tokens[account, role] = store.create_token(name, "test")
    store.add_user(
        "narrow",
        rules=[
            Rule("allow", frozenset({"send", "peek", "manage"}), "mine-*"),
            Rule("deny", frozenset({"peek"}), "mine-secret"),
        ],
    )
    tokens[HOME, "narrow"] = store.create_token("narrow", "test")
    with_policy(data, "no-entry", "Deny", "*", "sqs:SendMessage")
    with_policy(data, "leased", "Allow", {"AWS": ABROAD}, "sqs:ReceiveMessage")
    with served(data) as server:
        found = Guarded(server, tokens)
        for account in (HOME, ABROAD):
            found.client(account, "admin").queue(QUEUE)
            found.client(account, "admin").put(f"/exchanges/{QUEUE}", {"kind": "fanout"})
        yield found
        shown = "\n".join(server.log + server.lines)
        assert [token for token in [*tokens.values(), PASSWORD] if token in shown] == []


BODIES: dict[str, Any] = {
    "POST queues": {"name": "guarded-new"},
    "POST queues/{queue}/messages": {"payload": "x"},
    "POST queues/{queue}/messages/batch": ["x"],
    "POST queues/{queue}/ack": {"receipts": []},
    "POST queues/{queue}/nack": {"receipts": []},
    "POST queues/{queue}/extend": {"receipts": [], "seconds": 1},
    "POST queues/{queue}/messages/{id}/move": {"to": QUEUE},
    "POST queues/{queue}/redrive": {"dry_run": True},
    "POST queues/{queue}/discard": {"dry_run": True},
    "POST queues/{queue}/replay": {"since": 0, "dry_run": True},
    "POST queues/{queue}/replay/preview": {"since": 0},
    "PUT exchanges/{exchange}": {"kind": "fanout"},
    "POST exchanges/{exchange}/publish": {"payload": "x"},
    "POST bindings": {"source": QUEUE, "destination": QUEUE},
    "DELETE bindings": {"source": QUEUE, "destination": QUEUE},
    "PUT webhooks/{webhook}": {"queue": QUEUE, "url": "https://192.0.2.1/"},  # refused, but only afterwards
    "POST webhooks/{webhook}/replay": {"since": 0},
    "PUT schedules/{schedule}": {"queue": QUEUE, "payload": "x", "every": 3600},
    "POST pipeline/subscriptions/{name}/batches": {"queue": QUEUE},
    "POST pipeline/subscriptions/{name}/ack": {"through": 1},
    "PUT pipeline/cursors/{name}": {"position": 1 << 62},  # refused, but only after the permission
    "POST pipeline/stages/{job}/{batch}/commit": {"parts": [], "queue": QUEUE},
    "POST kv/{bucket}/get": {"keys": []},
    "POST kv/{bucket}/put": {"puts": []},
    "POST kv/{bucket}/delete": {"keys": []},
    "POST kv/{bucket}/wait": {"key": "k"},
    "POST keys": {"user": "public"},
    "POST tokens": {"user": "public", "name": "x"},
}


def ask(client: Client, route: Route, queue: str = QUEUE) -> Answer:
    """With everything valid, so that only the permission decides; nothing that the others need is removed."""
    path = route.path.replace("{queue}", queue).replace("{exchange}", queue).replace("{bucket}", queue)
    if route.scope == "body":
        path = (
            path.replace("{name}", queue).replace("{schedule}", "declared").replace("{webhook}", "declared")
        )
    path = "/" + re.sub(r"\{\w+\}", "unknown", path)
    if route.scope == "query":
        path += f"?queue={queue}"
    if route.path == "history/rows":
        path += "?piece=%7B%7D"
    if route.path == "access":
        path += "?user=narrow&action=send"
    if EVENT_STREAM in route.media:
        path += "?follow=0"
    if route.path == "queues/{queue}" and route.method == "DELETE":
        path += "?dry_run=true"
    if route.path == "exchanges/{exchange}" and route.method == "DELETE":
        path = "/exchanges/unknown"
    needs_body = route.method in ("POST", "PUT", "PATCH", "DELETE") and route.request is not None
    body = BODIES.get(f"{route.method} {route.path}", {} if needs_body else None)
    if route.path == "users/{user}":
        path = "/users/no*name"  # refused as a name, but only after the permission
    answer = client.call(route.method, path, body)
    if route.path == "backups" and answer.status == 201:  # one at a time
        client.call("DELETE", f"/backups/{answer.value['id']}")
    return answer


def allowed(route: Route, role: str, own: bool, account: str) -> bool:
    """What the table and the role say, worked out anew."""
    actions = {action for rule in ROLES[role] for action in rule.actions}
    if route.permission == "none":
        return True
    if route.scope == "server":
        return route.permission in actions and (account == HOME or role == "admin")
    return route.permission in actions and (own or role == "admin")


def test_every_route_has_a_permission() -> None:
    assert {route.permission for route in ROUTES} <= {"send", "receive", "peek", "manage", "admin", "none"}
    assert {(route.method, route.path) for route in ROUTES if route.scope == "public"} == {
        ("GET", "health"),
        ("POST", "session"),  # the login itself
    }
    assert {route.path for route in ROUTES if route.scope == "visitor"} == {"session"}
    open_to_all = {route.path for route in ROUTES if route.permission == "none"}
    assert open_to_all == {
        *("health", "whoami", "server", "history/end"),
        *("stream", "stream/tickets"),  # its requests are checked one by one
        *("connections", "connections/{id}", "consumers"),  # callers see their own
        *("session", "sessions"),  # of the caller
    }


@pytest.mark.parametrize("route", list(ROUTES), ids=lambda route: f"{route.method} {route.path}")
def test_a_route_lets_in_exactly_those_whom_the_table_lets_in(guarded: Guarded, route: Route) -> None:
    for (account, role), target in itertools.product(
        itertools.product((HOME, ABROAD), ROLES), (None, HOME, ABROAD)
    ):
        client = guarded.client(account, role, target)
        own = target in (None, account)
        answer = ask(client, route)
        who = f"{role} of {account} on {target or 'its own'}: {answer.status} {answer.data[:200]!r}"

        assert answer.status < 500, who
        assert answer.status != 401, who
        if route.path == "history/rows":
            assert answer.code == "invalid_setting", who  # no such piece; test_columns.py tells who sees what
        elif route.scope == "each":
            assert answer.status == 200, who
            if EVENT_STREAM in route.media:
                continue  # tests/events/test_streams.py checks who sees what
            if route.path == "history/snapshot" and account == ABROAD and target != ABROAD:
                continue  # the rows of "leased" are for them too
            [items] = [value for value in answer.value.values() if isinstance(value, list)]
            visible = [item for item in items if item.get("name") != "leased"]  # which its policy shares
            assert bool(visible) <= allowed(route, role, own, account), who
            if route.path in ("queues", "exchanges"):
                assert bool(visible) is allowed(route, role, own, account), who
        elif route.scope in ("task", "worker", "connection") or route.scope in ("schedule", "webhook"):
            assert answer.code == f"{route.scope}_not_found", who
        elif route.scope == "subscription":
            # Without one nothing can be done: the answer says that and no more.
            does_nothing = route.path.endswith(("/ack", "/extend"))
            assert answer.status == 200 if does_nothing else answer.code == "subscription_not_found", who
        else:
            assert (answer.status == 403) is not allowed(route, role, own, account), who


@pytest.mark.parametrize("route", list(ROUTES), ids=lambda route: f"{route.method} {route.path}")
def test_every_route_requires_authentication(guarded: Guarded, route: Route) -> None:
    wrong = Client(guarded.server.url, headers={"authorization": "Negotiate abc"})

    for client in (Client(guarded.server.url), wrong):
        answer = ask(client, route)

        if route.path == "session" and route.method == "POST":
            assert answer.code == "invalid"  # what it takes is in its body; tests/ui/test_sessions.py
        elif route.scope == "public" or (route.scope == "visitor" and client is not wrong):
            assert answer.status == 200
        else:
            assert (answer.status, answer.code) == (401, "unauthorized")
            assert "Bearer" in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.scope == "queue"],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_who_may_not_know_of_a_queue_does_not_learn_whether_it_exists(guarded: Guarded, route: Route) -> None:
    for client in (guarded.client(HOME, "none"), guarded.client(HOME, "manager", ABROAD)):
        there, missing = (ask(client, route, name) for name in (QUEUE, "gone-ded"))

        assert there.status == missing.status == 403
        assert there.value["detail"].replace(QUEUE, "*") == missing.value["detail"].replace("gone-ded", "*")


def test_a_schedule_is_guarded_by_the_queue_that_it_publishes_to(guarded: Guarded) -> None:
    admin = guarded.client(HOME, "admin")
    admin.put("/schedules/nightly", {"queue": QUEUE, "payload": "x", "cron": "@daily"})
    changes = [
        ("PUT", "", {"queue": QUEUE, "payload": "y", "cron": "@daily"}),
        ("POST", "/pause", {}),
        ("POST", "/resume", {}),
        ("DELETE", "", None),
    ]
    for role in ("viewer", "producer", "consumer", "none"):
        client = guarded.client(HOME, role)
        answers = {
            client.call(method, f"/schedules/nightly{verb}", body).status for method, verb, body in changes
        }
        assert answers <= {403, 404}, role
        assert client.get("/schedules/nightly").status == (200 if role == "viewer" else 404), role
    assert guarded.client(HOME, "producer").post("/schedules/nightly/run", {}).status == 201
    assert guarded.client(HOME, "consumer").post("/schedules/nightly/run", {}).status in (403, 404)
    # The schedules of another account are others.
    assert guarded.client(ABROAD, "manager").get("/schedules/nightly").code == "schedule_not_found"
    assert guarded.client(ABROAD, "manager", HOME).get("/schedules/nightly").code == "schedule_not_found"
    # A schedule cannot be taken over by moving it to an own queue.
    narrow = guarded.client(HOME, "narrow")
    admin.queue("mine-a")
    taken = narrow.put("/schedules/nightly", {"queue": "mine-a", "payload": "x", "cron": "@daily"})
    assert taken.code == "name_taken"
    assert admin.get("/schedules/nightly").value["queue"] == QUEUE
    assert admin.call("DELETE", "/schedules/nightly").status == 200


def test_lists_show_only_what_the_caller_may_see(guarded: Guarded) -> None:
    admin, narrow = guarded.client(HOME, "admin"), guarded.client(HOME, "narrow")
    for name in ("mine-a", "mine-secret", "yours"):
        admin.queue(name)

    assert [queue["name"] for queue in narrow.get("/queues").value["queues"]] == ["mine-a"]
    assert narrow.get("/queues/mine-secret").status == 403


def test_messages_cannot_be_directed_to_a_queue_that_is_not_the_callers(guarded: Guarded) -> None:
    narrow = guarded.client(HOME, "narrow")
    guarded.client(HOME, "admin").queue("mine-b")
    narrow.post("/queues/mine-b/messages", {"id": "m", "payload": "x"})

    for method, path, body in (
        ("PUT", "/queues/mine-b", {"dlq": QUEUE}),
        ("PATCH", "/queues/mine-b", {"dlq": QUEUE}),
        ("PATCH", "/queues/mine-b", {"dead_letter_exchange": QUEUE}),
        ("POST", "/queues", {"name": "mine-c", "dlq": QUEUE}),
        ("POST", "/queues", {"name": "not-mine"}),
        ("POST", "/queues/mine-b/messages/m/move", {"to": QUEUE}),
        ("POST", "/queues/mine-b/redrive", {"to": QUEUE}),
        ("POST", "/queues/mine-b/replay", {"since": 0, "to": QUEUE}),
        ("PUT", "/exchanges/mine-x", {"alternate": QUEUE}),
        ("POST", "/bindings", {"source": QUEUE, "destination": "mine-b"}),
        ("POST", "/bindings", {"source": "mine-b", "destination": QUEUE}),
    ):
        answer = narrow.call(method, path, body)
        missing = narrow.call(method, path, json.loads(json.dumps(body).replace(QUEUE, "gone-ded")))

        assert answer.status == missing.status == 403, (method, path, body)
        # Nor does it tell whether there is such a queue.
        assert answer.value["detail"].replace(QUEUE, "*") == missing.value["detail"].replace("gone-ded", "*")


def test_the_policy_of_a_queue_counts_here_too(guarded: Guarded) -> None:
    """A deny holds in every protocol, and what an account shares is shared in all of them."""
    admin = guarded.client(HOME, "admin")
    guest, stranger = (guarded.client(ABROAD, role, HOME) for role in ("consumer", "none"))

    assert admin.post("/queues/no-entry/messages", {"payload": "x"}).status == 403
    assert admin.get("/queues/no-entry").status == 200
    assert admin.post("/queues/leased/messages", {"payload": "x"}).status == 201
    assert guest.post("/queues/leased/receive", {}).status == 200
    assert guest.post("/queues/leased/messages", {"payload": "x"}).status == 403
    assert stranger.post("/queues/no-entry/receive", {}).status == 403


def test_a_name_and_a_password_let_in_and_wrong_ones_do_not(guarded: Guarded) -> None:
    def client(password: str) -> Client:
        text = base64.b64encode(f"viewer-{HOME}:{password}".encode()).decode()
        return Client(guarded.server.url, headers={"authorization": f"Basic {text}"})

    assert client(PASSWORD).get("/whoami").value["user"] == f"viewer-{HOME}"
    assert client("wrong").get("/whoami").code == "login_refused"
    garbled = Client(guarded.server.url, headers={"authorization": "Basic !!!"})
    assert garbled.get("/whoami").status == 401


def test_secrets_are_shown_once(guarded: Guarded) -> None:
    admin = guarded.client(HOME, "admin")
    created = admin.put("/users/new", {"role": "producer", "password": "canary-secret-2718"})
    key = admin.post("/keys", {"user": "new"}).value
    token = admin.post("/tokens", {"user": "new", "name": "t", "expires": "2100-01-01T00:00:00Z"}).value

    assert created.status == 201
    assert created.value["has_password"] is True
    assert len(key["secret"]) == 40
    assert token["token"].startswith("oq_")
    everything = b"".join(admin.get(path).data for path in ("/users", "/users/new", "/keys", "/tokens"))
    for secret in ("canary-secret-2718", key["secret"], token["token"]):
        assert secret.encode() not in everything
    signed = Client(guarded.server.url, headers={"authorization": f"Bearer {token['token']}"})
    assert signed.get("/whoami").value["user"] == "new"

    assert admin.put("/users/new", {"disabled": True}).status == 200
    assert signed.get("/whoami").status == 401
    assert admin.delete("/tokens/new/t").status == 200
    assert admin.delete(f"/keys/{key['id']}").status == 200
    assert admin.delete("/users/new").status == 200
    assert admin.get("/users/new").status == 404


def test_too_many_failed_logins_have_to_wait(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "users.json")
    store.add_user("ann", password=PASSWORD)
    with served(tmp_path) as server:
        text = base64.b64encode(b"ann:wrong").decode()
        client = Client(server.url, headers={"authorization": f"Basic {text}"})

        answers = [client.get("/whoami") for _ in range(12)]

        assert answers[0].status == 401
        assert (answers[-1].status, answers[-1].code) == (429, "too_many_failed_logins")
        assert int(answers[-1].headers["retry-after"]) > 0


def test_counts_of_all_queues_together_are_for_administrators(guarded: Guarded) -> None:
    for role in ROLES:
        answer = guarded.client(HOME, role).call("GET", "/series?name=published")
        assert answer.status == (200 if role == "admin" else 403), role
    narrow = guarded.client(HOME, "narrow")
    guarded.client(HOME, "admin").queue("mine-1")
    assert narrow.call("GET", "/series?queue=mine-1").status == 200
    assert narrow.call("GET", "/series?queue=mine-secret").status == 403
    assert narrow.call("GET", "/series").status == 403


def test_the_counts_of_visible_queues_have_nothing_of_hidden_ones(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "users.json")
    store.add_user("root", role="admin")
    store.add_user("nobody", role="none")
    store.add_user("abroad", account=ABROAD, role="viewer")
    store.add_user("narrow", rules=[Rule("allow", frozenset({"peek"}), "mine-*")])
    tokens = {name: store.create_token(name, "test") for name in ("root", "nobody", "abroad", "narrow")}
    with_policy(tmp_path, "mine-denied", "Deny", "*", "sqs:GetQueueAttributes")
    with served(tmp_path) as server:
        clients = {
            name: Client(server.url, headers={"authorization": f"Bearer {token}"})
            for name, token in tokens.items()
        }
        root = clients["root"]
        until(lambda: root.get("/series").value["recorded"], "the recorder has begun")
        for queue, count in (
            ("mine-a", 3),
            ("mine-b", 2),
            ("mine-gone", 7),
            ("mine-denied", 11),
            ("other", 13),
        ):
            root.call("POST", "/queues", {"name": queue})
            root.post(f"/queues/{queue}/messages/batch", ["x"] * count)

        def counted(name: str, query: str = "visible=true") -> tuple[int, int]:
            found = clients[name].get(f"/series?{query}&name=published,ready").value
            return found.get("queues", 0), sum(value or 0 for value in found["values"]["published"])

        until(lambda: counted("root") == (4, 25), "every queue has a series")
        assert counted("narrow") == (3, 12)
        assert counted("nobody") == (0, 0)
        assert counted("abroad") == (0, 0)
        root.delete("/queues/mine-gone")
        assert counted("narrow") == (2, 5)
        latest = clients["narrow"].get("/series?visible=true&name=ready").value
        assert [value for value in latest["values"]["ready"] if value is not None][-1] == 5
        assert clients["narrow"].get("/series?visible=true&queue=mine-a").code == "invalid"
        assert "queues" not in clients["narrow"].get("/series?queue=mine-a").value
