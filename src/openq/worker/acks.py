"""Acks, coalesced: everything that finished while the last ack was under way goes into the next one.

A thread that ran a handler does not wait for the ack. The lease is kept until the ack is confirmed.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, KvFull, OpenQError
from .outage import RETRY_PAUSE_S, Outage, is_closed, is_lost
from .store import RESULTS

if TYPE_CHECKING:
    from ..engine.key_values import KvPut
    from .active import ActiveJob

log = logging.getLogger("openq.worker")

MAX_BATCH = 1_000


class Acks:
    """The thread that acks, and writes the results just before. `on_acked` and `on_lost` get the jobs."""

    def __init__(
        self,
        outage: Outage,
        on_acked: Callable[[list[ActiveJob]], None],
        on_lost: Callable[[ActiveJob], None],
        owns: Callable[[ActiveJob], bool],
    ) -> None:
        self._outage = outage
        self._on_acked = on_acked
        self._on_lost = on_lost
        self._owns = owns
        self._finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._giving_up = threading.Event()
        self.add: Callable[[ActiveJob], None] = self._finished.put  # one C call for each job

    def start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=f"{name}-acks", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Ack everything that was added. False if that was not possible in time."""
        if self._thread is None:
            return True
        self._finished.put(None)
        self._thread.join(timeout)
        self._giving_up.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            batch, is_end = self._next_batch()
            by_source: dict[Any, list[ActiveJob]] = {}
            for job in batch:
                by_source.setdefault(job.source, []).append(job)
            for source, jobs in by_source.items():
                try:
                    self._ack(source, jobs)
                except Exception:
                    log.exception("%d jobs could not be acked: they are delivered again", len(jobs))
                    for job in jobs:
                        self._on_lost(job)
            if is_end:
                return

    def _next_batch(self) -> tuple[list[ActiveJob], bool]:
        """What finished, and whether that was all."""
        get = self._finished.get_nowait
        job = self._finished.get()
        batch: list[ActiveJob] = []
        while job is not None:
            batch.append(job)
            if len(batch) >= MAX_BATCH:
                return batch, False
            try:
                job = get()
            except queue.Empty:
                return batch, False
        return batch, True

    def _ack(self, source: Any, jobs: list[ActiveJob]) -> None:
        with_results = [job for job in jobs if job.result_put is not None]
        if with_results:
            # A result of a job that another worker may run by now is not written.
            lost = {id(job) for job in with_results if not self._owns(job)}
            jobs = [job for job in jobs if id(job) not in lost]
        puts = [job.result_put for job in jobs if job.result_put is not None]
        messages = [message for job in jobs for message in job.messages if not message.settled]
        while messages:
            for job in jobs:
                job.extend_at = math.inf  # an extension that comes after the ack would find no lease
            try:
                if puts:
                    self._keep_results(source, puts)  # first: a job that is acked has its result
                    puts = []
                source.queue.ack_many(messages)
                break
            except OpenQError as error:
                if is_closed(error):
                    return
                if not is_lost(error):
                    self._outage.began(error)
                    for job in jobs:
                        job.extend_at = 0.0
                    if self._giving_up.wait(RETRY_PAUSE_S):
                        return  # the leases end by themselves, and the jobs run again
                    messages = [message for message in messages if not message.settled]
                    continue
                self._report_lost(jobs)
                break
        self._outage.ended()
        self._on_acked([job for job in jobs if not job.is_lost])

    def _keep_results(self, source: Any, puts: list[KvPut]) -> None:
        try:
            source.queue.kv(RESULTS).put_many(puts)
        except (KvFull, InvalidSetting) as error:
            # The jobs are done. Acks of all jobs wait here, so they must not wait for room.
            log.error("the results of some of %d jobs are not kept: %s", len(puts), error)

    def _report_lost(self, jobs: list[ActiveJob]) -> None:
        for job in jobs:
            if not all(message.settled for message in job.messages):
                self._on_lost(job)
