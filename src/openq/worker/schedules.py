"""Cron and intervals: schedules that the broker keeps, whose messages are jobs.

The broker publishes each due time once, however many workers run. A schedule is declared when a worker
starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .enqueue import make_draft
from .errors import InvalidTask

if TYPE_CHECKING:
    from .app import App
    from .task import BaseTask


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """One schedule of an app."""

    name: str
    task: BaseTask[..., Any]
    when: dict[str, Any]  # cron and timezone, or every; misfire and jitter

    def declare(self, app: App) -> None:
        """Write it into the broker. One that is there already is not changed."""
        draft = make_draft(self.task, (), {}, None, False)
        if draft.codec != "json":
            raise InvalidTask(f"task {self.task.name!r} has a schedule, which needs codec='json'")
        queue: Any = app.queues.open(self.task.queue)
        queue.schedules.add(
            self.name,
            draft.encoded(),
            message_type=self.task.name,
            priority=self.task.declared.priority or 0,
            unique_key=f"schedule {self.name}",
            **self.when,
        )


def make_schedule(task: BaseTask[..., Any], name: str | None, when: dict[str, Any]) -> DeclaredSchedule:
    try:
        task.signature.check((), {})
    except TypeError as error:
        raise InvalidTask(f"a task with a schedule must be callable without arguments: {error}") from None
    return DeclaredSchedule(name or task.name, task, when)
