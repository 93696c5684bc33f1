"""Past messages from the stream of a queue, timelines from its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..broker import timeline
from ..broker.history import HistoryRange, PastMessage, kept_drafts, purged_messages
from ..broker.interface import TimelineStep
from ..engine.records import EXPIRED
from ..engine.routing import is_default
from ..model import Draft
from .records import MALFORMED, is_from_elsewhere, unpack_record
from .registry import CachedQueue
from .store import RedisStore

_PAGE = 500


class EventLog:
    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def _stream(self, view: CachedQueue, name: str, start: str) -> Iterator[tuple[bytes, bytes]]:
        """Ids and values of a stream, oldest first."""
        key = view.key[:-1] + name.encode()
        call = self._store.calls.call
        while True:
            page = call(key, "XRANGE", key, start, "+", "COUNT", _PAGE, idempotent=True)
            for id, fields in page:
                yield id, fields[1]
            if len(page) < _PAGE:
                return
            start = "(" + page[-1][0].decode()

    def messages(self, view: CachedQueue, after_seq: int = 0) -> Iterator[PastMessage]:
        """The messages published to the queue, as they were published, as far as history is kept."""
        for id, record in self._stream(view, "m", str(after_seq + 1)):
            if not is_from_elsewhere(record):
                seq, _, sent_ms = id.partition(b"-")
                try:
                    encoding, body, properties, options = unpack_record(record)
                except MALFORMED:
                    continue  # damaged by another program
                yield PastMessage(int(seq), int(sent_ms), encoding, body, properties, options)

    def past(self, view: CachedQueue, span: HistoryRange) -> list[PastMessage]:
        found: list[PastMessage] = []
        size = 0
        for message in self.messages(view, span.after_seq):
            if span.until_ms is not None and message.time_ms >= span.until_ms:
                break
            if message.time_ms >= span.since_ms:
                found.append(message)
                size += len(message.body)
                if len(found) >= span.limit or (span.max_bytes is not None and size >= span.max_bytes):
                    break
        return found

    def published(
        self,
        view: CachedQueue,
        since_ms: int | None,
        since_id: str | None,
        include_purged: bool = False,
        until_ms: int | None = None,
    ) -> Iterator[Draft]:
        store = self._store
        oldest_ms = max(since_ms or 0, store.now_ms() - view.settings.history_ms)
        purges = [] if include_purged else self._purges(view)
        left_out = None
        if purges:
            past = self.messages(view)
            left_out = purged_messages(past, store.registry.id_prefix, lambda seq: _is_purged(seq, purges))
        past, settings, prefix = self.messages(view), view.settings, store.registry.id_prefix
        return kept_drafts(past, view.name, settings, prefix, oldest_ms, since_id, left_out, until_ms)

    def _purges(self, view: CachedQueue) -> list[_Purge]:
        """The purges of a queue, each with the messages that it spared: settled before, or in flight if the
        purge kept those."""
        found: list[_Purge] = []
        settled: set[int] = set()
        in_flight: set[int] = set()
        for _, value in self._stream(view, "h", "-"):
            kind, _, rest = value.partition(b"\x1f")
            if kind == b"P":
                spares, _, last = rest.partition(b"\x1f")
                spared = settled | in_flight if spares == b"1" else set(settled)
                found.append(_Purge(int(last or 0), spared))
            elif kind in _SEQUENCE_EVENTS:
                seqs = _event_seqs(kind, value)
                (settled if kind in b"AMD" else in_flight).update(seqs)
                if kind == b"R":
                    in_flight.difference_update(seqs)
        return found

    def expired_leases(self, view: CachedQueue) -> list[int]:
        """Sequences whose lease expired since the last call."""
        seen = self._store.state.event_positions
        start = seen.get(view.number)
        if start is None:
            start = str(self._store.now_ms())
        found = []
        for id, value in self._stream(view, "h", start):
            seen[view.number] = "(" + id.decode()
            parts = value.split(b"\x1f")
            if parts[0] == b"R" and int(parts[1]) == EXPIRED:
                found.append(int(parts[3]))
        seen.setdefault(view.number, start)
        return found

    # -- timelines ------------------------------------------------------------------------------

    def timeline(self, view: CachedQueue, message_id: str) -> list[TimelineStep]:
        """The steps of a message, followed through the queues it was moved to and from."""
        store = self._store
        seqs = {
            store.own_seq(message_id),
            *store.seqs_of(view, [message_id]),
            *self._seqs_of_id(view, message_id),
        }
        wanted = [(view, seq, 0) for seq in sorted(seqs) if seq]
        looked: set[tuple[int, int]] = set()
        steps: list[tuple[int, int, int, TimelineStep]] = []
        while wanted:
            queue, seq, life = wanted.pop()
            if (queue.number, seq) in looked:
                continue
            looked.add((queue.number, seq))
            wanted += self._collect(queue, seq, life, steps)
        # At the same time, steps in the source queue come first.
        steps.sort(key=lambda each: each[:3])
        return [step for *_, step in steps]

    def _seqs_of_id(self, view: CachedQueue, message_id: str) -> list[int]:
        """Sequences in this queue of a message whose id is not derived from them."""
        found = []
        for _, value in self._stream(view, "h", "-"):
            if value[:1] == b"I":
                _, _, seq, id = value.split(b"\x1f", 3)
                if id.decode() == message_id:
                    found.append(int(seq))
        for message in self.messages(view):
            if message.options is not None and message.options.id == message_id:
                found.append(message.seq)
        return found

    def _collect(
        self, view: CachedQueue, seq: int, life: int, steps: list[tuple[int, int, int, TimelineStep]]
    ) -> list[tuple[CachedQueue, int, int]]:
        """The steps of one message in one queue; the queues it came from and went to.

        Each queue it was in is one of its lives; `life` counts them.
        """
        relatives: list[tuple[CachedQueue, int, int]] = []
        key = view.key[:-1] + b"m"
        found = self._store.calls.call(key, "XRANGE", key, seq, seq, idempotent=True)
        since = "-"
        if found:
            id, fields = found[0]
            sent_ms = int(id.partition(b"-")[2])
            since = str(sent_ms)
            if not is_from_elsewhere(fields[1]):
                steps.append((sent_ms, life, 0, _published(view, sent_ms, fields[1])))
        own = str(seq).encode()
        numbered = self._store.registry.numbered
        is_here, is_in_flight = True, False
        for place, (id, value) in enumerate(self._stream(view, "h", since), 1):
            if value[:2] == b"P\x1f":
                _, spares, *last = value.split(b"\x1f")
                was_there = bool(last) and int(last[0]) >= seq
                if is_here and was_there and not (is_in_flight and spares == b"1"):
                    is_here = False
                    time_ms = int(id.partition(b"-")[0])
                    steps.append((time_ms, life, place, TimelineStep(time_ms, "purged", view.name)))
                continue
            if own not in value:
                continue
            time_ms = int(id.partition(b"-")[0])
            parts = value.decode().split("\x1f")
            if parts[0] == "I":
                if parts[2] == str(seq):
                    number, _, old = parts[1].partition(":")
                    if int(number) in numbered and int(old):
                        relatives.append((numbered[int(number)], int(old), life - 1))
                continue
            step = _step(view, seq, time_ms, parts)
            if step is not None:
                is_in_flight = parts[0] in ("L", "X")
                is_here = is_here and parts[0] not in ("A", "M", "D")
                steps.append((time_ms, life, place, step))
                if parts[0] == "M":
                    went = self._went_to(view, seq, parts[4], id)
                    relatives += [(target, new, life + 1) for target, new in went]
        return relatives

    def _went_to(
        self, view: CachedQueue, seq: int, names: str, since: bytes
    ) -> list[tuple[CachedQueue, int]]:
        found = []
        origin = f"{view.number}:{seq}"
        for name in names.split("\x1e"):
            target = self._store.registry.queues.get(name)
            if target is None:
                continue
            # It arrived there before the outbox entry was removed, by a clock that may differ.
            start = max(0, int(since.partition(b"-")[0]) - 60_000)
            for _, value in self._stream(target, "h", str(start)):
                parts = value.decode().split("\x1f")
                if parts[0] == "I" and parts[1] == origin:
                    found.append((target, int(parts[2])))
        return found


@dataclass(frozen=True, slots=True)
class _Purge:
    last_seq: int  # of the messages in the queue at that time
    spared: set[int]


_SEQUENCE_EVENTS = (b"L", b"A", b"R", b"M", b"D")


def _event_seqs(kind: bytes, value: bytes) -> list[int]:
    """The messages of an event. Texts from clients stand between parts that cannot contain them."""
    parts = value.split(b"\x1f")
    if kind == b"R":
        return [int(parts[-2])]
    if kind == b"M":
        return [int(parts[-2])]
    return [int(each) for each in parts[-1].split(b",")]


def _is_purged(seq: int, purges: list[_Purge]) -> bool:
    return any(seq <= purge.last_seq and seq not in purge.spared for purge in purges)


def _step(view: CachedQueue, seq: int, time_ms: int, parts: list[str]) -> TimelineStep | None:
    """One line of a timeline from one event; None if the event is about other messages."""
    kind, name, own = parts[0], view.name, str(seq)
    if kind == "L":
        if own not in parts[4].split(","):
            return None
        return timeline.delivered(time_ms, name, parts[3], int(parts[2]))
    if kind == "A":
        return TimelineStep(time_ms, "acked", name) if own in parts[1].split(",") else None
    if kind == "R":
        if parts[3] != own:
            return None
        return timeline.returned(time_ms, name, int(parts[1]), parts[2], int(parts[4]))
    if kind == "X":
        if own not in parts[2].split(","):
            return None
        return timeline.extended(time_ms, name, int(parts[1]))
    if kind == "M" and parts[3] == own:
        where = ", ".join(parts[4].split("\x1e"))
        return timeline.moved(time_ms, name, int(parts[1]), parts[2], where)
    if kind == "D" and own in parts[2].split(","):
        return timeline.removed(time_ms, name, int(parts[1]))
    if kind == "S" and parts[2] == own:
        return timeline.rescheduled(time_ms, name, int(parts[1]))
    if kind == "E" and parts[1] == own:
        return TimelineStep(time_ms, "edited", name)
    return None


def _published(view: CachedQueue, sent_ms: int, record: bytes) -> TimelineStep:
    _, _, properties, options = unpack_record(record)
    parts = []
    if properties is not None and properties.publisher:
        parts.append(f"by {properties.publisher}")
    if options is not None and options.route is not None and not is_default(options.route[0]):
        parts.append(f"through {options.route[0]}")
    return timeline.published(sent_ms, view.name, ", ".join(parts), properties)
