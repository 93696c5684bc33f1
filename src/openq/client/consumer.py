"""`Consumer`: a thread that receives messages, runs a handler, and acks."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from ..errors import Closed, Forked, InvalidSetting, JournalFailed, OpenQError, QueueNotFound
from ..model import MessageFilter
from . import checks
from .failures import describe_attempt, is_handler_failure
from .feeds import Feed, FeedOptions
from .message import Message, ReceivedMessage
from .queues import RECEIVE_TIMEOUT, Queue
from .receiving import collect_from
from .settings import environment_number
from .times import to_ms

log = logging.getLogger("openq")


class _FromEnvironment:
    """The default of an argument, as `help` shows it."""

    def __repr__(self) -> str:
        return "<OPENQ_IDLE_TIMEOUT>"


FROM_ENVIRONMENT: Any = _FromEnvironment()
_numbers = count(1)

ERROR_PAUSE_S = 1.0  # after a receive that failed


def default_idle_timeout(otherwise: float | None) -> float | None:
    """The default of both kinds of consumers: from the environment, else `otherwise`."""
    number = environment_number("idle_timeout", math.inf if otherwise is None else otherwise)
    checks.seconds_or_none(number, "the environment variable OPENQ_IDLE_TIMEOUT")
    return None if number == math.inf else number


def idle_reason(idle_timeout: float | None, is_closed: bool) -> str:
    """Why a wait returned without a message."""
    if is_closed or idle_timeout is None:
        return "the queue was closed"
    return f"no message came for {idle_timeout:g} s (idle_timeout)"


FORKED_REASON = "this process was forked after the queue was opened"


def interrupted_reason(error: BaseException) -> str:
    return f"it was interrupted ({type(error).__name__})"


def log_end(name: str, queue: str, why: str, processed: int, failed: int) -> None:
    log.info("%s of queue %r ended because %s: %d processed, %d failed", name, queue, why, processed, failed)


class ConsumerLoop:
    """The loop of a consumer: receive, run the handler, settle.

    Separate from the thread that runs it: `threading.Thread` has private attributes, which differ between
    versions of Python, and our names must not collide with them.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[ReceivedMessage], object] | None,
        *,
        name: str,
        idle_timeout: float | None,
        visibility_timeout: float | None,
        heartbeat: bool,
        batch: int,
        wanted: MessageFilter | None,
    ) -> None:
        self.queue = queue
        self.handler = handler
        self.name = name
        self.idle_timeout = idle_timeout
        self.wanted = wanted
        self.processed = 0
        self.failed = 0
        self._visibility_timeout = visibility_timeout
        self._heartbeat = heartbeat
        self._batch = batch
        self._stopping = threading.Event()
        self._feed: Feed | None = None

    def run(self) -> None:
        ended = "it was stopped"
        try:
            while not self._stopping.is_set():
                try:
                    messages = self._next()
                except (Closed, JournalFailed, QueueNotFound, InvalidSetting):
                    raise
                except OpenQError as error:
                    # One message that cannot be read: it was returned, and others may be readable.
                    log.error("the consumer of queue %r could not receive: %s", self.queue.name, error)
                    self._close_feed()
                    self._stopping.wait(ERROR_PAUSE_S)
                    continue
                if not messages:
                    if not self._stopping.is_set():
                        ended = idle_reason(self.idle_timeout, self.queue.closed)
                    break
                self._process(messages)
        except Forked as error:
            ended = FORKED_REASON
            log.error("the consumer of queue %r stopped: %s", self.queue.name, error)
        except Closed:
            ended = "the queue was closed"  # by another thread
        except Exception as error:
            ended = f"receiving failed ({type(error).__name__})"
            log.exception("the consumer of queue %r stopped", self.queue.name)
        except BaseException as error:
            self._close_feed()
            log_end(self.name, self.queue.name, interrupted_reason(error), self.processed, self.failed)
            raise
        self._close_feed()
        log_end(self.name, self.queue.name, ended, self.processed, self.failed)

    def stop(self) -> None:
        self._stopping.set()
        feed = self._feed
        if feed is not None:
            feed.end()

    def _next(self) -> list[ReceivedMessage]:
        if self._feed is None:
            options = FeedOptions(
                self._batch, self._visibility_timeout, self._heartbeat, self.wanted, self.name
            )
            core = self.queue.core
            self._feed = core.handle.new_feed(core, options)
        # `stop` sets its flag before it looks for a feed to end, so one of the two sees the other.
        if self._stopping.is_set():
            return []
        return collect_from(self.queue, self._feed, self._batch, self.idle_timeout)

    def _close_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _process(self, messages: list[ReceivedMessage]) -> None:
        heartbeat = self.queue.core.handle.heartbeat
        if self._heartbeat:
            for message in messages:
                heartbeat.hold(self.queue.name, message.delivery)
        try:
            for i, message in enumerate(messages):
                if self._stopping.is_set() and i:
                    self._release(messages[i:])
                    return
                self._process_one(message)
                heartbeat.drop(message.delivery)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C where `run` was called in the main thread
                if self._feed is not None:
                    self._feed.end()  # first: what is released must not come back to this consumer
                self._release([message for message in messages if not message.settled])
            raise
        finally:
            for message in messages:
                heartbeat.drop(message.delivery)

    def _process_one(self, message: ReceivedMessage) -> None:
        try:
            self._handle(message)
        except BaseException as error:
            if not is_handler_failure(error):
                raise
            self.failed += 1
            log.error("%s failed", describe_attempt(message, self.queue.name), exc_info=error)
            self._finish(message, error)
        else:
            self.processed += 1
            self._finish(message, None)

    def _handle(self, message: ReceivedMessage) -> None:
        if self.handler is None:
            log.info("received message %s: %r", message.id, message.body)
        else:
            self.handler(message)

    def _finish(self, message: ReceivedMessage, error: BaseException | None) -> None:
        if message.settled:
            return
        try:
            if error is not None:
                message.nack(reason=error)
            elif self._feed is not None:
                self._feed.finish(message)
        except Closed:
            raise
        except OpenQError as problem:
            # The lease ended while the handler ran: the message is or will be delivered again.
            log.warning("message %s could not be settled: %s", message.id, problem)

    def _release(self, messages: list[ReceivedMessage]) -> None:
        try:
            self.queue.core.release(messages)
        except OpenQError as problem:
            log.warning("%d messages could not be returned: %s", len(messages), problem)


class Consumer(threading.Thread):
    """Gives each message to `handler` and acks it; without a handler it only logs the message.

    A handler that raises returns the message with the exception's text and traceback: it is delivered again
    as the queue's retry policy says, and the consumer goes on with the others. It runs until `stop`, or until
    no message came for `idle_timeout` seconds (None, the default: it never ends by itself;
    OPENQ_IDLE_TIMEOUT sets another default). Leases are extended while the handler runs, unless `heartbeat`
    is False; `batch` is the number of messages received at once.
    """

    default_idle_timeout: float | None = None

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[ReceivedMessage], object] | None = None,
        *,
        idle_timeout: float | None = FROM_ENVIRONMENT,
        visibility_timeout: float | None = None,
        heartbeat: bool = True,
        batch: int = 1,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        name: str | None = None,
    ) -> None:
        checks.text_or_none(name, "name")
        if handler is not None:
            checks.function(handler, "handler")
        if visibility_timeout is not None:
            to_ms(visibility_timeout, "visibility_timeout")
        super().__init__(name=name or f"consumer-{queue.name}-{next(_numbers)}")
        if handler is not None and queue.core.tracing is not None:
            from .traced import traced_handler

            handler = traced_handler(queue, handler)
        if idle_timeout is FROM_ENVIRONMENT:
            idle_timeout = default_idle_timeout(self.default_idle_timeout)
        self.__loop = ConsumerLoop(
            queue,
            handler,
            name=self.name,
            idle_timeout=checks.seconds_or_none(idle_timeout, "idle_timeout"),
            visibility_timeout=visibility_timeout,
            heartbeat=heartbeat,
            batch=checks.integer(batch, "batch", 1),
            wanted=checks.message_filter(types, attributes),
        )

    @property
    def queue(self) -> Queue:
        return self.__loop.queue

    @property
    def handler(self) -> Callable[[ReceivedMessage], object] | None:
        return self.__loop.handler

    @property
    def idle_timeout(self) -> float | None:
        return self.__loop.idle_timeout

    @property
    def processed(self) -> int:
        """Messages that were handled."""
        return self.__loop.processed

    @property
    def failed(self) -> int:
        """Messages whose handler raised."""
        return self.__loop.failed

    def start(self) -> None:
        """Start the thread. Raises `Forked` in a forked child that cannot use the queue."""
        self.queue.core.check_not_forked()
        super().start()

    def run(self) -> None:
        self.__loop.run()

    def pull_msg(self, timeout: float | None = RECEIVE_TIMEOUT) -> ReceivedMessage | None:
        """One message for the caller to process, or None. Ack it by its own method or the consumer's."""
        wanted = self.__loop.wanted
        if wanted is None:
            return self.queue.receive(timeout, consumer=self.name)
        attributes = dict(wanted.attributes)
        return self.queue.receive(timeout, consumer=self.name, types=wanted.types, attributes=attributes)

    pullMsg = pull_msg

    def ack(self, target: Message | str) -> None:
        self.queue.ack(target)

    acknowledge = ack

    def stop(self) -> None:
        """Stop receiving, at once. A message in process is finished and acked first."""
        self.__loop.stop()

    def close(self) -> None:
        """`stop`, and wait until the consumer has ended. Not for its own handler, which calls `stop`."""
        self.stop()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()
