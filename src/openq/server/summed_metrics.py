"""Metrics of several processes as one page. Pure.

A scrape reaches one process of a server, whichever the kernel chose, and must see all of them. Counters,
histograms and most gauges are sums. What the store knows is the same in every process and is taken once. A
counter must never go down, or Prometheus takes it for a restart: of a process that has ended, what was last
shown stays counted (`ProcessTotals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..histograms import HistogramValue
from ..metrics import Family, QueueColumn, label_text
from .process_messages import Families
from .queue_metrics import COUNTER_METRICS, QUEUE_COUNTER_METRICS

Value = float | HistogramValue

# Facts of the store or of the configuration: the same in every process.
STORE = frozenset(
    [
        *(name for name, _ in (*COUNTER_METRICS.values(), *QUEUE_COUNTER_METRICS.values())),
        *("openq_build_info", "openq_relaxed", "openq_queues", "openq_messages", "openq_messages_limited"),
        *("openq_messages_set_aside", "openq_messages_waiting_bytes", "openq_oldest_message_age_seconds"),
        *("openq_cursor_lag_bytes", "openq_cursor_lag_seconds", "openq_cursor_lost"),
        *("openq_subscription_open_messages", "openq_schedule_next_run_timestamp_seconds"),
        *("openq_kv_bytes", "openq_kv_bytes_limit", "openq_kv_keys", "openq_store_loss_window_seconds"),
        *("openq_redis_memory_limit_bytes", "openq_redis_replica_lag_bytes", "openq_redis_replicas"),
        *("openq_redis_used_memory_bytes", "openq_disk_free_bytes", "openq_disk_size_bytes"),
        *("openq_journal_size_bytes", "openq_webhook_enabled", "openq_worker_busy_slots"),
        *("openq_worker_processes", "openq_worker_slots", "openq_worker_memory_bytes"),
        *("openq_queue_messages", "openq_queue_messages_limited", "openq_queue_messages_set_aside"),
        *("openq_queue_oldest_message_age_seconds", "openq_queue_series_omitted"),
        "openq_queue_waiting_bytes",
    ]
)
# Each process sees a part, or reads the same at another time: the largest, or the smallest, is right.
LARGEST = frozenset(
    [
        *("openq_degraded", "openq_webhook_breaker_state", "openq_worker_job_run_seconds"),
        *("openq_worker_job_wait_seconds", "openq_worker_jobs_total", "openq_worker_process_restarts_total"),
    ]
)
SMALLEST = frozenset(("openq_healthy", "openq_queues_without_consumers", "process_start_time_seconds"))
# Gauges that add up. Counters and histograms that are not above do too.
ADDED = frozenset(
    [
        *("openq_alert_evaluator", "openq_alerts", "openq_amqp_channels", "openq_amqp_consumers"),
        *("openq_audit_records_waiting", "openq_buffered_bytes", "openq_buffered_bytes_limit"),
        *("openq_connections", "openq_connections_max", "openq_event_bridge_sending"),
        *("openq_event_readers", "openq_login_locked_addresses", "openq_long_polls"),
        *("openq_stream_consumers", "openq_threads", "openq_waiting_consumers", "openq_webhook_in_flight"),
        *("process_max_fds", "process_open_fds", "process_resident_memory_bytes"),
        "openq_queue_waiting_consumers",
    ]
)


def of_process(families: Families) -> list[Family | QueueColumn]:
    """Those that differ from process to process."""
    return [each for each in families if each.name not in STORE]


def with_sums(families: Families, sums: Families) -> list[Family | QueueColumn]:
    """The page of one process, with the sums of all in place of its own figures."""
    summed = {_key(each): each for each in sums}
    found = [summed.pop(_key(each), each) for each in families]
    # What only others have, such as a protocol that only they were asked for; its place is the end.
    return [*found, *summed.values()]


def merged(pages: Iterable[Families]) -> list[Family | QueueColumn]:
    """One page of several."""
    together: dict[tuple[str, str], list[Family | QueueColumn]] = {}
    for page in pages:
        for each in page:
            together.setdefault(_key(each), []).append(each)
    return [_merge(same) for same in together.values()]


def lasting(families: Families) -> list[Family | QueueColumn]:
    """What stays counted when a process ends: counters, histograms and summaries, not gauges."""
    return [each for each in families if each.kind != "gauge" and each.name not in LARGEST]


class ProcessTotals:
    """The figures of one place among the processes, whose process may be replaced, for one page."""

    def __init__(self) -> None:
        self._ended: Families = ()  # of the processes before
        self._shown: Families = ()  # of this one, as they were last on a page

    def show(self, families: Families) -> None:
        self._shown = families

    def end(self) -> None:
        """The process is gone. Counts since its last page are lost with it, as they are without others."""
        self._ended = merged([self._ended, lasting(self._shown)])
        self._shown = ()

    @property
    def pages(self) -> Sequence[Families]:
        return self._ended, self._shown


def _key(each: Family | QueueColumn) -> tuple[str, str]:
    return each.name, each.suffix if isinstance(each, QueueColumn) else ""


def _merge(same: Sequence[Family | QueueColumn]) -> Family | QueueColumn:
    first = same[0]
    if len(same) == 1:
        return first
    combine = _rule_of(first.name)
    if isinstance(first, QueueColumn):
        columns = [each for each in same if isinstance(each, QueueColumn)]
        values: dict[str, float] = {}
        for column in columns:
            for label, number in zip(column.labels, column.values, strict=True):
                values[label] = _number(combine(values[label], number)) if label in values else number
        return first._replace(labels=list(values), values=list(values.values()))
    samples: dict[str, tuple[dict[str, str], Value]] = {}
    for family in same:
        if isinstance(family, Family):
            for labels, value in family.samples:
                text = label_text(labels)
                known = samples.get(text)
                samples[text] = (dict(labels), value if known is None else combine(known[1], value))
    return first._replace(samples=list(samples.values()))


def _rule_of(name: str) -> Callable[[Value, Value], Value]:
    return _larger if name in LARGEST else _smaller if name in SMALLEST else _sum


def _number(value: Value) -> float:
    assert not isinstance(value, HistogramValue)
    return value


def _sum(one: Value, other: Value) -> Value:
    if isinstance(one, HistogramValue):
        assert isinstance(other, HistogramValue)
        assert list(one.bounds) == list(other.bounds)
        counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
        newest = dict(one.exemplars)
        for at, exemplar in other.exemplars.items():
            if at not in newest or newest[at].time_s < exemplar.time_s:
                newest[at] = exemplar
        return HistogramValue(one.bounds, counts, round(one.sum + other.sum, 9), newest)
    total: float = one + _number(other)
    return round(total, 9) if isinstance(total, float) else total


def _larger(one: Value, other: Value) -> Value:
    return one if _rank(one) >= _rank(other) else other


def _smaller(one: Value, other: Value) -> Value:
    return one if _rank(one) <= _rank(other) else other


def _rank(value: Value) -> float:
    return sum(value.counts) if isinstance(value, HistogramValue) else value
