"""Queues, exchanges and bindings answer as RabbitMQ does, and do what they were declared to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openq.amqp.arguments import declaration_of
from openq.amqp.errors import AmqpError
from openq.amqp.policies import InvalidAmqpPolicy, Policy
from openq.engine.routing import Exchange
from openq.model import MAX_SPAN_MS, Draft, QueueSettings
from openq.names import DEFAULT_ACCOUNT, qualified_name

from .topology_server import TopologyServer
from .topology_steps import ANSWERS, SITUATIONS, Step

RECORDED: dict[str, list[list[Any]]] = json.loads(ANSWERS.read_text())

# Where OpenQ answers otherwise on purpose.
INTENDED_DIFFERENCES = {
    "argument x-queue-master-locator": "where in a cluster a queue lives says nothing here: kept as it came",
    "kinds": "an unknown type of exchange is a channel error, 406, as in RabbitMQ 4",
    "unknown kind of an exchange that exists": "the same",
    "name too strange": "line ends are left out here too, but the recording client did not expect it",
}


@pytest.fixture
def topology_server() -> Iterator[TopologyServer]:
    with closing(TopologyServer()) as topology_server:
        yield topology_server


@pytest.fixture
def durable_topology(tmp_path: Path) -> Iterator[TopologyServer]:
    with closing(TopologyServer(tmp_path)) as topology_server:
        yield topology_server


def answer_to(topology_server: TopologyServer, step: Step) -> list[Any]:
    by, verb, given = step
    topology, vhost = topology_server.topology, "/"
    owned: dict[str, Any] = {"owner": by}
    try:
        if verb == "declare_queue":
            topology.declare_queue(vhost, **given, **owned)
            return [
                "ok",
                topology_server.broker.get_queue(qualified_name(DEFAULT_ACCOUNT, given["name"])).ready_count,
            ]
        if verb == "publish":
            topology_server.broker.exchanges.route(given["exchange"], given["key"], Draft(b""))
            return ["ok", None]
        if verb in ("delete_queue", "purge_queue", "bind_queue", "unbind_queue"):
            given = {**given, **owned}
        said = getattr(topology, verb)(vhost, **given)
        return ["ok", None if isinstance(said, bool) else said]
    except AmqpError as error:
        return [error.code, error.reply_text]


@pytest.mark.parametrize(
    "title", [each for each in SITUATIONS if not each.startswith(tuple(INTENDED_DIFFERENCES))]
)
def test_every_step_is_answered_as_rabbitmq_answers_it(title: str, topology_server: TopologyServer) -> None:
    for step, expected in zip(SITUATIONS[title], RECORDED[title], strict=True):
        assert answer_to(topology_server, step) == expected, step


def test_every_situation_has_a_recording() -> None:
    assert list(RECORDED) == list(SITUATIONS)


def declare(topology_server: TopologyServer, name: str = "q", vhost: str = "/", **given: Any) -> str:
    flags = {"durable": True, **given}
    return topology_server.topology.declare_queue(vhost, name, **flags)


# -- what arguments do ----------------------------------------------------------------------------


def test_a_queue_without_arguments_keeps_messages_for_ever_and_ignores_priorities(
    topology_server: TopologyServer,
) -> None:
    declare(topology_server)
    settings = topology_server.settings()
    assert settings.retention_ms == MAX_SPAN_MS
    assert settings.max_priority == 0
    assert (settings.ttl_ms, settings.max_receives, settings.dead_letter_exchange) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-message-ttl": 5}, {"ttl_ms": 5}),
        ({"x-max-length": 5}, {"max_length": 5, "overflow": "drop-head"}),
        ({"x-max-length-bytes": 2**63 - 1}, {"max_bytes": MAX_SPAN_MS}),
        ({"x-max-priority": 9}, {"max_priority": 9}),
        ({"x-overflow": "reject-publish"}, {"overflow": "reject"}),
        ({"x-overflow": "reject-publish-dlx"}, {"overflow": "reject-dead-letter"}),
        (
            {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "k"},
            {
                "dead_letter_exchange": "dead",
                "dead_letter_key": "k",
                "overflow": "dead-letter",
                "dead_letter_expired": True,
            },
        ),
        ({"x-dead-letter-exchange": ""}, {"dead_letter_exchange": "", "dead_letter_key": None}),
        (
            {"x-queue-type": "quorum", "x-delivery-limit": 2},
            {"max_receives": 3, "exhausted": "drop"},
        ),
        ({"x-queue-type": "quorum", "x-delivery-limit": -1}, {"max_receives": None}),
        ({"x-queue-type": "quorum", "x-delivery-limit": "many"}, {"max_receives": None}),
    ],
)
def test_arguments_become_settings(
    topology_server: TopologyServer, arguments: dict[str, Any], expected: dict[str, object]
) -> None:
    declare(topology_server, arguments=arguments)
    settings = topology_server.settings()
    assert {name: getattr(settings, name) for name in expected} == expected


def test_names_in_arguments_belong_to_the_vhost(topology_server: TopologyServer) -> None:
    topology_server.topology.add_vhost("v")
    declare(topology_server, vhost="v", arguments={"x-dead-letter-exchange": ""})
    topology_server.topology.declare_exchange("v", "x", "direct", arguments={"alternate-exchange": "y"})
    assert topology_server.settings("@v/q").dead_letter_exchange == "@v/"
    assert topology_server.topology.exchange("v", "x").alternate == "@v/y"


def test_a_stream_is_refused_and_the_error_names_the_alternative(topology_server: TopologyServer) -> None:
    with pytest.raises(AmqpError, match="replay") as refused:
        declare(topology_server, arguments={"x-queue-type": "stream"})
    assert refused.value.code == 540


def test_a_name_that_the_server_chooses_is_new_each_time(topology_server: TopologyServer) -> None:
    names = {declare(topology_server, "") for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("amq.gen-") and len(name) == 8 + 22 for name in names)


def test_line_ends_are_left_out_of_names(topology_server: TopologyServer) -> None:
    assert declare(topology_server, "a\r\nb") == "ab"


def test_all_values_that_a_table_can_hold_survive_as_arguments(durable_topology: TopologyServer) -> None:
    from decimal import Decimal

    from openq.amqp_fields import Timestamp

    arguments = {
        "x-a": [1, "b", None, {"c": b"\xff"}],
        "x-d": Decimal("1.5"),
        "x-t": Timestamp(5),
        "x-f": 1.5,
    }
    declare(durable_topology, arguments=arguments)
    durable_topology.topology.declare_exchange("/", "x", "headers", durable=True, arguments=arguments)
    durable_topology.topology.bind_queue("/", "q", "x", "", arguments)
    durable_topology.close()
    durable_topology.open()
    assert durable_topology.topology.declaration("q").arguments == arguments
    durable_topology.topology.declare_exchange("/", "x", "headers", durable=True, arguments=arguments)
    durable_topology.topology.unbind_queue("/", "q", "x", "", arguments)
    assert durable_topology.topology.bindings() == []


def test_values_the_engine_cannot_store_are_refused(topology_server: TopologyServer) -> None:
    declare(topology_server)
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    for value in (2**70, nested):
        with pytest.raises(AmqpError) as refused:
            topology_server.topology.bind_queue("/", "q", "amq.headers", "", {"a": value})
        assert refused.value.code == 406


# -- queues of other protocols ------------------------------------------------------------------------


def test_a_queue_of_another_protocol_can_be_declared_without_arguments(
    topology_server: TopologyServer,
) -> None:
    topology_server.broker.declare("q", QueueSettings(ttl_ms=7, dead_letter="dead", fifo=True))
    for durable in (False, True):
        declare(topology_server, durable=durable)
    declare(topology_server, arguments={"x-queue-type": "quorum"})
    declare(topology_server, arguments={"x-max-priority": 10})
    declare(topology_server, arguments={"x-message-ttl": 7, "x-dead-letter-exchange": ""})
    assert topology_server.settings() == QueueSettings(ttl_ms=7, dead_letter="dead", fifo=True)


@pytest.mark.parametrize(
    "given",
    [
        {"arguments": {"x-message-ttl": 8}},
        {"arguments": {"x-max-length": 8}},
        {"auto_delete": True},
        {"exclusive": True},
    ],
)
def test_declaring_a_queue_of_another_protocol_does_not_change_it(
    topology_server: TopologyServer, given: dict[str, Any]
) -> None:
    topology_server.broker.declare("q", QueueSettings(ttl_ms=7))
    with pytest.raises(AmqpError) as refused:
        declare(topology_server, **given)
    assert refused.value.code in (405, 406)


def test_an_exchange_of_another_protocol_can_be_declared_with_its_own_arguments(
    topology_server: TopologyServer,
) -> None:
    topology_server.broker.exchanges.declare_exchange(Exchange("x", "topic", alternate="y"))
    arguments = {"alternate-exchange": "y"}
    topology_server.topology.declare_exchange("/", "x", "topic", durable=True, arguments=arguments)
    topology_server.topology.apply_policies()
    assert topology_server.topology.exchange("/", "x").alternate == "y"


# -- who may, and what goes when ------------------------------------------------------------------


def test_exclusive_queues_go_with_their_connection_and_no_others(topology_server: TopologyServer) -> None:
    gone: list[str] = []
    topology_server.topology.on_queue_deleted = gone.append
    one, other = object(), object()
    declare(topology_server, "a", exclusive=True, owner=one)
    declare(topology_server, "b", exclusive=True, owner=other)
    declare(topology_server, "c", owner=one)
    assert topology_server.topology.delete_exclusive_queues(one) == gone == ["a"]
    assert topology_server.topology.queues() == ["b", "c"]
    with pytest.raises(AmqpError, match="locked queue 'b'"):
        topology_server.topology.check_access("/", "b", one)
    assert topology_server.topology.check_access("/", "b", other).name == "b"


def test_transient_objects_are_deleted_at_a_restart(durable_topology: TopologyServer) -> None:
    topology = durable_topology.topology
    declare(durable_topology, "durable")
    declare(durable_topology, "transient", durable=False)
    declare(durable_topology, "mine", exclusive=True, owner=durable_topology)
    durable_topology.broker.declare("foreign", QueueSettings())
    topology.declare_exchange("/", "stays", "fanout", durable=True)
    topology.declare_exchange("/", "goes", "fanout")
    topology.bind_queue("/", "durable", "stays", "")
    topology.bind_queue("/", "transient", "stays", "")
    topology.bind_queue("/", "durable", "goes", "")
    durable_topology.close()
    durable_topology.open()
    topology = durable_topology.topology
    assert topology.queues() == ["durable", "foreign"]
    assert topology.has_exchange("stays")
    assert not topology.has_exchange("goes")
    assert [(each.source, each.destination) for each in topology.bindings()] == [("stays", "durable")]


def test_an_unused_queue_is_deleted_when_it_expires(topology_server: TopologyServer) -> None:
    gone: list[str] = []
    topology_server.topology.on_queue_deleted = gone.append
    declare(topology_server, arguments={"x-expires": 10_000})
    topology_server.loop.pass_time(9)
    topology_server.topology.mark_used("q")
    topology_server.loop.pass_time(9)
    declare(topology_server, arguments={"x-expires": 10_000})
    topology_server.loop.pass_time(9)
    declare(topology_server, passive=True)
    topology_server.loop.pass_time(9)
    assert gone == []
    topology_server.loop.pass_time(1)
    assert gone == ["q"]
    assert topology_server.topology.queues() == []
    assert topology_server.loop.timers == []


def test_a_queue_with_consumers_does_not_expire_and_the_timer_restarts_after_them(
    topology_server: TopologyServer,
) -> None:
    users = {"q"}
    topology_server.topology.has_consumers = users.__contains__
    declare(topology_server, arguments={"x-expires": 10_000})
    topology_server.loop.pass_time(95)
    users.clear()
    topology_server.topology.mark_used("q")
    topology_server.loop.pass_time(9)
    assert topology_server.topology.queues() == ["q"]
    topology_server.loop.pass_time(1)
    assert topology_server.topology.queues() == []


def test_the_expiry_of_an_unused_queue_starts_again_after_a_restart(durable_topology: TopologyServer) -> None:
    declare(durable_topology, arguments={"x-expires": 10_000})
    durable_topology.close()
    durable_topology.open()
    durable_topology.loop.pass_time(10)
    assert durable_topology.topology.queues() == []


def test_a_queue_deleted_through_another_protocol_leaves_no_timer(topology_server: TopologyServer) -> None:
    declare(topology_server, arguments={"x-expires": 10_000})
    topology_server.broker.delete("q")
    topology_server.loop.pass_time(11)
    assert topology_server.loop.timers == []


def test_purging_leaves_messages_in_flight(topology_server: TopologyServer) -> None:
    declare(topology_server)
    for _ in range(3):
        topology_server.broker.publish("q", Draft(b""))
    topology_server.broker.receive("q", 1)
    assert topology_server.topology.purge_queue("/", "q", None) == 2
    assert topology_server.broker.stats("q").in_flight == 1


# -- vhosts ---------------------------------------------------------------------------------------


def test_a_vhost_has_its_exchanges_and_its_own_names(topology_server: TopologyServer) -> None:
    topology = topology_server.topology
    assert not topology.vhost_exists("v")
    assert topology.add_vhost("v")
    assert not topology.add_vhost("v")
    assert topology.vhosts() == ["/", "v"]
    declare(topology_server, "q", vhost="v")
    topology.bind_queue("v", "q", "amq.topic", "a.#")
    assert topology_server.broker.exchanges.route("@v/amq.topic", "a.b", Draft(b""))[1] == ["@v/q"]
    assert topology_server.broker.exchanges.route("@v/", "q", Draft(b""))[1] == ["@v/q"]
    with pytest.raises(AmqpError, match="no queue 'q' in vhost '/'"):
        topology.check_access("/", "q", None)
    assert topology.remove_vhost("v")
    assert not topology.remove_vhost("v")
    assert topology.vhosts() == ["/"]
    assert topology.queues() == []
    assert topology.bindings() == []


def test_the_account_of_a_user_is_a_vhost(topology_server: TopologyServer) -> None:
    topology_server.store.add_user("u", account="team")
    assert topology_server.topology.vhost_exists("team")
    assert topology_server.topology.has_exchange("@team/amq.fanout")


def test_an_account_with_a_queue_of_another_protocol_is_a_vhost(topology_server: TopologyServer) -> None:
    topology_server.broker.declare("@team/q", QueueSettings())
    assert topology_server.topology.vhosts() == ["/", "team"]
    assert topology_server.topology.vhost_exists("team")
    assert not topology_server.topology.vhost_exists("tea")
    assert topology_server.topology.check_access("team", "q", None).name == "@team/q"


@pytest.mark.parametrize("vhost", ["", "none"])
def test_unknown_names_are_not_vhosts(topology_server: TopologyServer, vhost: str) -> None:
    assert not topology_server.topology.vhost_exists(vhost)


def test_a_vhost_with_a_slash_does_not_meet_another(topology_server: TopologyServer) -> None:
    for vhost in ("a", "a/b", "%"):
        topology_server.topology.add_vhost(vhost)
        declare(topology_server, "b/c" if vhost == "a" else "c", vhost=vhost)
    assert len(topology_server.topology.queues()) == 3
    assert [len(topology_server.topology.queues(vhost)) for vhost in ("a", "a/b", "%")] == [1, 1, 1]


def test_vhosts_are_there_after_a_restart(durable_topology: TopologyServer) -> None:
    durable_topology.topology.add_vhost("v")
    durable_topology.close()
    durable_topology.open()
    assert durable_topology.topology.vhost_exists("v")


# -- delayed exchanges ----------------------------------------------------------------------------


def test_a_delayed_exchange_wraps_another_exchange_type(durable_topology: TopologyServer) -> None:
    given: dict[str, Any] = {"durable": True, "arguments": {"x-delayed-type": "topic"}}
    for _ in range(2):
        durable_topology.topology.declare_exchange("/", "x", "x-delayed-message", **given)
        assert durable_topology.topology.is_delayed("x")
        assert not durable_topology.topology.is_delayed("amq.topic")
        assert durable_topology.topology.exchange("/", "x").kind == "topic"
        durable_topology.close()
        durable_topology.open()
    for kind, arguments in (("topic", {"x-delayed-type": "topic"}), ("x-delayed-message", {})):
        with pytest.raises(AmqpError, match="inequivalent arg"):
            durable_topology.topology.declare_exchange("/", "x", kind, durable=True, arguments=arguments)


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}, {"x-delayed-type": 5}])
def test_a_delayed_exchange_needs_a_valid_type(
    topology_server: TopologyServer, arguments: dict[str, Any]
) -> None:
    with pytest.raises(AmqpError, match="x-delayed-type") as refused:
        topology_server.topology.declare_exchange("/", "x", "x-delayed-message", arguments=arguments)
    assert refused.value.code == 406


# -- policies -------------------------------------------------------------------------------------


def policy(name: str = "p", pattern: str = "^q", vhost: str = "/", **given: Any) -> Policy:
    return Policy(
        vhost,
        name,
        pattern,
        given.pop("definition", {"message-ttl": 50}),
        given.pop("apply_to", "all"),
        **given,
    )


def test_policies_apply_to_existing_and_new_queues_until_cleared(topology_server: TopologyServer) -> None:
    declare(topology_server, "q1")
    declare(topology_server, "other")
    topology_server.topology.set_policy(policy())
    declare(topology_server, "q2")
    assert [topology_server.settings(name).ttl_ms for name in ("q1", "q2", "other")] == [50, 50, None]
    assert topology_server.topology.declaration("q1").policy == "p"
    topology_server.topology.set_policy(policy(definition={"max-length": 3}))
    assert [
        (topology_server.settings(name).ttl_ms, topology_server.settings(name).max_length)
        for name in ("q1", "q2")
    ] == [(None, 3)] * 2
    declare(topology_server, "q1")
    assert topology_server.topology.clear_policy("/", "p")
    assert not topology_server.topology.clear_policy("/", "p")
    assert [topology_server.settings(name).max_length for name in ("q1", "q2")] == [None, None]
    assert topology_server.topology.declaration("q1").policy is None


@pytest.mark.parametrize(
    ("arguments", "definition", "expected"),
    [
        ({"x-message-ttl": 5}, {"message-ttl": 50}, {"ttl_ms": 5}),
        ({"x-message-ttl": 500}, {"message-ttl": 50}, {"ttl_ms": 50}),
        ({"x-max-length": 5}, {"max-length": 6}, {"max_length": 5}),
        ({"x-max-length-bytes": 5}, {"max-length-bytes": 4}, {"max_bytes": 4}),
        (
            {"x-dead-letter-exchange": "a"},
            {"dead-letter-exchange": "b", "dead-letter-routing-key": "k"},
            {"dead_letter_exchange": "a", "dead_letter_key": "k"},
        ),
        ({}, {"dead-letter-exchange": "b"}, {"dead_letter_exchange": "b", "overflow": "dead-letter"}),
        ({"x-overflow": "drop-head"}, {"overflow": "reject-publish"}, {"overflow": "drop-head"}),
        ({}, {"overflow": "reject-publish"}, {"overflow": "reject"}),
        ({"x-queue-type": "quorum"}, {"delivery-limit": 4}, {"max_receives": 5}),
        ({}, {"delivery-limit": 4}, {"max_receives": None}),
        ({}, {"ha-mode": "all", "queue-mode": "lazy"}, {"max_length": None}),
    ],
)
def test_argument_and_policy_together(
    topology_server: TopologyServer,
    arguments: dict[str, Any],
    definition: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    declare(topology_server, "before", arguments=arguments)
    topology_server.topology.set_policy(policy(pattern=".", definition=definition))
    declare(topology_server, "q", arguments=arguments)
    assert topology_server.settings("before") == topology_server.settings("q")
    assert {name: getattr(topology_server.settings(), name) for name in expected} == expected


def test_only_the_policy_with_the_highest_priority_applies(topology_server: TopologyServer) -> None:
    topology_server.topology.set_policy(policy("a", definition={"max-length": 1}))
    topology_server.topology.set_policy(policy("b", definition={"message-ttl": 2}, priority=5))
    topology_server.topology.set_policy(policy("c", definition={"message-ttl": 3}, priority=5))
    declare(topology_server)
    assert (topology_server.settings().ttl_ms, topology_server.settings().max_length) == (2, None)
    topology_server.topology.clear_policy("/", "b")
    assert topology_server.settings().ttl_ms == 3


def test_policies_apply_within_a_vhost_and_to_one_kind_of_object(topology_server: TopologyServer) -> None:
    topology_server.topology.add_vhost("v")
    topology_server.topology.set_policy(policy(vhost="v"))
    topology_server.topology.set_policy(policy("x", apply_to="exchanges", priority=9))
    topology_server.topology.set_policy(policy("quorum", apply_to="quorum_queues", priority=9))
    declare(topology_server)
    declare(topology_server, vhost="v")
    assert (topology_server.settings().ttl_ms, topology_server.settings("@v/q").ttl_ms) == (None, 50)


def test_a_policy_keeps_changes_and_queues_of_other_protocols(
    topology_server: TopologyServer,
) -> None:
    declare(topology_server)
    topology_server.broker.declare(
        "q", topology_server.settings().with_(visibility_ms=7, max_body=9), change=True
    )
    topology_server.broker.declare("qs", QueueSettings())
    topology_server.topology.set_policy(policy())
    settings = topology_server.settings()
    assert (settings.visibility_ms, settings.max_body, settings.ttl_ms) == (7, 9, 50)
    assert topology_server.settings("qs") == QueueSettings()


def test_a_policy_sets_and_clears_the_alternate_exchange(durable_topology: TopologyServer) -> None:
    topology = durable_topology.topology
    topology.declare_exchange("/", "x", "direct", durable=True)
    topology.declare_exchange("/", "rest", "fanout", durable=True)
    declare(durable_topology)
    topology.bind_queue("/", "q", "rest", "")
    topology.set_policy(policy(pattern="x", definition={"alternate-exchange": "rest"}))
    topology.policies.save()
    assert durable_topology.broker.exchanges.route("x", "nowhere", Draft(b""))[1] == ["q"]
    durable_topology.close()
    durable_topology.open()
    topology = durable_topology.topology
    topology.declare_exchange("/", "x", "direct", durable=True)
    assert durable_topology.broker.exchanges.route("x", "nowhere", Draft(b""))[1] == ["q"]
    topology.clear_policy("/", "p")
    assert durable_topology.broker.exchanges.route("x", "nowhere", Draft(b""))[1] == []
    durable_topology.close()
    durable_topology.open()  # cleared and not saved: it counts again
    assert durable_topology.broker.exchanges.route("x", "nowhere", Draft(b""))[1] == ["q"]


def test_saved_policies_survive_and_apply_at_the_start(durable_topology: TopologyServer) -> None:
    durable_topology.topology.set_policy(policy(definition={"expires": 10_000}))
    durable_topology.topology.policies.save()
    assert durable_topology.path is not None
    assert (durable_topology.path / "policies.json").stat().st_mode & 0o777 == 0o600
    declare(durable_topology)
    durable_topology.close()
    durable_topology.open()
    assert durable_topology.topology.policies.get("/", "p") == policy(definition={"expires": 10_000})
    durable_topology.loop.pass_time(10)
    assert durable_topology.topology.queues() == []


def test_a_policy_can_set_and_clear_the_expiry_of_unused_queues(topology_server: TopologyServer) -> None:
    declare(topology_server)
    topology_server.topology.set_policy(policy(definition={"expires": 10_000}))
    topology_server.loop.pass_time(5)
    topology_server.topology.clear_policy("/", "p")
    topology_server.loop.pass_time(50)
    assert topology_server.topology.queues() == ["q"]
    assert topology_server.loop.timers == []


def test_a_damaged_file_of_policies_stops_the_start_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "policies.json").write_text('[{"name": "p"}]')
    with pytest.raises(InvalidAmqpPolicy, match=r"policies\.json.*pattern"):
        closing(TopologyServer(tmp_path))


@pytest.mark.parametrize(
    "given",
    [
        {"pattern": "("},
        {"pattern": 5},
        {"definition": {}},
        {"definition": []},
        {"definition": {"colour": "red"}},
        {"definition": {"message-ttl": -1}},
        {"definition": {"message-ttl": "1"}},
        {"definition": {"expires": 0}},
        {"definition": {"overflow": "drop-tail"}},
        {"apply-to": "things"},
        {"priority": "high"},
        {"name": ""},
        {"vhost": 5},
        {"extra": 1},
    ],
)
def test_an_invalid_policy_is_refused_by_name(given: dict[str, Any]) -> None:
    source = {"name": "p", "pattern": ".", "definition": {"max-length": 1}, **given}
    with pytest.raises(InvalidAmqpPolicy):
        Policy.from_json(source)


def test_a_policy_reads_what_it_writes() -> None:
    for each in (policy(), policy(priority=-3, apply_to="queues", vhost="v")):
        assert Policy.from_json(json.loads(json.dumps(each.to_json()))) == each


def test_queues_of_other_protocols_are_marked(topology_server: TopologyServer) -> None:
    topology_server.broker.declare("q", QueueSettings())
    assert declaration_of(topology_server.settings()).is_from_other_protocol
