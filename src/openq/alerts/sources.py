"""The values of signals now, from the broker and the server. Blocking: the thread of the service calls it.

Reading is bounded. Locally, queues are read whose counters, settings or consumers changed, that hold delayed
or limited messages, and some others in turn. Where each queue is a question to a remote store, at most
`REMOTE_QUEUES` are read in one round, active ones first. Signals that no rule names are not computed.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from ..alert_rules.expression import Value
from ..alert_rules.rule import FORMATS, one_line
from ..alert_rules.signals import METRIC_PREFIXES, QUEUE_SIGNALS, SUBJECT_SIGNALS
from ..auth.failed_logins import NO_CREDENTIALS, UNKNOWN_SCHEME, RefusedLogin
from ..broker.dead_letter_queues import all_dead_letter_queues, dead_letter_queues
from ..broker.interface import Health
from ..broker.statistics import COUNTERS, QueueCounts
from ..broker.workers import ENTRY_TTL_S, WorkerEntry, decode, worker_buckets
from ..histograms import HistogramValue
from ..metrics import Family
from ..names import DEFAULT_ACCOUNT, split_name
from ..parsing import without_password, without_passwords
from ..server.context import ServerContext
from ..server.log_metrics import log_metrics
from ..webhooks.store import WebhookStore
from .certificate import end_of_certificate
from .history import Row, Track, Tracks
from .quantiles import RecentQuantile
from .queue_rules import SLICE

REFRESHED = 200  # idle queues that are read again in one round
REMOTE_QUEUES = 500
CERTIFICATE_S = 30.0  # how often the file is looked at
WORKER_SILENT_S = 8.0  # two heartbeats, and some
MAX_PEERS = 5
_HARMLESS = {NO_CREDENTIALS, UNKNOWN_SCHEME, "clock_skew"}  # a browser, a scraper: no attack

_GAUGES = ("ready", "delayed", "in_flight", "waiting_bytes", "oldest_age", "consumers", "limited")
QUEUE_COLUMNS = (*COUNTERS, *_GAUGES, "wait", "publish_to_ack", "is_dead_letter", "is_paused")
assert set(QUEUE_COLUMNS) == set(QUEUE_SIGNALS)
_READY = QUEUE_COLUMNS.index("ready")
_IN_FLIGHT = QUEUE_COLUMNS.index("in_flight")
_BYTES = QUEUE_COLUMNS.index("waiting_bytes")
_SINCE = QUEUE_COLUMNS.index("oldest_age")  # in a row: the time since when the oldest message waits
SAME_AGE_S = 0.5  # times that differ less are one: clocks and roundings differ


class Sources:
    """The history of all signals that rules name."""

    def __init__(self, context: ServerContext, server: str) -> None:
        self._context = context
        self._broker = context.broker
        self._webhooks = WebhookStore(context.broker.kv)
        self.server = server
        self.queues = Tracks("queue", QUEUE_COLUMNS, "oldest_age")
        self.others = {
            kind: Tracks(kind, tuple(signals)) for kind, signals in SUBJECT_SIGNALS.items() if kind != "queue"
        }
        self.singles: dict[str, Track] = {}
        self._windows: dict[str, float] = {}
        self._signals: frozenset[str] = frozenset()
        self._cursor = 0
        self._times: dict[str, tuple[int, int, int, int]] = {}
        self._marks: dict[str, object] = {}  # what `changed` has seen of each queue
        self._targets: set[str] = set()  # dead-letter queues
        self._unsteady: set[str] = set()  # queues whose next row may differ though nothing happens
        self._sync = RecentQuantile()
        self._lag = RecentQuantile()
        self._certificate: tuple[float, str, float | None] = (-1e9, "", None)
        self._workers: dict[str, tuple[WorkerEntry, int]] = {}  # name -> entry, changed
        self._replacements: set[str] = set()  # workers that were started instead of one that died
        self.replicas_seen = 0
        self.peers: deque[RefusedLogin] = deque(maxlen=200)
        self.health = Health(True, "")
        self.notifications_failed: Callable[[], int] = lambda: 0

    def want(self, signals: frozenset[str], windows_s: Mapping[str, float]) -> None:
        """The signals that rules name, and the longest time of each kind of subject."""
        self._signals = signals
        self._windows = dict(windows_s)
        self.queues.window_s = windows_s.get("queue", 0.0)
        for kind, tracks in self.others.items():
            tracks.window_s = windows_s.get(kind, 0.0)

    def _wants(self, *prefixes: str) -> bool:
        return any(signal.startswith(prefixes) for signal in self._signals)

    # -- a round --------------------------------------------------------------------------------

    def read_server(self, now_s: float) -> None:
        """What this server knows by itself. Also works while the store is unreachable."""
        self.health = self._broker.health()
        values = self._server_values(now_s)
        for name, value in values.items():
            self._single(f"server.{name}", value, now_s)

    def read_store(self, now_s: float) -> None:
        """What the store knows: queues, and whatever is in key-values. Raises OpenQError."""
        families = self._families()
        if self._wants("store."):
            self._store_values(families, now_s)
        for signal in self._signals:
            if signal.startswith(METRIC_PREFIXES):
                self._single(signal, _sum(families.get(signal)), now_s)
        if self._wants("queue.", "total."):
            self._read_queues(now_s)
        if self._wants("cursor."):
            self._read_cursors(now_s)
        if self._wants("webhook."):
            self._read_webhooks(now_s)
        if self._wants("schedule."):
            self._read_schedules(now_s)
        if self._wants("worker."):
            self._read_workers(now_s)

    def _single(self, name: str, value: Value, now_s: float) -> None:
        track = self.singles.get(name)
        if value is None:
            self.singles.pop(name, None)
            return
        if track is None:
            track = self.singles[name] = Track(now_s, (value,))
        window_s = self._windows.get(name.partition(".")[0] if "." in name else "server", 0.0)
        step_s = max(0.1, window_s / 120)
        track.add(now_s, (value,), step_s)
        track.drop(now_s - window_s - step_s)

    # -- the server -----------------------------------------------------------------------------

    def _server_values(self, now_s: float) -> dict[str, Value]:
        context, health = self._context, self.health
        families = {each.name: each for each in context.process.families()}
        families.update((each.name, each) for each in self._broker.statistics.families())
        free, size = (_sum(families.get(f"openq_disk_{name}_bytes")) for name in ("free", "size"))
        used, most = _sum(families.get("process_open_fds")), _sum(families.get("process_max_fds"))
        syncs = _histogram(families.get("openq_journal_sync_seconds"))
        lag = _histogram(families.get("openq_event_loop_lag_seconds"))
        counts = list(context.guard.refused.counts.items())  # the loop adds reasons
        refused = sum(count for (_, reason), count in counts if reason not in _HARMLESS)
        return {
            "healthy": float(health.ok),
            "disk_full": float(health.disk_full),
            "degraded": float(bool(health.degraded)),
            "uptime": (context.now_ms() - context.started_ms) / 1000,
            "disk_free": free,
            "disk_size": size,
            "disk_free_share": None if free is None or not size else free / size,
            "sync_p99": None if syncs is None else self._sync.update(syncs, now_s),
            "syncs": None if syncs is None else float(sum(syncs.counts)),
            "loop_lag_p99": None if lag is None else self._lag.update(lag, now_s),
            "certificate_days": self._certificate_days(now_s),
            "logins_refused": float(refused),
            "lockouts": float(context.guard.refused.lockouts),
            "connections_refused": float(sum(context.admission.refused.values())),
            "descriptors_share": None if used is None or not most else used / most,
            "memory_bytes": _sum(families.get("process_resident_memory_bytes")),
            "notifications_failed": float(self.notifications_failed()),
        }

    def _certificate_days(self, now_s: float) -> float | None:
        path = self._context.config.tls_cert
        if path is None:
            return None
        read_s, known, end_s = self._certificate
        if known != path or now_s - read_s >= CERTIFICATE_S:
            try:
                with open(path, "rb") as file:
                    end_s = end_of_certificate(file.read(1 << 20))
            except (OSError, ValueError):
                end_s = None
            self._certificate = now_s, path, end_s
        return None if end_s is None else (end_s - time.time()) / 86_400

    def forget_certificate(self) -> None:
        """It was read again by a reload."""
        self._certificate = (-1e9, "", None)

    # -- the store ------------------------------------------------------------------------------

    def _families(self) -> dict[str, Family]:
        if not self._wants("store.", *METRIC_PREFIXES):
            return {}
        found = {each.name: each for each in self._broker.statistics.gauges()}
        if self._wants(*METRIC_PREFIXES):
            more = (*log_metrics(self._context), *self._context.process.families())
            found.update((each.name, each) for each in (*more, *self._context.series.families()))
        return found

    def _store_values(self, families: Mapping[str, Family], now_s: float) -> None:
        loss = families.get("openq_store_loss_window_seconds")
        windows = [
            float(value)
            for labels, value in (() if loss is None else loss.samples)
            if labels.get("fault") in ("process_killed", "power_loss") and isinstance(value, int | float)
        ]
        replicas = _sum(families.get("openq_redis_replicas"))
        if replicas is not None:
            self.replicas_seen = max(self.replicas_seen, int(replicas))
        lags = families.get("openq_redis_replica_lag_bytes")
        used = _sum(families.get("openq_redis_used_memory_bytes"))
        most = _sum(families.get("openq_redis_memory_limit_bytes"))
        config = self._context.config
        is_safe = config.store is not None and config.profile != "fast" and "profile=fast" not in config.store
        values: dict[str, Value] = {
            "is_safe": float(is_safe),
            "loss_window": max((each for each in windows if each == each), default=None),
            "replicas": replicas,
            "replicas_seen": None if replicas is None else float(self.replicas_seen),
            "replica_lag_bytes": max(
                (float(value) for _, value in lags.samples if isinstance(value, int | float)), default=None
            )
            if lags is not None
            else None,
            "memory_share": used / most if used is not None and most else None,
        }
        for name, value in values.items():
            self._single(f"store.{name}", value, now_s)

    # -- queues ---------------------------------------------------------------------------------

    def _read_queues(self, now_s: float) -> None:
        broker, tracks = self._broker, self.queues
        names = broker.queues()
        tracks.begin(now_s)
        settings = {name: view.settings for name in names if (view := broker.find_queue(name)) is not None}
        targets = set(all_dead_letter_queues(broker.exchanges.router, settings.items()))
        chosen = self._chosen(names, self._targets ^ targets)
        self._targets = targets
        self._unsteady.difference_update(chosen)
        for start in range(0, len(chosen), SLICE):
            for row in broker.statistics.of(chosen[start : start + SLICE]):
                found = settings.get(row.name)
                flags = (float(row.name in targets), float(found is not None and found.paused))
                track = tracks.update(row.name, self._row(row, flags, now_s), now_s)
                # Averages of the last round are in a row that has changed; the next one is without them.
                if row.delayed or row.limited or track.changed_s == now_s:
                    self._unsteady.add(row.name)
            time.sleep(0)  # the event loop gets the interpreter
        tracks.keep(settings)
        for known in (self._times, self._marks):
            for name in known.keys() - settings:
                del known[name]
        self._unsteady &= settings.keys()
        if self._wants("total."):
            self._total(now_s)

    def _chosen(self, names: Sequence[str], flagged: Iterable[str]) -> list[str]:
        is_remote = self._broker.storage.waits
        changed = [] if is_remote else self._broker.statistics.changed(names, self._marks)
        if self.queues.is_first or len(names) <= REFRESHED:
            return list(names)
        self._cursor = (self._cursor + REFRESHED) % len(names)
        turn = [*names[self._cursor :], *names[: self._cursor]]
        if is_remote:
            active = [
                name
                for name, track in self.queues.tracks.items()
                if track.latest[_READY] or track.latest[_IN_FLIGHT] or not track.settled
            ]
            half = REMOTE_QUEUES // 2
            begin = self._cursor % max(1, len(active))
            some = [*active[begin:], *active[:begin]][:half]
            return list(dict.fromkeys([*some, *turn]))[:REMOTE_QUEUES]
        return list(dict.fromkeys((*changed, *self._unsteady, *flagged, *turn[:REFRESHED])))

    def _row(self, row: QueueCounts, flags: tuple[float, float], now_s: float) -> Row:
        times = row.times
        before = self._times.get(row.name, (0, 0, 0, 0))
        now = self._times[row.name] = times.waited, times.wait_ms, times.acked, times.total_ms
        waited, wait_ms, acked, total_ms = (max(0, a - b) for a, b in zip(now, before, strict=True))
        return (
            *row.counters,
            row.ready,
            row.delayed,
            row.in_flight,
            row.waiting_bytes,
            self._since(row, now_s),
            row.waiters,
            row.limited,
            wait_ms / waited / 1000 if waited else 0.0,
            total_ms / acked / 1000 if acked else 0.0,
            *flags,
        )

    def _since(self, row: QueueCounts, now_s: float) -> float | None:
        """When the oldest message came."""
        if row.oldest_age_ms is None:
            return None
        since_s = now_s - row.oldest_age_ms / 1000
        track = self.queues.tracks.get(row.name)
        before_s = None if track is None else track.latest[_SINCE]
        return before_s if before_s is not None and abs(before_s - since_s) < SAME_AGE_S else since_s

    def _total(self, now_s: float) -> None:
        rows = [track.latest for track in self.queues.tracks.values()]
        wanted = [signal for signal in self._signals if signal.startswith("total.")]
        for signal in wanted:
            name = signal.removeprefix("total.")
            if name == "queues":
                self._single(signal, float(len(rows)), now_s)
                continue
            at = QUEUE_COLUMNS.index(name)
            if at == _SINCE:
                since = [since_s for row in rows if (since_s := row[at]) is not None]
                self._single(signal, max(0.0, now_s - min(since, default=now_s)), now_s)
                continue
            self._single(signal, float(sum(row[at] or 0 for row in rows)), now_s)

    # -- others -----------------------------------------------------------------------------------

    def _update(self, kind: str, found: Mapping[str, tuple[Row, Mapping[str, str]]], now_s: float) -> None:
        tracks = self.others[kind]
        tracks.begin(now_s)
        for name, (row, names) in found.items():
            tracks.update(name, row, now_s).names = names
        tracks.keep(found)

    def _read_cursors(self, now_s: float) -> None:
        found: dict[str, tuple[Row, Mapping[str, str]]] = {}
        for each in self._broker.cursors.states():
            reason = "" if each.lost is None else f": {each.lost}"
            row: Row = (each.lag_s, float(each.lag_bytes), float(each.lost is not None))
            found[each.cursor.name] = row, {"reason": reason}
        self._update("cursor", found, now_s)

    def _read_webhooks(self, now_s: float) -> None:
        found: dict[str, tuple[Row, Mapping[str, str]]] = {}
        for stored in self._webhooks.list():
            webhook = stored.webhook
            reason = webhook.reason or ""
            names = {"reason": f": its endpoint answered {reason}" if reason else ""}
            found[webhook.name] = (float(webhook.enabled), float(webhook.is_gone)), names
        self._update("webhook", found, now_s)

    def _read_schedules(self, now_s: float) -> None:
        found: dict[str, tuple[Row, Mapping[str, str]]] = {}
        for each in self._broker.schedules.list():
            row: Row = (float(each.missed), float(each.runs), float(each.paused))
            found[each.name] = row, {"reason": f": {each.error}" if each.error else ""}
        self._update("schedule", found, now_s)

    def _read_workers(self, now_s: float) -> None:
        """A process that ends removes its entry; the entry of one that dies is not renewed, and expires."""
        kv, now_ms = self._broker.kv, self._context.now_ms()
        seen: dict[str, tuple[WorkerEntry, int]] = {}
        for account, bucket in worker_buckets(kv):
            after = ""
            while page := kv.list(bucket, "", after):
                kv.load(page)
                for entry in page:
                    worker = decode(entry.value, WorkerEntry)
                    if worker is not None and worker.name == entry.key:
                        name = entry.key if account == DEFAULT_ACCOUNT else f"@{account}/{entry.key}"
                        seen[name] = worker, entry.changed_ms
                after = page[-1].key
        for name, (worker, changed_ms) in self._workers.items():
            if name in seen or now_ms - changed_ms < ENTRY_TTL_S * 1000 or worker.state == "stopping":
                continue
            if not self._is_replaced(worker, changed_ms, seen):
                seen[name] = worker, changed_ms
        found: dict[str, tuple[Row, Mapping[str, str]]] = {}
        for name, (worker, changed_ms) in list(seen.items()):
            silent_s = (now_ms - changed_ms) / 1000
            if silent_s > 86_400:
                del seen[name]
                continue
            row: Row = (
                silent_s if silent_s > WORKER_SILENT_S else 0.0,
                float(worker.busy),
                float(worker.slots),
            )
            names = {"pid": str(worker.pid), "host": worker.host, "runs": worker.runs}
            found[name] = row, names
        self._workers = seen
        self._update("worker", found, now_s)

    def _is_replaced(
        self, worker: WorkerEntry, changed_ms: int, seen: Mapping[str, tuple[WorkerEntry, int]]
    ) -> bool:
        """Whether it was started again, by its supervisor or by an operator. Each start replaces one."""
        self._replacements &= seen.keys()
        for name, (other, _) in seen.items():
            if name not in self._replacements and _replaces(other, worker, changed_ms):
                self._replacements.add(name)
                return True
        return False

    # -- texts ------------------------------------------------------------------------------------

    def names_of(self, kind: str, subject: str) -> dict[str, str]:
        """The names that the templates of a rule can use. Called only for rules that hold."""
        config = self._context.config
        names = {"server": self.server, "data": config.data}
        if config.store is not None:
            store = without_password(config.store)
            names |= {"store": store, "store_flag": f"--store {shlex.quote(store)}"}
        elif not config.memory:
            names["store_flag"] = f"--data {shlex.quote(config.data)}"
        if kind == "queue":
            account, queue = split_name(subject)
            names |= {"queue": queue, "account": account, **self._of_queue(subject)}
        elif kind in self.others:
            account, short = split_name(subject)
            track = self.others[kind].tracks.get(subject)
            names |= {kind: short, "account": account, **({} if track is None else track.names)}
        else:
            names |= self._of_server()
        return {name: one_line(text) for name, text in names.items()}

    def _of_queue(self, queue: str) -> dict[str, str]:
        view = self._broker.find_queue(queue)
        if view is None:
            return {}
        found = {"visibility": f"{view.settings.visibility_ms / 1000:g}"}
        targets = dead_letter_queues(self._broker.exchanges.router, queue, view.settings)
        if targets:
            found["dead_letter"] = split_name(targets[0])[1]
        return found

    def _of_server(self) -> dict[str, str]:
        health, config = self.health, self._context.config
        detail = "; ".join((health.detail, *health.degraded)) if not health.ok or health.degraded else ""
        names = {
            "detail": f": {without_passwords(detail)[:500]}" if detail else "",
            "full_place": "Redis" if config.store is not None else f"the disk of {config.data}",
            "certificate": config.tls_cert or "",
            "peers": self._peers(),
        }
        largest = max(self.queues.tracks.items(), key=lambda pair: pair[1].latest[_BYTES] or 0, default=None)
        if largest is not None and largest[1].latest[_BYTES]:
            account, queue = split_name(largest[0])
            names |= {"largest_queue": queue, "account": account}
            names["largest_size"] = FORMATS["bytes"](largest[1].latest[_BYTES] or 0)
        return names

    def _peers(self) -> str:
        found: Counter[str] = Counter()
        for each in list(self.peers):
            if each.reason not in _HARMLESS and each.peer:
                found[each.peer] += each.count
        if not found:
            return ""
        return ", from " + ", ".join(peer for peer, _ in found.most_common(MAX_PEERS))


def _replaces(other: WorkerEntry, worker: WorkerEntry, reported_ms: int) -> bool:
    """It began after the last report, under the same name or with the same work: a worker that was given no
    name has another one after each start."""
    is_same = other.service == worker.service or (other.runs, other.queues) == (worker.runs, worker.queues)
    try:
        return is_same and datetime.fromisoformat(other.started).timestamp() * 1000 > reported_ms
    except (ValueError, OverflowError):  # any program may write to the registry
        return False


def _sum(family: Family | None) -> float | None:
    if family is None:
        return None
    values = [value for _, value in family.samples if isinstance(value, int | float)]
    return float(sum(values)) if values else None


def _histogram(family: Family | None) -> HistogramValue | None:
    if family is None or not family.samples:
        return None
    value = family.samples[0][1]
    return value if isinstance(value, HistogramValue) else None
