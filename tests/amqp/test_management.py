"""RabbitMQ's management API: known fields, changes that are real, and nobody gets round the rules."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from openq import OpenQ
from openq.amqp.management.api import ROUTES
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from tests.serving import Served, free_port, served
from tests.waiting import until

from .management_fields import FIELDS, Api, fields_of, nested, prepare

# What RabbitMQ tells and OpenQ does not: its own machinery, and what is not counted here.
OMITTED_FIELDS = {
    "overview": {
        *("churn_rates", "erlang_full_version", "erlang_version", "release_series_support_status"),
        *("sample_retention_policies", "statistics_db_event_queue"),
    },
    "vhost": {
        *("message_stats", "messages_details", "messages_ready_details", "messages_unacknowledged_details"),
        *("recv_oct", "recv_oct_details", "send_oct", "send_oct_details"),
    },
    "queue in a list": {
        *("backing_queue_status", "consumer_capacity", "consumer_utilisation", "exclusive_consumer_tag"),
        *("garbage_collection", "head_message_timestamp", "idle_since", "memory", "message_bytes_paged_out"),
        *("message_bytes_ram", "message_bytes_unacknowledged", "messages_paged_out", "messages_ram"),
        *("messages_ready_ram", "messages_unacknowledged_ram", "recoverable_slaves", "reductions"),
        *("reductions_details", "single_active_consumer_tag"),
    },
    "exchange in a list": {"message_stats", "user_who_performed_action"},
    "exchange": {"message_stats", "user_who_performed_action"},
    "message_stats of a queue": {
        f"{name}{end}"
        for name in ("get", "get_empty", "get_no_ack", "deliver_no_ack")
        for end in ("", "_details")
    },
    "message_stats of the overview": {
        f"{name}{end}"
        for name in (
            *("get", "get_empty", "get_no_ack", "deliver_no_ack", "confirm", "disk_reads", "disk_writes"),
            *("drop_unroutable", "return_unroutable"),
        )
        for end in ("", "_details")
    },
}
OMITTED_FIELDS["queue"] = OMITTED_FIELDS["queue in a list"]
# What only OpenQ tells.
ADDED_FIELDS = {"queue": {"messages_delayed"}, "queue in a list": {"messages_delayed"}}
# Shown by the AMQP server; only the fields that every tool needs are required.
CONNECTION_OBJECTS = {
    "connection": {"name", "user", "vhost", "state", "protocol", "peer_host", "peer_port"},
    "channel": {"name", "number", "user", "vhost"},
    "consumer": {"ack_required", "arguments", "channel_details", "consumer_tag", "exclusive", "queue"},
}


@pytest.fixture(scope="module")
def amqp_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(amqp_port: int) -> Iterator[Served]:
    with served(None, "--amqp-port", str(amqp_port)) as server:
        yield server


@pytest.fixture
def api(server: Served) -> Api:
    return Api(server.url)


@pytest.fixture
def vhost(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """One for each test, in the form that paths need."""
    name = quote(request.node.name[:60], safe="")
    assert api("PUT", f"/api/vhosts/{name}", {})[0] == 201
    yield name
    assert api("DELETE", f"/api/vhosts/{name}")[0] == 204


def test_the_fields_are_rabbitmqs(api: Api, amqp_port: int) -> None:
    prepare(api)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
    channel = connection.channel()
    channel.basic_consume("fields", lambda *_: None, consumer_tag="tag")
    channel.basic_cancel("tag")
    channel.queue_declare("consumed")
    channel.basic_consume("consumed", lambda *_: None)
    api("DELETE", "/api/queues/%2F/fields/contents")
    prepare(api)
    recorded: dict[str, list[str]] = json.loads(FIELDS.read_text())
    given = nested(api)
    connection.close()
    assert set(given) == set(recorded)
    for title, fields in recorded.items():
        if title == "node":
            assert set(given[title]) <= set(fields)
        elif title in CONNECTION_OBJECTS:
            assert CONNECTION_OBJECTS[title] <= set(given[title]) & set(fields), title
        else:
            expected = (set(fields) - OMITTED_FIELDS.get(title, set())) | ADDED_FIELDS.get(title, set())
            assert set(given[title]) == expected, title


def test_queues_are_created_shown_purged_and_deleted(api: Api, vhost: str) -> None:
    path = f"/api/queues/{vhost}/a%2Fb"
    body = {"durable": True, "arguments": {"x-max-length": 5}}
    assert api("PUT", path, body) == (201, None)
    assert api("PUT", path, body) == (204, None)
    status, answer = api("PUT", path, {"durable": True})
    assert status == 400
    assert answer["reason"].startswith("inequivalent arg 'x-max-length' for queue 'a/b' in vhost")
    message = {"properties": {}, "routing_key": "a/b", "payload": "x", "payload_encoding": "string"}
    for _ in range(3):
        assert api("POST", f"/api/exchanges/{vhost}/amq.default/publish", message) == (200, {"routed": True})
    found = api("GET", path)[1]
    assert (found["name"], found["messages"], found["messages_ready"]) == ("a/b", 3, 3)
    assert found["arguments"] == {"x-max-length": 5}
    assert api("DELETE", f"{path}?if-empty=true")[0] == 400
    assert api("DELETE", f"{path}/contents") == (204, None)
    assert api("GET", path)[1]["messages"] == 0
    assert api("DELETE", f"{path}?if-empty=true&if-unused=true") == (204, None)
    for method in ("GET", "DELETE"):
        assert api(method, path) == (404, {"error": "Object Not Found", "reason": "Not Found"})


def test_messages_are_published_and_received_with_all_properties(api: Api, vhost: str) -> None:
    api("PUT", f"/api/queues/{vhost}/q", {"durable": True})
    api("PUT", f"/api/exchanges/{vhost}/x", {"type": "topic", "durable": True})
    assert api("POST", f"/api/bindings/{vhost}/e/x/q/q", {"routing_key": "a.#"})[0] == 201
    properties = {
        "content_type": "text/plain",
        "headers": {"n": 1, "deep": {"list": [1, "a", None, True]}},
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "timestamp": 1_700_000_000,
        "message_id": "m",
    }
    publish = {
        "properties": properties,
        "routing_key": "a.b",
        "payload": "_w==",
        "payload_encoding": "base64",
    }
    where = f"/api/exchanges/{vhost}/x/publish"
    assert api("POST", where, publish)[0] == 400  # that is another alphabet
    assert api("POST", where, {**publish, "payload": "/w=="}) == (200, {"routed": True})
    assert api("POST", where, {**publish, "routing_key": "b"}) == (
        400,
        {"error": "bad_request", "reason": "the payload is not base64"},
    )
    unrouted = {**publish, "routing_key": "b", "payload_encoding": "string"}
    assert api("POST", where, unrouted) == (200, {"routed": False})
    get = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for redelivered in (False, True):
        [message] = api("POST", f"/api/queues/{vhost}/q/get", get)[1]
        assert message == {
            "payload_bytes": 1,
            "redelivered": redelivered,
            "exchange": "x",
            "routing_key": "a.b",
            "message_count": 0,
            "properties": properties,
            "payload": "/w==",
            "payload_encoding": "base64",
        }
    gone = {**get, "ackmode": "ack_requeue_false"}
    assert len(api("POST", f"/api/queues/{vhost}/q/get", gone)[1]) == 1
    assert api("POST", f"/api/queues/{vhost}/q/get", gone) == (200, [])


def test_a_rejected_message_is_dead_lettered(api: Api, vhost: str) -> None:
    api("PUT", f"/api/queues/{vhost}/dead", {"durable": True})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api("PUT", f"/api/queues/{vhost}/q", {"durable": True, "arguments": arguments})
    message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    api("POST", f"/api/exchanges/{vhost}/amq.default/publish", message)
    get = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto", "truncate": 0}
    [message] = api("POST", f"/api/queues/{vhost}/q/get", get)[1]
    assert (message["payload"], message["payload_bytes"]) == ("", 1)
    get["ackmode"] = "ack_requeue_false"
    [dead] = api("POST", f"/api/queues/{vhost}/dead/get", get)[1]
    assert dead["properties"]["headers"]["x-death"][0]["reason"] == "rejected"


def test_exchanges_and_bindings_are_created_and_deleted(api: Api, vhost: str) -> None:
    for name in ("x", "y"):
        body = {"type": "headers", "durable": True}
        assert api("PUT", f"/api/exchanges/{vhost}/{name}", body) == (201, None)
        assert api("PUT", f"/api/exchanges/{vhost}/{name}", body) == (204, None)
    api("PUT", f"/api/queues/{vhost}/q", {})
    between = f"/api/bindings/{vhost}/e/x/q/q"
    for body in ({}, {"routing_key": "a/b c"}, {"routing_key": "k", "arguments": {"n": 1}}):
        assert api("POST", between, body)[0] == 201
    assert api("POST", f"/api/bindings/{vhost}/e/x/e/y", {"routing_key": "k"})[0] == 201
    found = api("GET", between)[1]
    assert [each["routing_key"] for each in found] == ["", "a/b c", "k"]
    assert (
        len(api("GET", f"/api/bindings/{vhost}")[1]) == 5
    )  # one leads from the default exchange to the queue
    assert len(api("GET", f"/api/queues/{vhost}/q/bindings")[1]) == 4
    assert len(api("GET", f"/api/exchanges/{vhost}/x/bindings/source")[1]) == 4
    assert len(api("GET", f"/api/exchanges/{vhost}/y/bindings/destination")[1]) == 1
    for each in found:
        path = f"{between}/{quote(each['properties_key'], safe='')}"
        assert api("GET", path) == (200, each)
        assert api("DELETE", path) == (204, None)
        assert api("DELETE", path)[0] == 404
    assert api("GET", between) == (200, [])
    assert api("DELETE", f"/api/exchanges/{vhost}/x?if-unused=true")[0] == 400
    assert api("DELETE", f"/api/exchanges/{vhost}/x") == (204, None)
    assert api("GET", f"/api/exchanges/{vhost}/x")[0] == 404
    assert api("DELETE", f"/api/exchanges/{vhost}/amq.direct")[0] == 401


def test_policies_are_applied_before_the_answer(api: Api, vhost: str) -> None:
    api("PUT", f"/api/queues/{vhost}/q", {"durable": True})
    path = f"/api/policies/{vhost}/p"
    body = {"pattern": "^q", "definition": {"max-length": 3}, "priority": 1, "apply-to": "queues"}
    assert api("PUT", path, body) == (201, None)
    assert api("PUT", path, body) == (204, None)
    assert {"name": "p", **body}.items() <= api("GET", path)[1].items()
    queue = api("GET", f"/api/queues/{vhost}/q")[1]
    assert (queue["policy"], queue["effective_policy_definition"]) == ("p", {"max-length": 3})
    assert len(api("GET", f"/api/policies/{vhost}")[1]) == 1
    for wrong in ({}, {"pattern": "(", "definition": {"max-length": 1}}, {"pattern": "", "definition": {}}):
        assert api("PUT", path, wrong)[0] == 400
    assert api("DELETE", path) == (204, None)
    assert api("DELETE", path)[0] == 404
    assert api("GET", f"/api/queues/{vhost}/q")[1]["policy"] is None


def test_exported_definitions_can_be_imported(api: Api, vhost: str) -> None:
    api("PUT", f"/api/queues/{vhost}/q", {"durable": True, "arguments": {"x-max-priority": 3}})
    api("PUT", f"/api/policies/{vhost}/p", {"pattern": ".", "definition": {"max-length": 3}})
    status, exported = api("GET", "/api/definitions")
    assert status == 200
    assert api("POST", "/api/definitions", exported) == (204, None)
    api("DELETE", f"/api/queues/{vhost}/q")
    report = api("POST", "/api/definitions?report=true", exported)[1]
    assert report["made"] == {"queues": 1}
    assert report["not_converted"] == []
    assert api("GET", "/api/definitions")[1] == exported
    of_vhost = api("GET", f"/api/definitions/{vhost}")[1]
    assert of_vhost["queues"][0]["name"] == "q"
    assert api("POST", f"/api/definitions/{vhost}", of_vhost) == (204, None)
    status, wrong = api("POST", "/api/definitions", {"queues": [{"name": 5}]})
    assert status == 400
    assert "queues[0].name" in wrong["reason"]


def test_lists_are_paginated_sorted_and_filtered(api: Api, vhost: str) -> None:
    for number in range(5):
        api("PUT", f"/api/queues/{vhost}/q{number}", {"durable": number % 2 == 0})
    where = f"/api/queues/{vhost}"
    page = api("GET", f"{where}?page=2&page_size=2&columns=name,message_stats.publish")[1]
    assert (page["page_count"], page["total_count"], page["item_count"]) == (3, 5, 2)
    assert page["items"] == [{"name": f"q{n}", "message_stats": {"publish": 0}} for n in (2, 3)]
    assert api("GET", f"{where}?sort=name&sort_reverse=true&columns=name")[1][0] == {"name": "q4"}
    assert [each["name"] for each in api("GET", f"{where}?name=q3")[1]] == ["q3"]
    for wrong in ("page=9", "page=0", "page=x", "page=1&page_size=100000", "name=(a&use_regex=true"):
        assert api("GET", f"{where}?{wrong}")[0] == 400


def test_queues_of_other_protocols_are_listed(api: Api, server: Served) -> None:
    with OpenQ("from-rest", url=server.url) as queue:
        queue.publish({"n": 1})
    found = api("GET", "/api/queues/%2F/from-rest")[1]
    assert (found["messages"], found["durable"], found["type"]) == (1, True, "classic")
    get = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    [message] = api("POST", "/api/queues/%2F/from-rest/get", get)[1]
    assert json.loads(message["payload"]) == {"n": 1}
    assert message["properties"]["content_type"] == "application/json"


def test_health(api: Api, server: Served, amqp_port: int) -> None:
    for path in (
        *("healthchecks/node", "health/checks/alarms", "health/checks/local-alarms", "aliveness-test/%2F"),
        *("health/checks/virtual-hosts", "health/checks/node-is-quorum-critical"),
    ):
        assert api("GET", f"/api/{path}") == (200, {"status": "ok"})
    listening = {"status": "ok", "port": amqp_port}
    assert api("GET", f"/api/health/checks/port-listener/{amqp_port}") == (200, listening)
    assert api("GET", "/api/health/checks/port-listener/1")[0] == 503
    assert api("GET", "/api/health/checks/protocol-listener/amqp")[0] == 200
    assert api("GET", "/api/health/checks/protocol-listener/mqtt")[0] == 503


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/queues/%2F/wrong", b"{"),
        ("PUT", "/api/queues/%2F/wrong", []),
        ("PUT", "/api/queues/%2F/wrong", {"durable": "maybe"}),
        ("PUT", "/api/queues/%2F/wrong", {"arguments": 5}),
        ("PUT", "/api/queues/%2F/wrong", {"arguments": {"x-max-length": "a"}}),
        ("PUT", "/api/queues/%2F/" + "x" * 300, {}),
        ("PUT", "/api/exchanges/%2F/wrong", {"type": 5}),
        ("PUT", "/api/exchanges/%2F/wrong", {"type": "odd"}),
        ("POST", "/api/exchanges/%2F/amq.direct/publish", {"routing_key": "k", "payload": "x"}),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"routing_key": "k", "payload": "x", "payload_encoding": "string", "properties": {"colour": 1}},
        ),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {
                "routing_key": "k",
                "payload": "x",
                "payload_encoding": "string",
                "properties": {"priority": 999},
            },
        ),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {
                "routing_key": "k",
                "payload": "x",
                "payload_encoding": "string",
                "properties": {"expiration": "x"},
            },
        ),
        ("POST", "/api/bindings/%2F/e/amq.direct/q/there", {"routing_key": 5}),
        (
            "POST",
            "/api/queues/%2F/there/get",
            {"count": -1, "ackmode": "ack_requeue_true", "encoding": "auto"},
        ),
        ("POST", "/api/queues/%2F/there/get", {"count": 1, "ackmode": "x", "encoding": "auto"}),
        ("POST", "/api/queues/%2F/there/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "x"}),
        ("POST", "/api/definitions", b"nonsense"),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(api: Api, method: str, path: str, body: object) -> None:
    api("PUT", "/api/queues/%2F/there", {})
    status, answer = api(method, path, body)
    assert status == 400
    assert answer["error"] == "bad_request"
    assert answer["reason"]


def test_other_paths_and_methods_are_refused(api: Api) -> None:
    for path in ("/api/nothing", "/api/queues/none", "/api/queues/none/q", "/api/queues/%2F/q/nothing"):
        assert api("GET", path)[0] == 404
    assert api("POST", "/api/overview", {})[0] == 405
    assert api("GET", "/api/v1/queues")[0] == 200  # OpenQ's own stays what it is


# -- who may --------------------------------------------------------------------------------------


def test_an_open_server_accepts_guest_or_no_login(server: Served) -> None:
    assert Api(server.url)("GET", "/api/whoami")[1] == {"name": "guest", "tags": ["administrator"]}
    assert server.get("/api/overview")[0] == 200
    for name, password in (("guest", "wrong"), ("admin", "guest")):
        assert Api(server.url, name, password)("GET", "/api/overview")[0] == 401


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("guarded")
    store = UserStore(str(data / "users.json"))
    store.add_user("boss", password="secret", role="admin")
    store.add_user("manager", password="secret", role="manager")
    store.add_user("stranger", password="secret", role="manager", account="elsewhere")
    rules = [
        Rule("allow", frozenset(("peek", "receive")), "mine*"),
        Rule("allow", frozenset(("send",)), "out"),
    ]
    store.add_user("limited", password="secret", rules=rules)
    with served(data, "--amqp-port", str(free_port())) as server:
        boss = Api(server.url, "boss", "secret")
        for name in ("mine", "other", "out"):
            assert boss("PUT", f"/api/queues/%2F/{name}", {"durable": True})[0] == 201
        boss("PUT", "/api/exchanges/%2F/x", {"type": "direct", "durable": True})
        yield server


def test_a_wrong_login_is_refused(guarded: Served) -> None:
    assert guarded.get("/api/overview")[0] == 401
    assert Api(guarded.url, "boss", "wrong")("GET", "/api/overview")[0] == 401
    assert Api(guarded.url)("GET", "/api/whoami")[0] == 401


def test_users_see_and_change_only_what_their_rules_allow(guarded: Served) -> None:
    limited = Api(guarded.url, "limited", "secret")
    assert limited("GET", "/api/whoami")[1] == {"name": "limited", "tags": ["management"]}
    assert [each["name"] for each in limited("GET", "/api/queues")[1]] == ["mine"]
    assert {each["destination"] for each in limited("GET", "/api/bindings")[1]} == {"mine"}
    get = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert limited("POST", "/api/queues/%2F/mine/get", get) == (200, [])
    message = {"properties": {}, "routing_key": "out", "payload": "x", "payload_encoding": "string"}
    assert limited("POST", "/api/exchanges/%2F/amq.default/publish", message) == (200, {"routed": True})
    copied = {**message, "properties": {"headers": {"CC": ["other"]}}}
    for method, path, body in [
        ("POST", "/api/exchanges/%2F/amq.default/publish", {**message, "routing_key": "other"}),
        ("POST", "/api/exchanges/%2F/amq.default/publish", copied),
        ("POST", "/api/exchanges/%2F/x/publish", message),
        ("POST", "/api/queues/%2F/other/get", get),
        ("POST", "/api/queues/%2F/out/get", get),
        ("GET", "/api/queues/%2F/other", None),
        ("GET", "/api/queues/%2F/none", None),  # who may not know does not learn that it is not there
        ("PUT", "/api/queues/%2F/mine2", {}),
        ("DELETE", "/api/queues/%2F/mine", None),
        ("DELETE", "/api/queues/%2F/mine/contents", None),
        ("POST", "/api/bindings/%2F/e/x/q/mine", {}),
        *_ADMINISTRATION,
    ]:
        assert limited(method, path, body)[0] == 401, (method, path)


_ADMINISTRATION: list[tuple[str, str, Any]] = [
    ("GET", "/api/definitions", None),
    ("POST", "/api/definitions", {}),
    ("GET", "/api/definitions/%2F", None),
    ("POST", "/api/definitions/%2F", {}),
    ("GET", "/api/users", None),
    ("GET", "/api/users/boss", None),
    ("GET", "/api/permissions", None),
    ("GET", "/api/permissions/%2F/boss", None),
    ("GET", "/api/users/boss/permissions", None),
    ("GET", "/api/vhosts/%2F/permissions", None),
    ("PUT", "/api/vhosts/new", {}),
    ("DELETE", "/api/vhosts/elsewhere", None),
    ("PUT", "/api/policies/%2F/p", {"pattern": ".", "definition": {"max-length": 1}}),
    ("DELETE", "/api/policies/%2F/p", None),
    ("PUT", "/api/users/limited", {"tags": "administrator", "password": "x"}),
    ("DELETE", "/api/users/limited", None),
    ("POST", "/api/users/bulk-delete", {"users": ["limited"]}),
    ("GET", "/api/users/without-permissions", None),
    ("PUT", "/api/permissions/%2F/limited", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("DELETE", "/api/permissions/%2F/limited", None),
    ("DELETE", "/api/connections/username/boss", None),
]


def test_a_manager_cannot_administer_the_server(guarded: Served) -> None:
    manager = Api(guarded.url, "manager", "secret")
    assert manager("PUT", "/api/queues/%2F/managed", {})[0] == 201
    assert manager("POST", "/api/bindings/%2F/e/x/q/managed", {"routing_key": "k"})[0] == 201
    assert manager("DELETE", "/api/queues/%2F/managed")[0] == 204
    for method, path, body in _ADMINISTRATION:
        assert manager(method, path, body)[0] == 401, (method, path)


def test_objects_of_other_accounts_are_not_found(guarded: Served) -> None:
    stranger = Api(guarded.url, "stranger", "secret")
    assert [each["name"] for each in stranger("GET", "/api/vhosts")[1]] == ["elsewhere"]
    assert stranger("GET", "/api/queues")[1] == []
    assert {each["vhost"] for each in stranger("GET", "/api/exchanges")[1]} == {"elsewhere"}
    for path in (
        "queues/%2F",
        "queues/%2F/mine",
        "exchanges/%2F",
        "bindings/%2F",
        "policies/%2F",
        "vhosts/%2F",
    ):
        assert stranger("GET", f"/api/{path}")[0] == 404, path
    assert stranger("PUT", "/api/queues/%2F/mine", {})[0] == 404
    for what in ("queues", "exchanges"):  # one that there is answers like one that there is not
        there, nowhere = (stranger("PUT", f"/api/{what}/{vhost}/mine", {}) for vhost in ("%2F", "nowhere"))
        assert there == nowhere == (404, {"error": "not_found", "reason": "vhost_not_found"})
    assert stranger("GET", "/api/overview")[0] == 401
    assert stranger("PUT", "/api/queues/elsewhere/own", {})[0] == 201
    assert [each["name"] for each in stranger("GET", "/api/queues")[1]] == ["own"]


def test_an_administrator_sees_users_without_their_hashes(guarded: Served) -> None:
    boss = Api(guarded.url, "boss", "secret")
    users = {each["name"]: each for each in boss("GET", "/api/users")[1]}
    assert set(users) == {"boss", "manager", "stranger", "limited"}
    assert all(each["password_hash"] == "" for each in users.values())
    assert users["boss"]["tags"] == ["administrator"]
    assert boss("GET", "/api/permissions/%2F/limited")[1] == {
        "user": "limited",
        "vhost": "/",
        "configure": "",
        "write": "^out$",
        "read": "^mine.*$",
    }
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert everything.items() <= boss("GET", "/api/permissions/elsewhere/boss")[1].items()


def test_changes_survive_a_restart(tmp_path: Path) -> None:
    with served(tmp_path, "--amqp-port", str(free_port())) as server:
        api = Api(server.url)
        api("PUT", "/api/vhosts/v", {})
        api("PUT", "/api/queues/v/q", {"durable": True})
        api("PUT", "/api/policies/v/p", {"pattern": ".", "definition": {"max-length": 3}})
        before = api("GET", "/api/definitions")[1]
        server.kill()
    with served(tmp_path, "--amqp-port", str(free_port())) as server:
        assert Api(server.url)("GET", "/api/definitions")[1] == before
        assert fields_of(before["queues"]) == ["arguments", "auto_delete", "durable", "name", "vhost"]


def test_open_connections_are_listed(api: Api, amqp_port: int) -> None:
    named = {"connection_name": "mill"}
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", amqp_port, client_properties=named)
    )
    channel = connection.channel()
    channel.queue_declare("live", exclusive=True)
    channel.basic_consume("live", lambda *_: None, consumer_tag="me")
    [found] = [each for each in api("GET", "/api/connections")[1] if each["user"] == "guest"]
    path = f"/api/connections/{quote(found['name'], safe='')}"
    assert api("GET", path)[0] == 200
    assert found["name"] == f"127.0.0.1:{found['peer_port']} -> 127.0.0.1:{amqp_port}"
    assert (found["host"], found["port"], found["user_provided_name"]) == ("127.0.0.1", amqp_port, "mill")
    assert found["node"] == api("GET", "/api/nodes")[1][0]["name"]
    assert api("GET", f"{path}?columns=user,host,client_properties.product")[1] == {
        "user": "guest",
        "host": "127.0.0.1",
        "client_properties": {"product": "Pika Python Client Library"},
    }
    assert api("GET", "/api/queues/%2F/live?columns=name,vhost")[1] == {"name": "live", "vhost": "/"}
    assert len(api("GET", "/api/vhosts/%2F/connections")[1]) == 1
    assert [each["consumer_tag"] for each in api("GET", "/api/consumers")[1]] == ["me"]
    queue = api("GET", "/api/queues/%2F/live")[1]
    assert (queue["consumers"], queue["exclusive"]) == (1, True)
    assert queue["consumer_details"][0]["consumer_tag"] == "me"
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert api("POST", "/api/queues/%2F/live/get", get)[0] == 400  # it is its connection's alone
    connection.close()
    until(lambda: api("GET", "/api/queues/%2F/live")[0] == 404)
    assert api("GET", "/api/connections")[1] == []


def test_no_request_makes_the_server_fail(server: Served) -> None:
    """Every route with names and bodies that fit, half fit or do not; the choice is always the same."""
    chooser = random.Random(7)
    names = ["%2F", "none", "q", "x", "amq.direct", "amq.default", "", "%FF", "a%2Fb", "~", "e", "y" * 300]
    values: list[object] = [
        *(None, True, 0, -1, 2**70, 1.5, "", "q", "\ud800", "\x00", "(", [], {}, ["a"], {"a": 1}),
        *({"x-match": "some"}, {"x-queue-type": "quorum"}, {"max-length": 3}, {"headers": {"CC": ["q"]}}),
        *({"headers": {"a": 2**70}}, {"timestamp": -5}, {"type": "\ud800"}),
    ]
    fitting: dict[str, object] = {
        "payload": "x",
        "payload_encoding": "string",
        "properties": {},
        "routing_key": "q",
        "count": 1,
        "ackmode": "ack_requeue_true",
        "encoding": "auto",
        "pattern": ".",
        "type": "direct",
        "definition": {"max-length": 5},
        "arguments": {},
        "durable": True,
        "tags": "management",
        "password": "secret",
        "configure": ".*",
        "write": "^q$",
        "read": "",
        "users": ["q"],
    }
    routes = [(each.method, each.path.split("/")) for each in ROUTES]
    api = Api(server.url)
    for _ in range(600):
        method, parts = chooser.choice(routes)
        path = "/".join(chooser.choice(names) if part.startswith("{") else part for part in parts)
        body: object = None
        if method in ("PUT", "POST"):
            odd = {
                name: chooser.choice(values) for name in chooser.sample(list(fitting), chooser.randrange(4))
            }
            body = chooser.choice([b"", b"{", b"[]", b"\xff", {**fitting, **odd}, {**fitting, **odd}])
        status, _ = api(method, f"/api/{path}", body)
        assert status < 500 or (status == 503 and "listener" in path), (method, path, body)
