"""Schedules: messages that the broker publishes by itself, by cron expression or at an interval."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..broker.schedules import Schedule, next_runs
from ..cron import find_zone
from . import checks
from .parts import QueuePart
from .publishing import make_draft
from .times import from_ms, moment_ms, to_ms

if TYPE_CHECKING:
    from collections.abc import Mapping


Moments = list[datetime]


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it is stored. Times are in its time zone, spans in seconds."""

    name: str
    queue: str
    cron: str | None
    every: float | None
    timezone: str
    misfire: str
    jitter: float
    start: datetime | None
    end: datetime | None
    paused: bool
    next_run: datetime | None  # None: it is paused, or no run is left
    last_run: datetime | None
    runs: int
    missed: int  # runs that were dropped, by the misfire policy or because the queue did not exist
    error: str | None  # of the last run, if it failed


class QueueSchedules(QueuePart):
    """The schedules that publish to a queue: `queue.schedules`.

        orders.schedules.add("report", {"kind": "daily"}, cron="0 7 * * mon-fri", timezone="Europe/Berlin")
        orders.schedules.add("tidy", "tidy", every=300)

    The broker stores and runs them: each due time is published once, whichever processes run.
    """

    __slots__ = ()

    def add(
        self,
        name: str,
        body: Any = "",
        *,
        cron: str | None = None,
        every: float | None = None,
        timezone: str = "UTC",
        misfire: str = "once",
        jitter: float = 0,
        start: datetime | float | str | None = None,
        end: datetime | float | str | None = None,
        priority: int = 0,
        group: str | None = None,
        message_type: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        unique_key: str | None = None,
        publisher: str | None = None,
    ) -> ScheduleInfo:
        """Declare a schedule. An equal one is not changed; a different one of this name is replaced.

        `cron` is an expression of five fields (minute, hour, day, month, weekday) in the wall time of
        `timezone`; `every` is an interval in seconds. `misfire` is for runs that are more than a minute late:
        "skip" drops them, "once" publishes one message for all, "all" publishes each. `jitter` publishes each
        run up to so many seconds later. No run is before `start` or after `end`. The other options are those
        of `publish`; with a `unique_key` a run adds nothing while the last message is in the queue.
        """
        draft = make_draft(
            self.core.codec,
            body,
            priority=priority,
            group=group,
            message_type=message_type,
            attributes=attributes,
            ttl=ttl,
            unique_key=unique_key,
            publisher=publisher,
            delay=delay,
        )
        stored = self.core.broker.schedules.put(
            Schedule(
                checks.text(name, "name"),
                self.core.name,
                draft.body,
                draft.encoding,
                cron=checks.text_or_none(cron, "cron"),
                every_ms=None if every is None else to_ms(every, "every"),
                timezone=checks.text(timezone, "timezone"),
                misfire=checks.text(misfire, "misfire"),
                jitter_ms=to_ms(jitter, "jitter"),
                start_ms=None if start is None else moment_ms(start, "start"),
                end_ms=None if end is None else moment_ms(end, "end"),
                priority=draft.priority,
                group=draft.group,
                type=draft.type,
                attributes=draft.attributes or {},
                delay_ms=draft.delay_ms,
                ttl_ms=draft.ttl_ms,
                unique=draft.unique,
                publisher=draft.publisher,
            )
        )
        self.core.sync()
        return _info(stored)

    def list(self) -> list[ScheduleInfo]:
        """The schedules that publish to this queue."""
        return [_info(each) for each in self.core.broker.schedules.list() if each.queue == self.core.name]

    def get(self, name: str) -> ScheduleInfo:
        """Raises ScheduleNotFound."""
        return _info(self._find(name))

    def next_runs(self, name: str, count: int = 5) -> Moments:
        """The next due times; none while the schedule is paused."""
        schedule = self._find(name)
        runs = next_runs(schedule, checks.integer(count, "count", 0))
        return [_moment(due_ms, schedule) for due_ms in runs]

    def remove(self, name: str) -> None:
        self.core.broker.schedules.delete(checks.text(name, "name"))
        self.core.sync()

    def run(self, name: str) -> str:
        """Publish its message now, out of turn. Returns the id of the message."""
        message_id = self.core.broker.schedules.run(checks.text(name, "name"))
        self.core.sync()
        return message_id

    def pause(self, name: str) -> ScheduleInfo:
        """No runs until `resume`. Declaring the schedule again does not resume it."""
        paused = self.core.broker.schedules.pause(checks.text(name, "name"))
        self.core.sync()
        return _info(paused)

    def resume(self, name: str) -> ScheduleInfo:
        """Run again, from the next due time on. Due times of the pause are not made up for."""
        resumed = self.core.broker.schedules.resume(checks.text(name, "name"))
        self.core.sync()
        return _info(resumed)

    def _find(self, name: str) -> Schedule:
        return self.core.broker.schedules.get(checks.text(name, "name"))


def _moment(ms: int, schedule: Schedule) -> datetime:
    return from_ms(ms).astimezone(find_zone(schedule.timezone))


def _moment_or_none(ms: int | None, schedule: Schedule) -> datetime | None:
    return None if ms is None else _moment(ms, schedule)


def _info(schedule: Schedule) -> ScheduleInfo:
    every_ms = schedule.every_ms
    return ScheduleInfo(
        name=schedule.name,
        queue=schedule.queue,
        cron=schedule.cron,
        every=None if every_ms is None else every_ms / 1000,
        timezone=schedule.timezone,
        misfire=schedule.misfire,
        jitter=schedule.jitter_ms / 1000,
        start=_moment_or_none(schedule.start_ms, schedule),
        end=_moment_or_none(schedule.end_ms, schedule),
        paused=schedule.paused,
        next_run=_moment_or_none(schedule.next_ms, schedule),
        last_run=_moment_or_none(schedule.last_ms, schedule),
        runs=schedule.runs,
        missed=schedule.missed,
        error=schedule.error,
    )
