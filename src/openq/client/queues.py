"""`Queue`, also called `OpenQ`: a message queue in memory, on disk, behind a server or in Redis.

The path of a plain message (publish a body, receive, ack) is short on purpose: it checks no option, formats
nothing but the id, and tests one flag per feature that is not in use. The other calls are in the parts:
`inspector.py`, `history.py`, `admin.py`, `exchanges.py`, `schedules.py`, `webhooks.py` and `stdlib_queue.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from ..broker.interface import only
from ..clock import Clock
from ..errors import InvalidSetting, MessageNotFoundError, OpenQError, VisibilityTimeoutExpired
from ..model import ENCODING_BYTES, ENCODING_TEXT, NO_DEADLINE, QueueSettings
from . import checks, targets
from .admin import Admin
from .arrivals import Arrivals
from .codecs import BodyCodec, Codec
from .core import QueueCore, target_id
from .events import QueueEvents
from .exchanges import QueueExchanges
from .failures import failure_of
from .history import MessageHistory
from .hooks import call_hooks, overridden_hooks, run_hooks, run_hooks_many
from .inspector import Inspector
from .interface import LibraryBroker
from .kv import KeyValue
from .message import Message, PeekedMessage, ReceivedMessage
from .parts import part_method
from .publishing import PublishOptions, make_draft
from .receiving import Processing, collect
from .schedules import QueueSchedules
from .settings import QueueOptions, environment_number, named_settings
from .stdlib_queue import StdlibQueue, TakenItems
from .targets import Target
from .times import from_ms, to_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from .consumer import Consumer
    from .listening import Listener
    from .webhooks import QueueWebhooks

RECEIVE_TIMEOUT = environment_number("receive_timeout", 10.0)


class Queue:
    """A message queue.

    `OpenQ("jobs")` lives in memory and belongs to this object: a second `OpenQ("jobs")` is another queue.
    Share the object, or open the second one with `broker=first.broker`.
    `OpenQ("jobs", path="./data")` lives on disk: every call returns only when its effect is on disk.
    `OpenQ("jobs", url="http://127.0.0.1:9324")` is on a server (`openq serve`); credentials are `token`,
    OPENQ_TOKEN or user:password@ in the url. `OpenQ("jobs", url="redis://127.0.0.1:6379")` is in Redis or
    Valkey (`pip install "openq[redis]"`), shared by any number of processes without an OpenQ server.
    `url="env:NAME"` and `path="env:NAME"` read the target from an environment variable; no variable is used
    otherwise. An unreachable server or Redis is retried for `reconnect` (30) seconds. Times are in seconds.

    A received message is invisible to others for `visibility_timeout` (30) seconds and returns to its
    position unless it is acked. With a `dlq` (a queue, or the name of one on the same target) it is
    dead-lettered after `max_receives` deliveries, 3 by default.

    More settings, all by keyword, for new queues also from the environment as `OPENQ_<NAME>`:
    `max_receives`, `exhausted` ("keep" or "drop" messages out of receives where there is no dlq),
    `dead_letter_expired` (expired messages are dead-lettered too), `delay` (0), `retention` (4 days),
    `message_ttl`, `max_length`, `max_bytes`, `max_body`, `overflow` ("drop-head", "reject", "dead-letter"
    or "reject-dead-letter"), `max_priority` (higher ones count as this one; 0: the order ignores them),
    `fifo`, `dedup_window` (300), `dedup_by_content`, `dedup_per_group`, `retry` ("default",
    "none", "fixed", "exponential", a dict or a RetryPolicy), `history` (a day: how far `replay_from`
    reaches), `relaxed` (calls return before the disk has the data).
    """

    core: QueueCore

    def __init__(
        self,
        name: str | int = "queue",
        visibility_timeout: float | None = None,
        dlq: Queue | str | None = None,
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
        if isinstance(name, int):  # as in `queue.Queue(10)`
            maxsize, name = name, "queue"
        checks.text(name, "name")
        if dlq is not None and not isinstance(dlq, Queue):
            checks.text(dlq, "dlq")
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise InvalidSetting(f"maxsize must be a whole number, not {maxsize!r}")
        if maxsize > 0:
            settings["max_length"] = maxsize
            settings["overflow"] = "reject"
        named = named_settings(settings, visibility_timeout)
        target = Target(path, url, broker, clock, storage, token, ca, reconnect)
        dead_letters = dlq.core if isinstance(dlq, Queue) else dlq
        self.core = targets.open_queue(name, dead_letters, named, Codec(codec), target)
        self.name = name
        self.maxsize = maxsize
        self.taken = TakenItems()
        self._hooks = overridden_hooks(self, Queue)
        self._arrivals = Arrivals(self, self._heard) if self._hooks else None
        if self.core.tracing is not None:
            from .traced import trace_queue

            trace_queue(self)

    @property
    def codec(self) -> Codec:
        return self.core.codec

    # -- publishing ---------------------------------------------------------------------------

    def publish(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        """Add a message; returns its id. The options are those of `PublishOptions`:

        delay, at, priority, group, dedup_id, unique_key, message_type, attributes, id, ttl, publisher.
        """
        core = self.core
        kind = type(body)
        if options or (kind is not str and kind is not bytes) or not core.is_auto or self._hooks:
            return self._publish(body, options)
        publish_body = core.publish_body  # such an attribute is called faster as a local variable
        try:
            if kind is str:
                seq = publish_body(core.name, body.encode(), ENCODING_TEXT)
            else:
                seq = publish_body(core.name, body, ENCODING_BYTES)
        except UnicodeEncodeError as error:
            raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None
        if not seq:
            return self._publish(body, options)
        if core.syncs or core.broker.observed:
            core.broker.sync()
        return core.id_format % seq

    def _publish(self, body: Any, options: PublishOptions) -> str:
        if self._arrivals is None:
            return self._store(body, options)[0]
        with self._arrivals.publishing() as claim:
            message_id, is_duplicate = self._store(body, options)
            if not is_duplicate:
                claim([message_id])
        if not is_duplicate:
            run_hooks(self._hooks, message_id, body, options)
        return message_id

    def _store(self, body: Any, options: PublishOptions) -> tuple[str, bool]:
        """The id of the message, and whether it is that of an earlier one."""
        core = self.core
        seq = 0
        if not options:
            data, encoding = core.codec.encode(body)
            seq = core.publish_body(core.name, data, encoding)
        if seq:
            message_id, is_duplicate = core.id_format % seq, False
        else:
            message_id, is_duplicate = core.publish_draft(make_draft(core.codec, body, **options))
        core.sync()
        return message_id, is_duplicate

    def publish_many(self, items: Iterable[Any]) -> list[str]:
        """Add many messages with one wait for the disk. Returns their ids, in order.

        Each item is a body, a `Message`, or a dict with a `body` and keywords of `publish` (any other
        dict is a body). If one is refused, its error is raised after the others were added.
        """
        if self._arrivals is None:
            ids, fresh, error = self.core.publish_items(items)
            self.core.sync()
        else:
            with self._arrivals.publishing() as claim:
                ids, fresh, error = self.core.publish_items(items)
                claim([message_id for message_id, _ in fresh])
                self.core.sync()
            run_hooks_many(self._hooks, fresh)
        if error is not None:
            raise error
        return ids

    def on_msg_received(self, message: Any) -> Any:
        """In a subclass: called with each new message. Here: registers a function to be called with each.

        Hooks hear every arrival once, from any publisher: this object, others, other processes and other
        protocols. For messages that this object publishes they run in the thread that publishes, after the
        message is stored and before `publish` returns; for all others in a thread of their own. A hook that
        raises is logged; the message stays in the queue.
        """
        if not callable(message):
            return None
        self._hooks.append(message)
        if self._arrivals is None:
            self._arrivals = Arrivals(self, self._heard)
        return message

    def _heard(self, message: Message) -> None:
        """A message that this object did not publish has arrived."""
        call_hooks(self._hooks, message)

    onMsgReceived = on_msg_received

    # -- receiving ----------------------------------------------------------------------------

    def receive(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
    ) -> ReceivedMessage | None:
        """The next message, waiting up to `timeout` seconds for one (None: for ever); None if none came.

        `visibility_timeout` applies to this delivery only; `types` selects messages of these types,
        and `attributes` those that have each of these, with this value or one of a list;
        `consumer` is a name under which the delivery is listed.
        """
        if visibility_timeout is None and types is None and attributes is None and consumer is None:
            core = self.core
            receive_now = core.receive_now
            deliveries = receive_now(core.name, 1, None, core.label)
            if deliveries:
                if core.loads:
                    deliveries = core.load(deliveries)
                if core.broker.observed:
                    core.broker.announce()
                if deliveries:
                    return ReceivedMessage(self, deliveries[0])
        received = self._receive(1, timeout, visibility_timeout, types, attributes, consumer)
        return received[0] if received else None

    def receive_many(
        self,
        max: int = 10,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
    ) -> list[ReceivedMessage]:
        """Up to `max` messages: those ready now, or the first that come within `timeout`."""
        return self._receive(
            checks.integer(max, "max", 1), timeout, visibility_timeout, types, attributes, consumer
        )

    def _receive(
        self,
        limit: int,
        timeout: float | None,
        visibility_timeout: float | None,
        types: Iterable[str] | None,
        attributes: Mapping[str, object] | None,
        consumer: str | None,
    ) -> list[ReceivedMessage]:
        timeout = checks.timeout_or_none(timeout)
        wanted = checks.message_filter(types, attributes)
        return collect(self, self.core.new_wait(limit, visibility_timeout, wanted, consumer), timeout)

    def processing(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
        heartbeat: bool = True,
    ) -> Processing:
        """`with queue.processing() as message:` acks at the end, nacks with the reason on an exception.

        Interrupted work (Ctrl-C) does not count as a failure: the message returns at once and the delivery
        is not counted. The message is None if none came in time. Its lease is extended meanwhile, unless
        `heartbeat` is False.
        """
        wanted = checks.message_filter(types, attributes)
        wait = self.core.new_wait(1, visibility_timeout, wanted, consumer)
        return Processing(self, wait, checks.timeout_or_none(timeout), heartbeat)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages, until none comes within the default timeout of `receive`. Ack each.

        The lease of a message is extended until the next message is requested.
        """
        heartbeat = self.core.handle.heartbeat
        while (message := self.receive()) is not None:
            heartbeat.hold(self.name, message.delivery)
            try:
                yield message
            finally:
                heartbeat.drop(message.delivery)

    @overload
    def listen(
        self,
        handler: None = None,
        *,
        prefetch: int = ...,
        visibility_timeout: float | None = ...,
        heartbeat: bool = ...,
        types: Iterable[str] | None = ...,
        attributes: Mapping[str, object] | None = ...,
        consumer: str | None = ...,
    ) -> Listener: ...
    @overload
    def listen(
        self,
        handler: Callable[[ReceivedMessage], object],
        *,
        prefetch: int = ...,
        visibility_timeout: float | None = ...,
        heartbeat: bool = ...,
        types: Iterable[str] | None = ...,
        attributes: Mapping[str, object] | None = ...,
        consumer: str | None = ...,
    ) -> Consumer: ...
    def listen(
        self,
        handler: Callable[[ReceivedMessage], object] | None = None,
        *,
        prefetch: int = 100,
        visibility_timeout: float | None = None,
        heartbeat: bool = True,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
    ) -> Listener | Consumer:
        """Messages as they come, until `close`: nothing is polled, a server pushes them over a WebSocket.

        `for message in queue.listen(prefetch=100):` gets them one by one; ack each. With a handler, a
        `Consumer` calls it in a thread of its own, acks when it returns, and is returned.

        At most `prefetch` messages are with this process and not settled. Their leases last until they are
        settled or the process ends, unless `heartbeat` is False: then for `visibility_timeout`.
        """
        from .listening import listen

        return listen(self, handler, prefetch, visibility_timeout, heartbeat, types, attributes, consumer)

    # -- settling -----------------------------------------------------------------------------

    def ack(self, target: Message | str) -> None:
        """Acknowledge: the message is never delivered again. Takes a message, receipt id or message id."""
        core = self.core
        if type(target) is ReceivedMessage and target.queue is self:
            delivery = target.delivery
            ack_one = core.ack_one
            try:
                ack_one(core.name, delivery.entry.seq, delivery.number)
            except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                raise type(error)(target.id, core.name) from None
            target.settled = True
            if core.syncs or (core.broker.observed and core.is_blocking):
                core.broker.sync()
            return
        core.settle(target, lambda receipt: core.ack_one(core.name, *receipt))

    def ack_many(self, targets: Iterable[Message | str]) -> None:
        """Ack all of them with one wait for the disk. Raises the first error after the others were acked."""
        core = self.core
        receipts: list[tuple[int, int]] = []
        known: list[Message | str] = []
        errors: list[OpenQError] = []
        for target in checks.items(targets, "targets"):
            try:
                if type(target) is ReceivedMessage and target.queue is self:
                    delivery = target.delivery  # as `receipt` does it, without the call
                    receipts.append((delivery.entry.seq, delivery.number))
                else:
                    receipts.append(core.receipt(target))
                known.append(target)
            except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                errors.append(error)
        for target, result in zip(known, core.broker.ack(core.name, receipts), strict=True):
            if result is None:
                if isinstance(target, ReceivedMessage):
                    target.settled = True
            elif isinstance(result, MessageNotFoundError | VisibilityTimeoutExpired):
                errors.append(type(result)(target_id(target), core.name))
            else:
                errors.append(result)
        core.sync()
        if errors:
            raise errors[0]

    def nack(
        self,
        target: Message | str,
        delay: float | None = None,
        reason: str | BaseException | None = None,
    ) -> str:
        """Return a message to its position after `delay` seconds (0: at once), or as the retry policy says.

        The default policy: 1 s after the first failure, doubled after each further one, at most 15 minutes.
        Other messages are delivered meanwhile; in a FIFO queue those of its group wait. `reason` is stored
        with the message: a text, or an exception, whose traceback is stored too. Returns "returned", or
        "dead-lettered" if its receives are used up.
        """
        core = self.core
        delay_ms = None if delay is None else to_ms(delay, "delay")
        failure = failure_of(reason)
        return core.settle(
            target, lambda receipt: only(core.broker.nack(core.name, [receipt], delay_ms, failure))
        )

    def reject(self, target: Message | str, reason: str | BaseException | None = None) -> str:
        """Dead-letter a message at once, or remove it if there is no dlq.

        Returns "dead-lettered" or "removed".
        """
        core = self.core
        failure = failure_of(reason)
        return core.settle(target, lambda receipt: only(core.broker.reject(core.name, [receipt], failure)))

    def extend(self, target: Message | str, seconds: float) -> datetime | None:
        """Extend the lease to `seconds` from now. Returns its new end."""
        core = self.core
        lease_ms = to_ms(seconds, "seconds")
        until_ms = core.with_receipt(
            target, lambda receipt: only(core.broker.extend(core.name, [receipt], lease_ms))
        )
        if isinstance(target, ReceivedMessage) and target.delivery.until_ms != until_ms:
            target.delivery.until_ms = until_ms  # a server extended its own lease, not this copy
        core.sync()
        return from_ms(until_ms) if until_ms else None

    def extend_many(self, targets: Iterable[Message], seconds: float) -> list[OpenQError | None]:
        """Extend many leases with one call. Returns the error of each, None where it was extended."""
        core = self.core
        messages = checks.items(targets, "targets")
        lease_ms = to_ms(seconds, "seconds")
        results = core.broker.extend(core.name, [core.receipt(message) for message in messages], lease_ms)
        errors: list[OpenQError | None] = []
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, OpenQError):
                errors.append(result)
                continue
            errors.append(None)
            if isinstance(message, ReceivedMessage) and message.delivery.until_ms != result:
                message.delivery.until_ms = result  # a server extended its own lease, not this copy
        return errors

    def release_many(self, targets: Iterable[ReceivedMessage]) -> None:
        """Return messages at once, without counting their deliveries: the work on them did not begin."""
        self.core.release(checks.items(targets, "targets"))

    def _cancel_timer(self, target: Message | str) -> None:
        """Remove the deadline of a delivery: it ends by ack, nack or the end of the process."""
        core = self.core
        core.with_receipt(target, lambda receipt: only(core.broker.extend(core.name, [receipt], NO_DEADLINE)))
        core.sync()

    # -- inspecting ---------------------------------------------------------------------------

    peek = part_method(Inspector, Inspector.peek)
    peek_many = part_method(Inspector, Inspector.peek_many)
    search = part_method(Inspector, Inspector.search)
    stats = part_method(Inspector, Inspector.stats)

    @property
    def queue(self) -> list[PeekedMessage]:
        """A snapshot of the ready messages, in delivery order (delayed messages are not included)."""
        return Inspector(self).ready()

    @property
    def in_flight(self) -> dict[str, tuple[ReceivedMessage, float]]:
        """A snapshot of the messages with consumers: id -> (message, time of delivery in epoch seconds)."""
        return Inspector(self).in_flight()

    @property
    def messages(self) -> list[Message]:
        """A snapshot of all messages: ready, delayed and in flight."""
        return Inspector(self).messages()

    def __len__(self) -> int:
        """The number of ready and delayed messages."""
        stats = self.core.broker.stats(self.name)
        return stats.ready + stats.delayed

    def __bool__(self) -> bool:
        return True  # so that `queue or other` does not depend on its length

    @property
    def settings(self) -> QueueSettings:
        return self.core.broker.settings(self.name)

    @property
    def visibility_timeout(self) -> float:
        """Seconds."""
        milliseconds = self.settings.visibility_ms
        return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000

    @property
    def dlq(self) -> str | None:
        """The name of the dead-letter queue."""
        return self.settings.dead_letter

    @property
    def broker(self) -> LibraryBroker:
        return self.core.broker

    # -- history ------------------------------------------------------------------------------

    status = part_method(MessageHistory, MessageHistory.status)
    why = part_method(MessageHistory, MessageHistory.why)
    timeline = part_method(MessageHistory, MessageHistory.timeline)
    trace = part_method(MessageHistory, MessageHistory.trace)
    replay_from = replayFrom = part_method(MessageHistory, MessageHistory.replay_from)

    # -- administration -----------------------------------------------------------------------

    purge = _purge = part_method(Admin, Admin.purge)
    cancel = part_method(Admin, Admin.cancel)
    edit = part_method(Admin, Admin.edit)
    move = part_method(Admin, Admin.move)
    reschedule = part_method(Admin, Admin.reschedule)
    redrive = part_method(Admin, Admin.redrive)
    pause = part_method(Admin, Admin.pause)
    resume = part_method(Admin, Admin.resume)
    requeue_expired = part_method(Admin, Admin.requeue_expired)
    subscribe = part_method(Admin, Admin.subscribe)
    events = part_method(QueueEvents, QueueEvents.events)
    save = _save_to_disk = part_method(Admin, Admin.save)
    load = _load_from_disk = part_method(Admin, Admin.load)

    @property
    def exchanges(self) -> QueueExchanges:
        """The exchanges of this queue's target; see `QueueExchanges`."""
        return QueueExchanges(self)

    def kv(self, bucket: str) -> KeyValue:
        """The values of a bucket on this queue's target; see `KeyValue`."""
        return KeyValue(self, bucket)

    @property
    def schedules(self) -> QueueSchedules:
        """The schedules that publish to this queue; see `QueueSchedules`."""
        return QueueSchedules(self)

    @property
    def webhooks(self) -> QueueWebhooks:
        """The webhooks of this queue, if it is behind a server; see `QueueWebhooks`."""
        from .webhooks import QueueWebhooks

        return QueueWebhooks(self)

    # -- the interface of queue.Queue ---------------------------------------------------------

    put = part_method(StdlibQueue, StdlibQueue.put)
    put_nowait = part_method(StdlibQueue, StdlibQueue.put_nowait)
    get = part_method(StdlibQueue, StdlibQueue.get)
    get_nowait = part_method(StdlibQueue, StdlibQueue.get_nowait)
    task_done = part_method(StdlibQueue, StdlibQueue.task_done)
    join = part_method(StdlibQueue, StdlibQueue.join)
    qsize = part_method(StdlibQueue, StdlibQueue.qsize)
    empty = part_method(StdlibQueue, StdlibQueue.empty)
    full = part_method(StdlibQueue, StdlibQueue.full)

    @property
    def unfinished_tasks(self) -> int:
        return StdlibQueue(self).unfinished()

    # -- other names --------------------------------------------------------------------------

    def enqueue(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        return self.publish(body, **options)

    publish_msg = publishMsg = enqueue

    def dequeue(self, timeout: float | None = RECEIVE_TIMEOUT) -> ReceivedMessage | None:
        return self.receive(timeout)

    pull_msg = pullMsg = dequeue

    def acknowledge(self, target: Message | str) -> None:
        self.ack(target)

    delete = acknowledge

    # -- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close this queue object. The last one on a target closes its broker."""
        if self._arrivals is not None:
            self._arrivals.close()
        self.core.close()

    @property
    def closed(self) -> bool:
        return self.core.closed

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<openq.Queue {self.name!r} {'closed' if self.closed else 'in ' + self.core.handle.where}>"

    def _repr_html_(self) -> str:
        from .notebook import queue_html

        return queue_html(self)


OpenQ = Queue


class QueueView(Queue):
    """A queue through another object of its broker; see `QueueCore.view`."""

    def __init__(self, origin: Queue, broker: LibraryBroker) -> None:
        self.core = origin.core.view(broker)
        self.name, self.maxsize, self.taken = origin.name, origin.maxsize, origin.taken
        self._hooks: list[Any] = []
        self._arrivals = None
