"""The archive job: the history stays the same through archiving, compacting, killing; erasing erases."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openq import OpenQ
from openq.cli.main import main
from openq.errors import HistoryUnavailable, InvalidSetting, OpenQError
from openq.history.archive import Archive, ArchiveBusy, ArchiveDamaged
from openq.history.journal import JournalFiles
from openq.history.local import LocalHistory
from openq.history.schema import TABLES, VERSION_KEY, arrow_schema
from openq.history.selection import Selection
from openq.local.broker import LocalBroker
from openq.pipeline.archive import archive, compact, erase, vacuum, verify, watch
from openq.pipeline.archive_files import row_checksums, sorted_by_day, write_rows
from openq.pipeline.archive_tasks import TaskFailed, run_tasks
from tests.crash.seeds import chosen_seed, repeat_with
from tests.pipeline.conftest import fill_path
from tests.serving import free_port, served
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT = 4 << 10


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A journal of messages of every kind in many small segments."""
    path = tmp_path / "data"
    fill_path(path, 120, SEGMENT)
    return path


def rows_of(path: Path, table: str, as_of: int | None = None) -> pa.Table:
    """The whole history of a table, in the order of the journal."""
    history = LocalHistory(path)
    selection = Selection(table)
    snapshot = history.snapshot(selection, as_of)
    batches = [batch for piece in snapshot.pieces for batch in history.read(piece, selection)]
    order = [("position", "ascending"), ("item" if table == "events" else "seq", "ascending")]
    return pa.Table.from_batches(batches, arrow_schema(table)).sort_by(order)


def history_of(path: Path) -> dict[str, pa.Table]:
    return {table: rows_of(path, table) for table in TABLES}


def same(before: dict[str, pa.Table], after: dict[str, pa.Table]) -> None:
    for table in TABLES:
        assert after[table].num_rows == before[table].num_rows
        for name in before[table].schema.names:
            assert after[table][name].to_pylist() == before[table][name].to_pylist(), (table, name)


def drop_archived(path: Path) -> int:
    """What housekeeping does with segments that nobody holds."""
    manifest = Archive(path / "archive").latest()
    assert manifest is not None
    refs = [ref for ref in JournalFiles(path).segments() if ref.sealed]
    gone = [ref for ref in refs if ref.end_position <= manifest.through]
    for ref in gone:
        os.unlink(ref.path)
        Path(ref.path).with_suffix(".idx").unlink(missing_ok=True)  # the last sealed one may have none yet
    return len(gone)


def files_on_disk(path: Path) -> set[str]:
    root = path / "archive"
    return {
        str(file.relative_to(root))
        for table in TABLES
        for file in (root / table).rglob("*")
        if file.is_file()
    }


def named(path: Path) -> set[str]:
    archived = Archive(path / "archive")
    return {file.path for version in archived.versions() for file in archived.read(version).files}


# -- archiving -----------------------------------------------------------------------------------


def test_every_row_and_column_is_the_same_after_archiving(data: Path) -> None:
    before = history_of(data)

    result = archive(None, path=str(data), task_bytes=3 * SEGMENT)

    sealed = [ref for ref in JournalFiles(data).segments() if ref.sealed]
    assert len(sealed) > 5
    assert result.segments == len(sealed)
    assert result.through == sealed[-1].end_position
    assert result.rows["messages"] > 300
    same(before, history_of(data))
    # Nor does it matter when the journal has dropped them: ids and delivery counts are carried on.
    assert drop_archived(data) == len(sealed)
    same(before, history_of(data))
    assert verify(None, path=str(data)).findings == []


def test_a_second_run_does_nothing(data: Path) -> None:
    archive(None, path=str(data))
    files = files_on_disk(data)

    again = archive(None, path=str(data))

    assert (again.version, again.segments, again.files) == (None, 0, 0)
    assert files_on_disk(data) == files
    assert Archive(data / "archive").versions() == [1]


def test_the_open_segment_can_be_archived_in_parts(data: Path) -> None:
    archive(None, path=str(data), include_open=True)
    broker = LocalBroker(data, segment_bytes=SEGMENT)
    try:
        with OpenQ("orders", broker=broker, codec="raw") as orders:
            orders.publish_many([b"later %d" % n for n in range(40)])
            orders.ack(orders.receive())
    finally:
        broker.close()
    before = history_of(data)

    archive(None, path=str(data), include_open=True)
    archive(None, path=str(data), include_open=True)

    same(before, history_of(data))
    assert sum(piece.kind == "segment" for piece in LocalHistory(data).snapshot(Selection()).pieces) == 0
    assert verify(None, path=str(data)).findings == []


def test_files_are_sorted_by_day_compressed_and_of_a_known_version(data: Path) -> None:
    archive(None, path=str(data))

    manifest = Archive(data / "archive").latest()
    assert manifest is not None
    for file in manifest.files:
        opened = pq.ParquetFile(data / "archive" / file.path)
        assert opened.metadata.metadata[VERSION_KEY] == b"1"
        assert opened.metadata.row_group(0).column(0).compression == "ZSTD"
        rows = opened.read()
        pairs = list(zip(rows["queue"].to_pylist(), rows["seq"].to_pylist(), strict=True))
        assert pairs == sorted(pairs)
        days = {f"{moment:%Y-%m-%d}" for moment in rows["ts"].to_pylist()}
        assert days == {file.path.split("/")[1].removeprefix("dt=")}


def test_rows_of_two_days_go_to_two_files(tmp_path: Path) -> None:
    day_us = 86_400_000_000
    many = 1000
    chooser = random.Random(7)
    given = {
        "position": [(1 << 32) + n for n in range(many)],
        "seq": list(range(1, many + 1)),
        "ts": [n * day_us // (many // 2) for n in range(many)],
        "queue": [chooser.choice(["b", "a", "ü"]) for _ in range(many)],
        "size": [n % 7 for n in range(many)],
        "body": [b"x" * (n % 7) for n in range(many)],
        "body_sha256": [bytes([n % 256]) * 32 for n in range(many)],
    }
    schema = arrow_schema("messages")
    columns = [pa.array(given.get(each.name, [None] * many), each.type) for each in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)

    written = write_rows(str(tmp_path), "messages", [batch.slice(0, 300), batch.slice(300)])

    assert [each.file.rows for each in written] == [500, 500]
    assert [each.file.path.split("/")[1] for each in written] == ["dt=1970-01-01", "dt=1970-01-02"]
    for each in written:
        rows = pq.read_table(tmp_path / each.file.path)
        keys = list(zip(rows["queue"].to_pylist(), rows["seq"].to_pylist(), strict=True))
        assert keys == sorted(keys)
    [(_, first), _] = sorted_by_day(
        "messages", pa.Table.from_batches([batch.take(list(range(many - 1, -1, -1)))])
    )
    assert first.equals(pq.read_table(tmp_path / written[0].file.path))
    total = written[0].sums[1] + written[1].sums[1]
    assert total == row_checksums("messages", batch)[1]


def test_a_dry_run_changes_nothing(data: Path) -> None:
    reported = archive(None, path=str(data), dry_run=True)

    assert reported.segments > 5
    assert reported.journal_bytes > 5 * SEGMENT // 2
    assert not (data / "archive").exists()


def test_one_job_at_a_time(data: Path) -> None:
    with Archive(data / "archive").locked(), pytest.raises(ArchiveBusy, match=str(os.getpid())):
        archive(None, path=str(data))


def test_rows_dropped_before_archiving_are_reported(data: Path) -> None:
    archive(None, path=str(data), through=3 << 32)
    for ref in JournalFiles(data).segments()[:5]:
        os.unlink(ref.path)
        os.unlink(ref.path.replace(".seg", ".idx"))

    with pytest.raises(HistoryUnavailable, match="segments 3 to 5 were dropped"):
        archive(None, path=str(data))
    archive(None, path=str(data), accept_gap=True)

    assert [each.what for each in verify(None, path=str(data)).findings] == ["no rows of segments 3 to 5"]


def test_another_journal_is_refused(data: Path, tmp_path: Path) -> None:
    fill_path(tmp_path / "other", 20, SEGMENT)
    archive(None, path=str(data))

    with pytest.raises(InvalidSetting, match="another journal"):
        archive(None, path=str(tmp_path / "other"), archive=str(data / "archive"))
    findings = verify(None, path=str(tmp_path / "other"), archive=str(data / "archive")).findings
    assert [each.where for each in findings] == ["journal"]


# -- killed --------------------------------------------------------------------------------------

JOB = """
import sys
from openq.pipeline.archive import archive, compact
archive(None, path=sys.argv[1], task_bytes=4096)
compact(None, path=sys.argv[1])
"""


def test_a_killed_run_is_finished_by_the_next(data: Path) -> None:
    before = history_of(data)
    seed = chosen_seed()
    print(repeat_with(seed))
    chooser = random.Random(seed)
    for _ in range(3):
        job = subprocess.Popen([sys.executable, "-c", JOB, str(data)], stderr=subprocess.PIPE)
        enough = len(files_on_disk(data)) + chooser.randrange(1, 12)
        until(lambda job=job, enough=enough: job.poll() is not None or len(files_on_disk(data)) >= enough)
        job.send_signal(signal.SIGKILL)
        job.communicate()
        same(before, history_of(data))

    archive(None, path=str(data))

    same(before, history_of(data))
    assert files_on_disk(data) == named(data)
    assert verify(None, path=str(data)).findings == []


# -- at the same time ----------------------------------------------------------------------------


def test_every_scan_sees_each_message_once_while_others_archive_compact_and_write(tmp_path: Path) -> None:
    path = tmp_path / "data"
    broker = LocalBroker(path, segment_bytes=SEGMENT)
    queue = OpenQ("orders", broker=broker, codec="raw")
    queue.publish_many([b"%064d" % n for n in range(200)])
    done = threading.Event()
    troubles: list[str] = []
    scans = [0, 0]

    def scan(which: int) -> None:
        history = LocalHistory(path)
        selection = Selection(columns=("seq", "queue"))
        try:
            while not done.is_set():
                snapshot = history.snapshot(selection)
                found: list[int] = []
                for piece in snapshot.pieces:
                    for batch in history.read(piece, selection):
                        found += batch["seq"].to_pylist()
                if sorted(found) != list(range(1, len(found) + 1)) or len(found) < 200:
                    troubles.append(f"{len(found)} rows, {len(set(found))} different")
                scans[which] += 1
        except OpenQError as error:
            troubles.append(str(error))

    readers = [threading.Thread(target=scan, args=(which,)) for which in range(2)]
    for reader in readers:
        reader.start()
    try:
        for turn in range(12):
            queue.publish_many([b"%064d" % n for n in range(100)])
            archive(None, path=str(path), task_bytes=2 * SEGMENT, include_open=turn % 3 == 2)
            manifest = Archive(path / "archive").latest()
            if manifest is not None:
                broker.journal.drop_before(manifest.through >> 32)
            if turn % 4 == 3:
                compact(None, path=str(path), target_bytes=1 << 20)
        before = list(scans)
        until(lambda: troubles or all(now > then + 1 for now, then in zip(scans, before, strict=True)))
    finally:
        done.set()
        for reader in readers:
            reader.join()
        queue.close()
        broker.close()

    assert troubles == []
    assert rows_of(path, "messages").num_rows == 1400


# -- compacting ----------------------------------------------------------------------------------


def test_compacting_leaves_fewer_files_and_the_same_rows(data: Path) -> None:
    before = history_of(data)
    archive(None, path=str(data), task_bytes=SEGMENT)
    drop_archived(data)
    many = len(Archive(data / "archive").read(1).files)
    newest = Archive(data / "archive").versions()[-1]

    reported = compact(None, path=str(data), dry_run=True)
    done = compact(None, path=str(data))

    assert (reported.version, reported.before, reported.after) == (None, done.before, done.after)
    assert done.version == newest + 1
    manifest = Archive(data / "archive").latest()
    assert manifest is not None
    assert len(manifest.files) < many <= done.before
    same(before, history_of(data))
    assert verify(None, path=str(data)).ok
    # Readers of an older version continue until it is removed.
    assert rows_of(data, "messages", newest).num_rows == manifest.rows("messages")
    vacuum(path=str(data), keep_s=0)
    with pytest.raises(HistoryUnavailable):
        rows_of(data, "messages", newest)
    same(before, history_of(data))
    assert files_on_disk(data) == named(data)
    assert compact(None, path=str(data)).version is None


# -- erasing -------------------------------------------------------------------------------------


def everything_in(path: Path) -> Iterator[tuple[str, pa.Table]]:
    for name in sorted(files_on_disk(path)):
        yield name, pq.ParquetFile(path / "archive" / name).read()


def test_erased_messages_are_in_no_file(data: Path) -> None:
    archive(None, path=str(data), task_bytes=SEGMENT)
    older = Archive(data / "archive").versions()
    messages = rows_of(data, "messages", older[-1])
    whole = messages.num_rows
    victim = messages.filter(pa.compute.equal(messages["queue"], "orders")).slice(3, 1).to_pylist()[0]
    events = rows_of(data, "events", older[-1])

    reported = erase(None, path=str(data), message_ids=[victim["message_id"]], dry_run=True)
    done = erase(None, path=str(data), message_ids=[victim["message_id"]], by="somebody")

    assert (reported.version, reported.messages) == (None, 1)
    assert (done.messages, done.journal, done.waiting, done.versions) == (1, 1, 0, older)
    manifest = Archive(data / "archive").latest()
    assert manifest is not None
    for file in manifest.files:
        if file.table == "messages":
            rows = pq.ParquetFile(data / "archive" / file.path).read()
            assert victim["body"] not in rows["body"].to_pylist()
            assert victim["message_id"] not in rows["message_id"].to_pylist()
    [entry] = manifest.erased
    assert (entry["by"], entry["messages"], entry["ids"]) == ("somebody", 1, 1)
    assert victim["message_id"] not in json.dumps(manifest.erased)
    # The events stay, as many as before; the journal is known to have one row more.
    assert rows_of(data, "events", done.version).num_rows == events.num_rows
    assert verify(None, path=str(data)).findings == []
    # Older versions still have it, until they are removed.
    assert any(
        victim["body"] in rows["body"].to_pylist()
        for name, rows in everything_in(data)
        if "body" in rows.schema.names
    )
    vacuum(path=str(data), keep_s=0)
    for name, rows in everything_in(data):
        if name.startswith("messages"):
            assert victim["body"] not in rows["body"].to_pylist()
    assert manifest.rows("messages") == whole - 1
    assert verify(None, path=str(data)).findings == []


def test_erasing_a_queue_removes_the_texts_of_its_events(data: Path) -> None:
    archive(None, path=str(data), include_open=True)
    before = rows_of(data, "events", 1)
    assert any(text and "no answer" in text for text in before["error_text"].to_pylist())

    done = erase(None, path=str(data), queues=["ord*"])

    assert done.messages == 120
    drop_archived(data)
    history = history_of(data)
    assert "orders" not in history["messages"]["queue"].to_pylist()
    assert history["events"].num_rows == before.num_rows
    assert (
        history["events"]
        .filter(pa.compute.equal(history["events"]["queue"], "orders"))["error_text"]
        .null_count
    )
    assert not any(text and "no answer" in text for text in history["events"]["error_text"].to_pylist())
    assert "ValueError" in history["events"]["error_type"].to_pylist()
    assert [group for group in history["events"]["group"].to_pylist() if group]  # those of other queues


def test_nothing_is_erased_by_accident(data: Path) -> None:
    archive(None, path=str(data))

    with pytest.raises(InvalidSetting, match="what is to be erased"):
        erase(None, path=str(data), before_us=1 << 60)
    with pytest.raises(InvalidSetting, match="evaluated by Spark"):
        erase(None, path=str(data), where="true")
    assert erase(None, path=str(data), message_ids=["nobody"]).version is None
    assert erase(None, path=str(data), queues=["orders"], before_us=1).messages == 0
    assert Archive(data / "archive").versions() == [1]


# -- verifying -----------------------------------------------------------------------------------


def test_verify_finds_every_kind_of_damage(data: Path) -> None:
    archive(None, path=str(data), task_bytes=3 * SEGMENT)
    place = Archive(data / "archive")
    manifest = place.latest()
    assert manifest is not None
    whole = verify(None, path=str(data))
    assert (whole.findings, whole.compared) == ([], len(manifest.segments))
    first, second, *_ = [file for file in manifest.files if file.table == "messages"]

    # A version that has lost a file, and one that has it twice.
    place.commit(manifest.next(files=[file for file in manifest.files if file is not first]))
    found = verify(None, path=str(data)).findings
    assert found
    assert all(
        "messages has 0 rows, the manifest says" in each.what for each in found if "manifest" in each.what
    )
    place.commit(manifest.next().next(files=[*manifest.files, first]))
    assert any("named twice" in each.what for each in verify(None, path=str(data)).findings)

    # A flipped byte, and a file that is gone.
    path = data / "archive" / first.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.unlink(data / "archive" / second.path)
    found = verify(None, path=str(data), as_of=manifest.version).findings
    assert {(each.where, each.what) for each in found} == {
        (first.path, "it does not match its checksum"),
        (second.path, "the file is missing"),
    }
    # Damage is not carried on under a new checksum.
    with pytest.raises(ArchiveDamaged):
        compact(None, path=str(data))


# -- watching ------------------------------------------------------------------------------------


def test_watch_archives_full_segments(data: Path) -> None:
    stop = threading.Event()
    runs: list[Any] = []

    def reported(result: Any) -> None:
        runs.append(result)
        if len(runs) == 1:
            broker = LocalBroker(data, segment_bytes=SEGMENT)
            with OpenQ("orders", broker=broker, codec="raw") as orders:
                orders.publish_many([b"x" * 100] * 300)
            broker.close()
        else:
            stop.set()

    watch(None, path=str(data), stop=stop, on_result=reported, every_s=0.01)

    assert [result.version for result in runs] == [1, 2]
    manifest = Archive(data / "archive").latest()
    assert manifest is not None
    assert manifest.through == JournalFiles(data).segments()[-1].number << 32


def test_ctrl_c_ends_the_command_that_watches(data: Path) -> None:
    words = ["pipeline", "archive", "watch", "--data", str(data), "--master", "none", "--json"]
    job = subprocess.Popen(
        [sys.executable, "-m", "openq", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    first = json.loads(job.stdout.readline())
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=60)

    assert (job.returncode, first["version"]) == (0, 1)
    assert said.splitlines()[-1] == "openq: ended"


# -- beside a server -----------------------------------------------------------------------------


def test_the_server_frees_only_archived_segments(data: Path) -> None:
    with served(data) as server:

        def cursors() -> dict[str, int]:
            reported = json.loads(server.get("/api/v1/pipeline/cursors")[1])["cursors"]
            return {each["name"]: each["position"] for each in reported}

        assert cursors() == {}
        result = archive(None, path=str(data), through=3 << 32)
        assert (result.cursor, cursors()) == ("", {"archive": 3 << 32})
        with OpenQ("orders", url=server.url, codec="raw") as orders:
            orders.publish(b"one more")
        result = archive(None, path=str(data), url=server.url, include_open=True)
        assert cursors() == {"archive": result.through}

    # Without its server there is nobody to tell; one that was named must be there.
    assert archive(None, path=str(data)).cursor == ""
    with pytest.raises(OpenQError, match="nothing listens"):
        archive(None, path=str(data), url=f"http://127.0.0.1:{free_port()}")


# -- the command ---------------------------------------------------------------------------------


def test_the_command_archives_verifies_erases_and_cleans_up(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> tuple[int, str]:
        code = main(["pipeline", "archive", *words, "--data", str(data)])
        return code, capsys.readouterr().out

    here = ("--master", "none")
    assert "would archive" in call("run", "--dry-run")[1]
    code, text = call("run", *here, "--json")
    assert (code, json.loads(text)["version"]) == (0, 1)
    assert call("run", *here) == (0, "nothing to archive: every full segment is in the archive\n")
    assert "ok" in call("verify", *here)[1]
    assert call("compact", *here)[0] == 0
    [victim] = [row["message_id"] for row in rows_of(data, "messages").slice(7, 1).to_pylist()]
    assert main(["pipeline", "archive", "erase", *here, "--data", str(data), "--message-id", victim]) == 2
    code, text = call("erase", *here, "--yes", "--message-id", victim)
    assert (code, "1 message erased" in text, "vacuum --now" in text) == (0, True, True)
    versions = json.loads(call("versions", "--json")[1])
    assert versions[-1]["erased"] == 1
    assert "removed" in call("vacuum", "--now")[1]
    assert [each["version"] for each in json.loads(call("versions", "--json")[1])] == [
        versions[-1]["version"]
    ]
    broken = next((data / "archive").glob("messages/*/*.parquet"))
    broken.write_bytes(broken.read_bytes()[:-1])
    code, text = call("verify", *here)
    assert (code, broken.name in text) == (1, True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run"], "openq-data: no such directory"),
        (["verify", "--data", "nowhere"], "nowhere: no such directory"),
        (["erase", "--archive", "x"], "give --message-id, --queue or --where"),
        (["vacuum", "--archive", "x", "--now", "--older", "1d"], "--now and --older cannot be combined"),
        (["vacuum", "--archive", "nowhere"], "there is no archive"),
        (["verify", "--archive", "nowhere", "--master", "none"], "is not an archive yet"),
    ],
)
def test_invalid_arguments_give_one_line(
    words: list[str], wanted: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENQ_DATA", raising=False)

    assert main(["pipeline", "archive", *words]) != 0

    lines = capsys.readouterr().err.splitlines()
    assert wanted in lines[0]


# -- on Spark ------------------------------------------------------------------------------------


def test_on_spark_the_history_is_the_same_too(spark: SparkSession, tmp_path: Path) -> None:
    from openq.pipeline.history import history

    data = tmp_path / "data"
    fill_path(data, 40, SEGMENT)
    before = history_of(data)
    reported: list[tuple[int, int]] = []

    result = archive(
        spark, path=str(data), task_bytes=4 * SEGMENT, progress=lambda *news: reported.append(news)
    )
    drop_archived(data)

    same(before, history_of(data))
    assert reported[-1] == (result.journal_bytes, result.journal_bytes)
    for table in TABLES:
        for rows in (
            history(spark, path=str(data), table=table),
            spark.read.format("openq").option("path", str(data)).option("table", table).load(),
        ):
            order = [("position", "ascending"), ("item" if table == "events" else "seq", "ascending")]
            found = rows.toArrow().cast(arrow_schema(table)).sort_by(order)
            for name in before[table].schema.names:
                assert found[name].to_pylist() == before[table][name].to_pylist(), (table, name)
    compact(spark, path=str(data))
    done = erase(spark, path=str(data), where="queue = 'events' AND attributes['shop'].string = 'south'")
    assert done.messages == sum(n % 3 == 0 for n in range(40))
    assert rows_of(data, "messages").num_rows == before["messages"].num_rows - done.messages
    with pytest.raises(InvalidSetting, match="cannot be evaluated"):
        erase(spark, path=str(data), where="no_such_column = 1")
    assert verify(spark, path=str(data)).findings == []


def test_an_error_on_an_executor_is_one_sentence(spark: SparkSession) -> None:
    def fail(number: int) -> int:
        if number == 3:
            raise InvalidSetting("three is no number")
        return number * 2

    assert run_tasks(spark, fail, [1, 2, 4]) == [2, 4, 8]
    with pytest.raises(TaskFailed, match=r"^three is no number$") as caught:
        run_tasks(spark, fail, [1, 3])
    assert caught.value.code == "invalid_setting"
