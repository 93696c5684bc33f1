"""What every verb of the Redis broker stands on: calls, the cache of queues, time, promises."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..broker.damage import FOUND, LOST, SET_ASIDE, DamageRegister
from ..broker.interface import Health
from ..clock import Clock, VirtualClock
from ..engine.state import own_seq
from ..errors import Closed, FunctionError, OpenQError, QueueNotFound, StoreError
from ..local.foundation import Listener, new_prefix
from ..metrics import Family
from ..model import Entry, QueueSettings
from . import records
from .functions import call_function, load_functions
from .net.calls import Calls
from .net.url import Address
from .registry import CachedQueue, Registry
from .safety import SafetyReport, loss_window_gauges, refuse_unsafe
from .server_check import check_servers

log = logging.getLogger("openq.redis")

_TRIES = 20
_HEALTH_TIMEOUT_S = 1.0  # who asks for the health wants to know, not to wait

Reply = list[Any]


class StoreState:
    """What the views of one broker, one for threads and one for each loop, have in common."""

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self.address = address
        self.clock = clock
        self.registry = Registry(address.prefix)
        self.closed = False
        self.offset_ms: int | None = None  # Redis's clock less the monotonic one
        self.heartbeat_ms = int(address.heartbeat_s * 1000)
        self.after_fork: list[Callable[[], None]] = []  # called in a child, which has none of the threads
        self.reset_identity()
        _STATES.add(self)
        self.listeners: list[Listener] = []
        self.report: SafetyReport | None = None  # what its settings may lose
        self.damage = DamageRegister()
        self.event_positions: dict[
            int, str
        ] = {}  # number of a queue -> up to where its events were looked through
        self.delivered_ids: dict[
            int, str
        ] = {}  # ids that do not follow from the sequence, while somebody listens

    def reset_identity(self) -> None:
        """Under a name of its own: a forked child that kept its parent's would seem to repeat its calls."""
        self.client = os.urandom(6).hex()  # names this process in tokens and as a holder of leases
        self.tokens = itertools.count(1)
        self.registry.lock = threading.Lock()  # a thread of the parent may have held it
        for forget in self.after_fork:
            forget()


_STATES: weakref.WeakSet[StoreState] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for shared in list(_STATES):
        shared.reset_identity()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class StoreCore(ABC):
    # Facts that doors ask once.
    waits = True
    is_shared = True
    storage = "redis"
    relaxed = False
    is_server = False
    journal = None

    def __init__(self, shared: StoreState, loop: asyncio.AbstractEventLoop | None) -> None:
        self._shared = shared
        self._registry = shared.registry
        self.calls = Calls(shared.address, loop=loop)
        self.is_durable = shared.address.profile == "safe"
        self.place = f"everything acknowledged is in Redis at {shared.address}"
        self.router = shared.registry.router
        self.find_queue = shared.registry.queues.get

    # -- calling --------------------------------------------------------------------------------

    def _start(self) -> None:
        """The functions, the queues and the prefix of ids; after the settings of Redis were judged."""
        shared = self._shared
        shared.report = check_servers(shared.address)
        for line in refuse_unsafe(shared.report):
            # A server says it once; programs and commands are many, and asked for it.
            log.log(logging.WARNING if self.is_server else logging.INFO, "%s", line)
        load_functions(self.calls, self._registry.docs_key)
        registry = self._registry
        registry.id_prefix = registry.load_prefix(self.calls, new_prefix())
        registry.revives = True
        registry.refresh(self.calls, always=True)

    def _now_argument(self) -> int:
        clock = self._shared.clock
        return clock.now_ms() if isinstance(clock, VirtualClock) else 0

    def _fcall(self, key: bytes, name: str, *args: Any, idempotent: bool = True) -> Reply:
        """[whether something is in limbo, Redis's time, answer]"""
        if self._shared.closed:
            raise Closed()
        reply: Reply = call_function(
            self.calls, key, name, self._now_argument(), *args, idempotent=idempotent
        )
        if self._shared.offset_ms is None or reply[1]:
            self._shared.offset_ms = int(reply[1]) - time.monotonic_ns() // 1_000_000
        return reply

    def _ask_queue(self, view: CachedQueue, name: str, *args: Any, idempotent: bool = True) -> Any:
        """The answer of one of the functions for a queue; what it put into limbo is decided."""
        outbox, _, answer = self._fcall_queue(view, name, *args, idempotent=idempotent)
        if outbox:
            self._try_drain_outbox(view)
        return answer

    def _try_drain_outbox(self, view: CachedQueue) -> dict[str, str]:
        """What was done is done, even if Redis has no room for it elsewhere just now, or the other node is
        away: it stays in limbo, and is looked after again and again."""
        try:
            return self._drain_outbox(view)
        except StoreError as error:
            log.debug("messages of %r are on their way to other queues: %s", view.name, error)
            return {}

    def _fcall_queue(self, view: CachedQueue, name: str, *args: Any, idempotent: bool = True) -> Reply:
        for _ in range(100):
            try:
                reply = self._fcall(view.key, name, *args, idempotent=idempotent)
            except FunctionError as error:
                if error.code == "BLOCK":
                    self._add_sequences(view)
                elif error.code == "NOQUEUE":
                    view = self._recreate(view)
                elif error.code == "GONE":
                    self._drop_deleted(view)
                    again = self._registry.queues.get(view.name)
                    if again is None:
                        raise QueueNotFound(view.name) from None
                    view = again  # somebody deleted it and made it anew
                else:
                    raise
            else:
                return reply if len(reply) == 3 else self._report_damage(view, reply)
        raise StoreError(f"queue {view.name!r} cannot be found in Redis")

    def _report_damage(self, view: CachedQueue, reply: Reply) -> Reply:
        """The same reply, once the messages that the call found damaged are reported: outcome, reason,
        sequence and own id of each."""
        named = reply[3]
        for at in range(0, len(named), 4):
            outcome, why, seq, own_id = (each.decode(errors="replace") for each in named[at : at + 4])
            if outcome == "lost":
                # Each time is another loss: the time tells them apart.
                self.damage.report(
                    LOST, records.DAMAGES[why], reply[1], queue=view.name, offset=reply[1], count=int(seq)
                )
                continue
            kind = SET_ASIDE if outcome == "aside" else FOUND
            message_id = own_id or self.id_of(int(seq))
            self.damage.report(kind, records.DAMAGES[why], reply[1], queue=view.name, message_id=message_id)
        return reply[:3]

    def _drop_deleted(self, view: CachedQueue) -> None:
        """Who deleted it may have died, or been outrun by a change, before its document went too."""
        for _ in range(_TRIES):
            self._registry.refresh(self.calls)
            known = self._registry.queues.get(view.name)
            if known is None or known.number != view.number:
                return
            self._registry.drop_queue(self.calls, known)

    def _add_sequences(self, view: CachedQueue, count: int = 10_000) -> None:
        for _ in range(_TRIES):
            first, last = self._registry.next_block(self.calls, count)
            reached = self._fcall_plain(view.key, "block", first, last, count)
            if reached <= 1:
                return
            self._registry.raise_blocks(self.calls, reached)  # the store lost its counters

    def _fcall_plain(self, key: bytes, name: str, *args: Any) -> Any:
        return call_function(self.calls, key, name, self._now_argument(), *args)

    def _recreate(self, view: CachedQueue) -> CachedQueue:
        """Redis lost a queue that was declared: its settings at least are known."""
        self._registry.refresh(self.calls)
        if view.deleted:
            again = self._registry.queues.get(view.name)
            if again is None:
                raise QueueNotFound(view.name)
            return again
        log.warning("queue %r was lost by Redis; it is made again, empty", view.name)
        self._configure(view)
        self._hold_for_cursors(view)
        return view

    @abstractmethod
    def _hold_for_cursors(self, view: CachedQueue) -> None:
        """The cursors of RedisBroker hold the history of a new queue too."""

    @abstractmethod
    def _drop_orphan_subscriptions(self) -> None:
        """The subscriptions of RedisBroker whose queues are gone."""

    @property
    def address(self) -> Address:
        return self._shared.address

    @abstractmethod
    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        """See `Operations`."""

    def _configure(self, view: CachedQueue) -> None:
        first, last = self._registry.next_block(self.calls)
        packed = records.pack_settings(view.settings, view.version, self._shared.address)
        try:
            reply = self._fcall_plain(view.key, "configure", packed, first, last, view.name)
        except FunctionError as error:
            if error.code != "GONE":
                raise
            self._drop_deleted(view)
            raise QueueNotFound(view.name) from None
        if len(reply) > 3:
            self._report_damage(view, reply)
        if reply[0]:
            self._try_drain_outbox(view)

    @abstractmethod
    def _drain_outbox(self, view: CachedQueue) -> dict[str, str]:
        """See `Transfers`."""

    # -- queues ---------------------------------------------------------------------------------

    def _view(self, queue: str) -> CachedQueue:
        view = self._registry.queues.get(queue)
        if view is None:
            if self._shared.closed:
                raise Closed()
            self._registry.refresh(self.calls)
            view = self._registry.queues.get(queue)
            if view is None:
                raise QueueNotFound(queue)
        return view

    def get_queue(self, queue: str) -> CachedQueue:
        return self._view(queue)

    def queues(self) -> list[str]:
        self._check_open()
        self._registry.refresh(self.calls)
        return list(self._registry.queues)

    def _check_open(self) -> None:
        if self._shared.closed:
            raise Closed()

    @property
    def id_prefix(self) -> str:
        return self._registry.id_prefix

    def id_of(self, seq: int) -> str:
        return f"{self._registry.id_prefix}{seq:012x}"

    def message_id(self, entry: Entry) -> str:
        options = entry.options
        if options is not None and options.id is not None:
            return options.id
        return f"{self._registry.id_prefix}{entry.seq:012x}"

    def _own_seq(self, message_id: str) -> int:
        return own_seq(self._registry.id_prefix, message_id)

    def _token(self) -> str:
        return f"{self._shared.client}:{next(self._shared.tokens)}"

    # -- time and promises ----------------------------------------------------------------------

    @property
    def clock(self) -> Clock | None:
        return self._shared.clock

    def now_ms(self) -> int:
        """Redis's time, as far as it is known without asking."""
        clock = self._shared.clock
        if isinstance(clock, VirtualClock):
            return clock.now_ms()
        offset_ms = self._shared.offset_ms
        if offset_ms is None:
            return time.time_ns() // 1_000_000
        return offset_ms + time.monotonic_ns() // 1_000_000

    def sync(self) -> None:
        self.calls.wait_for_copies()

    def flush(self) -> None:
        self.calls.wait_for_copies()

    def after_commit(self, callback: Callable[[], None]) -> None:
        self.calls.after_copies(lambda error: callback())

    def after_durable(self, callback: Callable[[OpenQError | None], None]) -> None:
        self.calls.after_copies(callback)

    # -- events ---------------------------------------------------------------------------------

    def _emit(self, what: str, queue: str, ids: Iterable[str | None], detail: str = "") -> None:
        """Tell who listens what this process has done."""
        listeners = list(self._shared.listeners)
        now_ms = self.now_ms() if listeners else 0
        for message_id in ids if listeners else ():
            event = {"event": what, "queue": queue, "id": message_id, "time_ms": now_ms, "detail": detail}
            for listener in listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed on %s", what)

    def _delivered_id(self, seq: int) -> str:
        return self._shared.delivered_ids.get(seq) or self.id_of(seq)

    # -- documents and servers ------------------------------------------------------------------

    def document(self, name: str) -> tuple[int, bytes | None]:
        return self._registry.document(self.calls, name)

    def put_document(self, name: str, version: int, data: bytes) -> int:
        return self._registry.put(self.calls, name, version, data)

    @property
    def _servers_key(self) -> bytes:
        return f"{self._registry.prefix}:{{meta}}:servers".encode()

    def heartbeat(self, server: str, data: bytes, ttl_ms: int) -> None:
        key = self._servers_key
        until_ms = self._redis_ms() + ttl_ms
        self.calls.call(key, "HSET", key, server, b"%d %b" % (until_ms, data), idempotent=True)

    def servers(self) -> dict[str, bytes]:
        key = self._servers_key
        pairs = self.calls.call(key, "HGETALL", key, idempotent=True)
        now_ms = self._redis_ms()
        alive: dict[str, bytes] = {}
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            until_ms, _, data = value.partition(b" ")
            if int(until_ms) > now_ms:
                alive[name.decode()] = data
            elif int(until_ms) < now_ms - 3_600_000:
                self.calls.call(key, "HDEL", key, name, idempotent=True)
        return alive

    def remove_server(self, server: str) -> None:
        key = self._servers_key
        with contextlib.suppress(StoreError):
            self.calls.call(key, "HDEL", key, server, idempotent=True)

    def announce_url(self, url: str) -> None:  # noqa: B027 (it is whole)
        """Nobody looks into a directory for it here."""

    def _redis_ms(self) -> int:
        seconds, micros = self.calls.call(self._servers_key, "TIME", idempotent=True)
        return int(seconds) * 1000 + int(micros) // 1000

    def health(self) -> Health:
        if self._shared.closed:
            return Health(False, "closed")
        try:
            info = self.calls.call(self._servers_key, "INFO", "memory", timeout_s=_HEALTH_TIMEOUT_S)
        except StoreError as error:
            return Health(False, str(error))
        facts = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
        most = int(facts.get(b"maxmemory", 0))
        full = bool(most) and int(facts.get(b"used_memory", 0)) >= most
        detail = "Redis is full: publishing is refused" if full else "redis"
        return Health(not full, detail, full, self.damage.reasons())

    @property
    def damage(self) -> DamageRegister:
        return self._shared.damage

    def gauges(self) -> list[Family]:
        report = self._shared.report
        return [*self.damage.families(), *([] if report is None else loss_window_gauges(report))]

    def recheck_safety(self) -> None:
        """Settings of Redis may be changed while it runs."""
        shared = self._shared
        try:
            report = check_servers(shared.address)
        except StoreError:
            return  # it is away: others say so
        if shared.report is not None and report.failures and report.failures != shared.report.failures:
            for finding in report.failures:
                log.error("this Redis may lose acknowledged messages now: %s", finding)
        shared.report = report


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
