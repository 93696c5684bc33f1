"""One queue of a worker: a thread that receives as many jobs as can be run soon.

Behind a server they are pushed over a WebSocket, never more than the thread has asked for.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from ..client.feeds import Feed, FeedOptions
from ..client.message import ReceivedMessage
from ..errors import Closed, OpenQError
from ..model import Delivery
from .active import ActiveJob
from .consumers import ConsumerMessage
from .outage import RETRY_PAUSE_S
from .prefetch import MAX_PREFETCH, Prefetch

if TYPE_CHECKING:
    from .runner import Worker

log = logging.getLogger("openq.worker")

MAX_RECEIVE_S = 20.0  # one wait; then the next


class QueueRunner:
    """Receives the jobs of one queue. `queue` settles them, a feed of `_receiver` waits for them."""

    def __init__(self, worker: Worker, name: str, weight: int, fixed_prefetch: int | None) -> None:
        self.name = name
        self.weight = weight
        self.consumer = worker.app.consumers.get(name)
        self.queue = worker.app.queues.open_receiver(name)
        self.prefetch = Prefetch(fixed_prefetch)
        self._worker = worker
        self._receiver = worker.app.queues.open_receiver(name)
        # Leases outlive a lost connection: the jobs run on, and are settled by requests or by the next one.
        self._options = FeedOptions(
            MAX_PREFETCH, worker.app.lease, False, None, worker.name, on_demand=True, keeps_leases=True
        )
        self._feed: Feed | None = None
        # The lease of a message may have begun with the wait. Short waits keep that estimate good.
        self._receive_s = min(MAX_RECEIVE_S, worker.app.lease / 3)
        self._stopping = threading.Event()
        self._room = threading.Event()
        self._wants_room = False
        self._batches = 0  # of the consumer, in this worker
        self._batch_lock = threading.Lock()
        kinds = {task.is_coroutine for task in worker.app.tasks.values() if task.queue == name}
        if self.consumer is not None:
            kinds = {self.consumer.is_coroutine}
        self._kinds = kinds or {False}
        self._thread = threading.Thread(target=self._run, name=f"{worker.name}-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Receive nothing more. Messages on their way are returned."""
        self._stopping.set()
        self._room.set()
        feed = self._feed
        if feed is not None:
            feed.end()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def close(self) -> None:
        self._receiver.close()
        self.queue.close()

    def made_room(self) -> None:
        """A job ended. Called for every job, so it only looks at a flag."""
        if self._wants_room and self._capacity() > 0:
            self._room.set()

    def batch_ended(self) -> None:
        with self._batch_lock:
            self._batches -= 1

    def _capacity(self) -> int:
        """Jobs to receive now; 0 while enough are waiting."""
        if self.consumer is not None:
            return (self.consumer.batch or 1) if self._batches < self.consumer.concurrency else 0
        # A queue with functions and coroutines takes as many jobs as both can run: which kind comes next
        # is not known before it is received.
        return min(self._room_for(is_coroutine) for is_coroutine in self._kinds)

    def _room_for(self, is_coroutine: bool) -> int:
        worker = self._worker
        assert worker.ready is not None
        if is_coroutine:
            slots, idle, waiting = worker.coroutines, worker.loop.idle, worker.loop.count(self)
        else:
            slots, idle, waiting = worker.threads, worker.idle_threads, worker.ready.count(self)
        limit = self.prefetch.limit(slots)
        room = idle + limit - waiting
        # Few at a time would cost a call for each: wait until half of the stock is used up.
        return room if room * 2 >= limit or waiting < idle else 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                messages, began = self._receive()
            except Closed:
                break
            except OpenQError as error:
                if self._stopping.is_set():
                    break
                self._worker.outage.began(error)
                self._close_feed()
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            except Exception:
                log.exception("receiving from queue %r failed", self.name)
                self._close_feed()
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            if messages:
                self._dispatch(messages, began)
        self._close_feed()

    def _receive(self) -> tuple[list[ReceivedMessage], float]:
        """The next messages, if there is room for some, and a moment before their leases began."""
        feed = self._feed or self._open_feed()
        # `stop` sets its flag before it looks for a feed to end, so one of the two sees the other.
        if self._stopping.is_set():
            return [], 0.0
        number = self._capacity()
        if number > 0:
            deliveries = feed.take(number, self._receive_s)
            self._worker.outage.ended()
        else:
            deliveries = feed.pause()
            if not deliveries:
                self._wait_for_room()
        return self._loaded(deliveries), feed.leased_s

    def _open_feed(self) -> Feed:
        core = self._receiver.core
        feed = self._feed = core.handle.new_feed(core, self._options)
        feed.on_ready = self._room.set  # messages that come while there is no room for them
        return feed

    def _loaded(self, deliveries: list[Delivery]) -> list[ReceivedMessage]:
        core = self._receiver.core
        if not deliveries:
            return []
        loaded = core.load(deliveries)
        if core.broker.observed:
            core.broker.announce()
        return [ReceivedMessage(self._receiver, delivery) for delivery in loaded]

    def _close_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _wait_for_room(self) -> None:
        self._wants_room = True
        self._room.clear()
        if self._capacity() <= 0 and not self._stopping.is_set():
            self._room.wait(1.0)  # the average may have changed without a job that ended
        self._wants_room = False

    def _dispatch(self, messages: list[ReceivedMessage], began: float) -> None:
        worker = self._worker
        received = time.monotonic()
        if received >= began + worker.app.lease:  # the process may have been paused since the messages came
            log.warning(
                "%d messages of queue %r arrived after their lease had ended (was the process paused?); "
                "they are given back",
                len(messages),
                self.name,
            )
            self._release(messages)
            return
        if self.consumer is not None:
            self._dispatch_batch(messages, received, began)
            return
        app = worker.app
        tasks = app.tasks
        functions: list[ActiveJob] = []
        coroutines: list[ActiveJob] = []
        unknown: list[ActiveJob] = []
        for message in messages:
            task = tasks.get(message.message_type or "")
            if task is None:
                unknown.append(ActiveJob(app, None, [message], self, received, began))
            elif task.is_coroutine:
                coroutines.append(ActiveJob(app, task, [message], self, received, began))
            else:
                functions.append(ActiveJob(app, task, [message], self, received, began))
        worker.received(self, functions, coroutines, unknown)

    def _dispatch_batch(self, messages: list[ReceivedMessage], received: float, began: float) -> None:
        assert self.consumer is not None
        worker = self._worker
        own = [ConsumerMessage(self.queue, each.delivery, lambda: worker.loop.pool) for each in messages]
        job = ActiveJob(worker.app, None, [*own], self, received, began)
        with self._batch_lock:
            self._batches += 1
        is_coroutine = self.consumer.is_coroutine
        worker.received(self, [] if is_coroutine else [job], [job] if is_coroutine else [], [])

    def release(self, jobs: list[ActiveJob]) -> None:
        """Return jobs at once and uncounted."""
        messages = [message for job in jobs for message in job.messages if not message.settled]
        if messages:
            self._release(messages)

    def _release(self, messages: list[ReceivedMessage]) -> None:
        try:
            self.queue.release_many(messages)
        except OpenQError as error:
            log.warning(
                "%d messages of queue %r could not be given back: %s", len(messages), self.name, error
            )
