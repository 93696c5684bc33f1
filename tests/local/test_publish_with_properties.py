"""Messages that carry a protocol's own properties, many with the same ones: nothing of them is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.broker.history import HistoryRange
from openq.engine.routing import Binding
from openq.errors import InvalidSetting
from openq.local.broker import LocalBroker
from openq.model import DeliveryOptions, Draft, Entry, Properties, QueueSettings, plain_options

WIRE = b"\x80\x00\x0atext/plain"
INFO = Properties.from_amqp(WIRE, "someone")
ROUTE = ("amq.topic", "a.b")
EXTRA = plain_options(ROUTE)


@pytest.fixture(params=["memory", "journal"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(None if request.param == "memory" else tmp_path)
    broker.declare("q", QueueSettings())
    yield broker
    broker.close()


def take(broker: LocalBroker, limit: int, queue: str = "q") -> list[Entry]:
    """Received, read and acked."""
    deliveries = broker.receive(queue, limit)
    broker.load(deliveries)
    assert broker.ack(queue, [(each.entry.seq, each.number) for each in deliveries]) == [None] * len(
        deliveries
    )
    return [each.entry for each in deliveries]


def is_stamped(entry: Entry) -> bool:
    return entry.properties == INFO and entry.options == EXTRA


BODIES = {
    "one": [b"alone"],
    "of one size": [b"%04d" % i for i in range(200)],
    "of many sizes": [b"x" * (i % 17) for i in range(200)],
    "more than memory holds": [b"%05d" % i + bytes(2_000) for i in range(1_500)],
}


@pytest.mark.parametrize("bodies", BODIES.values(), ids=BODIES)
def test_each_message_of_a_run_comes_out_with_what_all_share(
    broker: LocalBroker, bodies: list[bytes]
) -> None:
    run = broker.publish_bodies("q", bodies, 0, INFO, EXTRA)

    found = [entry for _ in bodies[::50] for entry in take(broker, 50)]

    assert run is not None
    assert [entry.seq for entry in found] == list(run)
    assert [entry.body for entry in found] == bodies
    assert all(map(is_stamped, found))
    assert found[0].properties is not None
    assert found[0].properties.attributes == {"content_type": "text/plain"}
    assert broker.stats("q").ready == 0


def test_messages_with_and_without_properties_keep_their_order(broker: LocalBroker) -> None:
    other = plain_options(("", "q"), "t")
    broker.publish_bodies("q", [b"0", b"1"], 0)
    broker.publish_bodies("q", [b"2", b"33"], 0, INFO, EXTRA)
    assert broker.publish_body("q", b"4", 0, INFO, other)
    broker.publish("q", Draft(b"5", properties=INFO, route=ROUTE))
    broker.publish_bodies("q", [b"6", b"7"], 0, None, other)
    broker.publish_bodies("q", [b"8", b"9"], 0, INFO, None)

    found = take(broker, 10)

    assert [entry.body for entry in found] == [b"0", b"1", b"2", b"33", b"4", b"5", b"6", b"7", b"8", b"9"]
    assert [entry.properties for entry in found] == [None] * 2 + [INFO] * 4 + [None] * 2 + [INFO] * 2
    assert [entry.options for entry in found] == [None] * 2 + [EXTRA] * 2 + [other, EXTRA] + [other] * 2 + [
        None
    ] * 2


def test_one_at_a_time_they_are_the_same(broker: LocalBroker) -> None:
    broker.publish_bodies("q", [b"a", b"b"], 0, INFO, EXTRA)

    found = [take(broker, 1)[0] for _ in range(2)]

    assert [entry.body for entry in found] == [b"a", b"b"]
    assert all(map(is_stamped, found))


@pytest.mark.parametrize(
    "options",
    [
        DeliveryOptions(route=ROUTE),
        DeliveryOptions(priority=1).mark_plain(),
        DeliveryOptions(id="own").mark_plain(),
    ],
)
def test_what_needs_more_than_the_short_way_is_declined(
    broker: LocalBroker, options: DeliveryOptions
) -> None:
    assert broker.publish_bodies("q", [b"a", b"b"], 0, INFO, options) is None
    assert broker.publish_body("q", b"a", 0, INFO, options) == 0
    assert broker.stats("q").ready == 0


def test_a_message_that_is_given_back_is_counted_and_keeps_its_properties(broker: LocalBroker) -> None:
    broker.publish_bodies("q", [b"a", b"b"], 0, INFO, EXTRA)
    first, second = broker.receive("q", 2)

    broker.nack("q", [(first.entry.seq, first.number)], 0)
    broker.release("q", [(second.entry.seq, second.number)])

    again = broker.receive("q", 2)
    broker.load(again)
    assert [each.count for each in again] == [2, 1]
    assert [each.entry.properties for each in again] == [INFO, INFO]
    assert [each.entry.options.route for each in again if each.entry.options is not None] == [ROUTE, ROUTE]
    assert EXTRA.count == 0


def test_a_dead_letter_has_the_properties_it_lived_with(broker: LocalBroker) -> None:
    broker.declare("dead", QueueSettings())
    broker.declare("q", QueueSettings(max_receives=1, dead_letter="dead"), change=True)
    broker.publish_bodies("q", [b"a", b"b"], 0, INFO, EXTRA)
    for each in broker.receive("q", 2):
        broker.nack("q", [(each.entry.seq, each.number)])

    found = take(broker, 2, "dead")

    assert [entry.body for entry in found] == [b"a", b"b"]
    assert [entry.properties for entry in found] == [INFO, INFO]


def test_the_past_knows_the_properties(broker: LocalBroker) -> None:
    run = broker.publish_bodies("q", [b"a", b"bb"], 0, INFO, EXTRA)
    assert run is not None
    take(broker, 2)
    broker.sync()

    past = broker.inspect.past("q", HistoryRange())

    assert [(each.seq, each.body, each.properties, each.options) for each in past] == [
        (run[0], b"a", INFO, EXTRA),
        (run[1], b"bb", INFO, EXTRA),
    ]
    steps = broker.inspect.timeline("q", broker.inspect.id_of(run[1]))
    reported = "by someone, through exchange 'amq.topic' with key 'a.b'"
    assert (steps[0].what, steps[0].detail) == ("published", reported)
    assert broker.admin.replay("q", 0, None) == 2
    assert [entry.properties for entry in take(broker, 2)] == [INFO, INFO]


def test_a_route_by_headers_looks_at_the_properties_and_others_do_not(broker: LocalBroker) -> None:
    broker.exchanges.bind(Binding("amq.direct", "q", key="key"))
    broker.exchanges.bind(Binding("amq.headers", "q", arguments={"content_type": "text/plain"}))
    unreadable = Properties.from_amqp(b"\xff")

    assert broker.exchanges.route("amq.direct", "key", Draft(b"a", properties=unreadable))[1] == ["q"]
    assert broker.exchanges.route("amq.headers", "", Draft(b"b", properties=INFO))[1] == ["q"]
    assert (
        broker.exchanges.route("amq.headers", "", Draft(b"c", properties=Properties.from_amqp(b"\x00\x00")))[
            1
        ]
        == []
    )
    with pytest.raises(InvalidSetting):
        broker.exchanges.route("amq.headers", "", Draft(b"d", properties=unreadable))


@pytest.mark.parametrize("kind", ["from its records", "from a snapshot"])
@pytest.mark.parametrize("bodies", BODIES.values(), ids=BODIES)
def test_a_restart_brings_them_all_back(tmp_path: Path, kind: str, bodies: list[bytes]) -> None:
    broker = LocalBroker(tmp_path / "first")
    broker.declare("q", QueueSettings())
    broker.publish_bodies("q", [b"plain"] * 3, 0)
    broker.publish_bodies("q", bodies, 0, INFO, EXTRA)
    broker.sync()
    [leased] = broker.receive("q")
    broker.sync()
    if kind == "from its records":
        made_meanwhile = shutil.ignore_patterns("*.tmp")
        shutil.copytree(tmp_path / "first", tmp_path / "second", ignore=made_meanwhile)
        broker.close()
    else:
        broker.close()
        shutil.copytree(tmp_path / "first", tmp_path / "second")

    again = LocalBroker(tmp_path / "second")

    assert again.ack("q", [(leased.entry.seq, leased.number)]) == [None]
    assert [entry.properties for entry in take(again, 2)] == [None, None]
    found = [entry for _ in bodies[::50] for entry in take(again, 50)]
    assert [entry.body for entry in found] == bodies
    assert all(map(is_stamped, found))
    assert len({id(entry.options) for entry in found}) == 1
    assert len({id(entry.properties) for entry in found}) == 1
    again.close()
