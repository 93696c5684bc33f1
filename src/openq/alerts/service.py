"""The thread that evaluates the alert rules of a server, and what REST and the metrics ask of it.

There are two sets of alerts. Those of the store (queues, cursors, schedules, replicas) are evaluated by one
server of those that share the store: the owner of a key with a TTL; another one takes over when it ends.
Those of a server (disk, certificate, logins) each server has for itself. Both are documents in key-values,
written when a state changes, with a version: a server that lost its ownership without noticing changes
nothing.

While the store is unreachable only the rules of the server are evaluated, in memory. The last owner tells at
once that the store is gone; the others wait a minute, because the owner may be gone with it.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..alert_rules.rule import (
    SAMPLE_NAMES,
    AlertRule,
    CompiledRule,
    RuleNotFound,
    changed,
    render,
    render_command,
    sample_figures,
)
from ..alert_rules.tables import AlertConfig, read_rule, rules_of
from ..auth.failed_logins import RefusedLogin
from ..broker.events import ALERT
from ..errors import Closed, InvalidSetting, OpenQError
from ..histograms import Histogram
from ..logs import emit
from ..metrics import Family
from ..names import split_name
from ..server.context import ServerContext
from ..webhooks.owners import Ownership
from .evaluator import MAX_OF_RULE, Evaluator, Finding
from .history import SubjectSource, Tracks
from .model import FIRING, PENDING, RESOLVED, Alert, HistoryEntry, Silence, alert_id
from .notifier import Notifier
from .queue_rules import QueueRules
from .sources import Sources
from .store import BUCKET, SERVER, SERVER_TTL_MS, STATE, AlertStore, StateDocument, StateLost

log = logging.getLogger("openq.alerts")

OWNED = "alerts"
CLAIM_S = 2.0
ORPHAN_MS = 60_000  # before a server that is not the owner tells that the store is gone
STORE_FAILED = "store-failed"
STOP_S = 5.0
KEPT_MS = 3_600_000  # how long resolved alerts are kept, for flap damping
MAX_KEPT = 500
MAX_CPU_SHARE = 0.05  # of a core, for evaluations
MAX_RULES = 200
MAX_SILENCES = 200
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
_NOTHING = Finding("", "", "", {})


class Book:
    """One set of alerts and the document that it is stored in."""

    def __init__(self, key: str, server: str, ttl_ms: int | None) -> None:
        self.key = key
        self.ttl_ms = ttl_ms
        self.evaluator = Evaluator(server)
        self.version = 0
        self.is_loaded = False
        self.is_changed = False

    @property
    def alerts(self) -> dict[str, Alert]:
        return self.evaluator.alerts


def pause_s(interval_s: float, spent_s: float) -> float:
    """The time until the next evaluation. With very many queues it is longer than the interval: the thread
    shares a core with every request."""
    return max(interval_s, spent_s / MAX_CPU_SHARE)


class AlertService:
    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._broker = context.broker
        self.store = AlertStore(context.broker.kv)
        self.has_peers = context.broker.cluster is not None
        self.server = ""
        self._config = AlertConfig()
        self._compiled: list[CompiledRule] = []
        self._stored_rules: dict[str, dict[str, Any]] | None = None
        self._silences: list[Silence] = []
        self._wake = threading.Event()
        self._is_stopping = False
        self._is_changed = True  # rules have to be compiled
        self._thread: threading.Thread | None = None
        self._ownership: Ownership | None = None
        self._is_owner = not self.has_peers
        self._claimed_s = -1e9
        self._owner = ""
        self._left_to_owner: set[str] = set()  # alerts that the last owner tells, unless it is gone too
        self._unsaved: list[HistoryEntry] = []
        self._trouble = ""
        self._sources = Sources(context, "")
        self._notifier = Notifier(context, "", self._wake.set)
        self._store_book = Book(STATE, "", None)
        self._server_book = Book(SERVER, "", SERVER_TTL_MS)
        self._times = Histogram(0.000_001, 7, 24)
        self.errors = 0
        self.evaluated_ms = 0
        self._counts: dict[tuple[str, str], int] = {}
        self._queue_rules = QueueRules()

    # -- life -----------------------------------------------------------------------------------

    def prepare(self, config: AlertConfig) -> None:
        """Raises InvalidSetting for a configuration that cannot work; changes nothing."""
        for rule in rules_of(config).values():
            CompiledRule(rule)
        Notifier(self.context, "", lambda: None).prepare(config)

    def start(self, config: AlertConfig, port: int) -> None:
        """On the loop, once the server listens."""
        name = f"{socket.gethostname()}:{port}"
        self.server = name
        label = f"{name}/{os.getpid()}/{os.urandom(4).hex()}"
        self._sources = Sources(self.context, name)
        self._notifier = Notifier(self.context, name, self._wake.set)
        self._sources.notifications_failed = lambda: self._notifier.failed
        if self.has_peers:
            self._ownership = Ownership(self._broker.kv, label, BUCKET)
        self._server_book = Book(f"{SERVER}{name}", name if self.has_peers else "", SERVER_TTL_MS)
        self.configure(config)
        self._thread = threading.Thread(target=self._run, name="openq-alerts", daemon=True)
        self._thread.start()

    def configure(self, config: AlertConfig) -> None:
        """Take over a configuration that `prepare` has accepted."""
        self._config = config
        self._is_changed = True
        self._sources.forget_certificate()
        self._wake.set()

    def changed(self) -> None:
        """A rule or a silence was changed by this server."""
        self._is_changed = True
        self._wake.set()

    def login_refused(self, refused: RefusedLogin) -> None:
        if self._thread is not None:
            self._sources.peers.append(refused)

    def stop(self) -> None:
        """Blocking, in a thread, before the broker is closed."""
        self._is_stopping = True
        self._wake.set()
        thread = self._thread
        if thread is None:
            return
        self._notifier.stop()
        thread.join(STOP_S)
        if thread.is_alive() or not self._sources.health.ok:
            return
        try:
            self._take_results()
            self._save()
            if self._ownership is not None:
                self._ownership.release(OWNED)
        except OpenQError:
            pass  # the key of the owner ends by itself

    def _run(self) -> None:
        self._begin()
        next_s = time.monotonic() + self._config.interval_s
        while not self._is_stopping:
            self._wake.wait(max(0.01, next_s - time.monotonic()))
            self._wake.clear()
            is_due = time.monotonic() >= next_s
            began_s = time.thread_time()
            try:
                if self._must_stop():
                    return
                if is_due and self._config.enabled:
                    started_s = time.perf_counter()
                    self.evaluate()
                    self._times.observe(int((time.perf_counter() - started_s) * 1e6))
                else:
                    self._take_results()
                    self._save()
            except Closed:
                return
            except OpenQError as error:
                self._note(str(error))
            except Exception:
                self.errors += 1
                log.exception("alerts: the evaluation failed")
            if is_due:
                next_s = time.monotonic() + pause_s(self._config.interval_s, time.thread_time() - began_s)

    def _begin(self) -> None:
        """What is counted from now on is news to the rules."""
        try:
            self._configure_changed()
            now_s = self.context.now_ms() / 1000
            self._sources.read_server(now_s)
            if self._config.enabled and self._sources.health.ok:
                self._sources.read_store(now_s)
        except OpenQError as error:
            self._note(str(error))
        except Exception:
            self.errors += 1
            log.exception("alerts: the first reading failed")

    def _must_stop(self) -> bool:
        return self._is_stopping

    def _note(self, trouble: str) -> None:
        """Said once for each kind of trouble."""
        if trouble:
            self.errors += 1
        if trouble and trouble != self._trouble:
            log.warning("alerts: %s", trouble)
        self._trouble = trouble

    # -- one round ------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Read what rules need, evaluate them, offer what is new to the destinations, store the states."""
        now_ms = self.context.now_ms()
        now_s = now_ms / 1000
        sources = self._sources
        self._configure_changed()
        sources.read_server(now_s)
        health = sources.health
        is_reachable = health.ok or health.disk_full or not self._broker.storage.waits
        transitions: list[Alert] = []
        trouble = ""
        if is_reachable:
            try:
                self._read_shared(now_ms)
                sources.read_store(now_s)
                transitions += self._evaluate_store(now_s, now_ms)
            except Closed:
                raise
            except OpenQError as error:  # the store became unreachable just now
                trouble = str(error)
        transitions += self._evaluate_server(now_s, now_ms)
        self.evaluated_ms = now_ms
        self._report(transitions, now_ms)
        self._take_results()
        self._forget(now_ms)
        self._notifier.offer(self._offered(now_ms), self._silences, now_ms)
        if is_reachable and not trouble:
            self._save()
        self._note(trouble)

    def _configure_changed(self) -> None:
        if not self._is_changed:
            return
        self._is_changed = False
        self._notifier.configure(self._config)
        self._compile()

    def _merged(self, stored: Mapping[str, Mapping[str, Any]]) -> dict[str, AlertRule]:
        """Built-in rules, changed by the configuration, changed over REST."""
        rules = rules_of(self._config)
        for name, fields in stored.items():
            try:
                base = rules.get(name)
                rules[name] = changed(base, name, read_rule(name, fields, f"rule {name}", base))
            except InvalidSetting as error:
                log.warning("alerts: %s", error)  # of another version
        return rules

    def _compile(self) -> None:
        rules = self._merged(self._stored_rules or {})
        compiled = [CompiledRule(rule) for rule in rules.values() if rule.enabled]
        windows: dict[str, float] = {}
        for each in compiled:
            for kind, seconds in each.ranges_s.items():
                windows[kind] = max(seconds, windows.get(kind, 0.0))
        self._sources.want(frozenset().union(*(each.signals for each in compiled)), windows)
        for track in self._sources.queues.tracks.values():
            track.settled, track.due_s = False, -math.inf
        self._compiled = compiled

    def _read_shared(self, now_ms: int) -> None:
        """What servers share: rules, silences, who evaluates, and the states of an earlier process."""
        stored = self.store.rules()
        if stored != (self._stored_rules or {}):
            self._stored_rules = stored
            self._compile()
        self._stored_rules = stored
        self._silences = self.store.silences()
        if not self._server_book.is_loaded:
            self._load(self._server_book, now_ms)
        if self._ownership is not None:
            self._claim(now_ms)
        if self._is_owner and not self._store_book.is_loaded:
            self._load(self._store_book, now_ms)

    def _claim(self, now_ms: int) -> None:
        assert self._ownership is not None
        if time.monotonic() - self._claimed_s < CLAIM_S:
            return
        was_owner = self._is_owner
        self._is_owner = bool(self._ownership.claim([OWNED], now_ms))
        self._claimed_s = time.monotonic()
        self._owner = self.server if self._is_owner else self._ownership.owners([OWNED]).get(OWNED, "")
        if self._is_owner != was_owner:
            log.info("alerts: this server %s", "evaluates" if self._is_owner else "no longer evaluates")
            self._store_book.is_loaded = False
            if not self._is_owner:
                self._store_book.alerts.clear()

    def _load(self, book: Book, now_ms: int) -> None:
        document, book.version = self.store.load(book.key)
        windows = {each.name: max(each.ranges_s.values(), default=0.0) for each in self._compiled}
        # What is in memory began while the store was unreachable.
        book.alerts.update((alert.id, alert) for alert in document.alerts if alert.id not in book.alerts)
        for alert in book.alerts.values():
            if alert.state == FIRING:
                alert.hold_ms = now_ms + int(windows.get(alert.rule, 0.0) * 1000)
        self._sources.replicas_seen = max(self._sources.replicas_seen, document.replicas_seen)
        book.is_loaded = True
        book.is_changed = False

    def _evaluate_store(self, now_s: float, now_ms: int) -> list[Alert]:
        if not self._is_owner or not self._store_book.is_loaded:
            return []
        evaluator = self._store_book.evaluator
        rules = [each for each in self._compiled if not each.is_of_server]
        changed_alerts = evaluator.retain({each.name: each.rule for each in rules}, now_ms)
        changed_alerts += self._evaluate_queues(
            [each for each in rules if each.kind == "queue"], now_s, now_ms
        )
        for rule in rules:
            if rule.kind == "queue":
                continue
            tracks = self._sources.others.get(rule.kind)
            found = self._single(rule, now_s) if tracks is None else self._subjects(rule, tracks, now_s)
            changed_alerts += evaluator.update(rule.rule, rule.kind, found, now_ms)
        return changed_alerts

    def _evaluate_queues(self, rules: Sequence[CompiledRule], now_s: float, now_ms: int) -> list[Alert]:
        tracks, singles = self._sources.queues, self._sources.singles
        holding = self._queue_rules.holding(rules, tracks, singles, now_s)
        source = SubjectSource(now_s, singles, tracks)
        found: list[Alert] = []
        for rule in rules:
            findings = self._findings(rule, holding.get(rule.name, ()), source, tracks)
            found += self._store_book.evaluator.update(rule.rule, "queue", findings, now_ms)
        return found

    def _subjects(self, rule: CompiledRule, tracks: Tracks, now_s: float) -> dict[str, Finding]:
        source = SubjectSource(now_s, self._sources.singles, tracks)
        holding: list[str] = []
        for name, track in tracks.tracks.items():
            source.track = track
            if rule.holds(source):
                holding.append(name)
        return self._findings(rule, holding, source, tracks)

    def _findings(
        self, rule: CompiledRule, holding: Sequence[str], source: SubjectSource, tracks: Tracks
    ) -> dict[str, Finding]:
        """The texts are made for the alerts that are there, and for as many new ones as there may be."""
        known = {alert.subject for alert in self._store_book.alerts.values() if alert.rule == rule.name}
        found: dict[str, Finding] = {}
        for name in sorted(holding, key=lambda each: each not in known):
            if len(found) >= MAX_OF_RULE and name not in known:
                found[name] = _NOTHING
                continue
            source.track = tracks.tracks[name]
            found[name] = self._finding(rule, name, source)
        return found

    def _single(self, rule: CompiledRule, now_s: float) -> dict[str, Finding]:
        source = SubjectSource(now_s, self._sources.singles)
        return {"": self._finding(rule, "", source)} if rule.holds(source) else {}

    def _finding(self, rule: CompiledRule, subject: str, source: SubjectSource) -> Finding:
        names = self._sources.names_of(rule.kind, subject)
        figures = rule.measure(source)
        shown = {**rule.rule.limits, **figures}
        return Finding(
            render(rule.rule.summary, names, shown),
            render(rule.rule.action, names, shown),
            render_command(rule.rule.command, names),
            figures,
        )

    def _evaluate_server(self, now_s: float, now_ms: int) -> list[Alert]:
        evaluator = self._server_book.evaluator
        rules = [each for each in self._compiled if each.is_of_server]
        found = evaluator.retain({each.name: each.rule for each in rules}, now_ms)
        for rule in rules:
            found += evaluator.update(rule.rule, "server", self._single(rule, now_s), now_ms)
        return found

    # -- what follows -----------------------------------------------------------------------------

    @property
    def _books(self) -> list[Book]:
        return [self._store_book, self._server_book] if self._is_owner else [self._server_book]

    def _own_alerts(self) -> dict[str, Alert]:
        return {key: alert for book in self._books for key, alert in list(book.alerts.items())}

    def _report(self, transitions: Iterable[Alert], now_ms: int) -> None:
        for alert in transitions:
            for book in self._books:
                book.is_changed |= alert.id in book.alerts or alert.state == PENDING
            if alert.state == PENDING:
                continue
            # Who owned the alerts when it fired decides: the store may have another owner when it is back.
            if alert.rule == STORE_FAILED and alert.state == FIRING:
                (self._left_to_owner.discard if self._is_owner else self._left_to_owner.add)(alert.id)
            queue = alert.queue
            level = _LEVELS[alert.severity] if alert.state == FIRING else logging.INFO
            emit(
                log,
                level,
                f"alert_{alert.state}",
                alert=alert.rule,
                severity=alert.severity,
                queue=split_name(queue)[1] if queue else None,
                summary=alert.summary,
                action=alert.action if alert.state == FIRING else None,
                command=alert.command if alert.state == FIRING else None,
                since_s=round((now_ms - alert.since_ms) / 1000, 3),
                id=alert.id,
            )
            self._counts[alert.rule, alert.state] = self._counts.get((alert.rule, alert.state), 0) + 1
            self._unsaved.append(
                HistoryEntry(
                    time_ms=now_ms,
                    id=alert.id,
                    rule=alert.rule,
                    severity=alert.severity,
                    state=alert.state,
                    subject=alert.subject,
                    kind=alert.kind,
                    server=alert.server,
                    since_ms=alert.since_ms,
                    summary=alert.summary,
                )
            )
        del self._unsaved[:-500]

    def _offered(self, now_ms: int) -> list[Alert]:
        return [
            alert
            for alert in self._own_alerts().values()
            if alert.id not in self._left_to_owner or now_ms - alert.fired_ms >= ORPHAN_MS
        ]

    def _take_results(self) -> None:
        if self._notifier.apply_results(self._own_alerts()):
            for book in self._books:
                book.is_changed = True

    def _forget(self, now_ms: int) -> None:
        """Resolved alerts that every destination knows of. For an hour they are kept for flap damping."""
        for book in self._books:
            for alert in list(book.alerts.values()):
                is_old = now_ms - alert.resolved_ms > KEPT_MS or len(book.alerts) > MAX_KEPT
                if is_old and self._notifier.is_done(alert, now_ms):
                    del book.alerts[alert.id]
                    self._left_to_owner.discard(alert.id)
                    book.is_changed = True

    def _save(self) -> None:
        """Raises OpenQError: it is tried again in the next round."""
        for book in self._books:
            if not book.is_changed or not book.is_loaded:
                continue
            document = StateDocument(
                alerts=list(book.alerts.values()),
                replicas_seen=self._sources.replicas_seen if book is self._store_book else 0,
                evaluated_ms=self.evaluated_ms,
                evaluator=self.server,
            )
            try:
                book.version = self.store.save(book.key, document, book.version, book.ttl_ms)
            except StateLost:
                if book is self._store_book and self.has_peers:
                    self._is_owner, self._claimed_s = False, -1e9
                    book.alerts.clear()
                book.is_loaded = False  # read again in the next round
                continue
            book.is_changed = False
        self._add_events()

    def _add_events(self) -> None:
        entries, self._unsaved = self._unsaved, []
        try:
            for entry in entries:
                queue = entry.subject if entry.kind == "queue" else ""
                text = f"{entry.rule} {entry.state}: {entry.summary}"
                detail = {"text": text, "alert": entry.rule, "state": entry.state, "severity": entry.severity}
                self._broker.events.add(ALERT, queue, {**detail, "alert_id": entry.id})
            self.store.add_history(entries)
        except OpenQError:
            self._unsaved = entries  # some events may come twice
            raise

    # -- what others ask for; from any thread -----------------------------------------------------

    def rules(self) -> dict[str, tuple[AlertRule, str]]:
        """The rules in force, each with its origin: builtin, config or api."""
        stored = self.store.rules() if self._sources.health.ok else self._stored_rules or {}
        origins = dict.fromkeys(self._config.rules, "config") | dict.fromkeys(stored, "api")
        return {name: (rule, origins.get(name, "builtin")) for name, rule in self._merged(stored).items()}

    def rule(self, name: str) -> tuple[AlertRule, str]:
        rules = self.rules()
        if name not in rules:
            raise RuleNotFound(name, rules)
        return rules[name]

    def put_rule(self, name: str, fields: Mapping[str, Any]) -> AlertRule:
        """Change a rule, or add one. `fields` are those of `tables.RULE_KEYS`. Raises InvalidSetting."""
        stored = self.store.rules()
        if name not in stored and len(stored) >= MAX_RULES:
            raise InvalidSetting(f"at most {MAX_RULES} rules can be changed or added")
        merged = {**stored.get(name, {}), **fields}
        merged = {key: value for key, value in merged.items() if value is not None}
        base = rules_of(self._config).get(name)
        rule = changed(base, name, read_rule(name, merged, f"rule {name}", base))
        self.store.put_rule(name, merged)
        self.changed()
        return rule

    def reset_rule(self, name: str) -> None:
        """As the configuration has it; an own rule is gone."""
        if not self.store.delete_rule(name) and name not in rules_of(self._config):
            raise RuleNotFound(name, self.rules())
        self.changed()

    def silence(self, silence: Silence) -> None:
        known = self.store.silences()
        if len(known) >= MAX_SILENCES:
            raise InvalidSetting(f"there are {MAX_SILENCES} silences already: remove some")
        self.store.put_silence(silence, self.context.now_ms())
        self.changed()

    def unsilence(self, silence_id: str) -> bool:
        found = self.store.delete_silence(silence_id)
        self.changed()
        return found

    def alerts(self) -> list[Alert]:
        """All that are pending, firing, or were resolved within the last hour; of all servers."""
        found: dict[str, Alert] = {}
        if self._sources.health.ok:
            documents = self.store.servers() if self.has_peers else []
            if not self._is_owner:
                documents.append(self.store.load(STATE)[0])
            found = {alert.id: alert for document in documents for alert in document.alerts}
        found.update(self._own_alerts())
        rank = {FIRING: 0, PENDING: 1, RESOLVED: 2}
        return sorted(found.values(), key=lambda each: (rank.get(each.state, 3), -each.since_ms, each.id))

    def silences(self) -> list[Silence]:
        return self.store.silences()

    def silenced_by(self, alert: Alert) -> Silence | None:
        now_ms = self.context.now_ms()
        return next((each for each in self._silences if each.covers(alert, now_ms)), None)

    @property
    def evaluator(self) -> str:
        """The server that evaluates the alerts of the store."""
        return self._owner if self.has_peers else self.server

    @property
    def notifier(self) -> Notifier:
        return self._notifier

    @property
    def config(self) -> AlertConfig:
        return self._config

    def sample(self, name: str) -> Alert:
        """An alert that is not one, to try the destinations."""
        rule, _ = self.rule(name)
        now_ms = self.context.now_ms()
        names = {**SAMPLE_NAMES, "server": self.server}
        shown = {**sample_figures(rule), **rule.limits}
        return Alert(
            id=alert_id(name, "test", "", self.server),
            rule=name,
            severity=rule.severity,
            kind="server",
            server=self.server,
            state=FIRING,
            since_ms=now_ms,
            fired_ms=now_ms,
            summary=f"this is a test: {render(rule.summary, names, shown)}",
            action=render(rule.action, names, shown),
            command=render_command(rule.command, names),
            runbook=rule.runbook,
            is_test=True,
        )

    # -- metrics ----------------------------------------------------------------------------------

    def families(self) -> list[Family]:
        if self._thread is None:
            return []
        alerts = list(self._own_alerts().values())
        severities = ("info", "warning", "critical")
        channels = sorted(self._notifier.channels.items())
        return [
            Family(
                "openq_alerts",
                "gauge",
                "Alerts that this server evaluates, by severity and state; one server of a store evaluates "
                "those of queues.",
                [
                    (
                        {"severity": severity, "state": state},
                        sum(each.severity == severity and each.state == state for each in alerts),
                    )
                    for severity in severities
                    for state in (PENDING, FIRING)
                ],
            ),
            Family(
                "openq_alert_changes_total",
                "counter",
                "Alerts that fired or were resolved, by rule.",
                [
                    ({"alert": rule, "state": state}, count)
                    for (rule, state), count in sorted(self._counts.items())
                ],
            ),
            Family(
                "openq_alert_notifications_total",
                "counter",
                "Notifications to destinations, by outcome: accepted or failed.",
                [
                    ({"destination": name, "outcome": outcome}, getattr(channel, outcome))
                    for name, channel in channels
                    for outcome in ("accepted", "failed")
                ],
            ),
            Family(
                "openq_alert_evaluation_seconds",
                "histogram",
                "Time to read what the alert rules need, and to evaluate all of them.",
                [({}, self._times.value())],
            ),
            Family(
                "openq_alert_errors_total",
                "counter",
                "Evaluations of alert rules that failed, or whose states could not be stored.",
                [({}, self.errors)],
            ),
            Family(
                "openq_alert_evaluator",
                "gauge",
                "Whether this server evaluates the alerts of the store: 1, otherwise 0.",
                [({}, int(self._is_owner))],
            ),
        ]
