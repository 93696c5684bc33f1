"""The state behind one queue object: broker, codec, receipts and waits. `Queue` and its parts share it.

`publish_body`, `receive_now` and `ack_one` are methods of the broker, bound once, so that a plain
message goes from `Queue` to the broker without a layer in between.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar, cast

from .. import tracing
from ..errors import (
    Closed,
    Forked,
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    VisibilityTimeoutExpired,
)
from ..model import ENCODING_TEXT, Delivery, Draft, Entry, MessageFilter, QueueSettings
from . import checks
from .codecs import Codec
from .handle import BrokerHandle
from .interface import LibraryBroker
from .message import Message, ReceivedMessage
from .publishing import is_item, make_item
from .times import to_ms
from .waiting import ThreadWait, WaitRegistry, release_unseen

T = TypeVar("T")
_numbers = count(1)
_LAST_DIGITS = [f"{low:02x}" for low in range(256)]


class QueueObject(Protocol):
    """A queue object of `openq` or of `openq.aio`."""

    name: str

    @property
    def core(self) -> QueueCore: ...


class QueueCore:
    """What one queue object knows: its name, where its messages are, and how their bodies are encoded."""

    __slots__ = (
        "__weakref__",
        "_id_prefix",
        "ack_one",
        "awaits_commit",
        "broker",
        "closed",
        "codec",
        "decode",
        "handle",
        "id_format",
        "is_auto",
        "is_blocking",
        "is_view",
        "label",
        "labels",
        "loads",
        "message_id",
        "name",
        "publish_body",
        "receive_now",
        "saved_file",
        "syncs",
        "tracing",
        "waits",
    )
    broker: LibraryBroker
    message_id: Callable[[Entry], str]
    publish_body: Callable[[str, bytes, int], int]
    receive_now: Callable[[str, int, int | None, str | None], list[Delivery]]
    ack_one: Callable[[str, int, int], None]

    def __init__(self, name: str, handle: BrokerHandle, codec: Codec, settings: QueueSettings) -> None:
        broker = handle.broker
        self.name = name
        self.handle = handle
        self.codec = codec
        self.is_auto = codec.is_auto
        self.decode: Callable[[bytes, int], Any] = codec.decode
        self.loads = broker.storage.name != "memory"  # received messages must be loaded before use
        self.syncs = broker.storage.is_durable and not settings.relaxed  # calls wait for the disk
        self.is_blocking = True
        self.awaits_commit = False  # openq.aio waits for the disk itself
        self._id_prefix = broker.storage.id_prefix
        self.id_format = f"{self._id_prefix}%012x"  # half the price of an f-string with a format
        # The consumer name of this object's leases; other users of the broker may hold leases too.
        self.label = handle.consumer_label(next(_numbers))
        self.labels = {self.label}
        self.waits = WaitRegistry()
        self.saved_file: str | None = None
        self.closed = False
        self.is_view = False
        self.tracing = tracing.current()  # None: off
        self.bind(broker)
        if not handle.is_shared_store:
            _local_cores.add(self)

    # -- the broker ---------------------------------------------------------------------------

    def bind(self, broker: LibraryBroker) -> None:
        self.broker = broker
        self.message_id = broker.inspect.message_id
        self.publish_body = broker.publish_body
        self.receive_now = _no_deliveries if self.handle.is_remote else broker.receive
        self.ack_one = broker.ack_one

    def unbind(self, error: Callable[[], Closed] = Closed) -> None:
        """Refuse every further call with `error`. Messages received before can still be read."""
        closed: Any = _ClosedBroker(error)
        self.broker = closed
        self.publish_body = closed.publish_body
        self.receive_now = closed.receive
        self.ack_one = closed.ack_one

    def view(self, broker: LibraryBroker) -> QueueCore:
        """The same queue through another object of its broker. The original stays responsible for closing."""
        view = copy.copy(self)
        view.is_view = True
        view.is_blocking = True
        view.bind(broker)
        return view

    def stop_blocking(self) -> None:
        """Leave the wait for the disk to the caller. Brokers whose every call waits are not affected."""
        self.is_blocking = False
        self.awaits_commit = self.syncs and not self.broker.storage.waits
        self.syncs = self.syncs and self.broker.storage.waits

    def sync(self) -> None:
        """Return when everything done so far is on disk, and listeners have been called."""
        if self.syncs or (self.is_blocking and self.broker.observed):
            self.broker.sync()

    def check_not_forked(self) -> None:
        broker: object = self.broker
        if isinstance(broker, _ClosedBroker):
            broker.check_not_forked()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        release_unseen(self.handle.broker, self.name, self.waits.close())
        self.unbind()
        self.handle.leave()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and not self.is_view:
            self.closed = True
            self.handle.leave_from_gc()

    # -- other queues -------------------------------------------------------------------------

    def shares_broker(self, other: QueueCore) -> bool:
        return other.handle.broker is self.handle.broker

    def name_of(self, other: QueueObject | str) -> str:
        """The name of another queue, which must be on the same broker."""
        if isinstance(other, str):
            return checks.utf8(other, "the name of a queue")
        core = getattr(other, "core", None)
        if not isinstance(core, QueueCore):
            raise InvalidSetting(f"expected a queue or the name of one, not {other!r}")
        if not self.shares_broker(core):
            raise InvalidSetting(f"queue {core.name!r} is on another target than {self.name!r}")
        return core.name

    # -- publishing ---------------------------------------------------------------------------

    def publish_draft(self, draft: Draft) -> tuple[str, bool]:
        """The id, and whether it is that of an earlier message."""
        [result] = self.broker.publish_many(self.name, [draft])
        if isinstance(result, OpenQError):
            raise result
        return result

    def publish_items(
        self, items: Iterable[Any]
    ) -> tuple[list[str], list[tuple[str, Any]], OpenQError | None]:
        """All ids, the new items with their ids, and the first error."""
        items = checks.items(items, "items")
        ids = self._publish_plain(items)
        if ids is not None:
            return ids, list(zip(ids, items, strict=True)), None
        ids, fresh, errors = [], [], []
        drafts = [make_item(self.codec, item) for item in items]
        for item, result in zip(items, self.broker.publish_many(self.name, drafts), strict=True):
            if isinstance(result, OpenQError):
                errors.append(result)
                continue
            message_id, is_duplicate = result
            ids.append(message_id)
            if not is_duplicate:
                fresh.append((message_id, item))
        return ids, fresh, errors[0] if errors else None

    def _publish_plain(self, items: list[Any]) -> list[str] | None:
        """All as one record, if they are bodies of one encoding and the queue has no rules per message."""
        encoding = ENCODING_TEXT
        if self.is_auto and set(map(type, items)) == {str}:
            # The common case, without a step of Python code for each item.
            try:
                bodies = list(map(str.encode, items))
            except UnicodeEncodeError as error:
                raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None
        else:
            if any(isinstance(item, Message) or is_item(item) for item in items):
                return None
            encoded = [self.codec.encode(item) for item in items]
            encodings = {each for _, each in encoded}
            if len(encodings) > 1:
                return None
            if encodings:
                encoding = encodings.pop()
            bodies = [data for data, _ in encoded]
        run = self.broker.publish_bodies(self.name, bodies, encoding)
        if isinstance(run, range):
            return _run_ids(self.id_format, run)
        return None if run is None else list(map(self.id_format.__mod__, run))

    # -- receiving ----------------------------------------------------------------------------

    def wait_options(
        self,
        visibility_timeout: float | None,
        consumer: str | None,
        lease_ms: int | None,
    ) -> tuple[int | None, str | None]:
        """Lease and consumer of one receive call, checked."""
        if visibility_timeout is not None:
            lease_ms = to_ms(visibility_timeout, "visibility_timeout")
        if consumer is None:
            consumer = self.label
        else:
            self.labels.add(checks.text(consumer, "consumer"))
        return lease_ms, consumer

    def new_wait(
        self,
        limit: int = 1,
        visibility_timeout: float | None = None,
        wanted: MessageFilter | None = None,
        consumer: str | None = None,
        lease_ms: int | None = None,
    ) -> ThreadWait:
        lease_ms, consumer = self.wait_options(visibility_timeout, consumer, lease_ms)
        return self.handle.wait_class(self.broker, self.name, limit, lease_ms, consumer, wanted, self.waits)

    def load(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Read the bodies. Unreadable messages are left out; on an error all are released."""
        try:
            return self.broker.load(deliveries)
        except BaseException:
            self.release_unseen(deliveries)
            raise

    def release_unseen(self, deliveries: list[Delivery]) -> None:
        """Return deliveries that no consumer has seen, at once and uncounted."""
        release_unseen(self.handle.broker, self.name, deliveries)  # `broker` may be that of a closed queue

    def release(self, messages: Sequence[ReceivedMessage]) -> None:
        """Return messages at once and uncounted: the work on them was interrupted or never started."""
        self.broker.release(self.name, [self.receipt(message) for message in messages])
        for message in messages:
            message.settled = True
        self.sync()

    # -- receipts -----------------------------------------------------------------------------

    def receipt_id(self, delivery: Delivery) -> str:
        return f"{self.id_format % delivery.entry.seq}/{delivery.number:x}"

    def receipt(self, target: Message | str) -> tuple[int, int]:
        """The delivery of `target`: exact for a message or receipt id; the current lease for a message id."""
        if isinstance(target, ReceivedMessage):
            core = target.queue.core
            if core is not self and (not self.shares_broker(core) or core.name != self.name):
                raise MessageNotFoundError(target.id, self.name)
            return target.delivery.entry.seq, target.delivery.number
        text = (target.receipt_id or target.id) if isinstance(target, Message) else target
        if not isinstance(text, str):
            raise InvalidSetting(f"expected a message, a receipt id or a message id, not {text!r}")
        at = len(self._id_prefix) + 12
        if text.startswith(self._id_prefix) and text[at : at + 1] == "/":
            try:
                return int(text[at - 12 : at], 16), int(text[at + 1 :], 16)
            except ValueError:
                raise MessageNotFoundError(text, self.name) from None
        return self._current_receipt(text)

    def _current_receipt(self, message_id: str) -> tuple[int, int]:
        """The current lease of this queue object on a message.

        A lease of another queue object is not used: an object that has lost its lease must not end the next.
        """
        delivery = self.broker.inspect.lease_of(self.name, message_id)
        if delivery is not None:
            if delivery.consumer in self.labels:
                return delivery.entry.seq, delivery.number
            raise VisibilityTimeoutExpired(message_id, self.name)
        options = self.broker.inspect.find(self.name, message_id).options
        if options is not None and options.count:
            raise VisibilityTimeoutExpired(message_id, self.name)
        raise MessageNotFoundError(message_id, self.name)

    def with_receipt(self, target: Message | str, act: Callable[[tuple[int, int]], T]) -> T:
        """`act` on the receipt of `target`; errors name the id that the caller gave."""
        receipt = self.receipt(target)
        try:
            return act(receipt)
        except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
            raise type(error)(target_id(target), self.name) from None

    def settle(self, target: Message | str, act: Callable[[tuple[int, int]], T]) -> T:
        """The same for an act that ends the delivery. Returns when it is on disk."""
        outcome = self.with_receipt(target, act)
        if isinstance(target, ReceivedMessage):
            target.settled = True
        self.sync()
        return outcome


def _run_ids(id_format: str, run: range) -> list[str]:
    """The ids of consecutive sequences: 256 of them share all but their last two digits."""
    ids: list[str] = []
    first = run.start
    while first < run.stop:
        stop = min(run.stop, (first | 255) + 1)
        low = first & 255
        ids += map((id_format % first)[:-2].__add__, _LAST_DIGITS[low : low + stop - first])
        first = stop
    return ids


def target_id(target: Message | str) -> str:
    return target.id if isinstance(target, Message) else target


class _ClosedBroker:
    """The broker of a closed queue: every call raises."""

    observed = False

    def __init__(self, error: Callable[[], Closed]) -> None:
        self._error = error

    def check_not_forked(self) -> None:
        if self._error is not Closed:
            raise self._error()

    # Parts of the interface refuse like the broker itself.

    @property
    def inspect(self) -> _ClosedBroker:
        return self

    @property
    def admin(self) -> _ClosedBroker:
        return self

    @property
    def exchanges(self) -> _ClosedBroker:
        return self

    @property
    def kv(self) -> _ClosedBroker:
        return self

    @property
    def schedules(self) -> _ClosedBroker:
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def refuse(*_: object, **__: object) -> Any:
            raise self._error()

        return refuse


_local_cores: weakref.WeakSet[QueueCore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child shares neither the memory nor the directory of its parent: close its local queues."""
    for core in list(_local_cores):
        if not core.closed:
            core.closed = True
            core.unbind(cast(Any, partial(Forked, core.name, core.handle.path)))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _no_deliveries(*_: object) -> list[Delivery]:
    """Over the network one request both polls and waits: a poll before it would be a second request."""
    return []
