"""What a worker process runs: the tasks of an application, or plain messages by --exec or --http."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..client.queues import Queue
from .active import ActiveJob
from .app import App
from .errors import TimeLimitExceeded
from .loading import AppNotLoaded
from .message_worker import MessageWorker
from .options import ServiceOptions
from .reports import stats_json
from .runner import Worker


class Runner(Protocol):
    """The methods of a worker that a worker process needs."""

    @property
    def hard_limit_s(self) -> float | None: ...  # the longest one of a task
    def new_queue(self) -> Queue: ...  # a new object of some queue of its target
    def start(self) -> None: ...
    def quiet(self) -> None: ...
    def stop(self, grace: float) -> None: ...
    def close(self) -> None: ...
    def snapshot(self) -> dict[str, Any]: ...


class AppRunner:
    """The worker of an application."""

    def __init__(
        self, options: ServiceOptions, name: str, app: App, on_hard_timeout: Callable[[str], None]
    ) -> None:
        self._app = app
        self._on_hard_timeout = on_hard_timeout
        self._has_coroutines = any(task.is_coroutine for task in app.tasks.values())
        self._worker = Worker(
            app,
            dict(options.queues) or None,
            threads=options.threads,
            coroutines=options.coroutines,
            prefetch="auto" if options.prefetch is None else options.prefetch,
            name=name,
            on_hard_timeout=self._exceeded,
        )

    @property
    def hard_limit_s(self) -> float | None:
        limits = [task.declared.hard_timeout for task in self._app.tasks.values()]
        return max((limit for limit in limits if limit is not None), default=None)

    def new_queue(self) -> Queue:
        return self._app.queues.open_receiver(next(iter(self._worker.snapshot().queues)))

    def start(self) -> None:
        self._worker.start()

    def quiet(self) -> None:
        self._worker.quiet()

    def stop(self, grace: float) -> None:
        self._worker.stop(grace)

    def close(self) -> None:
        self._app.close()

    def snapshot(self) -> dict[str, Any]:
        found = self._worker.snapshot()
        return {
            "queues": found.queues,
            "slots": found.threads + (self._worker.coroutines if self._has_coroutines else 0),
            "connected": not found.is_unreachable,
            "running": [
                {
                    "id": job.id,
                    "task": job.task,
                    "queue": job.queue,
                    "attempt": job.attempt,
                    "since_ms": int(job.started_at * 1000),
                }
                for job in found.running
            ],
            "tasks": stats_json(found.tasks),
            "hard_deadline_s": self._earliest_deadline(),
        }

    def _earliest_deadline(self) -> float | None:
        """Seconds until a running job is over its hard time limit."""
        left = [
            job.task.declared.hard_timeout - job.runs_s
            for job in self._worker.running()
            if job.task is not None and job.task.declared.hard_timeout is not None
        ]
        return min(left, default=None)

    def _exceeded(self, job: ActiveJob) -> None:
        """Called by the watchdog, which must not wait for the broker."""
        threading.Thread(target=self._give_up, args=(job,), name="openq-hard-timeout", daemon=True).start()

    def _give_up(self, job: ActiveJob) -> None:
        """Nack the job with the reason. A thread cannot be killed, so the process must end."""
        limit = None if job.task is None else job.task.declared.hard_timeout
        self._worker.quiet()
        self._worker.execution.is_giving_up = True  # an unreachable broker gets the job back by its lease
        self._worker.execution.failed(job, TimeLimitExceeded(f"longer than the hard limit of {limit:g} s"))
        self._on_hard_timeout(f"{job.describe()} ran longer than its hard limit of {limit:g} s")


def make_runner(
    options: ServiceOptions,
    name: str,
    app: Any,
    on_hard_timeout: Callable[[str], None],
    on_command: Callable[[int, bool], None],
) -> Runner:
    """Nothing is opened before `start`."""
    if options.app is not None:
        refusal = reason_not_to_run(options, app)
        if refusal is not None:
            raise AppNotLoaded(refusal)
        return AppRunner(options, name, app, on_hard_timeout)
    target = options.target.keywords()
    [(queue, _)] = options.queues
    label = "exec" if options.exec_command is not None else "http"
    factory = _handler_factory(options, on_command)
    return MessageWorker(queue, factory, threads=options.threads, name=name, label=label, **target)


def _handler_factory(options: ServiceOptions, on_command: Callable[[int, bool], None]) -> Callable[[], Any]:
    if options.exec_command is not None:
        from .exec_runner import ExecHandler

        command = options.exec_command
        return lambda: ExecHandler(
            command,
            timeout_s=options.timeout_s,
            retry_delay_s=options.retry_delay_s,
            report=on_command,
        )
    from .http_runner import HttpHandler

    url = options.http_url or ""
    return lambda: HttpHandler(
        url, timeout_s=options.timeout_s, retry_delay_s=options.retry_delay_s, ca=options.target.ca
    )


def reason_not_to_run(options: ServiceOptions, app: Any) -> str | None:
    """Why the application cannot be run with these options."""
    if not isinstance(app, App):
        return f"{options.app} is not an openq.worker.App, but {type(app).__name__}"
    if options.processes > 1 and not _is_shared(app.queues.target):
        path = app.queues.target.get("path")
        return one_process_only(None if path is None else str(path), options.processes)
    unknown = [name for name, _ in options.queues if name not in app.queues.declared]
    if unknown:
        return f"{options.app} has no queue {unknown[0]!r}; it has {', '.join(sorted(app.queues.declared))}"
    return None


def one_process_only(path: str | None, processes: int) -> str:
    if path is None:
        return (
            f"--processes {processes}: the queues of this application are in memory, where one process has "
            "them; give the application url= or path="
        )
    return (
        f"--processes {processes}: one process owns the data directory {path}; run "
        f"`openq serve --data {path}` and give the application url= instead of path=, or use --processes 1 "
        "with more --threads"
    )


def describe_target(options: ServiceOptions, app: Any) -> dict[str, Any]:
    """Where the queues are, and whether one process must have them to itself."""
    target = options.target.keywords() if app is None else app.queues.target
    url, path = target.get("url"), target.get("path")
    if url is not None:
        from ..parsing import without_password

        return {"where": without_password(str(url)), "exclusive": False}
    return {"where": "memory" if path is None else os.fspath(path), "exclusive": True}


def _is_shared(target: dict[str, Any]) -> bool:
    """Other processes can use the queues too."""
    return target.get("url") is not None
