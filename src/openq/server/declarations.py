"""Queues, schedules and webhooks of the configuration file: declared at the start and at every reload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..broker.interface import Broker
from ..broker.schedules import Schedule
from ..config import Config
from ..errors import OpenQError, ScheduleNotFound
from ..model import QueueSettings
from ..settings import merge_settings

Undo = Callable[[], object]
# Declares a webhook and returns what takes it back; None if nothing has changed.
DeclareWebhook = Callable[[str, Mapping[str, Any]], Undo | None]


class Declarations:
    """Declares all or nothing. Blocking on a remote store: call it in a thread, or before the server runs."""

    def __init__(self, broker: Broker, declare_webhook: DeclareWebhook) -> None:
        self._broker = broker
        self._declare_webhook = declare_webhook

    def declare(self, config: Config) -> list[tuple[str, str]]:
        """Returns what has changed: (action, name). If one fails, those before it are taken back."""
        changed: list[tuple[str, str]] = []
        undo: list[Undo] = []
        try:
            for name, named in config.queues.items():
                self._queue(name, named, changed, undo)
            for name, fields in config.schedules.items():
                self._schedule(Schedule(name, **fields), changed, undo)
            for name, fields in config.webhooks.items():
                back = self._declare_webhook(name, fields)
                if back is not None:
                    changed.append(("put_webhook", name))
                    undo.append(back)
            self._broker.sync()
        except BaseException:
            for back in reversed(undo):
                back()
            self._broker.sync()
            raise
        return changed

    def _queue(
        self, name: str, named: Mapping[str, Any], changed: list[tuple[str, str]], undo: list[Undo]
    ) -> None:
        broker = self._broker
        stored: QueueSettings | None = broker.settings(name) if name in broker.queues() else None
        settings = merge_settings(stored, named)
        if settings == stored:
            return
        broker.declare(name, settings, change=stored is not None)
        if stored is None:
            changed.append(("create_queue", name))
            undo.append(lambda: broker.delete(name))
        else:
            before = stored
            changed.append(("change_queue", name))
            undo.append(lambda: broker.declare(name, before, change=True))

    def _schedule(self, schedule: Schedule, changed: list[tuple[str, str]], undo: list[Undo]) -> None:
        schedules, name = self._broker.schedules, schedule.name
        try:
            before: Schedule | None = schedules.get(name)
        except ScheduleNotFound:
            before = None
        if schedules.put(schedule) == before:
            return
        changed.append(("put_schedule", name))
        undo.append(lambda: schedules.delete(name) if before is None else schedules.put(before))


def reason_of(error: BaseException) -> str:
    """Why a reload failed, for the log and the answer."""
    if isinstance(error, OpenQError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason
    return "internal error; see the log of the server"
