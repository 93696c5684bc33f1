"""The worker services as they are deployed: the commands that start them, one process with eight threads."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .harness import Lap
from .server_processes import ROOT, ServerProcess
from .worker_common import THREADS, use_rivals
from .worker_stamps import OPENQ_URL, QUEUE, REDIS_PORT, STAMPS, Stamp, read_stamps, stamp

Send = Callable[[int], object]  # sends a job with the time of sending
PAUSE_S = (0.05, 0.15)  # between two jobs: the worker is idle again, and has been for a while


class WorkerService(ServerProcess):
    """A worker service, with a sender in the process that starts it. Ready means that it has run a job."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.stamps_path = os.path.join(folder, "stamps")
        self._send: Send | None = None

    def open_sender(self) -> Send:
        """How this process sends a job."""
        raise NotImplementedError

    def send(self) -> None:
        if self._send is None:
            self._send = self.open_sender()
        self._send(time.perf_counter_ns())

    def is_ready(self) -> bool:
        if self._send is None:
            self.send()
        return bool(read_stamps(self.stamps_path))

    def stamps(self, count: int, timeout_s: float = 60.0) -> list[Stamp]:
        """All stamps, once there are `count`."""
        deadline_s = time.monotonic() + timeout_s
        while len(found := read_stamps(self.stamps_path)) < count:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.name}: {len(found)} of {count} jobs ran")
            time.sleep(0.01)
        return found

    def worker_pid(self) -> int:
        """The process that ran the last job: beside it there may be one that watches over it."""
        return read_stamps(self.stamps_path)[-1].pid


class ServiceSender:
    """A contestant: sends jobs to its idle service, with pauses. The detail of a lap are the waits, in ms."""

    def __init__(self, make: Callable[..., WorkerService], count: int, *args: Any) -> None:
        self._service = make(*args)
        self._service.start()
        self._count = count
        self._pauses = random.Random(1)  # the same for both

    def lap(self, given: Any) -> Lap:
        before = len(read_stamps(self._service.stamps_path))
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(self._count):
            time.sleep(self._pauses.uniform(*PAUSE_S))
            self._service.send()
        found = self._service.stamps(before + self._count)
        waits = [stamp.wait_ms for stamp in found[before:]]
        return Lap(self._count, time.perf_counter() - wall, time.process_time() - cpu, waits)

    def close(self) -> None:
        self._service.stop()


class DramatiqService(WorkerService):
    name = "dramatiq"

    def __init__(self, folder: str, rivals: str, redis_port: int) -> None:
        super().__init__(folder)
        self._rivals = rivals
        self._redis_port = redis_port

    def argv(self) -> list[str]:
        sizes = ["--processes", "1", "--threads", str(THREADS)]
        return [sys.executable, "-m", "dramatiq", *sizes, "bench.worker_app_dramatiq"]

    def env(self) -> Mapping[str, str]:
        return {
            "PYTHONPATH": _python_path(self._rivals),
            REDIS_PORT: str(self._redis_port),
            STAMPS: self.stamps_path,
        }

    def open_sender(self) -> Send:
        use_rivals(self._rivals)
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        broker = RedisBroker(host="127.0.0.1", port=self._redis_port)
        send: Send = dramatiq.actor(stamp, broker=broker, queue_name=QUEUE).send
        return send


class OpenQService(WorkerService):
    name = "openq worker"

    def __init__(self, folder: str, url: str) -> None:
        super().__init__(folder)
        self._url = url

    def argv(self) -> list[str]:
        sizes = ["--processes", "1", "--threads", str(THREADS)]
        return [sys.executable, "-m", "openq", "worker", "bench.worker_app_openq:app", *sizes]

    def env(self) -> Mapping[str, str]:
        return {"PYTHONPATH": _python_path(), OPENQ_URL: self._url, STAMPS: self.stamps_path}

    def open_sender(self) -> Send:
        from openq.worker import App

        return App(url=self._url).task(queue=QUEUE)(stamp).send


def _python_path(*folders: str) -> str:
    """The benches, then the folders, then what the environment says."""
    return os.pathsep.join([str(ROOT), *folders, *filter(None, [os.environ.get("PYTHONPATH")])])
