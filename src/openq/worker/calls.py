"""Calls that are sent later: a task with its arguments and options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .job import Job
    from .task import BaseTask, SendOptions

R = TypeVar("R")


class Call(Generic[R]):
    """A task with its arguments, made by `task.s(...)`."""

    __slots__ = ("args", "kwargs", "options", "task")

    def __init__(
        self, task: BaseTask[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], options: SendOptions
    ) -> None:
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.options = options

    def send(self) -> Job[R]:
        return self.task.app.enqueue(self.task, self.args, self.kwargs, self.options)

    async def asend(self) -> Job[R]:
        return await self.task.app.aenqueue(self.task, self.args, self.kwargs, self.options)
