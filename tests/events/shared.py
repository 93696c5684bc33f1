"""Stories about events that every store must tell alike: memory, journal, Redis.

Each story takes a broker with no queues. Times and ids are left out of what it compares, except where they
are its subject.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openq.broker import events as e
from openq.broker.events import Event, EventFilter, Events
from openq.model import Draft, MessageFilter, QueueSettings

Store = Any  # a broker of any kind

EVERYTHING = EventFilter()


def read_all(
    events: Events, after: str | None = None, wanted: EventFilter = EVERYTHING, limit: int = 100
) -> list[Event]:
    found: list[Event] = []
    while True:
        page = events.read(after, limit, wanted)
        assert page.gap_until_ms is None
        found += page.events
        after = page.next
        if page.is_end:
            return found


def summary(events: list[Event]) -> list[tuple[str, str, str | None]]:
    return [(event.event, event.queue, event.message_id) for event in events]


def receipt(delivery: Any) -> tuple[int, int]:
    return delivery.entry.seq, delivery.number


def life_of_a_message(broker: Store) -> None:
    broker.sync()
    start = broker.events.end()
    broker.declare("q", QueueSettings())
    [(message, _)] = broker.publish_many("q", [Draft(b"hello", type="greeting")])
    [delivery] = broker.receive("q", lease_ms=60_000, consumer="reader")
    broker.extend("q", [receipt(delivery)], 90_000)
    broker.nack("q", [receipt(delivery)], 0, "not now")
    [delivery] = broker.receive("q", lease_ms=60_000)
    broker.release("q", [receipt(delivery)])
    [delivery] = broker.receive("q")
    broker.ack("q", [receipt(delivery)])
    broker.sync()

    found = read_all(broker.events, start)

    assert summary(found) == [
        (e.QUEUE_CREATED, "q", None),
        (e.PUBLISHED, "q", message),
        (e.DELIVERED, "q", message),
        (e.EXTENDED, "q", message),
        (e.NACKED, "q", message),
        (e.DELIVERED, "q", message),
        (e.RELEASED, "q", message),
        (e.DELIVERED, "q", message),
        (e.ACKED, "q", message),
    ]
    published, delivered, nacked = found[1], found[2], found[4]
    assert published.message is not None
    assert published.message.body == b"hello"
    assert published.message.options is not None
    assert published.message.options.type == "greeting"
    assert delivered.detail["consumer"] == "reader"
    assert delivered.detail["until_ms"] - delivered.time_ms == 60_000
    assert nacked.detail == {"reason": "not now", "due_ms": 0}


def moves_are_events_of_both_queues(broker: Store) -> None:
    broker.declare("dead", QueueSettings())
    broker.declare("q", QueueSettings(dead_letter="dead", max_receives=1))
    broker.sync()
    start = broker.events.end()
    [(message, _)] = broker.publish_many("q", [Draft(b"bad")])
    [delivery] = broker.receive("q")
    broker.reject("q", [receipt(delivery)], "broken")
    broker.admin.redrive("dead")
    broker.admin.move("q", [message], "dead")
    broker.sync()

    found = read_all(broker.events, start)

    assert summary(found) == [
        (e.PUBLISHED, "q", message),
        (e.DELIVERED, "q", message),
        (e.DEAD_LETTERED, "q", message),
        (e.REDRIVEN, "dead", message),
        (e.MOVED, "q", message),
    ]
    assert [dict(event.detail) for event in found[2:]] == [
        {"to": "dead", "why": "rejected", "reason": "broken"},
        {"to": "q"},
        {"to": "dead"},
    ]
    only = read_all(broker.events, start, EventFilter(queues=("de*",)))
    assert summary(only) == summary(found[2:])


def messages_keep_the_id_of_their_publisher(broker: Store) -> None:
    broker.declare("other", QueueSettings())
    broker.declare("q", QueueSettings())
    broker.publish_many("q", [Draft(b"1", id="first"), Draft(b"2", id="second")])
    broker.sync()
    start = broker.events.end()  # a reader that has not seen the messages arrive
    broker.admin.move("q", ["first"], "other")
    for queue in ("other", "q"):
        [delivery] = broker.receive(queue)
        broker.ack(queue, [receipt(delivery)])
    broker.sync()

    assert [(event.event, event.message_id) for event in read_all(broker.events, start)] == [
        (e.MOVED, "first"),
        (e.DELIVERED, "first"),
        (e.ACKED, "first"),
        (e.DELIVERED, "second"),
        (e.ACKED, "second"),
    ]


def events_of_queues(broker: Store) -> None:
    broker.sync()
    start = broker.events.end()
    broker.declare("q", QueueSettings())
    broker.declare("q", QueueSettings(visibility_ms=1_000), change=True)
    broker.declare("q", QueueSettings(visibility_ms=1_000), change=True)  # changes nothing
    broker.publish_many("q", [Draft(b"1"), Draft(b"2")])
    broker.purge("q")
    broker.delete("q")
    broker.sync()

    found = [event for event in read_all(broker.events, start) if event.message_id is None]

    assert summary(found) == [
        (e.QUEUE_CREATED, "q", None),
        (e.QUEUE_CHANGED, "q", None),
        (e.PURGED, "q", None),
        (e.QUEUE_DELETED, "q", None),
    ]
    assert found[1].detail["settings"] == {"visibility_ms": 1_000}
    assert found[2].detail == {"keeps_in_flight": False}


def operators_leave_events(broker: Store) -> None:
    broker.declare("q", QueueSettings())
    broker.sync()
    start = broker.events.end()
    [(one, _), (two, _)] = broker.publish_many("q", [Draft(b"1"), Draft(b"2")])
    broker.admin.edit("q", one, Draft(b"other"))
    broker.admin.reschedule("q", two, broker.now_ms() + 60_000)
    broker.admin.cancel("q", two)
    broker.sync()

    found = read_all(broker.events, start)[2:]

    assert summary(found) == [
        (e.EDITED, "q", one),
        (e.RESCHEDULED, "q", two),
        (e.REMOVED, "q", two),
    ]
    assert found[1].detail["due_ms"] > found[1].time_ms
    assert found[2].detail == {"why": "cancelled"}


def events_that_are_added(broker: Store) -> None:
    broker.declare("q", QueueSettings())
    broker.sync()
    start = broker.events.end()
    broker.events.add(e.CONSUMER_JOINED, "q", {"consumer": "one", "protocol": "amqp"})
    broker.events.add(e.ALERT, "", {"text": "disk full"})
    broker.sync()

    found = read_all(broker.events, start)

    assert summary(found) == [(e.CONSUMER_JOINED, "q", None), (e.ALERT, "", None)]
    assert found[0].detail == {"consumer": "one", "protocol": "amqp"}


def a_reader_resumes_after_every_event(broker: Store) -> None:
    broker.sync()
    start = broker.events.end()
    broker.declare("a", QueueSettings())
    broker.declare("b", QueueSettings())
    for number in range(5):
        broker.publish_many("a", [Draft(b"%d" % number), Draft(b"x", id=f"own-{number}")])
        broker.publish_bodies("b", [b"1", b"2", b"3"], 0)
    for delivery in broker.receive("a", 10) + broker.receive("b", 4):
        queue = "a" if delivery.entry.body in (b"x", b"0", b"1", b"2", b"3", b"4") else "b"
        broker.release(queue, [receipt(delivery)])
    broker.sync()

    found = read_all(broker.events, start)

    assert len({event.id for event in found}) == len(found) >= 27
    for number, event in enumerate(found):
        rest = read_all(broker.events, event.id)
        assert [each.id for each in rest] == [each.id for each in found[number + 1 :]]
        assert summary(rest) == summary(found[number + 1 :])
    assert summary(read_all(broker.events, start, limit=1)) == summary(found)
    assert [each.id for each in read_all(broker.events, None)][-len(found) :] == [each.id for each in found]


def filters_leave_out_the_rest(broker: Store) -> None:
    broker.declare("orders", QueueSettings())
    broker.declare("orders-eu", QueueSettings())
    broker.declare("mail", QueueSettings())
    broker.sync()
    start = broker.events.end()
    for queue in ("orders", "orders-eu", "mail"):
        broker.publish_many(
            queue, [Draft(b"1", type="new", attributes={"n": 1}), Draft(b"2", type="old"), Draft(b"3")]
        )
        [delivery] = broker.receive(queue)
        broker.ack(queue, [receipt(delivery)])
    broker.sync()

    def count(**conditions: Any) -> int:
        return len(read_all(broker.events, start, EventFilter(**conditions)))

    assert count() == 15
    assert count(queues=("orders*",)) == 10
    assert count(queues=("orders", "mail")) == 10
    assert count(events=frozenset((e.ACKED,))) == 3
    assert count(events=frozenset((e.ACKED, e.PUBLISHED)), queues=("mail",)) == 4
    assert count(messages=MessageFilter.of(["new"])) == 3
    assert count(messages=MessageFilter.of(attributes={"n": [0, 1]})) == 3
    assert count(messages=MessageFilter.of(["old"], {"n": 1})) == 0
    assert count(queues=("mail",), messages=MessageFilter.of(attributes={"n": 1})) == 1
    assert count(queues=("none",)) == 0


def a_watcher_is_woken_by_changes(broker: Store, wait: Callable[[Callable[[], object]], None]) -> None:
    broker.declare("q", QueueSettings())
    broker.sync()
    after = broker.events.end()
    calls: list[int] = []
    found: list[Event] = []
    end = broker.events.watch(lambda: calls.append(1))

    def arrived(count: int) -> bool:
        nonlocal after
        if calls:
            calls.clear()
            page = broker.events.read(after, 100, EVERYTHING)
            after = page.next
            found.extend(page.events)
        return len(found) >= count

    for count in (1, 2, 3):
        broker.publish_many("q", [Draft(b"x")])
        wait(lambda count=count: arrived(count))  # type: ignore[misc]
    end()
    end()  # ending twice does no harm
    assert [event.event for event in found] == [e.PUBLISHED] * 3


STORIES: dict[str, Callable[[Store], None]] = {
    story.__name__: story
    for story in (
        life_of_a_message,
        moves_are_events_of_both_queues,
        messages_keep_the_id_of_their_publisher,
        events_of_queues,
        operators_leave_events,
        events_that_are_added,
        a_reader_resumes_after_every_event,
        filters_leave_out_the_rest,
    )
}
