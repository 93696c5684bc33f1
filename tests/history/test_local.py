"""Journal and archive as one history: every row exactly once, whatever moves meanwhile."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from openq.errors import HistoryUnavailable, InvalidSetting
from openq.history.archive import Archive
from openq.history.local import LocalHistory, ScanPiece, Snapshot
from openq.history.schema import TABLES, arrow_schema
from openq.history.selection import Selection
from openq.history.worker import check_piece
from openq.journal.format import make_location, segment_of
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from tests.history.archives import archive_sealed, compact
from tests.history.test_archive import SECOND, manifest, write
from tests.history.test_archive import rows as archive_rows

SEGMENT = 1 << 16


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    opened = LocalBroker(tmp_path / "data", segment_bytes=SEGMENT)
    opened.declare("dead", QueueSettings())
    opened.declare("a", QueueSettings(max_receives=2, dead_letter="dead"))
    opened.declare("b", QueueSettings())
    yield opened
    opened.close()


@pytest.fixture
def history(broker: LocalBroker, tmp_path: Path) -> LocalHistory:
    return LocalHistory(tmp_path / "data")


def fill(broker: LocalBroker, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        body = b"%08d" % number * (1 + number % 40)
        own = f"own-{number}" if number % 7 == 0 else None
        broker.publish("a" if number % 3 else "b", Draft(body, id=own))
        if number % 5 == 0:
            receipts = [(delivery.entry.seq, delivery.number) for delivery in broker.receive("a", 2)]
            if number % 2:
                broker.ack("a", receipts)
            else:
                broker.nack("a", receipts, 0, f"ValueError: {number}")
    broker.flush()


def drop_archived(broker: LocalBroker, history: LocalHistory) -> None:
    manifest = history.archive.latest()
    assert manifest is not None
    assert broker.journal is not None
    broker.journal.drop_before(segment_of(manifest.through))


def scan(history: Any, snapshot: Snapshot | None = None, **wanted: Any) -> list[dict[str, Any]]:
    """All rows of a selection, in the order of the journal."""
    selection = Selection(**wanted)
    taken = snapshot or history.snapshot(selection, max_bytes=20_000)
    batches = [batch for piece in taken.pieces for batch in history.read(piece, selection)]
    schema = arrow_schema(selection.table, selection.names)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
    keys = [key for key in ("position", "item", "seq") if key in schema.names]
    return sorted(rows, key=lambda row: [row[key] or 0 for key in keys])


@pytest.mark.parametrize("table", TABLES)
def test_the_history_is_the_same_before_and_after_archiving(
    table: str, broker: LocalBroker, history: LocalHistory
) -> None:
    fill(broker, 1200)
    before = scan(history, table=table)
    selections: list[dict[str, Any]] = [
        {"queues": ("b",)},
        {"queues": ("?",), "first_seq": 100, "last_seq": 500},
        {"since_us": 0, "until_us": 1},
        {"ids": ("own-14", before[5]["message_id"])},
        {"columns": ("message_id", "position", "seq")},
        {"first_position": before[99]["position"], "end_position": before[700]["position"]},
    ]
    parts = [scan(history, table=table, **wanted) for wanted in selections]

    archive_sealed(history, most=3)
    assert scan(history, table=table) == before
    archive_sealed(history)
    drop_archived(broker, history)
    fresh = LocalHistory(history.data_path)

    assert scan(fresh, table=table) == before
    assert [scan(fresh, table=table, **wanted) for wanted in selections] == parts
    assert len(before) > 1000
    kinds = {piece.kind for piece in fresh.snapshot(Selection(table=table)).pieces}
    assert kinds == {"file", "segment"}
    compact(history.archive)
    assert scan(fresh, table=table) == before
    assert fresh.snapshot(Selection()).gap is None


def test_pieces_are_of_the_size_asked_for_and_do_not_overlap(
    broker: LocalBroker, history: LocalHistory
) -> None:
    fill(broker, 1000)
    archive_sealed(history, most=2)

    snapshot = history.snapshot(Selection(), max_bytes=10_000)

    segments = [piece for piece in snapshot.pieces if piece.kind == "segment"]
    assert len(segments) > 10
    assert all(0 < piece.bytes <= 10_000 for piece in segments)
    ends = [(piece.start, piece.stop) for piece in segments]
    assert all(left[1] <= right[0] for left, right in pairwise(ends))
    assert len(history.snapshot(Selection(), max_bytes=1 << 30).pieces) < len(snapshot.pieces)
    assert abs(sum(piece.rows for piece in snapshot.pieces) - len(scan(history, table="events"))) < 2000
    with pytest.raises(InvalidSetting, match="max_bytes"):
        history.snapshot(Selection(), max_bytes=0)


def test_a_snapshot_does_not_change(broker: LocalBroker, history: LocalHistory) -> None:
    fill(broker, 700)
    snapshot = history.snapshot(Selection(), max_bytes=20_000)
    before = scan(history, snapshot)
    moved = pickle.loads(pickle.dumps((history, Snapshot.from_json(snapshot.to_json()))))

    fill(broker, 700, 700)
    archive_sealed(history)
    drop_archived(broker, history)

    # Its segments are gone by now: the same rows come from the archive.
    assert scan(history, snapshot) == before
    assert scan(*moved) == before
    assert len(scan(history)) == 1400
    assert max(row["position"] for row in before) < snapshot.end_position <= history.end_position()


def test_dropped_rows_are_reported_as_a_gap(broker: LocalBroker, history: LocalHistory) -> None:
    fill(broker, 1500)
    snapshot = history.snapshot(Selection(), max_bytes=1 << 30)
    assert broker.journal is not None

    broker.journal.drop_before(4)

    with pytest.raises(
        HistoryUnavailable, match=r"\(segment 1\) are neither in the journal nor in the archive"
    ):
        list(history.read(snapshot.pieces[0], Selection()))
    later = history.snapshot(Selection())
    assert (later.gap, segment_of(later.oldest_position)) == (None, 4)
    assert history.snapshot(Selection(first_position=0)).gap == (0, make_location(4, 0))
    assert history.snapshot(Selection(first_position=0, end_position=9)).gap == (0, 9)
    assert history.snapshot(Selection(first_position=make_location(4, 0))).gap is None


def test_a_hole_between_archive_and_journal_is_a_gap(broker: LocalBroker, history: LocalHistory) -> None:
    fill(broker, 1500)
    archive_sealed(history, most=2)
    assert broker.journal is not None

    broker.journal.drop_before(5)

    snapshot = history.snapshot(Selection())
    assert snapshot.gap == (make_location(3, 0), make_location(5, 0))
    assert snapshot.oldest_position == make_location(1, 0)
    assert history.snapshot(Selection(first_position=make_location(5, 0))).gap is None
    assert history.snapshot(Selection(end_position=make_location(3, 0))).gap is None
    assert history.snapshot(Selection(first_position=make_location(4, 7))).gap == (
        make_location(4, 7),
        make_location(5, 0),
    )


def test_an_older_version_is_read_unchanged(broker: LocalBroker, history: LocalHistory) -> None:
    fill(broker, 900)
    archive_sealed(history, most=1)
    first = scan(history, history.snapshot(Selection(), as_of=1))
    archive_sealed(history)
    compact(history.archive)

    snapshot = history.snapshot(Selection(), as_of=1)

    assert scan(history, snapshot) == first
    assert (snapshot.archive_version, snapshot.end_position) == (1, make_location(2, 0))
    assert 0 < len(first) < 900
    with pytest.raises(HistoryUnavailable, match="no version 9"):
        history.snapshot(Selection(), as_of=9)


def test_an_archive_alone_is_a_history(broker: LocalBroker, history: LocalHistory, tmp_path: Path) -> None:
    fill(broker, 900)
    archive_sealed(history)
    rows = scan(history, history.snapshot(Selection(), as_of=1))
    shutil.move(history.archive_path, tmp_path / "elsewhere")

    alone = LocalHistory(None, tmp_path / "elsewhere")

    assert scan(alone) == rows
    manifest = Archive(tmp_path / "elsewhere").latest()
    assert manifest is not None
    assert alone.end_position() == manifest.through
    assert scan(history) != []  # without an archive, the journal alone
    with pytest.raises(InvalidSetting, match="a data directory or an archive"):
        LocalHistory(None)


def test_an_archive_of_another_journal_is_refused(
    broker: LocalBroker, history: LocalHistory, tmp_path: Path
) -> None:
    fill(broker, 900)
    archive_sealed(history)
    snapshot = history.snapshot(Selection())
    other = LocalBroker(tmp_path / "other", segment_bytes=SEGMENT)
    other.declare("a", QueueSettings())
    other.declare("b", QueueSettings())
    try:
        with pytest.raises(InvalidSetting, match="another journal"):
            LocalHistory(tmp_path / "other", history.archive_path).snapshot(Selection())
        [*_, last] = snapshot.pieces
        with pytest.raises(InvalidSetting, match="another journal"):
            list(
                LocalHistory(tmp_path / "other").read(
                    replace(last, start=1 << 32, stop=1 << 32 | 99), Selection()
                )
            )
    finally:
        other.close()


def test_a_missing_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnavailable, match="holds no journal"):
        LocalHistory(tmp_path).snapshot(Selection())


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"kind": "segment"},
        {"kind": "row", "rows": 1, "bytes": 1, "journal": "x"},
        {"kind": "segment", "rows": 1, "bytes": 1, "journal": "x", "start": -1},
        {"kind": "segment", "rows": 1, "bytes": 1, "journal": "x", "start": 1 << 63},
        {"kind": "segment", "rows": True, "bytes": 1, "journal": "x"},
        {"kind": "segment", "rows": 1, "bytes": 1, "journal": 5},
        {"kind": "segment", "rows": 1, "bytes": 1, "journal": "x", "start": 9, "stop": 8},
        {"kind": "segment", "rows": 1, "bytes": 1, "journal": "x", "start": 1 << 32, "stop": 5 << 32},
        {"kind": "segment", "rows": 1, "bytes": 1, "journal": "x", "owner": "me"},
        {"kind": "file", "rows": 1, "bytes": 1, "journal": "x", "path": "../../etc/passwd", "end_group": 1},
        {"kind": "file", "rows": 1, "bytes": 1, "journal": "x", "path": "messages/a.parquet"},
    ],
)
def test_an_invalid_piece_is_refused(value: object) -> None:
    with pytest.raises(InvalidSetting, match=r"piece|archive"):
        ScanPiece.from_json(value)


@pytest.mark.parametrize("value", [None, {}, {"pieces": 3}, "x"])
def test_an_invalid_snapshot_is_refused(value: object) -> None:
    with pytest.raises(InvalidSetting, match="not a snapshot"):
        Snapshot.from_json(value)


def test_a_scan_that_began_before_the_first_archiving_sees_what_was_dropped_after_it(
    broker: LocalBroker, history: LocalHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 900)
    expected = scan(history)
    archiver = LocalHistory(tmp_path / "data")
    latest = history.archive.latest

    def archived_after_the_first_look() -> Any:
        found = latest()
        if found is None:
            archive_sealed(archiver)
            drop_archived(broker, archiver)
        return found

    monkeypatch.setattr(history.archive, "latest", archived_after_the_first_look)

    snapshot = history.snapshot(Selection())

    assert snapshot.archive_version == 1
    assert scan(history, snapshot) == expected


def test_every_scan_sees_every_message_once_while_segments_move_to_the_archive(
    broker: LocalBroker, tmp_path: Path
) -> None:
    """A writer, an archiver that drops what it archived and compacts now and then, and three readers."""
    data = tmp_path / "data"
    broker.publish_bodies("b", [b"first"], 0)
    broker.flush()
    archive_rounds, min_rounds = 0, 5
    done = threading.Event()
    failures: list[str] = []
    scans = [0, 0, 0]
    written = [1]

    def guard(work: Any) -> Any:
        def run(*arguments: Any) -> None:
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(f"{work.__name__}: {type(error).__name__}: {error}")
                done.set()

        return run

    def write() -> None:
        while not done.is_set():
            # Not far ahead of the archiver: the scans would get longer and longer on a busy machine.
            if written[-1] > 1000 * (archive_rounds + 2):
                done.wait(0.001)
                continue
            seqs = broker.publish_bodies("b", [b"x" * 50] * 20, 0)
            assert seqs is not None
            broker.flush()
            written.append(seqs[-1])

    def archive() -> None:
        nonlocal archive_rounds
        mine = LocalHistory(data)
        while not done.is_set():
            before = mine.archive.latest()
            made = archive_sealed(mine, most=2)
            if made is not None and (before is None or made.version > before.version):
                drop_archived(broker, mine)
                archive_rounds += 1
                if archive_rounds % 3 == 0:
                    compact(mine.archive)

    def read(number: int) -> None:
        mine = LocalHistory(data)
        selection = Selection(columns=("seq",))
        while not done.is_set():
            at_least = written[-1]
            snapshot = mine.snapshot(selection, max_bytes=30_000)
            found = [
                seq
                for batch in mine.read_many(snapshot.pieces, selection)
                for seq in batch.column(0).to_pylist()
            ]
            assert snapshot.gap is None
            assert len(found) == len(set(found)), "a message was seen twice"
            assert sorted(found) == list(range(min(found), min(found) + len(found))), "a message is missing"
            assert min(found) == 1
            assert max(found) >= at_least
            scans[number] += 1
            if archive_rounds >= min_rounds and min(scans) >= 2:
                done.set()

    threads = [
        threading.Thread(target=guard(work), args=arguments)
        for work, arguments in ((write, ()), (archive, ()), (read, (0,)), (read, (1,)), (read, (2,)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done.set()

    assert failures == []
    assert archive_rounds >= min_rounds


def test_the_number_of_pieces_is_limited(
    broker: LocalBroker, history: LocalHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 400)
    monkeypatch.setattr("openq.history.local.MAX_PIECES", 50)

    snapshot = history.snapshot(Selection(), max_bytes=1)

    assert 10 < len(snapshot.pieces) <= 55
    assert len(scan(history, snapshot)) == len(scan(history))


@pytest.mark.parametrize("end_group", [10**9, 2**62])
def test_row_groups_beyond_the_file_are_refused_cheaply(
    end_group: int, broker: LocalBroker, history: LocalHistory
) -> None:
    fill(broker, 900)
    archive_sealed(history)
    piece = next(each for each in history.snapshot(Selection()).pieces if each.kind == "file")
    made_up = replace(piece, end_group=end_group)

    with pytest.raises(InvalidSetting, match="row groups"):
        list(history.read(made_up, Selection()))
    with pytest.raises(InvalidSetting, match="row groups"):
        check_piece(made_up, history, history.end_position())
    assert check_piece(piece, history, history.end_position()) == piece


def test_a_piece_over_the_size_limit_is_refused(
    broker: LocalBroker, history: LocalHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 900)
    archive_sealed(history, most=1)
    pieces = history.snapshot(Selection()).pieces
    monkeypatch.setattr("openq.history.local.PIECE_BYTES", 1000)
    segment = next(each for each in pieces if each.kind == "segment")
    file = next(each for each in pieces if each.kind == "file")

    with pytest.raises(InvalidSetting, match="at most 1000 bytes"):
        check_piece(segment, history, history.end_position())
    short = replace(segment, stop=segment.start + 1000)
    assert check_piece(short, history, history.end_position()) == short
    assert file.end_group == 1  # it cannot be cut
    assert check_piece(file, history, history.end_position()) == file


def test_row_groups_that_cannot_match_are_not_planned(tmp_path: Path) -> None:
    kept = Archive(tmp_path / "archive")
    parts = [archive_rows(1, 300, "a"), archive_rows(301, 300, "b")]
    file = write(kept, "one", pa.concat_tables(parts))
    kept.commit(manifest(files=[file], through=1 << 33))
    history = LocalHistory(None, kept.path)

    whole = history.snapshot(Selection()).pieces
    some = history.snapshot(Selection(queues=("b",), since_us=401 * SECOND)).pieces
    small = history.snapshot(Selection(queues=("b",)), max_bytes=1).pieces

    assert [(each.first_group, each.end_group) for each in whole] == [(0, 6)]
    assert [(each.first_group, each.end_group) for each in some] == [(4, 6)]
    assert [(each.first_group, each.end_group) for each in small] == [(3, 4), (4, 5), (5, 6)]
    read = [seq for batch in history.read_many(small, Selection(columns=("seq",))) for seq in batch["seq"]]
    assert [each.as_py() for each in read] == list(range(301, 601))


def test_another_journal_at_the_same_path_is_detected(tmp_path: Path) -> None:
    def begin() -> tuple[int, ...]:
        LocalBroker(tmp_path / "data").close()
        journal = LocalHistory(tmp_path / "data").journal
        assert journal is not None
        assert journal.identity() == journal.identity()
        return journal.identity()

    before = begin()
    shutil.rmtree(tmp_path / "data")

    assert begin() != before
