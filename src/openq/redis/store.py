"""Access to the queues of one store: calls of Redis Functions, the queue cache, ids, time and events.

`StoreState` is shared by all connections of a process to a store. `RedisStore` is the access of the threads,
or of one event loop; each of them has connections of its own.

A function returns [whether the queue's outbox holds messages, Redis's time, the answer], and a fourth item if
it found damaged messages.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..broker.damage import FOUND, LOST, SET_ASIDE, DamageRegister
from ..broker.interface import Listener
from ..broker.message_ids import new_prefix
from ..clock import Clock, VirtualClock
from ..engine.rules import own_seq
from ..errors import Closed, FunctionError, QueueNotFound, StoreError
from ..model import Entry
from . import records
from .call_batcher import CallBatcher, Work
from .delivery_times import DeliveryTimes
from .event_places import ReaderState
from .functions import call_function, function_name, load_functions
from .moves import Moves
from .net.calls import Calls
from .net.greenlets import in_greenlet
from .net.url import Address
from .registry import CachedQueue, Registry
from .safety import SafetyReport, refuse_unsafe
from .server_check import check_servers
from .store_format import check_format

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("openq.redis")

_TRIES = 20
_MAX_QUEUE_TRIES = 100
_SMALL_PARTS = 64  # parts of one caller's call up to which it is sent together with others

Reply = list[Any]


class StoreState:
    """State that the threads and all event loops of one process share."""

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self.address = address
        self.clock = clock
        self.is_virtual = isinstance(clock, VirtualClock)
        self.is_server = False
        self.registry = Registry(address.prefix)
        self.closed = False
        self.offset_ms: int | None = None  # Redis's clock minus the monotonic clock
        self.heartbeat_ms = int(address.heartbeat_s * 1000)
        self.after_fork: list[Callable[[], None]] = []  # called in a forked child, which has no threads
        self.on_new_queue: Callable[[CachedQueue], None] | None = None
        self.reader = ReaderState()  # of events
        self.reset_identity()
        _STATES.add(self)
        self.listeners: list[Listener] = []
        self.report: SafetyReport | None = None  # what may be lost with the settings of the servers
        self.damage = DamageRegister()
        self.delivery_times: DeliveryTimes | None = None  # measured if a server asks for it
        self.known_buckets: set[str] = set()  # of key-values, whose names are in the list of all
        self.is_sweeper = False  # this process holds the lock of the sweep over all queues
        self.kv_totals = (0, 0)  # keys and bytes of all buckets, at the last sweep
        # Queue number -> id of the last event that was scanned for expired leases.
        self.event_positions: dict[int, str] = {}
        # Ids that are not derived from the sequence, recorded while a listener is registered.
        self.delivered_ids: dict[int, str] = {}

    def reset_identity(self) -> None:
        """Choose a new client name: with its parent's name, a forked child would seem to repeat its calls."""
        self.client = os.urandom(6).hex()  # names this process in tokens and as a holder of leases
        self.tokens = itertools.count(1)
        self.registry.lock = threading.Lock()  # a thread of the parent may have held it
        self.reader.lock = threading.Lock()
        for reset in self.after_fork:
            reset()

    def token(self) -> str:
        """Identifies one call, so that repeating it has no second effect."""
        return f"{self.client}:{next(self.tokens)}"

    def check_open(self) -> None:
        if self.closed:
            raise Closed()

    def recheck_safety(self) -> None:
        """Check the settings of the servers again: they may change at run time."""
        try:
            report = check_servers(self.address)
        except StoreError:
            return  # unreachable: logged elsewhere
        if self.report is not None and report.failures and report.failures != self.report.failures:
            for finding in report.failures:
                log.error("this Redis may lose acknowledged messages now: %s", finding)
        self.report = report


_STATES: weakref.WeakSet[StoreState] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for state in list(_STATES):
        state.reset_identity()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class RedisStore:
    def __init__(self, state: StoreState, loop: asyncio.AbstractEventLoop | None) -> None:
        self.state = state
        self.registry = state.registry
        self.address = state.address
        self.calls = Calls(state.address, loop=loop)
        self.batcher = None if loop is None else CallBatcher(loop)
        self.is_durable = state.address.profile == "safe"
        self.moves = Moves(self)
        self.token = state.token
        self._servers_key = f"{state.address.prefix}:{{meta}}:servers".encode()

    def start(self) -> None:
        """Check the servers' settings, load the functions, read queues and id prefix."""
        state, registry = self.state, self.registry
        state.report = check_servers(state.address)
        for line in refuse_unsafe(state.report):
            # A warning for servers only: programs and commands start often, and chose the profile.
            log.log(logging.WARNING if state.is_server else logging.INFO, "%s", line)
        check_format(self.calls, state.address.prefix)
        load_functions(self.calls, registry.docs_key)
        registry.id_prefix = registry.load_prefix(self.calls, new_prefix())
        registry.revives = True
        registry.now_argument = self.now_argument
        registry.refresh(self.calls, always=True)

    def refresh(self, *, always: bool = False) -> None:
        self.registry.refresh(self.calls, always=always)

    # -- calling functions ----------------------------------------------------------------------

    def now_argument(self) -> int:
        """The time for a function; 0 means Redis's own clock."""
        clock = self.state.clock
        return clock.now_ms() if isinstance(clock, VirtualClock) else 0

    def fcall_plain(self, key: bytes, name: str, *args: Any) -> Any:
        """Call a function whose answer has no outbox flag and no time."""
        return call_function(self.calls, key, name, self.now_argument(), *args)

    def fcall(self, key: bytes, name: str, *args: Any, idempotent: bool = True) -> Reply:
        state = self.state
        if state.closed:
            raise Closed()
        reply: Reply = call_function(self.calls, key, name, self.now_argument(), *args, idempotent=idempotent)
        if state.offset_ms is None or reply[1]:
            # Rounded up: the estimate is up to two milliseconds behind, never ahead. A position in the
            # future would skip events that are still to be written.
            state.offset_ms = int(reply[1]) + -time.monotonic_ns() // 1_000_000
        return reply

    def fcall_queue(self, view: CachedQueue, name: str, *args: Any, idempotent: bool = True) -> Reply:
        """Like `fcall`; finds a queue that was deleted and created again, and recreates one that Redis
        lost."""
        for _ in range(_MAX_QUEUE_TRIES):
            try:
                reply = self.fcall(view.key, name, *args, idempotent=idempotent)
            except FunctionError as error:
                if error.code == "BLOCK":
                    self._add_sequences(view)
                elif error.code == "NOQUEUE":
                    view = self._recreate(view)
                elif error.code == "GONE":
                    self.drop_deleted(view)
                    again = self.registry.queues.get(view.name)
                    if again is None:
                        raise QueueNotFound(view.name) from None
                    view = again  # it was deleted and created again
                else:
                    raise
            else:
                return reply if len(reply) == 3 else self._report_damage(view, reply)
        raise StoreError(f"queue {view.name!r} cannot be found in Redis")

    def ask_queue(self, view: CachedQueue, name: str, *args: Any, idempotent: bool = True) -> Any:
        """The answer of a function; messages that it put into the outbox are moved on."""
        outbox, _, answer = self.fcall_queue(view, name, *args, idempotent=idempotent)
        if outbox:
            self.try_drain(view)
        return answer

    def ask_this_queue(self, view: CachedQueue, name: str, *args: Any) -> Any:
        return self.ask_and_drain(view, name, *args)[0]

    def ask_and_drain(self, view: CachedQueue, name: str, *args: Any) -> tuple[Any, bool]:
        """Call a function of exactly this queue, not of one created later under its name. Returns the answer
        and whether messages were moved to other queues."""
        for _ in range(2):
            try:
                reply = self.fcall(view.key, name, *args)
                outbox, _, answer = reply if len(reply) == 3 else self._report_damage(view, reply)
                return answer, bool(outbox and self.try_drain(view))
            except FunctionError as error:
                if error.code == "GONE":
                    self.drop_deleted(view)
                elif error.code != "NOQUEUE":
                    raise
                elif self._recreate(view) is view:
                    continue
                break
        raise QueueNotFound(view.name)

    def batched(self, work: Work, view: CachedQueue, item: Any) -> Any:
        """Send a small call together with those of other greenlets in the same loop iteration."""
        if self.batcher is not None and len(item) <= _SMALL_PARTS and in_greenlet():
            return self.batcher.join(work, view, item)
        answer = work(view, [item])[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def confirm_batch(self) -> None:
        """After a batched call: wait for the copies once for all its callers."""
        if self.is_durable and self.batcher is not None and in_greenlet():
            self.calls.wait_for_copies()

    def try_drain(self, view: CachedQueue) -> dict[str, str]:
        """Move the messages of a queue's outbox on. Errors are ignored: the call that filled the outbox is
        done, and a full or unreachable node is tried again by the sweep."""
        try:
            return self.moves.drain(view)
        except StoreError as error:
            log.debug("messages of %r wait in its outbox: %s", view.name, error)
            return {}

    def _report_damage(self, view: CachedQueue, reply: Reply) -> Reply:
        """Report the damaged messages that a call found (outcome, reason, sequence and own id of each), and
        return the reply without them."""
        found = reply[3]
        damage = self.state.damage
        for at in range(0, len(found), 4):
            outcome, why, seq, own_id = (each.decode(errors="replace") for each in found[at : at + 4])
            if outcome == "lost":
                # Each report is another loss: the time distinguishes them.
                damage.report(
                    LOST, records.DAMAGES[why], reply[1], queue=view.name, offset=reply[1], count=int(seq)
                )
                continue
            kind = SET_ASIDE if outcome == "aside" else FOUND
            message_id = own_id or self.id_of(int(seq))
            damage.report(kind, records.DAMAGES[why], reply[1], queue=view.name, message_id=message_id)
        return reply[:3]

    # -- queues ---------------------------------------------------------------------------------

    def view(self, queue: str) -> CachedQueue:
        view = self.registry.queues.get(queue)
        if view is None:
            self.state.check_open()
            self.refresh()
            view = self.registry.queues.get(queue)
            if view is None:
                raise QueueNotFound(queue)
        return view

    def configure(self, view: CachedQueue, watched_ms: int = 0) -> None:
        """Write the settings of a queue into Redis, and create it there if it is missing; its events are
        watched until `watched_ms`."""
        first, last = self.registry.next_block(self.calls)
        packed = records.pack_settings(view.settings, view.version, self.address)
        try:
            reply = self.fcall_plain(view.key, "configure", packed, first, last, view.name, watched_ms)
        except FunctionError as error:
            if error.code != "GONE":
                raise
            self.drop_deleted(view)
            raise QueueNotFound(view.name) from None
        if len(reply) > 3:
            self._report_damage(view, reply)
        if reply[0]:
            self.try_drain(view)

    def new_queue(self, view: CachedQueue) -> None:
        """Apply the holds of cursors to a queue that was just created."""
        if self.state.on_new_queue is not None:
            self.state.on_new_queue(view)

    def _recreate(self, view: CachedQueue) -> CachedQueue:
        """Redis lost a declared queue: create it again, with its settings and without its messages."""
        self.refresh()
        if view.deleted:
            again = self.registry.queues.get(view.name)
            if again is None:
                raise QueueNotFound(view.name)
            return again
        log.warning("queue %r was lost by Redis; it is created again, empty", view.name)
        self.configure(view)
        self.new_queue(view)
        return view

    def drop_deleted(self, view: CachedQueue) -> None:
        """Remove the document of a deleted queue: its deleter may have died before doing so."""
        for _ in range(_TRIES):
            self.refresh()
            known = self.registry.queues.get(view.name)
            if known is None or known.number != view.number:
                return
            self.registry.drop_queue(self.calls, known)

    def _add_sequences(self, view: CachedQueue, count: int = 10_000) -> None:
        for _ in range(_TRIES):
            first, last = self.registry.next_block(self.calls, count)
            reached = self.fcall_plain(view.key, "block", first, last, count)
            if reached <= 1:
                return
            self.registry.raise_blocks(self.calls, reached)  # the store lost its counters

    def keep_history(self, views: list[CachedQueue], from_ms: int, until_ms: int) -> list[CachedQueue]:
        """Hold the history of queues from a time on. Returns the queues that dropped older entries."""
        asked = (self.now_argument(), from_ms, until_ms)
        name = function_name("keep_history")
        commands = [(view.key, (b"FCALL", name, 1, view.key, *asked)) for view in views]
        dropped = []
        for view, reply in zip(views, self.calls.many(commands, idempotent=True), strict=True):
            try:
                if isinstance(reply, StoreError):
                    # A node without the functions, a deleted or a lost queue: `fcall_queue` handles these.
                    reply = self.fcall_queue(view, "keep_history", *asked[1:])
            except QueueNotFound:
                continue
            if reply[2]:
                dropped.append(view)
        return dropped

    # -- ids ------------------------------------------------------------------------------------

    def id_of(self, seq: int) -> str:
        return f"{self.registry.id_prefix}{seq:012x}"

    def message_id(self, entry: Entry) -> str:
        options = entry.options
        if options is not None and options.id is not None:
            return options.id
        return f"{self.registry.id_prefix}{entry.seq:012x}"

    def own_seq(self, message_id: str) -> int:
        return own_seq(self.registry.id_prefix, message_id)

    def seqs_of(self, view: CachedQueue, ids: Sequence[str]) -> list[int]:
        """The sequence of each message id; 0 if it cannot be one of this queue's."""
        if not ids:
            return []
        self.state.check_open()
        found = self.fcall_plain(view.key, "seqs_of", *ids)
        return [int(seq) if seq else self.own_seq(id) for id, seq in zip(ids, found, strict=True)]

    # -- time and copies ------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Redis's time as estimated from earlier answers, without a call; never ahead of it."""
        clock = self.state.clock
        if isinstance(clock, VirtualClock):
            return clock.now_ms()
        offset_ms = self.state.offset_ms
        if offset_ms is None:
            return time.time_ns() // 1_000_000
        return offset_ms + time.monotonic_ns() // 1_000_000

    def redis_now(self) -> int:
        """Redis's time, or that of the virtual clock."""
        return self.now_argument() or self.server_time_ms()

    def server_time_ms(self) -> int:
        seconds, micros = self.calls.call(self._servers_key, "TIME", idempotent=True)
        return int(seconds) * 1000 + int(micros) // 1000

    def sync(self) -> None:
        self.calls.wait_for_copies()

    # -- events ---------------------------------------------------------------------------------

    def emit(self, what: str, queue: str, ids: Iterable[str | None], detail: str = "") -> None:
        """Report a change that this process made to its listeners."""
        listeners = list(self.state.listeners)
        now_ms = self.now_ms() if listeners else 0
        for message_id in ids if listeners else ():
            event = {"event": what, "queue": queue, "id": message_id, "time_ms": now_ms, "detail": detail}
            for listener in listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed on %s", what)

    def delivered_id(self, seq: int) -> str:
        return self.state.delivered_ids.get(seq) or self.id_of(seq)


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
