"""`Job`: a job as its sender sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .app import App

R = TypeVar("R")


class Job(Generic[R]):
    """One job. Its id is that of its message."""

    __slots__ = ("app", "id", "queue", "task")

    def __init__(self, app: App, id: str, task: str, queue: str) -> None:
        self.app = app
        self.id = id
        self.task = task
        self.queue = queue

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self.queue) == (other.id, other.queue)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id} of task {self.task!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Job holds connections: keep its id, and use app.job(id, task)")
