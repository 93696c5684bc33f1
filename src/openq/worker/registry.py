"""A worker process in the registry of workers: it renews its entry, and waits for commands of operators."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .._version import __version__
from ..broker import workers
from ..broker.workers import RunningJob, WorkerCommand, WorkerEntry, WorkerStats
from ..client.http import Refused
from ..client.queues import Queue
from ..client.times import from_ms, iso
from ..errors import Closed, OpenQError
from .options import ServiceOptions
from .outage import is_transient
from .reports import stats_of

log = logging.getLogger("openq.worker")

PAUSE_S = 5.0  # after a call that failed
OBEY_S = 0.5  # after a command: the next entry shows its effect
END_S = 5.0  # for an entry that is being written when the process ends


class Registration:
    """The entry of one process. `report` is its snapshot, `obey` takes the commands."""

    def __init__(
        self,
        options: ServiceOptions,
        name: str,
        queue: Callable[[], Queue],
        report: Callable[[], dict[str, Any]],
        obey: Callable[[str], None],
    ) -> None:
        self._options = options
        self._name = name
        self._open = queue
        self._report = report
        self._obey = obey
        self._instance = secrets.token_hex(8)
        self._started = iso(from_ms(int(time.time() * 1000)))
        self._ended = threading.Event()
        self._renewing = threading.Lock()
        self._queue: Queue | None = None
        self._version = 0  # of our entry
        self._seen = 0  # version of the last command
        self._stats: WorkerStats | None = None  # as last written
        self._stats_at = 0.0
        self._has_warned = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="openq-registry", daemon=True).start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                # A queue object of its own, whose closing ends the wait for a command.
                if self._queue is None or self._queue.closed:
                    self._queue = self._open()
                self._renew(self._queue)
                self._wait_for_command(self._queue)
            except Closed:
                if self._ended.wait(PAUSE_S):
                    return
            except OpenQError as error:
                self._warn(error)
                self._ended.wait(PAUSE_S)

    def end(self) -> None:
        """Remove the entry. Called while the broker is still open; never raises."""
        self._ended.set()
        queue = self._queue
        if queue is None:
            return
        is_idle = self._renewing.acquire(timeout=END_S)  # an entry written after the delete would stay
        try:
            if self._version and is_idle:
                queue.kv(workers.WORKERS).delete(self._name, self._version)
        except OpenQError:
            pass  # it expires by itself
        queue.close()

    def _renew(self, queue: Queue) -> None:
        report = self._report()
        entry = self.entry(report)
        with self._renewing:
            if self._ended.is_set():
                return
            self._version = queue.kv(workers.WORKERS).put(
                self._name, workers.encode(entry), ttl=workers.ENTRY_TTL_S
            )
        self._has_warned = False
        now = time.monotonic()
        stats = self.stats(report)
        is_stale = now - self._stats_at > workers.STATS_TTL_S / 2
        if is_stale or (stats != self._stats and now - self._stats_at >= workers.STATS_INTERVAL_S):
            queue.kv(workers.STATS).put(self._name, workers.encode(stats), ttl=workers.STATS_TTL_S)
            self._stats, self._stats_at = stats, now

    def _wait_for_command(self, queue: Queue) -> None:
        entry = queue.kv(workers.COMMANDS).wait(self._name, workers.HEARTBEAT_S, self._seen)
        if entry is None or self._ended.is_set():
            return
        self._seen = entry.version
        command = workers.decode(entry.value, WorkerCommand)
        # An older process may have had the same name.
        if command is not None and command.instance == self._instance:
            self._obey(command.command)
            self._ended.wait(OBEY_S)

    def _warn(self, error: OpenQError) -> None:
        if self._has_warned or self._ended.is_set() or is_transient(error):
            return  # that the broker is unreachable is logged by the worker
        self._has_warned = True
        hint = ""
        if isinstance(error, Refused) and error.status == 403:
            hint = f"; allow send on {workers.WORKERS} and {workers.STATS}, and receive on {workers.COMMANDS}"
        log.warning("this process is not in the list of workers: %s%s", error, hint)

    def entry(self, report: dict[str, Any]) -> WorkerEntry:
        running = report.get("running", [])
        return WorkerEntry(
            name=self._name,
            service=self._options.name,
            instance=self._instance,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=self._started,
            version=__version__,
            python=platform.python_version(),
            runs=self._options.what,
            queues=dict(report.get("queues", {})),
            slots=report.get("slots", 0),
            busy=len(running),
            state=report.get("state", "running"),
            memory=report.get("memory", 0),
            running=[
                RunningJob(
                    id=job["id"],
                    task=job["task"],
                    queue=job["queue"],
                    attempt=job["attempt"],
                    since=iso(from_ms(job["since_ms"])),
                )
                for job in running[: workers.MAX_RUNNING]
            ],
        )

    def stats(self, report: dict[str, Any]) -> WorkerStats:
        return stats_of(report, self._instance)
