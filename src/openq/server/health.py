"""Health and metrics: `/livez`, `/readyz`, `/healthz`, `/metrics`."""

from __future__ import annotations

import logging
from collections import Counter

from .._version import __version__
from ..broker.interface import Broker
from ..broker.subscriptions import open_messages
from ..broker.worker_totals import RegistryTotals
from ..broker.workers import STATS, WorkerStats, list_values, list_workers, worker_buckets
from ..errors import OpenQError
from ..metrics import Family, render
from ..names import DEFAULT_ACCOUNT, qualified_name, split_name
from .buffers import PROTOCOLS, BufferLimit
from .context import ServerContext
from .event_hub import event_families
from .http_request import HttpRequest
from .log_metrics import log_metrics

log = logging.getLogger("openq.server")

_TEXT = b"text/plain; charset=utf-8"
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"
MAX_QUEUES = 1_000  # series of single queues; totals are always there

_COUNTERS = {
    "published": ("openq_messages_sent_total", "Messages accepted."),
    "delivered": (
        "openq_messages_delivered_total",
        "Deliveries: every hand-out of a message. Each ends as acked, nacked, expired or released, "
        "or with its message.",
    ),
    "redelivered": (
        "openq_messages_redelivered_total",
        "Retries: deliveries of a message that was delivered before.",
    ),
    "acked": ("openq_messages_acked_total", "Messages completed: acknowledged or deleted by a consumer."),
    "nacked": (
        "openq_messages_nacked_total",
        "Errors: deliveries that a consumer ended as failed, by nack, reject, visibility timeout 0 or a lost "
        "connection, whether the message is tried again, dead-lettered or dropped.",
    ),
    "lease_expired": (
        "openq_leases_expired_total",
        "Timeouts: deliveries that were not ended before their deadline, whether the message is tried again, "
        "dead-lettered or dropped.",
    ),
    "released": (
        "openq_messages_released_total",
        "Deliveries taken back before a consumer saw them; not counted against max_receives.",
    ),
    "damaged": ("openq_messages_damaged_total", "Messages set aside because their body cannot be read."),
    "dead_lettered": ("openq_messages_dead_lettered_total", "Messages moved to a dead-letter queue."),
    "expired": ("openq_messages_expired_total", "Messages that outlived their time."),
    "deduplicated": ("openq_messages_deduplicated_total", "Messages accepted as duplicates."),
    "stuck": ("openq_messages_stuck_total", "Messages received many times with nowhere to go."),
}


class HealthHandler:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        # One for each view, by whether it shows all accounts: each must see every process end once.
        self._worker_totals = (RegistryTotals(), RegistryTotals())

    def handle(self, request: HttpRequest) -> None:
        if request.method not in ("GET", "HEAD"):
            request.answer(405, b"only GET\n", _TEXT, b"Allow: GET, HEAD\r\n")
        elif request.path == "/livez":
            request.answer(200, b"alive\n", _TEXT)
        elif request.path == "/metrics":
            self._metrics(request)
        else:
            health = self._context.broker.health()
            # With a full disk consumers are still served: ready, and the text says why publishing fails.
            ready = health.ok or health.disk_full
            # Damage is degraded, not unready: everything intact is served, and an operator has to look.
            word = {"ok": "ready", "degraded": "degraded"}.get(health.status, "not ready")
            hint = () if health.hint is None else (health.hint,)
            text = "; ".join((f"{word}: {health.detail}", *health.degraded, *hint)) + "\n"
            request.answer(200 if ready else 503, text.encode(), _TEXT)

    def _metrics(self, request: HttpRequest) -> None:
        """The permission peek shows the queues of the default account, admin those of all accounts.

        In a thread: a password may have to be hashed."""
        guard = self._context.guard

        def look() -> tuple[int, bytes, bytes, bytes]:
            refusal = guard.refusal_for(request, "peek")
            if refusal is not None:
                return refusal
            return 200, self.metrics(guard.refusal_for(request, "admin") is None), _METRICS, b""

        def then(reply: tuple[int, bytes, bytes, bytes] | None, failure: BaseException | None) -> None:
            if reply is None:
                log.error("metrics failed", exc_info=failure)
                reply = (500, b"internal error; see the log of the server\n", _TEXT, b"")
            request.answer(*reply)

        self._context.check(look, then)

    def metrics(self, all_accounts: bool = True) -> bytes:
        broker = self._context.broker
        listener = self._context.listener
        amqp = self._context.amqp
        streams = self._context.streams if self._context.has_streams else None
        stats = []
        for name in broker.queues():
            if not all_accounts and split_name(name)[0] != DEFAULT_ACCOUNT:
                continue
            try:
                stats.append(broker.stats(name))
            except OpenQError:
                continue  # deleted meanwhile
        families = [
            Family("openq_build_info", "gauge", "The version.", [({"version": __version__}, 1)]),
            Family("openq_queues", "gauge", "Queues there are.", [({}, len(stats))]),
            Family(
                "openq_connections",
                "gauge",
                "Connections that are open.",
                [
                    ({"protocol": "http"}, len(listener.connections) if listener else 0),
                    ({"protocol": "amqp"}, len(amqp.open_connections) if amqp else 0),
                    ({"protocol": "ws"}, len(streams.sockets) if streams else 0),
                ],
            ),
            Family(
                "openq_connections_max",
                "gauge",
                "Connections that may be open, by max_connections and the limit of descriptors.",
                [({}, self._context.admission.max_connections)],
            ),
            Family(
                "openq_connections_refused_total",
                "counter",
                "Connections refused because there were too many.",
                [({"protocol": name}, self._context.admission.refused.get(name, 0)) for name in PROTOCOLS],
            ),
            Family(
                "openq_amqp_channels",
                "gauge",
                "AMQP channels that are open.",
                [({}, len(amqp.channels()) if amqp else 0)],
            ),
            Family(
                "openq_amqp_consumers",
                "gauge",
                "AMQP consumers.",
                [({}, len(amqp.consumers()) if amqp else 0)],
            ),
            Family(
                "openq_amqp_errors_total",
                "counter",
                "AMQP channels and connections closed for an error of the client, by reply code.",
                [({"code": str(code)}, count) for code, count in sorted(amqp.errors.items())] if amqp else [],
            ),
            Family(
                "openq_stream_consumers",
                "gauge",
                "Queues that WebSocket subscriptions consume.",
                [({}, streams.consumers() if streams else 0)],
            ),
            Family(
                "openq_streams_opened_total",
                "counter",
                "WebSocket connections opened.",
                [({}, streams.opened if streams else 0)],
            ),
            Family(
                "openq_streams_cut_total",
                "counter",
                "WebSocket connections cut because the client did not read, or did not answer.",
                [({}, streams.cut if streams else 0)],
            ),
            Family(
                "openq_requests_total",
                "counter",
                "HTTP requests.",
                [({}, listener.requests if listener else 0)],
            ),
            *_buffer_metrics(self._context.buffers),
            *event_families(self._context.event_hub_or_none),
            Family("openq_long_polls", "gauge", "Requests that wait.", [({}, len(self._context.long_polls))]),
        ]
        labels = []
        for each in stats[:MAX_QUEUES]:
            account, name = split_name(each.name)
            labels.append({"account": account, "queue": name})
        for counter, (name, text) in _COUNTERS.items():
            rows = [(label, each.counters[counter]) for label, each in zip(labels, stats, strict=False)]
            families.append(Family(name, "counter", text, rows))
        messages = [
            ({**label, "state": state}, getattr(each, state))
            for label, each in zip(labels, stats, strict=False)
            for state in ("ready", "in_flight", "delayed")
        ]
        families.append(Family("openq_queue_messages", "gauge", "Messages in a queue.", messages))
        limited = [(label, each.limited) for label, each in zip(labels, stats, strict=False)]
        families.append(
            Family("openq_queue_messages_limited", "gauge", "Ready messages that limits hold now.", limited)
        )
        ages = [(label, (each.oldest_age_ms or 0) / 1000) for label, each in zip(labels, stats, strict=False)]
        families.append(
            Family("openq_queue_oldest_message_age_seconds", "gauge", "Age of the oldest waiting one.", ages)
        )
        health = broker.health()
        families.append(
            Family(
                "openq_healthy",
                "gauge",
                "1: everything is served; see openq_degraded for damage.",
                [({}, int(health.ok))],
            )
        )
        families.append(
            Family(
                "openq_messages_set_aside",
                "gauge",
                "Messages that are not delivered because their body cannot be read.",
                _set_aside(broker, all_accounts),
            )
        )
        families += broker.gauges()
        families += log_metrics(self._context)
        families += _reader_metrics(broker, all_accounts)
        families += self._worker_metrics(broker, all_accounts)
        if self._context.webhooks is not None:
            families += self._context.webhooks.families(all_accounts)
        return render(families)

    def _worker_metrics(self, broker: Broker, all_accounts: bool) -> list[Family]:
        """The workers that are registered with this server or store."""
        kv = broker.kv
        processes: list[tuple[dict[str, str], float]] = []
        slots: list[tuple[dict[str, str], float]] = []
        busy: list[tuple[dict[str, str], float]] = []
        stats: list[tuple[str, WorkerStats]] = []
        for account, bucket in worker_buckets(kv):
            if not all_accounts and account != DEFAULT_ACCOUNT:
                continue
            entries = list_workers(kv, bucket)
            states = Counter(entry.state for entry in entries)
            label = {"account": account}
            processes += [({**label, "state": state}, count) for state, count in sorted(states.items())]
            slots.append((label, sum(entry.slots for entry in entries)))
            busy.append((label, sum(entry.busy for entry in entries)))
            found = list_values(kv, qualified_name(account, STATS), WorkerStats)
            stats += [(account, each) for _, each in found]
        totals = self._worker_totals[all_accounts].update(stats)
        return [
            Family("openq_worker_processes", "gauge", "Processes of a worker, by state.", processes),
            Family("openq_worker_slots", "gauge", "Jobs that a worker can run at once.", slots),
            Family("openq_worker_busy_slots", "gauge", "Jobs that a worker runs now.", busy),
            *totals.families(),
        ]


def _set_aside(broker: Broker, all_accounts: bool) -> list[tuple[dict[str, str], int]]:
    rows = []
    for name, count in list(broker.damage.set_aside().items())[:MAX_QUEUES]:
        account, queue = split_name(name)
        if all_accounts or account == DEFAULT_ACCOUNT:
            rows.append(({"account": account, "queue": queue}, count))
    return rows


def _buffer_metrics(buffers: BufferLimit) -> list[Family]:
    return [
        Family(
            "openq_buffered_bytes",
            "gauge",
            "Bytes of requests and messages that have not arrived whole, and of answers that are not read.",
            [({"protocol": protocol}, buffers.of(protocol)) for protocol in PROTOCOLS],
        ),
        Family(
            "openq_buffered_bytes_limit",
            "gauge",
            "Maximum of these bytes before connections are closed.",
            [({}, buffers.max_bytes)],
        ),
        Family(
            "openq_buffered_connections_closed_total",
            "counter",
            "Connections closed because they held the most of these bytes when the limit was reached.",
            [({"protocol": protocol}, buffers.shed[protocol]) for protocol in PROTOCOLS],
        ),
    ]


def _reader_metrics(broker: Broker, all_accounts: bool) -> list[Family]:
    """Subscriptions and cursors."""
    held = []
    for name, count in open_messages(broker.subscriptions.states()):
        account, subscription = split_name(name)
        if all_accounts or account == DEFAULT_ACCOUNT:
            held.append(({"account": account, "subscription": subscription}, count))
    cursors = broker.cursors.states()
    return [
        Family("openq_subscription_open_messages", "gauge", "Messages in open batches.", held),
        Family(
            "openq_cursor_lag_bytes",
            "gauge",
            "Bytes of the journal that a cursor has not passed.",
            [({"cursor": each.cursor.name}, each.lag_bytes) for each in cursors],
        ),
        Family(
            "openq_cursor_lag_seconds",
            "gauge",
            "Upper bound of the age of the first record that a cursor has not passed.",
            [({"cursor": each.cursor.name}, each.lag_s) for each in cursors],
        ),
        Family(
            "openq_cursor_lost",
            "gauge",
            "1: the journal no longer keeps the records of this cursor.",
            [({"cursor": each.cursor.name}, int(each.lost is not None)) for each in cursors],
        ),
    ]
