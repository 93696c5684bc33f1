"""What the engine tests share: a log in memory laid out like a journal, and a state one can compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from openq.engine.engine import Engine
from openq.engine.queue import QueueState
from openq.engine.ready import FifoOrder
from openq.engine.records import Record, content, decode, encode
from openq.engine.replay import apply
from openq.engine.snapshot import decode as decode_snapshot
from openq.engine.snapshot import encode as encode_snapshot
from openq.engine.snapshot import freeze
from openq.errors import DiskFull
from openq.journal.format import FRAME
from openq.model import OPTION_FIELDS, Delivery, DeliveryOptions, Entry, QueueSettings

PREFIX = "00000000-0000-8000-8000-"


class Tape:
    """A log that keeps records as bytes and says where each lies, as a journal does."""

    def __init__(self, *, stored: bool = True) -> None:
        self.stored = stored
        self.records: list[tuple[int, bytes]] = []
        self._bytes = bytearray(FRAME.pack(0, 0))  # so that no record lies at 0, which means nowhere
        self.refuse_from: int | None = None  # the number of records after which the disk is full

    def __call__(self, record: Record) -> int:
        if self.refuse_from is not None and len(self.records) >= self.refuse_from:
            raise DiskFull("the tape has ended")
        data = encode(record)
        location = len(self._bytes)
        self._bytes += FRAME.pack(len(data), 0)
        self._bytes += data
        self.records.append((location, data))
        return location if self.stored else 0

    @property
    def end(self) -> int:
        return len(self._bytes)

    def read(self, location: int) -> bytes:
        length = FRAME.unpack_from(self._bytes, location)[0]
        start = location + FRAME.size
        return bytes(self._bytes[start : start + length])

    def rebuilt(self, start: int = 0, engine: Engine | None = None) -> Engine:
        """A new engine, or the given one, after all records from number `start` on."""
        engine = engine or Engine(PREFIX)
        for location, data in self.records[start:]:
            apply(engine, decode(data), location if self.stored else 0)
        return engine


def through_snapshot(engine: Engine, now_ms: int) -> list[bytes]:
    return list(encode_snapshot(freeze(engine, now_ms)))


def from_snapshot(chunks: Iterable[bytes]) -> Engine:
    engine = Engine(PREFIX)
    decode_snapshot(chunks, engine)
    return engine


# -- a state one can compare ------------------------------------------------------------------


def entry_dump(tape: Tape, entry: Entry) -> tuple[Any, ...]:
    body, properties, encoding = entry.body, entry.properties, entry.encoding
    if entry.location:
        on_tape = content(tape.read(entry.location))
        if body is None:
            encoding, body, properties = on_tape
        else:
            assert (encoding, body, properties) == on_tape, f"memory and disk differ for {entry.seq}"
    assert body is not None
    assert len(body) == entry.size
    about = (
        None
        if properties is None
        else (properties.amqp_properties, dict(properties.attributes), properties.publisher)
    )
    return (entry.seq, entry.sent_ms, encoding, body, about, extra_dump(entry.options))


def extra_dump(options: DeliveryOptions | None) -> tuple[Any, ...] | None:
    return None if options is None else tuple((name, getattr(options, name)) for name in OPTION_FIELDS)


def _delivery_dump(tape: Tape, delivery: Delivery) -> tuple[Any, ...]:
    return (
        entry_dump(tape, delivery.entry),
        delivery.number,
        delivery.delivered_ms,
        delivery.until_ms,
        delivery.count,
        delivery.consumer,
    )


def queue_dump(tape: Tape, queue: QueueState, now_ms: int, *, exact: bool = True) -> dict[str, Any]:
    """Everything a queue knows. Whose turn it is among groups is not kept over a restart: left out.

    Not `exact`: only what the end of a journal can tell (no counters, no ids of messages gone).
    """
    entries = list(queue.ready)
    assert len(entries) == queue.ready.count
    waiting: dict[tuple[int, str | None], list[Any]] = {}
    for entry in entries:
        assert queue.find(entry.seq) is not None
        rank = 0 if queue.settings.fifo else queue.ready.rank(entry)
        waiting.setdefault((rank, entry.group), []).append(entry_dump(tape, entry))
    for ready_list in waiting.values():
        assert [each[0] for each in ready_list] == sorted(each[0] for each in ready_list)
    standing = {entry.seq for entry in entries}
    if queue.settings.fifo:
        assert standing >= set(queue.delayed)
    else:
        assert not standing & set(queue.delayed)
    assert not standing & set(queue.leases)
    everything = {entry.seq: entry for entry in (*entries, *queue.delayed.values())}
    assert sum(entry.size for entry in everything.values()) == queue.waiting_bytes
    dump = {
        "name": queue.name,
        "number": queue.number,
        "settings": queue.settings,
        "created_ms": queue.created_ms,
        "waiting": waiting,
        "delayed": {seq: entry_dump(tape, entry) for seq, entry in sorted(queue.delayed.items())},
        "leases": {seq: _delivery_dump(tape, lease) for seq, lease in sorted(queue.leases.items())},
        "uniques": queue.unique_keys,
        "ids": queue.ids,
        "bytes": queue.waiting_bytes,
        "counts": (queue.ready_count, queue.waiting_count, queue.count),
    }
    if isinstance(queue.ready, FifoOrder):
        dump["held"] = sorted(entry.seq for entry in entries if queue.ready.is_held(entry))
        dump["out"] = {repr(name): sorted(group.in_flight) for name, group in queue.ready._groups.items()}
        # The end of a journal does not tell which tokens were taken before it.
        if exact or queue.limits is None:
            dump["free"] = sorted(repr(name) for name, group in queue.ready._groups.items() if group.ticket)
    if queue.limits is not None:
        assert queue.limits._queue.in_flight == len(queue.leases)
        dump["limits"] = {
            key: use.in_flight for key, use in sorted(queue.limits.keys.items()) if use.in_flight
        }
    if exact and queue.limits is not None:
        dump["allowed"] = {
            key: queue.limits.key_allowance(key, now_ms) for key in {each.group for each in entries}
        }
        dump["allowed now"] = queue.limits.allowance(now_ms)
    if exact:
        counters = queue.counters.as_dict()
        del counters["deduplicated"]  # a repeated publish changes nothing, so it leaves no record
        dump["counters"] = counters
        # What is past its window is forgotten when somebody asks next.
        dump["dedup"] = {key: kept for key, kept in queue.dedup.items() if kept[1] > now_ms}
    return dump


def dump(tape: Tape, engine: Engine, now_ms: int, *, exact: bool = True) -> dict[str, Any]:
    queues = sorted(engine.queues.items())
    return {
        "queues": {name: queue_dump(tape, queue, now_ms, exact=exact) for name, queue in queues},
        "numbered": sorted(engine.numbered),
        "router": engine.router.dump(),
        "marks": engine.progress,
        "next": (engine.next_seq, engine.next_number, engine.next_queue),
    }


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal, or an error that names what differs."""
    if found != wanted:
        raise AssertionError("\n".join(_differences("", found, wanted)))


def _differences(path: str, found: Any, wanted: Any) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys((*found, *wanted)):
            yield from _differences(f"{path}/{key}", found.get(key, "missing"), wanted.get(key, "missing"))
    elif found != wanted:
        yield f"{path}: {found!r}, not {wanted!r}"


def settled(engine: Engine, now_ms: int) -> Engine:
    """Up to the present; a rebuilt engine has nothing to tell that its records did not tell."""
    reported: list[Record] = []

    def listen(record: Record) -> int:
        reported.append(record)
        return 0

    engine.log = listen
    engine.advance(now_ms)
    engine.log = None
    assert reported == []
    return engine


def queue_of(engine: Engine, name: str = "q", **settings: Any) -> QueueState:
    return engine.create_queue(name, QueueSettings(**settings), 1_000)


def bodies(queue: QueueState) -> list[bytes | None]:
    return [entry.body for entry in queue.ready]
