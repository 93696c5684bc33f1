"""Schedules of the local broker: the ticker runs them when they are due.

The messages of a run and the record with the following due time are in one block of the journal, so a crash
leaves both or neither. A run that cannot be published now (disk or queue full) is tried again; the misfire
policy decides about runs that became too late meanwhile.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

from ..broker.schedules import (
    NEVER_MS,
    Plan,
    Schedule,
    ScheduleCounters,
    check_room,
    declared,
    make_draft,
    missed_text,
    missing_queue,
    paused,
    plan_runs,
    resumed,
    retry_ms,
    settle_runs,
    wake_ms,
)
from ..engine import schedules as state
from ..engine.queue import QueueState
from ..errors import (
    Closed,
    InvalidSetting,
    JournalFailed,
    OpenQError,
    QueueFull,
    ScheduleNotFound,
    public_text,
)
from ..metrics import Family
from .core import BrokerCore

log = logging.getLogger("openq.schedules")

Families = list[Family]
Refused = list[OpenQError]
Ids = list[str]
Results = list[str | None]


class LocalSchedules:
    """The `Schedules` role of the local broker."""

    def __init__(self, core: BrokerCore, *, runs: bool = True) -> None:
        self._core = core
        self._engine = core.engine
        self._runs = runs
        self._known = {name: Schedule.from_json(document) for name, document in core.engine.schedules.items()}
        self._counters = ScheduleCounters()
        self._errors: dict[str, str] = {}  # why a run is tried again; not recorded
        self._wakes: list[tuple[int, str]] = []  # heap; an entry that is not in `_wake_of` is ignored
        self._wake_of: dict[str, int] = {}
        self._running = threading.Lock()  # one thread runs schedules; another one that looks waits for it
        core.run_schedules = self._run_due
        if runs:
            for schedule in self._known.values():
                self._arm(schedule)

    # -- the role ---------------------------------------------------------------------------------

    def put(self, schedule: Schedule) -> Schedule:
        core = self._core
        core.ticker.start()
        with core.lock, core.guard:
            core.check_open()
            now_ms = core.now_ms()
            known = self._known.get(schedule.name)
            new = declared(known, schedule, now_ms)
            if new is not known:
                check_room(self._known, new)
                core.require_body_room(new.size())
                self._store(new, now_ms)
            return self._shown(new)

    def get(self, name: str) -> Schedule:
        with self._core.lock:
            return self._shown(self._find(name))

    def list(self) -> list[Schedule]:
        with self._core.lock:
            return [self._shown(self._known[name]) for name in sorted(self._known)]

    def delete(self, name: str) -> None:
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            self._find(name)
            state.delete(self._engine, name, core.now_ms())
            del self._known[name]
            self._wake_of.pop(name, None)
            self._errors.pop(name, None)
            self._counters.forget(name)

    def pause(self, name: str) -> Schedule:
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            return self._change(paused(self._find(name)), core.now_ms())

    def resume(self, name: str) -> Schedule:
        core = self._core
        core.ticker.start()
        with core.lock, core.guard:
            core.check_open()
            now_ms = core.now_ms()
            return self._change(resumed(self._find(name), now_ms), now_ms)

    def run(self, name: str) -> str:
        """Publish now, out of turn. Returns the id; raises why it cannot be published."""
        core = self._core
        ids: Ids = []

        def measure() -> int:
            return 2 * self._find(name).size()

        def put(now_ms: int) -> None:
            schedule = self._find(name)
            queue = core.queue(schedule.queue)
            draft = make_draft(schedule, now_ms, queue.settings.dedup_by_content)
            ids.append(self._engine.publish(queue, draft, now_ms)[0])
            self._advance(schedule, {"last_ms": now_ms, "runs": schedule.runs + 1, "error": None}, now_ms)
            self._counters.add(name, 1, 0)

        core.atomically(measure, put)
        return ids[0]

    def restore(self, schedule: Schedule) -> None:
        """Store a schedule with its state, unless one of this name exists: for migrations."""
        core = self._core
        with core.lock, core.guard:
            core.check_open()
            if schedule.name not in self._known:
                core.require_body_room(schedule.size())
                self._store(schedule, core.now_ms())

    def families(self) -> Families:
        return self._counters.families(list(self._known.values()))

    # -- state; the lock is held ------------------------------------------------------------------

    def _find(self, name: str) -> Schedule:
        schedule = self._known.get(name)
        if schedule is None:
            raise ScheduleNotFound(name)
        return schedule

    def _shown(self, schedule: Schedule) -> Schedule:
        error = self._errors.get(schedule.name)
        return schedule if error is None else replace(schedule, error=error)

    def _store(self, schedule: Schedule, now_ms: int) -> None:
        state.put(self._engine, schedule.name, schedule.to_json(), now_ms)
        self._know(schedule)

    def _change(self, schedule: Schedule, now_ms: int) -> Schedule:
        if schedule is not self._known[schedule.name]:
            changes = {name: getattr(schedule, name) for name in ("paused", "next_ms", "error")}
            self._advance(schedule, changes, now_ms)
        return self._shown(self._known[schedule.name])

    def _advance(self, schedule: Schedule, changes: dict[str, Any], now_ms: int) -> None:
        state.change(self._engine, schedule.name, changes, now_ms)
        self._know(replace(schedule, **changes))

    def _know(self, schedule: Schedule) -> None:
        self._known[schedule.name] = schedule
        self._errors.pop(schedule.name, None)
        self._arm(schedule)

    def _arm(self, schedule: Schedule, at_ms: int | None = None) -> None:
        at_ms = wake_ms(schedule) if at_ms is None else at_ms
        if not self._runs or self._wake_of.get(schedule.name) == at_ms:
            return
        if at_ms == NEVER_MS:
            self._wake_of.pop(schedule.name, None)
            return
        self._wake_of[schedule.name] = at_ms
        heappush(self._wakes, (at_ms, schedule.name))
        core = self._core
        core.schedules_ms = min(core.schedules_ms, at_ms)
        if at_ms < core.ticker.at_ms:
            core.ticker.wake()

    # -- running ----------------------------------------------------------------------------------

    def _run_due(self) -> None:
        core = self._core
        with self._running:
            while (schedule := self._take_due()) is not None:
                try:
                    self._run(schedule)
                except (Closed, JournalFailed):
                    break  # nothing can be recorded any more: a restart runs what is due
                except OpenQError as error:
                    self._retry(schedule, error)
            # Not before: another thread that handles deadlines must wait until this one is done.
            with core.lock:
                core.schedules_ms = self._wakes[0][0] if self._wakes else NEVER_MS

    def _take_due(self) -> Schedule | None:
        """The next schedule that is due, taken from the heap."""
        core = self._core
        with core.lock:
            now_ms = core.now_ms()
            wakes = self._wakes
            while wakes and wakes[0][0] <= now_ms:
                at_ms, name = heappop(wakes)
                if self._wake_of.get(name) == at_ms and not core.is_closed:
                    del self._wake_of[name]
                    return self._known[name]
        return None

    def _run(self, schedule: Schedule) -> None:
        # Computed without the lock: the due times of a long outage take a while.
        plan = plan_runs(schedule, self._core.now_ms())
        if plan is None:  # tried again before it was due
            with self._core.lock:
                if self._known.get(schedule.name) is schedule:
                    self._arm(schedule)
            return
        size = schedule.size() * (len(plan.due) + 1)
        refused: Refused = []
        self._core.atomically(lambda: size, partial(self._publish, schedule, plan, refused))
        if refused:
            self._retry(self._known.get(schedule.name), refused[0])

    def _publish(self, schedule: Schedule, plan: Plan, refused: Refused, now_ms: int) -> None:
        """Lock held. `refused` gets the error of a queue that takes no messages at the moment."""
        if self._known.get(schedule.name) is not schedule:
            return  # it was changed meanwhile, and armed again
        results: Results = []
        queue = self._engine.queues.get(schedule.queue)
        for due_ms in plan.due:
            try:
                results.append(self._publish_one(queue, schedule, due_ms, now_ms))
            except QueueFull as full:
                refused.append(full)
                break
        changes = settle_runs(schedule, plan, results)
        runs, missed = changes["runs"] - schedule.runs, changes["missed"] - schedule.missed
        if not runs and not missed and changes["next_ms"] == schedule.next_ms:
            return
        self._advance(schedule, changes, now_ms)
        self._counters.add(schedule.name, runs, missed)
        if text := missed_text(schedule, missed, changes["error"]):
            log.warning("%s", text)

    def _publish_one(
        self, queue: QueueState | None, schedule: Schedule, due_ms: int, now_ms: int
    ) -> str | None:
        """Why the queue never takes this run; None: it was published. Raises QueueFull."""
        if queue is None:
            return missing_queue(schedule)
        try:
            self._engine.publish(queue, make_draft(schedule, due_ms, queue.settings.dedup_by_content), now_ms)
        except QueueFull as full:
            if queue.settings.overflow != "reject-dead-letter":
                raise
            return public_text(full)  # it was dead-lettered
        except InvalidSetting as invalid:  # the body is too large for the queue
            return public_text(invalid)
        return None

    def _retry(self, schedule: Schedule | None, error: OpenQError) -> None:
        if schedule is None:
            return
        core, text = self._core, public_text(error)
        with core.lock:
            if self._known.get(schedule.name) is not schedule:
                return
            is_new = self._errors.get(schedule.name) != text
            self._errors[schedule.name] = text
            self._arm(schedule, retry_ms(schedule, core.now_ms()))
        if is_new:
            log.warning("schedule %r waits: %s", schedule.name, text)
