"""Brings alerts to destinations: a thread for each, grouping, a rate, retries.

What is to be sent follows from state, not from events: each alert knows what each destination has accepted
last (`Alert.sent`), and what differs from its state is sent. So a notification survives a restart, a
take-over and a destination that was down, and an alert that was accepted is not sent again. A crash just
between an answer and the note of it repeats that notification: PagerDuty and Alertmanager merge it by key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ..alert_rules.rule import SEVERITIES
from ..alert_rules.tables import AlertConfig, Destination
from ..auth.rules import matches
from ..errors import OpenQError
from ..limits import parse_rate
from ..server.context import ServerContext
from ..webhooks.requests import TokenBucket
from .messages import ALERTMANAGER_LIFE_MS
from .model import FIRING, RESOLVED, Alert, Sent, Silence
from .senders import NotificationSender, NotSent, open_sender

log = logging.getLogger("openq.alerts")

MAX_GROUP = 100  # alerts in one notification
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 300.0
GIVE_UP_MS = 3_600_000  # that a resolved alert is kept for a destination that does not accept it
STOP_S = 3.0


def _now_ms() -> int:
    """The wall clock: of rates and of the times in notifications."""
    return int(time.time() * 1000)


class DestinationChannel:
    """One destination: what it is to be sent, and the thread that sends it."""

    def __init__(
        self, destination: Destination, sender: NotificationSender, report: Callable[[], None]
    ) -> None:
        self.destination = destination
        self.sender = sender
        self._report = report  # wakes the service: there are results
        self._lock = threading.Condition()
        self._waiting: dict[str, Alert] = {}
        self._sending: dict[str, str] = {}  # id -> state
        self._results: list[tuple[str, str, int]] = []  # id, state, time
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._bucket = TokenBucket(parse_rate(destination.rate))
        self.accepted = 0
        self.failed = 0
        self.error: str | None = None
        self.last_ms = 0

    def wants(self, alert: Alert) -> bool:
        destination = self.destination
        if SEVERITIES.index(alert.severity) < SEVERITIES.index(destination.severity):
            return False
        return not destination.rules or any(matches(each, alert.rule) for each in destination.rules)

    def offer(self, alerts: Sequence[Alert]) -> None:
        """All that is to be sent now: what is not in it any more is dropped."""
        with self._lock:
            # What was just accepted is not noted yet.
            accepted = {(key, state) for key, state, _ in self._results}
            self._waiting = {
                alert.id: alert
                for alert in alerts
                if self._sending.get(alert.id) != alert.state and (alert.id, alert.state) not in accepted
            }
            if self._waiting and self._thread is None and not self._is_stopping:
                name = f"openq-alert-{self.destination.name}"[:40]
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._lock.notify()

    def take_results(self) -> list[tuple[str, str, int]]:
        with self._lock:
            found, self._results = self._results, []
            return found

    def stop(self) -> None:
        with self._lock:
            self._is_stopping = True
            self._lock.notify()
        self.sender.close()

    def join(self, timeout_s: float) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = 0.0
        while group := self._next(pause_s or self.destination.group_wait_s):
            error = self._attempt(group)
            now_ms = _now_ms()
            with self._lock:
                self._sending.clear()
                if error is None:
                    self.accepted += 1
                    self._results += [(alert.id, alert.state, now_ms) for alert in group]
                    self.last_ms = now_ms
                    pause_s = 0.0
                else:
                    self.failed += 1
                    for alert in group:
                        self._waiting.setdefault(alert.id, alert)
                    pause_s = max(error.pause_s, min(MAX_PAUSE_S, (pause_s or FIRST_PAUSE_S / 2) * 2))
            self._note(None if error is None else str(error), pause_s)
            self._report()

    def _attempt(self, group: Sequence[Alert]) -> NotSent | None:
        try:
            self.sender.send(group, _now_ms())
        except NotSent as error:
            return error
        except Exception:
            log.exception("alerts: destination %s", self.destination.name)
            return NotSent("internal error; see the log of the server")
        return None

    def _next(self, wait_s: float) -> list[Alert]:
        """Waits for alerts, for others that belong to them, and for the rate. Empty: stop."""
        with self._lock:
            while True:
                while not self._waiting and not self._is_stopping:
                    self._lock.wait()
                self._sleep(wait_s)
                while not self._is_stopping and self._bucket.available(_now_ms()) <= 0:
                    self._sleep(max(0.01, (self._bucket.next_ms() - _now_ms()) / 1000))
                if self._is_stopping:
                    return []
                if self._waiting:  # not resolved or silenced meanwhile
                    break
            self._bucket.take(_now_ms())
            group = [self._waiting.pop(key) for key in list(self._waiting)[:MAX_GROUP]]
            self._sending = {alert.id: alert.state for alert in group}
            return group

    def _sleep(self, seconds: float) -> None:
        """Lock held. Notifications of more alerts do not end it."""
        end = time.monotonic() + seconds
        while not self._is_stopping and (left := end - time.monotonic()) > 0:
            self._lock.wait(left)

    def _note(self, error: str | None, pause_s: float) -> None:
        if error is not None and error != self.error:
            log.warning(
                "alerts: destination %s did not accept a notification: %s; tried again in %.0f s",
                *(self.destination.name, error, pause_s),
            )
        elif error is None and self.error is not None:
            log.info("alerts: destination %s accepts notifications again", self.destination.name)
        self.error = error


class Notifier:
    """All destinations. Its calls come from the thread of the service."""

    def __init__(self, context: ServerContext, server: str, wake: Callable[[], None]) -> None:
        self._context = context
        self._server = server
        self._wake = wake
        self.channels: dict[str, DestinationChannel] = {}
        self._repeat_ms = 0

    def prepare(self, config: AlertConfig) -> None:
        """Raises InvalidSetting for a destination that cannot work; changes nothing."""
        for destination in config.destinations:
            open_sender(destination, self._context, self._server).close()

    def configure(self, config: AlertConfig) -> None:
        self._repeat_ms = int(config.repeat_s * 1000)
        wanted = {each.name: each for each in config.destinations}
        for name, channel in list(self.channels.items()):
            if wanted.get(name) != channel.destination:
                channel.stop()
                del self.channels[name]
        for name, destination in wanted.items():
            if name not in self.channels:
                sender = open_sender(destination, self._context, self._server)
                self.channels[name] = DestinationChannel(destination, sender, self._wake)

    def offer(self, alerts: Iterable[Alert], silences: Sequence[Silence], now_ms: int) -> None:
        """Offer to each destination what it does not know."""
        known = list(alerts)
        for name, channel in self.channels.items():
            needed = [
                msgspec.structs.replace(alert, figures=dict(alert.figures))  # the thread has its own copy
                for alert in known
                if channel.wants(alert) and self._needs(alert, channel, name, silences, now_ms)
            ]
            channel.offer(needed)

    def _needs(
        self, alert: Alert, channel: DestinationChannel, name: str, silences: Sequence[Silence], now_ms: int
    ) -> bool:
        sent = alert.sent.get(name)
        if alert.state == RESOLVED:
            # Silenced or not: a destination that was notified of the start is notified of the end.
            return sent is not None and sent.state == FIRING and channel.destination.resolved
        if alert.state != FIRING or any(each.covers(alert, now_ms) for each in silences):
            return False
        if sent is None or sent.state != FIRING:
            return True
        every_ms = (
            ALERTMANAGER_LIFE_MS // 3 if channel.destination.kind == "alertmanager" else self._repeat_ms
        )
        return every_ms > 0 and now_ms - sent.at_ms >= every_ms

    def apply_results(self, alerts: dict[str, Alert]) -> bool:
        """Note what destinations have accepted. Whether anything changed."""
        changed = False
        for name, channel in self.channels.items():
            for key, state, at_ms in channel.take_results():
                alert = alerts.get(key)
                if alert is not None:
                    alert.sent[name] = Sent(state=state, at_ms=at_ms)
                    changed = True
        return changed

    def is_done(self, alert: Alert, now_ms: int) -> bool:
        """Whether a resolved alert can be forgotten."""
        if alert.state != RESOLVED:
            return False
        if now_ms - alert.resolved_ms > GIVE_UP_MS:
            return True
        open_for = [
            name
            for name, channel in self.channels.items()
            if channel.destination.resolved and (sent := alert.sent.get(name)) and sent.state == FIRING
        ]
        return not open_for

    @property
    def failed(self) -> int:
        return sum(channel.failed for channel in self.channels.values())

    def test(self, alert: Alert, only: str | None) -> list[tuple[Destination, str | None]]:
        """Send a sample to the destinations, at once and beside what waits. Blocking."""
        found: list[tuple[Destination, str | None]] = []
        for name, channel in list(self.channels.items()):
            if only not in (None, name):
                continue
            try:
                channel.sender.send([alert], _now_ms())
            except NotSent as error:
                found.append((channel.destination, str(error)))
            except OpenQError as error:
                found.append((channel.destination, str(error)))
            else:
                found.append((channel.destination, None))
        return found

    def stop(self) -> None:
        for channel in self.channels.values():
            channel.stop()
        end = time.monotonic() + STOP_S
        for channel in self.channels.values():
            channel.join(max(0.0, end - time.monotonic()))
