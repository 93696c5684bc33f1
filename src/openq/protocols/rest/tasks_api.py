"""Long work, as long as it runs and for a while after: list, look, cancel."""

from __future__ import annotations

from ..tasks import Task
from .call import Call
from .problems import Problem
from .schemas import TaskList
from .views import task_view


def _task(call: Call, action: str) -> Task:
    """One that the caller may know of; any other might as well not exist."""
    task = call.site.tasks.get(call.args[0])
    if task is None or task.account != call.account or not call.may(action, task.queue):
        raise Problem("task_not_found", f"task {call.args[0][:100]!r} does not exist, or is not yours to see")
    return task


def list_tasks(call: Call) -> None:
    tasks = [
        task
        for task in call.site.tasks.all()
        if task.account == call.account
        and any(call.may(action, task.queue, call.route.asked) for action in ("peek", "manage"))
    ]
    call.answer(TaskList(tasks=[task_view(task) for task in tasks]))


def show_task(call: Call) -> None:
    call.answer(task_view(_task(call, "peek")))


def cancel_task(call: Call) -> None:
    task = _task(call, "manage")
    task.cancel()
    call.answer(task_view(task))
