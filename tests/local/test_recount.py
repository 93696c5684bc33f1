"""The counters of queues equal a recount of the records in the journal, by rules that are repeated here."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

from openq.clock import VirtualClock
from openq.engine import records as r
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.server.queue_metrics import COUNTER_METRICS, totals

Counts = dict[int, Counter[str]]
COUNTED = (
    *("published", "delivered", "redelivered", "acked", "nacked", "lease_expired", "released"),
    *("dead_lettered", "expired", "moved_in", "moved_out"),
)


def recount(broker: LocalBroker) -> Counts:
    """By queue number. Only records are read: no engine."""
    assert broker.journal is not None
    counts: Counts = defaultdict(Counter)
    deliveries: Counter[tuple[int, int]] = Counter()  # of a message, those that count
    in_flight: dict[tuple[int, int], int] = {}  # -> deadline
    for _, data in broker.journal.replay():
        record = r.decode(data)
        kind, now_ms, queue = record[:3]
        mine = counts[queue]
        if kind == r.PUBLISH:
            mine["published"] += 1
        elif kind == r.RUN:
            mine["published"] += len(record[5])
        elif kind == r.DELIVER:
            for each in record[6]:
                mine["delivered"] += 1
                mine["redelivered"] += deliveries[queue, each] > 0
                deliveries[queue, each] += 1
                in_flight[queue, each] = record[4]
        elif kind == r.ACK:
            mine["acked"] += len(record[4])
            for each in record[4]:
                in_flight.pop((queue, each), None)
        elif kind == r.RETURN:
            for each, _ in record[6]:
                mine[{r.NACKED: "nacked", r.EXPIRED: "lease_expired", r.RELEASED: "released"}[record[4]]] += 1
                deliveries[queue, each] -= record[4] == r.RELEASED
                in_flight.pop((queue, each), None)
        elif kind in (r.MOVE, r.REMOVE):
            moved = [each[0] for each in record[6]] if kind == r.MOVE else record[5]
            for each in dict.fromkeys(moved):
                until_ms = in_flight.pop((queue, each), None)
                if until_ms is not None:
                    mine["lease_expired" if 0 < until_ms <= now_ms else "nacked"] += 1
                if kind == r.MOVE:
                    mine["moved_out"] += 1
                    mine["dead_lettered"] += record[4] in r.DEAD_LETTER_NAMES
                mine["expired"] += record[4] == (r.DEAD_EXPIRED if kind == r.MOVE else r.REMOVED_EXPIRED)
            for _, to, _ in record[6] if kind == r.MOVE else ():
                counts[to]["moved_in"] += 1
    return counts


def test_counters_equal_a_recount_of_the_journal(tmp_path: Path) -> None:
    chooser = random.Random(16)
    clock = VirtualClock()
    broker = LocalBroker(tmp_path, clock=clock)
    broker.declare("dead", QueueSettings())
    limits = QueueSettings(visibility_ms=3_000, max_receives=3, dead_letter="dead")
    broker.declare("orders", limits)
    broker.declare("brief", QueueSettings(visibility_ms=2_000, ttl_ms=4_000))
    broker.declare("gone", limits)

    def step(queue: str) -> None:
        choice = chooser.randrange(8)
        if choice < 2:
            broker.publish_many(queue, [Draft(b"x", delay_ms=chooser.choice((0, 0, 500)))])
        elif choice == 2:
            broker.publish_bodies(queue, [b"x"] * chooser.randrange(1, 20), 0)
        elif choice == 3:
            clock.advance(chooser.choice((0.1, 1, 3.5)))
            broker.tick()
        else:
            taken = [(each.entry.seq, each.number) for each in broker.receive(queue, chooser.randrange(1, 6))]
            kept = taken[: chooser.randrange(len(taken) + 1)]
            settle = chooser.choice((broker.ack, broker.ack, broker.nack, broker.reject, broker.release))
            settle(queue, kept)

    for number in range(1_500):
        step(chooser.choice(("orders", "orders", "brief", "gone" if number < 700 else "dead")))
        if number == 700:
            broker.delete("gone")
    broker.sync()

    counted = recount(broker)
    for name in broker.queues():
        stats = broker.stats(name).counters
        mine = counted[broker.get_queue(name).number]
        assert {each: stats[each] for each in COUNTED} == {each: mine[each] for each in COUNTED}, name
    # The sums of the page of metrics, with the queue that was deleted.
    shown = {family.name: family.samples[0][1] for family in totals(broker, True)}
    for each in COUNTED:
        if each in COUNTER_METRICS:
            assert shown[COUNTER_METRICS[each][0]] == sum(mine[each] for mine in counted.values()), each
    before = {name: shown[name] for name, _ in COUNTER_METRICS.values()}
    broker.close()

    again = LocalBroker(tmp_path, clock=clock)
    after = {family.name: family.samples[0][1] for family in totals(again, True)}
    assert {name: after[name] for name in before} == before
    assert shown["openq_messages_dead_lettered_total"]
    assert shown["openq_messages_expired_total"]
    again.close()
