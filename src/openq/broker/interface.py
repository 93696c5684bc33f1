"""The broker interface: everything that a protocol or a client knows of queues.

`Broker` has two implementations: `openq.local` (engine and journal in this process) and `openq.redis`. Its
names come in roles, so that a function can ask for the role it needs:

    Queues       create, delete, look up, count
    Messages     publish, receive, settle; batches first, one call for many messages
    Durability   wait for the disk or for Redis; health, metrics, closing
    Inspect      `broker.inspect`: look at messages without changing them
    Exchanges    `broker.exchanges`: exchanges, bindings, routes

Other parts have one name each: `admin` (change queued messages), `cluster` (what the servers share),
`events` (what happened), `history` (files and tables of the past), `kv` (key-values), `schedules` (cron and
intervals), `staging`, `subscriptions`, `cursors` (data pipelines), `damage`, `statistics` (counts and times
of many queues), `backups`.

Each role extends that of the library (`LibraryQueues`, ...), which a broker behind a server offers too.

No call waits for the disk. A change is durable only after `sync` (threads) or the callback of
`LoopSession.after_commit` (event loops): one wait for any number of calls. Where `storage.waits` is true, a
call may suspend the greenlet that makes it, and other requests continue meanwhile.

To add a broker: implement these protocols and play the stories of tests/scenarios, as
tests/redis/test_scenarios.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from ..engine.routing import Binding, Exchange, ExchangeRouter, Removed
from ..engine.why import Why
from ..errors import InvalidSearch, OpenQError
from ..model import Delivery, DeliveryOptions, Draft, Entry, MessageFilter, Properties, QueueSettings
from .waiters import Waiter

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .audit import AuditStore
    from .backups import Backups
    from .cursors import Cursors
    from .damage import DamageRegister
    from .events import Events
    from .history import HistoryRange, PastMessage
    from .history_source import HistorySource
    from .kv import KeyValues
    from .scan_position import ScannedEntry, ScanPosition
    from .schedules import Schedules
    from .staged_batches import Staging
    from .statistics import Statistics
    from .subscriptions import Subscriptions

Receipt = tuple[int, int]  # sequence of the message, number of the delivery
Listener = Callable[[dict[str, Any]], None]  # gets every event


@dataclass(frozen=True, slots=True)
class QueueStats:
    name: str
    ready: int
    delayed: int
    in_flight: int
    waiting_bytes: int
    oldest_age_ms: int | None
    waiters: int
    counters: Mapping[str, int]
    limited: int = 0  # ready messages that limits hold now


class Waiting(NamedTuple):
    """The messages of a queue that wait to be delivered."""

    ready: int
    messages: int  # with those that are delayed
    bytes: int


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One step of a message's timeline."""

    time_ms: int
    what: str
    queue: str
    detail: str = ""
    traceback: str = ""  # of the failure that this step reports
    trace_id: str = ""  # of the message, if it was published with a trace context


@dataclass(slots=True)
class Filter:
    """Selects messages for a search, redrive or replay. All conditions that are set must hold."""

    ids: Sequence[str] | None = None
    type: str | None = None
    text: str | None = None  # somewhere in the body
    attributes: Mapping[str, object] = field(default_factory=dict)
    json: Mapping[str, object] = field(default_factory=dict)  # dotted path -> value
    reason: str | None = None  # text in that of the last failure, or of a dead letter
    reason_group: str | None = None  # the normalised reason, as groups of dead letters show it
    state: str = "all"
    dead_in: str | None = None  # only dead letters in this queue: messages dead-lettered by another one
    sent_from_ms: int = 0  # when they came into the queue
    sent_until_ms: int | None = None
    min_receives: int = 0  # deliveries that ended without an ack
    max_receives: int | None = None

    def __post_init__(self) -> None:
        for path in self.json:
            _check_path(path)


_MAX_PATH = 1_000
_MAX_DIGITS = 100


def _check_path(path: str) -> None:
    """Raises InvalidSearch. A number in a path is a list index or the name of a field."""
    if len(path) > _MAX_PATH:
        raise InvalidSearch(f"a key of `json` has at most {_MAX_PATH} characters, not {len(path)}")
    for part in path.split("."):
        if part.isdigit() and (not part.isascii() or len(part) > _MAX_DIGITS):
            raise InvalidSearch(
                f"{part[:40]!r} in a key of `json` is not a list index: "
                f"use the digits 0 to 9, at most {_MAX_DIGITS} of them"
            )


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Entries found, and whether the whole queue was searched within the time budget."""

    entries: list[Entry]
    complete: bool
    scanned: int


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a broker keeps its messages. Known without asking the store."""

    name: Literal["memory", "journal", "redis", "server"]
    place: str  # for display
    id_prefix: str  # of message ids
    is_durable: bool  # answers wait for a commit: a change must be followed by `sync` or `after_commit`
    waits: bool = False  # a call may suspend the greenlet that makes it


_DEGRADED_HINT = "`openq damage ls` names it, `openq damage clear` ends this once you have seen it"


@dataclass(frozen=True, slots=True)
class Health:
    """`ok`: everything is served. A degraded broker serves too; `degraded` says why."""

    ok: bool
    detail: str
    disk_full: bool = False
    degraded: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["ok", "degraded", "failed"]:
        if not self.ok:
            return "failed"
        return "degraded" if self.degraded else "ok"

    @property
    def hint(self) -> str | None:
        """What an operator can do."""
        return _DEGRADED_HINT if self.status == "degraded" else None


T = TypeVar("T")


def only(results: Sequence[T | OpenQError]) -> T:
    """The result of a batch of one; raises its error."""
    [result] = results
    if isinstance(result, OpenQError):
        raise result
    return result


class KnownQueue(Protocol):
    """A queue as the broker knows it without asking the store. Read only."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def settings(self) -> QueueSettings: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def deleted(self) -> bool: ...
    @property
    def fifo(self) -> bool: ...
    @property
    def is_plain(self) -> bool: ...  # a plain message needs no further checks here


class LibraryQueues(Protocol):
    """Queues by their keys (see `openq.names`)."""

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings: ...
    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int: ...
    def queues(self) -> list[str]: ...
    def settings(self, queue: str) -> QueueSettings: ...
    def stats(self, queue: str) -> QueueStats: ...
    def purge(self, queue: str) -> int: ...


class Queues(LibraryQueues, Protocol):
    @property
    def find_queue(self) -> Callable[[str], KnownQueue | None]: ...  # never waits
    def get_queue(self, queue: str) -> KnownQueue: ...  # raises QueueNotFound
    def waiting(self, queue: str) -> Waiting: ...  # cheaper than `stats`
    def purge(self, queue: str, waiting_only: bool = False) -> int: ...


class LibraryMessages(Protocol):
    """Publish, receive and settle.

    Deliveries from `receive` must pass `load` before a client sees them. Only those that `load` returns may
    be shown: a message whose body cannot be read is set aside.

    A verb that settles takes receipts of one queue, and returns the outcome or the error of each. An outcome
    is "returned", "dead-lettered" or "removed"; `extend` returns the new deadline (0: none). `ack_one` is the
    singular form of a hot path: with a batch of one, a cycle of publish, receive and ack costs 18 % more.
    """

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        """For each draft its id and whether it is that of an earlier message, or its error."""

    # The fast paths for plain messages. 0 or None: the caller must use `publish_many`.
    def publish_body(self, queue: str, body: bytes, encoding: int) -> int: ...
    def publish_bodies(self, queue: str, bodies: Sequence[bytes], encoding: int) -> Sequence[int] | None: ...

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        wanted: MessageFilter | None = None,
    ) -> list[Delivery]: ...
    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None: ...
    def remove_waiter(self, queue: str, waiter: Waiter) -> bool: ...
    def load(self, deliveries: list[Delivery]) -> list[Delivery]: ...

    def ack(self, queue: str, receipts: Sequence[Receipt]) -> list[OpenQError | None]: ...
    def ack_one(self, queue: str, seq: int, number: int) -> None: ...
    def nack(
        self,
        queue: str,
        receipts: Sequence[Receipt],
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[str | OpenQError]: ...
    def reject(
        self, queue: str, receipts: Sequence[Receipt], reason: str | None = None
    ) -> list[str | OpenQError]: ...
    def release(self, queue: str, receipts: Sequence[Receipt]) -> int: ...
    def extend(self, queue: str, receipts: Sequence[Receipt], lease_ms: int) -> list[int | OpenQError]: ...


class Messages(LibraryMessages, Protocol):
    """With what only protocols ask for.

    `late` also accepts the receipts of a lease that has ended, unless the message was delivered again since.
    """

    def publish_body(
        self,
        queue: str,
        body: bytes,
        encoding: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> int: ...
    def publish_bodies(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties: Properties | Sequence[Properties] | None = None,
        options: DeliveryOptions | None = None,
    ) -> Sequence[int] | None: ...
    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        wanted: MessageFilter | None = None,
        max_in_flight: int | None = None,  # raises TooManyInFlight if so many are in flight already
    ) -> list[Delivery]: ...
    def load(self, deliveries: list[Delivery], queue: str = "") -> list[Delivery]: ...  # of one queue
    def drop_bodies(self, deliveries: Sequence[Delivery]) -> None: ...
    def ack(
        self, queue: str, receipts: Sequence[Receipt], *, late: bool = False
    ) -> list[OpenQError | None]: ...
    def extend(
        self, queue: str, receipts: Sequence[Receipt], lease_ms: int, *, late: bool = False
    ) -> list[int | OpenQError]: ...


Committed = Callable[[OpenQError | None], None]  # called with the error that prevents the commit
PublishLater = Callable[[str, bytes, int, Properties | None, Callable[[int, Exception | None], None]], bool]
AckLater = Callable[[str, tuple[int, int], Callable[[], None], Callable[[Exception | None], None]], bool]


class LoopSession(Protocol):
    """How an event loop uses a broker: the calls that depend on what the broker waits for."""

    @property
    def publish_later(self) -> PublishLater | None:
        """`publish_body` at the end of this turn of the loop, together with those of other callers.

        The callback is called once it is durable, with the sequence; or with 0 and the error, if there is
        one. False: nothing will happen. None: not offered.
        """

    @property
    def ack_later(self) -> AckLater | None:
        """The same for `ack_one`: a function that is called before the acks, and the callback."""

    def enter(self, work: Callable[..., object], *arguments: Any) -> None:
        """Call `work` so that its calls of the broker may suspend it; a plain call where none does."""

    def after_commit(self, callback: Committed, at: int | None = None) -> None:
        """Call back on the loop once all changes so far are durable. Never suspends.

        With `at`, being durable up to that location is enough.
        """


class LibraryDurability(Protocol):
    """When a change is safe, and the state of the store."""

    @property
    def storage(self) -> Storage: ...
    def sync(self) -> None: ...
    def subscribe(self, listener: Listener) -> Callable[[], None]: ...
    def health(self) -> Health: ...
    def now_ms(self) -> int: ...
    def close(self) -> None: ...


class Durability(LibraryDurability, Protocol):
    def attach(self, loop: AbstractEventLoop) -> LoopSession: ...
    # How far the store must be durable before a client sees these; None: it is, and `load` never waits.
    def commit_location(self, deliveries: Sequence[Delivery]) -> int | None: ...
    def announce_url(self, url: str) -> None: ...


class LibraryInspect(Protocol):
    """Look at messages without changing them."""

    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]: ...
    def entries(self, queue: str, state: str = "all") -> list[Entry]: ...
    def find(self, queue: str, message_id: str) -> Entry: ...
    def status(self, queue: str, message_id: str) -> str | None: ...
    def message_id(self, entry: Entry) -> str: ...
    def lease_of(self, queue: str, message_id: str) -> Delivery | None: ...
    def deliveries(self, queue: str) -> list[Delivery]: ...
    def search(self, queue: str, filter: Filter, limit: int, budget_s: float) -> SearchResult: ...
    def why(self, queue: str, message_id: str) -> Why: ...
    def timeline(self, queue: str, message_id: str) -> list[TimelineStep]: ...


class Inspect(LibraryInspect, Protocol):
    @property
    def damage(self) -> DamageRegister: ...
    def walk(self, queue: str, state: str, after: ScanPosition | None) -> Iterator[ScannedEntry]: ...
    def with_bodies(self, entries: Sequence[Entry]) -> list[Entry]: ...
    def id_of(self, seq: int) -> str: ...
    def lease(self, queue: str, seq: int) -> Delivery | None: ...
    def leases(self, queue: str, limit: int) -> list[Delivery]: ...
    def leases_of(self, queue: str, seqs: Sequence[int]) -> dict[int, Delivery]: ...
    def search(
        self,
        queue: str,
        filter: Filter,
        limit: int = 100,
        budget_s: float = 1.0,
        max_bytes: int | None = None,
    ) -> SearchResult: ...
    def matching(self, queue: str, filter: Filter) -> Iterator[list[Entry]]: ...
    def past(self, queue: str, span: HistoryRange) -> list[PastMessage]: ...
    def trace(self, message_id: str, queues: Sequence[str], budget_s: float) -> list[TimelineStep]:
        """The timeline of a message that was in one of these queues, however it left it."""


class LibraryAdmin(Protocol):
    """Change queued messages by hand."""

    def cancel(self, queue: str, message_id: str) -> None: ...
    def edit(self, queue: str, message_id: str, draft: Draft) -> None: ...
    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]: ...
    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None: ...
    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
    ) -> int: ...
    def replay(
        self,
        queue: str,
        since_ms: int | None,
        since_id: str | None,
        to: str | None = None,
        *,
        include_purged: bool = False,
    ) -> int: ...


class Admin(LibraryAdmin, Protocol):
    @property
    def backups(self) -> Backups: ...
    def redrive_targets(self, queue: str, entries: Sequence[Entry], to: str | None) -> list[str | None]: ...
    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        allowed: Callable[[str], bool] | None = None,
    ) -> int: ...
    def replay(
        self,
        queue: str,
        since_ms: int | None,
        since_id: str | None,
        to: str | None = None,
        *,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        dry_run: bool = False,
        include_purged: bool = False,
        until_ms: int | None = None,
    ) -> int: ...


class LibraryExchanges(Protocol):
    """Exchanges, bindings, and messages that are published through them."""

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]: ...
    def declare_exchange(self, exchange: Exchange) -> bool: ...
    def delete_exchange(self, name: str, if_unused: bool = False) -> object: ...
    def bind(self, binding: Binding) -> bool: ...
    def unbind(self, binding: Binding) -> object: ...  # false: there was no such binding
    def exchange(self, name: str) -> Exchange: ...
    def list_exchanges(self) -> list[Exchange]: ...
    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]: ...


class Exchanges(LibraryExchanges, Protocol):
    @property
    def router(self) -> ExchangeRouter: ...  # read only; never waits
    def refresh(self) -> bool: ...  # read what other servers declared; false: there are none
    def route_to(self, queues: Sequence[str], draft: Draft) -> tuple[str, list[str], OpenQError | None]: ...
    def change_exchange(self, exchange: Exchange) -> None: ...
    def delete_exchange(self, name: str, if_unused: bool = False) -> Removed: ...
    def unbind(self, binding: Binding) -> Removed: ...
    def routed_queues(
        self, exchange: str, keys: Sequence[str], headers: Mapping[str, object] | None
    ) -> Sequence[KnownQueue]: ...


@dataclass(frozen=True, slots=True)
class LossWindow:
    """How much of what was acknowledged one kind of fault of the store may lose."""

    fault: str
    when: str  # the fault in words
    seconds: float  # inf: without bound; NaN: unknown
    text: str


class Cluster(Protocol):
    """State that the servers of one store share.

    A document is replaced only if its version is still the given one. Entries of servers expire; `kind` names
    what they are about.
    """

    def document(self, name: str) -> tuple[int, bytes | None]: ...  # version 0: there is no such document
    def put_document(self, name: str, version: int, data: bytes) -> int: ...
    def heartbeat(self, server: str, data: bytes, ttl_ms: int, kind: str = "servers") -> None: ...
    def servers(self, kind: str = "servers") -> dict[str, bytes]: ...
    def remove_server(self, server: str, kind: str = "servers") -> None: ...
    def roles(self) -> list[str]: ...  # what this process does for all servers of the store
    def loss_window(self) -> list[LossWindow]: ...


class Broker(Queues, Messages, Durability, Protocol):
    @property
    def inspect(self) -> Inspect: ...
    @property
    def admin(self) -> Admin: ...
    @property
    def exchanges(self) -> Exchanges: ...
    @property
    def cluster(self) -> Cluster | None: ...  # None: no other server uses this store
    @property
    def history(self) -> HistorySource: ...
    @property
    def staging(self) -> Staging: ...
    @property
    def subscriptions(self) -> Subscriptions: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def audit(self) -> AuditStore: ...
    @property
    def kv(self) -> KeyValues: ...
    @property
    def events(self) -> Events: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def statistics(self) -> Statistics: ...
