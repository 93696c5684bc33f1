"""`Queue`, which is `OpenQ`: a message queue in this process, in memory or on disk, or behind a server.

The way of a plain message (publish a body, receive, ack) is kept short on purpose: no
option is looked at, nothing is formatted but the id, and one truth test stands for each feature
that is not in use. Everything else lives beside it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..clock import Clock
from ..errors import (
    Closed,
    Forked,
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    VisibilityTimeoutExpired,
)
from ..model import ENCODING_TEXT, NO_DEADLINE, Delivery, Draft
from . import checks, targets
from .admin import Admin
from .codecs import BodyCodec, Codec
from .failures import failure_of
from .handle import BrokerHandle
from .hooks import Hooks
from .inspector import Inspector
from .interface import LibraryBroker
from .message import Message, ReceivedMessage
from .publishing import PublishOptions, is_item, make_draft, make_item
from .settings import QueueOptions, environment_number, named_settings
from .stdlib_queue import StdlibQueue
from .times import from_ms, to_ms
from .waiting import ThreadWait, WaitRegistry, release_unseen

if TYPE_CHECKING:
    from typing import Unpack

RECEIVE_TIMEOUT = environment_number("receive_timeout", 10.0)
_queue_numbers = count(1)
T = TypeVar("T")


class Queue(Hooks, Inspector, Admin, StdlibQueue):
    """A message queue.

    `OpenQ("jobs")` lives in memory and belongs to this object: a second `OpenQ("jobs")` is another queue.
    Share the object, or open the second one with `broker=first.broker`.
    `OpenQ("jobs", path="./data")` lives on disk, where every call returns only when what it did is safe;
    `OpenQ("jobs", url="http://127.0.0.1:9324")` on a server (`openq serve`), signed in by `token`, by
    OPENQ_TOKEN or by user:password@ in the url; `OpenQ("jobs", url="redis://127.0.0.1:6379")` in Redis or
    Valkey (`pip install "openq[redis]"`), which any number of processes share without a server of ours.
    `url="env:NAME"` and `path="env:NAME"` take the place from an environment variable; none is used unasked.
    What is away is waited for `reconnect` (30) seconds.
    Times are seconds, whole or not.

    A received message is invisible to others for `visibility_timeout` (30) and comes back to its
    place unless it is acked. With a `dlq` (a queue, or the name of one in the same place) it goes
    there after `max_receives` deliveries, 3 unless said otherwise.

    More settings, all by keyword, for new queues also from the environment as `OPENQ_<NAME>`:
    `max_receives`, `exhausted` ("keep", or "drop" what has had them all where there is no dlq),
    `dead_letter_expired` (what outlives its time goes to the dlq too), `delay` (0), `retention` (4 days),
    `message_ttl`, `max_length`, `max_bytes`, `max_body`, `overflow` ("drop-head", "reject", "dead-letter"
    or "reject-dead-letter"), `max_priority` (higher ones count as this one; 0: the order ignores them),
    `fifo`, `dedup_window` (300), `dedup_by_content`, `dedup_per_group`, `retry` ("default",
    "none", "fixed", "exponential", a dict or a RetryPolicy), `history` (a day: how far `replay_from`
    reaches), `relaxed` (answer before the disk does).
    """

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
        self.codec = Codec(codec)
        try:
            self._handle = targets.open_broker(
                self.codec,
                dlq if isinstance(dlq, Queue) else None,
                path=path,
                url=url,
                broker=broker,
                clock=clock,
                storage=storage,
                token=token,
                ca=ca,
                reconnect=reconnect,
            )
        except OpenQError as error:
            targets.add_variable_name(error, url=url, path=path)
            raise
        self._closed = False
        self._waits = WaitRegistry()
        try:
            self._open(name, dlq, named)
        except BaseException as error:
            self._closed = True
            self._handle.leave()
            if isinstance(error, OpenQError) and not isinstance(error, InvalidSetting):
                targets.add_variable_name(error, url=url, path=path)
            raise
        if not self._handle.is_shared_store:
            _local_queues.add(self)
        self.maxsize = maxsize
        self._init_hooks(Queue)
        self._init_standard()

    name: str
    _handle: BrokerHandle
    _decode: Callable[[bytes, int], Any]

    def _open(self, name: str, dlq: Queue | str | None, named: dict[str, Any]) -> None:
        handle = self._handle
        broker = handle.broker
        dead_letter = dlq.name if isinstance(dlq, Queue) else dlq
        if dead_letter is not None:
            if dead_letter == name:
                raise InvalidSetting(f"queue {name!r} cannot be its own dlq")
            named["dead_letter"] = dead_letter
        settings = handle.declare(name, dead_letter, named)
        self.name = name
        self._loads = broker.storage != "memory"
        self._syncs = broker.is_durable and not settings.relaxed
        self._prefix = broker.id_prefix
        self._id_form = f"{self._prefix}%012x"  # half the price of an f-string with a format
        # Who else uses this broker may hold leases too; see `_current`.
        self._label = handle.consumer_label(next(_queue_numbers))
        self._labels = {self._label}
        self._auto = self.codec.is_auto
        self._decode = self.codec.decode
        self._new_wait = handle.wait_class
        self._bind(broker)

    def _bind(self, broker: LibraryBroker) -> None:
        self._broker = broker
        self._id_of = broker.message_id
        self._publish_body = broker.publish_body
        self._receive_now = _no_deliveries if self._handle.is_remote else broker.receive
        self._ack_one = broker.ack_one

    def _unbind(self) -> None:
        """Whatever is asked from here on is refused; what was received can still be read."""
        self._replace_broker(_CLOSED)

    def _replace_broker(self, refusing: _ClosedBroker) -> None:
        closed = cast(Any, refusing)
        self._broker = closed
        self._publish_body = closed.publish_body
        self._receive_now = closed.receive
        self._ack_one = closed.ack_one

    def _check_not_forked(self) -> None:
        if isinstance(self._broker, _ClosedBroker):
            self._broker.check_not_forked()

    # -- in -----------------------------------------------------------------------------------

    def publish(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        """Add a message; returns its id. The options are those of `PublishOptions`:

        delay, at, priority, group, dedup_id, unique_key, message_type, attributes, id, ttl, publisher.
        """
        if options or type(body) is not str or not self._auto:
            return self._publish(body, options)
        try:
            seq = self._publish_body(self.name, body.encode(), ENCODING_TEXT)
        except UnicodeEncodeError as error:
            raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None
        if not seq:
            return self._publish(body, options)
        if self._syncs or self._broker.observed:
            self._broker.sync()
        message_id = self._id_form % seq
        if self._has_hooks:
            self._run_hooks(message_id, body, {})
        return message_id

    def _publish(self, body: Any, options: PublishOptions) -> str:
        seq = 0
        if not options:
            data, encoding = self.codec.encode(body)
            seq = self._publish_body(self.name, data, encoding)
        if seq:
            message_id, is_duplicate = self._id_form % seq, False
        else:
            message_id, is_duplicate = self._publish_draft(make_draft(self.codec, body, **options))
        self._sync()
        if self._has_hooks and not is_duplicate:
            self._run_hooks(message_id, body, options)
        return message_id

    def _publish_draft(self, draft: Draft) -> tuple[str, bool]:
        """The id, and whether it is that of an earlier message."""
        [result] = self._broker.publish_each(self.name, [draft])
        if isinstance(result, OpenQError):
            raise result
        return result

    def publish_many(self, items: Iterable[Any]) -> list[str]:
        """Many at once, with one wait for the disk. Returns their ids, in order.

        Each item is a body, a `Message`, or a dict with a `body` and keywords of `publish` (any other
        dict is a body). If one is refused, its error is raised after the others were added.
        """
        ids, fresh, error = self._publish_items(items)
        self._sync()
        if self._has_hooks:
            self._run_hooks_many(fresh)
        if error is not None:
            raise error
        return ids

    def _publish_items(
        self, items: Iterable[Any]
    ) -> tuple[list[str], list[tuple[str, Any]], OpenQError | None]:
        """All ids, the items that are new with theirs, and the first error."""
        items = checks.items(items, "items")
        ids = self._publish_plain(items)
        if ids is not None:
            return ids, list(zip(ids, items, strict=True)), None
        ids, fresh, errors = [], [], []
        drafts = [make_item(self.codec, item) for item in items]
        for item, result in zip(items, self._broker.publish_each(self.name, drafts), strict=True):
            if isinstance(result, OpenQError):
                errors.append(result)
                continue
            message_id, is_duplicate = result
            ids.append(message_id)
            if not is_duplicate:
                fresh.append((message_id, item))
        return ids, fresh, errors[0] if errors else None

    def _publish_plain(self, items: list[Any]) -> list[str] | None:
        """All as one record, if they are bodies of one form and the queue has no rules for each."""
        if any(isinstance(item, Message) or is_item(item) for item in items):
            return None
        encoded = [self.codec.encode(item) for item in items]
        encodings = {encoding for _, encoding in encoded}
        if len(encodings) > 1:
            return None
        run = self._broker.publish_bodies(
            self.name, [data for data, _ in encoded], encodings.pop() if encodings else ENCODING_TEXT
        )
        if run is None:
            return None
        id_form = self._id_form
        return [id_form % seq for seq in run]

    # -- out ----------------------------------------------------------------------------------

    def receive(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
    ) -> ReceivedMessage | None:
        """The next message, waiting up to `timeout` seconds for one (None: for ever); None if none came.

        `visibility_timeout` for this delivery only; `types` takes only messages of these types;
        `consumer` is a name to find the delivery by.
        """
        if visibility_timeout is None and types is None and consumer is None:
            deliveries = self._receive_now(self.name, 1, None, self._label)
            if deliveries:
                if self._loads:
                    deliveries = self._load(deliveries)
                if self._broker.observed:
                    self._broker.announce()
                if deliveries:
                    return ReceivedMessage(self, deliveries[0])
        received = self._receive(1, timeout, visibility_timeout, types, consumer)
        return received[0] if received else None

    def receive_many(
        self,
        max: int = 10,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
    ) -> list[ReceivedMessage]:
        """Up to `max` messages: what is there at once, or the first that come within `timeout`."""
        return self._receive(checks.integer(max, "max", 1), timeout, visibility_timeout, types, consumer)

    def _receive(
        self,
        limit: int,
        timeout: float | None,
        visibility_timeout: float | None,
        types: Iterable[str] | None,
        consumer: str | None,
    ) -> list[ReceivedMessage]:
        timeout = checks.timeout_or_none(timeout)
        return self._received(self._wait_for(limit, visibility_timeout, types, consumer), timeout)

    def _wait_for(
        self,
        limit: int = 1,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
        lease_ms: int | None = None,
    ) -> ThreadWait:
        if visibility_timeout is not None:
            lease_ms = to_ms(visibility_timeout, "visibility_timeout")
        types = checks.types_or_none(types)
        if consumer is None:
            consumer = self._label
        else:
            self._labels.add(checks.text(consumer, "consumer"))
        return self._new_wait(self._broker, self.name, limit, lease_ms, consumer, types, self._waits)

    def _received(self, wait: ThreadWait, timeout: float | None) -> list[ReceivedMessage]:
        """What came within `patience` seconds (None: wait for ever)."""
        while True:
            deliveries = wait.poll() if timeout is not None and timeout <= 0 else wait.wait(timeout)
            if not deliveries:
                return []
            deliveries = self._load(deliveries)
            if self._broker.observed:
                self._broker.announce()
            if deliveries:
                return [ReceivedMessage(self, delivery) for delivery in deliveries]
            # None of them can be read, and all are set aside: what stands behind them is next.

    def _load(self, deliveries: list[Delivery]) -> list[Delivery]:
        try:
            return self._broker.load(deliveries)
        except BaseException:
            self._return_delivery(deliveries)
            raise

    def _return_delivery(self, deliveries: list[Delivery]) -> None:
        """Nobody has seen them: at once and uncounted."""
        release_unseen(
            self._handle.broker, self.name, deliveries
        )  # ours may be that of a closed queue by now

    def ack(self, target: Message | str) -> None:
        """Done: the message is never delivered again. Takes a message, a receipt id or a message id."""
        if type(target) is ReceivedMessage and target._queue is self:
            delivery = target._delivery
            try:
                self._ack_one(self.name, delivery.entry.seq, delivery.number)
            except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                raise type(error)(target.id, self.name) from None
            target._settled = True
            if self._syncs or self._broker.observed:
                self._broker.sync()
            return
        seq, number = self._receipt(target)
        try:
            self._ack_one(self.name, seq, number)
        except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
            raise type(error)(_target_id(target), self.name) from None
        self._settle(target)

    def ack_many(self, targets: Iterable[Message | str]) -> None:
        """Ack all of them with one wait for the disk. Raises the first error after the others were acked."""
        receipts: list[tuple[int, int]] = []
        known: list[Message | str] = []
        errors: list[OpenQError] = []
        for target in checks.items(targets, "targets"):
            try:
                receipts.append(self._receipt(target))
                known.append(target)
            except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
                errors.append(error)
        for target, result in zip(known, self._broker.ack(self.name, receipts), strict=True):
            if result is None:
                if isinstance(target, ReceivedMessage):
                    target._settled = True
            elif isinstance(result, MessageNotFoundError | VisibilityTimeoutExpired):
                errors.append(type(result)(_target_id(target), self.name))
            else:
                errors.append(result)
        self._sync()
        if errors:
            raise errors[0]

    def nack(
        self,
        target: Message | str,
        delay: float | None = None,
        reason: str | BaseException | None = None,
    ) -> str:
        """Not done: back to its place after `delay` seconds (0: at once) or as the queue's retry policy says.

        The policy of a queue that was given none: 1 s after the first failure, twice as long after each
        further one, at most 15 minutes. Other messages go on meanwhile; in a FIFO queue those of its group
        wait with it. `reason` is kept with the message: a text, or an exception, whose traceback is kept too.
        Returns "returned", or "dead-lettered" when that was its last chance.
        """
        delay_ms = None if delay is None else to_ms(delay, "delay")
        failure = failure_of(reason)
        return self._end(target, lambda receipt: self._broker.nack(self.name, receipt, delay_ms, failure))

    def reject(self, target: Message | str, reason: str | BaseException | None = None) -> str:
        """Never again: to the dlq at once, or away if there is none. Returns "dead-lettered" or "removed"."""
        failure = failure_of(reason)
        return self._end(target, lambda receipt: self._broker.reject(self.name, receipt, failure))

    def _release(self, *messages: ReceivedMessage) -> None:
        """Back to their places at once, not counted: the work on them was cut off or never began."""
        self._broker.release(self.name, [self._receipt(message) for message in messages])
        for message in messages:
            message._settled = True
        self._sync()

    def extend(self, target: Message | str, seconds: float) -> datetime | None:
        """A longer lease: `seconds` from now. Returns its new end."""
        lease_ms = to_ms(seconds, "seconds")
        until_ms = self._with_receipt(
            target, lambda receipt: self._broker.extend(self.name, receipt, lease_ms)
        )
        if isinstance(target, ReceivedMessage) and target._delivery.until_ms != until_ms:
            target._delivery.until_ms = until_ms  # a server extended its own lease, not this picture of it
        self._sync()
        return from_ms(until_ms) if until_ms else None

    def _end(self, target: Message | str, act: Callable[[tuple[int, int]], str]) -> str:
        outcome = self._with_receipt(target, act)
        self._settle(target)
        return outcome

    def _with_receipt(self, target: Message | str, act: Callable[[tuple[int, int]], T]) -> T:
        receipt = self._receipt(target)
        try:
            return act(receipt)
        except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
            raise type(error)(_target_id(target), self.name) from None

    def _settle(self, target: Message | str) -> None:
        if isinstance(target, ReceivedMessage):
            target._settled = True
        self._sync()

    def _receipt(self, target: Message | str) -> tuple[int, int]:
        """Which delivery is meant. A message or a receipt says it exactly."""
        if isinstance(target, ReceivedMessage):
            if target._queue is not self and (
                not self._shares_broker(target._queue) or target._queue.name != self.name
            ):
                raise MessageNotFoundError(target.id, self.name)
            return target._delivery.entry.seq, target._delivery.number
        text = (target.receipt_id or target.id) if isinstance(target, Message) else target
        if not isinstance(text, str):
            raise InvalidSetting(f"a message, a receipt id or a message id is needed, not {text!r}")
        at = len(self._prefix) + 12
        if text.startswith(self._prefix) and text[at : at + 1] == "/":
            try:
                return int(text[at - 12 : at], 16), int(text[at + 1 :], 16)
            except ValueError:
                raise MessageNotFoundError(text, self.name) from None
        return self._current_receipt(text)

    def _current_receipt(self, message_id: str) -> tuple[int, int]:
        """The lease that this queue object has on a message now, if it has one.

        A lease that went to another queue object must not be ended by the one who lost it.
        """
        delivery = self._broker.lease_of(self.name, message_id)
        if delivery is not None:
            if delivery.consumer in self._labels:
                return delivery.entry.seq, delivery.number
            raise VisibilityTimeoutExpired(message_id, self.name)
        options = self._broker.find(self.name, message_id).options
        if options is not None and options.count:
            raise VisibilityTimeoutExpired(message_id, self.name)
        raise MessageNotFoundError(message_id, self.name)

    def _receipt_id(self, delivery: Delivery) -> str:
        return f"{self._id_form % delivery.entry.seq}/{delivery.number:x}"

    def processing(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        consumer: str | None = None,
        heartbeat: bool = True,
    ) -> Processing:
        """`with queue.processing() as message:` acks at the end, nacks with the reason on an exception.

        Work that is cut off (Ctrl-C) did not fail: its message returns at once and its delivery does not
        count. The message is None if none came in time. Its lease is kept alive meanwhile, unless `heartbeat`
        is False.
        """
        wait = self._wait_for(1, visibility_timeout, types, consumer)
        return Processing(self, wait, checks.timeout_or_none(timeout), heartbeat)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages, until none comes for as long as `receive` waits. Ack each.

        The lease of a message is kept alive until the next one is asked for.
        """
        heartbeat = self._handle.heartbeat
        while (message := self.receive()) is not None:
            heartbeat.hold(self.name, message._delivery)
            try:
                yield message
            finally:
                heartbeat.drop(message._delivery)

    def _cancel_timer(self, target: Message | str) -> None:
        """This delivery no longer ends by itself, only by ack, nack or the end of the process."""
        self._with_receipt(target, lambda receipt: self._broker.extend(self.name, receipt, NO_DEADLINE))
        self._sync()

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

    # -- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Done with this queue object. The last one in a place closes the place."""
        if self._closed:
            return
        self._closed = True
        release_unseen(self._handle.broker, self.name, self._waits.close())
        self._unbind()
        self._handle.leave()

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._closed = True
            self._handle.leave_from_gc()

    def __repr__(self) -> str:
        return f"<openq.Queue {self.name!r} {'closed' if self._closed else 'in ' + self._handle.where}>"


OpenQ = Queue


class Processing:
    """One message from receive to ack; see `Queue.processing`."""

    def __init__(self, queue: Queue, wait: ThreadWait, timeout: float | None, heartbeat: bool) -> None:
        self._queue = queue
        self._wait = wait
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._message: ReceivedMessage | None = None

    def __enter__(self) -> ReceivedMessage | None:
        received = self._queue._received(self._wait, self._timeout)
        if not received:
            return None
        self._message = received[0]
        if self._heartbeat:
            self._queue._handle.heartbeat.hold(self._queue.name, self._message._delivery)
        return self._message

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        message = self._message
        if message is None:
            return
        try:
            message.__exit__(kind, error, trace)
        finally:
            if self._heartbeat:
                self._queue._handle.heartbeat.drop(message._delivery)


class _ClosedBroker:
    """Stands in for the broker of a closed queue: whatever is asked of it, the answer is the same."""

    observed = False

    def __init__(self, error: Callable[[], Closed] = Closed) -> None:
        self._error = error

    def check_not_forked(self) -> None:
        if self._error is not Closed:
            raise self._error()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def refuse(*_: object, **__: object) -> Any:
            raise self._error()

        return refuse


_CLOSED = _ClosedBroker()
_local_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Neither the memory nor the directory of the parent can be shared: its queue objects are closed here."""
    for queue in list(_local_queues):
        if not queue._closed:
            queue._closed = True
            queue._replace_broker(_ClosedBroker(partial(Forked, queue.name, queue._handle.path)))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _no_deliveries(*_: object) -> list[Delivery]:
    """Over the network one request both looks and waits: there is no quick look before it."""
    return []


def _target_id(target: Message | str) -> str:
    return target.id if isinstance(target, Message) else target
