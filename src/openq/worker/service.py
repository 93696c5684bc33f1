"""`openq worker run`: a supervisor with its health port and its watch over the source files."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from .._version import __version__
from ..errors import OpenQError
from .health import HealthPort
from .logs import set_up_logging
from .options import ServiceOptions
from .reload import FileWatch
from .supervisor import Supervisor

log = logging.getLogger("openq.worker")

EXIT_FAILED = 1


class PortTaken(OpenQError):
    """The port of --health-port is in use."""

    code = "port_taken"


def run_service(options: ServiceOptions) -> int:
    """Run until a signal, or until the application cannot be loaded. Returns the exit code."""
    set_up_logging(options, options.name)
    health: HealthPort | None = None

    def announce(supervisor: Supervisor) -> None:
        values = start_values(options, supervisor, health)
        if options.as_json:
            print(json.dumps(values), flush=True)
        else:
            print(start_text(options, values), flush=True)

    supervisor = Supervisor(options, on_ready=announce)
    if options.health_port is not None:
        try:
            health = HealthPort(supervisor, options.health_port)
        except OSError as error:
            raise PortTaken(f"--health-port {options.health_port}: {error.strerror}") from None
    if options.reload:
        supervisor.add_timer(FileWatch(supervisor.files, supervisor.restart).look)
    code = supervisor.run()
    if supervisor.error is not None:
        print(f"openq: {supervisor.error}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    if options.as_json:
        print(json.dumps({"event": "stopped", "name": options.name}), flush=True)
    else:
        print("stopped", flush=True)
    return code


def start_values(
    options: ServiceOptions, supervisor: Supervisor, health: HealthPort | None
) -> dict[str, Any]:
    return {
        "event": "ready",
        "name": options.name,
        "version": __version__,
        "pid": os.getpid(),
        "runs": options.what,
        "where": supervisor.where,
        "queues": supervisor.queues,
        "processes": options.processes,
        "threads": options.threads,
        "health_url": None if health is None else health.url,
    }


def start_text(options: ServiceOptions, values: dict[str, Any]) -> str:
    processes = "1 process" if options.processes == 1 else f"{options.processes} processes"
    threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    lines = [
        f"OpenQ {__version__} worker {options.name} is ready: {options.what}",
        f"  runs       {processes} with {threads}, pid {values['pid']}",
        f"  queues     {', '.join(values['queues']) or '-'}",
        f"  broker     {values['where'] or 'memory'}",
    ]
    if values["health_url"] is not None:
        lines.append(f"  health     {values['health_url']}/readyz   metrics: {values['health_url']}/metrics")
    lines.append(f"Ctrl-C or SIGTERM finishes what runs within {options.grace_s:g} s; SIGHUP restarts.")
    return "\n".join(lines)
