"""Ids and delivery counts that are carried over from earlier segments.

A message that moved has a new sequence number and keeps its id; one that was returned has been delivered
before. `MessageTracker` walks through the segments in order and keeps just those messages, until they are
removed. It works on the columns of the index, for all rows of a segment at once, and reads as little of the
segment as possible.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from openq.engine.records import (
    ACK,
    CHECKPOINT,
    COPY,
    DELIVER,
    EDIT,
    MOVE,
    PUBLISH,
    PURGE,
    QUEUE,
    RELEASED,
    REMOVE,
    RETURN,
    ROUTE,
    RUN,
    UNQUEUE,
    decode,
)
from openq.errors import InvalidSetting
from openq.history.layout import option_starts, read_options
from openq.history.option_columns import HAS_OPTIONS, OutOfBounds
from openq.history.segments import Array, SegmentBytes, SegmentRef, rows_array
from openq.journal.format import FRAME_BYTES
from openq.journal.index import SegmentIndex

_WINDOW = 16 << 20


def _no_numbers() -> Array:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class SegmentContext:
    """What the rows of a segment need from elsewhere. For the table messages `names` and `id_prefix` are
    enough: only events refer to messages of earlier segments."""

    id_prefix: str = ""
    names: Mapping[int, str] = field(default_factory=dict)  # of all queues that the segment mentions
    own_seqs: Array = field(
        default_factory=_no_numbers
    )  # rising; messages whose id does not follow from the sequence number
    own_ids: pa.StringArray = field(default_factory=lambda: pa.array([], pa.string()))
    redelivered_rows: Array = field(
        default_factory=_no_numbers
    )  # rising; rows of the index that are redeliveries
    redelivery_counts: Array = field(default_factory=_no_numbers)

    def name(self, number: int) -> str:
        # The engine's name of a queue whose definition was lost by damage.
        return self.names.get(number) or f"recovered-{number}"


def bare_context(ref: SegmentRef, index: SegmentIndex) -> SegmentContext:
    """The names of a segment's queues, from the segment alone: enough for the table messages."""
    rows = rows_array(index)
    rows = rows[: int(np.searchsorted(rows["offset"], ref.size))]
    names: dict[int, str] = {}
    prefix = _read_names(ref, rows, names)
    return SegmentContext(prefix or "", names)


def _read_names(ref: SegmentRef, rows: Array, names: dict[int, str]) -> str | None:
    """Add the queues that a segment's checkpoint and definitions name; returns the prefix of its ids."""
    chosen = rows[(rows["kind"] == CHECKPOINT) | (rows["kind"] == QUEUE)]
    prefix: str | None = None
    if not len(chosen):
        return None
    with SegmentBytes(ref) as source:
        for row in chosen:
            start = int(row["offset"])
            view, base = source.load(start, start + FRAME_BYTES + int(row["length"]))
            at = start - base + FRAME_BYTES
            try:
                record = decode(view[at : at + int(row["length"])].tobytes())
                if record[0] == CHECKPOINT:
                    prefix = str(record[4]["prefix"])
                    names.update({int(number): str(name) for number, name, *_ in record[4]["queues"]})
                elif record[0] == QUEUE:
                    names[int(record[2])] = str(record[4])
            except (ValueError, KeyError, IndexError, TypeError):
                raise source.damaged(start, "a record that cannot be read") from None
    return prefix


class MessageTracker:
    """Takes the segments in order, each once; `state` can be stored and resumed later."""

    def __init__(self, id_prefix: str = "") -> None:
        self.id_prefix = id_prefix
        self.names: dict[int, str] = {}
        # Messages that exist and have an id of their own, or were delivered before. Rising sequence numbers.
        self._seqs = _no_numbers()
        self._queues = _no_numbers()
        self._counts = _no_numbers()
        self._in_flight = np.empty(0, dtype=bool)
        self._ids: pa.StringArray = pa.array([], pa.string())

    def __len__(self) -> int:
        return len(self._seqs)

    # -- stored state --

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "prefix": self.id_prefix,
            "names": {str(number): name for number, name in self.names.items()},
            "seqs": _pack(self._seqs),
            "queues": _pack(self._queues),
            "counts": _pack(self._counts),
            "lent": _pack(self._in_flight.astype(np.int64)),
            "ids": _pack_texts(self._ids),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MessageTracker:
        """Raises InvalidSetting if it is not a state of a tracker."""
        try:
            tracker = cls(str(state["prefix"]))
            tracker.names = {int(number): str(name) for number, name in state["names"].items()}
            tracker._seqs = _unpack(state["seqs"])
            tracker._queues = _unpack(state["queues"])
            tracker._counts = _unpack(state["counts"])
            tracker._in_flight = _unpack(state["lent"]).astype(bool)
            tracker._ids = _unpack_texts(state["ids"], len(tracker._seqs))
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error, pa.ArrowException):
            raise InvalidSetting("this is not the state of a message tracker") from None
        sizes = {len(tracker._queues), len(tracker._counts), len(tracker._in_flight), len(tracker._ids)}
        if sizes != {len(tracker._seqs)}:
            raise InvalidSetting("this is not the state of a message tracker")
        return tracker

    def copy(self) -> MessageTracker:
        """An independent copy. Arrays are never changed in place, so they are shared."""
        other = MessageTracker(self.id_prefix)
        other.names = dict(self.names)
        other._seqs, other._queues, other._counts = self._seqs, self._queues, self._counts
        other._in_flight, other._ids = self._in_flight, self._ids
        return other

    # -- segment by segment --

    def context_for(
        self, ref: SegmentRef, index: SegmentIndex, *, start: int | None = None, stop: int | None = None
    ) -> SegmentContext:
        """The context of this segment; afterwards the tracker is at its end.

        With `start` and `stop` (positions or offsets) only that part of the segment is read: an open one can
        be read in several steps. Row numbers in the context are those of the whole index.
        """
        rows = rows_array(index)
        first = 0 if start is None else int(np.searchsorted(rows["offset"], start & 0xFFFF_FFFF))
        limit = ref.size if stop is None else min(ref.size, stop & 0xFFFF_FFFF)
        rows = rows[first : int(np.searchsorted(rows["offset"], limit))]
        prefix = _read_names(ref, rows, self.names)
        if prefix is not None:
            self.id_prefix = prefix
        facts = _SegmentFacts(ref, rows)
        redelivered_rows, redelivery_counts, counts = self._count_deliveries(rows, facts)
        ids = self._identify(rows, facts)
        context = self._context(rows, ids, redelivered_rows + first, redelivery_counts)
        self._advance(rows, facts, ids, counts)
        return context

    def _count_deliveries(
        self, rows: Array, facts: _SegmentFacts
    ) -> tuple[Array, Array, tuple[Array, Array]]:
        """The redeliveries, and the number of deliveries of each message at the end."""
        returned = rows["seq"][facts.returned].astype(np.int64)
        known = self._counts > 0
        # All other messages have not been delivered before.
        marked = np.unique(np.concatenate((self._seqs[known], facts.set_seqs, returned)))
        deliveries = np.flatnonzero(rows["kind"] == DELIVER)
        deliveries = deliveries[_isin(rows["seq"][deliveries].astype(np.int64), marked)]
        seqs = np.concatenate(
            (self._seqs[known], facts.set_seqs, returned, rows["seq"][deliveries].astype(np.int64))
        )
        places = np.concatenate((np.full(int(known.sum()), -1), facts.set_rows, facts.returned, deliveries))
        sizes = (int(known.sum()), len(facts.set_seqs), len(returned), len(deliveries))
        kinds = np.repeat(np.array([0, 0, 1, 2]), sizes)  # set, increment, read
        values = np.concatenate(
            (
                self._counts[known],
                facts.set_counts,
                np.ones(len(returned), dtype=np.int64),
                np.zeros(len(deliveries)),
            )
        ).astype(np.int64)
        order = np.lexsort((places, seqs))
        seqs, places, kinds, values = seqs[order], places[order], kinds[order], values[order]
        # A running sum that restarts with each message and with each count that a record sets.
        anew = kinds == 0
        anew[1:] |= seqs[1:] != seqs[:-1]
        if len(anew):
            anew[0] = True
        total = np.cumsum(np.where(kinds == 2, 0, values))
        starts = np.flatnonzero(anew)
        before = total[starts] - np.where(kinds[starts] == 2, 0, values[starts])
        running = total - np.repeat(before, np.diff(np.append(starts, len(total))))
        asked = kinds == 2
        again = asked & (running > 0)
        rows_of = places[again]
        order = np.argsort(rows_of, kind="stable")
        last = np.ones(len(seqs), dtype=bool)
        last[:-1] = seqs[1:] != seqs[:-1]
        return rows_of[order], running[again][order] + 1, (seqs[last], running[last])

    def _identify(self, rows: Array, facts: _SegmentFacts) -> _MessageIds:
        """The ids that do not follow from the sequence number, of messages tracked before or named here."""
        has = self._ids.is_valid().to_numpy(zero_copy_only=False)
        seqs = np.concatenate((self._seqs[has], facts.own_seqs))
        texts = pa.chunked_array([self._ids.filter(pa.array(has)), facts.own_ids], pa.string())
        if len(facts.new):
            # A message may have moved several times in this segment: follow it to its origin.
            order = np.argsort(facts.new, kind="stable")
            news, roots = facts.new[order], facts.old[order]
            for _ in range(len(news)):
                at = np.minimum(np.searchsorted(news, roots), len(news) - 1)
                known = news[at] == roots
                if not known.any():
                    break
                roots = np.where(known, roots[at], roots)
            named, at = _find(seqs, roots)
            moved = hex_ids(self.id_prefix, roots)
            if named.any():
                both = pa.chunked_array([moved, *texts.chunks]).combine_chunks()
                moved = both.take(pa.array(np.where(named, at + len(moved), np.arange(len(moved)))))
            seqs = np.concatenate((seqs, news))
            texts = pa.chunked_array([*texts.chunks, moved], pa.string())
        order = np.argsort(seqs, kind="stable")
        seqs = seqs[order]
        # A message may be named twice (copied or edited): the last id counts.
        last = np.ones(len(seqs), dtype=bool)
        last[:-1] = seqs[1:] != seqs[:-1]
        flat = texts.combine_chunks() if texts.num_chunks else pa.array([], pa.string())
        return _MessageIds(seqs[last], flat.take(pa.array(order[last])))

    def _context(
        self, rows: Array, ids: _MessageIds, redelivered_rows: Array, redelivery_counts: Array
    ) -> SegmentContext:
        here = (
            _isin(ids.seqs, np.unique(rows["seq"]).astype(np.int64)) if len(ids.seqs) else np.empty(0, bool)
        )
        return SegmentContext(
            self.id_prefix,
            dict(self.names),
            ids.seqs[here],
            ids.texts.filter(pa.array(here, pa.bool_())),
            redelivered_rows,
            redelivery_counts,
        )

    def _advance(
        self, rows: Array, facts: _SegmentFacts, ids: _MessageIds, counts: tuple[Array, Array]
    ) -> None:
        """Keep the messages that have an id or a count and still exist."""
        counted = counts[1] > 0
        seqs = np.unique(np.concatenate((ids.seqs, counts[0][counted], self._seqs)))
        numbers = np.zeros(len(seqs), dtype=np.int64)
        found, at = _find(counts[0], seqs)
        numbers[found] = counts[1][at[found]]
        kinds = rows["kind"]
        row_seqs = rows["seq"].astype(np.int64)
        queues = np.full(len(seqs), -1, dtype=np.int64)
        found, at = _find(self._seqs, seqs)
        queues[found] = self._queues[at[found]]
        in_flight = np.zeros(len(seqs), dtype=bool)
        in_flight[found] = self._in_flight[at[found]]
        born = np.full(len(seqs), -1, dtype=np.int64)
        mine = np.flatnonzero(_isin(row_seqs, seqs) & _HAS_SEQ[kinds])
        places = np.searchsorted(seqs, row_seqs[mine])
        queues[places] = rows["queue"][mine]
        arrived = mine[_ARRIVES[kinds[mine]] | facts.is_new[mine]]
        # Backwards, so that the first one wins.
        born[np.searchsorted(seqs, row_seqs[arrived[::-1]])] = arrived[::-1]
        gone = np.zeros(len(seqs), dtype=bool)
        ended = mine[_ENDS[kinds[mine]] & ~facts.is_new[mine]]
        gone[np.searchsorted(seqs, row_seqs[ended])] = True
        changes = mine[(kinds[mine] == DELIVER) | (kinds[mine] == RETURN)]
        change_at = np.searchsorted(seqs, row_seqs[changes])
        for purge in np.flatnonzero((kinds == PURGE) | (kinds == UNQUEUE)).tolist():
            swept = (queues == int(rows["queue"][purge])) & (born < purge)
            if kinds[purge] == PURGE and row_seqs[purge]:
                # Only ready messages are removed: those in flight at that moment stay.
                held = in_flight.copy()
                earlier = changes < purge
                held[change_at[earlier]] = kinds[changes[earlier]] == DELIVER
                swept &= ~held
            gone |= swept
        in_flight[change_at] = kinds[changes] == DELIVER
        named, at = _find(ids.seqs, seqs)
        keep = ~gone & (named | (numbers > 0))
        if len(ids.seqs):
            texts = ids.texts.take(pa.array(at[keep], mask=~named[keep]))
        else:
            texts = pa.nulls(int(keep.sum()), pa.string())
        self._seqs, self._queues, self._counts = seqs[keep], queues[keep], numbers[keep]
        self._in_flight, self._ids = in_flight[keep], texts


@dataclass(frozen=True)
class _MessageIds:
    seqs: Array  # rising
    texts: pa.StringArray


def _by_kind(*kinds: int) -> Array:
    table = np.zeros(256, dtype=bool)
    table[list(kinds)] = True
    return table


_ARRIVES = _by_kind(PUBLISH, RUN, ROUTE, EDIT, COPY)
_ENDS = _by_kind(ACK, REMOVE, MOVE)
_HAS_OPTIONS = _by_kind(PUBLISH, RUN, ROUTE, EDIT, COPY)
_HAS_SEQ = _by_kind(PUBLISH, RUN, ROUTE, DELIVER, ACK, RETURN, MOVE, REMOVE, EDIT, COPY)


class _SegmentFacts:
    """What a segment has beside its index: own ids, set counts, and returned messages."""

    def __init__(self, ref: SegmentRef, rows: Array) -> None:
        kinds = rows["kind"]
        moves = np.flatnonzero(kinds == MOVE)
        if len(moves) % 2:
            raise InvalidSetting(f"the index of {ref.path} is incomplete; delete it, it will be rebuilt")
        seqs = rows["seq"].astype(np.int64)
        self.old, self.new = seqs[moves[0::2]], seqs[moves[1::2]]
        self.is_new = np.zeros(len(rows), dtype=bool)
        self.is_new[moves[1::2]] = True
        has_options = _HAS_OPTIONS[kinds] & ((rows["flags"] & HAS_OPTIONS) != 0)
        # An edited or copied message has its whole state, also that it was never delivered.
        stated = (kinds == EDIT) | (kinds == COPY)
        wanted = np.flatnonzero(has_options | (kinds == RETURN))
        returned: list[Array] = []
        own: list[tuple[Array, pa.StringArray]] = []
        counts: list[tuple[Array, Array]] = [(np.flatnonzero(stated & ~has_options), _no_numbers())]
        counts[0] = counts[0][0], np.zeros(len(counts[0][0]), dtype=np.int64)
        if len(wanted):
            with SegmentBytes(ref) as source:
                for part in windows(rows, wanted):
                    chosen = rows[part]
                    first = int(chosen["offset"][0])
                    end = int((chosen["offset"].astype(np.int64) + chosen["length"]).max()) + FRAME_BYTES
                    view, base = source.load(first, end)
                    try:
                        returned.append(self._returned(view, base, part, chosen))
                        self._read_options(view, base, part, chosen, own, counts)
                    except OutOfBounds:
                        raise source.damaged(first, "the index does not belong to this segment") from None
        self.returned = np.concatenate(returned) if returned else _no_numbers()
        self.own_seqs = np.concatenate([seqs[each] for each, _ in own]) if own else _no_numbers()
        texts = [each for _, each in own]
        self.own_ids = pa.concat_arrays(texts) if texts else pa.array([], pa.string())
        self.set_rows = np.concatenate([each for each, _ in counts])
        self.set_seqs = seqs[self.set_rows]
        self.set_counts = np.concatenate([each for _, each in counts])

    def _returned(self, view: Array, base: int, part: Array, chosen: Array) -> Array:
        back = chosen["kind"] == RETURN
        why = view[chosen["offset"][back].astype(np.int64) - base + FRAME_BYTES + 1]
        counted: Array = part[back][why != RELEASED]
        return counted

    def _read_options(
        self,
        view: Array,
        base: int,
        part: Array,
        chosen: Array,
        own: list[tuple[Array, pa.StringArray]],
        counts: list[tuple[Array, Array]],
    ) -> None:
        has_options = _HAS_OPTIONS[chosen["kind"]]
        if not has_options.any():
            return
        part, chosen = part[has_options], chosen[has_options]
        options = read_options(view, option_starts(view, base, chosen), chosen)
        has = options.has_field("id")
        if has.any():
            own.append((part[has], options.texts("id").filter(pa.array(has))))
        numbers = options.counts
        stated = (numbers > 0) | (chosen["kind"] == EDIT) | (chosen["kind"] == COPY)
        if stated.any():
            counts.append((part[stated], numbers[stated]))


def windows(rows: Array, wanted: Array, limit: int = _WINDOW, gap: int = 256 << 10) -> list[Array]:
    """Cut row numbers into groups that are close together in the segment."""
    starts = rows["offset"][wanted].astype(np.int64)
    ends = starts + rows["length"][wanted]
    far = np.flatnonzero(starts[1:] - ends[:-1] > gap) + 1
    found = []
    i = 0
    while i < len(wanted):
        j = max(i + 1, int(np.searchsorted(starts, starts[i] + limit)))
        k = int(np.searchsorted(far, i, side="right"))
        if k < len(far):
            j = min(j, int(far[k]))
        found.append(wanted[i:j])
        i = j
    return found


_HEX = np.frombuffer(b"".join(b"%02x" % each for each in range(256)), dtype=np.uint16)


def hex_ids(prefix: str, seqs: Array) -> pa.StringArray:
    """The ids that follow from sequence numbers: the prefix and twelve hexadecimal digits."""
    if len(seqs) and int(seqs.max()) >= 1 << 48:
        return pa.array([f"{prefix}{seq:012x}" for seq in seqs.tolist()], pa.string())
    head = np.frombuffer(prefix.encode(), dtype=np.uint8)
    count, width = len(seqs), len(head) + 12
    out = np.empty((count, width), dtype=np.uint8)
    out[:, : len(head)] = head
    tails = seqs.astype(">u8").view(np.uint8).reshape(count, 8)[:, 2:]
    out[:, len(head) :] = _HEX[tails].view(np.uint8).reshape(count, 12)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(out))


def _isin(values: Array, known: Array) -> Array:
    """Which values are in the rising array `known`."""
    return _find(known, values, rising=True)[0]


def _find(known: Array, values: Array, rising: bool = False) -> tuple[Array, Array]:
    """Whether and where each value is in `known`; of several, the last."""
    if not len(known):
        return np.zeros(len(values), dtype=bool), np.zeros(len(values), dtype=np.int64)
    order = None if rising else np.argsort(known, kind="stable")
    ordered = known if order is None else known[order]
    at = np.maximum(np.searchsorted(ordered, values, side="right") - 1, 0)
    found = ordered[at] == values
    return found, at if order is None else order[at]


def _pack(values: Array) -> str:
    return base64.b64encode(zlib.compress(values.astype("<i8").tobytes(), 1)).decode()


def _unpack(text: str) -> Array:
    values: Array = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<i8").astype(np.int64)
    return values


def _pack_texts(texts: pa.StringArray) -> str:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([texts], names=["ids"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(zlib.compress(sink.getvalue().to_pybytes(), 1)).decode()


def _unpack_texts(text: str, count: int) -> pa.StringArray:
    data = zlib.decompress(base64.b64decode(text))
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    column = table.column(0)
    found = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if len(found) != count or found.type != pa.string():
        raise ValueError("not as many ids as messages")
    return found
