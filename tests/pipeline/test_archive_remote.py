"""The archive job over HTTP: every row once, from a journal and from Redis; killed, gaps, and who may not."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from openq import OpenQ
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.cli.main import main
from openq.errors import HistoryUnavailable, InvalidSetting, OpenQError
from openq.history.archive import Archive, Manifest
from openq.history.journal import JournalFiles
from openq.history.local import LocalHistory, ScanPiece
from openq.history.schema import TABLES, arrow_schema
from openq.history.selection import Selection
from openq.pipeline.archive import archive, compact, erase, vacuum, verify, watch
from openq.pipeline.archive_job import TASK_BYTES, run_archive
from openq.pipeline.archive_server import ServerSource, append_span
from openq.pipeline.remote_history import RemoteHistory
from tests.crash.seeds import chosen_seed, repeat_with
from tests.pipeline.conftest import Filled, fill_path, fill_server
from tests.redis.servers import single
from tests.serving import Served, free_port, served
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def served_on_redis(options: str = "") -> Iterator[Served]:
    with single() as redis:
        server = Served(["--store", redis.url + options, "--profile", "fast"], free_port())
        try:
            yield server.wait()
        finally:
            server.stop()


@pytest.fixture(params=["journal", "redis"], scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One of each for all tests: what is in there already is history like any other."""
    data = tmp_path_factory.mktemp("journal") / "data"
    with served(data) if request.param == "journal" else served_on_redis() as made:
        yield made


def in_order(rows: pa.Table, table: str) -> pa.Table:
    last = "item" if table == "events" else "message_id"
    names = ("position", "queue", "seq", last)
    return rows.sort_by([(name, "ascending") for name in names])


def rows_of(history: LocalHistory | RemoteHistory) -> dict[str, pa.Table]:
    found = {}
    for table in TABLES:
        selection = Selection(table)
        batches = list(history.read_many(history.snapshot(selection).pieces, selection))
        schema = arrow_schema(table)
        found[table] = in_order(pa.Table.from_batches([each.cast(schema) for each in batches], schema), table)
    return found


def archived(place: Path) -> dict[str, pa.Table]:
    return rows_of(LocalHistory(None, place))


def same(before: dict[str, pa.Table], after: dict[str, pa.Table]) -> None:
    for table in TABLES:
        assert after[table].num_rows == before[table].num_rows
        for name in before[table].schema.names:
            assert after[table][name].to_pylist() == before[table][name].to_pylist(), (table, name)


def as_published(filled: Filled, rows: list[dict[str, Any]]) -> None:
    """Each message once, with the body and the queue that it was sent with."""
    reported = {row["message_id"]: row for row in rows}
    assert len(reported) == len(rows)
    assert {id: (sent.queue, sent.body) for id, sent in filled.sent.items()} == {
        id: (reported[id]["queue"], bytes(reported[id]["body"])) for id in filled.sent
    }


def latest(place: Path) -> Manifest:
    found = Archive(place).latest()
    assert found is not None
    return found


def files_on_disk(place: Path) -> set[str]:
    return {str(each.relative_to(place)) for table in TABLES for each in (place / table).rglob("*.parquet*")}


# -- every row once -------------------------------------------------------------------------------


def test_every_row_of_a_server_is_archived_once_however_often_it_runs(server: Served, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    options = {"url": server.url, "archive": str(place)}
    filled = fill_server(server.url, 40)
    before = rows_of(RemoteHistory(server.url))

    would = archive(None, **options, dry_run=True)
    assert (would.version, would.journal_bytes > 0, place.exists()) == (None, True, False)
    first = archive(None, **options)

    assert first.rows == {table: before[table].num_rows for table in TABLES}
    same(before, archived(place))
    as_published(filled, archived(place)["messages"].to_pylist())
    manifest = latest(place)
    assert manifest.origin["server"] == server.url
    assert manifest.origin["complete"]
    assert manifest.segments == []
    [span] = manifest.spans
    assert (span["stop"], span["messages"]["rows"]) == (manifest.through, before["messages"].num_rows)
    assert first.through == manifest.through == would.through

    again = archive(None, **options)
    assert (again.version, again.rows) == (None, {})

    with OpenQ("orders", url=server.url, codec="raw") as orders:
        orders.publish_many([b"later %d" % number for number in range(10)])
    later = archive(None, **options)
    assert (later.version, later.rows) == (2, {"messages": 10, "events": 10})
    same(rows_of(RemoteHistory(server.url)), archived(place))
    assert len(latest(place).spans) == 1
    found = verify(None, archive=str(place))
    assert (found.findings, found.spans, found.segments) == ([], 1, 0)
    # What this archive holds is no reason for a journal to drop anything.
    if manifest.origin["storage"] != "redis":
        assert json.loads(server.get("/api/v1/pipeline/cursors")[1])["cursors"] == []


JOB = """
import sys
from openq.pipeline.archive import archive
archive(None, url=sys.argv[1], archive=sys.argv[2], task_bytes=2048)
"""


def test_a_killed_run_is_finished_by_the_next(server: Served, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    fill_server(server.url, 40)
    before = rows_of(RemoteHistory(server.url))
    seed = chosen_seed()
    print(repeat_with(seed))
    chooser = random.Random(seed)
    for _ in range(2):
        words = [sys.executable, "-c", JOB, server.url, str(place)]
        job = subprocess.Popen(words, stderr=subprocess.PIPE)
        enough = len(files_on_disk(place)) + chooser.randrange(1, 5)
        until(lambda job=job, enough=enough: job.poll() is not None or len(files_on_disk(place)) >= enough)
        job.send_signal(signal.SIGKILL)
        job.communicate()

    archive(None, url=server.url, archive=str(place), task_bytes=16 << 10)

    same(before, archived(place))
    place_now = Archive(place)
    named = {file.path for version in place_now.versions() for file in place_now.read(version).files}
    assert files_on_disk(place) == named
    assert verify(None, archive=str(place)).findings == []


def test_watch_archives_new_rows(server: Served, tmp_path: Path) -> None:
    stop = threading.Event()
    runs: list[Any] = []

    def reported(result: Any) -> None:
        runs.append(result)
        if len(runs) == 1:
            with OpenQ("orders", url=server.url, codec="raw") as orders:
                orders.publish(b"one more")
        else:
            stop.set()

    place = tmp_path / "archive"
    given_up = threading.Timer(60, stop.set)
    given_up.start()
    watch(None, url=server.url, archive=str(place), stop=stop, on_result=reported, every_s=0.01)
    given_up.cancel()

    assert [result.version for result in runs] == [1, 2]
    assert runs[1].rows == {"messages": 1, "events": 1}
    same(rows_of(RemoteHistory(server.url)), archived(place))


# -- what is missing ------------------------------------------------------------------------------


def test_segments_dropped_before_archiving_are_reported(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "archive"
    fill_path(data, 40, segment_bytes=4 << 10)
    with served(data) as server:
        options = {"url": server.url, "archive": str(place)}
        before = rows_of(RemoteHistory(server.url))
        archive(None, **options, through=2 << 32)
        for ref in JournalFiles(data).segments()[:3]:
            Path(ref.path).unlink()

        with pytest.raises(HistoryUnavailable, match=f"positions {2 << 32} to {4 << 32} were dropped"):
            archive(None, **options)
        result = archive(None, **options, accept_gap=True)

    assert result.gaps == latest(place).spans[-1]["gaps"] == [[2 << 32, 4 << 32]]
    assert verify(None, archive=str(place)).findings == []
    kept = [each for each in before["messages"]["position"].to_pylist() if not 2 << 32 <= each < 4 << 32]
    assert archived(place)["messages"]["position"].to_pylist() == kept


def test_deleting_a_queue_meanwhile_loses_only_its_rows(tmp_path: Path) -> None:
    with served_on_redis() as server:

        class Late(RemoteHistory):
            """Comes for the rows when a queue is gone that was there when it looked."""

            def read_many(
                self, pieces: Iterable[ScanPiece], selection: Selection
            ) -> Iterator[pa.RecordBatch]:
                if self.link.call("GET", "queues").json()["queues"][0]["name"] == "doomed":
                    self.link.call("DELETE", "queues/doomed")
                return super().read_many(pieces, selection)

        for name in ("doomed", "other"):
            with OpenQ(name, url=server.url, codec="raw") as queue:
                queue.publish(b"of " + name.encode())

        place = Archive(tmp_path / "archive")
        run_archive(None, place, ServerSource(place, Late(server.url), None, False, TASK_BYTES))

    assert archived(tmp_path / "archive")["messages"]["queue"].to_pylist() == ["other"]
    assert verify(None, archive=str(tmp_path / "archive")).findings == []


def test_rows_dropped_before_archiving_are_reported(tmp_path: Path) -> None:
    place = str(tmp_path / "archive")
    with served_on_redis("?history=100") as server:
        with OpenQ("q", url=server.url, codec="raw") as queue:
            queue.publish(b"first")
            end = archive(None, url=server.url, archive=place).through
            queue.publish(b"second")
            far, since = RemoteHistory(server.url), Selection(first_position=end)
            while far.snapshot(since).gap is None:
                queue.publish_many([b"later"] * 64)
                for message in queue.receive_many(100):
                    queue.ack(message)

        with pytest.raises(HistoryUnavailable, match=rf"positions {end} to \d+ were dropped.*--accept-gap"):
            archive(None, url=server.url, archive=place)
        assert latest(Path(place)).through == end
        result = archive(None, url=server.url, archive=place, accept_gap=True)

        assert [gap[0] for gap in result.gaps] == [end]
        assert latest(Path(place)).spans[-1]["gaps"] == result.gaps
        assert verify(None, archive=place).findings == []
        bodies = archived(Path(place))["messages"]["body"].to_pylist()
        assert bodies[0] == b"first"
        assert b"second" not in bodies


def test_a_token_archives_only_the_queues_it_may_see(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "archive"
    fill_path(data, 10)
    store = UserStore(data / "users.json")
    store.add_user("narrow", rules=[Rule("allow", frozenset({"peek"}), "mails")])
    token = store.create_token("narrow", "t")
    with served(data) as server:
        for bad in ("oq_canary-2718", None):
            with pytest.raises(OpenQError, match=r"[Tt]oken|authentication required") as raised:
                archive(None, url=server.url, archive=str(place), token=bad)
            assert bad is None or bad not in str(raised.value)
        assert not place.exists()

        assert archive(None, url=server.url, archive=str(place), token=token).rows["messages"] == 10
        # In parts that are measured by the caller's own rows: each has some, and none shows where those of
        # others lie.
        second = tmp_path / "second"
        archive(None, url=server.url, archive=str(second), token=token, task_bytes=128)
        files = [len(Archive(second).read(version).files) for version in sorted(Archive(second).versions())]
        assert len(files) > 1
        assert all(before < after for before, after in pairwise([0, *files]))
        same(archived(place), archived(second))

    assert set(archived(place)["messages"]["queue"].to_pylist()) == {"mails"}
    assert (latest(place).origin["user"], latest(place).origin["complete"]) == ("narrow", False)
    assert token not in json.dumps(latest(place).origin)
    # It must not hide what else the journal has.
    with pytest.raises(InvalidSetting, match="not see all queues"):
        LocalHistory(data, place).snapshot(Selection())


def test_archives_of_both_kinds_are_not_mixed(tmp_path: Path) -> None:
    data, place = tmp_path / "data", str(tmp_path / "archive")
    with served(data) as server:
        fill_server(server.url, 10)
        archive(None, url=server.url, archive=place)
        with pytest.raises(InvalidSetting, match="read from a server"):
            archive(None, path=str(data), archive=place)
        before = rows_of(RemoteHistory(server.url))
        # One that holds everything may stand for the journal up to its end.
        with OpenQ("orders", url=server.url, codec="raw") as orders:
            orders.ack(orders.receive())
        same(rows_of(LocalHistory(data)), rows_of(LocalHistory(data, place)))
        end = archive(None, path=str(data), include_open=True).through
        # What a server has in an archive of its own is history like any other.
        archive(None, url=server.url, archive=str(tmp_path / "second"), through=latest(Path(place)).through)
        same(before, archived(tmp_path / "second"))
        archive(None, url=server.url, archive=str(tmp_path / "second"))
        assert latest(tmp_path / "second").through >= end
        with pytest.raises(InvalidSetting, match="files of a journal"):
            archive(None, url=server.url, archive=str(data / "archive"))


@pytest.mark.parametrize("messages", [10, 80], ids=["shorter", "longer"])
def test_an_archive_is_of_one_server(tmp_path: Path, messages: int) -> None:
    place = str(tmp_path / "archive")
    with served(tmp_path / "data") as server:
        fill_server(server.url, 40)
        archive(None, url=server.url, archive=place)
    with served(tmp_path / "other") as other:
        fill_server(other.url, messages)
        with pytest.raises(InvalidSetting, match="another journal or store"):
            archive(None, url=other.url, archive=place)


def test_a_server_that_was_restored_to_an_older_state(tmp_path: Path) -> None:
    data, place = tmp_path / "data", str(tmp_path / "archive")
    with served(data) as server:
        fill_server(server.url, 10)
    copytree(data, tmp_path / "older")
    with served(data) as server:
        fill_server(server.url, 10)
        through = archive(None, url=server.url, archive=place).through
        # An end that is archived already is nothing to complain of.
        assert archive(None, url=server.url, archive=place, through=through // 2).version is None
    with (
        served(tmp_path / "older") as server,
        pytest.raises(InvalidSetting, match="set back to an older state"),
    ):
        archive(None, url=server.url, archive=place)


def test_adjacent_spans_are_merged_up_to_a_limit() -> None:
    def span(start: int, stop: int, rows: int) -> dict[str, Any]:
        sums = {"rows": rows, "seqs": "0", "digest": "0"}
        return {"start": start, "stop": stop, "gaps": [], "messages": sums, "events": sums}

    some = append_span(append_span([], span(0, 10, 3)), span(10, 20, 4))
    assert [(each["start"], each["stop"], each["events"]["rows"]) for each in some] == [(0, 20, 7)]
    assert [each["start"] for each in append_span(some, span(30, 40, 1))] == [0, 30]
    assert [each["start"] for each in append_span(some, span(20, 40, 1 << 20))] == [0, 20]


# -- looking after it -----------------------------------------------------------------------------


def test_spark_reads_what_was_published_and_maintenance_works(
    spark: SparkSession, server: Served, tmp_path: Path
) -> None:
    from openq.pipeline.history import history

    place = tmp_path / "archive"
    options = {"archive": str(place)}
    filled = fill_server(server.url, 20)
    archive(spark, url=server.url, **options, task_bytes=16 << 10)
    with OpenQ("orders", url=server.url, codec="raw") as orders:
        orders.publish_many([b"late"] * 5)
    archive(spark, url=server.url, **options)
    before = rows_of(RemoteHistory(server.url))

    for table in TABLES:
        for rows in (
            history(spark, archive=str(place), table=table),
            spark.read.format("openq").option("archive", str(place)).option("table", table).load(),
        ):
            found = in_order(rows.toArrow().cast(arrow_schema(table)), table)
            same({**before, table: found}, before)
    as_published(filled, before["messages"].to_pylist())

    assert compact(None, **options).after < len(latest(place).files) + 4
    same(before, archived(place))
    [victim, *_] = filled.sent
    erased = erase(None, **options, message_ids=[victim])
    assert (erased.messages, erased.waiting) == (1, None)
    assert archived(place)["messages"].num_rows == before["messages"].num_rows - 1
    assert victim not in archived(place)["messages"]["message_id"].to_pylist()
    vacuum(**options, keep_s=0)
    assert Archive(place).versions() == [erased.version]
    assert verify(spark, **options).findings == []

    # Lost, or more than there should be: the sums of the span tell.
    manifest = latest(place)
    Archive(place).commit(manifest.next(files=manifest.files[1:]))
    assert any("the manifest says" in each.what for each in verify(None, **options).findings)


# -- the command ----------------------------------------------------------------------------------


def test_the_command_reads_from_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENQ_DATA", "OPENQ_URL", "OPENQ_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def call(*words: str) -> tuple[int, str]:
        code = main(["pipeline", "archive", *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    with served(tmp_path / "data") as server:
        fill_server(server.url, 10)
        place = ("--archive", "kept")
        there = ("--url", server.url, *place)
        here = ("--master", "none")
        assert "of the history of" in call("run", *there, "--dry-run")[1]
        code, text = call("run", *there, *here)
        assert (code, "version 1: 30 messages" in text) == (0, True), text
        assert "nothing to archive: the history of" in call("run", *there, *here)[1]
        # The environment's server is enough where there is no data directory.
        monkeypatch.setenv("OPENQ_URL", server.url)
        assert call("run", *place, *here)[0] == 0
        monkeypatch.delenv("OPENQ_URL")
        assert "1 span from a server" in call("verify", *place, *here)[1]
        [version] = json.loads(call("versions", *place, "--json")[1])
        assert version["server"] == server.url

        code, text = call("run", "--url", server.url)
        assert (code, "--archive DIR" in text.splitlines()[0]) == (2, True)
    code, text = call("run")
    assert code != 0
    assert "no such directory; set --data DIR, or --url URL and --archive DIR" in text.splitlines()[0]
