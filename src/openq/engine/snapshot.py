"""The whole state as bytes, and back.

Only `freeze` needs an unchanging state. It copies references and takes milliseconds, because entries and
pages never change once they are queued. `encode` turns them into chunks later. A snapshot holds no bodies and
no values of key-values: they are on disk already, at the location in each entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any

from ..errors import InvalidSetting
from ..model import Delivery, DeliveryOptions, Entry, QueueSettings
from . import progress, schedules
from .delayed import DelayedPage, live_entries
from .engine import Engine
from .key_values import StoredValue
from .queue import Counters, QueueState
from .ready_list import PackedPage
from .record_values import pack_options, pack_value, unpack_options, unpack_value

FORMATS = (1, 2, 3)  # 2: delayed messages in pages; 3: with key-values

_ENTRY = Struct("<QQQQBI")  # seq, sent, location, size, encoding, length of options
_LEASE = Struct("<QQQII")  # number, start of the lease, until, count, length of consumer
_COLUMN = Struct("<BQ")  # type code or 0 for one value, value or count
_VALUE = Struct("<QQQQIH")  # version, changed, expires, location, size, length of the key
_U32 = Struct("<I")
_SAME_OPTIONS = _U32.pack((1 << 32) - 1)  # in place of the number of options in a page: one for all


class FrozenQueue:
    __slots__ = ("dedup", "delayed", "head", "leases", "limits", "number", "ready_lists")

    def __init__(self, queue: QueueState) -> None:
        self.number = queue.number
        self.head: list[object] = [
            queue.number,
            queue.name,
            queue.settings.to_json(),
            queue.created_ms,
            queue.counters.as_dict(),
        ]
        self.ready_lists = queue.ready.freeze()
        self.delayed = queue.delayed.freeze()
        self.leases = [
            (d.entry, d.number, d.delivered_ms, d.until_ms, d.count, d.consumer)
            for d in queue.leases.values()
        ]
        self.limits = None if queue.limits is None else queue.limits.dump()
        self.dedup = sorted(queue.dedup.items(), key=lambda item: item[1][1])


class FrozenState:
    """The state at one moment."""

    __slots__ = ("head", "key_values", "queues")

    def __init__(self, engine: Engine, now_ms: int) -> None:
        self.key_values = engine.key_values.freeze()
        self.head: dict[str, Any] = {
            "format": 3 if self.key_values else 2,
            "now": now_ms,
            "prefix": engine.id_prefix,
            "seq": engine.next_seq,
            "number": engine.next_number,
            "queue": engine.next_queue,
            "router": engine.router.dump(),
            "marks": progress.dump(engine),
            "kv": engine.key_values.next_version,
            "schedules": schedules.dump(engine),
            "deleted": {account: each.as_dict() for account, each in engine.deleted_counters.items()},
        }
        self.queues = [FrozenQueue(queue) for queue in engine.queues.values()]


def freeze(engine: Engine, now_ms: int) -> FrozenState:
    return FrozenState(engine, now_ms)


class SegmentUsage:
    """Which segments hold live messages, and how many bytes of them."""

    __slots__ = ("live",)

    def __init__(self) -> None:
        self.live: dict[int, int] = {}

    def add(self, location: int, size: int) -> None:
        segment = location >> 32
        self.live[segment] = self.live.get(segment, 0) + size + 64

    def add_page(self, page: PackedPage) -> None:
        if page.locations is None:
            return
        low, high = min(page.locations) >> 32, max(page.locations) >> 32
        if low == high:
            total = page.sizes * len(page) if isinstance(page.sizes, int) else sum(page.sizes)
            self.live[low] = self.live.get(low, 0) + total + 64 * len(page)
        else:
            for i, location in enumerate(page.locations):
                self.add(location, page.sizes if isinstance(page.sizes, int) else page.sizes[i])


def oldest_segment(engine: Engine) -> int:
    """The first segment that holds a live message; far beyond all segments if none does."""
    locations: list[int] = []
    for queue in engine.queues.values():
        for entries, pages in queue.ready.freeze():
            locations += [entry.location for entry in entries]
            locations += [min(page.locations) for page in pages if page.locations]
        delayed = queue.delayed.freeze()
        locations += [entry.location for entry in delayed.loose]
        locations += [min(packed.page.locations) for packed, _ in delayed.pages if packed.page.locations]
        locations += [delivery.entry.location for delivery in queue.leases.values()]
    for bucket in engine.key_values.buckets.values():
        locations += [stored.location for stored in bucket.values.values()]
    return min(locations, default=1 << 63) >> 32


def usage_of(frozen: FrozenState) -> SegmentUsage:
    """The usage that `encode` would count, without making its bytes."""
    usage = SegmentUsage()
    for queue in frozen.queues:
        for loose, pages in queue.ready_lists:
            _count(usage, loose)
            for page in pages:
                usage.add_page(page)
        _count(usage, queue.delayed.loose)
        for packed, gone in queue.delayed.pages:
            _count_delayed(usage, packed, gone)
        _count(usage, [lease[0] for lease in queue.leases])
    for _, values in frozen.key_values:
        _count_values(usage, values)
    return usage


def encode(frozen: FrozenState, usage: SegmentUsage | None = None) -> Iterator[bytes]:
    """Chunks of bytes: a head, then for each queue one chunk of loose entries and one per page."""
    yield b"H" + pack_value(frozen.head)
    for bucket, values in frozen.key_values:
        for start in range(0, len(values), 4096):
            some = values[start : start + 4096]
            yield b"K" + _pack_values(bucket, some)
            _count_values(usage, some)
    for queue in frozen.queues:
        yield b"Q" + pack_value(queue.head)
        if queue.limits is not None:
            yield b"B" + pack_value(queue.limits)
        for start in range(0, len(queue.dedup), 4096):
            yield b"U" + pack_value(queue.dedup[start : start + 4096])
        loose = [entry for entries, _ in queue.ready_lists for entry in entries]
        for kind, entries in ((b"R", loose), (b"D", queue.delayed.loose)):
            for start in range(0, len(entries), 4096):
                part = entries[start : start + 4096]
                yield kind + b"".join(_pack_entry(entry) for entry in part)
                _count(usage, part)
        for start in range(0, len(queue.leases), 4096):
            part_leases = queue.leases[start : start + 4096]
            yield b"L" + b"".join(_pack_lease(*lease) for lease in part_leases)
            _count(usage, [lease[0] for lease in part_leases])
        for _, pages in queue.ready_lists:
            for page in pages:
                if usage is not None:
                    usage.add_page(page)
                yield b"P" + _pack_page(page)
        for packed, gone in queue.delayed.pages:
            _count_delayed(usage, packed, gone)
            yield b"W" + _pack_delayed(packed, gone)
    yield b"E"


def _count(usage: SegmentUsage | None, entries: Iterable[Entry]) -> None:
    if usage is not None:
        for entry in entries:
            usage.add(entry.location, entry.size)


def _count_values(usage: SegmentUsage | None, values: Iterable[tuple[str, StoredValue]]) -> None:
    if usage is not None:
        for key, stored in values:
            usage.add(stored.location, stored.size + len(key))


def _count_delayed(usage: SegmentUsage | None, packed: DelayedPage, gone: bytes | None) -> None:
    if usage is None:
        return
    if gone is None:
        usage.add_page(packed.page)
    else:
        _count(usage, live_entries(packed, gone))


def decode(chunks: Iterable[bytes], engine: Engine) -> int:
    """Fill an empty engine. Returns the time of the snapshot."""
    queue: QueueState | None = None
    now_ms = 0
    ended = False
    for chunk in chunks:
        kind, data = chunk[:1], chunk[1:]
        if kind == b"H":
            now_ms = _load_head(engine, unpack_value(data))
        elif kind == b"Q":
            queue = _load_queue(engine, unpack_value(data))
        elif kind == b"K":
            for bucket, key, stored in _unpack_values(data):
                engine.key_values.add(bucket, key, stored, now_ms)
        elif kind == b"E":
            ended = True
        elif queue is not None:
            _LOADERS[kind](queue, data)
    if not ended:
        raise InvalidSetting("a snapshot without its end")
    for queue in engine.queues.values():
        queue.ready.offer_all()
    engine.rebuild_timers()
    return now_ms


def live_locations(chunks: Iterable[bytes]) -> Iterator[int]:
    """The locations of the messages and values of a snapshot, without building the queues."""
    fifo = False
    for chunk in chunks:
        kind, data = chunk[:1], chunk[1:]
        if kind == b"Q":
            fifo = QueueSettings.from_json(unpack_value(data)[2]).fifo
        elif kind == b"R" or (kind == b"D" and not fifo):  # FIFO: delayed ones are among the ready
            yield from (entry.location for entry in _unpack_entries(data))
        elif kind == b"L":
            position = 0
            while position < len(data):
                position += _LEASE.size + _LEASE.unpack_from(data, position)[4]
                entry, position = _unpack_entry(data, position)
                yield entry.location
        elif kind == b"K":
            yield from (stored.location for _, _, stored in _unpack_values(data))
        elif kind == b"P":
            yield from _unpack_page(data).locations or ()
        elif kind == b"W":
            yield from _unpack_delayed(data).page.locations or ()


def _load_head(engine: Engine, head: dict[str, Any]) -> int:
    if head["format"] not in FORMATS:
        raise InvalidSetting(f"snapshot format {head['format']}; this version reads {FORMATS}")
    engine.id_prefix = head["prefix"]
    engine.next_seq = head["seq"]
    engine.next_number = head["number"]
    engine.next_queue = head["queue"]
    engine.router.load(head["router"])
    progress.load(engine, head.get("marks", ()))
    engine.key_values.next_version = head.get("kv", 1)
    schedules.load(engine, head.get("schedules", []))
    for account, counters in head.get("deleted", {}).items():
        _load_counters(engine.deleted_counters.setdefault(account, Counters()), counters)
    return int(head["now"])


def _load_queue(engine: Engine, fields: list[Any]) -> QueueState:
    number, name, settings, created_ms, counters, *earlier = fields
    queue = engine.add_queue(QueueState(name, number, QueueSettings.from_json(settings), created_ms))
    _load_counters(queue.counters, counters)
    for dedup in earlier:  # the first snapshots had the window here, and not in parts of its own
        _add_dedup(queue, dedup)
    return queue


def _load_counters(counters: Counters, stored: dict[str, int]) -> None:
    """Another version may have stored counters that this one does not have."""
    for name, value in stored.items():
        if hasattr(counters, name):
            setattr(counters, name, value)


def _load_dedup(queue: QueueState, data: bytes) -> None:
    _add_dedup(queue, unpack_value(data))


def _add_dedup(queue: QueueState, window: Iterable[Any]) -> None:
    for key, (message_id, end_ms) in window:
        queue.dedup[key] = (message_id, end_ms)
        queue.dedup_order.append((end_ms, key))


def _load_limits(queue: QueueState, data: bytes) -> None:
    if queue.limits is not None:
        queue.limits.load(*unpack_value(data))


def _remember(queue: QueueState, entry: Entry) -> None:
    options = entry.options
    if options is not None:
        if options.id is not None:
            queue.ids[options.id] = entry.seq
        if options.unique is not None:
            queue.unique_keys[options.unique] = (entry.seq, options.id or "")


def _load_ready(queue: QueueState, data: bytes) -> None:
    for entry in _unpack_entries(data):
        _remember(queue, entry)
        queue.waiting_bytes += entry.size
        queue.ready.put_back(entry)


def _load_delayed(queue: QueueState, data: bytes) -> None:
    for entry in _unpack_entries(data):
        queue.delayed.add(entry, False)
        if not queue.settings.fifo:  # in a FIFO queue, it came with the ready messages already
            _remember(queue, entry)
            queue.waiting_bytes += entry.size


def _load_leases(queue: QueueState, data: bytes) -> None:
    position = 0
    while position < len(data):
        number, delivered_ms, until_ms, count, length = _LEASE.unpack_from(data, position)
        position += _LEASE.size + length
        consumer = data[position - length : position].decode("utf-8", "surrogatepass") or None
        entry, position = _unpack_entry(data, position)
        _remember(queue, entry)
        queue.leases[entry.seq] = Delivery(entry, number, delivered_ms, until_ms, count, consumer)
        queue.ready.mark_in_flight(entry)


def _load_page(queue: QueueState, data: bytes) -> None:
    page = _unpack_page(data)
    if page.is_plain() and not queue.settings.fifo:
        queue.ready.append_page(page)
        queue.waiting_bytes += page.sizes * len(page) if isinstance(page.sizes, int) else sum(page.sizes)
        return
    for entry in page.entries():
        _remember(queue, entry)
        queue.waiting_bytes += entry.size
        queue.ready.append(entry)


def _load_delayed_page(queue: QueueState, data: bytes) -> None:
    packed = _unpack_delayed(data)
    queue.delayed.append_page(packed)
    sizes = packed.page.sizes
    queue.waiting_bytes += sizes * len(packed) if isinstance(sizes, int) else sum(sizes)
    if not packed.page.is_plain():
        for entry in packed.page.entries():
            _remember(queue, entry)


_LOADERS = {
    b"B": _load_limits,
    b"U": _load_dedup,
    b"R": _load_ready,
    b"D": _load_delayed,
    b"W": _load_delayed_page,
    b"L": _load_leases,
    b"P": _load_page,
}


def _pack_values(bucket: str, values: Iterable[tuple[str, StoredValue]]) -> bytes:
    name = bucket.encode()
    parts = [_U32.pack(len(name)), name]
    for key, stored in values:
        data = key.encode()
        parts.append(
            _VALUE.pack(
                stored.version,
                stored.changed_ms,
                stored.expires_ms,
                stored.location,
                stored.size,
                len(data),
            )
        )
        parts.append(data)
    return b"".join(parts)


def _unpack_values(data: bytes) -> Iterator[tuple[str, str, StoredValue]]:
    (size,) = _U32.unpack_from(data)
    position = 4 + size
    bucket = data[4:position].decode()
    while position < len(data):
        version, changed_ms, expires_ms, location, size, length = _VALUE.unpack_from(data, position)
        position += _VALUE.size + length
        key = data[position - length : position].decode()
        yield bucket, key, StoredValue(None, size, version, changed_ms, expires_ms, location)


def _pack_entry(entry: Entry) -> bytes:
    options = b"" if entry.options is None else pack_options(entry.options)
    return (
        _ENTRY.pack(entry.seq, entry.sent_ms, entry.location, entry.size, entry.encoding, len(options))
        + options
    )


def _unpack_entry(data: bytes, position: int) -> tuple[Entry, int]:
    seq, sent_ms, location, size, encoding, length = _ENTRY.unpack_from(data, position)
    position += _ENTRY.size + length
    options = unpack_options(data[position - length : position]) if length else None
    return Entry(seq, sent_ms, location, size, encoding, None, None, options), position


def _unpack_entries(data: bytes) -> Iterator[Entry]:
    position = 0
    while position < len(data):
        entry, position = _unpack_entry(data, position)
        yield entry


def _pack_lease(
    entry: Entry, number: int, delivered_ms: int, until_ms: int, count: int, consumer: str | None
) -> bytes:
    name = (consumer or "").encode("utf-8", "surrogatepass")
    return _LEASE.pack(number, delivered_ms, until_ms, count, len(name)) + name + _pack_entry(entry)


def _pack_column(column: int | array[int] | range) -> bytes:
    if isinstance(column, int):
        return _COLUMN.pack(0, column)
    if isinstance(column, range):
        return _COLUMN.pack(1, column.start) + _U32.pack(len(column))
    return _COLUMN.pack(ord(column.typecode), len(column)) + column.tobytes()


def _unpack_column(data: bytes, position: int) -> tuple[int | array[int] | range, int]:
    code, value = _COLUMN.unpack_from(data, position)
    position += _COLUMN.size
    if code == 0:
        return value, position
    if code == 1:
        (count,) = _U32.unpack_from(data, position)
        return range(value, value + count), position + 4
    column: array[int] = array(chr(code))
    end = position + value * column.itemsize
    column.frombytes(data[position:end])
    return column, end


def _pack_page(page: PackedPage) -> bytes:
    encodings = page.encodings if isinstance(page.encodings, int) else array("B", page.encodings)
    if isinstance(page.options, DeliveryOptions):
        data = pack_options(page.options)
        packed = [_SAME_OPTIONS, _U32.pack(len(data)), data]
    else:
        each = [
            (i, pack_options(options)) for i, options in enumerate(page.options or ()) if options is not None
        ]
        packed = [_U32.pack(len(each))]
        packed += [_U32.pack(i) + _U32.pack(len(data)) + data for i, data in each]
    return b"".join(
        (
            _pack_column(page.seqs),
            _pack_column(page.sents),
            _pack_column(page.locations if page.locations is not None else 0),
            _pack_column(page.sizes),
            _pack_column(encodings),
            *packed,
        )
    )


def _pack_delayed(packed: DelayedPage, gone: bytes | None) -> bytes:
    if gone is not None:
        packed = DelayedPage.pack(list(live_entries(packed, gone)))
    return _pack_column(packed.dues) + _pack_page(packed.page)


def _unpack_delayed(data: bytes) -> DelayedPage:
    dues, position = _unpack_column(data, 0)
    assert not isinstance(dues, range)
    return DelayedPage(_unpack_page(data[position:]), dues)


def _unpack_page(data: bytes) -> PackedPage:
    columns: list[Any] = []
    position = 0
    for _ in range(5):
        column, position = _unpack_column(data, position)
        columns.append(column)
    seqs, sents, locations, sizes, encodings = columns
    options: DeliveryOptions | tuple[DeliveryOptions | None, ...] | None = None
    (count,) = _U32.unpack_from(data, position)
    position += 4
    if data[position - 4 : position] == _SAME_OPTIONS:
        options = unpack_options(data[position + 4 :])
    elif count:
        each: list[DeliveryOptions | None] = [None] * len(seqs)
        for _ in range(count):
            (i,) = _U32.unpack_from(data, position)
            (length,) = _U32.unpack_from(data, position + 4)
            position += 8 + length
            each[i] = unpack_options(data[position - length : position])
        options = tuple(each)
    return PackedPage(
        seqs,
        sents,
        locations or None,
        sizes,
        encodings if isinstance(encodings, int) else encodings.tobytes(),
        None,
        None,
        options,
    )
