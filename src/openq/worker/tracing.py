"""Trace context in jobs: the W3C header `traceparent` as an attribute of the message.

While `openq.tracing` is on, an app has this middleware anyway: sending, running and settling a job are spans
by OpenTelemetry's conventions for messages. With only the OpenTelemetry API installed, the context of the
sender goes with the job and the handler runs in a span of its own. Without it, a job passes its `traceparent`
on to the jobs that it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import tracing
from .active import current_job_or_none
from .middleware import Middleware

if TYPE_CHECKING:
    from .active import ActiveJob
    from .enqueue import JobDraft

HEADERS = ("traceparent", "tracestate", "baggage")


class TraceContext(Middleware):
    """Carries the trace context from the sender of a job to its handler."""

    def __init__(self) -> None:
        self._api = _opentelemetry()
        self._spans = tracing.current()

    def before_enqueue(self, draft: JobDraft) -> None:
        if self._api is not None:
            self._api.propagate.inject(draft.attributes)  # the parent of the span that the queue makes
        job = current_job_or_none()
        if job is not None:
            for name in HEADERS:
                if name in job.attributes:
                    draft.attributes.setdefault(name, job.attributes[name])

    def before_process(self, job: ActiveJob) -> None:
        api = self._api
        if api is None:
            return
        if self._spans is not None:
            parent, links, count = self._spans.parent_and_links(job.messages)
            kind = api.trace.SpanKind.CONSUMER
            span = self._spans.start("process", "process", job.queue, kind, parent, links, count)
            span.set_attributes(
                {"messaging.message.id": job.id, "openq.task": job.name, "openq.attempt": job.attempt}
            )
            self._enter(job, span, parent)
            return
        carrier = {name: str(value) for name, value in job.attributes.items() if name in HEADERS}
        parent = api.propagate.extract(carrier)
        span = api.trace.get_tracer("openq.worker").start_span(
            job.name,
            context=parent,
            kind=api.trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "openq",
                "messaging.destination.name": job.queue,
                "messaging.message.id": job.id,
                "openq.attempt": job.attempt,
            },
        )
        self._enter(job, span, parent)

    def _enter(self, job: ActiveJob, span: Any, parent: Any) -> None:
        token = self._api.context.attach(self._api.trace.set_span_in_context(span, parent))
        job.state = {**(job.state or {}), "span": (span, token)}

    def after_process(self, job: ActiveJob, result: Any) -> None:
        self._end(job, None)

    def after_failure(self, job: ActiveJob, error: BaseException, retry_in: float | None) -> None:
        self._end(job, error)

    def after_interruption(self, job: ActiveJob, error: BaseException) -> None:
        self._end(job, error)

    def _end(self, job: ActiveJob, error: BaseException | None) -> None:
        if self._api is None or not job.state or "span" not in job.state:
            return
        span, token = job.state.pop("span")
        if error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(self._api.trace.Status(self._api.trace.StatusCode.ERROR, str(error)))
        self._api.context.detach(token)
        span.end()


def _opentelemetry() -> Any:
    """The parts of the API that are used here; None if it is not installed."""
    from importlib import import_module
    from types import SimpleNamespace

    try:
        parts = {name: import_module(f"opentelemetry.{name}") for name in ("context", "propagate", "trace")}
    except ImportError:
        return None
    return SimpleNamespace(**parts)
