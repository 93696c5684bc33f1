"""Requests that start a long operation: the messages that they choose, and their replies."""

from __future__ import annotations

from dataclasses import replace

from ..broker.interface import Filter
from ..server.tasks import LongOperation
from .call import RestCall
from .message_schemas import TaskView
from .messages import make_filter
from .views import task_view


def answer_task(call: RestCall, task: LongOperation) -> None:
    path = call.request.path
    name = f"Location: {path[: path.index('/queues/')]}/tasks/{task.id}\r\n"
    call.answer(task_view(task), 202, name.encode())


def dry_run_view(call: RestCall, kind: str, count: int) -> TaskView:
    return TaskView(kind=kind, queue=call.args[0], state="dry_run", done=0, total=count)


def bulk_filter(call: RestCall, only_dead: bool = True) -> Filter:
    """The filter of a bulk operation.

    Dead letters only, so that ordinary messages are safe if the queue is not a dead-letter queue. Ready and
    delayed messages, unless the filter names another state: messages in flight stay with their consumers.
    """
    wanted = call.body.filter
    state = "ready" if wanted is None or wanted.state == "all" else wanted.state
    return replace(make_filter(wanted, call, state), dead_in=call.queue if only_dead else None)
