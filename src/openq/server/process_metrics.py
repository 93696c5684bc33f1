"""Metrics of the process and the machine: memory, CPU, descriptors, disk, and the lag of the event loop.

Names that begin with `process_` are those that Prometheus's own client libraries use.
"""

from __future__ import annotations

import asyncio
import os
import resource
import threading
import time

from ..histograms import Histogram
from ..metrics import Family
from .admission import descriptor_limit, open_descriptors

LAG_INTERVAL_S = 0.25
_MICROSECOND = 0.000_001
_PAGE_BYTES = resource.getpagesize()


class ProcessFigures:
    def __init__(self, data: str | os.PathLike[str] | None) -> None:
        """`data` is the data directory, if there is one."""
        self._data = data
        self._lag = Histogram(_MICROSECOND, 7, 24)  # 128 microseconds to 17 seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._started_s = time.time()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure how late the loop runs its timers."""
        self._loop = loop
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        assert self._loop is not None
        self._due_s = self._loop.time() + LAG_INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._observe)

    def _observe(self) -> None:
        assert self._loop is not None
        self._lag.observe(int((self._loop.time() - self._due_s) * 1_000_000))
        self._arm()

    def families(self) -> list[Family]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return [
            Family(
                "openq_event_loop_lag_seconds",
                "histogram",
                "How late the event loop ran a timer that was due: what every request waits besides its own.",
                [({}, self._lag.value())],
            ),
            Family(
                "process_cpu_seconds_total",
                "counter",
                "Total user and system CPU time spent in seconds.",
                [({}, round(used.ru_utime + used.ru_stime, 3))],
            ),
            Family(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory size in bytes.",
                [({}, _resident_bytes())],
            ),
            Family(
                "process_open_fds", "gauge", "Number of open file descriptors.", [({}, open_descriptors())]
            ),
            Family(
                "process_max_fds",
                "gauge",
                "Maximum number of open file descriptors.",
                [({}, descriptor_limit())],
            ),
            Family(
                "process_start_time_seconds",
                "gauge",
                "Start time of the process since unix epoch in seconds.",
                [({}, round(self._started_s, 3))],
            ),
            Family("openq_threads", "gauge", "Threads of the server.", [({}, threading.active_count())]),
            *self._disk(),
        ]

    def _disk(self) -> list[Family]:
        if self._data is None:
            return []
        try:
            found = os.statvfs(self._data)
        except OSError:
            return []
        return [
            Family(
                "openq_disk_free_bytes",
                "gauge",
                "Free bytes of the file system of the data directory.",
                [({}, found.f_bavail * found.f_frsize)],
            ),
            Family(
                "openq_disk_size_bytes",
                "gauge",
                "Size of the file system of the data directory.",
                [({}, found.f_blocks * found.f_frsize)],
            ),
        ]


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
