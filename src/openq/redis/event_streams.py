"""The streams that a reader of events merges: where each begins, and its entries in order, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import StoreError
from .event_entries import DELETION, OF_MESSAGE, OF_STORE, Position
from .event_places import Places
from .event_scripts import FIRST_ENTRIES, FIRST_SEQUENCE
from .net.calls import Calls
from .stream_positions import read_id, read_script

_CHUNK = 200  # streams in one call of a script
_FIRST_LOADS = 32  # streams whose first page is loaded at once
_PAGE = 200
_FIRST_MESSAGES = 8  # a page of messages begins small: their size is not known
_PAGE_BYTES = 1 << 20

Entry = tuple[Position, bytes, bytes]  # position of its first event, id, value


class EventStream:
    """One stream as one reader sees it: `start` is the argument of XRANGE with which it goes on."""

    __slots__ = (
        "_count",
        "_is_read",
        "entries",
        "first",
        "has_history",
        "is_exact",
        "key",
        "kind",
        "moves_only",
        "name",
        "number",
        "queue_key",
        "start",
    )

    def __init__(
        self,
        key: bytes,
        kind: int,
        number: int = 0,
        name: str = "",
        queue_key: bytes = b"",
        *,
        has_history: bool = True,
        moves_only: bool = False,
    ) -> None:
        self.key = key
        self.kind = kind
        self.number = number
        self.name = name
        self.queue_key = queue_key or key
        self.has_history = has_history
        self.moves_only = moves_only  # of a queue that the filter excludes: only moves out of it matter
        self.start = ""
        self.is_exact = False
        self.first: Position | None = None
        self.entries: deque[Entry] = deque()
        self._count = _FIRST_MESSAGES if kind == OF_MESSAGE else _PAGE
        self._is_read = False

    def position_of(self, id: bytes, value: bytes = b"") -> Position:
        """Of an entry; without its value, an earlier one may result."""
        left, right = read_id(id)
        if self.kind == OF_MESSAGE:
            return Position(right, OF_MESSAGE, left, self.number)
        kind = DELETION if self.kind == OF_STORE and value[:1] == b"D" else self.kind
        return Position(left, kind, right, self.number)

    def page_command(self) -> tuple[bytes | str | int, ...]:
        return ("XRANGE", self.key, self._next_start(), "+", "COUNT", self._count)

    def _next_start(self) -> str:
        return f"({self.entries[-1][1].decode()}" if self.entries else self.start

    def add_page(self, page: Sequence[Any]) -> None:
        size = 0
        for id, fields in page:
            self.entries.append((self.position_of(id, fields[1]), id, fields[1]))
            size += len(fields[1])
        self._is_read = len(page) < self._count
        if self.kind == OF_MESSAGE and page:
            self._count = max(1, min(_PAGE, 2 * self._count, _PAGE_BYTES * len(page) // max(1, size)))

    def pop(self) -> Entry:
        entry = self.entries.popleft()
        self.start = f"({entry[1].decode()}"
        return entry

    def next_position(self, calls: Calls) -> Position | None:
        """The position of the next entry; None if there is none now."""
        if not self.entries:
            if self._is_read:
                return None
            self.add_page(calls.call(self.key, *self.page_command(), idempotent=True))
        return self.entries[0][0] if self.entries else None


def find_starts(calls: Calls, streams: Iterable[EventStream], known: Places, after: Position) -> None:
    """Set where each stream begins: after the last entry that was read, or at the time of `after`."""
    unknown: list[EventStream] = []
    for stream in streams:
        place = known.get(stream.key)
        if place is not None:
            stream.start, stream.is_exact = place
        elif not after.ms:
            stream.start = "-"
        elif stream.kind != OF_MESSAGE:
            stream.start = str(after.ms)
        else:
            unknown.append(stream)
    commands = [(each.key, read_script(FIRST_SEQUENCE, [each.key], after.ms)) for each in unknown]
    for stream, reply in zip(unknown, replies_of(calls, commands), strict=True):
        stream.start = reply.decode()


def find_first(calls: Calls, streams: Sequence[EventStream], is_cluster: bool) -> list[EventStream]:
    """The streams that have entries from their start on."""
    groups: list[list[EventStream]] = []
    if is_cluster:
        # The keys of a script must be in one slot.
        by_slot: dict[bytes, list[EventStream]] = {}
        for stream in streams:
            by_slot.setdefault(stream.queue_key, []).append(stream)
        groups = list(by_slot.values())
    else:
        groups = [list(streams[at : at + _CHUNK]) for at in range(0, len(streams), _CHUNK)]
    commands = [
        (
            group[0].key,
            read_script(FIRST_ENTRIES, [each.key for each in group], *[each.start for each in group]),
        )
        for group in groups
    ]
    found: list[EventStream] = []
    for group, reply in zip(groups, replies_of(calls, commands), strict=True):
        for at in range(0, len(reply), 2):
            stream = group[reply[at] - 1]
            stream.first = stream.position_of(reply[at + 1])
            found.append(stream)
    return found


def load_first_pages(calls: Calls, streams: Iterable[EventStream]) -> None:
    """Load those that come first in one round trip; the others are loaded when it is their turn."""
    chosen = sorted(streams, key=lambda each: each.first or Position(0))[:_FIRST_LOADS]
    commands = [(each.key, each.page_command()) for each in chosen]
    for stream, page in zip(chosen, replies_of(calls, commands), strict=True):
        stream.add_page(page)


def replies_of(calls: Calls, commands: Sequence[tuple[bytes, tuple[bytes | str | int, ...]]]) -> list[Any]:
    """The replies of one round trip; raises the first error."""
    replies = calls.many(commands, idempotent=True) if commands else []
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


def store_stream(prefix: str) -> EventStream:
    return EventStream(f"{prefix}:{{meta}}:events".encode(), OF_STORE)
