"""One queue of a worker: a thread that receives as many jobs as can be run soon."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from ..client.message import ReceivedMessage
from ..errors import Closed, OpenQError
from .active import ActiveJob
from .outage import RETRY_PAUSE_S
from .prefetch import Prefetch

if TYPE_CHECKING:
    from .runner import Worker

log = logging.getLogger("openq.worker")

RECEIVE_S = 20.0  # one wait; then the next


class QueueRunner:
    """Receives the jobs of one queue. `queue` settles them, `_receiver` waits for them."""

    def __init__(self, worker: Worker, name: str, weight: int, fixed_prefetch: int | None) -> None:
        self.name = name
        self.weight = weight
        self.consumer: Any = None
        self.queue = worker.app.queues.open(name)
        self.prefetch = Prefetch(fixed_prefetch)
        self._worker = worker
        self._receiver = worker.app.queues.open_receiver(name)
        self._stopping = threading.Event()
        self._room = threading.Event()
        self._wants_room = False
        self._thread = threading.Thread(target=self._run, name=f"{worker.name}-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Receive nothing more. Messages on their way are returned."""
        self._stopping.set()
        self._room.set()
        self._receiver.close()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def close(self) -> None:
        self._receiver.close()

    def made_room(self) -> None:
        """A job ended. Called for every job, so it only looks at a flag."""
        if self._wants_room and self._capacity() > 0:
            self._room.set()

    def _capacity(self) -> int:
        """Jobs to receive now; 0 while enough are waiting."""
        worker = self._worker
        assert worker.ready is not None
        idle = worker.idle_threads
        limit = self.prefetch.limit(worker.threads)
        waiting = worker.ready.count(self)
        room = idle + limit - waiting
        # Few at a time would cost a call for each: wait until half of the stock is used up.
        return room if room * 2 >= limit or waiting < idle else 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            number = self._capacity()
            if number <= 0:
                self._wait_for_room()
                continue
            try:
                began = time.monotonic()
                messages = self._receiver.receive_many(
                    number, RECEIVE_S, visibility_timeout=self._worker.app.lease, consumer=self._worker.name
                )
            except Closed:
                return
            except OpenQError as error:
                if self._stopping.is_set():
                    return
                self._worker.outage.began(error)
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            except Exception:
                log.exception("receiving from queue %r failed", self.name)
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            self._worker.outage.ended()
            if messages:
                self._dispatch(messages, began)

    def _wait_for_room(self) -> None:
        self._wants_room = True
        self._room.clear()
        if self._capacity() <= 0 and not self._stopping.is_set():
            self._room.wait(1.0)  # the average may have changed without a job that ended
        self._wants_room = False

    def _dispatch(self, messages: list[ReceivedMessage], received: float) -> None:
        app = self._worker.app
        tasks = app.tasks
        # A wait may be long: the lease began when the messages came, not when the wait did.
        now = max(received, time.monotonic() - 1.0)
        jobs: list[ActiveJob] = []
        for message in messages:
            task = tasks.get(message.message_type or "")
            if task is None:
                self._release_unknown(message)
                continue
            jobs.append(ActiveJob(app, task, [message], self, now))
        self._worker.received(self, jobs)

    def _release_unknown(self, message: ReceivedMessage) -> None:
        log.error("unknown task %r in queue %r", message.message_type, self.name)
        self.queue.nack(message, 5.0, f"unknown task {message.message_type!r}")

    def release(self, jobs: list[ActiveJob]) -> None:
        """Return jobs at once and uncounted."""
        messages = [message for job in jobs for message in job.messages if not message.settled]
        if not messages:
            return
        try:
            self.queue.core.release(messages)
        except OpenQError as error:
            log.warning(
                "%d messages of queue %r could not be given back: %s", len(messages), self.name, error
            )
