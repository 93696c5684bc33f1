"""Tasks, while they run and for a while after: list, show, pause, resume, cancel."""

from __future__ import annotations

from ..server.tasks import LongOperation
from .call import RestCall
from .message_schemas import Resume, TaskListView, TaskView
from .problems import Problem
from .routes import route
from .views import task_view


def _task(call: RestCall, action: str) -> LongOperation:
    """Not found if the caller may not see it."""
    task = call.context.tasks.get(call.args[0])
    if task is None or task.account != call.account or not call.may(action, task.queue):
        raise Problem(
            "task_not_found", f"operation {call.args[0][:100]!r} does not exist, or is not yours to see"
        )
    return task


@route(
    "GET",
    "tasks",
    permission="peek",
    scope="each",
    sqs_actions=("ListMessageMoveTasks",),
    summary="List long operations",
    reply=TaskListView,
)
def list_tasks(call: RestCall) -> None:
    tasks = [
        task
        for task in call.context.tasks.all()
        if task.account == call.account
        and any(call.may(action, task.queue, call.route.sqs_actions) for action in ("peek", "manage"))
    ]
    call.answer(TaskListView(tasks=[task_view(task) for task in tasks]))


@route(
    "GET",
    "tasks/{id}",
    permission="peek",
    scope="task",
    sqs_actions=("ListMessageMoveTasks",),
    summary="Show a long operation",
    reply=TaskView,
)
def show_task(call: RestCall) -> None:
    call.answer(task_view(_task(call, "peek")))


@route(
    "DELETE",
    "tasks/{id}",
    permission="manage",
    scope="task",
    sqs_actions=("CancelMessageMoveTask",),
    summary="Cancel a long operation",
    reply=TaskView,
)
def cancel_task(call: RestCall) -> None:
    task = _task(call, "manage")
    task.cancel()
    call.answer(task_view(task))


@route(
    "POST",
    "tasks/{id}/pause",
    permission="manage",
    scope="task",
    sqs_actions=("CancelMessageMoveTask",),
    summary="Pause a long operation",
    reply=TaskView,
)
def pause_task(call: RestCall) -> None:
    """It waits before its next messages, until it is resumed or cancelled."""
    task = _task(call, "manage")
    task.pause()
    call.answer(task_view(task))


@route(
    "POST",
    "tasks/{id}/resume",
    permission="manage",
    scope="task",
    sqs_actions=("CancelMessageMoveTask",),
    summary="Resume a long operation",
    request=Resume,
    reply=TaskView,
)
def resume_task(call: RestCall) -> None:
    """Also of a redrive that waits for consumers: with `watch` false it sends the rest."""
    task = _task(call, "manage")
    task.resume(is_watched=call.body.watch)
    call.answer(task_view(task))
