"""How the jobs of chains and groups are sent, one after the other.

A message carries the steps after it in the field `then` of its body. The last step has `keep`, the seconds
that its outcome is kept, and the member of a group has `group`. Every step has an id from the start and is
sent with it as `dedup_id`: a step that is sent again because a worker died is recognised by the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calls import KEPT_S, Step
from .enqueue import PUBLISH_NAMES, JobDraft, make_draft
from .job import Job
from .store import JobOutcome

if TYPE_CHECKING:
    from .app import App


class Flows:
    """Sends steps. Part of an app."""

    def __init__(self, app: App) -> None:
        self._app = app

    def last_job(self, steps: list[Step], is_member: bool = False) -> Job[Any]:
        """The job of the last step, which knows those before it."""
        app, last = self._app, steps[-1]
        job: Job[Any] = Job(app, last.id, last.task.name, last.task.queue, _keep_s(last, is_member))
        job.earlier = tuple(
            Job(app, step.id, step.task.name, step.task.queue, step.task.declared.result_ttl)
            for step in steps[:-1]
        )
        return job

    def first(self, steps: list[Step], group: dict[str, Any] | None = None) -> JobDraft:
        """The draft of the first step, which carries the others."""
        documents = [step.document() for step in steps]
        documents[-1]["keep"] = _keep_s(steps[-1], group is not None)
        if group is not None:
            documents[-1]["group"] = group
        first = steps[0]
        draft = make_draft(first.task, first.args, first.kwargs, first.options, False)
        draft.options["id"] = draft.options["dedup_id"] = first.id
        draft.extra = _extra(documents)
        return draft

    def send_next(self, documents: list[dict[str, Any]], result: Any) -> None:
        """Send the next step of a chain, with the result of the one before as its first argument."""
        step = documents[0]
        options: dict[str, Any] = {
            PUBLISH_NAMES.get(name, name): value
            for name, value in step["options"].items()
            if value is not None
        }
        attributes = options.pop("attributes", {})
        options.update(message_type=step["task"], id=step["id"], dedup_id=step["id"])
        draft = JobDraft(
            self._app.tasks.get(step["task"]),
            (result, *step["args"]),
            dict(step["kwargs"]),
            options,
            dict(attributes),
            _extra(documents),
            queue=step["queue"],
        )
        # Unchecked: a result that does not fit is an error of the next job, where it can be seen and
        # redriven.
        self._app.publish(draft, check=False)

    def end_rest(self, documents: list[dict[str, Any]], outcome: JobOutcome) -> None:
        """A step failed or was cancelled: callers that wait for the last one, which never runs, see it."""
        last = documents[-1]
        store = self._app.store
        store.put_outcome(store.outcome_put(last["id"], outcome, last.get("keep", KEPT_S), last["task"]))


def _keep_s(last: Step, is_member: bool) -> float:
    """Seconds that the outcome of a last step is kept; that of a member until the others are done too."""
    chosen = last.task.declared.result_ttl or KEPT_S
    return max(chosen, KEPT_S) if is_member else chosen


def _extra(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The fields of the body of the first of these steps."""
    extra: dict[str, Any] = {}
    if len(documents) > 1:
        extra["then"] = documents[1:]
    for name in ("keep", "group"):
        if name in documents[0]:
            extra[name] = documents[0][name]
    return extra
