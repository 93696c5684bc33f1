"""`openq worker run`."""

from __future__ import annotations

import os
import secrets
import socket
from argparse import Namespace
from difflib import get_close_matches

from ..config import DEFAULT_URL
from ..worker.options import ServiceOptions, TargetOptions
from ..worker.service import run_service
from .api import UsageError, token_of

_COMMANDS = ("run", "ls", "show", "quiet", "stop")


def run(options: Namespace) -> int:
    return run_service(read_options(options))


def read_options(options: Namespace) -> ServiceOptions:
    app = options.app
    if app is None and options.exec is None and options.http is None:
        app = os.environ.get("OPENQ_WORKER_APP")
    given = [each for each in (app, options.exec, options.http) if each]
    if len(given) != 1:
        raise UsageError(
            "give one of MODULE:APP, --exec and --http"
            if given
            else "nothing to run: give MODULE:APP, --exec or --http, or set OPENQ_WORKER_APP; see "
            "`openq worker run --help`"
        )
    if app is not None and ":" not in app:
        close = get_close_matches(app, _COMMANDS, 1)
        if close:
            raise UsageError(f"unknown command: worker {app} (did you mean worker {close[0]}?)")
    target = TargetOptions()
    if app is None:
        target = _target(options)
        _check_messages(options)
    else:
        _refuse_target(options)
    unit = unique_name()
    return ServiceOptions(
        name=options.name or unit,
        unit=unit,
        app=app,
        exec_command=options.exec,
        http_url=options.http,
        queues=options.queues or (),
        target=target,
        processes=options.processes,
        threads=options.threads,
        coroutines=options.coroutines,
        prefetch=options.prefetch,
        grace_s=options.grace,
        max_tasks=options.max_tasks,
        max_memory=options.max_memory,
        timeout_s=options.timeout,
        retry_delay_s=options.retry_delay,
        health_port=options.health_port,
        reload=options.reload,
        preload=False if options.no_preload else None,
        as_json=options.json,
        log_level=options.log_level,
    )


def unique_name() -> str:
    """Host and pid. In containers that share the name of their host every pid may be 1."""
    pid = os.getpid()
    return f"{socket.gethostname()[:100]}-{pid if pid != 1 else secrets.token_hex(3)}"


def _target(options: Namespace) -> TargetOptions:
    if options.data is not None:
        if options.url:
            raise UsageError("--data and --url cannot be combined")
        if options.processes > 1:
            from ..worker.adapters import one_process_only

            raise UsageError(one_process_only(options.data, options.processes))
        return TargetOptions(path=options.data)
    url = str(options.url or os.environ.get("OPENQ_URL") or DEFAULT_URL)
    is_server = url.startswith(("http://", "https://"))
    return TargetOptions(
        url=url,
        token=token_of(options) if is_server else None,
        ca=options.ca or os.environ.get("OPENQ_CA") or None,
    )


def _check_messages(options: Namespace) -> None:
    flag = "--exec" if options.exec else "--http"
    if not options.queues or len(options.queues) != 1:
        raise UsageError(f"{flag} needs one --queue")
    if options.reload:
        raise UsageError(f"--reload is for applications, not for {flag}")
    if options.http:
        from ..worker.http_runner import check_url

        check_url(options.http)


def _refuse_target(options: Namespace) -> None:
    for name in ("url", "data", "token", "token_file", "ca", "timeout"):
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for --exec and --http; an application says where its queues are")
