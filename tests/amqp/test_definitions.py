"""RabbitMQ's definitions become queues, exchanges, users and policies, and come out again as they went in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.amqp import definitions
from openq.amqp.definitions import ImportReport, InvalidDefinitions
from openq.amqp.definitions_export import export
from openq.amqp.definitions_import import apply_at_start, apply_topology, apply_users
from openq.amqp.permissions import globs_of
from openq.auth.errors import LoginFailed
from openq.auth.rules import Rule, matches
from openq.model import Draft, QueueSettings

from .topology_server import TopologyServer

# By Debian's RabbitMQ 3.10.8; `boss` comes from another export of the same, for the password.
EXPORTED = Path(__file__).with_name("rabbitmq_definitions.json")
BOSS = ("boss", "boss-pass-9")
# What RabbitMQ 3.10.8 made of passwords: `rabbitmqctl add_user`, then `rabbitmqctl export_definitions`.
SHA256 = ("5y7c4QulugzAQ+Y9TdSV+KX6/+MV8+pn0KwT+KCKYdZ67PXA", "wätch-pass")


@pytest.fixture
def topology_server() -> Iterator[TopologyServer]:
    with closing(TopologyServer()) as topology_server:
        yield topology_server


def imported(topology_server: TopologyServer, source: Any, vhost: str | None = None) -> ImportReport:
    report = ImportReport()
    wanted = definitions.read(source, vhost)
    apply_topology(topology_server.topology, wanted, report)
    apply_users(topology_server.store, wanted, report)
    return report


def test_a_rabbitmq_export_is_imported(topology_server: TopologyServer) -> None:
    report = imported(topology_server, json.loads(EXPORTED.read_text()))
    assert report.made == {
        "vhosts": 1,
        "policies": 2,
        "exchanges": 2,
        "queues": 3,
        "bindings": 6,
        "users": 3,
    }
    work = topology_server.settings("@v/work")
    assert (work.max_receives, work.dead_letter_exchange, work.ttl_ms) == (4, "@v/dead", 3_600_000)
    first = topology_server.settings("q1")
    assert (first.ttl_ms, first.max_length) == (60_000, 10)
    draft = Draft(b"", attributes={"kind": "job", "n": 3})
    assert topology_server.broker.exchanges.route("@v/amq.headers", "", draft)[1] == ["@v/work"]
    assert topology_server.broker.exchanges.route("@v/dead", "any", Draft(b""))[1] == ["@v/dead"]
    assert topology_server.broker.exchanges.route("x1", "a.b/c", Draft(b""))[1] == ["q1"]


def test_only_unsupported_definitions_are_reported(topology_server: TopologyServer) -> None:
    report = imported(topology_server, json.loads(EXPORTED.read_text()))
    skipped = "\n".join(report.not_converted)
    for what in (
        "queue 'log' in vhost 'v'",
        "user 'guest'",
        "permission read '[a-z]+' of user 'u'",
        "topic permission of user 'worker'",
        "parameter 'limits' of 'vhost-limits'",
    ):
        assert what in skipped
    assert len(report.not_converted) == 5
    hints = "\n".join(report.hints)
    assert "user 'boss': administrator becomes the role admin" in hints
    assert "user 'u': monitoring becomes the role viewer" in hints
    assert "authentication is required" in hints
    assert "passwd" not in hints


def test_a_second_import_changes_nothing(topology_server: TopologyServer) -> None:
    source = json.loads(EXPORTED.read_text())
    imported(topology_server, source)
    before = export(topology_server.topology, topology_server.store)
    report = imported(topology_server, source)
    assert report.made == {}
    assert report.hints == []
    assert export(topology_server.topology, topology_server.store) == before


def test_imported_definitions_are_exported_again(topology_server: TopologyServer) -> None:
    source = json.loads(EXPORTED.read_text())
    imported(topology_server, source)
    exported = export(topology_server.topology, topology_server.store)

    def set_of(items: list[dict[str, Any]]) -> set[str]:
        return {json.dumps(item, sort_keys=True) for item in items}

    for kind in ("vhosts", "exchanges", "bindings", "policies"):
        assert set_of(exported[kind]) == set_of(source[kind])
    assert set_of(exported["queues"]) == set_of([each for each in source["queues"] if each["name"] != "log"])
    assert {each["name"] for each in exported["users"]} == {"u", "worker", "boss"}
    assert all(each["password_hash"] == "" for each in exported["users"])


def test_an_export_can_be_imported_into_another_server(topology_server: TopologyServer) -> None:
    imported(topology_server, json.loads(EXPORTED.read_text()))
    topology_server.broker.declare("foreign", QueueSettings(ttl_ms=5, dead_letter="q1", fifo=True))
    exported = json.loads(json.dumps(export(topology_server.topology, topology_server.store)))
    with closing(TopologyServer()) as other:
        other.store.add_user("boss", role="admin", password="secret")  # an export has no passwords
        report = imported(other, exported)
        assert report.not_converted == []
        assert other.settings("foreign").ttl_ms == 5
        again = export(other.topology, other.store)
        assert again == exported
    assert imported(topology_server, exported).made == {}


def test_permissions_become_rules_of_the_user(topology_server: TopologyServer) -> None:
    imported(topology_server, json.loads(EXPORTED.read_text()))
    worker = topology_server.store.user("worker")
    assert worker is not None
    assert (worker.account, worker.role) == ("v", "none")
    assert set(worker.rules) == {
        Rule("allow", frozenset(("send",)), "dead", "v"),
        Rule("allow", frozenset(("send",)), "work", "v"),
        Rule("allow", frozenset(("receive", "peek")), "work*", "v"),
    }


def test_administrators_and_plain_text_passwords_are_imported(topology_server: TopologyServer) -> None:
    users = [{"name": "boss", "tags": "administrator,x", "password": "secret"}, {"name": "bad name!"}]
    report = imported(topology_server, {"users": users})
    boss = topology_server.store.user("boss")
    assert boss is not None
    assert boss.role == "admin"
    assert boss.password_hash is not None
    assert any("bad name!" in line for line in report.not_converted)
    assert any("tag 'x' of user 'boss'" in line for line in report.not_converted)


def test_users_log_in_with_their_rabbitmq_passwords(topology_server: TopologyServer) -> None:
    users = [{"name": "watch", "password_hash": SHA256[0], "tags": ["management"]}]
    source = json.loads(EXPORTED.read_text())
    imported(topology_server, {**source, "users": [*source["users"], *users]})
    guard = topology_server.context.guard
    for name, password in (BOSS, ("watch", SHA256[1])):
        with pytest.raises(LoginFailed):
            guard.basic(name, password + "x")
        assert guard.basic(name, password).user == name


@pytest.mark.parametrize(
    ("user", "skipped"),
    [
        ({"password_hash": "AAAA"}, "its password_hash is not of 'rabbit_password_hashing_sha256'"),
        ({"password_hash": "no base64"}, "its password_hash is not of"),
        ({"password_hash": SHA256[0], "hashing_algorithm": "rabbit_password_hashing_md5"}, "hashing_md5'"),
        ({"password_hash": SHA256[0], "hashing_algorithm": "rabbit_password_hashing_sha512"}, "is not of"),
    ],
)
def test_an_unusable_hash_is_reported_with_advice(
    topology_server: TopologyServer, user: dict[str, str], skipped: str
) -> None:
    topology_server.store.add_user("root", role="admin")
    report = imported(topology_server, {"users": [{"name": "old", **user}]})
    assert "password of user 'old'" in report.not_converted[0]
    assert skipped in report.not_converted[0]
    assert "`openq user passwd old`" in report.hints[0]
    old = topology_server.store.user("old")
    assert old is not None
    assert old.password_hash is None


@pytest.mark.parametrize(
    "users",
    [
        [{"name": "boss", "tags": "administrator"}],
        [{"name": "boss", "tags": "administrator", "password_hash": ""}],
        [{"name": "boss", "tags": "administrator", "password": ""}],
        [{"name": "boss", "tags": "administrator", "password": "x" * 2000}],
        [{"name": "boss", "tags": "administrator", "password_hash": "AAAA"}],
        [{"name": "bad name!", "tags": "administrator", "password_hash": SHA256[0]}],
        [{"name": "watch", "tags": "monitoring", "password_hash": SHA256[0]}],
        [{"name": "guest", "tags": "administrator", "password_hash": SHA256[0]}, {"name": "watch"}],
    ],
)
def test_users_without_a_usable_administrator_do_not_close_an_open_server(
    topology_server: TopologyServer, users: list[dict[str, str]]
) -> None:
    permissions = [{"user": users[0]["name"], "vhost": "/", "configure": "", "write": "a", "read": ""}]
    report = imported(topology_server, {"users": users, "permissions": permissions})
    assert topology_server.store.users() == []
    assert topology_server.context.guard.is_open
    assert "none of them is an administrator with a password" in report.not_converted[-1]
    assert "openq user add" in report.not_converted[-1]
    assert "users" not in report.made
    topology_server.store.add_user("root", role="admin", password="secret")
    imported(topology_server, {"users": [{"name": "watch", "password_hash": SHA256[0]}]})
    assert topology_server.store.user("watch") is not None


def test_tags_become_roles_and_differences_are_reported(topology_server: TopologyServer) -> None:
    topology_server.store.add_user("root", role="admin")
    users = [
        {"name": tags.replace(",", "-"), "tags": tags, "password_hash": SHA256[0]}
        for tags in ("monitoring", "management", "policymaker", "management,administrator", "impersonator")
    ]
    report = imported(topology_server, {"users": users})
    roles = {user.name: user.role for user in topology_server.store.users()}
    assert roles == {
        "root": "admin",
        "monitoring": "viewer",
        "management": "viewer",
        "policymaker": "viewer",
        "management-administrator": "admin",
        "impersonator": "none",
    }
    assert len(report.hints) == 4
    assert [line.partition(":")[0] for line in report.not_converted] == [
        "tag 'policymaker' of user 'policymaker'",
        "tag 'impersonator' of user 'impersonator'",
    ]


_AT = {
    "queues": {"name": "q"},
    "exchanges": {"name": "x", "type": "fanout"},
    "bindings": {"source": "x", "destination": "q", "destination_type": "queue"},
    "policies": {"name": "p", "pattern": ".", "definition": {"max-length": 1}},
    "permissions": {"user": "u", "configure": "", "write": "", "read": ""},
}


@pytest.mark.parametrize("kind", _AT)
def test_an_unknown_vhost_is_an_error_that_names_its_position(
    topology_server: TopologyServer, kind: str
) -> None:
    source = {kind: [{**_AT[kind], "vhost": "/"}, {**_AT[kind], "vhost": "shop"}]}
    with pytest.raises(InvalidDefinitions, match=rf"{kind}\[1\]\.vhost: vhost 'shop' is neither"):
        imported(topology_server, {**source, "vhosts": [{"name": "other"}]})
    assert topology_server.topology.vhosts() == ["/"]
    imported(topology_server, {**source, "vhosts": [{"name": "shop"}]})
    imported(topology_server, source)  # known by now


def test_an_existing_user_keeps_password_and_role_and_gets_missing_rules(
    topology_server: TopologyServer,
) -> None:
    topology_server.store.add_user("u", password="secret", role="viewer")
    source = {
        "users": [{"name": "u", "tags": ["administrator"]}],
        "permissions": [{"user": "u", "vhost": "/", "configure": "", "write": "^a$", "read": ""}],
    }
    for _ in range(2):
        report = imported(topology_server, source)
        assert report.kept["users"] == 1
        user = topology_server.store.user("u")
        assert user is not None
        assert user.role == "viewer"
        assert user.password_hash is not None
        assert len(user.rules) == 1


def test_definitions_of_one_vhost_are_imported_into_the_given_vhost(topology_server: TopologyServer) -> None:
    imported(topology_server, json.loads(EXPORTED.read_text()))
    of_v = export(topology_server.topology, None, "v")
    assert "users" not in of_v
    assert all("vhost" not in each for each in (*of_v["queues"], *of_v["exchanges"], *of_v["bindings"]))
    of_v["policies"] = []  # these name their vhost even so
    imported(topology_server, of_v, "w")
    assert {"@w/work", "@w/dead"} <= set(topology_server.topology.queues("w"))


def test_a_binding_to_a_skipped_object_is_reported_and_the_import_continues(
    topology_server: TopologyServer,
) -> None:
    source = {
        "exchanges": [
            {"name": "x", "vhost": "/", "type": "x-consistent-hash", "durable": True},
            {"name": "y", "vhost": "/", "type": "fanout", "durable": True},
        ],
        "bindings": [
            {"source": name, "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": ""}
            for name in ("x", "y")
        ],
        "queues": [{"name": "q", "vhost": "/", "durable": True}],
        "policies": [{"name": "p", "vhost": "/", "pattern": ".", "definition": {"plugin-key": 1}}],
    }
    report = imported(topology_server, source)
    assert report.made["bindings"] == 1
    skipped = "\n".join(report.not_converted)
    assert "unknown exchange type 'x-consistent-hash'" in skipped
    assert "binding from exchange 'x' to queue 'q'" in skipped
    assert "policy 'p'" in skipped


@pytest.mark.parametrize(
    ("source", "place_named"),
    [
        ([], "definitions must be an object"),
        ({"queues": {}}, "queues must be a list"),
        ({"queues": [5]}, r"queues\[0\] must be an object"),
        ({"queues": [{"name": "a"}, {"vhost": "/"}]}, r"queues\[1\]\.name is missing"),
        ({"queues": [{"name": 5}]}, r"queues\[0\]\.name must be text, not a number"),
        ({"queues": [{"name": "a", "durable": "yes"}]}, r"queues\[0\]\.durable must be true or false"),
        ({"queues": [{"name": "a", "arguments": [1]}]}, r"queues\[0\]\.arguments must be an object"),
        ({"queues": [{"name": "a", "vhost": ""}]}, r"queues\[0\]\.vhost must not be empty"),
        ({"exchanges": [{"name": "a"}]}, r"exchanges\[0\]\.type is missing"),
        (
            {"bindings": [{"source": "a", "destination": "b", "destination_type": "c"}]},
            r"bindings\[0\]\.destination_type must be queue or exchange",
        ),
        ({"users": [{"name": "a", "tags": 5}]}, r"users\[0\]\.tags"),
        ({"users": [{"name": "a", "password_hash": 5}]}, r"users\[0\]\.password_hash must be text"),
        ({"users": [{"name": "a", "hashing_algorithm": 5}]}, r"users\[0\]\.hashing_algorithm must be text"),
        ({"permissions": [{"user": "a", "vhost": "/"}]}, r"permissions\[0\]\.configure is missing"),
        ({"policies": [None]}, r"policies\[0\] must be an object, not null"),
    ],
)
def test_an_invalid_file_changes_nothing_and_the_error_names_the_position(
    topology_server: TopologyServer, source: Any, place_named: str
) -> None:
    if isinstance(source, dict):
        source = {"vhosts": [{"name": "new"}], **source}
    with pytest.raises(InvalidDefinitions, match=place_named):
        imported(topology_server, source)
    assert topology_server.topology.vhosts() == ["/"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = (
    *("name", "vhost", "type", "durable", "arguments", "source", "destination", "destination_type", "user"),
    *("routing_key", "configure", "write", "read", "tags", "pattern", "definition", "priority"),
)
_OBJECTS = st.dictionaries(
    st.sampled_from(_FIELDS), _JSON | st.sampled_from(["queue", "/", "q", "fanout", ".*"])
)
_SECTIONS = ("vhosts", "users", "permissions", "exchanges", "queues", "bindings", "policies", "parameters")


@given(st.dictionaries(st.sampled_from(_SECTIONS), _JSON | st.lists(_OBJECTS | _JSON, max_size=3)))
def test_any_json_is_imported_or_gives_a_typed_error(source: Any) -> None:
    try:
        wanted = definitions.read(source)
    except InvalidDefinitions:
        return
    with closing(TopologyServer()) as topology_server:
        try:
            apply_topology(topology_server.topology, wanted, ImportReport())
        except InvalidDefinitions:
            return
        apply_users(topology_server.store, wanted, ImportReport())
        json.dumps(export(topology_server.topology, topology_server.store))


def test_a_file_that_is_not_json_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "broker.json"
    path.write_text("{")
    with pytest.raises(InvalidDefinitions, match=r"broker\.json is not JSON"):
        definitions.load(str(path))
    with pytest.raises(InvalidDefinitions, match="cannot read"):
        definitions.load(str(tmp_path / "none"))


def test_a_definitions_file_in_the_configuration_is_imported_at_start(tmp_path: Path) -> None:
    with closing(TopologyServer(tmp_path / "data")) as topology_server:
        apply_at_start(topology_server.topology, topology_server.store, str(EXPORTED))
        topology_server.close()
        topology_server.open()
        assert topology_server.topology.policies.get("v", "ha") is not None
        assert "@v/work" in topology_server.topology.queues()


# -- permissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "globs"),
    [
        ("", []),
        ("^$", []),
        (".*", ["*"]),
        ("^.*$", ["*"]),
        ("^a", ["a*"]),
        ("^a.*", ["a*"]),
        ("a$", ["*a"]),
        ("^a$", ["a"]),
        ("a", ["*a*"]),
        ("^a\\.b$", ["a.b"]),
        ("^a.b$", ["a?b"]),
        ("^a.+$", ["a?*"]),
        ("^(a|b)$", ["a", "b"]),
        ("^(?:a|b.*)$", ["a", "b*"]),
        ("^(a|b)", ["a*", "b*"]),
        ("^a$|^b", ["a", "b*"]),
        ("^(amq\\.gen.*|amq\\.default)$", ["amq.gen*", "amq.default"]),
        ("[a-z]", None),
        ("^(?!a).*", None),
        ("a*", None),
        ("^a\\*$", None),
        ("^a\\d$", None),
        ("^((a|b)c)$", None),
        ("^(a)|(b)$", None),
        ("a\\|b", None),
        ("^ab?$", None),
        ("^a{2}$", None),
        ("a^b", None),
        ("^a.?$", None),
    ],
)
def test_regular_expressions_become_globs_or_are_reported(pattern: str, globs: list[str] | None) -> None:
    assert globs_of(pattern) == globs


@given(
    st.lists(
        st.sampled_from(["a", "b", ".", ".*", "^", "$", "|", "(", ")", "\\.", "?", "-", ".+"]), max_size=9
    ),
    st.text("ab.-", min_size=1, max_size=6),
)
def test_a_rule_matches_exactly_what_the_pattern_matched(parts: list[str], name: str) -> None:
    pattern = "".join(parts)
    try:
        found = re.search(pattern, name) is not None
    except re.error:
        return
    globs = globs_of(pattern)
    # RabbitMQ takes an empty pattern for one that matches nothing.
    if globs is not None and pattern:
        assert any(matches(glob, name) for glob in globs) == found
