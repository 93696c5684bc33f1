"""Users, permissions and connections by RabbitMQ's management API: each change is true when answered."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from tests.serving import free_port, served
from tests.waiting import until

from .dialogue import ConnectionEnded
from .management_fields import Api
from .raw_client import RawClient, error_of

PASSWORD = "a long secret"
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@dataclass
class UsersServer:
    url: str
    amqp_port: int
    data: Path

    def api(self, user: str = "boss", password: str = PASSWORD) -> Api:
        return Api(self.url, user, password)

    def sign_in(self, user: str, vhost: str = "/") -> RawClient:
        return RawClient(self.amqp_port, user=user, password=PASSWORD, vhost=vhost)


@pytest.fixture(scope="module")
def amqp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UsersServer]:
    data = tmp_path_factory.mktemp("users")
    UserStore(data / "users.json").add_user("boss", password=PASSWORD, role="admin")
    port = free_port()
    with served(data, "--amqp-port", str(port)) as server:
        yield UsersServer(server.url, port, data)


@pytest.fixture
def boss(amqp_server: UsersServer) -> Api:
    return amqp_server.api()


def shown(boss: Api, user: str) -> list[dict[str, Any]]:
    found = boss("GET", f"/api/users/{user}/permissions")[1]
    return [{name: each[name] for name in ("vhost", *EVERYTHING)} for each in found]


def test_a_user_is_created_authorized_and_deleted(amqp_server: UsersServer, boss: Api) -> None:
    path = "/api/users/ann"
    assert boss("PUT", path, {"password": PASSWORD, "tags": "monitoring"}) == (201, None)
    assert boss("GET", path)[1] == {
        "name": "ann",
        "password_hash": "",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["monitoring"],
        "limits": {},
    }
    assert "ann" in [each["name"] for each in boss("GET", "/api/users/without-permissions")[1]]
    rights = {"configure": "^ann-.*", "write": "^ann-", "read": "^(ann-in|ann-out)$"}
    assert boss("PUT", "/api/permissions/%2F/ann", rights) == (201, None)
    assert shown(boss, "ann") == [
        {"vhost": "/", "configure": "^ann\\-.*$", "write": "^ann\\-.*$", "read": "^(ann\\-in|ann\\-out)$"}
    ]
    with amqp_server.sign_in("ann") as ann:
        ann.declare("ann-in")
        ann.confirming().publish_all("ann-in", [b"x"])
        ann.call("basic.get", queue="ann-in")
        with pytest.raises(ConnectionEnded, match="403"):
            ann.declare("other")

        assert boss("PUT", "/api/permissions/%2F/ann", {**rights, "read": ""}) == (204, None)
        assert shown(boss, "ann")[0]["read"] == ""
        assert boss("DELETE", "/api/permissions/%2F/ann") == (204, None)
        assert shown(boss, "ann") == []
        assert boss("DELETE", "/api/permissions/%2F/ann")[0] == 404
        assert boss("DELETE", path) == (204, None)
        assert boss("GET", path)[0] == 404
        assert boss("DELETE", path)[0] == 404
        assert "'reply_code': 320" in end_of(ann)
    with pytest.raises(ConnectionEnded, match="403"):
        amqp_server.sign_in("ann")


def end_of(client: RawClient) -> str:
    """How the server ends a connection that says nothing."""
    return error_of(client.next)


def rabbitmq_hash(password: str, salt: bytes = b"salt", kind: str = "sha256") -> str:
    return base64.b64encode(salt + hashlib.new(kind, salt + password.encode()).digest()).decode()


@pytest.mark.parametrize("kind", ["sha256", "sha512"])
def test_a_rabbitmq_password_hash_accepts_its_password(
    amqp_server: UsersServer, boss: Api, kind: str
) -> None:
    name = f"hashed-{kind}"
    algorithm = f"rabbit_password_hashing_{kind}"
    hashed = {"password_hash": rabbitmq_hash("secret-7", kind=kind), "hashing_algorithm": algorithm}

    assert boss("PUT", f"/api/users/{name}", {**hashed, "tags": ""})[0] == 201

    assert amqp_server.api(name, "secret-7")("GET", "/api/whoami")[1]["name"] == name
    assert amqp_server.api(name, "secret-8")("GET", "/api/whoami")[0] == 401
    # Again with neither: the password is gone, as in RabbitMQ.
    assert boss("PUT", f"/api/users/{name}", {"tags": ""})[0] == 204
    assert amqp_server.api(name, "secret-7")("GET", "/api/whoami")[0] == 401


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "tags_not_present"),
        ({"tags": 7}, "tags must be text"),
        ({"tags": "", "password": "x", "password_hash": rabbitmq_hash("x")}, "both_password_and"),
        ({"tags": "", "password": 7}, "must be texts"),
        ({"tags": "", "password": ""}, "a password has 1 to"),
        ({"tags": "", "password_hash": "bm9uZQ=="}, "its password_hash is not of"),
        (
            {"tags": "", "password_hash": "x", "hashing_algorithm": "rabbit_password_hashing_md5"},
            "cannot be checked here",
        ),
    ],
)
def test_an_invalid_user_is_refused_with_the_reason(boss: Api, body: dict[str, Any], reason: str) -> None:
    status, answer = boss("PUT", "/api/users/wrong", body)

    assert (status, answer["error"]) == (400, "bad_request")
    assert reason in answer["reason"]
    assert boss("GET", "/api/users/wrong")[0] == 404


def test_tags_change_only_the_roles_they_map_to(amqp_server: UsersServer, boss: Api) -> None:
    UserStore(amqp_server.data / "users.json").add_user("clerk", password=PASSWORD, role="producer")
    until(lambda: boss("GET", "/api/users/clerk")[0] == 200)
    store = UserStore(amqp_server.data / "users.json")

    def role(tags: object) -> str:
        assert boss("PUT", "/api/users/clerk", {"password": PASSWORD, "tags": tags})[0] == 204
        store.refresh()
        user = store.user("clerk")
        assert user is not None
        return user.role

    assert role("") == "producer"
    assert role(["monitoring"]) == "viewer"
    assert role("management,administrator") == "admin"
    assert role("unknown") == "none"


def test_permissions_that_cannot_be_expressed_exactly_are_refused(
    amqp_server: UsersServer, boss: Api
) -> None:
    store = UserStore(amqp_server.data / "users.json")
    store.add_user("manager", role="manager")
    store.add_user("roamer", rules=[Rule("allow", frozenset({"send"}), "*", "*")])
    store.add_user("banned", rules=[Rule("deny", frozenset({"receive"}), "secret")])
    until(lambda: boss("GET", "/api/users/banned")[0] == 200)

    status, answer = boss("PUT", "/api/permissions/%2F/banned", {**EVERYTHING, "write": "a{3}"})
    assert (status, "cannot express 'a{3}'" in answer["reason"]) == (400, True)
    assert boss("PUT", "/api/permissions/%2F/banned", {"configure": ".*"})[0] == 400
    assert boss("PUT", "/api/permissions/%2F/nobody", EVERYTHING)[1]["reason"] == "vhost_or_user_not_found"
    assert (
        boss("PUT", "/api/permissions/nowhere/banned", EVERYTHING)[1]["reason"] == "vhost_or_user_not_found"
    )
    for user, body in (("manager", {**EVERYTHING, "configure": ""}), ("roamer", {**EVERYTHING, "write": ""})):
        status, answer = boss("PUT", f"/api/permissions/%2F/{user}", body)
        assert (status, "would keep more permissions" in answer["reason"]) == (400, True)
        assert boss("DELETE", f"/api/permissions/%2F/{user}")[0] == 400
    assert boss("PUT", "/api/permissions/%2F/manager", EVERYTHING)[0] == 204
    # What somebody was denied stays denied.
    assert boss("PUT", "/api/permissions/%2F/banned", EVERYTHING)[0] == 201
    store.refresh()
    banned = store.user("banned")
    assert banned is not None
    assert [rule.effect for rule in banned.rules] == ["deny", "allow"]


def test_permissions_in_a_vhost_are_deleted_with_it(amqp_server: UsersServer, boss: Api) -> None:
    assert boss("PUT", "/api/vhosts/brief", {})[0] == 201
    assert boss("PUT", "/api/users/guestworker", {"password": PASSWORD, "tags": ""})[0] == 201
    assert boss("PUT", "/api/permissions/brief/guestworker", EVERYTHING)[0] == 201
    with amqp_server.sign_in("guestworker", "brief") as worker:
        worker.declare("q")
        assert boss("DELETE", "/api/vhosts/brief")[0] == 204
        assert "'reply_code': 320" in end_of(worker)
    assert boss("PUT", "/api/vhosts/brief", {})[0] == 201

    assert shown(boss, "guestworker") == []
    with pytest.raises(ConnectionEnded, match="530"):
        amqp_server.sign_in("guestworker", "brief")


def test_bulk_delete_of_users_is_all_or_nothing(boss: Api) -> None:
    for name in ("one", "two"):
        assert boss("PUT", f"/api/users/{name}", {"tags": ""})[0] == 201

    assert boss("POST", "/api/users/bulk-delete", {"users": ["one", "nobody"]})[0] == 404
    assert boss("POST", "/api/users/bulk-delete", {"users": "one"})[0] == 400
    assert boss("POST", "/api/users/bulk-delete", {"users": ["one", "two"]})[0] == 204

    assert not {"one", "two"} & {each["name"] for each in boss("GET", "/api/users")[1]}


def test_a_connection_is_closed_by_its_owner_or_an_administrator_with_a_reason(
    amqp_server: UsersServer, boss: Api
) -> None:
    for name in ("carl", "dora"):
        boss("PUT", f"/api/users/{name}", {"password": PASSWORD, "tags": ""})
    for user, closer in (("carl", "carl"), ("carl", "boss")):
        with amqp_server.sign_in(user) as client:
            [mine] = amqp_server.api(user)("GET", "/api/connections")[1]
            path = f"/api/connections/{quote(mine['name'], safe='')}"
            assert len(amqp_server.api(user)("GET", f"{path}/channels")[1]) == 1
            # Without the permission to see it, missing and existing look alike.
            assert amqp_server.api("dora")("DELETE", path) == amqp_server.api("dora")(
                "DELETE", "/api/connections/none"
            )
            assert amqp_server.api("dora")("DELETE", path)[0] == 404

            assert amqp_server.api(closer)("DELETE", path) == (204, None)

            assert "320, 'reply_text': 'CONNECTION_FORCED - Closed via management API'" in end_of(client)
        assert boss("DELETE", path)[0] == 404


def test_all_connections_of_a_user_are_listed_and_closed(amqp_server: UsersServer, boss: Api) -> None:
    boss("PUT", "/api/users/emma", {"password": PASSWORD, "tags": ""})
    with amqp_server.sign_in("emma") as first, amqp_server.sign_in("emma") as second:
        assert len(boss("GET", "/api/connections/username/emma")[1]) == 2

        assert boss("DELETE", "/api/connections/username/emma")[0] == 204

        for each in (first, second):
            assert "'reply_code': 320" in end_of(each)


def test_the_first_user_of_an_open_server_must_be_able_to_add_others(tmp_path: Path) -> None:
    with served(tmp_path, "--amqp-port", str(free_port())) as server:
        guest = Api(server.url)
        for body in ({"tags": "administrator"}, {"tags": "management", "password": "x"}):
            status, answer = guest("PUT", "/api/users/first", body)
            assert (status, "the first user must" in answer["reason"]) == (400, True)
        assert guest("PUT", "/api/users/guest", {"tags": "administrator", "password": "guest"})[0] == 400
        assert guest("DELETE", "/api/users/guest")[0] == 400
        assert guest("DELETE", "/api/permissions/%2F/guest")[0] == 400

        assert guest("PUT", "/api/users/first", {"tags": "administrator", "password": "x"})[0] == 201

        assert guest("GET", "/api/whoami")[0] == 401
        first = Api(server.url, "first", "x")
        assert first("GET", "/api/whoami")[1] == {"name": "first", "tags": ["administrator"]}
        assert "the last user cannot be deleted" in first("DELETE", "/api/users/first")[1]["reason"]
        server.kill()
    with served(tmp_path, "--amqp-port", str(free_port())) as server:
        assert Api(server.url, "first", "x")("GET", "/api/whoami")[0] == 200
        assert Api(server.url)("GET", "/api/whoami")[0] == 401


def test_only_administrators_see_where_the_data_is(amqp_server: UsersServer, boss: Api) -> None:
    for name, tags in (("watcher", "monitoring"), ("second", "administrator")):
        assert boss("PUT", f"/api/users/{name}", {"password": PASSWORD, "tags": tags})[0] == 201
    UserStore(amqp_server.data / "users.json").add_user("runner", password=PASSWORD, role="manager")
    until(lambda: boss("GET", "/api/users/runner")[0] == 200)

    for name, expected in (("watcher", ""), ("runner", ""), ("second", str(amqp_server.data))):
        [node] = amqp_server.api(name)("GET", "/api/nodes")[1]
        assert node["db_dir"] == expected
        assert amqp_server.api(name)("GET", f"/api/nodes/{node['name']}")[1]["db_dir"] == expected


def test_rest_refuses_admin_on_some_queues_and_changes_nothing(amqp_server: UsersServer, boss: Api) -> None:
    rule = {"effect": "allow", "actions": ["admin"], "queues": "foo*"}
    assert boss("PUT", "/api/v1/users/narrow", {"rules": [rule]})[0] == 422
    assert boss("GET", "/api/v1/users/narrow")[0] == 404
    assert boss("PUT", "/api/v1/users/narrow", {"role": "viewer"})[0] == 201

    status, problem = boss("PUT", "/api/v1/users/narrow", {"role": "producer", "rules": [rule]})
    assert status == 422
    assert "admin is of the whole server" in str(problem)
    user = boss("GET", "/api/v1/users/narrow")[1]
    assert (user["role"], user["rules"]) == ("viewer", [])
