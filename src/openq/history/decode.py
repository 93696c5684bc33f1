"""From a segment's bytes and its index to Arrow batches, for all rows of a batch at once.

The index says where everything is; numpy and Arrow do the rest. Nothing here runs once per message, except
for distinct properties and for hashes of bodies if they are selected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from openq.engine.records import (
    ACK,
    DEAD_LETTER_NAMES,
    DELIVER,
    EDIT,
    EXPIRED,
    EXTEND,
    ITEM,
    ITEM_WITH_METADATA,
    MOVE,
    MOVED,
    NACKED,
    PUBLISH,
    PURGE,
    REDRIVEN,
    RELEASED,
    REMOVE,
    REMOVE_NAMES,
    REMOVED_CANCELLED,
    REMOVED_EXPIRED,
    RESCHEDULE,
    RETURN,
    ROUTE,
    RUN,
    UNQUEUE,
)
from openq.history.error_signature import signature
from openq.history.option_columns import (
    HAS_OPTIONS,
    HAS_PROPERTIES,
    OptionColumns,
    OutOfBounds,
    gather_checked,
    slices,
    texts,
)
from openq.history.property_columns import property_columns
from openq.history.schema import BODY_COLUMNS, arrow_schema
from openq.history.segments import Array, SegmentBytes, SegmentRef, gather, rows_array
from openq.history.selection import Selection
from openq.history.tracker import RECORD_HEAD_BYTES, SegmentContext, hex_ids, option_starts, read_options
from openq.journal.format import FRAME_BYTES
from openq.journal.index import SegmentIndex

BATCH_ROWS = 64 << 10
BATCH_BYTES = 16 << 20
_GAP = 256 << 10  # up to so many unwanted bytes between two rows are read rather than skipped

_OPTION_COLUMNS = ("message_id", "type", "group", "dedup_id", "priority", "delay_us", "expires")
_ROUTE_COLUMNS = ("exchange", "routing_key")
_PROPERTY_COLUMNS = (
    "content_type",
    "attributes",
    "headers",
    "trace_id",
    "producer",
    "replay_of",
    "replay_count",
    "batch",
)
_VARIABLE_COLUMNS = frozenset((*_OPTION_COLUMNS, *_ROUTE_COLUMNS, *_PROPERTY_COLUMNS, "size"))

_EVENTS_BY_KIND = {
    PUBLISH: ("publish",),
    RUN: ("publish",),
    ROUTE: ("publish",),
    DELIVER: ("deliver",),
    ACK: ("ack",),
    RETURN: ("nack", "lease_expired", "release"),
    EXTEND: ("visibility_change",),
    MOVE: ("dead_letter", "redrive", "move"),
    REMOVE: ("expire", "cancel", "drop"),
    PURGE: ("purge",),
    EDIT: ("edit",),
    RESCHEDULE: ("reschedule",),
    UNQUEUE: ("delete",),
}
_EVENT_BY_REASON = {
    (RETURN, NACKED): "nack",
    (RETURN, EXPIRED): "lease_expired",
    (RETURN, RELEASED): "release",
    (MOVE, REDRIVEN): "redrive",
    (MOVE, MOVED): "move",
    (REMOVE, REMOVED_EXPIRED): "expire",
    (REMOVE, REMOVED_CANCELLED): "cancel",
}
_PLAIN_EVENTS = ("publish", "deliver", "ack", "visibility_change", "purge", "edit", "reschedule", "delete")
_EVENT_ORDER = (
    *_PLAIN_EVENTS,
    *("nack", "lease_expired", "release", "dead_letter", "redrive", "move", "expire", "cancel", "drop"),
)


def _event_codes() -> Array:
    """The number of an event in `_EVENT_ORDER`, by kind and reason."""
    table = np.zeros((256, 256), dtype=np.int8)
    for kind, events in _EVENTS_BY_KIND.items():
        table[kind, :] = _EVENT_ORDER.index({MOVE: "dead_letter", REMOVE: "drop"}.get(kind, events[0]))
    for (kind, why), event in _EVENT_BY_REASON.items():
        table[kind, why] = _EVENT_ORDER.index(event)
    return table


_EVENT_CODES = _event_codes()
_EVENT_NAMES = pa.array(_EVENT_ORDER, pa.string())
_KINDS_WITH_REASON = (RETURN, MOVE, REMOVE)
_PUBLISH_KINDS = (PUBLISH, RUN, ROUTE)
_NO_BYTES: Array = np.empty(0, dtype=np.uint8)


def decode_rows(
    ref: SegmentRef, index: SegmentIndex, selection: Selection, start: int, stop: int, context: SegmentContext
) -> Iterator[pa.RecordBatch]:
    """The selected rows of a segment whose records begin in [start, stop), in order."""
    rows = rows_array(index)
    low, high = np.searchsorted(rows["offset"], (start, stop))
    maker = _EventDecoder if selection.table == "events" else _MessageDecoder
    with _SegmentSource(ref) as source:
        yield from maker(ref, source, selection, context).batches(rows, int(low), int(high))


class _SegmentSource:
    """Opens the segment when its first byte is needed: some selections need only the index."""

    def __init__(self, ref: SegmentRef) -> None:
        self._ref = ref
        self._bytes: SegmentBytes | None = None

    def __enter__(self) -> _SegmentSource:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bytes is not None:
            self._bytes.close()

    def load(self, rows: Array) -> tuple[Array, int]:
        """Verified bytes that contain all of these rows. Raises if the index is not that of the segment."""
        if self._bytes is None:
            self._bytes = SegmentBytes(self._ref)
        starts = rows["offset"].astype(np.int64)
        ends = starts + rows["length"]
        view, base = self._bytes.load(int(starts.min()), int(ends.max()) + FRAME_BYTES)
        at = starts - base
        kinds = view[at + FRAME_BYTES]
        run = rows["kind"] == RUN
        fits = np.where(run, (kinds == ITEM) | (kinds == ITEM_WITH_METADATA), kinds == rows["kind"])
        fits &= gather(view, at, 4) == rows["length"]
        if not fits.all():
            raise self.index_mismatch(int(starts[np.flatnonzero(~fits)[0]]))
        return view, base

    def index_mismatch(self, offset: int) -> Exception:
        assert self._bytes is not None
        return self._bytes.damaged(offset, "the index does not belong to this segment; delete the .idx file")


class _TableDecoder:
    """What both tables share: which rows, in which batches, and the columns that the index holds."""

    kinds: tuple[int, ...]

    def __init__(
        self, ref: SegmentRef, source: _SegmentSource, selection: Selection, context: SegmentContext
    ) -> None:
        self.ref = ref
        self.source = source
        self.selection = selection
        self.context = context
        self.columns = selection.read_columns
        self.schema = arrow_schema(selection.table, self.columns)
        self._names: dict[int, str] = {}

    def batches(self, rows: Array, low: int, high: int) -> Iterator[pa.RecordBatch]:
        wanted = self._pick(rows, low, high)
        if not len(wanted):
            return
        # In most cases all rows of a range are wanted: then nothing is copied.
        first, last = int(wanted[0]), int(wanted[-1]) + 1
        picked = rows[first:last] if last - first == len(wanted) else rows[wanted]
        for i, j in self._cut(picked):
            part, chosen = wanted[i:j], picked[i:j]
            try:
                made = self._columns(rows, part, chosen)
            except OutOfBounds:
                raise self.source.index_mismatch(int(chosen["offset"][0])) from None
            arrays = [
                made[name] if name in made else pa.nulls(len(part), self._type(name)) for name in self.columns
            ]
            batch = self.selection.keep(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
            if batch.num_rows:
                yield batch

    def _columns(self, rows: Array, part: Array, chosen: Array) -> dict[str, pa.Array]:
        """The columns of the table."""
        raise NotImplementedError

    def _needs_bytes(self, chosen: Array) -> Array:
        """Which rows need bytes of the segment besides the index."""
        raise NotImplementedError

    def _weights(self, chosen: Array) -> Array | None:
        """How many bytes a row adds to a batch; None: almost none."""
        return None

    def _pick(self, rows: Array, low: int, high: int) -> Array:
        """The numbers of the rows that may match; `keep` decides later."""
        selection = self.selection
        for bound, side in ((selection.first_position, "low"), (selection.end_position, "high")):
            if bound is None:
                continue
            offset = min(max(bound - (self.ref.number << 32), 0), 1 << 32)
            at = int(np.searchsorted(rows["offset"][low:high], offset)) + low
            low, high = (at, high) if side == "low" else (low, at)
        part = rows[low:high]
        table = np.zeros(256, dtype=bool)
        table[list(self.kinds)] = True
        mask = table[part["kind"]]
        if selection.since_us is not None:
            # Rounded down: the index has milliseconds.
            mask &= part["time"] >= max(0, selection.since_us // 1000)
        if selection.until_us is not None:
            mask &= part["time"] < max(0, -(-selection.until_us // 1000))
        if selection.queues:
            numbers = np.unique(part["queue"])
            kept = [
                number for number in numbers.tolist() if selection.matches_queue(self.context.name(number))
            ]
            if len(kept) < len(numbers):
                mask &= np.isin(part["queue"], np.array(kept, dtype=np.uint32))
        if selection.first_seq is not None:
            mask &= part["seq"] >= max(0, selection.first_seq)
        if selection.last_seq is not None:
            mask &= part["seq"] <= max(0, selection.last_seq) if selection.last_seq >= 0 else False
        mask = self._pick_ids(part, mask)
        return np.flatnonzero(mask) + low

    def _pick_ids(self, part: Array, mask: Array) -> Array:
        return mask

    def _possible_seqs(self) -> Array:
        """The sequence numbers that the selected ids may have, by their digits or by the context."""
        prefix, seqs = self.context.id_prefix, []
        for each in self.selection.ids:
            if each.startswith(prefix) and len(each) == len(prefix) + 12:
                try:
                    seqs.append(int(each[-12:], 16))
                except ValueError:
                    continue
        own = self.context.own_ids
        if len(own):
            named = np.flatnonzero(pc.is_in(own, pa.array(self.selection.ids, pa.string())))
            seqs += self.context.own_seqs[named].tolist()
        return np.array(seqs, dtype=np.uint64)

    def _cut(self, chosen: Array) -> Iterator[tuple[int, int]]:
        """Batches of limited rows and bytes, without long ranges of unwanted bytes inside."""
        count = len(chosen)
        starts = chosen["offset"].astype(np.int64)
        ends = starts + chosen["length"]
        needs = self._needs_bytes(chosen)
        far = np.flatnonzero((starts[1:] - ends[:-1] > _GAP) & needs[1:]) + 1
        weights = self._weights(chosen)
        total = None if weights is None else np.cumsum(weights)
        any_bytes = bool(needs.any())
        i = 0
        while i < count:
            j = min(i + BATCH_ROWS, count)
            if any_bytes:
                j = min(j, max(i + 1, int(np.searchsorted(starts, starts[i] + BATCH_BYTES))))
                k = int(np.searchsorted(far, i, side="right"))
                if k < len(far):
                    j = min(j, int(far[k]))
            if total is not None:
                before = int(total[i - 1]) if i else 0
                j = min(j, max(i + 1, int(np.searchsorted(total, before + BATCH_BYTES))))
            yield i, j
            i = j

    def _type(self, name: str) -> pa.DataType:
        return self.schema.field(name).type

    def _is_wanted(self, *names: str) -> bool:
        return any(name in self.columns for name in names)

    def _index_columns(self, chosen: Array) -> dict[str, pa.Array]:
        made: dict[str, pa.Array] = {}
        if self._is_wanted("position"):
            made["position"] = pa.array((self.ref.number << 32) | chosen["offset"].astype(np.int64))
        if self._is_wanted("seq"):
            made["seq"] = pa.array(chosen["seq"].astype(np.int64))
        if self._is_wanted("ts"):
            made["ts"] = _times(chosen["time"].astype(np.int64))
        if self._is_wanted("queue"):
            made["queue"] = self._queue_names(chosen["queue"])
        return made

    def _queue_names(self, numbers: Array, valid: Array | None = None) -> pa.StringArray:
        distinct: Array = numbers[:1]
        indices: Array = np.zeros(len(numbers), dtype=np.int32)
        if bool((numbers != distinct).any()):
            distinct, indices = np.unique(numbers, return_inverse=True)
        names = pa.array([self.context.name(number) for number in distinct.tolist()], pa.string())
        return names.take(pa.array(indices, mask=None if valid is None else ~valid))


class _MessageDecoder(_TableDecoder):
    kinds = _PUBLISH_KINDS

    def _needs_bytes(self, chosen: Array) -> Array:
        if self._is_wanted(*BODY_COLUMNS):
            return np.ones(len(chosen), dtype=bool)
        odd: Array = (chosen["kind"] == ROUTE) & self._is_wanted("size")
        if _VARIABLE_COLUMNS.intersection(self.columns):
            odd |= (chosen["flags"] & (HAS_OPTIONS | HAS_PROPERTIES)) != 0
        return odd

    def _weights(self, chosen: Array) -> Array | None:
        return chosen["length"].astype(np.int64) if self._is_wanted(*BODY_COLUMNS) else None

    def _pick_ids(self, part: Array, mask: Array) -> Array:
        if self.selection.ids:
            # A message with options may have an id of its own: it must be read.
            mask &= np.isin(part["seq"], self._possible_seqs()) | ((part["flags"] & HAS_OPTIONS) != 0)
        return mask

    def _columns(self, rows: Array, part: Array, chosen: Array) -> dict[str, pa.Array]:
        made = self._index_columns(chosen)
        count = len(chosen)
        seqs = chosen["seq"].astype(np.int64)
        needs = self._needs_bytes(chosen)
        sizes = chosen["length"].astype(np.int64) - np.where(chosen["kind"] == RUN, 2, RECORD_HEAD_BYTES)
        options: OptionColumns | None = None
        if needs.any():
            view, base = self.source.load(chosen[needs] if not needs.all() else chosen)
            options, info_starts, info_sizes, bodies = self._layout(view, base, chosen, needs)
            ends = chosen["offset"].astype(np.int64) - base + FRAME_BYTES + chosen["length"]
            sizes = np.where(needs, ends - bodies, sizes)
            if len(sizes) and int(sizes.min()) < 0:
                raise OutOfBounds
            if self._is_wanted(*BODY_COLUMNS):
                body = slices(view, bodies, sizes)
                if self._is_wanted("body"):
                    made["body"] = body
                if self._is_wanted("body_sha256"):
                    made["body_sha256"] = _sha256(body)
            if self._is_wanted(*_PROPERTY_COLUMNS):
                has = info_sizes >= 0
                if has.any():
                    data = slices(view, info_starts, info_sizes, has)
                    made.update(property_columns(data, self.columns.__contains__))
        if self._is_wanted("size"):
            made["size"] = pa.array(sizes.astype(np.int32))
        self._option_columns(made, options, chosen, seqs)
        if self._is_wanted("priority") and "priority" not in made:
            made["priority"] = pa.array(np.zeros(count, dtype=np.int32))
        if self._is_wanted("delay_us") and "delay_us" not in made:
            made["delay_us"] = pa.array(np.zeros(count, dtype=np.int64))
        return made

    def _layout(
        self, view: Array, base: int, chosen: Array, needs: Array
    ) -> tuple[OptionColumns | None, Array, Array, Array]:
        """The options, where the properties are (size -1: none), and where the bodies begin."""
        flags = np.where(needs, chosen["flags"], 0)
        if needs.all():
            at = option_starts(view, base, chosen)
        else:
            at = np.zeros(len(chosen), dtype=np.int64)
            at[needs] = option_starts(view, base, chosen[needs])
        options = None
        has = (flags & HAS_OPTIONS) != 0
        if has.any():
            sizes = gather_checked(view, at[has], 4).astype(np.int64)
            whole = np.zeros(len(chosen), dtype=np.int64)
            whole[has] = sizes
            options = OptionColumns(view, at + 4, whole, has)
            at[has] += 4 + sizes
        info_sizes = np.full(len(chosen), -1, dtype=np.int64)
        has = (flags & HAS_PROPERTIES) != 0
        starts = at + 4
        if has.any():
            info_sizes[has] = gather_checked(view, at[has], 4)
            at[has] += 4 + info_sizes[has]
        return options, starts, info_sizes, at

    def _option_columns(
        self, made: dict[str, pa.Array], options: OptionColumns | None, chosen: Array, seqs: Array
    ) -> None:
        if self._is_wanted("message_id"):
            made["message_id"] = hex_ids(self.context.id_prefix, seqs)
        if options is None:
            return
        if self._is_wanted("message_id") and options.has_field("id").any():
            made["message_id"] = pc.coalesce(options.texts("id"), made["message_id"])
        for column, field in (("type", "type"), ("group", "group"), ("dedup_id", "dedup")):
            if self._is_wanted(column) and options.has_field(field).any():
                made[column] = options.texts(field)
        if self._is_wanted("priority"):
            made["priority"] = pa.array(options.priorities.astype(np.int32))
        if self._is_wanted("delay_us"):
            due = options.numbers("due_ms")
            times = chosen["time"].astype(np.int64)
            made["delay_us"] = pa.array(np.where(due > times, due - times, 0) * 1000)
        if self._is_wanted("expires") and options.has_field("expires_ms").any():
            made["expires"] = _times(options.numbers("expires_ms"), options.has_field("expires_ms"))
        if self._is_wanted(*_ROUTE_COLUMNS) and options.has_field("route").any():
            made["exchange"], made["routing_key"] = options.routes()


class _EventDecoder(_TableDecoder):
    def __init__(
        self, ref: SegmentRef, source: _SegmentSource, selection: Selection, context: SegmentContext
    ) -> None:
        super().__init__(ref, source, selection, context)
        chosen = set(selection.events)
        self.kinds = tuple(
            kind for kind, events in _EVENTS_BY_KIND.items() if not chosen or chosen.intersection(events)
        )
        self._items: Array = np.empty(0, dtype=np.int64)
        self._first = 0

    def _pick(self, rows: Array, low: int, high: int) -> Array:
        wanted = super()._pick(rows, low, high)
        # The number of rows before each in the same record.
        offsets = rows["offset"][low:high]
        fresh = np.ones(len(offsets), dtype=bool)
        fresh[1:] = offsets[1:] != offsets[:-1]
        places = np.arange(len(offsets))
        self._items = places - np.maximum.accumulate(np.where(fresh, places, 0)) if len(places) else places
        self._first = low
        # The rows of a move are pairs, from and to, and make one event. The first one is the source.
        second = (rows["kind"][wanted] == MOVE) & (self._items[wanted - low] % 2 == 1)
        first: Array = wanted[~second]
        return first

    def _pick_ids(self, part: Array, mask: Array) -> Array:
        if self.selection.ids:
            mask &= np.isin(part["seq"], self._possible_seqs())
        return mask

    def _needs_bytes(self, chosen: Array) -> Array:
        kinds = (
            set(_KINDS_WITH_REASON)
            if self._is_wanted("event", "dlq_source", "error_text", "error_type", "error_signature")
            else set()
        )
        if self._is_wanted("consumer", "receipt_hash", "delay_us"):
            kinds.add(DELIVER)
        if self._is_wanted("delay_us"):
            kinds.update((EXTEND, RESCHEDULE, RETURN))
        if self._is_wanted("size"):
            kinds.update((ROUTE, EDIT))
        table = np.zeros(256, dtype=bool)
        table[list(kinds)] = True
        needs: Array = table[chosen["kind"]]
        if self._is_wanted("group", "dedup_id", "priority", "size", "batch", "delay_us"):
            is_publish = np.isin(chosen["kind"], (*_PUBLISH_KINDS, EDIT))
            needs |= is_publish & ((chosen["flags"] & (HAS_OPTIONS | HAS_PROPERTIES)) != 0)
        return needs

    def _columns(self, rows: Array, part: Array, chosen: Array) -> dict[str, pa.Array]:
        made = self._index_columns(chosen)
        kinds = chosen["kind"]
        count = len(chosen)
        seqs = chosen["seq"].astype(np.int64)
        whole = np.isin(kinds, (PURGE, UNQUEUE))  # about a queue, not a message
        if whole.any() and self._is_wanted("seq"):
            made["seq"] = pa.array(seqs, mask=whole)
        items = self._items[part - self._first]
        moves = kinds == MOVE
        if self._is_wanted("item"):
            # A purge with item 1 spared messages in flight; its record has that in the sequence field.
            spared = (kinds == PURGE) & (seqs != 0)
            items_told = np.where(moves, items // 2, np.where(whole, spared, items))
            made["item"] = pa.array(items_told.astype(np.int32))
        if self._is_wanted("message_id"):
            made["message_id"] = self._ids(seqs, whole)
        if self._is_wanted("receive_count"):
            made["receive_count"] = self._receive_counts(part, kinds == DELIVER)
        if moves.any():
            partners = rows[np.where(moves, np.minimum(part + 1, len(rows) - 1), part)]
            if self._is_wanted("to_queue"):
                made["to_queue"] = self._queue_names(partners["queue"], moves)
            if self._is_wanted("to_seq"):
                made["to_seq"] = pa.array(partners["seq"].astype(np.int64), mask=~moves)
        whys = np.zeros(count, dtype=np.uint8)
        needs = self._needs_bytes(chosen)
        view, base = _NO_BYTES, 0
        if needs.any():
            view, base = self.source.load(chosen[needs])
            at = np.where(needs, chosen["offset"].astype(np.int64) - base + FRAME_BYTES, 0)
            why = needs & np.isin(kinds, _KINDS_WITH_REASON)
            whys[why] = view[at[why] + 1]
            self._details(made, view, base, at, chosen, needs, items, whys)
        codes = _EVENT_CODES[kinds, whys]
        if self._is_wanted("event"):
            made["event"] = _EVENT_NAMES.take(pa.array(codes))
        if self._is_wanted("dlq_source"):
            dead = codes == _EVENT_ORDER.index("dead_letter")
            if dead.any():
                made["dlq_source"] = self._queue_names(chosen["queue"], dead)
        self._publish_columns(made, chosen, needs, view, base)
        return made

    def _ids(self, seqs: Array, whole: Array) -> pa.StringArray:
        ids = hex_ids(self.context.id_prefix, seqs)
        own = self.context.own_seqs
        found = np.zeros(len(seqs), dtype=bool)
        if len(own):
            at = np.minimum(np.searchsorted(own, seqs), len(own) - 1)
            found = own[at] == seqs
        if found.any():
            both = pa.concat_arrays([ids, self.context.own_ids])
            ids = both.take(pa.array(np.where(found, at + len(ids), np.arange(len(ids)))))
        return ids if not whole.any() else pc.if_else(pa.array(whole), pa.scalar(None, pa.string()), ids)

    def _receive_counts(self, part: Array, in_flight: Array) -> pa.Array:
        counts = np.ones(len(part), dtype=np.int32)
        again = self.context.redelivered_rows
        if len(again):
            at = np.minimum(np.searchsorted(again, part), len(again) - 1)
            found = again[at] == part
            counts[found] = self.context.redelivery_counts[at[found]]
        return pa.array(counts, mask=~in_flight)

    def _details(
        self,
        made: dict[str, pa.Array],
        view: Array,
        base: int,
        at: Array,
        chosen: Array,
        needs: Array,
        items: Array,
        whys: Array,
    ) -> None:
        """Columns from the records: consumers, receipts, times and reasons."""
        kinds = chosen["kind"]
        times = chosen["time"].astype(np.int64)
        delays = np.zeros(len(chosen), dtype=np.int64)
        timed = np.zeros(len(chosen), dtype=bool)
        in_flight = needs & (kinds == DELIVER)
        if in_flight.any():
            until = gather_checked(view, at[in_flight] + RECORD_HEAD_BYTES, 8).astype(np.int64)
            # A lease without a deadline lasts as long as its connection.
            delays[in_flight], timed[in_flight] = until - times[in_flight], until > 0
            if self._is_wanted("receipt_hash"):
                numbers = np.zeros(len(chosen), dtype=np.int64)
                numbers[in_flight] = (
                    gather_checked(view, at[in_flight] + 8, 8).astype(np.int64) + items[in_flight]
                )
                receipts = hex_ids("", numbers)
                made["receipt_hash"] = pc.if_else(pa.array(in_flight), receipts, pa.scalar(None, pa.string()))
            if self._is_wanted("consumer"):
                made["consumer"] = _read_texts(view, at + RECORD_HEAD_BYTES + 8, in_flight)
        for kind in (EXTEND, RESCHEDULE):
            mine = needs & (kinds == kind)
            if mine.any():
                until = gather_checked(view, at[mine] + RECORD_HEAD_BYTES, 8).astype(np.int64)
                delays[mine], timed[mine] = until - times[mine], (until > 0) | (kind == RESCHEDULE)
        back = needs & (kinds == RETURN)
        if back.any() and self._is_wanted("delay_us"):
            sizes = gather_checked(view, at[back] + RECORD_HEAD_BYTES, 4).astype(np.int64)
            due = gather_checked(
                view, at[back] + RECORD_HEAD_BYTES + 4 + sizes + 16 * items[back] + 8, 8
            ).astype(np.int64)
            delays[back], timed[back] = due - times[back], True
        if self._is_wanted("delay_us"):
            made["delay_us"] = pa.array(np.maximum(delays, 0) * 1000, mask=~timed)
        if self._is_wanted("error_text", "error_type", "error_signature"):
            self._errors(made, view, at, kinds, needs, whys)

    def _errors(
        self, made: dict[str, pa.Array], view: Array, at: Array, kinds: Array, needs: Array, whys: Array
    ) -> None:
        reasoned = needs & ((kinds == RETURN) | (kinds == MOVE))
        reasons = (
            _read_texts(view, at + RECORD_HEAD_BYTES, reasoned)
            if reasoned.any()
            else pa.nulls(len(kinds), pa.string())
        )
        # Without a given reason, the kind of event is the reason.
        default = np.where(kinds == MOVE, whys, np.where(kinds == REMOVE, whys + 16, 0))
        default[~needs] = 0
        reasons = pc.coalesce(reasons, _DEFAULT_REASONS.take(pa.array(default)))
        if reasons.null_count == len(reasons):
            return
        if self._is_wanted("error_text"):
            made["error_text"] = reasons
        if self._is_wanted("error_type", "error_signature"):
            encoded = reasons.dictionary_encode()
            signs = [signature(each) for each in encoded.dictionary.to_pylist()]
            for column, place in (("error_type", 0), ("error_signature", 1)):
                values = pa.array([sign[place] for sign in signs], pa.string())
                made[column] = values.take(encoded.indices)

    def _publish_columns(
        self, made: dict[str, pa.Array], chosen: Array, needs: Array, view: Array, base: int
    ) -> None:
        """Group, priority, size and the like, of messages that are published or edited."""
        if not self._is_wanted("group", "dedup_id", "priority", "size", "batch", "delay_us"):
            return
        kinds = chosen["kind"]
        is_publish = np.isin(kinds, (*_PUBLISH_KINDS, EDIT))
        if not is_publish.any():
            return
        count = len(chosen)
        sizes = chosen["length"].astype(np.int64) - np.where(kinds == RUN, 2, RECORD_HEAD_BYTES)
        priorities = np.zeros(count, dtype=np.int32)
        delays = np.zeros(count, dtype=np.int64)
        read = is_publish & needs
        if read.any():
            rows = chosen[read]
            at = option_starts(view, base, rows)
            options = read_options(view, at, rows)
            has = (rows["flags"] & HAS_OPTIONS) != 0
            at[has] += 4 + gather_checked(view, at[has], 4).astype(np.int64)
            has = (rows["flags"] & HAS_PROPERTIES) != 0
            info_sizes = np.full(len(rows), -1, dtype=np.int64)
            info_sizes[has] = gather_checked(view, at[has], 4)
            info_starts = at + 4
            at[has] += 4 + info_sizes[has]
            ends = rows["offset"].astype(np.int64) - base + FRAME_BYTES + rows["length"]
            sizes[read] = ends - at
            priorities[read] = options.priorities
            due = options.numbers("due_ms")
            times = rows["time"].astype(np.int64)
            delays[read] = np.where(due > times, due - times, 0) * 1000
            places = np.zeros(count, dtype=np.int64)
            places[read] = np.arange(len(rows))
            spread = pa.array(places, mask=~read)
            for column, field in (("group", "group"), ("dedup_id", "dedup")):
                if self._is_wanted(column) and options.has_field(field).any():
                    made[column] = options.texts(field).take(spread)
            if self._is_wanted("batch") and has.any():
                found = property_columns(slices(view, info_starts, info_sizes, has), "batch".__eq__)
                if "batch" in found:
                    made["batch"] = found["batch"].take(spread)
        if self._is_wanted("size"):
            made["size"] = pa.array(sizes.astype(np.int32), mask=~is_publish)
        if self._is_wanted("priority"):
            made["priority"] = pa.array(priorities, mask=~is_publish)
        if self._is_wanted("delay_us"):
            mine = pa.array(delays, mask=~(is_publish & (kinds != EDIT)))
            known = made.get("delay_us")
            made["delay_us"] = mine if known is None else pc.coalesce(known, mine)


# By the reason of a move, and from 16 on by the reason of a removal.
_DEFAULT_REASONS = pa.array(
    [DEAD_LETTER_NAMES.get(why) for why in range(16)]
    + [None if why in (REMOVED_EXPIRED, REMOVED_CANCELLED) else REMOVE_NAMES.get(why) for why in range(240)],
    pa.string(),
)


def _read_texts(view: Array, at: Array, mine: Array) -> pa.StringArray:
    """Texts with a length prefix, and one byte that tells an empty text from none."""
    lengths = np.full(len(at), -1, dtype=np.int64)
    lengths[mine] = gather_checked(view, at[mine], 4).astype(np.int64) - 1
    valid = lengths >= 0
    if not valid.any():
        return pa.nulls(len(at), pa.string())
    # Many rows share one record: its text is read once.
    places, which = np.unique(at[valid], return_inverse=True)
    sizes = np.zeros(len(places), dtype=np.int64)
    sizes[which] = lengths[valid]
    found = texts(slices(view, places + 5, sizes))
    indices = np.zeros(len(at), dtype=np.int64)
    indices[valid] = which
    return found.take(pa.array(indices, mask=~valid))


def _times(ms: Array, valid: Array | None = None) -> pa.Array:
    # After the year 290,000 a time in microseconds does not fit: cap it.
    us = np.minimum(ms, (1 << 63) // 1000 - 1) * 1000
    numbers = pa.array(us, mask=None if valid is None else ~valid)
    return numbers.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))


def _sha256(bodies: pa.BinaryArray) -> pa.BinaryArray:
    count = len(bodies)
    ends = np.frombuffer(bodies.buffers()[1], dtype=np.int32)[bodies.offset :][: count + 1].tolist()
    raw = bodies.buffers()[2]
    whole = memoryview(b"" if raw is None else raw)
    digest = hashlib.sha256
    found = b"".join([digest(whole[i:j]).digest() for i, j in pairwise(ends)])
    offsets = np.arange(0, 32 * (count + 1), 32, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(found)])
