"""The signals that an alert rule can name, by the kind of subject that they belong to.

A rule is evaluated once for each subject: each queue, each cursor, each webhook. Signals of `total`, `store`
and `server`, and the metrics of `/metrics`, have one value and can stand in any rule. To add a signal: a line
here, and its value in `openq.alerts.sources`.
"""

from __future__ import annotations

from typing import NamedTuple


class Signal(NamedTuple):
    is_counter: bool  # only grows: used with increase() and rate()
    help: str


def _counter(help: str) -> Signal:
    return Signal(True, help)


def _gauge(help: str) -> Signal:
    return Signal(False, help)


_QUEUE_COUNTS = {
    "published": _counter("messages accepted"),
    "delivered": _counter("deliveries"),
    "redelivered": _counter("deliveries of a message that was delivered before"),
    "acked": _counter("messages completed"),
    "nacked": _counter("deliveries that a consumer ended as failed"),
    "lease_expired": _counter("deliveries that were not ended before their deadline"),
    "released": _counter("deliveries taken back before a consumer saw them"),
    "damaged": _counter("messages set aside because their body cannot be read"),
    "dead_lettered": _counter("messages moved to a dead-letter queue"),
    "expired": _counter("messages that outlived their time"),
    "deduplicated": _counter("messages accepted as duplicates"),
    "removed": _counter("messages that ended without an ack"),
    "stuck": _counter("messages received many times with nowhere to go"),
    "moved_in": _counter("messages moved here from other queues"),
    "moved_out": _counter("messages moved to other queues"),
    "ready": _gauge("messages that wait for a consumer"),
    "delayed": _gauge("messages that are not due yet"),
    "in_flight": _gauge("messages that consumers hold"),
    "waiting_bytes": _gauge("bytes of the bodies that wait"),
    "oldest_age": _gauge("age of the oldest ready message, in seconds"),
    "consumers": _gauge("consumers and requests that wait for messages at this server"),
    "limited": _gauge("ready messages that limits hold now"),
}
QUEUE_SIGNALS = {
    **_QUEUE_COUNTS,
    "wait": _gauge("average seconds from arrival to first delivery, since the last evaluation"),
    "publish_to_ack": _gauge("average seconds from arrival to ack, since the last evaluation"),
    "is_dead_letter": _gauge("1: another queue names it as its dead-letter queue"),
    "is_paused": _gauge("1: the queue is paused"),
}
SUBJECT_SIGNALS: dict[str, dict[str, Signal]] = {
    "queue": QUEUE_SIGNALS,
    "cursor": {
        "lag_seconds": _gauge("upper bound of the age of the first record that it has not passed"),
        "lag_bytes": _gauge("bytes of the journal that it has not passed"),
        "lost": _gauge("1: the journal no longer keeps its records"),
    },
    "webhook": {
        "enabled": _gauge("1: it is enabled"),
        "by_server": _gauge("1: the server disabled it, after an answer 410"),
    },
    "schedule": {
        "missed": _counter("runs that were dropped"),
        "runs": _counter("runs that were published"),
        "paused": _gauge("1: it is paused"),
    },
    "worker": {
        "silent_seconds": _gauge("seconds since its entry in the registry ended; 0 while it is there"),
        "busy": _gauge("jobs that it ran at its last report"),
        "slots": _gauge("jobs that it can run at once"),
    },
}
# Of all queues together: the names of the built-in series.
TOTAL_SIGNALS = {**_QUEUE_COUNTS, "queues": _gauge("number of queues")}
STORE_SIGNALS = {
    "is_safe": _gauge("1: Redis with the profile safe"),
    "loss_window": _gauge("seconds of acknowledged messages that a killed process or a power cut may lose"),
    "replicas": _gauge("connected replicas of Redis"),
    "replicas_seen": _gauge("the highest number of replicas that was seen"),
    "replica_lag_bytes": _gauge("bytes that the slowest replica has not confirmed"),
    "memory_share": _gauge("share of its memory limit that Redis uses"),
}
SERVER_SIGNALS = {
    "healthy": _gauge("1: everything is served"),
    "disk_full": _gauge("1: publishing is refused because the disk, or Redis, is full"),
    "degraded": _gauge("1: damaged records were found"),
    "uptime": _gauge("seconds since the start"),
    "disk_free": _gauge("free bytes of the file system of the data directory"),
    "disk_size": _gauge("its size in bytes"),
    "disk_free_share": _gauge("free share of it, 0 to 1"),
    "sync_p99": _gauge("seconds that 99 % of the syncs of the last 5 minutes stayed below"),
    "syncs": _counter("syncs of the journal"),
    "loop_lag_p99": _gauge("likewise, how late the event loop ran its timers"),
    "certificate_days": _gauge("days until the certificate of the server ends"),
    "logins_refused": _counter("refused logins with wrong credentials"),
    "lockouts": _counter("times that an address was locked out"),
    "connections_refused": _counter("connections refused because there were too many"),
    "descriptors_share": _gauge("share of the file descriptors that is used"),
    "memory_bytes": _gauge("resident memory of the process"),
    "notifications_failed": _counter("notifications of alerts that a destination did not accept"),
}
SINGLE_SIGNALS = {"total": TOTAL_SIGNALS, "store": STORE_SIGNALS, "server": SERVER_SIGNALS}
METRIC_PREFIXES = ("openq_", "process_")


def find_signal(name: str) -> Signal | None:
    """`queue.ready`, or the name of a metric, of which the sum over its labels is taken."""
    if name.startswith(METRIC_PREFIXES):
        return Signal(name.endswith("_total"), "a metric")
    kind, _, short = name.partition(".")
    found = SUBJECT_SIGNALS.get(kind) or SINGLE_SIGNALS.get(kind) or {}
    return found.get(short)


def kind_of(name: str) -> str:
    """The kind of subject that a signal belongs to; metrics are those of a server."""
    return "server" if name.startswith(METRIC_PREFIXES) else name.partition(".")[0]


def all_names() -> list[str]:
    groups = {**SUBJECT_SIGNALS, **SINGLE_SIGNALS}
    return [f"{kind}.{name}" for kind, signals in groups.items() for name in signals]
