"""Health and metrics: `/livez`, `/readyz`, `/healthz`, `/metrics`, `/metrics/queues`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from .._version import __version__
from ..broker.interface import Broker
from ..broker.subscriptions import open_messages
from ..broker.worker_totals import RegistryTotals
from ..broker.workers import STATS, WorkerStats, list_values, list_workers, worker_buckets
from ..errors import InvalidSetting, OpenQError, public_text
from ..metrics import OPENMETRICS, TEXT, Family, QueueColumn, pieces
from ..names import DEFAULT_ACCOUNT, qualified_name, split_name
from .buffers import PROTOCOLS, BufferLimit
from .context import ServerContext
from .event_hub import event_families
from .http_request import HttpRequest
from .log_metrics import log_metrics
from .queue_metrics import QueueChoice, columns, totals, visible

log = logging.getLogger("openq.server")

_TEXT = b"text/plain; charset=utf-8"


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
            self._metrics(request, "metrics")
        elif request.path == "/metrics/queues":
            self._queue_metrics(request)
        else:
            health = self._context.broker.health()
            # With a full disk consumers are still served: ready, and the text says why publishing fails.
            ready = health.ok or health.disk_full
            # Damage is degraded, not unready: everything intact is served, and an operator has to look.
            word = {"ok": "ready", "degraded": "degraded"}.get(health.status, "not ready")
            hint = () if health.hint is None else (health.hint,)
            missing = "" if self._context.member is None else self._context.member.missing
            if missing and word == "ready":
                word = "degraded"
            parts = (f"{word}: {health.detail}", *health.degraded, *hint, *filter(None, (missing,)))
            text = "; ".join(parts) + "\n"
            request.answer(200 if ready else 503, text.encode(), _TEXT)

    def _queue_metrics(self, request: HttpRequest) -> None:
        try:
            QueueChoice(request.query)
        except InvalidSetting as error:
            request.answer(400, f"{error}\n".encode(), _TEXT)
            return
        self._metrics(request, "queues")

    def page_of(self, page: str, all_accounts: bool, query: str) -> Sequence[Family | QueueColumn]:
        """In a thread: what this process knows."""
        if page == "queues":
            return columns(self._context.broker, QueueChoice(query), all_accounts)
        return self.families(all_accounts)

    def _metrics(self, request: HttpRequest, page: str) -> None:
        """The permission peek shows the queues of the default account, admin those of all accounts.

        In a thread: a password may have to be hashed, and there may be thousands of queues."""
        guard = self._context.guard
        openmetrics = b"application/openmetrics-text" in request.fields.get(b"accept", b"")

        def look() -> tuple[int, bytes, bytes, bytes]:
            refusal = guard.refusal_for(request, "peek")
            if refusal is not None:
                return refusal
            all_accounts = guard.refusal_for(request, "admin") is None
            query = request.query if page == "queues" else ""
            found = self.page_of(page, all_accounts, query)
            member = self._context.member
            if member is not None:
                found = member.summed((page, all_accounts, query), found)
                if page == "metrics":
                    found = [*found, *member.own_families()]
            text: list[bytes] = []
            for piece in pieces(found, openmetrics):
                text.append(piece)
                time.sleep(0)  # the event loop gets the interpreter between two pieces
            return 200, b"".join(text), OPENMETRICS if openmetrics else TEXT, b""

        def then(reply: tuple[int, bytes, bytes, bytes] | None, failure: BaseException | None) -> None:
            if reply is None and isinstance(failure, OpenQError):
                reply = (503, f"{public_text(failure)}\n".encode(), _TEXT, b"")  # the store is unreachable
            if reply is None:
                log.error("metrics failed", exc_info=failure)
                reply = (500, b"internal error; see the log of the server\n", _TEXT, b"")
            request.answer(*reply)

        self._context.check(look, then)

    def families(self, all_accounts: bool = True) -> list[Family]:
        context = self._context
        broker = context.broker
        listener = context.listener
        amqp = context.amqp
        streams = context.streams if context.has_streams else None
        families = [
            Family("openq_build_info", "gauge", "The version.", [({"version": __version__}, 1)]),
            *totals(broker, all_accounts),
            *context.traffic.families(),
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
            *self._context.event_bridge.families(),
            Family("openq_long_polls", "gauge", "Requests that wait.", [({}, len(self._context.long_polls))]),
        ]
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
                [({}, _set_aside(broker, all_accounts))],
            )
        )
        families += broker.statistics.gauges()
        families += log_metrics(self._context)
        families += broker.statistics.families()
        families += context.process.families()
        families += context.series.families()
        families += _reader_metrics(broker, all_accounts)
        families += self._worker_metrics(broker, all_accounts)
        if self._context.webhooks is not None:
            families += self._context.webhooks.families(all_accounts)
        if self._context.alerts is not None:
            families += self._context.alerts.families()
        return families

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


def _set_aside(broker: Broker, all_accounts: bool) -> int:
    aside = broker.inspect.damage.set_aside()
    return sum(aside[name] for name in visible(aside, all_accounts))


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
