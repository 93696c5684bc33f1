"""Decodes rows of the table `events`: one for each message that something happened to."""

from __future__ import annotations

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
from openq.history.decode_table import PUBLISH_KINDS, SegmentSource, TableDecoder, delays_us
from openq.history.error_signature import signature
from openq.history.layout import RECORD_HEAD_BYTES, payload_layout
from openq.history.option_columns import HAS_OPTIONS, HAS_PROPERTIES, gather_checked, slices, texts
from openq.history.property_columns import property_columns
from openq.history.segments import Array, SegmentRef
from openq.history.selection import Selection
from openq.history.tracker import SegmentContext, hex_ids
from openq.journal.format import FRAME_BYTES

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
_NO_BYTES: Array = np.empty(0, dtype=np.uint8)


class EventDecoder(TableDecoder):
    def __init__(
        self, ref: SegmentRef, source: SegmentSource, selection: Selection, context: SegmentContext
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
            if self.is_wanted("event", "dlq_source", "error_text", "error_type", "error_signature")
            else set()
        )
        if self.is_wanted("consumer", "receipt_hash", "delay_us"):
            kinds.add(DELIVER)
        if self.is_wanted("delay_us"):
            kinds.update((EXTEND, RESCHEDULE, RETURN))
        if self.is_wanted("size"):
            kinds.update((ROUTE, EDIT))
        table = np.zeros(256, dtype=bool)
        table[list(kinds)] = True
        needs: Array = table[chosen["kind"]]
        if self.is_wanted("group", "dedup_id", "priority", "size", "batch", "delay_us"):
            is_publish = np.isin(chosen["kind"], (*PUBLISH_KINDS, EDIT))
            needs |= is_publish & ((chosen["flags"] & (HAS_OPTIONS | HAS_PROPERTIES)) != 0)
        return needs

    def _columns(self, rows: Array, part: Array, chosen: Array) -> dict[str, pa.Array]:
        made = self._index_columns(chosen)
        kinds = chosen["kind"]
        count = len(chosen)
        seqs = chosen["seq"].astype(np.int64)
        whole = np.isin(kinds, (PURGE, UNQUEUE))  # about a queue, not a message
        if whole.any() and self.is_wanted("seq"):
            made["seq"] = pa.array(seqs, mask=whole)
        items = self._items[part - self._first]
        moves = kinds == MOVE
        if self.is_wanted("item"):
            # A purge with item 1 spared messages in flight; its record has that in the sequence field.
            spared = (kinds == PURGE) & (seqs != 0)
            shown_items = np.where(moves, items // 2, np.where(whole, spared, items))
            made["item"] = pa.array(shown_items.astype(np.int32))
        if self.is_wanted("message_id"):
            made["message_id"] = self._ids(seqs, whole)
        if self.is_wanted("receive_count"):
            made["receive_count"] = self._receive_counts(part, kinds == DELIVER)
        if moves.any():
            partners = rows[np.where(moves, np.minimum(part + 1, len(rows) - 1), part)]
            if self.is_wanted("to_queue"):
                made["to_queue"] = self._queue_names(partners["queue"], moves)
            if self.is_wanted("to_seq"):
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
        if self.is_wanted("event"):
            made["event"] = _EVENT_NAMES.take(pa.array(codes))
        if self.is_wanted("dlq_source"):
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
            if self.is_wanted("receipt_hash"):
                numbers = np.zeros(len(chosen), dtype=np.int64)
                numbers[in_flight] = (
                    gather_checked(view, at[in_flight] + 8, 8).astype(np.int64) + items[in_flight]
                )
                receipts = hex_ids("", numbers)
                made["receipt_hash"] = pc.if_else(pa.array(in_flight), receipts, pa.scalar(None, pa.string()))
            if self.is_wanted("consumer"):
                made["consumer"] = _read_texts(view, at + RECORD_HEAD_BYTES + 8, in_flight)
        for kind in (EXTEND, RESCHEDULE):
            mine = needs & (kinds == kind)
            if mine.any():
                until = gather_checked(view, at[mine] + RECORD_HEAD_BYTES, 8).astype(np.int64)
                delays[mine], timed[mine] = until - times[mine], (until > 0) | (kind == RESCHEDULE)
        back = needs & (kinds == RETURN)
        if back.any() and self.is_wanted("delay_us"):
            sizes = gather_checked(view, at[back] + RECORD_HEAD_BYTES, 4).astype(np.int64)
            due = gather_checked(
                view, at[back] + RECORD_HEAD_BYTES + 4 + sizes + 16 * items[back] + 8, 8
            ).astype(np.int64)
            delays[back], timed[back] = due - times[back], True
        if self.is_wanted("delay_us"):
            made["delay_us"] = pa.array(np.maximum(delays, 0) * 1000, mask=~timed)
        if self.is_wanted("error_text", "error_type", "error_signature"):
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
        if self.is_wanted("error_text"):
            made["error_text"] = reasons
        if self.is_wanted("error_type", "error_signature"):
            encoded = reasons.dictionary_encode()
            signs = [signature(each) for each in encoded.dictionary.to_pylist()]
            for column, place in (("error_type", 0), ("error_signature", 1)):
                values = pa.array([sign[place] for sign in signs], pa.string())
                made[column] = values.take(encoded.indices)

    def _publish_columns(
        self, made: dict[str, pa.Array], chosen: Array, needs: Array, view: Array, base: int
    ) -> None:
        """Group, priority, size and the like, of messages that are published or edited."""
        if not self.is_wanted("group", "dedup_id", "priority", "size", "batch", "delay_us"):
            return
        kinds = chosen["kind"]
        is_publish = np.isin(kinds, (*PUBLISH_KINDS, EDIT))
        if not is_publish.any():
            return
        count = len(chosen)
        sizes = chosen["length"].astype(np.int64) - np.where(kinds == RUN, 2, RECORD_HEAD_BYTES)
        priorities = np.zeros(count, dtype=np.int32)
        delays = np.zeros(count, dtype=np.int64)
        read = is_publish & needs
        if read.any():
            rows = chosen[read]
            every = np.ones(len(rows), dtype=bool)
            options, property_starts, property_sizes, at = payload_layout(view, base, rows, every)
            ends = rows["offset"].astype(np.int64) - base + FRAME_BYTES + rows["length"]
            sizes[read] = ends - at
            if options is not None:
                priorities[read] = options.priorities
                delays[read] = delays_us(options, rows)
            places = np.zeros(count, dtype=np.int64)
            places[read] = np.arange(len(rows))
            spread = pa.array(places, mask=~read)
            for column, field in (("group", "group"), ("dedup_id", "dedup")):
                if options is not None and self.is_wanted(column) and options.has_field(field).any():
                    made[column] = options.texts(field).take(spread)
            has = property_sizes >= 0
            if self.is_wanted("batch") and has.any():
                found = property_columns(slices(view, property_starts, property_sizes, has), "batch".__eq__)
                if "batch" in found:
                    made["batch"] = found["batch"].take(spread)
        if self.is_wanted("size"):
            made["size"] = pa.array(sizes.astype(np.int32), mask=~is_publish)
        if self.is_wanted("priority"):
            made["priority"] = pa.array(priorities, mask=~is_publish)
        if self.is_wanted("delay_us"):
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
