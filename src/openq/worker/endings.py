"""What follows from the end of a job, before it is acked: its outcome, the next step, its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import codec
from .store import JobOutcome, now_ms

if TYPE_CHECKING:
    from ..engine.key_values import KvPut
    from .active import ActiveJob
    from .app import App


MAX_ERROR = 10_000  # characters of the text of an exception


class Ending:
    """The end of one job. Making it encodes the result; `write` calls the broker, and may be repeated."""

    __slots__ = ("_app", "_group", "_outcome", "_then", "put")

    def __init__(
        self,
        app: App,
        job_id: str,
        task: str,
        result_ttl: float | None,
        document: dict[str, Any],
        outcome: JobOutcome,
    ) -> None:
        self._app = app
        self._outcome = outcome
        self._then: list[dict[str, Any]] = document.get("then") or []
        self._group: dict[str, Any] | None = document.get("group")
        ttl = max(result_ttl or 0, document.get("keep") or 0)
        self.put: KvPut | None = app.store.outcome_put(job_id, outcome, ttl, task) if ttl else None

    @classmethod
    def of(cls, app: App, job: ActiveJob, outcome: JobOutcome) -> Ending:
        task = job.task
        assert task is not None
        return cls(app, job.id, task.name, task.declared.result_ttl, job.document or {}, outcome)

    @property
    def blocks(self) -> bool:
        """Whether more than the outcome is to be written."""
        return bool(self._then) or self._group is not None

    def write(self) -> None:
        app, outcome = self._app, self._outcome
        if self.put is not None:
            app.store.put_outcome(self.put)
        if self._then:
            if outcome.state == "done":
                app.flows.send_next(self._then, outcome.result)
            else:
                app.flows.end_rest(self._then, outcome)
        group = self._group or (self._then[-1].get("group") if self._then else None)
        if group is not None and (self._group is not None or outcome.state != "done"):
            from .groups import member_ended

            member_ended(app, group, outcome)


def done(job: ActiveJob, result: Any) -> JobOutcome:
    task = job.task
    assert task is not None
    return JobOutcome("done", codec.encode_result(result, task.name), ended_ms=now_ms())


def failed(error: str) -> JobOutcome:
    # Always storable: a job whose failure cannot be stored would run again and again.
    text = error[:MAX_ERROR].encode("utf-8", "replace").decode()
    return JobOutcome("failed", error=text, ended_ms=now_ms())


def cancelled() -> JobOutcome:
    return JobOutcome("cancelled", ended_ms=now_ms())
