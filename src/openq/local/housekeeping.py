"""Snapshots, and freeing of old segments: restart time and disk use do not grow with history.

Segments are freed only from the oldest on. So what remains is the unbroken end of the journal, which can be
replayed alone. A live message in an old segment is copied forward when keeping the segment would cost
more than copying: one forgotten message never pins gigabytes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..broker.cursors import LocalCursors
from ..engine.delayed import live_entries
from ..engine.queue import QueueState
from ..engine.ready_list import PackedPage
from ..engine.records import COPY, DELIVER, content
from ..engine.replay import checkpoint
from ..engine.snapshot import FrozenQueue, FrozenState, SegmentUsage, encode, freeze, usage_of
from ..errors import JournalDamaged, OpenQError, OutOfRoom
from ..journal.disk import NO_RESOURCES
from ..journal.file_journal import Journal
from ..journal.segments import SegmentInfo
from ..journal.snapshots import write as write_snapshot
from ..model import Entry

if TYPE_CHECKING:
    from .core import BrokerCore

log = logging.getLogger("openq")

_EVERY_S = 60.0
_ROOM = 1 << 16
_COPY_BATCH = 128  # messages or values copied under one hold of the lock
_COPY_BYTES = 1 << 20  # of values


class Housekeeper:
    """A thread that wakes when a segment is full, and once a minute to free old segments."""

    def __init__(self, core: BrokerCore, journal: Journal, cursors: LocalCursors, history_bytes: int) -> None:
        self._core = core
        self._cursors = cursors
        self._journal = journal
        self._history_bytes = history_bytes
        self._event = threading.Event()
        self._stopping = False
        self._busy = threading.Lock()
        self._snapshot_location = -1
        # The first segment that backups in progress read, if any. Called in this thread.
        self.held_for_backups: Callable[[], int | None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="openq-housekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._event.set()

    def stop(self) -> None:
        """Write a last snapshot, so that the next start has nothing to replay."""
        self._stopping = True
        self._event.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._journal.error is None and self._core.halted is None:
            self._guarded(self.snapshot)

    def _run(self) -> None:
        while not self._stopping:
            self._event.wait(_EVERY_S)
            self._event.clear()
            if not self._stopping:
                self._guarded(self.work)

    def _guarded(self, job: object) -> None:
        try:
            job()  # type: ignore[operator]
        except (OSError, OpenQError) as error:
            # Nothing is lost: the journal has everything. The next round tries again.
            log.warning("housekeeping is put off: %s", error)
        except Exception:
            log.exception("housekeeping failed; it is tried again")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No segment is freed and no snapshot is written meanwhile."""
        with self._busy:
            yield

    def work(self) -> None:
        """One round: a snapshot if a segment was filled since the last one, then free unneeded segments."""
        with self._busy:
            frozen = None
            if self._journal.end_location >> 32 != self._snapshot_location >> 32:
                try:
                    frozen, usage = self._snapshot()
                except (OSError, OutOfRoom) as error:
                    # Without room for a snapshot, unneeded segments are freed all the same.
                    log.warning("no snapshot: %s", error)
                    frozen, usage = self._frozen()
                self._free(frozen, usage)
            elif len(self._journal.segments()) > 1:
                frozen, usage = self._frozen()
                self._free(frozen, usage)

    def snapshot(self) -> None:
        with self._busy:
            if self._journal.end_location != self._snapshot_location:
                self._snapshot()

    def _frozen(self) -> tuple[FrozenState, SegmentUsage]:
        with self._core.lock:
            frozen = freeze(self._core.engine, self._core.now_ms())
            location = self._journal.end_location
        # Acks and copies that make a segment unneeded must be on disk before it is freed.
        if location > self._journal.durable_location:
            self._journal.wait(location - 1)
        return frozen, usage_of(frozen)

    def _snapshot(self) -> tuple[FrozenState, SegmentUsage]:
        usage = SegmentUsage()
        engine = self._core.engine
        with self._core.lock:
            now_ms = self._core.now_ms()
            # The journal must have the names of its queues even if this snapshot and their records are lost.
            engine.log_record(checkpoint(engine, now_ms))
            frozen = freeze(engine, now_ms)
            location = self._journal.end_location
        # A snapshot must not be ahead of the journal: everything in it must be on disk first.
        if location > self._journal.durable_location:
            self._journal.wait(location - 1)
        directory = os.path.join(self._journal.path, "snapshots")
        write_snapshot(directory, location, encode(frozen, usage), self._journal.io)
        self._snapshot_location = location
        return frozen, usage

    # -- freeing ------------------------------------------------------------------------------

    def _free(self, frozen: FrozenState, usage: SegmentUsage) -> None:
        segments = self._journal.segments()
        if len(segments) < 2:
            return
        kept_from = self._kept_from(segments)
        droppable = segments[0].number
        dead = 0  # bytes that could be freed if no live message came before them
        for segment in segments[:-1]:
            if segment.number >= kept_from:
                break
            if not usage.live.get(segment.number) and segment.number == droppable:
                droppable += 1
            else:
                dead += max(0, segment.bytes - usage.live.get(segment.number, 0))
        if droppable > segments[0].number:
            self._journal.drop_before(droppable)
        live = sum(usage.live.values())
        oldest = next((s for s in segments if s.number >= droppable), segments[-1])
        if dead > max(live, 2 * oldest.bytes) and oldest.number < kept_from:
            self._copy_forward(frozen, oldest.number)

    def _kept_from(self, segments: list[SegmentInfo]) -> int:
        """The first segment that history still needs."""
        with self._core.lock:
            now_ms = self._core.now_ms()
            shortage = self._journal.shortage
            # Also while the current segment has room left for small messages only.
            full = shortage is not None or not self._journal.can_publish(_ROOM)
            if shortage is not None and shortage.errno in NO_RESOURCES:
                full = False  # freeing history releases no descriptors
            queues = list(self._core.engine.queues.values())
        # Segments are kept for readers with a cursor, within the limits of each.
        held = None if full else self._cursors.held_from(segments, now_ms)
        backed_up = None if full else self.held_for_backups()
        # On a full disk history is freed first, so that publishing can continue.
        history_ms = 0 if full else max((each.settings.history_ms for each in queues), default=0)
        dedup_ms = max((each.settings.dedup_window_ms for each in queues if each.dedup), default=0)
        size = 0
        kept_from = segments[-1].number
        for segment in reversed(segments[:-1]):
            size += segment.bytes
            age_ms = now_ms - (segment.last_ms or now_ms)
            by_history = age_ms <= history_ms and size <= self._history_bytes
            if not by_history and age_ms > dedup_ms:
                break
            kept_from = segment.number
        return min(each for each in (kept_from, held, backed_up) if each is not None)

    def _copy_forward(self, frozen: FrozenState, segment: int) -> None:
        """Write the live messages of one old segment again; the next round frees the segment."""
        copied = 0
        for queue in frozen.queues:
            for entries, pages in queue.ready_lists:
                copied += self._copy_loose(queue, entries, segment)
                for page in pages:
                    if self._stopping:
                        return
                    if page.locations is not None and any(
                        location >> 32 == segment for location in page.locations
                    ):
                        copied += self._copy_page(queue, page, segment)
            copied += self._copy_loose(queue, queue.delayed.loose, segment)
            for packed, gone in queue.delayed.pages:
                if self._stopping:
                    return
                if packed.page.locations is not None and any(
                    location >> 32 == segment for location in packed.page.locations
                ):
                    copied += self._copy_loose(queue, list(live_entries(packed, gone)), segment)
            copied += self._copy_loose(queue, [lease[0] for lease in queue.leases], segment)
        copied += self._copy_values(frozen, segment)
        log.info("copied %d messages and values out of segment %d", copied, segment)

    def _copy_values(self, frozen: FrozenState, segment: int) -> int:
        """Values are in memory, so nothing is read."""
        copied = 0
        key_values = self._core.engine.key_values
        for bucket, values in frozen.key_values:
            old = [each for each in values if each[1].location >> 32 == segment]
            while old and not self._stopping:
                size = count = 0
                while count < min(_COPY_BATCH, len(old)) and size < _COPY_BYTES:
                    size += old[count][1].size
                    count += 1
                with self._core.lock:
                    copied += key_values.copy_forward(bucket, old[:count], segment, self._core.now_ms())
                del old[:count]
        return copied

    def _copy_page(self, frozen: FrozenQueue, page: PackedPage, segment: int) -> int:
        """Copy a page as a whole: looking up its messages one by one would unpack it for each."""
        entries = page.entries()
        old = [i for i, entry in enumerate(entries) if entry.location >> 32 == segment]
        try:
            contents = [content(data) for data in self._journal.read_many([entries[i].location for i in old])]
        except JournalDamaged:
            return self._copy_loose(frozen, entries, segment)
        with self._core.lock:
            queue = self._core.engine.numbered.get(frozen.number)
            if queue is not None and any(
                ready_list.swap(page, page) for ready_list in queue.ready.ready_lists()
            ):
                for i, (encoding, body, properties) in zip(old, contents, strict=True):
                    entries[i] = _moved_to(
                        entries[i], self._log_copy(queue, entries[i], encoding, body, properties)
                    )
                new = PackedPage.pack(entries)
                any(ready_list.swap(page, new) for ready_list in queue.ready.ready_lists())
                return len(old)
        return self._copy_loose(frozen, entries, segment)

    def _copy_loose(self, frozen: FrozenQueue, entries: list[Entry], segment: int) -> int:
        old = [entry for entry in entries if entry.location >> 32 == segment]
        copied = 0
        for start in range(0, len(old), _COPY_BATCH):
            part = old[start : start + _COPY_BATCH]
            try:
                contents = [
                    content(data) for data in self._journal.read_many([entry.location for entry in part])
                ]
            except JournalDamaged:
                # Unreadable messages are set aside: otherwise they would keep their segment, and all after
                # it, for ever.
                part = self._core.with_bodies(part)
                contents = [(entry.encoding, entry.body or b"", entry.properties) for entry in part]
            with self._core.lock:
                queue = self._core.engine.numbered.get(frozen.number)
                if queue is None:
                    return copied
                for entry, (encoding, body, properties) in zip(part, contents, strict=True):
                    current = queue.find(entry.seq)
                    if current is not None and current.location == entry.location:
                        location = self._log_copy(queue, current, encoding, body, properties)
                        moved = _moved_to(current, location)
                        if entry.seq in queue.leases:
                            # Its consumer may be about to read it and must not find an empty body.
                            moved.body, moved.properties = body, properties
                        self._core.engine.replace_entry(queue, moved)
                        copied += 1
        return copied

    def _log_copy(
        self, queue: QueueState, entry: Entry, encoding: int, body: bytes, properties: object
    ) -> int:
        engine = self._core.engine
        now_ms = self._core.now_ms()
        location = engine.log_record(
            (COPY, now_ms, queue.number, entry.seq, entry.sent_ms, encoding, body, properties, entry.options)
        )
        delivery = queue.leases.get(entry.seq)
        if delivery is not None:
            # Its lease was recorded in a segment that may be freed soon.
            engine.log_record(
                (
                    DELIVER,
                    now_ms,  # times in a journal never run backwards
                    queue.number,
                    delivery.number,
                    delivery.until_ms,
                    delivery.consumer,
                    (entry.seq,),
                )
            )
        return location


def _moved_to(entry: Entry, location: int) -> Entry:
    return Entry(entry.seq, entry.sent_ms, location, entry.size, entry.encoding, None, None, entry.options)
