"""A filter remembers how far it has looked in vain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openq.engine.engine import Engine
from openq.engine.ready_list import PAGE
from openq.model import DeliveryOptions, Draft, Entry, MessageFilter, QueueSettings
from tests.engine.support import PREFIX

BACKLOG = 3 * PAGE


@contextmanager
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DeliveryOptions | None]]:
    """The options of the messages that filters look at."""
    seen: list[DeliveryOptions | None] = []
    has_type = MessageFilter.has_type

    def counted(wanted: MessageFilter, options: DeliveryOptions | None) -> bool:
        seen.append(options)
        return has_type(wanted, options)

    with monkeypatch.context() as patch:
        patch.setattr(MessageFilter, "has_type", counted)
        yield seen


def publish(engine: Engine, kind: str, now_ms: int = 0) -> None:
    engine.publish(engine.queue("q"), Draft(b"x", type=kind), now_ms)


def receive(engine: Engine, wanted: MessageFilter | None) -> list[Entry]:
    return [each.entry for each in engine.receive(engine.queue("q"), 1, 0, None, None, wanted)]


@pytest.fixture
def engine() -> Engine:
    engine = Engine(PREFIX)
    engine.create_queue("q", QueueSettings(), 0)
    for _ in range(BACKLOG):
        publish(engine, "common")
    return engine


def test_a_backlog_of_others_is_looked_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = MessageFilter.of(["rare"])
    assert receive(engine, rare) == []

    with looked_at(monkeypatch) as seen:
        publish(engine, "common")
        assert receive(engine, rare) == []
        publish(engine, "rare")
        [entry] = receive(engine, rare)

    assert len(seen) == 2
    assert entry.options is not None
    assert entry.options.type == "rare"


def test_matches_are_not_passed_over_when_others_stand_before_them(engine: Engine) -> None:
    rare = MessageFilter.of(["rare"])
    for kind in ("rare", "common", "rare"):
        publish(engine, kind)

    first, second = receive(engine, rare), receive(engine, rare)

    assert [entry.seq for entry in (*first, *second)] == [BACKLOG + 1, BACKLOG + 3]
    assert receive(engine, rare) == []


def test_a_message_that_comes_back_is_found_before_the_place_it_looked_to(engine: Engine) -> None:
    rare = MessageFilter.of(["rare"])
    publish(engine, "rare")
    queue = engine.queue("q")
    [delivery] = engine.receive(queue, 1, 0, None, None, rare)
    for _ in range(BACKLOG):
        publish(engine, "common")
    assert receive(engine, rare) == []

    engine.nack(queue, delivery.entry.seq, delivery.number, 0, 0)

    assert [entry.seq for entry in receive(engine, rare)] == [BACKLOG + 1]


def test_a_queue_that_is_created_again_is_looked_at_from_its_start(engine: Engine) -> None:
    rare = MessageFilter.of(["rare"])
    assert receive(engine, rare) == []

    engine.delete_queue("q", 0)
    engine.create_queue("q", QueueSettings(), 0)
    publish(engine, "rare")

    assert len(receive(engine, rare)) == 1
