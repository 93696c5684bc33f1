"""Values of subscriptions and their batches, the same for every store: owners, terms, and checks.

A subscription reads a queue in numbered batches that stay the same until they are acknowledged. Batch n of
subscription S consists of leases whose consumer is `batch:S:n`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InvalidSetting, OpenQError
from ..model import Delivery, Entry, check_name
from .state_file import read_field, read_number

if TYPE_CHECKING:
    from .waiters import Waiter

LEASE_MS = 300_000
MAX_LEASE_MS = 7 * 86_400_000
MAX_MESSAGES = 100_000  # in one batch
MAX_NUMBER = 1 << 53  # of a batch: every store and every client counts exactly up to this
MAX_OPEN = 100  # open batches of one subscription
MAX_PART_BYTES = 64 << 20  # of bodies, in one response
MAX_SUBSCRIPTIONS = 10_000
MAX_OF_ONE = 1_000  # created by the same user
MAX_RETIRED = 10_000  # names of deleted subscriptions whose batch numbers are remembered
_MAX_PAST = 100  # replaced owners that are remembered
_PREFIX = "batch:"


class SubscriptionNotFound(OpenQError):
    code = "subscription_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"subscription {name!r} does not exist, or is not yours to see")
        self.name = name


class SubscriptionTaken(OpenQError):
    """Another owner reads the subscription now: the caller must stop."""

    code = "subscription_taken"

    def __init__(self, name: str, owner: str) -> None:
        super().__init__(
            f"subscription {name!r} was taken over by {owner!r}; stop this reader, or start it as a new owner"
        )
        self.name = name
        self.owner = owner


class SubscriptionInUse(OpenQError):
    code = "subscription_in_use"

    def __init__(self, name: str, queue: str) -> None:
        super().__init__(
            f"subscription {name!r} has open batches of queue {queue!r}; acknowledge them or delete it first"
        )
        self.name = name
        self.queue = queue


class TooManyBatches(OpenQError):
    code = "too_many_batches"

    def __init__(self, name: str, count: int) -> None:
        super().__init__(
            f"subscription {name!r} has {count} open batches, and there can be {MAX_OPEN}; "
            "acknowledge them or delete it first"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class FormedBatch:
    batch: int
    count: int
    bytes: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Part of a batch. `lost` counts messages that were settled by their receipts meanwhile."""

    deliveries: Sequence[Delivery]
    entries: Sequence[Entry]  # the same messages, with their bodies
    expired: bool
    lost: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    name: str
    queue: str
    owner: str | None
    lease_ms: int
    batches: Sequence[FormedBatch]


@dataclass(frozen=True, slots=True)
class SubscriptionTerms:
    """The state of a subscription besides its leases."""

    queue: str
    maker: str = ""  # the user whose limit it counts against
    owner: str | None = None  # the current reader
    past: tuple[str, ...] = ()  # replaced owners, the latest last
    lease_ms: int = LEASE_MS
    acked: int = 0  # the highest acknowledged batch number: it is never reused for other rows

    def acked_through(self, number: int) -> SubscriptionTerms:
        return self if number <= self.acked else replace(self, acked=number)

    def number_for(self, wanted: int, is_open: Callable[[int], bool]) -> int:
        """The number of the batch that a reader gets when it requests `wanted`.

        A reader that lost its position may request a number that was acknowledged. The messages that wait now
        are another batch, and a sink that knows the number would take it for the old one.
        """
        return wanted if wanted > self.acked or is_open(wanted) else check_number(self.acked + 1)

    def owned_by(self, owner: str | None, name: str) -> SubscriptionTerms:
        """A new owner takes over. A replaced owner is refused. Without an owner nothing changes."""
        if owner is None or owner == self.owner:
            return self
        if owner in self.past:
            raise SubscriptionTaken(name, self.owner or "")
        past = self.past if self.owner is None else (*self.past, self.owner)[-_MAX_PAST:]
        return replace(self, owner=owner, past=past)

    def read_from(self, queue: str, lease_ms: int | None) -> SubscriptionTerms:
        return replace(self, queue=queue, lease_ms=self.lease_ms if lease_ms is None else lease_ms)

    def to_json(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "owner": self.owner,
            "past": list(self.past),
            "lease_ms": self.lease_ms,
            "maker": self.maker,
            "acked": self.acked,
        }

    @classmethod
    def from_json(cls, name: str, fields: Any) -> SubscriptionTerms:
        """Read from a document that may have been edited by hand. Raises InvalidSetting."""
        check_name(name, "subscription")
        queue, maker = check_name(read_field(fields, "queue", str)), read_field(fields, "maker", str, "")
        owner, past = read_field(fields, "owner", (str, type(None))), read_field(fields, "past", list)
        if not all(isinstance(each, str) for each in past):
            raise InvalidSetting("past owners must be texts")
        lease_ms = read_number(fields, "lease_ms", MAX_LEASE_MS, 1)
        acked = read_number(fields, "acked", MAX_NUMBER, default=0)
        return cls(queue, maker, owner, tuple(past), lease_ms, acked)


class KnownSubscription(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...


class Subscriptions(Protocol):
    """The interface of the subscriptions of any store.

    Every method may block and must be called in a thread. Its changes are durable after `Broker.sync`.
    """

    def get(self, name: str) -> KnownSubscription: ...
    def __contains__(self, name: str) -> bool: ...
    def states(self) -> list[SubscriptionState]: ...
    def next_batch(
        self,
        name: str,
        queue: str,
        after: int,
        *,
        limit: int = MAX_MESSAGES,
        max_bytes: int | None = None,
        lease_ms: int | None = None,
        owner: str | None = None,
        waiter: Waiter | None = None,
        maker: str = "",
    ) -> FormedBatch | None:
        """The batch after number `after` if it is open, else the ready messages as a new batch.

        None: there are no messages. Then `waiter`, if given, is queued. It only gets a notification that
        there may be messages.
        """

    def rows(self, name: str, number: int, part: int = 0, parts: int = 1) -> BatchRows: ...
    def extend(self, name: str, owner: str | None, lease_ms: int | None = None) -> int: ...
    def ack(self, name: str, through: int, owner: str | None) -> tuple[int, int]: ...
    def delete(self, name: str) -> int: ...


def open_messages(states: Sequence[SubscriptionState]) -> list[tuple[str, int]]:
    """Each subscription, and how many messages its open batches hold."""
    return [(state.name, sum(batch.count for batch in state.batches)) for state in states]


# -- checks: each raises InvalidSetting


def check_lease(lease_ms: int | None) -> None:
    if lease_ms is not None and not 1 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidSetting(f"a lease must be above 0 and at most {MAX_LEASE_MS // 1000} s")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_MESSAGES:
        raise InvalidSetting(f"limit must be 1 to {MAX_MESSAGES}, not {limit}")


def check_number(batch: int) -> int:
    if not 0 <= batch <= MAX_NUMBER:
        raise InvalidSetting(f"batches are numbered up to {MAX_NUMBER}: {batch} cannot be one")
    return batch


def check_open(name: str, count: int) -> None:
    """Check the limit for one more batch beside `count`."""
    if count >= MAX_OPEN:
        raise TooManyBatches(name, count)


def check_part(part: int, parts: int) -> None:
    if not 0 <= part < parts:
        raise InvalidSetting(f"part must be 0 to {parts - 1}, not {part}")


def check_part_size(size: int, messages: int, parts: int) -> None:
    if size > MAX_PART_BYTES and messages > 1:
        raise InvalidSetting(
            f"this part has {size} bytes, more than {MAX_PART_BYTES}: ask for more than {parts} parts"
        )


def check_room(makers: Sequence[str], maker: str) -> None:
    """Check the limits for one more subscription beside those of `makers`."""
    if len(makers) >= MAX_SUBSCRIPTIONS:
        raise InvalidSetting(f"there are {MAX_SUBSCRIPTIONS} subscriptions; delete one that is not needed")
    if makers.count(maker) >= MAX_OF_ONE:
        raise InvalidSetting(f"you have made {MAX_OF_ONE} subscriptions; delete one that is not needed")


# -- names of consumers


def consumer_of(subscription: str, number: int) -> str:
    return f"{_PREFIX}{subscription}:{number}"


def read_consumer(consumer: str) -> tuple[str, int]:
    """Subscription and number of a batch. The name is empty for any other consumer."""
    name, _, number = consumer.removeprefix(_PREFIX).rpartition(":")
    if not consumer.startswith(_PREFIX) or not (number.isascii() and number.isdigit() and len(number) < 20):
        return "", 0
    return name, int(number)


def is_batch(consumer: str) -> bool:
    return consumer.startswith(_PREFIX)


def check_consumer(name: str) -> None:
    """Reject consumer names that look like a batch: acking the batch would ack their messages."""
    if name.startswith(_PREFIX):
        raise InvalidSetting(f"a consumer cannot be named {name[:100]!r}: {_PREFIX!r} is for subscriptions")
