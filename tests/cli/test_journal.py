"""`openq journal`, on journals that are really damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from openq.broker.audit import records
from openq.broker.damage import LOST
from openq.errors import JournalDamaged
from openq.journal.file_journal import Journal
from openq.journal.lockfile import DirectoryLock
from openq.local.audit_file import FileAudit
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from tests.cli.helpers import OPENQ, corrupt, directory_contents, fill, run_in_process, segment


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "data"
    fill(path)
    return path


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """A whole data directory, to be damaged."""
    return Path(shutil.copytree(filled, tmp_path / "data"))


@pytest.fixture
def damaged(data: Path) -> Path:
    """As after a kill: only the journal and no snapshot."""
    shutil.rmtree(data / "snapshots")
    corrupt(data, b"order 3")
    return data


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# -- check --------------------------------------------------------------------------------------


def test_check_of_an_intact_journal_changes_nothing(data: Path) -> None:
    before = directory_contents(data)
    done = run_in_process("journal", "check", data)

    assert done.code == 0
    assert f"{data}: ok, " in done.out
    assert done.err == ""
    assert directory_contents(data) == before


def test_check_reports_each_damaged_place(damaged: Path) -> None:
    before = directory_contents(damaged)
    done = run_in_process("journal", "check", damaged)

    assert done.code == 1
    assert f"{damaged}: damaged" in done.out
    assert f"damage: {segment(damaged)} at offset " in done.out
    assert "is lost" in done.out
    assert "openq journal repair" in done.err
    assert directory_contents(damaged) == before


def test_check_as_json(damaged: Path) -> None:
    done = run_in_process("journal", "check", damaged, "--json")
    report = json.loads(done.out)

    assert done.code == 1
    assert done.err == ""
    assert report["ok"] is False
    [damage] = report["damages"]
    assert damage["file"] == str(segment(damaged))
    assert damage["last_block"] == damage["first_block"]


def test_check_works_beside_a_running_process(data: Path) -> None:
    broker = LocalBroker(data)
    try:
        assert run_in_process("journal", "check", data).code == 0
    finally:
        broker.close()


def test_a_torn_tail_is_not_damage(data: Path) -> None:
    whole = run_in_process("journal", "dump", data).out
    # As after a kill: a close in good order leaves a snapshot, which knows how far the journal went.
    shutil.rmtree(data / "snapshots")
    file = segment(data)
    content = bytearray(file.read_bytes())
    # The last record of all is the checkpoint that closing writes.
    content[content.rindex(b'"prefix"')] ^= 0xFF
    file.write_bytes(content)
    done = run_in_process("journal", "check", data)

    assert done.code == 0
    assert "torn tail" in done.out
    assert whole.startswith(run_in_process("journal", "dump", data).out)


# -- repair -------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing(damaged: Path) -> None:
    before = directory_contents(damaged)
    done = run_in_process("journal", "repair", damaged, "--dry-run")

    assert done.code == 1
    assert "damage: " in done.out
    assert "nothing was changed" in done.out
    assert directory_contents(damaged) == before


@pytest.mark.parametrize("answer", ["", "n\n", "\n", "what?\n"])
def test_without_a_yes_nothing_is_changed(damaged: Path, answer: str) -> None:
    before = directory_contents(damaged)
    done = run_in_process("journal", "repair", damaged, answer=answer)

    assert done.code == 2
    assert done.out == ""
    assert "[y/N]" in done.err
    assert "nothing was changed" in done.err
    assert directory_contents(damaged) == before


@pytest.mark.parametrize("how", ["asked", "--yes"])
def test_repair_keeps_intact_records_and_reports_lost_ones(damaged: Path, how: str) -> None:
    with pytest.raises(Exception, match="damage in"):
        LocalBroker(damaged)
    done = (
        run_in_process("journal", "repair", damaged, answer="y\n")
        if how == "asked"
        else run_in_process("journal", "repair", damaged, "--yes")
    )

    assert done.code == 0
    assert "repaired, kept " in done.out
    assert f"lost: {segment(damaged)}" in done.out
    [copy] = (damaged / "quarantine").iterdir()
    assert f"the bytes are in {copy}" in done.out
    broker = LocalBroker(damaged)
    try:
        bodies = [entry.body for entry in broker.inspect.entries("orders")]
        [dead] = broker.inspect.entries("orders.dead")
    finally:
        broker.close()
    assert bodies == [b"order 2", b"order 4"]
    assert dead.body == b"order 1"
    assert run_in_process("journal", "check", damaged).code == 0
    [recorded] = records(FileAudit(damaged).lines())
    assert (recorded.entry.protocol, recorded.entry.action) == ("cli", "repair_journal")


def test_a_snapshot_does_not_restore_a_lost_message(data: Path) -> None:
    corrupt(data, b"order 3")
    done = run_in_process("journal", "repair", data, "--yes")

    assert done.code == 0
    assert "a snapshot that may refer to them was moved to" in done.out
    broker = LocalBroker(data)
    try:
        assert [entry.body for entry in broker.inspect.entries("orders")] == [b"order 2", b"order 4"]
    finally:
        broker.close()


def test_repair_reports_records_whose_queue_is_lost(data: Path) -> None:
    shutil.rmtree(data / "snapshots")
    corrupt(data, b"orders.dead")  # the block that says which queues there are
    done = run_in_process("journal", "repair", data, "--yes", "--json")

    assert done.code == 1
    assert json.loads(done.out)["orphans"] == 9
    assert "9 intact records cannot be delivered" in done.err
    shown = lines(run_in_process("journal", "dump", data, "--bodies", "--limit", "5").out)
    # How the writer grouped them into blocks decides whether another record comes first.
    first = next(line for line in shown if "body" in line)
    assert (first["queue"], first["body"]) == ("#2", "order 0")


def test_repair_as_json(damaged: Path) -> None:
    done = run_in_process("journal", "repair", damaged, "--yes", "--json")
    report = json.loads(done.out)

    assert done.code == 0
    assert report["repaired"] is True
    assert len(report["damages"]) == len(report["quarantined"]) == 1


def test_an_intact_journal_needs_no_repair(data: Path) -> None:
    before = directory_contents(data)
    done = run_in_process("journal", "repair", data)

    assert done.code == 0
    assert "nothing to repair" in done.out
    assert directory_contents(data) == before


def test_a_lost_end_that_a_snapshot_covers_is_damage_and_reported_once(data: Path) -> None:
    corrupt(data, b"no such customer")
    done = run_in_process("journal", "check", data)

    assert done.code == 1
    assert "damage: " in done.out
    assert "torn tail" not in done.out


def test_repair_of_a_directory_in_use_names_the_process(damaged: Path) -> None:
    lock = DirectoryLock(str(damaged), 0)
    try:
        done = run_in_process("journal", "repair", damaged, "--yes")
    finally:
        lock.release()

    assert done.code == 1
    assert "is in use by process" in done.err
    assert done.out == ""


def test_a_journal_without_any_header_cannot_be_repaired(data: Path) -> None:
    for file in (segment(data), data / "journal" / "reserve", data / "journal" / "bounds"):
        with open(file, "r+b") as opened:
            opened.write(b"\xff" * (64 if file.suffix == ".seg" else 1024))
    done = run_in_process("journal", "repair", data, "--yes")

    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "no header is left" in done.err


# -- dump ---------------------------------------------------------------------------------------


def test_dump_prints_one_json_line_per_record(data: Path) -> None:
    done = run_in_process("journal", "dump", data)
    records = lines(done.out)

    assert done.code == 0
    assert done.err == ""
    assert [record["kind"] for record in records] == [
        "checkpoint",
        "queue",
        "queue",
        *["published"] * 5,
        "delivered",
        "acked",
        "delivered",
        "moved",
        "checkpoint",
    ]
    published = records[3]
    assert (published["queue"], published["seq"], published["bytes"]) == ("orders", 1, 7)
    assert published["time"].endswith("Z")
    assert records[8]["consumer"] == "till 1"
    assert records[-2]["why"] == "max_receives"
    assert records[-2]["reason"] == "no such customer"
    assert records[-2]["messages"][0]["to"] == "orders.dead"
    assert "order 0" not in done.out


def test_dump_shows_bodies_with_the_option(data: Path) -> None:
    records = lines(run_in_process("journal", "dump", data, "--bodies").out)

    assert [r["body"] for r in records if r["kind"] == "published"] == [f"order {n}" for n in range(5)]


def test_dump_from_a_location_still_knows_the_names_of_the_queues(data: Path) -> None:
    records = lines(run_in_process("journal", "dump", data).out)
    start = records[4]["at"]

    assert lines(run_in_process("journal", "dump", data, "--from", str(start)).out) == records[4:]
    assert (
        lines(run_in_process("journal", "dump", data, "--from", hex(start), "--limit", "2").out)
        == records[4:6]
    )
    assert run_in_process("journal", "dump", data, "--limit", "0").out == ""


def test_dump_skips_and_reports_damage(damaged: Path) -> None:
    done = run_in_process("journal", "dump", damaged, "--bodies")
    bodies = [record["body"] for record in lines(done.out) if record["kind"] == "published"]

    assert done.code == 1
    assert bodies == ["order 0", "order 1", "order 2", "order 4"]
    assert done.err.count("\n") == 1
    assert f"{segment(damaged)} at offset " in done.err


def test_dump_into_a_closed_pipe_ends_quietly(data: Path) -> None:
    writer = subprocess.Popen(
        [*OPENQ, "journal", "dump", str(data)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    errors = writer.stderr.read()
    writer.stderr.close()

    assert writer.wait(timeout=60) == 0
    assert errors == ""


# -- wrong paths --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["check", "repair", "dump"])
def test_a_wrong_path_is_one_line_and_code_3(verb: str, data: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "bare" / "journal").mkdir(parents=True)
    robbed = Path(shutil.copytree(data, tmp_path / "robbed"))
    segment(robbed).unlink()
    for path, message in [
        (tmp_path / "nowhere", "no such directory"),
        (segment(data), "not a directory"),
        (empty, "not a data directory of OpenQ"),
        (data / "journal", f"did you mean {data}?"),
        (tmp_path / "bare", "no segment files"),
        (robbed, "restore them from a backup"),
    ]:
        done = run_in_process("journal", verb, path)

        assert (done.code, done.out) == (3, "")
        assert done.err.count("\n") == 1
        assert message in done.err


# -- whole segments missing or misplaced ---------------------------------------------------------


@pytest.fixture(scope="session")
def long_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 messages over several segments, some of them settled; closed, so that a snapshot knows them."""
    path = tmp_path_factory.mktemp("cli") / "long"
    broker = LocalBroker(journal=Journal(path, segment_bytes=8192, first_segment_bytes=8192))
    broker.declare("work", QueueSettings())
    for n in range(70):
        for _ in range(10):
            broker.publish("work", Draft(f"{n:04d}".encode().ljust(40, b".")))
        broker.sync()
    taken = broker.receive("work", 20)
    broker.ack("work", [(each.entry.seq, each.number) for each in taken])
    broker.close()
    return path


@pytest.fixture
def long(long_journal: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(long_journal, tmp_path / "data"))


def waiting(path: Path) -> int:
    broker = LocalBroker(path)
    try:
        return broker.stats("work").ready
    finally:
        broker.close()


@pytest.mark.parametrize(("which", "with_sidecar"), [(0, True), (0, False), (2, False)])
def test_a_missing_segment_is_reported_with_its_messages(long: Path, which: int, with_sidecar: bool) -> None:
    whole = waiting(long)
    gone = sorted((long / "journal").glob("*.seg"))[which]
    gone.unlink()
    if with_sidecar:
        gone.with_suffix(".idx").unlink(missing_ok=True)
    done = run_in_process("journal", "check", "--json", long)

    assert done.code == 1
    [damage] = [each for each in json.loads(done.out)["damages"] if each["messages"]]
    assert damage["file"] == str(gone)
    lost = damage["waiting"]
    assert 0 < lost <= damage["messages"] < whole
    with pytest.raises(JournalDamaged) as refusal:
        LocalBroker(long)
    assert str(gone) in str(refusal.value)
    assert f"{lost} not settled" in str(refusal.value)

    done = run_in_process("journal", "repair", long, "--yes")
    assert done.code == 0
    assert f"{lost} not settled at the last snapshot" in done.out
    assert waiting(long) == whole - lost
    broker = LocalBroker(long)
    try:
        [reported] = [each for each in broker.inspect.damage.listed() if each.kind == LOST]
        assert (reported.file, reported.count) == (str(gone), lost)
        assert broker.health().status == "degraded"
    finally:
        broker.close()


def test_swapped_segments_are_reordered_without_loss(long: Path) -> None:
    whole = waiting(long)
    first, second = sorted((long / "journal").glob("*.seg"))[:2]
    first.rename(long / "between")
    second.rename(first)
    (long / "between").rename(second)
    done = run_in_process("journal", "check", long)

    assert done.code == 1
    assert f"{first}: segment under a wrong name, it is {second.name}" in done.out
    with pytest.raises(JournalDamaged, match="repair puts it in its place"):
        LocalBroker(long)

    done = run_in_process("journal", "repair", long, "--yes")
    assert done.code == 0
    assert "could not be saved" not in done.out
    assert waiting(long) == whole


def segments(path: Path) -> list[Path]:
    return sorted((path / "journal").glob("*.seg"))


def found(path: Path) -> list[dict[str, Any]]:
    done = run_in_process("journal", "check", "--json", path)
    report: dict[str, Any] = json.loads(done.out)
    assert done.code == (0 if report["ok"] else 1)
    damages: list[dict[str, Any]] = report["damages"]
    return damages


def repaired_losses(path: Path) -> tuple[int, tuple[str, ...]]:
    """What waits after a repair, and why the health is degraded."""
    assert run_in_process("journal", "repair", path, "--yes").code == 0
    assert found(path) == []
    broker = LocalBroker(path)
    try:
        return broker.stats("work").ready, broker.health().degraded
    finally:
        broker.close()


def remove_oldest(path: Path, count: int) -> list[Path]:
    """With every file that refers to them, as in a directory of an earlier version."""
    gone = segments(path)[:count]
    for file in gone:
        file.unlink()
        file.with_suffix(".idx").unlink(missing_ok=True)
    (path / "journal" / "bounds").unlink()
    return gone


@pytest.mark.parametrize("count", [1, 2])
def test_without_bounds_a_snapshot_shows_that_the_oldest_segments_were_removed(
    long: Path, tmp_path: Path, count: int
) -> None:
    whole = waiting(long)
    gone = remove_oldest(long, count)

    missing = found(long)

    assert [each["file"] for each in missing] == [str(file) for file in gone]
    lost = sum(each["waiting"] for each in missing)
    assert lost > 0
    unrepaired = Path(shutil.copytree(long, tmp_path / "unrepaired"))
    assert waiting(unrepaired) == whole - lost
    assert repaired_losses(long) == (whole - lost, (f"{lost} records lost",))


def test_without_bounds_messages_acknowledged_after_the_snapshot_are_not_missed(
    long: Path, tmp_path: Path
) -> None:
    older = shutil.copytree(long / "snapshots", tmp_path / "older")
    broker = LocalBroker(long)
    while taken := broker.receive("work", 100):
        broker.ack("work", [(each.entry.seq, each.number) for each in taken])
    broker.close()
    shutil.rmtree(long / "snapshots")
    shutil.copytree(older, long / "snapshots")
    remove_oldest(long, 2)

    assert found(long) == []
    assert waiting(long) == 0


@pytest.mark.parametrize(
    ("which", "size", "snapshots"), [(0, 100, True), (1, 3000, True), (2, 6000, True), (1, 3000, False)]
)
def test_a_truncated_segment_is_reported_with_all_lost_messages(
    long: Path, which: int, size: int, snapshots: bool
) -> None:
    whole = waiting(long)
    file = segments(long)[which]
    os.truncate(file, size)
    if not snapshots:
        shutil.rmtree(long / "snapshots")

    [damage] = found(long)

    assert damage["file"] == str(file)
    lost = damage["waiting"] if snapshots else damage["messages"]
    with pytest.raises(JournalDamaged) as refusal:
        LocalBroker(long)
    assert str(file) in str(refusal.value)
    if which:  # all that was published there still waits
        assert damage["messages"] == lost
        assert repaired_losses(long) == (whole - lost, (f"{lost} records lost",))


def test_a_missing_last_segment_is_listed_and_counted_once(long: Path) -> None:
    whole = waiting(long)
    file = segments(long)[-1]
    file.unlink()

    [damage] = found(long)

    assert damage["file"] == str(file)
    lost = damage["waiting"]
    assert 0 < lost < whole
    ready, reasons = repaired_losses(long)
    assert reasons == (f"{lost} records lost",)
    assert whole - lost <= ready  # what was settled there waits again


def test_lost_blocks_without_a_message_are_called_blocks(data: Path) -> None:
    shutil.rmtree(data / "snapshots")
    corrupt(data, b"till 1")  # who received a message; none was published there
    assert run_in_process("journal", "repair", data, "--yes").code == 0

    broker = LocalBroker(data)
    try:
        assert broker.health().degraded == ("1 block lost",)
    finally:
        broker.close()
