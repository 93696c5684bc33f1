"""Delayed messages: found by sequence number, opened by due time, packed like ready ones.

New messages are collected in a short tail. A full tail becomes a page of number columns, about 40 bytes a
message. Removing a message from a page only marks it there, so pages never change and a snapshot copies
references. A page that is half empty is packed again. Messages that return (a retry, another due time) stay
loose.

Due times are kept as bare sequence numbers in buckets, with one timer for each bucket. Far buckets are 70
minutes wide, near ones a second. When a bucket opens, numbers whose message is gone or has another due time
are recognised and skipped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from ..model import DeliveryOptions, Entry, plain_options
from .ready_list import PAGE, PAGE_BYTES, PackedPage, narrow

FAR, NEAR = 22, 10  # widths of buckets, as powers of two in milliseconds
LEAD_MS = 60_000  # a far bucket opens this long before its time, so that spreading it makes no message late

Bucket = tuple[int, int]  # width and number


class DelayedPage:
    """Packed entries, with due times in their own column: options that differ only there share one object."""

    __slots__ = ("dues", "page")

    def __init__(self, page: PackedPage, dues: int | array[int]) -> None:
        self.page = page
        self.dues = dues

    @classmethod
    def pack(cls, entries: list[Entry]) -> DelayedPage:
        plain: list[Entry] = []
        last: DeliveryOptions | None = None
        for entry in entries:
            options = _without_due(entry.options)
            if options is not None and options == last:
                options = last
            last = options
            plain.append(entry.with_options(options))
        return cls(PackedPage.pack(plain), narrow(array("Q", [due_of(entry) for entry in entries])))

    def __len__(self) -> int:
        return len(self.page)

    def due(self, i: int) -> int:
        return self.dues if isinstance(self.dues, int) else self.dues[i]

    def entry(self, i: int) -> Entry:
        entry = self.page.entry(i)
        entry.options = _with_due(entry.options, self.due(i))
        return entry

    def moved(self, i: int, location: int) -> DelayedPage:
        """A copy of the page with one message at another location on disk."""
        page = self.page
        assert page.locations is not None
        locations = page.locations[:]
        locations[i] = location
        columns = (
            page.seqs,
            page.sents,
            locations,
            page.sizes,
            page.encodings,
            page.bodies,
            page.properties,
            page.options,
        )
        return DelayedPage(PackedPage(*columns), self.dues)


def due_of(entry: Entry) -> int:
    return 0 if entry.options is None else entry.options.due_ms


def _without_due(options: DeliveryOptions | None) -> DeliveryOptions | None:
    if options is None:
        return None
    rest = options.copy()
    rest.due_ms = 0
    if not rest.mark_plain().is_plain:
        return rest
    return None if rest.route is None and rest.type is None else plain_options(rest.route, rest.type)


def _with_due(options: DeliveryOptions | None, due_ms: int) -> DeliveryOptions:
    made = DeliveryOptions() if options is None else options.copy()
    made.due_ms = due_ms
    return made


class _PageSlot:
    """A page in its place, and which of its messages were removed."""

    __slots__ = ("gone", "last", "live", "page")

    def __init__(self, page: DelayedPage) -> None:
        self.page = page
        self.last = page.page.seqs[-1]
        self.live = len(page)
        self.gone: bytearray | None = None

    def index(self, seq: int) -> int | None:
        seqs = self.page.page.seqs
        i = bisect_left(seqs, seq)
        if i == len(seqs) or seqs[i] != seq or (self.gone is not None and self.gone[i]):
            return None
        return i

    def take(self, i: int) -> None:
        if self.gone is None:
            self.gone = bytearray(len(self.page))
        self.gone[i] = 1
        self.live -= 1

    def entries(self) -> Iterator[Entry]:
        return live_entries(self.page, self.gone)

    def frozen(self) -> tuple[DelayedPage, bytes | None]:
        return self.page, None if self.gone is None else bytes(self.gone)


def live_entries(page: DelayedPage, gone: bytes | bytearray | None) -> Iterator[Entry]:
    for i in range(len(page)):
        if gone is None or not gone[i]:
            yield page.entry(i)


class DelayedMessages:
    __slots__ = ("_loose", "_packed", "_slots", "_tail", "_tail_bytes", "armed", "buckets", "near")

    def __init__(self) -> None:
        self._slots: list[_PageSlot] = []  # with rising sequence numbers
        self._packed = 0  # messages in the slots
        self._tail: dict[int, Entry] = {}  # in sequence order, behind all slots
        self._tail_bytes = 0
        self._loose: dict[int, Entry] = {}
        self.buckets: dict[Bucket, array[int]] = {}
        self.near: dict[int, int] = {}  # messages with a timer of their own -> its time
        self.armed = 0  # sequence numbers in buckets, including those of removed messages

    # -- like a dictionary ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._loose) + len(self._tail) + self._packed

    def __contains__(self, seq: object) -> bool:
        if seq in self._loose or seq in self._tail:
            return True
        return bool(self._slots) and isinstance(seq, int) and self._find_position(seq) is not None

    def __iter__(self) -> Iterator[int]:
        return (entry.seq for entry in self.values())

    def __getitem__(self, seq: int) -> Entry:
        entry = self.get(seq)
        if entry is None:
            raise KeyError(seq)
        return entry

    def get(self, seq: int) -> Entry | None:
        entry = self._loose.get(seq) or self._tail.get(seq)
        if entry is not None or not self._slots:
            return entry
        position = self._find_position(seq)
        return None if position is None else position[0].page.entry(position[1])

    def due(self, seq: int) -> int | None:
        """When a message is due; None if it is not delayed."""
        entry = self._loose.get(seq) or self._tail.get(seq)
        if entry is not None:
            return due_of(entry)
        position = self._find_position(seq) if self._slots else None
        return None if position is None else position[0].page.due(position[1])

    def values(self) -> Iterator[Entry]:
        """By sequence number. Loose messages come last."""
        for slot in list(self._slots):
            yield from slot.entries()
        yield from list(self._tail.values())
        yield from list(self._loose.values())

    def items(self) -> Iterator[tuple[int, Entry]]:
        return ((entry.seq, entry) for entry in self.values())

    def add(self, entry: Entry, in_order: bool) -> None:
        """`in_order`: the sequence number is higher than all others here, so the message may be packed."""
        if not in_order:
            self._loose[entry.seq] = entry
            return
        self._tail[entry.seq] = entry
        self._tail_bytes += entry.size
        if len(self._tail) >= PAGE or self._tail_bytes > PAGE_BYTES:
            self.append_page(DelayedPage.pack(list(self._tail.values())))
            self._tail = {}
            self._tail_bytes = 0

    def append_page(self, page: DelayedPage) -> None:
        self._slots.append(_PageSlot(page))
        self._packed += len(page)

    def replace(self, entry: Entry) -> None:
        """Replace the entry with the same sequence number."""
        for part in (self._loose, self._tail):
            if entry.seq in part:
                part[entry.seq] = entry
                return
        slot, i = self._find(entry.seq)
        old = slot.page.entry(i)
        if (
            old.location
            and entry.location
            and (old.size, old.encoding, old.options) == (entry.size, entry.encoding, entry.options)
        ):
            slot.page = slot.page.moved(i, entry.location)
        else:
            self._take(slot, i)
            self._loose[entry.seq] = entry

    def pop(self, seq: int) -> Entry | None:
        entry = self._loose.pop(seq, None)
        if entry is not None:
            return entry
        entry = self._tail.pop(seq, None)
        if entry is not None:
            self._tail_bytes -= entry.size
            return entry
        position = self._find_position(seq) if self._slots else None
        if position is None:
            return None
        slot, i = position
        entry = slot.page.entry(i)
        self._take(slot, i)
        return entry

    def clear(self) -> None:
        self._slots = []
        self._packed = 0
        self._tail = {}
        self._tail_bytes = 0
        self._loose = {}
        self.clear_timers()

    # -- pages ------------------------------------------------------------------------------------

    def _slot_of(self, seq: int) -> int:
        return bisect_left(self._slots, seq, key=_last_of)

    def _find_position(self, seq: int) -> tuple[_PageSlot, int] | None:
        number = self._slot_of(seq)
        if number == len(self._slots):
            return None
        slot = self._slots[number]
        i = slot.index(seq)
        return None if i is None else (slot, i)

    def _find(self, seq: int) -> tuple[_PageSlot, int]:
        position = self._find_position(seq)
        if position is None:
            raise KeyError(seq)
        return position

    def _take(self, slot: _PageSlot, i: int) -> None:
        slot.take(i)
        self._packed -= 1
        if slot.live > len(slot.page) // 2:
            return
        number = self._slot_of(slot.last)
        left = list(slot.entries())
        if left:
            self._slots[number] = _PageSlot(DelayedPage.pack(left))
        else:
            del self._slots[number]

    def newest(self) -> Entry:
        """The message that was published last. There must be one."""
        ends = [max(part) for part in (self._loose, self._tail) if part]
        if self._slots:
            slot = self._slots[-1]
            i = len(slot.page) - 1
            while slot.gone is not None and slot.gone[i]:
                i -= 1
            ends.append(slot.page.page.seqs[i])
        return self[max(ends)]

    def size(self) -> int:
        """Bytes of all bodies."""
        return sum(entry.size for entry in self.values())

    def expiries(self) -> Iterator[tuple[int, int]]:
        """Sequence number and expiry time of each message with its own TTL."""
        for slot in self._slots:
            if not slot.page.page.is_plain():
                yield from _expiries(slot.entries())
        yield from _expiries((*self._tail.values(), *self._loose.values()))

    def dues(self) -> Iterator[tuple[int, int]]:
        """Sequence number and due time of each message, without unpacking any."""
        for slot in self._slots:
            for i, seq in enumerate(slot.page.page.seqs):
                if slot.gone is None or not slot.gone[i]:
                    yield seq, slot.page.due(i)
        for entry in (*self._tail.values(), *self._loose.values()):
            yield entry.seq, due_of(entry)

    def freeze(self) -> FrozenDelayed:
        loose = [*self._tail.values(), *self._loose.values()]
        return FrozenDelayed(loose, [slot.frozen() for slot in self._slots])

    # -- due times --------------------------------------------------------------------------------

    def arm(self, seq: int, due_ms: int, now_ms: int) -> tuple[int, Bucket | None] | None:
        """The timer that this message needs: its time, and its bucket, or None for a timer of its own.

        None if the bucket already has its timer.
        """
        if due_ms >> FAR > (now_ms + LEAD_MS) >> FAR:
            bucket, opens_ms = (FAR, due_ms >> FAR), (due_ms >> FAR << FAR) - LEAD_MS
        elif due_ms >> NEAR > now_ms >> NEAR:
            bucket, opens_ms = (NEAR, due_ms >> NEAR), due_ms >> NEAR << NEAR
        else:
            self.near[seq] = due_ms
            return due_ms, None
        self.armed += 1
        known = self.buckets.get(bucket)
        if known is not None:
            known.append(seq)
            return None
        self.buckets[bucket] = array("Q", (seq,))
        return opens_ms, bucket

    def open(self, bucket: Bucket, limit: int) -> list[tuple[int, int]]:
        """Take up to `limit` numbers of a bucket.

        Returns those whose message is still delayed and due in this bucket, with their due times.
        """
        seqs = self.buckets.get(bucket)
        if seqs is None:
            return []
        part = seqs[-limit:]
        del seqs[-limit:]
        self.armed -= len(part)
        if not seqs:
            del self.buckets[bucket]
        width, number = bucket
        dues = {seq: self.due(seq) for seq in part}
        return [(seq, due) for seq, due in dues.items() if due is not None and due >> width == number]

    @property
    def needs_compaction(self) -> bool:
        """Whether most numbers in the buckets belong to messages that are gone."""
        return self.armed > 8192 and self.armed > 4 * len(self)

    def compact(self) -> None:
        """Drop the numbers of messages that were cancelled long before they were due."""
        self.armed = 0
        for bucket, seqs in list(self.buckets.items()):
            width, number = bucket
            kept = [seq for seq in dict.fromkeys(seqs) if (self.due(seq) or 0) >> width == number]
            if kept:
                self.buckets[bucket] = array("Q", kept)
                self.armed += len(kept)
            else:
                del self.buckets[bucket]

    def clear_timers(self) -> None:
        """Forget all timers; the caller arms them again."""
        self.buckets = {}
        self.near = {}
        self.armed = 0

    def in_due_order(self) -> Iterator[Entry]:
        """Earliest due time first, over pages and times as of this call, whatever changes meanwhile."""
        chunks = [(0, max(self.near.values(), default=0) + 1, list(self.near))]
        for begin, minus_end, bucket in sorted((*_span(bucket), bucket) for bucket in self.buckets):
            end = -minus_end
            if end <= chunks[-1][1]:
                chunks[-1][2].extend(self.buckets[bucket])  # the far bucket around it is being spread
            else:
                chunks.append((begin, end, list(self.buckets[bucket])))
        return self.freeze().in_due_order(chunks)


class FrozenDelayed:
    """The delayed messages at one moment, by reference."""

    __slots__ = ("loose", "pages")

    def __init__(self, loose: list[Entry], pages: list[tuple[DelayedPage, bytes | None]]) -> None:
        self.loose = loose
        self.pages = pages

    def __iter__(self) -> Iterator[Entry]:
        for page, gone in self.pages:
            yield from live_entries(page, gone)
        yield from self.loose

    def in_due_order(self, chunks: Iterable[tuple[int, int, list[int]]]) -> Iterator[Entry]:
        """Entries by due time. `chunks` are consecutive time spans with the sequence numbers due in them.

        Only one chunk is unpacked at a time. A message whose due time changed is in several chunks; it counts
        in the chunk that contains its due time.
        """
        loose = {entry.seq: entry for entry in self.loose}
        for begin, end, seqs in chunks:
            found = [self._find(seq, loose) for seq in dict.fromkeys(seqs)]
            entries = [entry for entry in found if entry is not None and begin <= due_of(entry) < end]
            yield from sorted(entries, key=by_due)

    def _find(self, seq: int, loose: dict[int, Entry]) -> Entry | None:
        entry = loose.get(seq)
        if entry is not None:
            return entry
        number = bisect_left(self.pages, seq, key=_last_in)
        if number == len(self.pages):
            return None
        page, gone = self.pages[number]
        i = bisect_left(page.page.seqs, seq)
        if page.page.seqs[i] != seq or (gone is not None and gone[i]):
            return None
        return page.entry(i)


def by_due(entry: Entry) -> tuple[int, int]:
    return due_of(entry), entry.seq


def _expiries(entries: Iterable[Entry]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        if entry.options is not None and entry.options.expires_ms:
            yield entry.seq, entry.options.expires_ms


def _last_of(slot: _PageSlot) -> int:
    return slot.last


def _last_in(pair: tuple[DelayedPage, bytes | None]) -> int:
    return pair[0].page.seqs[-1]


def _span(bucket: Bucket) -> tuple[int, int]:
    """Begin and negated end of a bucket: of two that begin together the wider one sorts first."""
    width, number = bucket
    return number << width, -(number + 1 << width)
