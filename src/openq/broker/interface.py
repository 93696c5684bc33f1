"""The Broker interface: all that a protocol or a client knows of queues.

No verb waits for the disk. What was done is *promised* only after `sync` (threads) or the callback of
`when_durable` (event loops): one wait for any number of verbs, and one place where answers are held back.
Where `waits` is true a verb may suspend the greenlet that calls it, and other requests go on meanwhile.
To add a broker: implement these, and join the list in tests/scenarios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..engine.routing import Binding, Exchange
from ..engine.why import Why
from ..errors import InvalidSearch, OpenQError
from ..model import Delivery, Draft, Entry, QueueSettings
from .waiters import Waiter

Receipt = tuple[int, int]  # sequence of the message, number of the delivery


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


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One line of a message's timeline."""

    time_ms: int
    what: str
    queue: str
    detail: str = ""
    traceback: str = ""  # of the failure that this step is about


@dataclass(slots=True)
class Filter:
    """Which messages a search, redrive or replay is about. Everything that is set must hold."""

    ids: Sequence[str] | None = None
    type: str | None = None
    text: str | None = None  # somewhere in the body
    attributes: Mapping[str, object] = field(default_factory=dict)
    json: Mapping[str, object] = field(default_factory=dict)  # dotted path -> value
    reason: str | None = None  # of the last failure, or of a dead letter
    state: str = "all"
    dead_in: str | None = None  # only the dead letters in this queue: those that died elsewhere

    def __post_init__(self) -> None:
        for path in self.json:
            _check_path(path)


_MAX_PATH = 1_000
_MAX_DIGITS = 100


def _check_path(path: str) -> None:
    """Raises InvalidSearch. A number in a path is a place in a list, or the name of a field."""
    if len(path) > _MAX_PATH:
        raise InvalidSearch(f"a key of `json` has at most {_MAX_PATH} characters, not {len(path)}")
    for part in path.split("."):
        if part.isdigit() and (not part.isascii() or len(part) > _MAX_DIGITS):
            raise InvalidSearch(
                f"{part[:40]!r} in a key of `json` is no place in a list: "
                f"write it with the digits 0 to 9, at most {_MAX_DIGITS} of them"
            )


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search brought: entries, and whether everything was looked at in the time given."""

    entries: list[Entry]
    complete: bool
    scanned: int


_DEGRADED_HINT = "`openq damage ls` names it, `openq damage clear` ends this once you have seen it"


@dataclass(frozen=True, slots=True)
class Health:
    """`ok`: everything is served. What is `degraded` is served all the same, and says why."""

    ok: bool
    detail: str
    disk_full: bool = False
    degraded: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["ok", "degraded", "failed"]:
        """In one word: ok, degraded or failed."""
        if not self.ok:
            return "failed"
        return "degraded" if self.degraded else "ok"

    @property
    def hint(self) -> str | None:
        """What an operator can do about it."""
        return _DEGRADED_HINT if self.status == "degraded" else None


class Broker(Protocol):
    # Queues.
    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings: ...
    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int: ...
    def queues(self) -> list[str]: ...
    def settings(self, queue: str) -> QueueSettings: ...
    def stats(self, queue: str) -> QueueStats: ...
    def purge(self, queue: str) -> int: ...

    # In.
    def publish(self, queue: str, draft: Draft) -> str: ...
    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[str | OpenQError]: ...
    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]: ...

    # Out. What `receive` returns must go through `load` before anybody sees it, and only what that returns
    # may be shown: a message whose body cannot be read is set aside.
    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        types: Iterable[str] | None = None,
    ) -> list[Delivery]: ...
    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None: ...
    def remove_waiter(self, queue: str, waiter: Waiter) -> bool: ...
    def load(self, deliveries: list[Delivery]) -> list[Delivery]: ...
    def ack(self, queue: str, receipts: Sequence[Receipt]) -> list[OpenQError | None]: ...
    def nack(
        self, queue: str, receipt: Receipt, delay_ms: int | None = None, reason: str | None = None
    ) -> str: ...
    def reject(self, queue: str, receipt: Receipt, reason: str | None = None) -> str: ...
    def release(self, queue: str, receipts: Sequence[Receipt]) -> int: ...
    def extend(self, queue: str, receipt: Receipt, lease_ms: int) -> int: ...

    # Looking and mending.
    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]: ...
    def search(self, queue: str, filter: Filter, limit: int, budget_s: float) -> SearchResult: ...
    def why(self, queue: str, message_id: str) -> Why: ...
    def timeline(self, queue: str, message_id: str) -> list[TimelineStep]: ...
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

    # Exchanges.
    def declare_exchange(self, exchange: Exchange) -> bool: ...
    def delete_exchange(self, name: str, if_unused: bool = False) -> object: ...
    def bind(self, binding: Binding) -> bool: ...
    def unbind(self, binding: Binding) -> object: ...  # false: there was no such binding

    # Promises, and the end.
    def sync(self) -> None: ...
    def after_commit(self, callback: Callable[[], None]) -> None: ...
    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]: ...
    def health(self) -> Health: ...
    def close(self) -> None: ...
