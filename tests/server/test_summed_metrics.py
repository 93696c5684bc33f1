"""Metrics of several processes as one page: what is added up, and that no counter goes down."""

from __future__ import annotations

import pytest

from openq.histograms import Histogram
from openq.metrics import Family, QueueColumn
from openq.server.process_messages import Alive, Collect, Decoder, encode
from openq.server.summed_metrics import (
    ADDED,
    LARGEST,
    SMALLEST,
    STORE,
    ProcessTotals,
    merged,
    of_process,
    with_sums,
)
from tests.references import _all_families

# They are made from the state of the supervisor, or by a store that processes cannot share.
NOT_OF_SEVERAL = {"openq_processes"}


def test_every_gauge_has_a_rule_and_only_one() -> None:
    gauges = {name for name, kind, _ in _all_families() if kind == "gauge"} - NOT_OF_SEVERAL
    rules = [STORE, LARGEST, SMALLEST, ADDED]
    assert {name for name in gauges if sum(name in rule for rule in rules) != 1} == set()
    known = {name for name, _, _ in _all_families()}
    assert set().union(*rules) - known == set()


def requests(count: int) -> Family:
    return Family("openq_requests_total", "counter", "Requests.", [({}, count)])


def value(families: list[Family | QueueColumn], name: str) -> object:
    [found] = [each for each in families if each.name == name]
    assert isinstance(found, Family)
    return found.samples[0][1]


def test_counters_and_connections_add_up_and_facts_of_the_store_do_not() -> None:
    def page(of: int) -> list[Family]:
        return [
            requests(of),
            Family("openq_connections", "gauge", "", [({"protocol": "http"}, of), ({"protocol": "ws"}, 1)]),
            Family("openq_queues", "gauge", "", [({}, 7)]),
            Family("openq_healthy", "gauge", "", [({}, int(of < 3))]),
            Family("openq_degraded", "gauge", "", [({}, int(of == 2))]),
        ]

    sums = merged(of_process(page(of)) for of in (1, 2, 3))
    shown = with_sums(page(1), sums)

    assert value(shown, "openq_requests_total") == 6
    [connections] = [each for each in shown if each.name == "openq_connections"]
    assert list(connections.samples) == [({"protocol": "http"}, 6), ({"protocol": "ws"}, 3)]  # type: ignore[union-attr]
    assert value(shown, "openq_queues") == 7
    assert (value(shown, "openq_healthy"), value(shown, "openq_degraded")) == (0, 1)
    assert [each.name for each in shown] == [each.name for each in page(1)]  # in the same order


def test_labels_that_only_another_process_has_are_there() -> None:
    def errors(**counts: int) -> Family:
        samples = [({"code": code}, count) for code, count in counts.items()]
        return Family("openq_amqp_errors_total", "counter", "", samples)

    [found] = merged([[errors(a=1)], [errors(b=2)], [errors(a=3, b=4)]])
    assert isinstance(found, Family)
    assert list(found.samples) == [({"code": "a"}, 4), ({"code": "b"}, 6)]
    shown = with_sums([], [found])
    assert shown == [found]


def test_histograms_add_up_and_keep_the_newest_exemplar() -> None:
    def histogram(values: list[int], trace: str, time_ms: int) -> Family:
        made = Histogram(0.001, 0, 4)
        made.observe_many(values)
        made.keep_exemplar(values[0], trace, time_ms)
        return Family("openq_message_wait_seconds", "histogram", "", [({}, made.value())])

    [found] = merged([[histogram([1, 5], "old", 1_000)], [histogram([1], "new", 2_000)]])
    both = Histogram(0.001, 0, 4)
    both.observe_many([1, 5, 1])
    assert isinstance(found, Family)
    total = found.samples[0][1]
    assert not isinstance(total, float | int)
    assert (list(total.counts), total.sum) == (list(both.value().counts), both.value().sum)
    assert {each.trace_id for each in total.exemplars.values()} == {"new"}


def test_columns_of_queues_add_up_by_queue() -> None:
    def column(**waiting: int) -> QueueColumn:
        return QueueColumn(
            "openq_queue_waiting_consumers", "gauge", "", list(waiting), list(waiting.values())
        )

    [found] = merged([[column(a=1, b=2)], [column(b=3, c=4)]])
    assert isinstance(found, QueueColumn)
    assert dict(zip(found.labels, found.values, strict=True)) == {"a": 1, "b": 5, "c": 4}


def test_counters_of_a_process_that_ended_stay_counted_and_its_gauges_do_not() -> None:
    totals = ProcessTotals()
    connections = Family("openq_connections", "gauge", "", [({}, 4)])

    def total() -> list[Family | QueueColumn]:
        return merged(totals.pages)

    totals.show([requests(10), connections])
    totals.end()
    assert value(total(), "openq_requests_total") == 10
    assert [each.name for each in total()] == ["openq_requests_total"]
    totals.show([requests(1), connections])
    assert value(total(), "openq_requests_total") == 11
    totals.show([requests(2), connections])
    assert value(total(), "openq_requests_total") == 12
    totals.end()
    totals.end()  # it never showed anything
    assert value(total(), "openq_requests_total") == 12


def test_messages_arrive_whole_however_they_are_cut() -> None:
    sent = [Alive(), Collect(7, ("metrics", True, ""), [requests(3)]), Alive()]
    data = b"".join(map(encode, sent))
    for size in (1, 3, 1000):
        decoder = Decoder()
        found = [each for at in range(0, len(data), size) for each in decoder.feed(data[at : at + size])]
        assert found == sent
    with pytest.raises(ValueError, match="bytes"):
        Decoder().feed(b"\xff\xff\xff\xff")
