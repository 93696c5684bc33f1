"""What a worker process runs: the tasks of an application, or plain messages by --exec or --http."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from .message_worker import MessageWorker
from .options import ServiceOptions


class Runner(Protocol):
    """The methods of a worker that a worker process needs."""

    def start(self) -> None: ...
    def quiet(self) -> None: ...
    def stop(self, grace: float) -> None: ...
    def close(self) -> None: ...
    def snapshot(self) -> dict[str, Any]: ...


def make_runner(
    options: ServiceOptions, name: str, app: Any, on_hard_timeout: Callable[[str], None]
) -> Runner:
    """Nothing is opened before `start`."""
    if options.app is not None:
        raise NotImplementedError
    target = options.target.keywords()
    [(queue, _)] = options.queues
    label = "exec" if options.exec_command is not None else "http"
    factory = _handler_factory(options)
    return MessageWorker(queue, factory, threads=options.threads, name=name, label=label, **target)


def _handler_factory(options: ServiceOptions) -> Callable[[], Any]:
    if options.exec_command is not None:
        from .exec_runner import ExecHandler

        command = options.exec_command
        return lambda: ExecHandler(
            command, timeout_s=options.timeout_s, retry_delay_s=options.retry_delay_s
        )
    from .http_runner import HttpHandler

    url = options.http_url or ""
    return lambda: HttpHandler(
        url, timeout_s=options.timeout_s, retry_delay_s=options.retry_delay_s, ca=options.target.ca
    )


def reason_not_to_run(options: ServiceOptions, app: Any) -> str | None:
    """Why the application cannot be run with these options."""
    from .app import App

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
        f"--processes {processes}: one process owns the data directory {path}; run `openq serve --data {path}` "
        "and give the application url= instead of path=, or use --processes 1 with more --threads"
    )


def describe_target(options: ServiceOptions, app: Any) -> dict[str, Any]:
    """Where the queues are, and whether one process must have them to itself."""
    target = options.target.keywords() if app is None else app.queues.target
    url, path = target.get("url"), target.get("path")
    if url is not None:
        from ..config import without_password

        return {"where": without_password(str(url)), "exclusive": False}
    return {"where": "memory" if path is None else os.fspath(path), "exclusive": True}


def _is_shared(target: dict[str, Any]) -> bool:
    """Other processes can use the queues too."""
    return target.get("url") is not None
