"""A worker for plain messages of one queue: `openq worker --exec` and `--http`.

Each of its threads takes a message from the feed of the worker, gives it to a handler and settles it as the
handler's outcome says. Behind a server the feed is a WebSocket, with credit for one message per thread.
It has the methods of `Worker`, so that a worker process treats both alike.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from ..client.feeds import Feed, FeedOptions
from ..client.message import ReceivedMessage
from ..client.queues import Queue
from ..client.receiving import collect_from
from ..errors import Closed, OpenQError
from .reports import stats_json
from .stats import Stats

log = logging.getLogger("openq.worker")

ERROR_PAUSE_S = 1.0  # after a receive that failed
ABORT_WAIT_S = 5.0  # for handlers that were aborted


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """How a delivery ends. Without a reason: acked. Without a delay: nacked as the retry policy says."""

    reason: str | None = None
    delay_s: float | None = None


ACK = HandlerOutcome()


class Handler(Protocol):
    """Handles one message at a time. Each thread of a worker has one of its own."""

    def handle(self, message: ReceivedMessage) -> HandlerOutcome: ...

    def abort(self) -> None:
        """End the message in hand soon, from another thread; its outcome does not count any more.

        Called at most once, when the worker stops: the handler gets no further message.
        """
        ...


class HandlerFactory(Protocol):
    def __call__(self) -> Handler: ...


class MessageWorker:
    """Runs a handler for the messages of one queue in `threads` threads."""

    def __init__(
        self, queue: str, factory: HandlerFactory, *, threads: int, name: str, label: str, **target: Any
    ) -> None:
        self.name = name
        self.label = label  # under which messages are counted: their types are chosen by publishers
        self._queue_name = queue
        self._target = target
        self._slots = [_Slot(self, factory()) for _ in range(threads)]
        self._queue: Queue | None = None
        self._feed: Feed | None = None
        self._feed_lock = threading.Lock()
        self.quieted = threading.Event()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.stats = Stats()
        self._stop_lock = threading.Lock()
        self._give_up_at = math.inf
        self.is_connected = False

    hard_limit_s: float | None = None

    def new_queue(self) -> Queue:
        """Another object of its queue."""
        return Queue(self._queue_name, **self._target)

    def queue(self) -> Queue:
        assert self._queue is not None, "the worker is started before it receives"
        return self._queue

    def start(self) -> None:
        """Open the queue and start the threads. Raises OpenQError if the queue cannot be opened."""
        self._queue = Queue(self._queue_name, codec="raw", **self._target)
        self.is_connected = True
        for slot in self._slots:
            slot.start()

    def quiet(self) -> None:
        """Receive nothing more. Messages in hand are finished."""
        self.quieted.set()
        feed = self._feed
        if feed is not None:
            feed.end()

    def feed(self) -> Feed:
        """The feed that all threads share."""
        with self._feed_lock:
            if self._feed is None:
                core = self.queue().core
                options = FeedOptions(len(self._slots), None, True, None, self.name, keeps_leases=True)
                self._feed = core.handle.new_feed(core, options)
            return self._feed

    def close_feed(self, feed: Feed | None) -> None:
        """After an error, or at the end: the next call of `feed` makes another."""
        with self._feed_lock:
            if feed is None or feed is not self._feed:
                return
            self._feed = None
        feed.close()

    def stop(self, grace: float) -> None:
        """Finish what runs within `grace` seconds, and return the rest to the queue at once.

        A second call may shorten the grace period of the first; both return when the worker has stopped.
        """
        self.quiet()
        with self.changed:
            self._give_up_at = min(self._give_up_at, time.monotonic() + grace)
            self.changed.notify_all()
            while (
                any(slot.message for slot in self._slots)
                and (left := self._give_up_at - time.monotonic()) > 0
            ):
                self.changed.wait(min(left, 3600))
        with self._stop_lock:  # a call whose messages another one gives back waits for it
            for slot in self._slots:
                slot.give_back()
        self.close_feed(self._feed)
        deadline = time.monotonic() + ABORT_WAIT_S
        for slot in self._slots:
            slot.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        self.close_feed(self._feed)
        if self._queue is not None:
            self._queue.close()

    def snapshot(self) -> dict[str, Any]:
        with self.lock:
            running = [slot.describe() for slot in self._slots]
        return {
            "queues": {self._queue_name: 1},
            "slots": len(self._slots),
            "connected": self.is_connected,
            "running": [each for each in running if each is not None],
            "tasks": stats_json(self.stats.copy()),
        }


class _Slot:
    """One thread of a worker, and the message that it has in hand."""

    def __init__(self, worker: MessageWorker, handler: Handler) -> None:
        self._thread = threading.Thread(target=self._run, name="openq-slot", daemon=True)
        self._worker = worker
        self._handler = handler
        self.message: ReceivedMessage | None = None
        self._is_settling = False
        self._since = 0.0
        self._started_ms = 0

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        worker = self._worker
        while not worker.quieted.is_set():
            feed: Feed | None = None
            try:
                feed = worker.feed()
                # `quiet` sets its flag before it looks for a feed to end, so one of the two sees the other.
                if worker.quieted.is_set():
                    return
                messages = collect_from(worker.queue(), feed, 1, None)
                worker.is_connected = True
            except Closed:
                return
            except OpenQError as error:
                worker.is_connected = False
                log.warning("cannot receive from queue %r: %s; trying again", worker.queue().name, error)
                worker.close_feed(feed)
                worker.quieted.wait(ERROR_PAUSE_S)
                continue
            for message in messages:
                if worker.quieted.is_set():
                    self._release(message)  # it came while the worker was told to receive nothing more
                else:
                    self._process(message)

    def _process(self, message: ReceivedMessage) -> None:
        worker = self._worker
        heartbeat = worker.queue().core.handle.heartbeat
        with worker.lock:
            self.message = message
            self._since = time.monotonic()
            self._started_ms = int(time.time() * 1000)
        heartbeat.hold(worker.queue().name, message.delivery)
        try:
            outcome = self._handler.handle(message)
        except Exception as error:
            log.exception("message %s could not be handled", message.id)
            outcome = HandlerOutcome(reason=f"{type(error).__name__}: {error}")
        heartbeat.drop(message.delivery)
        with worker.lock:
            was_given_back = self.message is None
            self._is_settling = True
        if not was_given_back:
            run_s = time.monotonic() - self._since
            fate = self._settle(message, outcome)
            worker.stats.count(worker.label, worker.queue().name, fate, run_s, _wait_s(message))
        with worker.changed:
            self.message = None
            self._is_settling = False
            worker.changed.notify_all()

    def _settle(self, message: ReceivedMessage, outcome: HandlerOutcome) -> str:
        """The outcome, for the statistics."""
        try:
            if outcome.reason is None:
                message.ack()
                return "done"
            fate = message.nack(outcome.delay_s, outcome.reason)
            log.warning("message %s was %s: %s", message.id, fate, outcome.reason)
            return "dead" if fate == "dead-lettered" else "retried"
        except OpenQError as error:
            # Its lease is over, or the broker is unreachable: the message is delivered again.
            log.warning("message %s could not be settled: %s", message.id, error)
            return "lost"

    def give_back(self) -> None:
        """Return the message in hand to its queue, uncounted, and abort its handler."""
        with self._worker.changed:
            if self.message is None or self._is_settling:
                return
            message, self.message = self.message, None
        self._worker.stats.add(self._worker.label, self._worker.queue().name, "released")
        self._handler.abort()
        self._worker.queue().core.handle.heartbeat.drop(message.delivery)
        self._release(message)

    def _release(self, message: ReceivedMessage) -> None:
        queue = self._worker.queue()
        try:
            queue.core.release([message])
        except OpenQError as error:
            log.warning("message %s could not be returned: %s; its lease will end", message.id, error)

    def describe(self) -> dict[str, Any] | None:
        message = self.message
        if message is None:
            return None
        return {
            "queue": self._worker.queue().name,
            "id": message.id,
            "task": self._worker.label,
            "attempt": message.receive_count,
            "since_ms": self._started_ms,
        }


def _wait_s(message: ReceivedMessage) -> float:
    """Seconds that the message was ready before it was delivered, by the clock of its broker."""
    entry = message.delivery.entry
    due_ms = entry.sent_ms if entry.options is None else max(entry.sent_ms, entry.options.due_ms)
    return max(message.delivery.delivered_ms - due_ms, 0) / 1000
