"""`openq.aio.Queue`, also called `openq.aio.OpenQ`: the methods of `openq.Queue` as coroutines.

Each call means what it means in `openq.client.queues`: the queue object inside does it without waiting, and
the waiting is done in `runner.py`. Methods that only pass a call on are made by `forwarding.py`. Only the
fast path of plain messages (publish, receive, ack) goes to the broker directly.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..client import checks, queues
from ..client.arrivals import Arrivals
from ..client.core import QueueCore
from ..client.events import make_event_filter, open_queue_pages
from ..client.hooks import call_hooks, overridden_hooks, run_hooks, run_hooks_many
from ..client.interface import LibraryBroker
from ..client.message import Message as AnyMessage
from ..client.message import PeekedMessage, ReceivedMessage
from ..client.publishing import PublishOptions, make_draft
from ..client.queues import RECEIVE_TIMEOUT
from ..client.settings import QueueOptions
from ..errors import (
    Closed,
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    QueueFull,
    StoreUnavailable,
    VisibilityTimeoutExpired,
)
from ..model import ENCODING_TEXT, NO_DEADLINE, Draft, QueueSettings
from .events import AsyncEventStream
from .forwarding import (
    AsyncExchanges,
    AsyncSchedules,
    AsyncWebhooks,
    changing,
    changing_in_thread,
    in_thread,
    quick,
    reading,
)
from .kv import AsyncKeyValue
from .listening import listen
from .message import Message
from .processing import AsyncChangeListener, AsyncProcessing
from .runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from ..client.codecs import BodyCodec, Codec
    from ..clock import Clock
    from .runner import AnyWait


class Queue:
    """A message queue for asyncio, with the settings and methods of `openq.Queue`.

    Opening a durable queue reads its journal, which may take a while: `await OpenQ.open(...)` does it
    in a thread, `OpenQ(...)` at once. The object may be used from several loops.

    With the `url` of a server the calls run in threads, at most 16 at a time and 256 waits for messages,
    and publishes and acks of many tasks share requests; in Redis they run on the loop itself, and the
    commands of many tasks leave together. What is not a coroutine here (`len`, `queue`, `settings`, ...)
    blocks the loop while it asks the server or Redis.
    """

    inner: queues.Queue
    core: QueueCore
    runner: Runner

    def __init__(
        self,
        name: str | int = "queue",
        visibility_timeout: float | None = None,
        dlq: Queue | queues.Queue | str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        url: str | None = None,
        broker: LibraryBroker | None = None,
        clock: Clock | None = None,
        codec: str | BodyCodec = "auto",
        storage: str | None = None,
        maxsize: int = 0,
        token: str | None = None,
        ca: str | None = None,
        reconnect: float | None = None,
        **settings: Unpack[QueueOptions],
    ) -> None:
        self.inner = queues.Queue(
            name,
            visibility_timeout,
            dlq.inner if isinstance(dlq, Queue) else dlq,
            path=path,
            url=url,
            broker=broker,
            clock=clock,
            codec=codec,
            storage=storage,
            maxsize=maxsize,
            token=token,
            ca=ca,
            reconnect=reconnect,
            **settings,
        )
        self.core = self.inner.core
        self.runner = Runner(self.inner)
        self.name = self.inner.name
        self._taken: dict[asyncio.Task[Any] | None, deque[Message]] = {}
        self._hooks = overridden_hooks(self, Queue)
        self._arrivals: Arrivals | None = None  # begins on the first loop that uses a queue with hooks
        if self.core.tracing is not None:
            from .traced import trace_queue

            trace_queue(self)

    @classmethod
    async def open(cls, *args: Any, **options: Any) -> Queue:
        """Like calling the class, without blocking the loop."""
        return await asyncio.to_thread(cls, *args, **options)

    # -- publishing ---------------------------------------------------------------------------

    async def publish(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        """Add a message; returns its id. The options are those of `openq.Queue.publish`."""
        if self._hooks:
            return await self._publish_heard(body, options)
        core, runner = self.core, self.runner
        if runner.executor is not None:
            return await self._publish_elsewhere(body, options)
        seq = 0
        if not options and type(body) is str and core.is_auto:
            try:
                seq = core.publish_body(core.name, body.encode(), ENCODING_TEXT)
            except UnicodeEncodeError as error:
                raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None
        if not seq and not options:
            data, encoding = core.codec.encode(body)
            seq = core.publish_body(core.name, data, encoding)
        if seq:
            message_id = core.id_format % seq
        else:
            message_id, _ = core.publish_draft(make_draft(core.codec, body, **options))
        if core.awaits_commit:
            future = runner.commit()
            if future is not None:
                await future
        if core.broker.observed:
            runner.emit_events()
        return message_id

    async def _publish_elsewhere(self, body: Any, options: PublishOptions) -> str:
        core, runner = self.core, self.runner
        if runner.loops is not None:
            if not options:
                data, encoding = core.codec.encode(body)
                soon = runner.loops.current().broker.publish_soon(core.name, data, encoding)
                if soon is not None:
                    return core.id_format % await soon
            return await runner.change(queues.Queue.publish, body, **options)
        message_id, _ = await self._store(make_draft(core.codec, body, **options))
        return message_id

    async def _store(self, draft: Draft) -> tuple[str, bool]:
        """The id of the message, and whether it is that of an earlier one."""
        calls = self.runner.calls()
        if calls is not None:
            return await calls.publish(draft)
        return await self.runner.change(_publish_draft, draft)

    async def _publish_heard(self, body: Any, options: PublishOptions) -> str:
        """Publish, and pass the message to the hooks."""
        draft = make_draft(self.core.codec, body, **options)
        with self._listening().publishing() as claim:
            message_id, is_duplicate = await self._store(draft)
            if not is_duplicate:
                claim([message_id])
        if not is_duplicate:
            run_hooks(self._hooks, message_id, body, options)
        return message_id

    def _listening(self) -> Arrivals:
        if self._arrivals is None:
            self._hook_loop = asyncio.get_running_loop()
            self._arrivals = Arrivals(self.inner, self._heard)
        return self._arrivals

    def _heard(self, message: AnyMessage) -> None:
        """A message that this object did not publish has arrived."""
        try:
            self._hook_loop.call_soon_threadsafe(call_hooks, self._hooks, message)
        except RuntimeError:
            pass  # the loop is closed

    async def publish_many(self, items: Iterable[Any]) -> list[str]:
        """Add many messages with one wait for the disk; see `openq.Queue.publish_many`."""
        if not self._hooks:
            ids, fresh, error = await self.runner.change(_publish_items, items)
        else:
            with self._listening().publishing() as claim:
                ids, fresh, error = await self.runner.change(_publish_items, items)
                claim([message_id for message_id, _ in fresh])
            run_hooks_many(self._hooks, fresh)
        if error is not None:
            raise error
        return ids

    def on_msg_received(self, message: Any) -> Any:
        """In a subclass: called with each new message. Here: registers a function to be called with each.

        Hooks run on the loop and hear every arrival once, from any publisher: for messages that this
        object publishes before `publish` returns, for others from the first hook or publish on a loop on. A
        hook that raises is logged; the message stays in the queue.
        """
        if not callable(message):
            return None
        self._hooks.append(message)
        try:
            self._listening()
        except RuntimeError:
            pass  # no loop runs here: it begins with the first publish
        return message

    onMsgReceived = on_msg_received

    # -- receiving ----------------------------------------------------------------------------

    async def receive(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
    ) -> Message | None:
        """The next message, waiting up to `timeout` seconds for one (None: for ever); None if none came.

        A task that is cancelled while it waits loses nothing: a message on its way to it returns at once.
        """
        core, runner = self.core, self.runner
        if visibility_timeout is None and types is None and attributes is None and consumer is None:
            if runner.executor is None:
                deliveries = core.receive_now(core.name, 1, None, core.label)
                if deliveries:
                    if core.loads:
                        deliveries = await runner.load(deliveries)
                    if core.broker.observed:
                        runner.emit_events()
            elif runner.loops is not None:
                soon = runner.loops.current().broker.receive_soon(core.name, 1, core.label)
                try:
                    deliveries = [] if soon is None else await soon
                except (Closed, StoreUnavailable):
                    if core.closed:
                        return None  # closing a queue ends every wait this way
                    deliveries = []  # Redis is unreachable: `receive_many` retries
            else:
                deliveries = []
            if deliveries:
                return Message(self, deliveries[0])
        received = await self.receive_many(
            1,
            timeout,
            visibility_timeout=visibility_timeout,
            types=types,
            attributes=attributes,
            consumer=consumer,
        )
        return received[0] if received else None

    async def receive_many(
        self,
        max: int = 10,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
    ) -> list[Message]:
        """Up to `max` messages: those ready now, or the first that come within `timeout`."""
        limit = checks.integer(max, "max", 1)
        wait = self.runner.new_wait(
            limit, visibility_timeout, checks.message_filter(types, attributes), consumer
        )
        return await self.collect(wait, checks.timeout_or_none(timeout))

    async def collect(self, wait: AnyWait, timeout: float | None) -> list[Message]:
        """The messages of a wait that come within `timeout` seconds."""
        runner = self.runner
        while True:
            deliveries = await wait.wait(timeout)
            if not deliveries:
                return []
            deliveries = await runner.load(deliveries)
            runner.emit_events()
            if deliveries:
                return [Message(self, delivery) for delivery in deliveries]
            # None of them is readable, and all are set aside: try the messages behind them.

    def processing(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
        heartbeat: bool = True,
    ) -> AsyncProcessing:
        """`async with queue.processing() as message:` acks at the end, nacks on an exception.

        Interrupted work (a cancelled task) does not count as a failure: the message returns at once and the
        delivery is not counted. The message is None if none came in time. Its lease is extended meanwhile,
        unless `heartbeat` is False.
        """
        wanted = checks.message_filter(types, attributes)
        wait = self.runner.new_wait(1, visibility_timeout, wanted, consumer)
        return AsyncProcessing(self, wait, checks.timeout_or_none(timeout), heartbeat)

    listen = listen

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages, until none comes within the default timeout of `receive`. Ack each.

        The lease of a message is extended until the next message is requested.
        """
        heartbeat = self.core.handle.heartbeat
        while (message := await self.receive()) is not None:
            heartbeat.hold(self.name, message.delivery)
            try:
                yield message
            finally:
                heartbeat.drop(message.delivery)

    # -- settling -----------------------------------------------------------------------------

    async def ack(self, target: AnyMessage | str) -> None:
        """Acknowledge: the message is never delivered again. Takes a message, receipt id or message id."""
        core, runner = self.core, self.runner
        if runner.loops is not None and type(target) is Message and target.queue is self:
            delivery = target.delivery
            broker = runner.loops.current().broker
            soon = broker.ack_soon(core.name, delivery.entry.seq, delivery.number)
            if soon is not None:
                try:
                    await soon
                except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                    raise type(error)(target.id, self.name) from None
                target.settled = True
                return
        if runner.executor is not None:
            calls = runner.calls()
            if calls is not None and type(target) is Message and target.queue is self:
                await calls.ack(target)
            else:
                await runner.change(queues.Queue.ack, target)
            return
        if type(target) is Message and target.queue is self:
            delivery = target.delivery
            try:
                core.ack_one(core.name, delivery.entry.seq, delivery.number)
            except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                raise type(error)(target.id, self.name) from None
            target.settled = True
        else:
            self.inner.ack(target)
        if core.awaits_commit:
            future = runner.commit()
            if future is not None:
                await future
        if core.broker.observed:
            runner.emit_events()

    async def ack_many(self, targets: Iterable[AnyMessage | str]) -> None:
        """Ack all of them with one wait for the disk. Raises the first error after the others were acked."""
        if self.runner.executor is not None:
            await self.runner.change(queues.Queue.ack_many, targets)
            return
        try:
            self.inner.ack_many(targets)
        finally:
            await self.runner.wait_durable()

    nack = changing(queues.Queue.nack)
    reject = changing(queues.Queue.reject)
    extend = changing(queues.Queue.extend)
    extend_many = changing(queues.Queue.extend_many)
    release_many = changing(queues.Queue.release_many)

    # -- inspecting ---------------------------------------------------------------------------

    peek = reading(queues.Queue.peek)
    peek_many = reading(queues.Queue.peek_many)
    search = in_thread(queues.Queue.search)
    stats = quick(queues.Queue.stats)

    @property
    def queue(self) -> list[PeekedMessage]:
        """A snapshot of the ready messages, in delivery order (delayed messages are not included)."""
        return self.inner.queue

    @property
    def in_flight(self) -> dict[str, tuple[AnyMessage, float]]:
        """A snapshot of the messages with consumers: id -> (message, time of delivery in epoch seconds)."""
        return {
            key: (Message(self, message.delivery), since)
            for key, (message, since) in self.inner.in_flight.items()
        }

    @property
    def messages(self) -> list[AnyMessage]:
        """A snapshot of all messages: ready, delayed and in flight."""
        return [
            Message(self, message.delivery) if isinstance(message, ReceivedMessage) else message
            for message in self.inner.messages
        ]

    def __len__(self) -> int:
        return len(self.inner)

    def __bool__(self) -> bool:
        return True

    @property
    def settings(self) -> QueueSettings:
        return self.inner.settings

    @property
    def visibility_timeout(self) -> float:
        return self.inner.visibility_timeout

    @property
    def dlq(self) -> str | None:
        return self.inner.dlq

    @property
    def maxsize(self) -> int:
        return self.inner.maxsize

    @property
    def codec(self) -> Codec:
        return self.inner.codec

    @property
    def broker(self) -> LibraryBroker:
        return self.inner.broker

    # -- history ------------------------------------------------------------------------------

    status = reading(queues.Queue.status)
    why = reading(queues.Queue.why)
    timeline = reading(queues.Queue.timeline)
    trace = reading(queues.Queue.trace)
    replay_from = replayFrom = changing_in_thread(queues.Queue.replay_from)

    # -- administration -----------------------------------------------------------------------

    purge = changing(queues.Queue.purge)
    cancel = changing(queues.Queue.cancel)
    edit = changing(queues.Queue.edit)
    move = changing(queues.Queue.move)
    reschedule = changing(queues.Queue.reschedule)
    redrive = changing_in_thread(queues.Queue.redrive)  # `progress` is called in that thread
    pause = changing(queues.Queue.pause)
    resume = changing(queues.Queue.resume)
    requeue_expired = quick(queues.Queue.requeue_expired)
    save = in_thread(queues.Queue.save)
    load = changing_in_thread(queues.Queue.load)

    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call `listener` with every event of this queue, in the thread that caused it; see `openq.Queue`."""
        return self.inner.subscribe(listener)

    def events(
        self,
        after: str | None = None,
        *,
        events: str | Iterable[str] | None = None,
        types: str | Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        bodies: bool = False,
        follow: bool = True,
    ) -> AsyncEventStream:
        """`async for event in queue.events():`; see `openq.Queue.events`.

        The stream begins with the first event that is asked for, or with `async with`.
        """
        if after is not None:
            checks.text(after, "after")
        wanted = make_event_filter(self.core.name, events, types, attributes)
        broker = self.inner.core.broker
        return AsyncEventStream(self, lambda: open_queue_pages(broker, wanted, after, bodies, follow))

    @property
    def exchanges(self) -> AsyncExchanges:
        """The exchanges of this queue's target; see `openq.Queue.exchanges`."""
        return AsyncExchanges(self.runner)

    def kv(self, bucket: str) -> AsyncKeyValue:
        """The values of a bucket on this queue's target; see `openq.KeyValue`."""
        return AsyncKeyValue(self.runner, bucket)

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules that publish to this queue; see `openq.Queue.schedules`."""
        return AsyncSchedules(self.runner)

    @property
    def webhooks(self) -> AsyncWebhooks:
        """The webhooks of this queue, if it is behind a server; see `openq.Queue.webhooks`."""
        return AsyncWebhooks(self.runner)

    # -- other names --------------------------------------------------------------------------

    async def enqueue(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        return await self.publish(body, **options)

    publish_msg = publishMsg = enqueue

    async def dequeue(self, timeout: float | None = RECEIVE_TIMEOUT) -> Message | None:
        return await self.receive(timeout)

    pull_msg = pullMsg = dequeue

    async def acknowledge(self, target: AnyMessage | str) -> None:
        await self.ack(target)

    delete = acknowledge

    # -- the interface of asyncio.Queue; every method is awaited because it may wait for the disk ---

    async def put(self, item: Any) -> None:
        """Add an item. With a `maxsize` it waits for room."""
        try:
            await self.publish(item)
            return
        except QueueFull:
            pass
        with AsyncChangeListener(self) as changes:
            while True:
                try:
                    await self.publish(item)
                    return
                except QueueFull:
                    await changes.wait()

    async def put_nowait(self, item: Any) -> None:
        """Raises `asyncio.QueueFull` where `put` would wait for room."""
        try:
            await self.publish(item)
        except QueueFull:
            raise asyncio.QueueFull from None

    async def get(self) -> Any:
        """The next item itself, not a message. It belongs to this process until `task_done`."""
        return await self._get(None)

    async def get_nowait(self) -> Any:
        """Raises `asyncio.QueueEmpty` where `get` would wait for an item."""
        return await self._get(0)

    async def _get(self, timeout: float | None) -> Any:
        received = await self.collect(self.runner.new_wait(1, lease_ms=NO_DEADLINE), timeout)
        if not received:
            raise asyncio.QueueEmpty
        self._taken.setdefault(asyncio.current_task(), deque()).append(received[0])
        return received[0].body

    async def task_done(self) -> None:
        """Finish the oldest item that this task got; if it got none, the oldest of another task."""
        own = asyncio.current_task()
        task = own if own in self._taken else next(iter(self._taken), _NO_TASK)
        if task is _NO_TASK:
            raise ValueError("task_done() called too many times")
        message = self._taken[task].popleft()
        if not self._taken[task]:
            del self._taken[task]
        try:
            await self.ack(message)
        except MessageNotFoundError:
            pass  # purged in the meantime

    async def join(self) -> None:
        """Wait until every item is done: no message is ready, delayed or in flight."""
        with AsyncChangeListener(self) as changes:
            while self.unfinished_tasks:
                await changes.wait()

    @property
    def unfinished_tasks(self) -> int:
        return self.inner.unfinished_tasks

    def qsize(self) -> int:
        return self.inner.qsize()

    def empty(self) -> bool:
        return self.inner.empty()

    def full(self) -> bool:
        return self.inner.full()

    # -- closing ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close this queue object. The last one on a target closes its broker."""
        if self._arrivals is not None:
            self._arrivals.close()
        await asyncio.to_thread(self.inner.close)
        self.runner.close()

    @property
    def closed(self) -> bool:
        return self.inner.closed

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self.inner).replace("openq.Queue", "openq.aio.Queue", 1)

    def _repr_html_(self) -> str:
        from ..client.notebook import queue_html

        return queue_html(self)


OpenQ = Queue

_NO_TASK: Any = object()


def _publish_draft(queue: queues.Queue, draft: Draft) -> tuple[str, bool]:
    result = queue.core.publish_draft(draft)
    queue.core.sync()
    return result


def _publish_items(
    queue: queues.Queue, items: Iterable[Any]
) -> tuple[list[str], list[tuple[str, Any]], OpenQError | None]:
    result = queue.core.publish_items(items)
    queue.core.sync()
    return result
