"""The journal as columns: every row as a plain decoder sees it, however it is cut, chosen or damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openq.amqp_fields import AmqpProperties, Timestamp, encode
from openq.clock import VirtualClock
from openq.engine.record_values import pack_properties, unpack_properties
from openq.engine.records import RUN
from openq.errors import HistoryUnavailable, InvalidSetting, JournalDamaged, OpenQError
from openq.history import decode_table
from openq.history.journal import (
    JournalFiles,
    MessageTracker,
    SegmentRef,
    bare_context,
    needs_tracker,
    read_segment,
)
from openq.history.property_columns import property_columns
from openq.history.property_values import PropertyValues, property_values
from openq.history.schema import EVENTS, TABLES, arrow_schema, column_names
from openq.history.segments import SegmentBytes
from openq.history.selection import Selection
from openq.journal.disk import DiskIo
from openq.journal.index import index_path
from openq.model import Draft, Properties, QueueSettings
from tests.budget import examples
from tests.history.journals import JournalWorkload, create_queues, open_broker, plain_tables, wire
from tests.waiting import until


def read_all(path: Path, selection: Selection, files: JournalFiles | None = None) -> pa.Table:
    """The selected part of a whole journal."""
    files = files or JournalFiles(path)
    tracker = MessageTracker()
    batches: list[pa.RecordBatch] = []
    for ref in files.segments():
        index = files.index(ref.number)
        context = tracker.context_for(ref, index) if needs_tracker(selection) else bare_context(ref, index)
        batches += read_segment(ref, selection, index=index, context=context)
    schema = arrow_schema(selection.table, selection.names)
    return pa.Table.from_batches(batches, schema=schema)


def rows(path: Path, selection: Selection) -> list[dict[str, Any]]:
    return read_all(path, selection).to_pylist()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A broker that lived through everything, was restarted in between, and still runs."""
    path = tmp_path_factory.mktemp("columns")
    clock = VirtualClock()
    with_broker = open_broker(path, clock)
    create_queues(with_broker)
    JournalWorkload(with_broker, clock, 1).run(900)
    with_broker.close()
    broker = open_broker(path, clock)
    JournalWorkload(broker, clock, 2).run(900)
    yield path
    broker.close()


@pytest.fixture(scope="module")
def plain(journal: Path) -> dict[str, list[dict[str, Any]]]:
    return plain_tables(journal)


def test_the_workload_covers_every_event_and_column(
    plain: dict[str, list[dict[str, Any]]], journal: Path
) -> None:
    assert {row["event"] for row in plain["events"]} == set(EVENTS)
    assert max(row["receive_count"] or 0 for row in plain["events"]) >= 3
    assert len(JournalFiles(journal).segments()) > 3
    for table in TABLES:
        empty = [name for name in column_names(table) if all(row[name] is None for row in plain[table])]
        assert empty == ([] if table == "messages" else ["protocol"])


@pytest.mark.parametrize("table", TABLES)
def test_every_row_equals_that_of_the_plain_decoder(
    journal: Path, plain: dict[str, list[dict[str, Any]]], table: str
) -> None:
    found = rows(journal, Selection(table))

    assert len(found) == len(plain[table])
    for got, expected in zip(found, plain[table], strict=True):
        assert got == expected


@pytest.mark.parametrize("table", TABLES)
def test_each_column_alone_is_the_same(
    journal: Path, plain: dict[str, list[dict[str, Any]]], table: str
) -> None:
    for name in column_names(table):
        found = read_all(journal, Selection(table, columns=(name,)))
        assert found.column(0).to_pylist() == [row[name] for row in plain[table]], name


def test_small_batches_hold_the_same_rows(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {table: rows(journal, Selection(table)) for table in TABLES}

    monkeypatch.setattr(decode_table, "BATCH_ROWS", 61)
    monkeypatch.setattr(decode_table, "_GAP", 2_000)
    for table in TABLES:
        assert rows(journal, Selection(table)) == whole[table]
    monkeypatch.setattr(decode_table, "BATCH_ROWS", 5_000)
    monkeypatch.setattr(decode_table, "BATCH_BYTES", 6_000)
    for table in TABLES:
        assert rows(journal, Selection(table)) == whole[table]


@settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_selection_equals_filtering_the_whole_table(
    journal: Path, plain: dict[str, list[dict[str, Any]]], data: st.DataObject
) -> None:
    table = data.draw(st.sampled_from(TABLES))
    known = plain[table]
    some_row = st.integers(0, len(known) - 1).map(known.__getitem__)

    def bounds(name: str) -> tuple[Any, Any]:
        values = [row[name] for row in data.draw(st.lists(some_row, min_size=2, max_size=2))]
        low, high = sorted(value for value in (each or 0 for each in values))
        return data.draw(st.sampled_from([(None, None), (low, None), (None, high), (low, high)]))

    first_seq, last_seq = bounds("seq")
    first_position, end_position = bounds("position")
    times = data.draw(st.lists(some_row, max_size=2, min_size=2))
    since, until = sorted(round(row["ts"].timestamp() * 1000) * 1000 for row in times)
    queues = data.draw(
        st.lists(st.sampled_from(["plain", "*", "@*", "d?ad", "nobody", "brief-*"]), max_size=2)
    )
    ids = data.draw(st.lists(some_row.map(lambda row: row["message_id"] or "x"), max_size=3))
    columns = data.draw(st.lists(st.sampled_from(column_names(table)), min_size=1, max_size=4, unique=True))
    selection = Selection(
        table,
        queues=tuple(queues),
        since_us=data.draw(st.sampled_from([None, since, since + 1])),
        until_us=data.draw(st.sampled_from([None, until + 1, until + 1000])),
        first_seq=first_seq,
        last_seq=last_seq,
        first_position=first_position,
        end_position=end_position,
        ids=tuple(ids),
        columns=data.draw(st.sampled_from([None, tuple(columns)])),
        events=tuple(data.draw(st.lists(st.sampled_from(EVENTS), max_size=3))) if table == "events" else (),
    )
    try:
        selection.validate()
    except InvalidSetting:
        return

    expected = [row for row in known if _matches(row, selection)]

    names = selection.names
    assert rows(journal, selection) == [{name: row[name] for name in names} for row in expected]


def _matches(row: dict[str, Any], selection: Selection) -> bool:
    us = round(row["ts"].timestamp() * 1000) * 1000
    return (
        selection.matches_queue(row["queue"])
        and (selection.since_us is None or us >= selection.since_us)
        and (selection.until_us is None or us < selection.until_us)
        and (selection.first_seq is None or (row["seq"] is not None and row["seq"] >= selection.first_seq))
        and (selection.last_seq is None or (row["seq"] is not None and row["seq"] <= selection.last_seq))
        and (selection.first_position is None or row["position"] >= selection.first_position)
        and (selection.end_position is None or row["position"] < selection.end_position)
        and (not selection.ids or row["message_id"] in selection.ids)
        and (not selection.events or row["event"] in selection.events)
    )


@pytest.mark.parametrize("table", TABLES)
def test_pieces_of_segments_together_are_the_whole(
    journal: Path, plain: dict[str, list[dict[str, Any]]], table: str
) -> None:
    files, tracker, found = JournalFiles(journal), MessageTracker(), []
    random = Random(3)
    for ref in files.segments():
        index = files.index(ref.number)
        context = tracker.context_for(ref, index)
        cuts = sorted({0, ref.size, *(random.randrange(ref.size) for _ in range(5))})
        for start, stop in pairwise(cuts):
            # Offsets and positions both name a place.
            base = random.choice((0, ref.number << 32))
            for batch in read_segment(
                ref, Selection(table), start=base + start, stop=base + stop, context=context
            ):
                found += batch.to_pylist()

    assert found == plain[table]


def test_an_open_segment_can_be_followed_step_by_step(tmp_path: Path) -> None:
    clock = VirtualClock()
    broker = open_broker(tmp_path, clock, segment_bytes=1 << 20)
    create_queues(broker)
    files, tracker, life = JournalFiles(tmp_path), MessageTracker(), JournalWorkload(broker, clock, 5)
    found: list[dict[str, Any]] = []
    done = 0
    for _ in range(8):
        life.run(60)
        for ref in files.segments():
            if ref.end_position <= done:
                continue
            index = files.index(ref.number)
            start = done if done >> 32 == ref.number else None
            tracker = MessageTracker.from_state(tracker.state())
            context = tracker.context_for(ref, index, start=start)
            for batch in read_segment(ref, Selection("events"), index=index, start=start, context=context):
                found += batch.to_pylist()
            done = ref.end_position
        assert files.end_position() == done

    assert found == plain_tables(tmp_path)["events"]
    broker.close()


class CountingIo(DiskIo):
    """A disk that counts what is read from it."""

    def __init__(self) -> None:
        self.read = self.synced = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.read += len(data)
        return data

    def fdatasync(self, fd: int) -> None:
        self.synced += 1
        super().fdatasync(fd)


def test_following_an_open_segment_reads_only_what_is_new(tmp_path: Path) -> None:
    broker = open_broker(tmp_path, segment_bytes=1 << 24)
    broker.declare("q", QueueSettings())
    files = JournalFiles(tmp_path)
    files._io = disk = CountingIo()
    count = 0
    # A segment is padded for what comes, so a look at new blocks may read a chunk beyond their end.
    for _ in range(4):
        broker.publish_bodies("q", [bytes(1000)] * 1000, 0)
        broker.sync()
        # Until the broker has made its index, each reader scans a finished segment.
        until(lambda: all(os.path.exists(index_path(ref.path)) for ref in files.segments() if ref.sealed))
        files.segments()
        disk.read = disk.synced = 0
        broker.publish_bodies("q", [b"x"] * 10, 0)
        broker.sync()
        end = files.end_position()
        index = files.index(end >> 32)
        for _ in range(5):
            assert files.end_position() == end
            assert files.index(end >> 32) is index

        count += 1010
        assert disk.synced == 1
        assert disk.read < 4_200_000
        indexes = [files.index(ref.number) for ref in files.segments()]
        assert sum(kind == RUN for index in indexes for kind in index.kinds) == count
    broker.close()


def test_the_tracker_drops_removed_messages(tmp_path: Path) -> None:
    clock = VirtualClock()
    broker = open_broker(tmp_path, clock)
    create_queues(broker)
    life = JournalWorkload(broker, clock, 9)
    life.run(400)
    for queue in broker.queues():
        broker.purge(queue)
    broker.sync()

    files, tracker = JournalFiles(tmp_path), MessageTracker()
    for ref in files.segments():
        tracker.context_for(ref, files.index(ref.number))

    assert len(tracker) == 0
    broker.close()


def test_a_message_in_flight_survives_a_purge_of_ready_messages(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    broker.declare("q", QueueSettings())
    for name in ("waits", "leased"):
        broker.publish("q", Draft(b"", id=name, priority=9 if name == "leased" else 0))
    [held] = broker.receive("q")
    broker.purge("q", waiting_only=True)
    broker.sync()
    files, tracker = JournalFiles(tmp_path), MessageTracker()
    [ref] = files.segments()
    tracker.context_for(ref, files.index(ref.number))

    assert len(tracker) == 1
    broker.ack("q", [(held.entry.seq, held.number)])
    broker.sync()
    [last] = read_all(tmp_path, Selection("events", events=("ack",))).to_pylist()
    assert last["message_id"] == "leased"
    broker.close()


def test_a_torn_tail_gives_no_row(tmp_path: Path) -> None:
    clock = VirtualClock()
    broker = open_broker(tmp_path, clock)
    create_queues(broker)
    JournalWorkload(broker, clock, 4).run(200)
    before = plain_tables(tmp_path)
    ref = JournalFiles(tmp_path).segments()[-1]
    whole = Path(ref.path).read_bytes()
    broker.close()
    # As a kill leaves it: a block that was begun at the end of what is there.
    torn = whole[64:120] + bytes(100)
    Path(ref.path).write_bytes(whole[: ref.size] + torn + whole[ref.size + len(torn) :])

    for table in TABLES:
        assert rows(tmp_path, Selection(table)) == before[table]


def test_a_missing_or_broken_sidecar_is_rebuilt(journal: Path) -> None:
    files = JournalFiles(journal)
    ref = files.segments()[1]
    sidecar = Path(index_path(ref.path))
    kept = sidecar.read_bytes()
    context = bare_context(ref, files.index(ref.number))
    expected = list(read_segment(ref, Selection(), context=context))
    try:
        sidecar.write_bytes(kept[:-5])
        assert list(read_segment(ref, Selection(), context=context)) == expected
        sidecar.unlink()
        again = JournalFiles(journal)
        assert again.segments()[1] == ref
        assert list(read_segment(ref, Selection(), context=context)) == expected
    finally:
        sidecar.write_bytes(kept)


@pytest.mark.parametrize("table", TABLES)
def test_a_flipped_bit_is_detected(journal: Path, tmp_path: Path, table: str) -> None:
    files = JournalFiles(journal)
    ref = files.segments()[1]
    index = files.index(ref.number)
    tracker = MessageTracker()
    tracker.context_for(files.segments()[0], files.index(files.segments()[0].number))
    context = tracker.context_for(ref, index)
    right = [batch.to_pylist() for batch in read_segment(ref, Selection(table), index=index, context=context)]
    data = bytearray(Path(ref.path).read_bytes())
    copy = replace(ref, path=str(tmp_path / "journal" / Path(ref.path).name))
    Path(copy.path).parent.mkdir()
    random = Random(8)
    noticed = 0
    for _ in range(100):
        at = random.randrange(64, ref.size)
        bit = 1 << random.randrange(8)
        data[at] ^= bit
        Path(copy.path).write_bytes(data)
        try:
            found = [
                batch.to_pylist()
                for batch in read_segment(copy, Selection(table), index=index, context=context)
            ]
        except JournalDamaged as error:
            noticed += error.file == copy.path
        else:
            # What nobody read may be damaged; what was read is right.
            assert found == right
        data[at] ^= bit

    assert noticed > (90 if table == "messages" else 50)


def test_an_index_of_another_segment_is_detected(journal: Path) -> None:
    files = JournalFiles(journal)
    one, other = files.segments()[1:3]
    context = bare_context(one, files.index(one.number))

    for table in TABLES:
        with pytest.raises((JournalDamaged, HistoryUnavailable)):
            list(read_segment(one, Selection(table), index=files.index(other.number), context=context))


@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_a_corrupt_index_raises_only_known_errors(journal: Path, data: st.DataObject) -> None:
    files = JournalFiles(journal)
    ref = files.segments()[1]
    index = files.index(ref.number)
    broken = bytearray(index.rows)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    context = bare_context(ref, index)
    other = type(index)(bytes(broken))

    for table in TABLES:
        try:
            list(read_segment(ref, Selection(table), index=other, context=context))
        except OpenQError:
            continue


def test_a_reused_segment_is_unavailable_not_damaged(journal: Path, tmp_path: Path) -> None:
    files = JournalFiles(journal)
    first, second = files.segments()[:2]
    folder = tmp_path / "journal"
    folder.mkdir()
    path = folder / Path(first.path).name
    path.write_bytes(Path(first.path).read_bytes())
    index = files.index(first.number)
    ref = replace(first, path=str(path))
    with SegmentBytes(ref) as source:
        source.load(64 + 32, 64 + 40)
        path.write_bytes(Path(second.path).read_bytes())
        with pytest.raises(HistoryUnavailable):
            source.load(first.size // 2, first.size)
    context = bare_context(first, index)
    with pytest.raises(HistoryUnavailable):
        list(read_segment(ref, Selection(), index=index, context=context))
    path.unlink()
    with pytest.raises(HistoryUnavailable):
        list(read_segment(ref, Selection(), index=index, context=context))


@pytest.mark.parametrize("with_sidecar", [True, False])
def test_a_segment_that_is_freed_while_it_is_listed_is_not_listed(
    journal: Path, tmp_path: Path, with_sidecar: bool
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(journal, copy)
    first, *others = JournalFiles(copy).segments()

    class Freeing(DiskIo):
        """The first segment is freed when its sidecar is opened: its header has been read by then."""

        def open(self, path: str, flags: int) -> int:
            if path == index_path(first.path) and os.path.exists(first.path):
                os.unlink(first.path)
                if with_sidecar:
                    Path(path).write_bytes(b"")  # unusable: the index would be built from the segment
                else:
                    os.unlink(path)
            return super().open(path, flags)

    assert JournalFiles(copy, Freeing()).segments() == others


def test_a_directory_without_a_journal_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnavailable, match="holds no journal"):
        JournalFiles(tmp_path).segments()
    with pytest.raises(HistoryUnavailable, match="no longer kept"):
        JournalFiles(tmp_path).index(3)


def test_an_invalid_tracker_state_is_refused() -> None:
    good = MessageTracker("p").state()

    for broken in ({}, {**good, "seqs": "?"}, {**good, "ids": good["seqs"]}, {**good, "names": 3}):
        with pytest.raises(InvalidSetting, match="not the state"):
            MessageTracker.from_state(broken)


def test_selections_of_index_columns_read_no_bytes(journal: Path, tmp_path: Path) -> None:
    files = JournalFiles(journal)
    ref: SegmentRef = files.segments()[1]
    index = files.index(ref.number)
    context = bare_context(ref, index)
    elsewhere = replace(ref, path=str(tmp_path / "nothing.seg"))
    selection = Selection("messages", columns=("position", "seq", "ts", "queue"))

    found = list(read_segment(elsewhere, selection, index=index, context=context))

    assert found == list(read_segment(ref, selection, index=index, context=context))


# -- infos all at once ---------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    (
        *("tenant", "n", "é", "traceparent", "X-Amzn-Trace-Id", "x-amzn-trace-id", "openq.trace", "trace_id"),
        *("openq.replay_of", "openq.replay_count", "openq.batch", "openq.sqs-types", "content_type"),
        *("x-group-id", "x-deduplication-header", "x-delay", "x-death", "BCC", "message_id"),
    )
)
_TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
    st.sampled_from(("7", "Root=1-2;Sampled=1", "00-ab-cd-01", "ü" * 700, "")),
)
_SINGLE = st.one_of(
    st.none(),
    st.booleans(),
    _TEXTS,
    st.binary(max_size=6),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-9, 9),
    st.floats(),
    st.sampled_from((Decimal("1.50"), Decimal("-3"), Timestamp(0), Timestamp((1 << 64) - 1))),
)
_VALUES = st.one_of(_SINGLE, st.lists(_SINGLE, max_size=3), st.dictionaries(_WORDS, _SINGLE, max_size=2))
_SHORTS = st.one_of(st.none(), _TEXTS.filter(lambda text: len(text.encode()) < 256))
_PROPERTIES = st.builds(
    AmqpProperties,
    content_type=_SHORTS,
    headers=st.one_of(st.none(), st.dictionaries(_WORDS, _VALUES, max_size=6)),
    delivery_mode=st.sampled_from((None, 2)),
    correlation_id=_SHORTS,
    message_id=_SHORTS,
    timestamp=st.one_of(st.none(), st.integers(0, (1 << 64) - 1)),
    app_id=_SHORTS,
)


@st.composite
def amqp_property_bytes(draw: st.DrawFn) -> bytes:
    """Properties as clients send them, and as nobody should."""
    made = bytearray(encode(draw(_PROPERTIES)))
    if draw(st.integers(0, 3)) == 0:
        made[draw(st.integers(0, len(made) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 5)) == 0:
        del made[draw(st.integers(0, len(made))) :]
    return bytes(made)


_JSON_INFOS = st.builds(
    lambda attributes, publisher: Properties(attributes, publisher),
    st.dictionaries(
        st.one_of(_WORDS, st.text(max_size=4)),
        st.one_of(_SINGLE.filter(lambda value: type(value) is not Decimal), st.dictionaries(_WORDS, _TEXTS)),
        max_size=5,
    ),
    st.one_of(st.none(), st.just("joe")),
)
_INFOS = st.one_of(
    st.builds(Properties.from_amqp, amqp_property_bytes(), st.sampled_from((None, "", "zoë"))), _JSON_INFOS
)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_INFOS, min_size=1, max_size=8), st.sampled_from(("wire", "json", "few")))
def test_vectorized_properties_equal_those_read_one_by_one(found: list[Properties], among: str) -> None:
    if among == "wire":
        found = [*found, *(Properties.from_amqp(wire(n, own=True)) for n in range(70))]
    elif among == "json":
        found = [*found, *(Properties({"n": n, "who": f"é{n}"}, "joe") for n in range(70))]
    data = pa.array([pack_properties(properties) for properties in found], pa.binary())

    columns = property_columns(data, lambda _: True)

    for place, properties in enumerate(found):
        expected = read_alone(properties)
        if expected["attributes"]:
            expected["attributes"] = [
                (name, {"type": kind, "string": text, "binary": raw})
                for name, (kind, text, raw) in expected["attributes"]
            ]
        assert {name: column[place].as_py() for name, column in columns.items()} == expected
    for name, column in columns.items():
        alone = property_columns(data, name.__eq__).get(name)
        assert column.null_count == len(found) if alone is None else alone.equals(column), name
        column.validate(full=True)


def read_alone(properties: Properties) -> dict[str, Any]:
    try:
        return property_values(unpack_properties(pack_properties(properties)))._asdict()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return PropertyValues()._asdict()
