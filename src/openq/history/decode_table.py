"""What the decoders of both tables share: which rows, in which batches, and the columns of the index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from openq.engine.records import ITEM, ITEM_WITH_METADATA, PUBLISH, ROUTE, RUN
from openq.history.option_columns import OptionColumns, OutOfBounds
from openq.history.schema import arrow_schema
from openq.history.segments import Array, SegmentBytes, SegmentRef, gather
from openq.history.selection import Selection
from openq.history.tracker import SegmentContext
from openq.journal.format import FRAME_BYTES

BATCH_ROWS = 64 << 10
BATCH_BYTES = 16 << 20
PUBLISH_KINDS = (PUBLISH, RUN, ROUTE)
_GAP = 256 << 10  # up to so many unwanted bytes between two rows are read rather than skipped


class SegmentSource:
    """Opens the segment when its first byte is needed: some selections need only the index."""

    def __init__(self, ref: SegmentRef) -> None:
        self._ref = ref
        self._bytes: SegmentBytes | None = None

    def __enter__(self) -> SegmentSource:
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


class TableDecoder:
    """What both tables share: which rows, in which batches, and the columns that the index holds."""

    kinds: tuple[int, ...]

    def __init__(
        self, ref: SegmentRef, source: SegmentSource, selection: Selection, context: SegmentContext
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

    def is_wanted(self, *names: str) -> bool:
        return any(name in self.columns for name in names)

    def _index_columns(self, chosen: Array) -> dict[str, pa.Array]:
        made: dict[str, pa.Array] = {}
        if self.is_wanted("position"):
            made["position"] = pa.array((self.ref.number << 32) | chosen["offset"].astype(np.int64))
        if self.is_wanted("seq"):
            made["seq"] = pa.array(chosen["seq"].astype(np.int64))
        if self.is_wanted("ts"):
            made["ts"] = times_column(chosen["time"].astype(np.int64))
        if self.is_wanted("queue"):
            made["queue"] = self._queue_names(chosen["queue"])
        return made

    def _queue_names(self, numbers: Array, valid: Array | None = None) -> pa.StringArray:
        distinct: Array = numbers[:1]
        indices: Array = np.zeros(len(numbers), dtype=np.int32)
        if bool((numbers != distinct).any()):
            distinct, indices = np.unique(numbers, return_inverse=True)
        names = pa.array([self.context.name(number) for number in distinct.tolist()], pa.string())
        return names.take(pa.array(indices, mask=None if valid is None else ~valid))


def delays_us(options: OptionColumns, rows: Array) -> Array:
    """The delays that were set when the messages were published."""
    due = options.numbers("due_ms")
    times = rows["time"].astype(np.int64)
    found: Array = np.where(due > times, due - times, 0) * 1000
    return found


def times_column(ms: Array, valid: Array | None = None) -> pa.Array:
    # After the year 290,000 a time in microseconds does not fit: cap it.
    us = np.minimum(ms, (1 << 63) // 1000 - 1) * 1000
    numbers = pa.array(us, mask=None if valid is None else ~valid)
    return numbers.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
