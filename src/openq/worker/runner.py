"""`Worker`: receives jobs, runs them in threads and on an event loop, and settles them.

fetch thread (one per queue) -> ReadyJobs -> threads -> Acks -> broker
                             -> event loop (coroutines) ---^
lease thread: extends what is held, gives back what waits too long

"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import OpenQError
from .acks import Acks
from .active import ActiveJob
from .errors import InvalidTask, JobCancelled, LeaseLost, TimeLimitExceeded, WorkerStopped
from .execution import Execution
from .fetching import QueueRunner
from .leases import LeaseKeeper
from .loops import LoopThread
from .outage import Outage
from .ready import ReadyJobs
from .slots import Slot
from .snapshot import RunningJob, WorkerSnapshot
from .stats import Stats
from .unknown import UnknownJobs
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .app import App

log = logging.getLogger("openq.worker")

MAX_WAIT_S = 2.0  # a job that waits longer for a thread is given back, for other workers
DEFAULT_GRACE_S = 30.0
CANCEL_CHECK_S = 0.5


class Worker:
    """Runs the jobs of an app in this process.

    `queues` are names, or weights by name; None means all queues of the app. `threads` run functions,
    `coroutines` is the number of coroutines at a time. `prefetch` is "auto" or the number of jobs to take
    ahead. `on_hard_timeout` is called with a job that exceeds its hard_timeout; without it that is only
    logged.
    """

    def __init__(
        self,
        app: App,
        queues: Iterable[str] | Mapping[str, int] | None = None,
        *,
        threads: int = 8,
        coroutines: int = 100,
        prefetch: int | str = "auto",
        name: str | None = None,
        on_hard_timeout: Callable[[ActiveJob], None] | None = None,
    ) -> None:
        if threads < 1 or coroutines < 1:
            raise InvalidTask("a worker needs at least one thread and one coroutine")
        if prefetch != "auto" and (
            isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0
        ):
            raise InvalidTask(f"prefetch must be 'auto' or a number, not {prefetch!r}")
        self.app = app
        self.name = name or f"{socket.gethostname()[:40]}-{os.getpid()}"
        self.threads = threads
        self.coroutines = coroutines
        self.stats = Stats()
        self.outage = Outage()
        self.watchdog = Watchdog()
        self.is_quiet = False
        self._weights = _weights(app, queues)
        self._on_hard_timeout = on_hard_timeout
        self._fixed_prefetch = None if prefetch == "auto" else int(prefetch)
        self._started_at = 0.0
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()
        self._give_up_at = math.inf  # when running jobs are given back
        self._threads: list[threading.Thread] = []
        self._busy: set[int] = set()  # numbers of threads that run a handler
        self.sources: list[QueueRunner] = []
        self.leases = LeaseKeeper(app.lease, self.outage, self._lost, self._tick)
        self.acks = Acks(self.outage, self._acked, self._lost, self.leases.owns)
        self.execution = Execution(
            app, self.acks.add, self._handler_ended, self._report, self.leases.owns, self.outage
        )
        self.ready: ReadyJobs | None = None
        self.unknown = UnknownJobs()
        self.loop = LoopThread(self.execution, coroutines, self.name, self.watch, self._ended)

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the queues and start the threads; returns at once."""
        if self.sources:
            raise InvalidTask("this worker was started already; make a new Worker")
        self.app.declare()
        self._started_at = time.time()
        self.sources = [
            QueueRunner(self, name, weight, self._fixed_prefetch) for name, weight in self._weights.items()
        ]
        self.ready = ReadyJobs({source: source.weight for source in self.sources})
        self.leases.start(self.name)
        self.acks.start(self.name)
        for number in range(self.threads):
            thread = threading.Thread(
                target=self._work, args=(number,), name=f"{self.name}-{number + 1}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        for source in self.sources:
            source.start()
        log.info("worker %s runs queues %s", self.name, ", ".join(self._weights))

    def run(self) -> None:
        """Start, and return when the worker was stopped. Ctrl-C stops it."""
        self.start()
        try:
            self._stopped.wait()
        except KeyboardInterrupt:
            self.stop()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker has stopped."""
        return self._stopped.wait(timeout)

    def quiet(self) -> None:
        """Receive nothing more, and give back what has not started. Running jobs go on."""
        self.is_quiet = True
        for source in self.sources:
            source.stop()
        self.give_back(self._take_waiting())

    def stop(self, grace: float = DEFAULT_GRACE_S) -> None:
        """Stop receiving, let running jobs finish for `grace` seconds, give back the rest at once.

        A second call may shorten the grace period of the first; both return when the worker has stopped.
        """
        self._give_up_at = min(self._give_up_at, time.monotonic() + grace)
        with self._stop_lock:
            if self._stopped.is_set():
                return
            self._stopping.set()
            self.quiet()
            for source in self.sources:
                source.join(5)
            self.give_back(self._take_waiting())
            # Until every job is settled: not only running ones, but also those that are being acked.
            while len(self.leases) and time.monotonic() < self._give_up_at:
                time.sleep(0.01)
            self._interrupt_rest()
            if self.ready is not None:
                self.ready.stop(self.threads)
            self.acks.stop(max(self._give_up_at - time.monotonic(), 5.0))
            self.leases.stop()
            self.watchdog.stop()
            self.loop.stop()
            for source in self.sources:
                source.close()
            self._stopped.set()
            log.info("worker %s stopped", self.name)

    def _interrupt_rest(self) -> None:
        """The grace period is over: other workers may run these jobs now."""
        self.execution.is_giving_up = True
        rest = [job for job in self.leases.held() if not job.ended]
        for job in rest:
            log.warning("%s still runs and is given back", job.describe())
            job.is_lost = True  # first: a thread that is about to start it looks after it has its slot
            self.interrupt(job, WorkerStopped)
            job.interrupt = WorkerStopped  # whatever its handler does now
        self.give_back(rest)

    # -- jobs ---------------------------------------------------------------------------------

    def running(self) -> list[ActiveJob]:
        return [job for job in self.leases.held() if job.slot is not None]

    def _take_waiting(self) -> list[ActiveJob]:
        """Take out the jobs that have not started."""
        ready = [] if self.ready is None else self.ready.clear()
        return [*ready, *self.loop.clear(), *self.unknown.clear()]

    def received(
        self,
        source: QueueRunner,
        functions: list[ActiveJob],
        coroutines: list[ActiveJob],
        unknown: list[ActiveJob],
    ) -> None:
        """Jobs that were just received, from a fetch thread."""
        jobs = [*functions, *coroutines, *unknown]
        self.leases.hold(jobs)
        assert self.ready is not None
        if self.is_quiet:
            self.give_back(jobs)
            return
        if unknown:
            self.unknown.add(unknown)
        if coroutines:
            self.loop.add(coroutines)
        self.ready.add(source, functions)

    def _work(self, number: int) -> None:
        assert self.ready is not None
        slot, take, run, busy = Slot(), self.ready.take, self.execution.run, self._busy
        while (job := take()) is not None:
            busy.add(number)
            self.watch(job)
            run(job, slot)
            busy.discard(number)
            self._ended(job)

    def _ended(self, job: ActiveJob) -> None:
        """A handler has ended, and its thread or coroutine is free."""
        source: QueueRunner = job.source
        if source.consumer is not None:
            source.batch_ended()
        source.made_room()

    @property
    def idle_threads(self) -> int:
        return self.threads - len(self._busy)

    def interrupt(self, job: ActiveJob, kind: type[BaseException]) -> None:
        """Raise an exception in the handler of a job."""
        slot = job.slot
        if isinstance(slot, Slot):
            slot.interrupt(job, kind)
        else:
            self.loop.interrupt(job, kind)

    def give_back(self, jobs: list[ActiveJob]) -> None:
        """Return jobs to their queues, at once and uncounted."""
        by_source: dict[QueueRunner, list[ActiveJob]] = {}
        for job in jobs:
            by_source.setdefault(job.source, []).append(job)
        for source, some in by_source.items():
            source.release(some)
            for job in some:
                self.leases.drop(job)
                self.stats.add(job.name, source.name, "released")
                if source.consumer is not None and not job.started:
                    source.batch_ended()

    def watch(self, job: ActiveJob) -> None:
        """Start the timers of a job's `timeout` and `hard_timeout`."""
        task = job.task
        if task is None:
            timeout = job.source.consumer.timeout
            if timeout is not None and not job.source.consumer.is_coroutine:
                self.watchdog.watch(job, timeout, self._exceeded)
            return
        if task.declared.timeout is not None and not task.is_coroutine:
            self.watchdog.watch(job, task.declared.timeout, self._exceeded)
        if task.declared.hard_timeout is not None:
            self.watchdog.watch(job, task.declared.hard_timeout, self._exceeded_hard)

    def _exceeded(self, job: ActiveJob) -> None:
        self.interrupt(job, TimeLimitExceeded)

    def _exceeded_hard(self, job: ActiveJob) -> None:
        log.error("%s exceeded its hard_timeout", job.describe())
        if self._on_hard_timeout is not None:
            self._on_hard_timeout(job)

    # -- what the parts report ----------------------------------------------------------------

    def _handler_ended(self, job: ActiveJob) -> None:
        if not job.ended:
            job.ended = time.monotonic()
            job.source.prefetch.observe(job.ended - job.started)

    def _report(self, job: ActiveJob, outcome: str) -> None:
        """A job is settled: forget its lease and count its outcome."""
        self.leases.drop(job)
        self.stats.count(job.name, job.queue, outcome, job.runs_s, job.wait_s)

    def _acked(self, jobs: list[ActiveJob]) -> None:
        for job in jobs:
            self._report(job, "cancelled" if job.interrupt is JobCancelled else "done")

    def _lost(self, job: ActiveJob) -> None:
        if job.is_lost:
            return
        job.is_lost = True
        self.leases.drop(job)
        if job.slot is not None:
            self.interrupt(job, LeaseLost)
        elif self._remove_waiting(job) or job.ended:
            self.stats.add(job.name, job.queue, "lost")

    def _tick(self) -> None:
        """Once a second while jobs are held."""
        limit = time.monotonic() - MAX_WAIT_S
        waiting = [job for job in self.leases.held() if not job.started and job.received < limit]
        stale = [job for job in waiting if self._remove_waiting(job)]
        self.give_back([*stale, *self.unknown.due()])
        self._look_for_cancelled()
        for job in self.leases.held():
            if job.unreported is not None and not job.ended:
                job.write_unreported(job.source.queue)

    def _look_for_cancelled(self) -> None:
        """Jobs that have been here for a while; others end before anybody can cancel them."""
        limit = time.monotonic() - CANCEL_CHECK_S
        jobs = {
            job.id: job
            for job in self.leases.held()
            if job.task is not None and job.received < limit and not job.ended and job.interrupt is None
        }
        if not jobs:
            return
        try:
            flagged = self.app.store.cancelled_among(list(jobs), self.sources[0].queue)
        except OpenQError as error:
            self.outage.began(error)
            return
        for job_id in flagged:
            self.cancel(jobs[job_id])

    def cancel(self, job: ActiveJob) -> None:
        """End a job of this worker: it is acked and does not run again."""
        if job.slot is not None:
            self.interrupt(job, JobCancelled)
        elif self._remove_waiting(job):
            # Not in this thread, which extends the leases: it may wait for the broker.
            self.loop.pool.submit(self.execution.cancelled(job))

    def _remove_waiting(self, job: ActiveJob) -> bool:
        return (self.ready is not None and self.ready.remove(job)) or self.loop.remove(job)

    def snapshot(self) -> WorkerSnapshot:
        """What runs and what was done."""
        now = time.time()
        running = self.running()
        return WorkerSnapshot(
            name=self.name,
            pid=os.getpid(),
            started_at=self._started_at,
            queues=dict(self._weights),
            threads=self.threads,
            busy=len(running),
            held=len(self.leases),
            is_quiet=self.is_quiet,
            is_unreachable=self.outage.is_on,
            running=[
                RunningJob(job.id, job.name, job.queue, job.attempt, now - job.runs_s) for job in running
            ],
            tasks=self.stats.copy(),
        )


def _weights(app: App, queues: Iterable[str] | Mapping[str, int] | None) -> dict[str, int]:
    if queues is None:
        weights = dict.fromkeys(app.queues.with_handlers(), 1)
    elif isinstance(queues, Mapping):
        weights = dict(queues)
    else:
        weights = dict.fromkeys(queues, 1)
    unknown = sorted(weights.keys() - set(app.queues.with_handlers()))
    if unknown:
        raise InvalidTask(f"the app has no task or consumer for queue {', '.join(map(repr, unknown))}")
    if not weights:
        raise InvalidTask("the app has no tasks and no consumers")
    if any(
        isinstance(weight, bool) or not isinstance(weight, int) or weight < 1 for weight in weights.values()
    ):
        raise InvalidTask("the weight of a queue is a whole number, 1 or more")
    return weights
