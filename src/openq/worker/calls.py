"""Calls that are sent later: alone, one after the other, or together.

    fetch.s(url).then(parse, lang="de").then(save).send()     # each gets the result of the one before
    group([fetch.s(url) for url in urls]).then(merge).send()  # merge gets the list of results

The type checker knows that the result of one step is the first argument of the next. The ids of all jobs are
chosen when a chain is sent, so its last job can be waited for from the start.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from .errors import InvalidTask
from .store import DAY_S

if TYPE_CHECKING:
    from .app import App
    from .groups import GroupJob
    from .job import Job
    from .task import BaseTask, SendOptions

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

# Results that the next step or the caller needs are kept at least this long.
KEPT_S = DAY_S


@dataclass(slots=True)
class Step:
    """One job of a chain or group, before it is sent."""

    task: BaseTask[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: SendOptions
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def document(self) -> dict[str, Any]:
        """As the step before carries it."""
        return {
            "task": self.task.name,
            "queue": self.task.queue,
            "id": self.id,
            "args": self.args,
            "kwargs": self.kwargs,
            "options": self.options,
        }


class Chain(Generic[R]):
    """Calls that run one after the other. `send` returns the job of the last one."""

    def __init__(self, app: App, steps: list[Step]) -> None:
        self.app = app
        self.steps = steps

    def then(self, task: BaseTask[Concatenate[R, P], S], *args: P.args, **kwargs: P.kwargs) -> Chain[S]:
        """The next step: `task(result, *args, **kwargs)`."""
        task.signature.check((None, *args), dict(kwargs))
        return Chain(self.app, [*self.steps, Step(task, args, kwargs, {})])

    def send(self) -> Job[R]:
        """Send the first job; each worker sends the next one before it acks its own."""
        steps = self.fresh().steps
        self.app.publish(self.app.flows.first(steps))
        return self.app.flows.last_job(steps)

    async def asend(self) -> Job[R]:
        steps = self.fresh().steps
        await self.app.apublish(self.app.flows.first(steps))
        return self.app.flows.last_job(steps)

    def fresh(self) -> Chain[R]:
        """With new ids, so that a chain may be sent twice."""
        return Chain(self.app, [Step(s.task, s.args, s.kwargs, s.options) for s in self.steps])


class Call(Chain[R]):
    """A task with its arguments, made by `task.s(...)`."""

    def __init__(
        self, task: BaseTask[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], options: SendOptions
    ) -> None:
        super().__init__(task.app, [Step(task, args, kwargs, options)])

    def send(self) -> Job[R]:
        step = self.steps[0]
        return self.app.enqueue(step.task, step.args, step.kwargs, step.options)

    async def asend(self) -> Job[R]:
        step = self.steps[0]
        return await self.app.aenqueue(step.task, step.args, step.kwargs, step.options)


class Group(Generic[R]):
    """Calls that run at the same time. Their result is the list of their results."""

    def __init__(self, members: list[Chain[R]]) -> None:
        if not members:
            raise InvalidTask("a group needs at least one call")
        self.app = members[0].app
        self.members = members

    def send(self) -> GroupJob[R]:
        from .groups import send_group

        return send_group(self.app, self.members, [])

    async def asend(self) -> GroupJob[R]:
        from .job import in_thread

        return await in_thread(self.send)

    def then(
        self, task: BaseTask[Concatenate[list[R], P], S], *args: P.args, **kwargs: P.kwargs
    ) -> GroupChain[S]:
        """A task that runs once, with the list of results, when all members are done."""
        task.signature.check((None, *args), dict(kwargs))
        return GroupChain(self.members, [Step(task, args, kwargs, {})])


class GroupChain(Generic[R]):
    """A group and the steps after it. `send` returns the job of the last step."""

    def __init__(self, members: list[Chain[Any]], steps: list[Step]) -> None:
        self._members = members
        self._steps = steps

    def then(self, task: BaseTask[Concatenate[R, P], S], *args: P.args, **kwargs: P.kwargs) -> GroupChain[S]:
        task.signature.check((None, *args), dict(kwargs))
        return GroupChain(self._members, [*self._steps, Step(task, args, kwargs, {})])

    def send(self) -> Job[R]:
        from .groups import send_group

        app = self._members[0].app
        steps = [Step(s.task, s.args, s.kwargs, s.options) for s in self._steps]
        sent = send_group(app, self._members, steps)
        job: Job[R] = app.flows.last_job(steps)
        job.earlier = (*sent.jobs, *job.earlier)
        return job

    async def asend(self) -> Job[R]:
        from .job import in_thread

        return await in_thread(self.send)


def group(members: Iterable[Chain[R]]) -> Group[R]:
    """Calls or chains that run at the same time: `group([add.s(1, 2), add.s(3, 4)]).send().result()`."""
    return Group(list(members))
