"""Queues, exchanges and bindings answer as RabbitMQ does, and do what they were declared to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openq.engine.routing import Exchange
from openq.model import MAX_SPAN_MS, Draft, QueueSettings
from openq.names import DEFAULT_ACCOUNT, full_name
from openq.protocols.amqp.arguments import declaration_of
from openq.protocols.amqp.errors import AmqpError
from openq.protocols.amqp.policies import InvalidPolicy, Policy

from .places import Place
from .topology_steps import ANSWERS, SITUATIONS, Step

RECORDED: dict[str, list[list[Any]]] = json.loads(ANSWERS.read_text())

# Where OpenQ answers otherwise on purpose.
MEANT = {
    "argument x-queue-master-locator": "where in a cluster a queue lives says nothing here: kept as it came",
    "kinds": "an unknown type of exchange is a channel error, 406, as in RabbitMQ 4",
    "unknown kind of an exchange that exists": "the same",
    "name too strange": "line ends are left out here too, but the recording client did not expect it",
}


@pytest.fixture
def place() -> Iterator[Place]:
    with closing(Place()) as place:
        yield place


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Place]:
    with closing(Place(tmp_path)) as place:
        yield place


def answer_to(place: Place, step: Step) -> list[Any]:
    by, verb, given = step
    topology, vhost = place.topology, "/"
    owned: dict[str, Any] = {"owner": by}
    try:
        if verb == "declare_queue":
            topology.declare_queue(vhost, **given, **owned)
            return ["ok", place.broker.about(full_name(DEFAULT_ACCOUNT, given["name"])).ready_count]
        if verb == "publish":
            place.broker.route(given["exchange"], given["key"], Draft(b""))
            return ["ok", None]
        if verb in ("delete_queue", "purge_queue", "bind_queue", "unbind_queue"):
            given = {**given, **owned}
        said = getattr(topology, verb)(vhost, **given)
        return ["ok", None if isinstance(said, bool) else said]
    except AmqpError as error:
        return [error.code, error.reply_text]


@pytest.mark.parametrize("title", [each for each in SITUATIONS if not each.startswith(tuple(MEANT))])
def test_every_step_is_answered_as_rabbitmq_answers_it(title: str, place: Place) -> None:
    for step, expected in zip(SITUATIONS[title], RECORDED[title], strict=True):
        assert answer_to(place, step) == expected, step


def test_the_recording_and_the_situations_are_of_the_same_day() -> None:
    assert list(RECORDED) == list(SITUATIONS)


def declare(place: Place, name: str = "q", vhost: str = "/", **given: Any) -> str:
    flags = {"durable": True, **given}
    return place.topology.declare_queue(vhost, name, **flags)


# -- what arguments do ----------------------------------------------------------------------------


def test_a_queue_without_arguments_keeps_messages_for_ever_and_ignores_priorities(place: Place) -> None:
    declare(place)
    settings = place.settings()
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
    place: Place, arguments: dict[str, Any], expected: dict[str, object]
) -> None:
    declare(place, arguments=arguments)
    settings = place.settings()
    assert {name: getattr(settings, name) for name in expected} == expected


def test_names_in_arguments_belong_to_the_vhost(place: Place) -> None:
    place.topology.add_vhost("v")
    declare(place, vhost="v", arguments={"x-dead-letter-exchange": ""})
    place.topology.declare_exchange("v", "x", "direct", arguments={"alternate-exchange": "y"})
    assert place.settings("@v/q").dead_letter_exchange == "@v/"
    assert place.topology.exchange("v", "x").alternate == "@v/y"


def test_a_stream_is_refused_and_the_sentence_says_what_there_is_instead(place: Place) -> None:
    with pytest.raises(AmqpError, match="replay") as refused:
        declare(place, arguments={"x-queue-type": "stream"})
    assert refused.value.code == 540


def test_a_name_that_the_server_chooses_is_new_each_time(place: Place) -> None:
    names = {declare(place, "") for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("amq.gen-") and len(name) == 8 + 22 for name in names)


def test_line_ends_are_left_out_of_names(place: Place) -> None:
    assert declare(place, "a\r\nb") == "ab"


def test_all_values_that_a_table_can_hold_survive_as_arguments(lasting: Place) -> None:
    from decimal import Decimal

    from openq.properties import Timestamp

    arguments = {
        "x-a": [1, "b", None, {"c": b"\xff"}],
        "x-d": Decimal("1.5"),
        "x-t": Timestamp(5),
        "x-f": 1.5,
    }
    declare(lasting, arguments=arguments)
    lasting.topology.declare_exchange("/", "x", "headers", durable=True, arguments=arguments)
    lasting.topology.bind_queue("/", "q", "x", "", arguments)
    lasting.close()
    lasting.open()
    assert lasting.topology.declaration("q").arguments == arguments
    lasting.topology.declare_exchange("/", "x", "headers", durable=True, arguments=arguments)
    lasting.topology.unbind_queue("/", "q", "x", "", arguments)
    assert lasting.topology.bindings() == []


def test_what_the_engine_cannot_keep_is_refused(place: Place) -> None:
    declare(place)
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    for value in (2**70, nested):
        with pytest.raises(AmqpError) as refused:
            place.topology.bind_queue("/", "q", "amq.headers", "", {"a": value})
        assert refused.value.code == 406


# -- queues of other doors ------------------------------------------------------------------------


def test_a_queue_of_another_door_is_anybodys_to_declare_without_arguments(place: Place) -> None:
    place.broker.declare("q", QueueSettings(ttl_ms=7, dead_letter="dead", fifo=True))
    for durable in (False, True):
        declare(place, durable=durable)
    declare(place, arguments={"x-queue-type": "quorum"})
    declare(place, arguments={"x-max-priority": 10})
    declare(place, arguments={"x-message-ttl": 7, "x-dead-letter-exchange": ""})
    assert place.settings() == QueueSettings(ttl_ms=7, dead_letter="dead", fifo=True)


@pytest.mark.parametrize(
    "given",
    [
        {"arguments": {"x-message-ttl": 8}},
        {"arguments": {"x-max-length": 8}},
        {"auto_delete": True},
        {"exclusive": True},
    ],
)
def test_a_queue_of_another_door_does_not_become_what_it_is_not(place: Place, given: dict[str, Any]) -> None:
    place.broker.declare("q", QueueSettings(ttl_ms=7))
    with pytest.raises(AmqpError) as refused:
        declare(place, **given)
    assert refused.value.code in (405, 406)


def test_an_exchange_of_another_door_can_be_declared_as_what_it_is(place: Place) -> None:
    place.broker.declare_exchange(Exchange("x", "topic", alternate="y"))
    arguments = {"alternate-exchange": "y"}
    place.topology.declare_exchange("/", "x", "topic", durable=True, arguments=arguments)
    place.topology.apply_policies()
    assert place.topology.exchange("/", "x").alternate == "y"


# -- who may, and what goes when ------------------------------------------------------------------


def test_exclusive_queues_go_with_their_connection_and_no_others(place: Place) -> None:
    gone: list[str] = []
    place.topology.forgotten = gone.append
    one, other = object(), object()
    declare(place, "a", exclusive=True, owner=one)
    declare(place, "b", exclusive=True, owner=other)
    declare(place, "c", owner=one)
    assert place.topology.release(one) == gone == ["a"]
    assert place.topology.queues() == ["b", "c"]
    with pytest.raises(AmqpError, match="locked queue 'b'"):
        place.topology.check_access("/", "b", one)
    assert place.topology.check_access("/", "b", other).name == "b"


def test_what_is_not_durable_is_gone_after_a_restart(lasting: Place) -> None:
    topology = lasting.topology
    declare(lasting, "durable")
    declare(lasting, "transient", durable=False)
    declare(lasting, "mine", exclusive=True, owner=lasting)
    lasting.broker.declare("foreign", QueueSettings())
    topology.declare_exchange("/", "stays", "fanout", durable=True)
    topology.declare_exchange("/", "goes", "fanout")
    topology.bind_queue("/", "durable", "stays", "")
    topology.bind_queue("/", "transient", "stays", "")
    topology.bind_queue("/", "durable", "goes", "")
    lasting.close()
    lasting.open()
    topology = lasting.topology
    assert topology.queues() == ["durable", "foreign"]
    assert topology.has_exchange("stays")
    assert not topology.has_exchange("goes")
    assert [(each.source, each.destination) for each in topology.bindings()] == [("stays", "durable")]


def test_a_queue_nobody_uses_goes_when_its_time_is_up(place: Place) -> None:
    gone: list[str] = []
    place.topology.forgotten = gone.append
    declare(place, arguments={"x-expires": 10_000})
    place.loop.pass_time(9)
    place.topology.touch("q")
    place.loop.pass_time(9)
    declare(place, arguments={"x-expires": 10_000})
    place.loop.pass_time(9)
    declare(place, passive=True)
    place.loop.pass_time(9)
    assert gone == []
    place.loop.pass_time(1)
    assert gone == ["q"]
    assert place.topology.queues() == []
    assert place.loop.timers == []


def test_a_queue_with_consumers_does_not_go_and_has_its_whole_time_when_they_are_gone(place: Place) -> None:
    users = {"q"}
    place.topology.in_use = users.__contains__
    declare(place, arguments={"x-expires": 10_000})
    place.loop.pass_time(95)
    users.clear()
    place.topology.touch("q")
    place.loop.pass_time(9)
    assert place.topology.queues() == ["q"]
    place.loop.pass_time(1)
    assert place.topology.queues() == []


def test_the_time_of_an_unused_queue_runs_again_after_a_restart(lasting: Place) -> None:
    declare(lasting, arguments={"x-expires": 10_000})
    lasting.close()
    lasting.open()
    lasting.loop.pass_time(10)
    assert lasting.topology.queues() == []


def test_a_queue_deleted_through_another_door_leaves_no_timer(place: Place) -> None:
    declare(place, arguments={"x-expires": 10_000})
    place.broker.delete("q")
    place.loop.pass_time(11)
    assert place.loop.timers == []


def test_purging_leaves_what_is_with_consumers(place: Place) -> None:
    declare(place)
    for _ in range(3):
        place.broker.publish("q", Draft(b""))
    place.broker.receive("q", 1)
    assert place.topology.purge_queue("/", "q", None) == 2
    assert place.broker.stats("q").in_flight == 1


# -- vhosts ---------------------------------------------------------------------------------------


def test_a_vhost_has_its_exchanges_and_its_own_names(place: Place) -> None:
    topology = place.topology
    assert not topology.vhost_exists("v")
    assert topology.add_vhost("v")
    assert not topology.add_vhost("v")
    assert topology.vhosts() == ["/", "v"]
    declare(place, "q", vhost="v")
    topology.bind_queue("v", "q", "amq.topic", "a.#")
    assert place.broker.route("@v/amq.topic", "a.b", Draft(b""))[1] == ["@v/q"]
    assert place.broker.route("@v/", "q", Draft(b""))[1] == ["@v/q"]
    with pytest.raises(AmqpError, match="no queue 'q' in vhost '/'"):
        topology.check_access("/", "q", None)
    assert topology.remove_vhost("v")
    assert not topology.remove_vhost("v")
    assert topology.vhosts() == ["/"]
    assert topology.queues() == []
    assert topology.bindings() == []


def test_the_account_of_a_user_is_a_vhost(place: Place) -> None:
    place.store.add_user("u", account="team")
    assert place.topology.vhost_exists("team")
    assert place.topology.has_exchange("@team/amq.fanout")


def test_an_account_in_which_another_door_made_a_queue_is_a_vhost(place: Place) -> None:
    place.broker.declare("@team/q", QueueSettings())
    assert place.topology.vhosts() == ["/", "team"]
    assert place.topology.vhost_exists("team")
    assert not place.topology.vhost_exists("tea")
    assert place.topology.check_access("team", "q", None).name == "@team/q"


@pytest.mark.parametrize("vhost", ["", "none"])
def test_other_names_are_no_vhosts(place: Place, vhost: str) -> None:
    assert not place.topology.vhost_exists(vhost)


def test_a_vhost_with_a_slash_does_not_meet_another(place: Place) -> None:
    for vhost in ("a", "a/b", "%"):
        place.topology.add_vhost(vhost)
        declare(place, "b/c" if vhost == "a" else "c", vhost=vhost)
    assert len(place.topology.queues()) == 3
    assert [len(place.topology.queues(vhost)) for vhost in ("a", "a/b", "%")] == [1, 1, 1]


def test_vhosts_are_there_after_a_restart(lasting: Place) -> None:
    lasting.topology.add_vhost("v")
    lasting.close()
    lasting.open()
    assert lasting.topology.vhost_exists("v")


# -- delayed exchanges ----------------------------------------------------------------------------


def test_a_delayed_exchange_is_one_of_another_kind_that_says_so(lasting: Place) -> None:
    given: dict[str, Any] = {"durable": True, "arguments": {"x-delayed-type": "topic"}}
    for _ in range(2):
        lasting.topology.declare_exchange("/", "x", "x-delayed-message", **given)
        assert lasting.topology.is_delayed("x")
        assert not lasting.topology.is_delayed("amq.topic")
        assert lasting.topology.exchange("/", "x").kind == "topic"
        lasting.close()
        lasting.open()
    for kind, arguments in (("topic", {"x-delayed-type": "topic"}), ("x-delayed-message", {})):
        with pytest.raises(AmqpError, match="inequivalent arg"):
            lasting.topology.declare_exchange("/", "x", kind, durable=True, arguments=arguments)


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}, {"x-delayed-type": 5}])
def test_a_delayed_exchange_needs_a_kind_that_there_is(place: Place, arguments: dict[str, Any]) -> None:
    with pytest.raises(AmqpError, match="x-delayed-type") as refused:
        place.topology.declare_exchange("/", "x", "x-delayed-message", arguments=arguments)
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


def test_policies_apply_to_queues_that_are_there_and_that_come_until_they_are_cleared(place: Place) -> None:
    declare(place, "q1")
    declare(place, "other")
    place.topology.set_policy(policy())
    declare(place, "q2")
    assert [place.settings(name).ttl_ms for name in ("q1", "q2", "other")] == [50, 50, None]
    assert place.topology.declaration("q1").policy == "p"
    place.topology.set_policy(policy(definition={"max-length": 3}))
    assert [(place.settings(name).ttl_ms, place.settings(name).max_length) for name in ("q1", "q2")] == [
        (None, 3)
    ] * 2
    declare(place, "q1")
    assert place.topology.clear_policy("/", "p")
    assert not place.topology.clear_policy("/", "p")
    assert [place.settings(name).max_length for name in ("q1", "q2")] == [None, None]
    assert place.topology.declaration("q1").policy is None


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
    place: Place, arguments: dict[str, Any], definition: dict[str, Any], expected: dict[str, Any]
) -> None:
    declare(place, "before", arguments=arguments)
    place.topology.set_policy(policy(pattern=".", definition=definition))
    declare(place, "q", arguments=arguments)
    assert place.settings("before") == place.settings("q")
    assert {name: getattr(place.settings(), name) for name in expected} == expected


def test_of_many_policies_the_one_with_the_highest_priority_counts_alone(place: Place) -> None:
    place.topology.set_policy(policy("a", definition={"max-length": 1}))
    place.topology.set_policy(policy("b", definition={"message-ttl": 2}, priority=5))
    place.topology.set_policy(policy("c", definition={"message-ttl": 3}, priority=5))
    declare(place)
    assert (place.settings().ttl_ms, place.settings().max_length) == (2, None)
    place.topology.clear_policy("/", "b")
    assert place.settings().ttl_ms == 3


def test_policies_are_of_a_vhost_and_of_a_kind_of_thing(place: Place) -> None:
    place.topology.add_vhost("v")
    place.topology.set_policy(policy(vhost="v"))
    place.topology.set_policy(policy("x", apply_to="exchanges", priority=9))
    place.topology.set_policy(policy("quorum", apply_to="quorum_queues", priority=9))
    declare(place)
    declare(place, vhost="v")
    assert (place.settings().ttl_ms, place.settings("@v/q").ttl_ms) == (None, 50)


def test_a_policy_changes_nothing_that_another_door_changed_and_nothing_of_another_doors_queue(
    place: Place,
) -> None:
    declare(place)
    place.broker.declare("q", place.settings().with_(visibility_ms=7, max_body=9), change=True)
    place.broker.declare("qs", QueueSettings())
    place.topology.set_policy(policy())
    settings = place.settings()
    assert (settings.visibility_ms, settings.max_body, settings.ttl_ms) == (7, 9, 50)
    assert place.settings("qs") == QueueSettings()


def test_a_policy_gives_an_exchange_its_alternate_and_takes_it_away(lasting: Place) -> None:
    topology = lasting.topology
    topology.declare_exchange("/", "x", "direct", durable=True)
    topology.declare_exchange("/", "rest", "fanout", durable=True)
    declare(lasting)
    topology.bind_queue("/", "q", "rest", "")
    topology.set_policy(policy(pattern="x", definition={"alternate-exchange": "rest"}))
    topology.policies.save()
    assert lasting.broker.route("x", "nowhere", Draft(b""))[1] == ["q"]
    lasting.close()
    lasting.open()
    topology = lasting.topology
    topology.declare_exchange("/", "x", "direct", durable=True)
    assert lasting.broker.route("x", "nowhere", Draft(b""))[1] == ["q"]
    topology.clear_policy("/", "p")
    assert lasting.broker.route("x", "nowhere", Draft(b""))[1] == []
    lasting.close()
    lasting.open()  # cleared and not saved: it counts again
    assert lasting.broker.route("x", "nowhere", Draft(b""))[1] == ["q"]


def test_saved_policies_survive_and_apply_at_the_start(lasting: Place) -> None:
    lasting.topology.set_policy(policy(definition={"expires": 10_000}))
    lasting.topology.policies.save()
    assert lasting.path is not None
    assert (lasting.path / "policies.json").stat().st_mode & 0o777 == 0o600
    declare(lasting)
    lasting.close()
    lasting.open()
    assert lasting.topology.policies.get("/", "p") == policy(definition={"expires": 10_000})
    lasting.loop.pass_time(10)
    assert lasting.topology.queues() == []


def test_a_policy_can_set_and_end_the_time_of_unused_queues(place: Place) -> None:
    declare(place)
    place.topology.set_policy(policy(definition={"expires": 10_000}))
    place.loop.pass_time(5)
    place.topology.clear_policy("/", "p")
    place.loop.pass_time(50)
    assert place.topology.queues() == ["q"]
    assert place.loop.timers == []


def test_a_damaged_file_of_policies_stops_the_start_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "policies.json").write_text('[{"name": "p"}]')
    with pytest.raises(InvalidPolicy, match=r"policies\.json.*pattern"):
        closing(Place(tmp_path))


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
def test_a_policy_that_cannot_be_is_refused_by_name(given: dict[str, Any]) -> None:
    source = {"name": "p", "pattern": ".", "definition": {"max-length": 1}, **given}
    with pytest.raises(InvalidPolicy):
        Policy.from_json(source)


def test_a_policy_reads_what_it_writes() -> None:
    for each in (policy(), policy(priority=-3, apply_to="queues", vhost="v")):
        assert Policy.from_json(json.loads(json.dumps(each.to_json()))) == each


def test_foreign_queues_are_known_as_such(place: Place) -> None:
    place.broker.declare("q", QueueSettings())
    assert declaration_of(place.settings()).is_foreign
