"""Schedules in Redis: every process that serves waiters looks, and one of them publishes each run.

A schedule is a JSON value in a hash that all processes share (`{meta}:schedules`), with its next due time. A
run takes two steps, because the queue may be on another node of a cluster:

1. One function publishes the message and stores the due time in the slot of the queue. It publishes nothing
   if that due time is stored already.
2. The following due time is stored with the schedule, by compare-and-set.

A process that dies between them leaves the due time as it was. The next process repeats step 1, which has no
second effect, and does step 2. So exactly once depends on the queue alone.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from ..engine.record_values import pack_value, unpack_value
from ..errors import FunctionError, OpenQError, QueueNotFound, ScheduleNotFound, StoreError, public_text
from ..metrics import Family
from .drafts import pack_draft
from .json_hash import JsonHash
from .publish import Publisher, publish_error
from .registry import CachedQueue
from .store import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("openq.schedules")

_VALID_MS = 5_000  # a process that was suspended for longer reads the schedule again before it publishes
_REFRESH_S = 30.0
_TRIES = 20

Families = list[Family]
Document = dict[str, Any]
Results = list[str | None]
All = list[Schedule]
Arguments = list[Any]


class ScheduleCache:
    """What this process knows of the schedules. Shared by the threads and all event loops."""

    def __init__(self, runs: bool = True) -> None:
        self.runs = runs  # this process runs schedules
        self.known: dict[str, Schedule] = {}
        self.retries: dict[str, int] = {}  # when a run that was refused is tried again
        self.counters = ScheduleCounters()
        self.is_stale = True
        self.read_s = 0.0

    def keep(self, schedule: Schedule) -> None:
        self.known[schedule.name] = schedule

    def drop(self, name: str) -> None:
        self.known.pop(name, None)
        self.retries.pop(name, None)

    def wake_ms(self, schedule: Schedule) -> int:
        return max(wake_ms(schedule), self.retries.get(schedule.name, 0))

    def next_ms(self) -> int:
        return min([self.wake_ms(each) for each in list(self.known.values())], default=NEVER_MS)


class RedisSchedules:
    """The `Schedules` role in Redis."""

    def __init__(
        self, store: RedisStore, publisher: Publisher, cache: ScheduleCache, start: Callable[[], None]
    ) -> None:
        """`start` starts the thread that runs schedules in this process."""
        self._store = store
        self._start = start
        self._publisher = publisher
        self._cache = cache
        self._hash = JsonHash(store, "schedules")
        self._channel = f"{store.address.prefix}:schedules"
        self._meta_key = f"{store.address.prefix}:{{meta}}:schedules".encode()

    # -- the role ---------------------------------------------------------------------------------

    def put(self, schedule: Schedule) -> Schedule:
        store = self._store
        store.state.check_open()
        now_ms, version = store.redis_now(), store.server_time_ms()

        def change(before: Document | None) -> Document:
            known = None if before is None else _parse(before)
            new = declared(known, schedule, now_ms)
            return before if before is not None and new is known else _document(new, version, before)

        if schedule.name not in self._cache.known:
            self.refresh()
            check_room(self._cache.known, schedule)
        return self._changed(self._hash.update(schedule.name, change))

    def get(self, name: str) -> Schedule:
        self._store.state.check_open()
        found = self._hash.get(name)
        if found is None:
            raise ScheduleNotFound(name)
        return _parse(found)

    def list(self) -> All:
        self._store.state.check_open()
        return sorted(map(_parse, self._hash.all().values()), key=lambda each: each.name)

    def delete(self, name: str) -> None:
        schedule = self.get(name)
        self._hash.update(name, lambda _: None)
        self._cache.drop(name)
        self._cache.counters.forget(name)
        self._announce(name)
        try:
            self._store.ask_queue(self._store.view(schedule.queue), "forget_schedule", name)
        except QueueNotFound:
            pass  # then nothing is stored there

    def pause(self, name: str) -> Schedule:
        return self._change(name, paused)

    def resume(self, name: str) -> Schedule:
        now_ms = self._store.redis_now()
        return self._change(name, lambda schedule: resumed(schedule, now_ms))

    def _change(self, name: str, change: Any) -> Schedule:
        version = self._store.server_time_ms()

        def changed(before: Document | None) -> Document:
            if before is None:
                raise ScheduleNotFound(name)
            known = _parse(before)
            new = change(known)
            return before if new is known else _document(new, version, before)

        self._store.state.check_open()
        return self._changed(self._hash.update(name, changed))

    def _changed(self, document: Document) -> Schedule:
        schedule = _parse(document)
        self._cache.keep(schedule)
        self._cache.retries.pop(schedule.name, None)
        self._start()
        self._announce(schedule.name)
        return schedule

    def _announce(self, name: str) -> None:
        """The processes that run schedules read them again."""
        self._store.calls.call(self._meta_key, "PUBLISH", self._channel, name, idempotent=True)

    def run(self, name: str) -> str:
        """Publish now, out of turn. Returns the id; raises why it cannot be published."""
        schedule = self.get(name)
        now_ms = self._store.redis_now()
        by_content = self._store.view(schedule.queue).settings.dedup_by_content
        message_id = self._publisher.publish(schedule.queue, make_draft(schedule, now_ms, by_content))
        self._cache.counters.add(name, 1, 0)

        def count(before: Document | None) -> Document | None:
            if before is None:
                return None
            known = _parse(before)
            return _document(replace(known, runs=known.runs + 1, last_ms=now_ms, error=None), None, before)

        self._hash.update(name, count)
        return message_id

    def restore(self, schedule: Schedule) -> None:
        """Store a schedule with its state, unless one of this name exists: for migrations."""
        version = self._store.server_time_ms()
        self._hash.update(schedule.name, lambda before: before or _document(schedule, version, None))

    def families(self) -> Families:
        return self._cache.counters.families([*self._cache.known.values()])

    # -- running ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read all schedules again."""
        cache = self._cache
        cache.is_stale = False
        cache.read_s = time.monotonic()
        cache.known = {name: _parse(document) for name, document in self._hash.all().items()}

    def note_change(self) -> None:
        """Another process changed a schedule: they are read again before the next run."""
        self._cache.is_stale = True

    def next_ms(self) -> int:
        """When the next run is due, in Redis's time."""
        if self._store.state.closed or not self._cache.runs:
            return NEVER_MS
        if self._store.state.is_virtual:
            self.refresh()
        return self._cache.next_ms()

    def run_due(self) -> None:
        """Publish what is due. Called by one thread of each process."""
        cache, store = self._cache, self._store
        if not cache.runs:
            return
        if cache.is_stale or time.monotonic() - cache.read_s >= _REFRESH_S or store.state.is_virtual:
            self.refresh()
        while True:
            now_ms = store.now_ms()
            due = [each for each in [*cache.known.values()] if cache.wake_ms(each) <= now_ms]
            if not due:
                return
            for schedule in due:
                try:
                    self._run(schedule.name)
                except StoreError as error:
                    self._retry(schedule, now_ms, error)

    def _retry(self, schedule: Schedule, now_ms: int, error: OpenQError) -> None:
        if schedule.name not in self._cache.retries:
            log.warning("schedule %r waits: %s", schedule.name, public_text(error))
        self._cache.retries[schedule.name] = retry_ms(schedule, now_ms)

    def _run(self, name: str) -> None:
        store, cache = self._store, self._cache
        document = self._hash.get(name)
        if document is None:
            cache.drop(name)
            return
        schedule = _parse(document)
        cache.keep(schedule)
        now_ms = store.now_ms()
        plan = plan_runs(schedule, now_ms)
        if plan is None:
            return  # another process was first
        refused: OpenQError | None = None
        published = 0
        try:
            results, published, refused = self._publish(schedule, plan, document["version"], now_ms)
        except QueueNotFound:
            results = [missing_queue(schedule)] * len(plan.due)
        except _Stale:
            return
        store.sync()  # the next step must not survive a failover that this one does not
        self._advance(schedule, plan, results, refused)
        runs, missed = published, plan.missed + sum(each is not None for each in results)
        if refused is None:
            cache.retries.pop(name, None)
        else:
            self._retry(schedule, now_ms, refused)
        if runs or missed:
            cache.counters.add(name, runs, missed)
        if text := missed_text(schedule, missed, next((each for each in results if each is not None), None)):
            log.warning("%s", text)

    def _publish(
        self, schedule: Schedule, plan: Plan, version: int, now_ms: int
    ) -> tuple[Results, int, OpenQError | None]:
        """The result of each run, how many this process published, and why the rest must wait."""
        if not plan.due:
            return [], 0, None
        store = self._store
        for _ in range(_TRIES):
            view = store.view(schedule.queue)
            flat: Arguments = []
            for due_ms in plan.due:
                draft = make_draft(schedule, due_ms, view.settings.dedup_by_content)
                flat += [due_ms, *pack_draft(view, draft, now_ms, 0)]
            try:
                valid_ms = now_ms + _VALID_MS
                answers = store.ask_queue(view, "run_schedule", schedule.name, version, valid_ms, *flat)
            except FunctionError as error:
                if error.code != "STALE":
                    raise
                store.refresh(always=True)  # the settings of the queue changed
                continue
            if answers == [b"stale"]:
                raise _Stale
            return _parse_answers(view, answers)
        raise StoreError(f"the settings of {schedule.queue!r} change all the time")

    def _advance(self, schedule: Schedule, plan: Plan, results: Results, refused: OpenQError | None) -> None:
        stored: All = []

        def change(before: Document | None) -> Document | None:
            stored.clear()
            known = None if before is None else _parse(before)
            if before is None or known is None:
                return None
            if known.next_ms == schedule.next_ms and known.created_ms == schedule.created_ms:
                changes = settle_runs(known, plan, results)
                if refused is not None:
                    changes["error"] = public_text(refused)
                known = replace(known, **changes)
                before = _document(known, None, before)
            stored.append(known)
            return before

        self._hash.update(schedule.name, change)
        if stored:
            self._cache.keep(stored[0])


class _Stale(Exception):
    """The schedule was changed meanwhile, or read too long ago."""


def _parse_answers(view: CachedQueue, answers: list[bytes]) -> tuple[Results, int, OpenQError | None]:
    results: Results = []
    for answer in answers:
        if answer[:1] != b"!":
            results.append(None)
            continue
        error = publish_error(view, answer[1:].decode())
        if answer.startswith(b"!full") and view.settings.overflow != "reject-dead-letter":
            return results, answers.count(b"+"), error
        results.append(public_text(error))
    return results, answers.count(b"+"), None


def _document(schedule: Schedule, version: int | None, before: Document | None) -> Document:
    """As stored. A changed definition gets a higher version; a run keeps it."""
    known = 0 if before is None else before["version"]
    stored: Document = json.loads(pack_value(schedule.to_json()))
    stored["version"] = known if version is None else max(version, known + 1)
    return stored


def _parse(document: Document) -> Schedule:
    return Schedule.from_json(unpack_value(json.dumps(document).encode()))
