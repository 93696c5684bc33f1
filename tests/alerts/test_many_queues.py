"""With many queues only what may have changed is read and evaluated: the results are those of reading all."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from openq.alert_rules.expression import parse
from openq.alert_rules.tables import AlertConfig, read_alerts
from openq.alerts import queue_rules, sources
from openq.alerts.history import Tracks
from openq.alerts.queue_rules import QueueRules
from openq.alerts.service import AlertService
from openq.alerts.sources import Sources
from openq.auth.guard import Guard
from openq.auth.store import UserStore
from openq.broker.waiters import Waiter
from openq.clock import VirtualClock
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.model import Delivery, Draft, QueueSettings
from openq.server.context import ServerContext

QUEUES = [f"queue-{number:03}" for number in range(220)]
INTERVAL_S = 3.0
OWN_RULES = {
    "rules": {
        "waited": {"expression": "queue.wait > 20", "summary": "waited"},
        "alone": {"expression": "queue.consumers == 0 and queue.ready > 2", "summary": "alone"},
        "young": {"expression": "queue.oldest_age < 40 and queue.ready > 0", "summary": "young"},
        "aged": {"expression": "avg(queue.oldest_age[1m]) > 30", "summary": "aged"},
        "much": {"expression": "queue.ready > 1 and total.ready > 30", "summary": "much"},
        "late": {"expression": "queue.delayed > 0", "summary": "late"},
    }
}


class Reference(Sources):
    """Reads every queue in every round."""

    def _chosen(self, names: Sequence[str], flagged: Iterable[str]) -> list[str]:
        return list(names)


class AllRules(QueueRules):
    """Evaluates every queue in every round."""

    def holding(self, rules, tracks: Tracks, singles, now_s: float):  # type: ignore[no-untyped-def]
        for track in tracks.tracks.values():
            track.settled = False
        return super().holding(rules, tracks, singles, now_s)


class Evaluations:
    """What holds after each round, as the alert service finds it."""

    def __init__(self, context: ServerContext, config: AlertConfig, is_reference: bool) -> None:
        self.service = AlertService(context)
        self.service._queue_rules = AllRules() if is_reference else QueueRules()
        self.service._sources = (Reference if is_reference else Sources)(context, "")
        self.service.configure(config)
        self.service._configure_changed()

    def holding(self, now_s: float) -> dict[str, list[str]]:
        service = self.service
        service._sources.read_store(now_s)
        rules = [each for each in service._compiled if each.kind == "queue"]
        found = service._queue_rules.holding(rules, service._sources.queues, service._sources.singles, now_s)
        return {rule: sorted(names) for rule, names in sorted(found.items())}


class Traffic:
    def __init__(self, broker: LocalBroker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.waiters: list[tuple[str, Waiter]] = []
        self.receipts: list[tuple[str, tuple[int, int]]] = []

    def step(self) -> None:
        for _ in range(self.random.randrange(6)):
            name = self.random.choice(QUEUES[:40])
            work: Callable[[str], None] = self.random.choice(
                [
                    self.publish,
                    self.publish,
                    self.delay,
                    self.receive,
                    self.receive,
                    self.settle,
                    self.purge,
                    self.pause,
                    self.wait,
                ]
            )
            work(name)

    def publish(self, name: str) -> None:
        for _ in range(self.random.randrange(1, 5)):
            self.broker.publish(name, Draft(b"x"))

    def delay(self, name: str) -> None:
        self.broker.publish(name, Draft(b"x", delay_ms=self.random.randrange(1_000, 60_000)))

    def receive(self, name: str) -> None:
        self.took(name, self.broker.receive(name, 3))

    def took(self, name: str, deliveries: list[Delivery]) -> None:
        self.receipts += [(name, (each.entry.seq, each.number)) for each in deliveries]

    def settle(self, _: str) -> None:
        self.random.shuffle(self.receipts)
        half = len(self.receipts) // 2
        for name, receipt in self.receipts[:half]:
            verb = self.broker.ack if self.random.random() < 0.6 else self.broker.nack
            verb(name, [receipt])
        del self.receipts[:half]

    def purge(self, name: str) -> None:
        self.broker.purge(name)

    def pause(self, name: str) -> None:
        view = self.broker.find_queue(name)
        assert view is not None
        changed = replace(view.settings, paused=not view.settings.paused)
        self.broker.declare(name, changed, change=True)

    def wait(self, name: str) -> None:
        if self.waiters and self.random.random() < 0.5:
            self.broker.remove_waiter(*self.waiters.pop())
            return
        waiter = Waiter(1, None, None, None, partial(self.took, name))
        taken = self.broker.add_waiter(name, waiter)
        if taken is None:
            self.waiters.append((name, waiter))
        else:
            self.took(name, taken)


@pytest.mark.parametrize("seed", range(6))
def test_what_holds_is_what_reading_and_evaluating_every_queue_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "REFRESHED", 1)  # no luck: what is not noticed is not read
    clock = VirtualClock()
    broker = LocalBroker(clock=clock, seed=seed)
    for number, name in enumerate(QUEUES):
        dead = QUEUES[0] if number % 7 == 1 else None
        broker.declare(name, QueueSettings(dead_letter=dead, max_receives=2, visibility_ms=20_000))
    loop = asyncio.new_event_loop()
    context = ServerContext(broker, loop, Config(memory=True), Guard(UserStore(), time.time))
    config = read_alerts(OWN_RULES)
    tested, reference = (Evaluations(context, config, is_reference) for is_reference in (False, True))
    traffic = Traffic(broker, seed)
    seen: set[str] = set()
    for _ in range(250):
        if traffic.random.random() < 0.7:
            traffic.step()
        clock.advance(INTERVAL_S if traffic.random.random() < 0.9 else 200.0)
        now_s = clock.now_ms() / 1000
        found = tested.holding(now_s)
        assert found == reference.holding(now_s)
        seen |= found.keys()
    assert len(seen) >= 8  # the traffic caused what rules are about
    broker.close()
    loop.close()


def test_windows_of_very_many_queues_are_moved_on_in_turn_and_changes_are_evaluated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_rules, "REEVALUATED", 50)
    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    for name in QUEUES:
        broker.declare(name, QueueSettings())
    loop = asyncio.new_event_loop()
    context = ServerContext(broker, loop, Config(memory=True), Guard(UserStore(), time.time))
    tested = Evaluations(
        context,
        read_alerts({"rules": {"busy": {"expression": "increase(queue.published[1m]) > 0", "summary": "b"}}}),
        False,
    )

    def busy() -> list[str]:
        clock.advance(INTERVAL_S)
        return tested.holding(clock.now_ms() / 1000).get("busy", [])

    busy()
    for name in QUEUES:
        broker.publish(name, Draft(b"x"))
    assert busy() == QUEUES
    for _ in range(18):  # 54 seconds: in the window
        assert busy() == QUEUES
    counts = [len(busy()) for _ in range(10)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    assert sum(0 < count < len(QUEUES) for count in counts) >= 3  # some each time
    broker.publish(QUEUES[7], Draft(b"x"))
    assert busy() == [QUEUES[7]]
    broker.close()
    loop.close()


def test_a_deleted_queue_is_forgotten_although_new_ones_have_not_had_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "REFRESHED", 1)
    monkeypatch.setattr(sources, "REMOTE_QUEUES", 1)
    broker = LocalBroker(clock=VirtualClock())
    broker.storage = replace(broker.storage, waits=True)  # as a remote store: each queue is a question
    for name in QUEUES[:3]:
        broker.declare(name, QueueSettings())
        broker.publish(name, Draft(b"x"))
    loop = asyncio.new_event_loop()
    context = ServerContext(broker, loop, Config(memory=True), Guard(UserStore(), time.time))
    own = {"rules": {"many": {"expression": "total.ready > 2", "summary": "many"}}}
    tested = Evaluations(context, read_alerts(own), False)
    found = tested.service._sources
    tested.holding(1.0)
    assert found.singles["total.ready"].latest == (3.0,)

    for name in QUEUES[:3]:
        broker.delete(name)
    for name in QUEUES[10:20]:
        broker.declare(name, QueueSettings())
    tested.holding(2.0)

    assert found.singles["total.ready"].latest == (0.0,)
    assert len(found.queues.tracks) == 1  # the one that had its turn
    assert found.queues.tracks.keys() <= set(QUEUES[10:20])
    assert found._times.keys() <= set(QUEUES[10:20])
    broker.close()
    loop.close()


@pytest.mark.parametrize(
    ("text", "ages"),
    [
        ("queue.oldest_age > 15m and queue.ready > 1", {900.0}),
        ("queue.oldest_age > age or 2m <= queue.oldest_age", {600.0, 120.0}),
        ("queue.ready > 1", set()),
        ("increase(queue.published[5m]) > 0", set()),
        ("queue.oldest_age > queue.ready", None),
        ("queue.oldest_age * 2 > 10", None),
        ("-queue.oldest_age > 10", None),
        ("queue.oldest_age", None),
        ("max(queue.oldest_age[5m]) > 10", None),
        ("queue.oldest_age > 5 and max(queue.oldest_age[5m]) > 10", None),
    ],
)
def test_an_expression_knows_at_which_ages_it_may_change(text: str, ages: set[float] | None) -> None:
    assert parse(text, {"age": 600.0}).ages_s == ages
