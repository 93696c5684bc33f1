"""The metrics of queues: sums for `/metrics`, one series per queue for `/metrics/queues`.

The two pages have different names (`openq_messages_sent_total`, `openq_queue_messages_sent_total`), so that a
Prometheus that scrapes both does not count twice. Built in a thread: thousands of queues take tens of
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl

from ..auth.rules import matches
from ..broker.dead_letter_queues import all_dead_letter_queues
from ..broker.interface import Broker
from ..broker.statistics import COUNTERS, QueueCounts
from ..errors import InvalidSetting
from ..metrics import Family, QueueColumn, label_text
from ..names import DEFAULT_ACCOUNT, split_name

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000

# Counter of a queue -> the rest of the names of its metrics, and the help.
_MESSAGES = {
    "published": ("messages_sent_total", "Messages accepted."),
    "delivered": (
        "messages_delivered_total",
        "Deliveries: every hand-out of a message. Each ends as acked, nacked, expired or released, "
        "or with its message.",
    ),
    "redelivered": (
        "messages_redelivered_total",
        "Retries: deliveries of a message that was delivered before.",
    ),
    "acked": ("messages_acked_total", "Messages completed: acknowledged or deleted by a consumer."),
    "nacked": (
        "messages_nacked_total",
        "Errors: deliveries that a consumer ended as failed, by nack, reject, visibility timeout 0 or a lost "
        "connection, whether the message is tried again, dead-lettered or dropped.",
    ),
    "lease_expired": (
        "leases_expired_total",
        "Timeouts: deliveries that were not ended before their deadline, whether the message is tried again, "
        "dead-lettered or dropped.",
    ),
    "released": (
        "messages_released_total",
        "Deliveries taken back before a consumer saw them; not counted against max_receives.",
    ),
    "damaged": ("messages_damaged_total", "Messages set aside because their body cannot be read."),
    "dead_lettered": ("messages_dead_lettered_total", "Messages moved to a dead-letter queue."),
    "expired": ("messages_expired_total", "Messages that outlived their time."),
    "deduplicated": ("messages_deduplicated_total", "Messages accepted as duplicates."),
    "removed": ("messages_removed_total", "Messages that ended without an ack: purged, expired, rejected."),
    "stuck": ("messages_stuck_total", "Messages received many times with nowhere to go."),
}
COUNTER_METRICS = {counter: (f"openq_{name}", text) for counter, (name, text) in _MESSAGES.items()}
QUEUE_COUNTER_METRICS = {
    counter: (f"openq_queue_{name}", f"Of one queue: {text[0].lower()}{text[1:]}")
    for counter, (name, text) in _MESSAGES.items()
}


class QueueChoice:
    """Which queues a page shows: `?match=PATTERN&limit=N`. Raises InvalidSetting."""

    def __init__(self, query: str) -> None:
        self.pattern = "*"
        self.limit = DEFAULT_LIMIT
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name == "match":
                self.pattern = value or "*"
            elif name == "limit":
                self.limit = _limit(value)
            else:
                raise InvalidSetting(f"unknown parameter {name[:40]!r}: there are match and limit")

    def of(self, names: Iterable[str]) -> list[str]:
        if self.pattern == "*":
            return sorted(names)
        return sorted(name for name in names if matches(self.pattern, split_name(name)[1]))


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidSetting(f"limit is a number from 1 to {MAX_LIMIT}")
    return int(text)


def visible(names: Iterable[str], all_accounts: bool) -> list[str]:
    return list(names) if all_accounts else [n for n in names if split_name(n)[0] == DEFAULT_ACCOUNT]


def totals(broker: Broker, all_accounts: bool) -> list[Family]:
    """Sums over all queues. Deleted queues stay counted, so no sum goes down."""
    rows = broker.statistics.of(visible(broker.queues(), all_accounts))
    by_field = dict(zip(QueueCounts._fields, zip(*rows, strict=True), strict=False))  # empty without rows
    counters: list[Sequence[int]] = [row.counters for row in rows]
    counters += [
        counts
        for account, counts in broker.statistics.deleted().items()
        if all_accounts or account == DEFAULT_ACCOUNT
    ]
    sums = dict(zip(COUNTERS, map(sum, zip(*counters, strict=True)), strict=True)) if counters else {}
    ages = [age for age in by_field.get("oldest_age_ms", ()) if age is not None]
    return [
        Family("openq_queues", "gauge", "Queues there are.", [({}, len(rows))]),
        *(
            Family(name, "counter", text, [({}, sums.get(counter, 0))])
            for counter, (name, text) in COUNTER_METRICS.items()
        ),
        Family(
            "openq_messages",
            "gauge",
            "Messages in all queues, by state.",
            [({"state": state}, sum(by_field.get(state, ()))) for state in _STATES],
        ),
        Family(
            "openq_messages_limited",
            "gauge",
            "Ready messages that limits hold now.",
            [({}, sum(by_field.get("limited", ())))],
        ),
        Family(
            "openq_messages_waiting_bytes",
            "gauge",
            "Bytes of the bodies that wait in all queues.",
            [({}, sum(by_field.get("waiting_bytes", ())))],
        ),
        Family(
            "openq_oldest_message_age_seconds",
            "gauge",
            "Age of the oldest waiting message of all queues.",
            [({}, max(ages, default=0) / 1000)],
        ),
        Family(
            "openq_queues_without_consumers",
            "gauge",
            "Queues with ready messages, of which none is in flight and for which no consumer waits; without "
            "dead-letter queues and queues that are paused.",
            [({}, _count_without_consumers(broker, rows))],
        ),
        Family(
            "openq_waiting_consumers",
            "gauge",
            "Consumers and requests that wait for messages at this server.",
            [({}, sum(by_field.get("waiters", ())))],
        ),
    ]


def _count_without_consumers(broker: Broker, rows: Sequence[QueueCounts]) -> int:
    idle = [row.name for row in rows if row.ready > 0 and not row.in_flight and not row.waiters]
    if not idle:
        return 0
    known = [(row.name, view.settings) for row in rows if (view := broker.find_queue(row.name)) is not None]
    targets = all_dead_letter_queues(broker.exchanges.router, known)
    paused = {name for name, settings in known if settings.paused}
    return sum(name not in targets and name not in paused for name in idle)


_STATES = ("ready", "in_flight", "delayed")


def columns(broker: Broker, choice: QueueChoice, all_accounts: bool) -> list[Family | QueueColumn]:
    """A series for each queue that is chosen."""
    names = choice.of(visible(broker.queues(), all_accounts))
    rows = broker.statistics.of(names[: choice.limit])
    families: list[Family | QueueColumn] = [
        Family(
            "openq_queue_series_omitted",
            "gauge",
            "Queues that this page leaves out because of its limit.",
            [({}, max(0, len(names) - choice.limit))],
        )
    ]
    labels = [_labels(row.name) for row in rows]
    by_counter = list(zip(*(row.counters for row in rows), strict=True)) or [()] * len(COUNTERS)
    for counter, (name, text) in QUEUE_COUNTER_METRICS.items():
        families.append(QueueColumn(name, "counter", text, labels, by_counter[COUNTERS.index(counter)]))
    families.append(_states(rows, labels))
    families += _gauges(rows, labels)
    families += _times(rows, labels)
    aside = broker.inspect.damage.set_aside()
    damaged = [name for name in names[: choice.limit] if aside.get(name)]
    families.append(
        QueueColumn(
            "openq_queue_messages_set_aside",
            "gauge",
            "Messages that are not delivered because their body cannot be read; only queues with such ones.",
            [_labels(name) for name in damaged],
            [aside[name] for name in damaged],
        )
    )
    return families


def _labels(queue_key: str) -> str:
    account, queue = split_name(queue_key)
    if account == DEFAULT_ACCOUNT:
        return _DEFAULT_LABEL + label_text({"queue": queue})
    return label_text({"account": account, "queue": queue})


_DEFAULT_LABEL = label_text({"account": DEFAULT_ACCOUNT}) + ","


def _states(rows: Sequence[QueueCounts], labels: Sequence[str]) -> QueueColumn:
    shown = [f'{label},state="{state}"' for state in _STATES for label in labels]
    values = [getattr(row, state) for state in _STATES for row in rows]
    return QueueColumn("openq_queue_messages", "gauge", "Messages in a queue, by state.", shown, values)


def _gauges(rows: Sequence[QueueCounts], labels: Sequence[str]) -> list[QueueColumn]:
    return [
        QueueColumn(
            "openq_queue_messages_limited",
            "gauge",
            "Ready messages that limits hold now.",
            labels,
            [row.limited for row in rows],
        ),
        QueueColumn(
            "openq_queue_waiting_bytes",
            "gauge",
            "Bytes of the bodies that wait in a queue.",
            labels,
            [row.waiting_bytes for row in rows],
        ),
        QueueColumn(
            "openq_queue_oldest_message_age_seconds",
            "gauge",
            "Age of the oldest waiting message.",
            labels,
            [(row.oldest_age_ms or 0) / 1000 for row in rows],
        ),
        QueueColumn(
            "openq_queue_waiting_consumers",
            "gauge",
            "Consumers and requests that wait for messages of a queue at this server.",
            labels,
            [row.waiters for row in rows],
        ),
    ]


def _times(rows: Sequence[QueueCounts], labels: Sequence[str]) -> list[QueueColumn]:
    """Sums and counts, of which Prometheus makes averages; the histograms are those of all queues."""
    measured = [(label, row.times) for label, row in zip(labels, rows, strict=True) if row.times.waited]
    shown = [label for label, _ in measured]
    acked = [each.acked for _, each in measured]
    return [
        *_summary(
            "openq_queue_wait_seconds",
            "Time from the arrival of a message to its first delivery; only queues in use since the start.",
            shown,
            [each.wait_ms for _, each in measured],
            [each.waited for _, each in measured],
        ),
        *_summary(
            "openq_queue_processing_seconds",
            "Time from a delivery to its ack; only queues in use since the start.",
            shown,
            [each.processing_ms for _, each in measured],
            acked,
        ),
        *_summary(
            "openq_queue_publish_to_ack_seconds",
            "Time from the arrival of a message to its ack; only queues in use since the start.",
            shown,
            [each.total_ms for _, each in measured],
            acked,
        ),
    ]


def _summary(
    name: str, text: str, labels: Sequence[str], sums_ms: Sequence[int], counts: Sequence[int]
) -> list[QueueColumn]:
    return [
        QueueColumn(name, "summary", text, labels, [each / 1000 for each in sums_ms], "_sum"),
        QueueColumn(name, "summary", text, labels, counts, "_count"),
    ]
