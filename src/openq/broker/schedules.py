"""Schedules: messages that the broker publishes by itself, by cron expression or at an interval.

A schedule is stored with its next due time. A run publishes its message and stores the following due time in
one atomic change, so each due time is published once, however many processes look and whenever one dies.
`local/schedules.py` and `redis/schedules.py` make that change; what both share is here, pure:

    declared     what to store when a schedule is declared
    plan_runs    what to publish now, and what the misfire policy drops
    make_draft   the message of one run

A run is missed if it is more than `GRACE_MS` late: no process ran, or the queue took no messages. The
misfire policy says what becomes of missed runs: `skip` drops them, `once` publishes one message for all of
them, `all` publishes each, at most the newest `MAX_CATCH_UP`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from ..cron import Cron, find_zone
from ..engine.publishing import check_draft
from ..engine.record_values import pack_value
from ..errors import InvalidSetting
from ..metrics import Family
from ..model import ENCODING_BYTES, MAX_SPAN_MS, Draft, check_name
from ..names import split_name

MISFIRES = ("skip", "once", "all")
GRACE_MS = 60_000
MAX_CATCH_UP = 1_000
MAX_SCHEDULES = 10_000
MAX_BODY = 256 << 10
MAX_TOTAL_BYTES = 32 << 20  # of all schedules of a broker: each new journal segment begins with them
MIN_EVERY_MS = 100
_RETRY_MS = (1_000, 30_000)  # until a run that could not be published is tried again
MAX_RUNS_PER_CHANGE = 100
NEVER_MS = 1 << 62
SCHEDULE_ATTRIBUTE = "openq-schedule"
DUE_ATTRIBUTE = "openq-due"

_MAX_WALK = 20_000  # due times of an outage that are looked at one by one
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Fields that the broker keeps; all others are declared.
_STATE = ("paused", "created_ms", "next_ms", "last_ms", "runs", "missed", "error")
_TIMING = ("cron", "every_ms", "timezone", "start_ms", "end_ms")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message, the queue it goes to, and when. Times are milliseconds, those of cron in `timezone`."""

    name: str
    queue: str  # the queue key
    body: bytes = b""
    encoding: int = ENCODING_BYTES
    cron: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    misfire: str = "once"  # skip | once | all
    jitter_ms: int = 0  # each run is published up to this much later
    start_ms: int | None = None
    end_ms: int | None = None
    # Options of the message.
    priority: int = 0
    group: str | None = None
    type: str | None = None
    attributes: Mapping[str, object] = field(default_factory=dict, hash=False)
    delay_ms: int | None = None
    ttl_ms: int | None = None
    unique: str | None = None
    publisher: str | None = None
    # State, kept by the broker.
    paused: bool = False
    created_ms: int = 0
    next_ms: int | None = None  # None: paused, or no run is left
    last_ms: int | None = None  # the due time of the last run
    runs: int = 0
    missed: int = 0
    error: str | None = None  # of the last run, if it failed

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that stored schedules survive new fields."""
        out: dict[str, Any] = {}
        for name in Schedule.__slots__:
            value = getattr(self, name)
            if name in ("name", "queue") or value != getattr(_DEFAULT, name):
                out[name] = dict(value) if isinstance(value, Mapping) else value
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schedule:
        return cls(**{name: value for name, value in data.items() if name in cls.__slots__})

    def size(self) -> int:
        """An upper bound of the bytes of its record, or of one of its messages."""
        texts = (self.name, self.queue, self.cron, self.group, self.type, self.unique, self.publisher)
        names = sum(len((text or "").encode()) for text in texts)
        # A body that is not text takes four bytes for three; quotes and backslashes take two.
        return 2 * (len(self.body) + names + len(pack_value(dict(self.attributes)))) + 1024


_DEFAULT = Schedule("", "")


class Schedules(Protocol):
    """`broker.schedules`. Names are qualified like those of queues."""

    def put(self, schedule: Schedule) -> Schedule:
        """Declare: an equal schedule is not changed, a different one is replaced and keeps its state."""
        ...

    def get(self, name: str) -> Schedule: ...  # raises ScheduleNotFound
    def list(self) -> Sequence[Schedule]: ...
    def delete(self, name: str) -> None: ...
    def pause(self, name: str) -> Schedule: ...
    def resume(self, name: str) -> Schedule: ...
    def run(self, name: str) -> str: ...  # publishes now, out of turn; returns the id


# -- declaring --------------------------------------------------------------------------------------


def check_schedule(schedule: Schedule) -> None:
    """Raises InvalidSetting for a schedule that cannot run."""
    check_name(schedule.name, "schedule")
    check_name(schedule.queue)
    if (schedule.cron is None) == (schedule.every_ms is None):
        raise InvalidSetting("a schedule has either cron or every: give one of them")
    if schedule.every_ms is not None and not MIN_EVERY_MS <= schedule.every_ms <= MAX_SPAN_MS:
        raise InvalidSetting(f"every must be at least {MIN_EVERY_MS / 1000} seconds")
    if schedule.cron is not None:
        _cron(schedule.cron)
    find_zone(schedule.timezone)
    if schedule.misfire not in MISFIRES:
        raise InvalidSetting(f"misfire must be skip, once or all, not {schedule.misfire!r}")
    if not 0 <= schedule.jitter_ms <= MAX_SPAN_MS:
        raise InvalidSetting("jitter must be 0 seconds or more")
    if schedule.start_ms is not None and schedule.end_ms is not None and schedule.end_ms < schedule.start_ms:
        raise InvalidSetting("a schedule must not end before it starts")
    if len(schedule.body) > MAX_BODY:
        raise InvalidSetting(f"the body of a schedule has {len(schedule.body)} bytes; at most {MAX_BODY}")
    check_draft(make_draft(schedule, 0), 0)


def check_room(known: Mapping[str, Schedule], schedule: Schedule) -> None:
    """Raises InvalidSetting if a broker with the `known` schedules cannot take this one."""
    if schedule.name not in known and len(known) >= MAX_SCHEDULES:
        raise InvalidSetting(f"there are {MAX_SCHEDULES} schedules already: remove some first")
    total = sum(each.size() for name, each in known.items() if name != schedule.name)
    if total + schedule.size() > MAX_TOTAL_BYTES:
        raise InvalidSetting(f"all schedules together have at most {MAX_TOTAL_BYTES >> 20} MiB")


def declared(known: Schedule | None, wanted: Schedule, now_ms: int) -> Schedule:
    """The schedule to store. An equal one is `known` itself; a different one keeps its state.

    A schedule that is paused stays paused, and the next run changes only with the times.
    """
    check_schedule(wanted)
    if known is None:
        return armed(replace(wanted, created_ms=now_ms, last_ms=None, runs=0, missed=0, error=None), now_ms)
    new = replace(wanted, **{name: getattr(known, name) for name in _STATE})
    if new == known:
        return known
    if all(getattr(new, name) == getattr(known, name) for name in _TIMING):
        return new
    return armed(new, now_ms)


def armed(schedule: Schedule, now_ms: int) -> Schedule:
    """With its next run after now."""
    next_ms = None if schedule.paused else following(schedule, now_ms)
    return replace(schedule, next_ms=next_ms, error=None)


def paused(schedule: Schedule) -> Schedule:
    return schedule if schedule.paused else replace(schedule, paused=True, next_ms=None)


def resumed(schedule: Schedule, now_ms: int) -> Schedule:
    """Runs that were due meanwhile are not missed: they were not wanted."""
    return armed(replace(schedule, paused=False), now_ms) if schedule.paused else schedule


# -- times ------------------------------------------------------------------------------------------


@lru_cache(1_024)
def _cron(text: str) -> Cron:
    return Cron(text)


def following(schedule: Schedule, after_ms: int) -> int | None:
    """The first due time after `after_ms`. None: there is none any more."""
    start_ms = schedule.start_ms
    if schedule.every_ms is None:
        after_ms = after_ms if start_ms is None else max(after_ms, start_ms - 1)
        found = _cron(schedule.cron or "").next_ms(after_ms, find_zone(schedule.timezone))
    else:
        origin_ms = schedule.created_ms if start_ms is None else start_ms
        if start_ms is not None and after_ms < start_ms:
            found = start_ms
        else:
            steps = max(after_ms - origin_ms, 0) // schedule.every_ms + 1
            found = origin_ms + steps * schedule.every_ms
    if found is None or (schedule.end_ms is not None and found > schedule.end_ms):
        return None
    return found


def next_runs(schedule: Schedule, count: int) -> list[int]:
    """The due times of the next runs; empty while it is paused."""
    runs: list[int] = []
    next_ms = schedule.next_ms
    while next_ms is not None and len(runs) < count:
        runs.append(next_ms)
        next_ms = following(schedule, next_ms)
    return runs


def publish_ms(schedule: Schedule, due_ms: int) -> int:
    """When a due time is published: later by a share of the jitter, the same one in every process."""
    if not schedule.jitter_ms:
        return due_ms
    import hashlib  # imported late: it loads OpenSSL, which clients of a server do without

    digest = hashlib.sha256(f"{schedule.name}/{due_ms}".encode()).digest()
    return due_ms + int.from_bytes(digest[:8], "big") % (schedule.jitter_ms + 1)


def wake_ms(schedule: Schedule) -> int:
    """When the broker must look at it again."""
    return NEVER_MS if schedule.next_ms is None else publish_ms(schedule, schedule.next_ms)


def retry_ms(schedule: Schedule, now_ms: int) -> int:
    """When a run that could not be published is tried again: the later it is, the less often."""
    shortest_ms, longest_ms = _RETRY_MS
    return now_ms + min(max((now_ms - wake_ms(schedule)) // 4, shortest_ms), longest_ms)


class Plan(NamedTuple):
    """What to do about a schedule that is due."""

    due: tuple[int, ...]  # runs to publish now, oldest first
    missed: int  # runs that the policy drops
    next_ms: int | None  # the due time after all of these


def plan_runs(schedule: Schedule, now_ms: int) -> Plan | None:
    """None: nothing is due."""
    if wake_ms(schedule) > now_ms:
        return None
    newest, count = _due_times(schedule, now_ms)
    runs = list(newest)
    following_ms = following(schedule, runs[-1])
    late = [due_ms for due_ms in runs if now_ms - publish_ms(schedule, due_ms) > GRACE_MS]
    if late and schedule.misfire != "all":
        on_time = runs[len(late) :]
        # One message for all missed runs; a run that is on time is that message.
        runs = on_time or (late[-1:] if schedule.misfire == "once" else [])
    missed = count - len(runs)
    if len(runs) > MAX_RUNS_PER_CHANGE:
        return Plan(tuple(runs[:MAX_RUNS_PER_CHANGE]), missed, runs[MAX_RUNS_PER_CHANGE])
    return Plan(tuple(runs), missed, following_ms)


def _due_times(schedule: Schedule, now_ms: int) -> tuple[deque[int], int]:
    """The newest due times up to now, and how many there are in all.

    After a very long outage they are not all looked at: the number is an estimate then.
    """
    newest: deque[int] = deque(maxlen=MAX_CATCH_UP)
    due_ms = schedule.next_ms
    count = walked = 0
    while due_ms is not None and publish_ms(schedule, due_ms) <= now_ms:
        newest.append(due_ms)
        count += 1
        walked += 1
        if walked == _MAX_WALK:
            assert schedule.next_ms is not None
            period_ms = (due_ms - schedule.next_ms) // (walked - 1) or 1
            from_ms = now_ms - schedule.jitter_ms - 2 * MAX_CATCH_UP * period_ms
            if from_ms > due_ms:
                count += (from_ms - due_ms) // period_ms
                due_ms = from_ms
        due_ms = following(schedule, due_ms)
    return newest, count


def settle_runs(schedule: Schedule, plan: Plan, results: Sequence[str | None]) -> dict[str, Any]:
    """The changes of a schedule after its runs: None for each that was published, else why it was dropped.

    A shorter list than the plan's: the run after it could not be published yet, and is due still.
    """
    failed = sum(result is not None for result in results)
    published = [due_ms for due_ms, result in zip(plan.due, results, strict=False) if result is None]
    return {
        "next_ms": plan.due[len(results)] if len(results) < len(plan.due) else plan.next_ms,
        "last_ms": published[-1] if published else schedule.last_ms,
        "runs": schedule.runs + len(published),
        "missed": schedule.missed + plan.missed + failed,
        "error": results[-1] if results else None,
    }


# -- messages ---------------------------------------------------------------------------------------


def make_draft(schedule: Schedule, due_ms: int, by_content: bool = False) -> Draft:
    """The message of one run. It says which schedule published it, and for which time.

    `by_content`: the queue deduplicates by content. Runs of a schedule have equal bodies, and each counts.
    """
    attributes = {
        **schedule.attributes,
        SCHEDULE_ATTRIBUTE: split_name(schedule.name)[1],
        DUE_ATTRIBUTE: time_text(due_ms),
    }
    return schedule_draft(schedule, attributes, f"{schedule.name}/{due_ms}" if by_content else None)


def schedule_draft(
    schedule: Schedule, attributes: Mapping[str, object] | None, dedup: str | None = None
) -> Draft:
    return Draft(
        schedule.body,
        schedule.encoding,
        delay_ms=schedule.delay_ms,
        priority=schedule.priority,
        group=schedule.group,
        type=schedule.type,
        dedup=dedup,
        unique=schedule.unique,
        ttl_ms=schedule.ttl_ms,
        attributes=attributes,
        publisher=schedule.publisher,
    )


def time_text(ms: int) -> str:
    """`2026-01-31T12:00:00Z`; milliseconds only if they are not zero."""
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds" if ms % 1000 else "seconds") + "Z"


def missed_text(schedule: Schedule, missed: int, error: str | None) -> str | None:
    """What to log about missed runs. None: nothing, because the last run failed for the same reason."""
    if not missed or (error is not None and error == schedule.error):
        return None
    runs = f"{missed} {'run' if missed == 1 else 'runs'}"
    return f"schedule {schedule.name!r} missed {runs}: {error or f'misfire={schedule.misfire}'}"


def missing_queue(schedule: Schedule) -> str:
    return f"queue {split_name(schedule.queue)[1]!r} does not exist"


class ScheduleCounters:
    """Runs of the schedules that this process published or dropped, for the metrics."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, name: str, runs: int, missed: int) -> None:
        before = self._counts.get(name, (0, 0))
        self._counts[name] = before[0] + runs, before[1] + missed

    def forget(self, name: str) -> None:
        self._counts.pop(name, None)

    def families(self, known: Sequence[Schedule]) -> list[Family]:
        labels = {each.name: _labels(each.name) for each in known}
        counts = {name: self._counts.get(name, (0, 0)) for name in labels}
        return [
            Family(
                "openq_schedule_runs_total",
                "counter",
                "Runs of schedules that this process published.",
                [(labels[name], runs) for name, (runs, _) in counts.items()],
            ),
            Family(
                "openq_schedule_missed_total",
                "counter",
                "Runs of schedules that were dropped: too late, or without their queue.",
                [(labels[name], missed) for name, (_, missed) in counts.items()],
            ),
            Family(
                "openq_schedule_next_run_timestamp_seconds",
                "gauge",
                "When a schedule is due next.",
                [(labels[each.name], each.next_ms / 1000) for each in known if each.next_ms is not None],
            ),
        ]


def _labels(name: str) -> dict[str, str]:
    account, short = split_name(name)
    return {"account": account, "schedule": short}
