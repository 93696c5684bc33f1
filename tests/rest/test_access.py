"""May a user do it, and what decides; the configuration with its origins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from tests.rest.helpers import Client
from tests.rest.test_permissions import with_policy
from tests.serving import served


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = tmp_path_factory.mktemp("access") / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("boss", role="admin")
    token = store.create_token("boss", "test")
    store.add_user("seller", role="producer", rules=[Rule("deny", frozenset({"send"}), "secret*")])
    store.add_user("reader", rules=[Rule("allow", frozenset({"peek", "receive"}), "orders*")])
    store.add_user("left", role="manager")
    store.set_disabled("left", True)
    with_policy(data, "closed-orders", "Deny", "*", "sqs:SendMessage")
    with served(data) as server:
        yield Client(server.url, headers={"authorization": f"Bearer {token}"})


@pytest.mark.parametrize(
    ("user", "action", "queue", "allowed", "decided_by", "text"),
    [
        ("boss", "admin", "", True, "role", "role admin: allow admin"),
        ("seller", "send", "orders", True, "role", "role producer: allow send on all queues"),
        ("seller", "send", "secret-1", False, "rule", "own rule: deny send on secret*"),
        ("seller", "receive", "orders", False, "nothing", "no rule of seller allows it"),
        ("reader", "peek", "orders-eu", True, "rule", "own rule: allow peek, receive on orders*"),
        ("reader", "peek", "", False, "nothing", "no rule of reader allows it"),
        ("left", "send", "orders", False, "disabled", "left is disabled"),
    ],
)
def test_access_names_what_decides(
    client: Client, user: str, action: str, queue: str, allowed: bool, decided_by: str, text: str
) -> None:
    found = client.get(f"/access?user={user}&action={action}&queue={queue}").value

    assert (found["allowed"], found["decided_by"]) == (allowed, decided_by)
    assert found["text"].startswith(text)
    assert (found["rule"] is not None) == (decided_by in ("role", "rule"))


def test_a_policy_of_the_queue_decides_too(client: Client) -> None:
    found = client.get("/access?user=seller&action=send&queue=closed-orders").value

    assert (found["allowed"], found["decided_by"], found["rule"]) == (False, "policy", None)


def test_an_unknown_user_is_not_found(client: Client) -> None:
    assert client.get("/access?user=nobody&action=send").code == "not_found"


def test_the_configuration_has_origins_and_no_secrets(client: Client) -> None:
    settings = {each["name"]: each for each in client.get("/server/config").value["settings"]}

    assert "--data" in settings["data"]["origin"]
    assert settings["ui_read_only"] == {**settings["ui_read_only"], "value": "false", "origin": "default"}
    assert settings["port"]["help"]
