"""Counts and rates of all queues, about once a second, for the pages that show them.

Theory of operation. While somebody is interested (a reader of the stream, or a request for the overview
within the last seconds) a thread takes a sample every second: the counters of all queues, which are cheap,
and the whole row of those that may have changed. Rows that differ from the sample before are new for every
reader. Without interest there is no thread and no work.

A reader has the set of queues whose rows it has not got in their newest form. Rows are written as far as the
client reads; a client that is slow gets fewer, newer rows, and nothing is buffered for it. So the first rows
of a reader, all of them, and later changes are one mechanism.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..broker.statistics import COUNTERS, QueueCounts
from ..errors import OpenQError
from ..model import QueueSettings
from .event_access import EventAccess
from .http_stream import HttpStream

if TYPE_CHECKING:
    from .context import ServerContext

log = logging.getLogger("openq.server")

INTERVAL_S = 1.0
FRESH_S = 2.0  # a sample that a request for the overview gets
WARM_S = 10.0  # how long sampling goes on after such a request
FIRST_S = 0.4  # between the first two samples: rates need two
FEW_QUEUES = 1_000  # of so many, all rows are read every time
TURNS = 5  # otherwise every row is read at least every so many samples
ROWS_PER_EVENT = 200
MAX_READERS = 500
REFRESH_S = 5.0  # permissions of readers are decided again
HEARTBEAT_S = 15.0
_SAME_MS = 1_000  # smaller differences of the oldest time are those of the clock

_PUBLISHED, _ACKED = COUNTERS.index("published"), COUNTERS.index("acked")
_FAILED = tuple(COUNTERS.index(name) for name in ("nacked", "lease_expired"))
_DEAD = COUNTERS.index("dead_lettered")


class LiveRow(NamedTuple):
    """One queue, as pages show it. Rates are messages per second since the sample before."""

    queue_key: str
    ready: int
    delayed: int
    in_flight: int
    waiting_bytes: int
    oldest_ms: int | None  # when the oldest ready message arrived
    consumers: int
    limited: int
    in_rate: float
    out_rate: float
    fail_rate: float
    dead_rate: float
    dead_letter: str | None
    paused: bool


class LiveTotals(NamedTuple):
    queues: int
    ready: int
    delayed: int
    in_flight: int
    waiting_bytes: int
    oldest_ms: int | None
    in_rate: float
    out_rate: float
    fail_rate: float
    dead_rate: float


NO_TOTALS = LiveTotals(0, 0, 0, 0, 0, None, 0.0, 0.0, 0.0, 0.0)


def sum_up(rows: Iterable[LiveRow]) -> LiveTotals:
    found = list(rows)
    if not found:
        return NO_TOTALS
    oldest = [row.oldest_ms for row in found if row.oldest_ms is not None]
    return LiveTotals(
        len(found),
        sum(row.ready for row in found),
        sum(row.delayed for row in found),
        sum(row.in_flight for row in found),
        sum(row.waiting_bytes for row in found),
        min(oldest, default=None),
        sum(row.in_rate for row in found),
        sum(row.out_rate for row in found),
        sum(row.fail_rate for row in found),
        sum(row.dead_rate for row in found),
    )


class Sample(NamedTuple):
    """All rows at one moment, never changed, and the names of those that differ from the sample before."""

    time_ms: int
    rows: Mapping[str, LiveRow]
    changed: Sequence[str]
    removed: Sequence[str]


class Sampler:
    """Takes samples. In one thread at a time."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._broker = context.broker
        self._counters: dict[str, Sequence[int]] = {}
        self._settings: dict[str, QueueSettings] = {}
        self._taken_s = 0.0
        self._turn = 0

    def take(self, before: Sample | None) -> Sample:
        broker, now_s = self._broker, time.monotonic()
        names = broker.queues()
        elapsed_s = now_s - self._taken_s if before is not None else 0.0
        known = {} if before is None else before.rows
        counted = dict(broker.statistics.counters(names))
        suspects = self._suspects(names, counted, known)
        time_ms = broker.now_ms()
        fresh = {
            row.name: self._row(row, known.get(row.name), elapsed_s, time_ms)
            for row in broker.statistics.of(suspects)
        }
        alive = set(names)
        rows = {name: row for name, row in known.items() if name in alive} | fresh
        changed = [name for name, row in fresh.items() if known.get(name) != row]
        removed = [name for name in known if name not in alive]
        for name in removed:
            self._counters.pop(name, None)
            self._settings.pop(name, None)
        self._taken_s = now_s
        return Sample(time_ms, rows, changed, removed)

    def _suspects(
        self, names: Sequence[str], counted: Mapping[str, Sequence[int]], known: Mapping[str, LiveRow]
    ) -> list[str]:
        """Queues whose row may differ now."""
        if len(names) <= FEW_QUEUES:
            return list(names)
        self._turn = (self._turn + 1) % TURNS
        find, found = self._broker.find_queue, []
        for number, name in enumerate(names):
            row = known.get(name)
            if (
                row is None
                or number % TURNS == self._turn  # consumers come and go without a count
                or row.delayed  # they become ready without a count
                or row.in_rate or row.out_rate or row.fail_rate or row.dead_rate
                or self._counters.get(name) != counted.get(name)
                or ((view := find(name)) is not None and view.settings is not self._settings.get(name))
            ):  # fmt: skip
                found.append(name)
        return found

    def _row(self, row: QueueCounts, before: LiveRow | None, elapsed_s: float, time_ms: int) -> LiveRow:
        name = row.name
        last = self._counters.get(name)
        self._counters[name] = row.counters
        view = self._broker.find_queue(name)
        settings = QueueSettings() if view is None else view.settings
        self._settings[name] = settings
        oldest_ms = None if row.oldest_age_ms is None else time_ms - row.oldest_age_ms
        known_ms = None if before is None else before.oldest_ms
        if oldest_ms is not None and known_ms is not None and abs(oldest_ms - known_ms) < _SAME_MS:
            oldest_ms = known_ms

        def rate(*counters: int) -> float:
            if last is None or elapsed_s <= 0:
                return 0.0
            return round(max(0, sum(row.counters[at] - last[at] for at in counters)) / elapsed_s, 2)

        return LiveRow(
            name,
            row.ready,
            row.delayed,
            row.in_flight,
            row.waiting_bytes,
            oldest_ms,
            self._consumers(name, row.waiters),
            row.limited,
            rate(_PUBLISHED),
            rate(_ACKED),
            rate(*_FAILED),
            rate(_DEAD),
            settings.dead_letter,
            settings.paused,
        )

    def _consumers(self, name: str, waiters: int) -> int:
        """Those that wait now, or have a subscription: a dispatcher is one waiter for all of its own."""
        amqp = self._context.amqp
        if amqp is None or self._broker.storage.waits or not amqp.open_connections:
            return waiters
        return max(waiters, amqp.consumers_of(name))


Encode = Callable[[Sample, list[LiveRow], list[str], LiveTotals, bool], bytes]


class LiveReader:
    """One stream. Called on the loop."""

    def __init__(
        self,
        feed: LiveFeed,
        access: EventAccess,
        is_meant: Callable[[str], bool],
        encode: Encode,
        *,
        follow: bool,
    ) -> None:
        self._feed = feed
        self._access = access
        self._is_meant = is_meant  # of the account of the stream
        self._encode = encode
        self._follow = follow  # otherwise the stream ends after one sample
        self._stream: HttpStream | None = None
        self._pending: dict[str, None] = {}  # in the order in which they changed
        self._removed: dict[str, None] = {}
        self._shown: set[str] = set()
        self._is_new = True
        self._refreshed_s = time.monotonic()
        self._has_news = False

    def start(self, stream: HttpStream) -> None:
        self._stream = stream
        stream.write(b"retry: 2000\n\n")

    def _may_see(self, name: str) -> bool:
        return self._is_meant(name) and self._access.may(name)

    def take(self, sample: Sample, is_changed: bool, now_s: float) -> None:
        """Note what is new, and write as much as the client reads."""
        if self._stream is None:
            return
        if is_changed or now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            if not self._access.refresh(is_changed, sample.time_ms):
                self._stream.end()
                return
            for name in [name for name in self._shown if name in sample.rows and not self._may_see(name)]:
                self._forget(name)
            self._add(sample, (name for name in sample.rows if name not in self._shown))
        for name in sample.removed:
            if name in self._shown:
                self._forget(name)
        names = sample.rows if self._is_new else sample.changed
        self._is_new = False
        self._add(sample, names)
        self._has_news = True
        self.write()

    def _add(self, sample: Sample, names: Iterable[str]) -> None:
        for name in names:
            if name in self._shown or self._may_see(name):
                self._shown.add(name)
                self._pending[name] = None
                self._removed.pop(name, None)

    def _forget(self, name: str) -> None:
        self._shown.discard(name)
        self._pending.pop(name, None)
        self._removed[name] = None

    def write(self) -> None:
        """An event for every sample, even without rows: its totals show that the server lives."""
        stream, sample = self._stream, self._feed.sample
        if stream is None or sample is None:
            return
        totals: LiveTotals | None = None
        while self._pending or self._removed or self._has_news:
            names = list(self._pending)[:ROWS_PER_EVENT]
            removed = list(self._removed)[:ROWS_PER_EVENT]
            if totals is None:
                totals = self._totals(sample)
            is_last = len(names) == len(self._pending) and len(removed) == len(self._removed)
            rows = [sample.rows[name] for name in names if name in sample.rows]
            if not stream.write(self._encode(sample, rows, removed, totals, is_last)):
                return  # `resumed`, or the next sample, goes on
            self._has_news = False
            for name in names:
                del self._pending[name]
            for name in removed:
                del self._removed[name]
            if is_last and not self._follow:
                stream.end()
                return

    def _totals(self, sample: Sample) -> LiveTotals:
        if len(self._shown) == len(sample.rows):
            return self._feed.totals_of_all()
        return sum_up(row for name in self._shown if (row := sample.rows.get(name)) is not None)

    # -- from the stream

    def resumed(self) -> None:
        self.write()

    def gone(self) -> None:
        self._stream = None
        self._feed.remove(self)

    def end(self) -> None:
        if self._stream is not None:
            self._stream.end()


def pause_s(took_s: float) -> float:
    """The time until the next sample: at most a tenth of a processor, however many queues there are."""
    return max(INTERVAL_S - took_s, 9 * took_s if took_s > 0.1 else 0.2)


class LiveFeed:
    """One for a server, made for the first request."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._sampler = Sampler(context)
        self._readers: set[LiveReader] = set()
        self._lock = threading.Lock()  # of the thread and the sampler
        self._thread: threading.Thread | None = None
        self._wanted_until_s = 0.0
        self._stopping = threading.Event()
        self._generation = context.guard.store.generation
        self._totals: tuple[Sample, LiveTotals] | None = None
        self.sample: Sample | None = None
        self._taken_s = 0.0

    @property
    def readers(self) -> int:
        return len(self._readers)

    @property
    def is_sampling(self) -> bool:
        return self._thread is not None

    def open(
        self, access: EventAccess, is_meant: Callable[[str], bool], encode: Encode, *, follow: bool = True
    ) -> LiveReader:
        reader = LiveReader(self, access, is_meant, encode, follow=follow)
        self._readers.add(reader)
        return reader

    def start(self, reader: LiveReader, stream: HttpStream) -> None:
        reader.start(stream)
        self._context.long_polls.add(self)
        if self._is_fresh():
            assert self.sample is not None
            reader.take(self.sample, False, time.monotonic())
        self._begin()

    def remove(self, reader: LiveReader) -> None:
        self._readers.discard(reader)
        if not self._readers:
            self._context.long_polls.discard(self)

    def end(self) -> None:
        """The server stops."""
        self._stopping.set()
        for reader in list(self._readers):
            reader.end()

    def totals_of_all(self) -> LiveTotals:
        assert self.sample is not None
        if self._totals is None or self._totals[0] is not self.sample:
            self._totals = self.sample, sum_up(self.sample.rows.values())
        return self._totals[1]

    def look(self) -> Sample:
        """A sample that is at most two seconds old, with rates. Blocking: in a thread."""
        self._wanted_until_s = time.monotonic() + WARM_S
        if not self._is_fresh():
            with self._lock:
                if not self._is_fresh():
                    self._take()
        self._context.loop.call_soon_threadsafe(self._begin)
        assert self.sample is not None
        return self.sample

    def _is_fresh(self) -> bool:
        return self.sample is not None and time.monotonic() - self._taken_s < FRESH_S

    def _take(self) -> float:
        """Take a sample; two if the last one is too old to give rates. Lock held.

        Returns for how many seconds it waited between the two.
        """
        last = self.sample
        if last is None or time.monotonic() - self._taken_s > WARM_S:
            first = self._sampler.take(last)
            self._stopping.wait(FIRST_S)
            second = self._sampler.take(first)
            # For readers of the time before, both are one step.
            changed = dict.fromkeys([*first.changed, *second.changed])
            self._set(second._replace(changed=list(changed), removed=[*first.removed, *second.removed]))
            return FIRST_S
        self._set(self._sampler.take(last))
        return 0.0

    def _set(self, sample: Sample) -> None:
        self.sample, self._taken_s = sample, time.monotonic()

    def _begin(self) -> None:
        if self._thread is None and not self._stopping.is_set():
            self._thread = threading.Thread(target=self._run, name="openq-live", daemon=True)
            self._thread.start()

    @property
    def _is_wanted(self) -> bool:
        return bool(self._readers) or time.monotonic() < self._wanted_until_s

    def _run(self) -> None:
        while self._is_wanted and not self._stopping.is_set():
            start_s, waited_s = time.monotonic(), 0.0
            try:
                with self._lock:
                    waited_s = self._take()
                sample = self.sample
                if sample is not None:
                    self._context.loop.call_soon_threadsafe(self._deliver, sample)
            except OpenQError as error:
                if not self._stopping.is_set():
                    log.warning("no live values: %s", error)  # the store is unreachable
            except RuntimeError:
                break  # the loop is closed
            self._stopping.wait(pause_s(time.monotonic() - start_s - waited_s))
        try:
            self._context.loop.call_soon_threadsafe(self._ended)
        except RuntimeError:
            pass

    def _ended(self) -> None:
        self._thread = None
        if self._is_wanted:
            self._begin()

    def _deliver(self, sample: Sample) -> None:
        generation = self._context.guard.store.generation
        is_changed, self._generation = generation != self._generation, generation
        now_s = time.monotonic()
        for reader in list(self._readers):
            reader.take(sample, is_changed, now_s)
