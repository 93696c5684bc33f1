"""`openq.aio.Queue`, which is `openq.aio.OpenQ`: the verbs of `openq.Queue` as coroutines.

What a verb means is written once, in `openq.client.queues`; the queue object inside this one does
it without ever waiting, and the waiting is done here. Only the short way of plain messages
(publish, receive, ack) goes straight to the broker.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..broker.interface import QueueStats, TimelineStep
from ..client import checks, queues
from ..client.failures import retry_delay, was_interrupted
from ..client.hooks import Hooks
from ..client.inspector import FoundMessages
from ..client.interface import LibraryBroker, OnlyInProcess
from ..client.message import Message as AnyMessage
from ..client.message import PeekedMessage, ReceivedMessage
from ..client.publishing import PublishOptions, make_draft
from ..client.queues import RECEIVE_TIMEOUT
from ..client.settings import QueueOptions
from ..client.times import to_ms
from ..engine.why import Why
from ..errors import (
    Closed,
    InvalidSetting,
    MessageNotFoundError,
    NotOnThisStore,
    OpenQError,
    QueueFull,
    StoreUnavailable,
    VisibilityTimeoutExpired,
)
from ..local.broker import LocalBroker
from ..model import ENCODING_TEXT, NO_DEADLINE, Delivery, Draft, QueueSettings
from .threads import CallThreads, PooledWait
from .waiting import CommitFutures, TaskWait, commit_futures

if TYPE_CHECKING:
    from typing import Unpack

    from ..client.codecs import BodyCodec
    from ..clock import Clock
    from .redis_loop import LoopQueues, RedisTaskWait

    AnyWait = TaskWait | PooledWait | RedisTaskWait

T = TypeVar("T")

# Listeners are called by whoever makes a change; a change by a process that tells nobody is seen this late.
_RECHECK_S = 0.5


class _NonBlockingQueue(queues.Queue):
    """The queue inside: acts at once, and leaves the wait for the disk to its owner.

    Over Redis every verb waits: there it is as it always is, for threads; loops have `Here`.
    """

    awaits_commit: bool  # whether there is a disk to wait for

    def _open(self, name: str, dlq: queues.Queue | str | None, named: dict[str, Any]) -> None:
        super()._open(name, dlq, named)
        self.awaits_commit = self._syncs and not self._broker.waits
        self._syncs = self._syncs and self._broker.waits

    def _sync(self) -> None:
        if self._syncs:
            super()._sync()


class Message(ReceivedMessage):
    """A message on loan. `async with message:` acks at the end, nacks with the reason on an exception."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Queue, delivery: Delivery) -> None:
        # Not through super(): one is made for every message.
        self._queue = owner.inner
        self._delivery = delivery
        self._settled = False
        self._owner = owner

    async def ack(self) -> None:  # type: ignore[override]
        await self._owner.ack(self)

    async def nack(  # type: ignore[override]
        self, delay: float | None = None, reason: str | BaseException | None = None
    ) -> str:
        return await self._owner.nack(self, delay, reason)

    async def reject(self, reason: str | BaseException | None = None) -> str:  # type: ignore[override]
        return await self._owner.reject(self, reason)

    async def extend(self, seconds: float) -> datetime | None:  # type: ignore[override]
        return await self._owner.extend(self, seconds)

    def __enter__(self) -> ReceivedMessage:
        raise TypeError("use `async with` for a message of openq.aio")

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            if was_interrupted(error):
                await self._owner._release(self)
            else:
                await self.nack(retry_delay(error), error)
        except OpenQError:
            pass  # its lease is over: it comes back anyway, and the caller must see the first error


class Queue(Hooks):
    """A message queue for asyncio, with the settings and verbs of `openq.Queue`.

    Opening a durable queue reads its journal, which may take a while: `await OpenQ.open(...)` does it
    beside the loop, `OpenQ(...)` at once. The object may be used from several loops.

    With the `url` of a server the calls run in threads, at most 16 at a time and 256 waits for messages;
    in Redis they run on the loop itself, and those of many tasks leave together. What is no coroutine here
    (`len`, `queue`, `settings`, ...) asks the server or Redis while the loop stands still.
    """

    inner: _NonBlockingQueue

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
        self.inner = _NonBlockingQueue(
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
        self._loops: LoopQueues | None = None
        if self.inner._broker.waits:
            from .redis_loop import LoopQueues

            self._loops = LoopQueues(self.inner)
        # Who carries out verbs that wait for somebody elsewhere.
        self._executor: CallThreads | LoopQueues | None = (
            CallThreads() if self.inner._handle.is_remote else self._loops
        )
        self.name = self.inner.name
        self._commits: CommitFutures | None = None
        self._taken: dict[asyncio.Task[Any] | None, deque[Message]] = {}
        self._init_hooks(Queue)

    @classmethod
    async def open(cls, *args: Any, **options: Any) -> Queue:
        """The same as calling the class, without holding up the loop."""
        return await asyncio.to_thread(cls, *args, **options)

    # -- waiting ------------------------------------------------------------------------------

    def _on_loop(self, loop: asyncio.AbstractEventLoop) -> CommitFutures:
        commits = self._commits
        if commits is None or commits.loop is not loop:
            commits = self._commits = commit_futures(cast(LocalBroker, self.inner.broker), loop)
        return commits

    def _on_this_loop(self) -> queues.Queue:
        """The queue inside, as the running loop may use it."""
        return self.inner if self._loops is None else self._loops.current()

    async def _wait_durable(self) -> None:
        """Return once everything done so far is on disk; and tell those who listen to changes."""
        if self.inner.awaits_commit:
            future = self._on_loop(asyncio.get_running_loop()).future()
            if future is not None:
                await future
        self._emit_events()

    def _emit_events(self) -> None:
        broker = self.inner.broker
        if broker.observed:
            if self._loops is None:
                broker.tick()
            else:
                self._loops.start(self._loops.current()._loop_broker.announce)

    async def _run(self, verb: Callable[..., T], *args: Any, **options: Any) -> T:
        """A verb that acts at once, unless it waits for somebody elsewhere."""
        if self._executor is not None:
            return await self._executor.run(verb, *args, **options)
        result = verb(*args, **options)
        await self._wait_durable()
        return result

    async def _read(self, verb: Callable[..., T], *args: Any, **options: Any) -> T:
        """A verb that may read much from the disk, if there is one."""
        if self._executor is not None:
            return await self._executor.run(verb, *args, **options)
        if not self.inner._loads:
            return verb(*args, **options)
        return await asyncio.to_thread(verb, *args, **options)

    # -- in -----------------------------------------------------------------------------------

    async def publish(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        """Add a message; returns its id. The options are those of `openq.Queue.publish`."""
        inner = self.inner
        if self._executor is not None:
            return await self._publish_elsewhere(self._executor, body, options)
        seq, is_duplicate = 0, False
        if not options and type(body) is str and inner._auto:
            try:
                seq = inner._publish_body(inner.name, body.encode(), ENCODING_TEXT)
            except UnicodeEncodeError as error:
                raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None
        if not seq and not options:
            data, encoding = inner.codec.encode(body)
            seq = inner._publish_body(inner.name, data, encoding)
        if seq:
            message_id = inner._id_form % seq
        else:
            draft = make_draft(inner.codec, body, **options)
            message_id, is_duplicate = inner._publish_draft(draft)
        if inner.awaits_commit:
            future = self._on_loop(asyncio.get_running_loop()).future()
            if future is not None:
                await future
        if inner._broker.observed:
            self._emit_events()
        if self._has_hooks and not is_duplicate:
            self._run_hooks(message_id, body, options)
        return message_id

    async def _publish_elsewhere(
        self, executor: CallThreads | LoopQueues, body: Any, options: PublishOptions
    ) -> str:
        queue = self._on_this_loop()
        if self._loops is not None and not self._has_hooks:
            if not options:
                data, encoding = queue.codec.encode(body)
                soon = self._loops.current()._loop_broker.publish_soon(queue.name, data, encoding)
                if soon is not None:
                    return queue._id_form % await soon
            return await executor.run(queue.publish, body, **options)
        draft = make_draft(queue.codec, body, **options)
        message_id, is_duplicate = await executor.run(_publish_and_sync, queue, draft)
        if self._has_hooks and not is_duplicate:
            self._run_hooks(message_id, body, options)
        return message_id

    async def publish_many(self, items: Iterable[Any]) -> list[str]:
        """Many at once, with one wait for the disk; see `openq.Queue.publish_many`."""
        ids, fresh, error = await self._run(_publish_many_and_sync, self._on_this_loop(), items)
        if self._has_hooks:
            self._run_hooks_many(fresh)
        if error is not None:
            raise error
        return ids

    # -- out ----------------------------------------------------------------------------------

    async def receive(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
    ) -> Message | None:
        """The next message, waiting up to `timeout` seconds for one (None: for ever); None if none came.

        A task that is cancelled while it waits loses nothing: what was on its way to it goes back at once.
        """
        inner = self.inner
        if visibility_timeout is None and types is None and consumer is None and self._executor is None:
            deliveries = inner._receive_now(inner.name, 1, None, inner._label)
            if deliveries:
                if inner._loads:
                    deliveries = await self._load(deliveries)
                if inner._broker.observed:
                    self._emit_events()
                if deliveries:
                    return Message(self, deliveries[0])
        elif visibility_timeout is None and types is None and consumer is None and self._loops is not None:
            soon = self._loops.current()._loop_broker.receive_soon(inner.name, 1, inner._label)
            try:
                deliveries = [] if soon is None else await soon
            except (Closed, StoreUnavailable):
                if inner.closed:
                    return None  # as for any wait that the end of its queue ends
                deliveries = []  # Redis is away: the long way knows what to do
            if deliveries:
                return Message(self, deliveries[0])
        received = await self.receive_many(
            1, timeout, visibility_timeout=visibility_timeout, types=types, consumer=consumer
        )
        return received[0] if received else None

    async def receive_many(
        self,
        max: int = 10,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
    ) -> list[Message]:
        """Up to `max` messages: what is there at once, or the first that come within `timeout`."""
        wait = self._wait_for(checks.integer(max, "max", 1), visibility_timeout, types, consumer)
        return await self._received(wait, checks.timeout_or_none(timeout))

    def _wait_for(
        self,
        limit: int = 1,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
        lease_ms: int | None = None,
    ) -> AnyWait:
        inner = self.inner
        if isinstance(self._executor, CallThreads):
            wait = inner._wait_for(limit, visibility_timeout, types, consumer, lease_ms)
            return PooledWait(wait, self._executor)
        if visibility_timeout is not None:
            lease_ms = to_ms(visibility_timeout, "visibility_timeout")
        types = checks.types_or_none(types)
        if consumer is None:
            consumer = inner._label
        else:
            inner._labels.add(checks.text(consumer, "consumer"))
        if self._loops is not None:
            return self._loops.wait(limit, lease_ms, consumer, types)
        loop = asyncio.get_running_loop()
        broker = cast(LocalBroker, inner.broker)
        return TaskWait(broker, loop, inner.name, limit, lease_ms, consumer, types, inner._waits)

    async def _received(self, wait: AnyWait, timeout: float | None) -> list[Message]:
        while True:
            deliveries = await wait.wait(timeout)
            if not deliveries:
                return []
            deliveries = await self._load(deliveries)
            self._emit_events()
            if deliveries:
                return [Message(self, delivery) for delivery in deliveries]
            # None of them can be read, and all are set aside: what stands behind them is next.

    async def _load(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Nothing is seen before its publish is on disk. If that fails or we are cancelled, back it goes."""
        if self._executor is not None:
            if self._loops is not None:
                await self._loops.load(deliveries)
            return deliveries  # what a server shows is safe
        broker = cast(LocalBroker, self.inner.broker)
        try:
            if not broker.is_loaded(deliveries):
                future = self._on_loop(asyncio.get_running_loop()).future()
                if future is not None:
                    await future
            return broker.load(deliveries)
        except BaseException:
            self.inner._return_delivery(deliveries)
            raise

    async def ack(self, target: AnyMessage | str) -> None:
        """Done: the message is never delivered again. Takes a message, a receipt id or a message id."""
        inner = self.inner
        if self._loops is not None and type(target) is Message and target._owner is self:
            delivery = target._delivery
            soon = self._loops.current()._loop_broker.ack_soon(
                inner.name, delivery.entry.seq, delivery.number
            )
            if soon is not None:
                try:
                    await soon
                except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                    raise type(error)(target.id, self.name) from None
                target._settled = True
                return
        if self._executor is not None:
            await self._executor.run(self._on_this_loop().ack, target)
            return
        if type(target) is Message and target._owner is self:
            delivery = target._delivery
            try:
                inner._ack_one(inner.name, delivery.entry.seq, delivery.number)
            except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                raise type(error)(target.id, self.name) from None
            target._settled = True
        else:
            inner.ack(target)
        if inner.awaits_commit:
            future = self._on_loop(asyncio.get_running_loop()).future()
            if future is not None:
                await future
        if inner._broker.observed:
            self._emit_events()

    async def ack_many(self, targets: Iterable[AnyMessage | str]) -> None:
        """Ack all of them with one wait for the disk. Raises the first error after the others were acked."""
        if self._executor is not None:
            await self._executor.run(self._on_this_loop().ack_many, targets)
            return
        try:
            self.inner.ack_many(targets)
        finally:
            await self._wait_durable()

    async def nack(
        self,
        target: AnyMessage | str,
        delay: float | None = None,
        reason: str | BaseException | None = None,
    ) -> str:
        """Not done: back to its place; see `openq.Queue.nack`."""
        return await self._run(self._on_this_loop().nack, target, delay, reason)

    async def reject(self, target: AnyMessage | str, reason: str | BaseException | None = None) -> str:
        """Never again: to the dlq at once, or away if there is none."""
        return await self._run(self._on_this_loop().reject, target, reason)

    async def _release(self, message: Message) -> None:
        """Back to its place at once, not counted: the work on it was cut off."""
        await self._run(self._on_this_loop()._release, message)

    async def extend(self, target: AnyMessage | str, seconds: float) -> datetime | None:
        """A longer lease: `seconds` from now. Returns its new end."""
        return await self._run(self._on_this_loop().extend, target, seconds)

    def processing(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
        heartbeat: bool = True,
    ) -> AsyncProcessing:
        """`async with queue.processing() as message:` acks at the end, nacks on an exception.

        Work that is cut off (a cancelled task) did not fail: its message returns at once and its delivery
        does not count. The message is None if none came in time. Its lease is kept alive meanwhile, unless
        `heartbeat` is False.
        """
        wait = self._wait_for(1, visibility_timeout, types, consumer)
        return AsyncProcessing(self, wait, checks.timeout_or_none(timeout), heartbeat)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages, until none comes for as long as `receive` waits. Ack each.

        The lease of a message is kept alive until the next one is asked for.
        """
        heartbeat = self.inner._handle.heartbeat
        while (message := await self.receive()) is not None:
            heartbeat.hold(self.name, message._delivery)
            try:
                yield message
            finally:
                heartbeat.drop(message._delivery)

    # -- looking ------------------------------------------------------------------------------

    async def peek(self, rear: bool = False) -> PeekedMessage | None:
        """The next message, or the last one, without taking it."""
        return await self._read(self._on_this_loop().peek, rear)

    async def peek_many(self, max: int = 10, rear: bool = False) -> list[PeekedMessage]:
        return await self._read(self._on_this_loop().peek_many, max, rear)

    async def search(self, text: str | None = None, **wanted: Any) -> FoundMessages:
        """Messages for which all that is given holds; the keywords are those of `openq.Queue.search`."""
        return await asyncio.to_thread(self.inner.search, text, **wanted)

    async def stats(self) -> QueueStats:
        if self._executor is not None:
            return await self._executor.run(self._on_this_loop().stats)
        return self.inner.stats()

    async def status(self, message_id: str) -> str:
        """unprocessed (waiting or delayed), processing, processed, dead; or unknown."""
        return await self._read(self._on_this_loop().status, message_id)

    async def why(self, message_id: str) -> Why:
        """Why a message is not being delivered: `code` for programs, `text` for people."""
        return await self._read(self._on_this_loop().why, message_id)

    async def timeline(self, message_id: str) -> list[TimelineStep]:
        """What happened to a message, as far as history is kept."""
        return await self._read(self._on_this_loop().timeline, message_id)

    async def trace(self, message_id: str) -> list[str]:
        return await self._read(self._on_this_loop().trace, message_id)

    @property
    def queue(self) -> list[PeekedMessage]:
        """A snapshot of what waits, in hand-out order (delayed messages are not among them)."""
        return self.inner.queue

    @property
    def in_flight(self) -> dict[str, tuple[AnyMessage, float]]:
        """A snapshot of what is with consumers: id -> (message, when it was handed out, epoch seconds)."""
        return {
            key: (Message(self, message._delivery), since)
            for key, (message, since) in self.inner.in_flight.items()
        }

    @property
    def messages(self) -> list[AnyMessage]:
        """A snapshot of everything in the queue: waiting, delayed and with consumers."""
        return [
            Message(self, message._delivery) if isinstance(message, ReceivedMessage) else message
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
    def broker(self) -> LibraryBroker:
        return self.inner.broker

    # -- mending ------------------------------------------------------------------------------

    async def purge(self) -> int:
        """Everything out, messages with consumers too. Returns how many."""
        return await self._run(self._on_this_loop().purge)

    async def cancel(self, message_id: str) -> None:
        """Remove one message that nobody has taken yet."""
        await self._run(self._on_this_loop().cancel, message_id)

    async def edit(
        self,
        message_id: str,
        body: Any,
        *,
        message_type: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Another body for a message that waits; type and attributes stay unless they are given."""
        await self._run(
            self._on_this_loop().edit, message_id, body, message_type=message_type, attributes=attributes
        )

    async def move(self, message_id: str, to: Queue | queues.Queue | str) -> None:
        """To the end of another queue in the same place; the id stays."""
        await self._run(self._on_this_loop().move, message_id, _inner(to))

    async def reschedule(
        self, message_id: str, *, delay: float | None = None, at: datetime | float | str | None = None
    ) -> None:
        """Another time for a message that waits or is delayed."""
        await self._run(self._on_this_loop().reschedule, message_id, delay=delay, at=at)

    async def redrive(
        self,
        to: Queue | queues.Queue | str | None = None,
        *,
        ids: Sequence[str] | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        **wanted: Any,
    ) -> int:
        """Dead letters back to where they died, or to `to`; the keywords are those of `openq.Queue.redrive`.

        `progress` is called in another thread than the loop's.
        """
        count = await asyncio.to_thread(
            self.inner.redrive, _inner(to), ids=ids, rate=rate, progress=progress, **wanted
        )
        self._emit_events()
        return count

    async def replay_from(
        self,
        point: datetime | float | str,
        to: Queue | queues.Queue | str | None = None,
        *,
        include_purged: bool = False,
    ) -> int:
        """Publish again what was published from `point` on; see `openq.Queue.replay_from`."""
        count = await asyncio.to_thread(
            self.inner.replay_from, point, _inner(to), include_purged=include_purged
        )
        self._emit_events()
        return count

    replayFrom = replay_from

    async def pause(self) -> None:
        """Hand out nothing until `resume`; publishing goes on."""
        await self._run(self._on_this_loop().pause)

    async def resume(self) -> None:
        await self._run(self._on_this_loop().resume)

    async def requeue_expired(self) -> None:
        """Bring leases and delays up to the present. Happens by itself; never needed, never wrong."""
        if self._loops is not None:
            await self._loops.run(self._on_this_loop().requeue_expired)
        else:
            self.inner.requeue_expired()

    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Tell `listener` of every change in this queue, in the thread that made it; see `openq.Queue`."""
        return self.inner.subscribe(listener)

    async def save(self, path: str | os.PathLike[str] | None = None) -> int:
        """Everything in the queue as a file of JSON lines, replaced as a whole. Returns how many messages."""
        return await asyncio.to_thread(self.inner.save, path)

    async def load(self, path: str | os.PathLike[str] | None = None) -> int:
        """Add what `save` wrote; messages that are here already are left alone. Returns how many came."""
        count = await asyncio.to_thread(self.inner.load, path)
        await self._wait_durable()
        return count

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

    # -- the shape of asyncio.Queue, every verb awaited because it may have to wait for the disk ----

    async def put(self, item: Any) -> None:
        """Add an item. With a `maxsize` it waits for room."""
        try:
            await self.publish(item)
            return
        except QueueFull:
            pass
        with _AsyncChangeListener(self) as changes:
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
        """The next item itself, not a message. It is this process's until `task_done`."""
        return await self._get(None)

    async def get_nowait(self) -> Any:
        """Raises `asyncio.QueueEmpty` where `get` would wait for an item."""
        return await self._get(0)

    async def _get(self, timeout: float | None) -> Any:
        received = await self._received(self._wait_for(1, lease_ms=NO_DEADLINE), timeout)
        if not received:
            raise asyncio.QueueEmpty
        self._taken.setdefault(asyncio.current_task(), deque()).append(received[0])
        return received[0].body

    async def task_done(self) -> None:
        """The oldest item that this task got is finished; or, if it got none, anybody's oldest."""
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
            pass  # purged meanwhile: as done as can be

    async def join(self) -> None:
        """Wait until everything that was put in is done: nothing waits and nobody holds anything."""
        with _AsyncChangeListener(self) as changes:
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

    # -- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Done with this queue object. The last one in a place closes the place."""
        await asyncio.to_thread(self.inner.close)
        if self._executor is not None:
            self._executor.close()

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


OpenQ = Queue

_NO_TASK: Any = object()


def _nothing() -> None:
    pass


def _publish_and_sync(queue: queues.Queue, draft: Draft) -> tuple[str, bool]:
    result = queue._publish_draft(draft)
    queue._sync()
    return result


def _publish_many_and_sync(
    queue: queues.Queue, items: Iterable[Any]
) -> tuple[list[str], list[tuple[str, Any]], OpenQError | None]:
    result = queue._publish_items(items)
    queue._sync()
    return result


def _inner(queue: Queue | queues.Queue | str | None) -> Any:
    return queue.inner if isinstance(queue, Queue) else queue


class AsyncProcessing:
    """One message from receive to ack; see `Queue.processing`."""

    def __init__(self, queue: Queue, wait: AnyWait, timeout: float | None, heartbeat: bool) -> None:
        self._queue = queue
        self._wait = wait
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._message: Message | None = None

    async def __aenter__(self) -> Message | None:
        received = await self._queue._received(self._wait, self._timeout)
        if not received:
            return None
        self._message = received[0]
        if self._heartbeat:
            self._queue.inner._handle.heartbeat.hold(self._queue.name, self._message._delivery)
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        message = self._message
        if message is None:
            return
        try:
            await message.__aexit__(kind, error, trace)
        finally:
            if self._heartbeat:
                self._queue.inner._handle.heartbeat.drop(message._delivery)


class _AsyncChangeListener:
    """Sleeps until something happens in the queue; costs the queue nothing while nobody sleeps."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def __enter__(self) -> _AsyncChangeListener:
        try:
            self._stop = self._queue.subscribe(self._on_event)
        except (OnlyInProcess, NotOnThisStore):
            self._stop = _nothing  # nobody tells us of changes elsewhere: we look now and then
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _on_event(self, event: dict[str, Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            pass  # the loop was closed: nobody waits any more

    async def wait(self) -> None:
        timer = self._loop.call_later(_RECHECK_S, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        self._changed.clear()
