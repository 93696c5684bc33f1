"""Settings, statistics and tasks as the replies that show them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from ..broker.interface import QueueStats
from ..documents.values import iso, iso_or_none, seconds, seconds_or_forever
from ..documents.views import attributes_of as attributes_of
from ..documents.views import is_dead as is_dead
from ..documents.views import payload_encoder as payload_encoder
from ..documents.views import received as received
from ..documents.views import stored as stored
from ..model import QueueSettings, RetryPolicy
from ..names import split_name
from ..server.tasks import LongOperation
from ..settings import SETTINGS, Setting
from .message_schemas import TaskView
from .schemas import Retry, Settings, Stats


def settings_view(settings: QueueSettings) -> Any:
    """The `Settings` of a reply."""
    return Settings(**{each.name: _setting(each, getattr(settings, each.field)) for each in SETTINGS})


def _setting(setting: Setting, value: Any) -> Any:
    if isinstance(value, RetryPolicy):
        return Retry(
            kind=value.kind,  # type: ignore[arg-type]
            base=seconds(value.base_ms),
            max=seconds(value.max_ms),
            factor=value.factor,
            jitter=value.jitter,
            on_expiry=value.on_expiry,
        )
    if value is None:
        return None
    if setting.kind == "duration":
        return seconds_or_forever(value) if setting.is_endless else seconds(value)
    return split_name(value)[1] if setting.kind in ("queue", "exchange") else value


def stats_view(stats: QueueStats) -> Stats:
    return Stats(
        ready=stats.ready,
        delayed=stats.delayed,
        in_flight=stats.in_flight,
        waiting_bytes=stats.waiting_bytes,
        oldest_age=None if stats.oldest_age_ms is None else seconds(stats.oldest_age_ms),
        waiters=stats.waiters,
        limited=stats.limited,
        counters=dict(stats.counters),
    )


def task_view(task: LongOperation) -> TaskView:
    return TaskView(
        id=task.id,
        kind=task.kind,
        queue=task.queue,
        state=task.state,
        paused=task.paused,
        done=task.done,
        total=task.total,
        started=iso(task.started_ms),
        ended=iso_or_none(task.ended_ms),
        error=task.error,
        code=UNSET if task.code is None else task.code,
        result=task.result,
        details=task.details,
    )
