"""One list of ready messages in sequence order, cheap at any length.

A short list is a deque of entries. The middle of a long list is packed into pages: columns of numbers, 12 to
24 bytes a message, without an object for each. A packed page does not keep bodies that are on disk. So ten
million ready messages cost the cyclic collector a few thousand objects. A snapshot is a copy of page
references, because pages never change.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, islice, repeat
from typing import TypeVar

from ..model import DeliveryOptions, Entry, Properties

_T = TypeVar("_T")
_numbers = count(1)
PAGE = 1024
PAGE_BYTES = 1 << 20  # of bodies; a page of large messages is closed early


GroupKey = str | None


class PackedPage:
    """Packed entries with rising sequence numbers. A column whose values are all equal is that one value."""

    __slots__ = ("bodies", "encodings", "locations", "options", "properties", "sents", "seqs", "sizes")

    def __init__(
        self,
        seqs: range | array[int],
        sents: int | array[int],
        locations: array[int] | None,
        sizes: int | array[int],
        encodings: int | bytes,
        bodies: Sequence[bytes | None] | None,
        properties: Properties | tuple[Properties | None, ...] | None,
        options: DeliveryOptions | tuple[DeliveryOptions | None, ...] | None,
    ) -> None:
        self.seqs = seqs
        self.sents = sents
        self.locations = locations
        self.sizes = sizes
        self.encodings = encodings
        self.bodies = bodies
        self.properties = properties
        self.options = options

    @classmethod
    def pack(cls, entries: Sequence[Entry]) -> PackedPage:
        seqs: range | array[int] = array("Q", [entry.seq for entry in entries])
        if seqs[-1] - seqs[0] == len(seqs) - 1:
            seqs = range(seqs[0], seqs[-1] + 1)
        sents = array("Q", [entry.sent_ms for entry in entries])
        sizes = array("Q", [entry.size for entry in entries])
        encodings = bytes([entry.encoding for entry in entries])
        locations = array("Q", [entry.location for entry in entries])
        stored = locations[0] != 0
        return cls(
            seqs,
            narrow(sents),
            locations if stored else None,
            narrow(sizes),
            encodings[0] if encodings.count(encodings[0]) == len(encodings) else encodings,
            # A tuple, because the cyclic collector does not track a tuple of bytes; it would walk a list
            # every time.
            None if stored else tuple([entry.body for entry in entries]),
            None if stored else _shared([entry.properties for entry in entries]),
            _shared([entry.options for entry in entries]),
        )

    def __len__(self) -> int:
        return len(self.seqs)

    def entry(self, i: int) -> Entry:
        """One entry, without unpacking the others."""
        return Entry(
            self.seqs[i],
            self.sents if isinstance(self.sents, int) else self.sents[i],
            0 if self.locations is None else self.locations[i],
            self.sizes if isinstance(self.sizes, int) else self.sizes[i],
            self.encodings if isinstance(self.encodings, int) else self.encodings[i],
            None if self.bodies is None else self.bodies[i],
            self.properties[i] if isinstance(self.properties, tuple) else self.properties,
            self.options[i] if isinstance(self.options, tuple) else self.options,
        )

    def entries(self) -> list[Entry]:
        # `map` calls without a Python loop: a sixth less time than a comprehension.
        return list(
            map(
                Entry,
                self.seqs,
                repeat(self.sents) if isinstance(self.sents, int) else self.sents,
                repeat(0) if self.locations is None else self.locations,
                repeat(self.sizes) if isinstance(self.sizes, int) else self.sizes,
                repeat(self.encodings) if isinstance(self.encodings, int) else self.encodings,
                repeat(None) if self.bodies is None else self.bodies,
                self.properties if isinstance(self.properties, tuple) else repeat(self.properties),
                self.options if isinstance(self.options, tuple) else repeat(self.options),
            )
        )

    def is_plain(self) -> bool:
        """Whether all messages are plain, so that the engine need not look at each."""
        if isinstance(self.options, tuple):
            return all(options is None or options.is_plain for options in self.options)
        return self.options is None or self.options.is_plain


def narrow(column: array[int]) -> int | array[int]:
    """One number if all are equal, else the narrowest array that holds them."""
    low, high = min(column), max(column)
    if low == high:
        return low
    return array("I", column) if high < 1 << 32 else column


def _shared(column: list[_T | None]) -> _T | tuple[_T | None, ...] | None:
    """One object if all share it, else a tuple with one for each."""
    first = column[0]
    for each in column:
        if each is not first:
            return tuple(column)
    return first


class ReadyList:
    """Ready messages of one priority and group: first in, first out.

    Returned messages go back to their place.
    """

    __slots__ = (
        *("_order", "_pages", "_tail", "_tail_bytes", "count", "head", "is_single_deque", "returned"),
        "version",
    )

    def __init__(self) -> None:
        # A new number whenever messages change in any other way than by being appended or removed. It is
        # never used again, not by another list either.
        self.version = next(_numbers)
        self.head: deque[Entry] = deque()
        self._pages: deque[PackedPage] = deque()
        self._tail: list[Entry] = []
        self._tail_bytes = 0
        # Returned messages keep their place: a heap of sequences, and a dictionary of entries. One that is
        # removed from the middle leaves only its number in the heap, which is skipped later.
        self.returned: dict[int, Entry] = {}
        self._order: list[int] = []
        self.count = 0
        self.is_single_deque = True  # neither pages nor a tail: new messages go to the head

    def append(self, entry: Entry) -> None:
        """Append a message. Its sequence is higher than all before."""
        self.count += 1
        if self.is_single_deque:
            if len(self.head) < PAGE:
                self.head.append(entry)
                return
            self.is_single_deque = False
        tail = self._tail
        tail.append(entry)
        self._tail_bytes += entry.size
        if len(tail) >= PAGE or self._tail_bytes > PAGE_BYTES:
            self._close_tail()

    def append_all(self, entries: list[Entry]) -> None:
        """Append consecutive messages, fewer than a page."""
        self.count += len(entries)
        if self.is_single_deque:
            if len(self.head) + len(entries) <= PAGE:
                self.head.extend(entries)
                return
            self.is_single_deque = False
        self._tail.extend(entries)
        self._tail_bytes += sum([entry.size for entry in entries])
        if len(self._tail) >= PAGE or self._tail_bytes > PAGE_BYTES:
            self._close_tail()

    def append_page(self, page: PackedPage) -> None:
        if self._tail:
            self._close_tail()
        pages = self._pages
        # Bodies of the newest page stay in memory for a consumer that keeps up. Bodies of earlier pages are
        # read from disk at delivery.
        if pages and pages[-1].locations is not None:
            pages[-1].bodies = pages[-1].properties = None
        pages.append(page)
        self.count += len(page)
        self.is_single_deque = False

    def _close_tail(self) -> None:
        self._pages.append(PackedPage.pack(self._tail))
        self._tail = []
        self._tail_bytes = 0

    def put_back(self, entry: Entry) -> None:
        """Put a message back in its original place."""
        self.version = next(_numbers)
        heappush(self._order, entry.seq)
        self.returned[entry.seq] = entry
        self.count += 1

    def _first_returned(self) -> int:
        """The lowest sequence among the returned messages. There must be one."""
        order = self._order
        while order[0] not in self.returned:
            heappop(order)
        return order[0]

    def fill(self) -> bool:
        """Refill the head from the pages or the tail. False if both are empty."""
        if self._pages:
            self.head.extend(self._pages.popleft().entries())
        elif self._tail:
            self.head.extend(self._tail)
            self._tail = []
            self._tail_bytes = 0
        else:
            return False
        self.is_single_deque = not self._pages and not self._tail
        return True

    def first(self) -> Entry | None:
        if not self.head and not self.fill():
            return self.returned[self._first_returned()] if self.returned else None
        head = self.head[0]
        if self.returned:
            seq = self._first_returned()
            if seq < head.seq:
                return self.returned[seq]
        return head

    def pop(self) -> Entry | None:
        filled = bool(self.head) or self.fill()
        if self.returned:
            seq = self._first_returned()
            if not filled or seq < self.head[0].seq:
                heappop(self._order)
                self.count -= 1
                return self.returned.pop(seq)
        elif not filled:
            return None
        self.count -= 1
        return self.head.popleft()

    def last(self) -> Entry | None:
        """The message that is delivered last."""
        best = self.returned[max(self.returned)] if self.returned else None
        if self._tail:
            end: Entry | None = self._tail[-1]
        elif self._pages:
            end = self._pages[-1].entry(len(self._pages[-1]) - 1)
        else:
            end = self.head[-1] if self.head else None
        if best is None or (end is not None and end.seq > best.seq):
            return end
        return best

    def find(self, seq: int) -> Entry | None:
        entry = self.returned.get(seq)
        if entry is not None:
            return entry
        position = self._find_position(seq)
        if position is None:
            return None
        container, index = position
        return container.entry(index) if isinstance(container, PackedPage) else container[index]

    def _find_position(self, seq: int) -> tuple[deque[Entry] | PackedPage | list[Entry], int] | None:
        for part in (self.head, self._tail):
            if part and part[0].seq <= seq <= part[-1].seq:
                index = bisect_left(part, seq, key=_seq_of)
                return (part, index) if part[index].seq == seq else None
        pages = self._pages
        number = bisect_left(pages, seq, key=_last_of)
        if number < len(pages):
            page = pages[number]
            index = bisect_left(page.seqs, seq)
            if index < len(page) and page.seqs[index] == seq:
                return page, index
        return None

    def remove(self, seq: int) -> Entry | None:
        """Remove a message from any position."""
        found = self.returned.pop(seq, None)
        if found is not None:
            self.count -= 1
            if not self.returned:
                self._order.clear()
            return found
        position = self._find_position(seq)
        if position is None:
            return None
        container, index = position
        if container is self._pages_first() and len(self.head) < PAGE:
            # Unpack the first page into the head: removing messages from the front (expiry, redrive) unpacks
            # each page once.
            index += len(self.head)
            self.head.extend(self._pages.popleft().entries())
            self.is_single_deque = not self._pages and not self._tail
            container = self.head
        if isinstance(container, PackedPage):
            entries = container.entries()
            found = entries.pop(index)
            self._swap_page(container, entries)
        else:
            found = container[index]
            del container[index]
        self.count -= 1
        return found

    def _pages_first(self) -> PackedPage | None:
        return self._pages[0] if self._pages else None

    def _swap_page(self, page: PackedPage, entries: list[Entry]) -> None:
        number = bisect_left(self._pages, page.seqs[0], key=_last_of)
        if entries:
            self._pages[number] = PackedPage.pack(entries)
        else:
            del self._pages[number]

    def swap(self, old: PackedPage, new: PackedPage) -> bool:
        """Replace one page object by another. False if it is no longer in the list."""
        number = bisect_left(self._pages, old.seqs[-1], key=_last_of)
        if number < len(self._pages) and self._pages[number] is old:
            self._pages[number] = new
            return True
        return False

    def replace(self, entry: Entry) -> bool:
        """Replace the entry with the same sequence number."""
        self.version = next(_numbers)
        if entry.seq in self.returned:
            self.returned[entry.seq] = entry
            return True
        position = self._find_position(entry.seq)
        if position is None:
            return False
        container, index = position
        if isinstance(container, PackedPage):
            entries = container.entries()
            entries[index] = entry
            self._swap_page(container, entries)
        else:
            container[index] = entry
        return True

    def __iter__(self) -> Iterator[Entry]:
        """In delivery order. Changes nothing."""
        back = sorted(self.returned.items())
        position = 0
        for entry in self._in_sequence():
            while position < len(back) and back[position][0] < entry.seq:
                yield back[position][1]
                position += 1
            yield entry
        for _, entry in back[position:]:
            yield entry

    def appended_after(self, seq: int) -> Iterator[Entry]:
        """The messages with higher sequences, in order, without those that were put back. Changes nothing."""
        pages = self._pages
        yield from _after(self.head, seq)
        for page in list(islice(pages, bisect_left(pages, seq + 1, key=_last_of), None)):
            yield from _after(page.entries(), seq)
        yield from _after(self._tail, seq)

    def _in_sequence(self) -> Iterator[Entry]:
        yield from list(self.head)
        for page in list(self._pages):
            yield from page.entries()
        yield from list(self._tail)

    def kept_since_ms(self, not_due: Container[int]) -> int | None:
        """The start of the earliest retention period.

        Retention starts when a message was sent, or when it came due.
        """
        since = None
        for entry in self:
            if entry.seq in not_due:
                continue
            due_ms = 0 if entry.options is None else entry.options.due_ms
            kept_ms = max(entry.sent_ms, due_ms)
            since = kept_ms if since is None else min(since, kept_ms)
            if due_ms <= entry.sent_ms:
                break  # every later message was sent later
        return since

    def expiries(self) -> Iterator[tuple[int, int]]:
        """Sequence and expiry time of each message with its own TTL."""
        for entry in (*self.head, *self._tail, *self.returned.values()):
            if entry.options is not None and entry.options.expires_ms:
                yield entry.seq, entry.options.expires_ms
        for page in self._pages:
            if page.is_plain():
                continue
            for entry in page.entries():
                if entry.options is not None and entry.options.expires_ms:
                    yield entry.seq, entry.options.expires_ms

    def freeze(self) -> tuple[list[Entry], list[PackedPage]]:
        """The whole list for a snapshot: loose entries, and pages by reference."""
        loose = list(self.returned.values())
        loose += self.head
        loose += self._tail
        return loose, list(self._pages)


def _after(entries: deque[Entry] | list[Entry], seq: int) -> list[Entry]:
    if not entries or entries[-1].seq <= seq:
        return []
    return list(islice(entries, bisect_left(entries, seq + 1, key=_seq_of), None))


def _seq_of(entry: Entry) -> int:
    return entry.seq


def _last_of(page: PackedPage) -> int:
    return page.seqs[-1]
