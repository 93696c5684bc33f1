"""Backups and restores: of directories and brokers, incremental, encrypted, damaged, killed anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openq.backup import (
    BackupError,
    Repository,
    Secret,
    WrongKey,
    create,
    open_source,
    prune,
    restore,
    verify,
)
from openq.backup.encryption import make_key_file
from openq.backup.restore import DirectoryNotEmpty
from openq.broker.backups import BackupNotFound, NothingKept
from openq.broker.kv import KvPut
from openq.errors import CannotOpen, DirectoryInUse, InvalidSetting
from openq.journal.lockfile import RESTORING
from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, Draft, QueueSettings
from tests.cli.helpers import run_in_process

SEGMENT = 1 << 20
BODY = 50_000


def broker_at(path: Path) -> LocalBroker:
    return LocalBroker(path, segment_bytes=SEGMENT)


def publish(broker: LocalBroker, count: int, first: int = 0) -> list[str]:
    bodies = [os.urandom(BODY) + str(first + n).encode() for n in range(count)]
    return [broker.publish("orders", Draft(body, ENCODING_BYTES)) for body in bodies]


def ids_in(path: Path, queue: str = "orders") -> list[str]:
    broker = LocalBroker(path)
    try:
        return [broker.inspect.message_id(entry) for entry in broker.inspect.entries(queue)]
    finally:
        broker.close()


def back_up(source: object, repository: Repository) -> str:
    with open_source(source) as opened:
        return create(opened, repository).manifest.id


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with sealed segments, users, key-values, and messages of every state."""
    broker = broker_at(tmp_path / "data")
    broker.declare("orders", QueueSettings(dead_letter=None))
    publish(broker, 45)
    broker.kv.put_many("settings", [KvPut("color", b"blue")])
    broker.publish("orders", Draft(b"later", ENCODING_BYTES, delay_ms=3_600_000))
    [delivery] = broker.receive("orders", 1)
    broker.ack("orders", [(delivery.entry.seq, delivery.number)])
    broker.close()
    (tmp_path / "data" / "users.json").write_text('{"format": 1, "users": {}}')
    (tmp_path / "data" / "of-a-later-version.json").write_text("{}")
    return tmp_path / "data"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.open(str(tmp_path / "repo"), create=True)


def test_a_directory_comes_back_as_it_was(data: Path, repository: Repository, tmp_path: Path) -> None:
    back_up(data, repository)
    report = restore(repository, repository.latest(), str(tmp_path / "restored"))

    assert (report.summary.queues, report.summary.messages, report.summary.keys) == (1, 45, 1)
    assert (tmp_path / "restored" / "of-a-later-version.json").read_text() == "{}"
    assert ids_in(tmp_path / "restored") == ids_in(data)
    broker = LocalBroker(tmp_path / "restored")
    [found] = broker.kv.get_many("settings", ["color"])
    broker.close()
    assert found is not None
    assert found.value == b"blue"


def test_a_broker_in_use_is_backed_up_at_a_point(repository: Repository, tmp_path: Path) -> None:
    broker = broker_at(tmp_path / "data")
    broker.declare("orders", QueueSettings())
    before = publish(broker, 30)
    with open_source(broker) as source:
        publish(broker, 30, first=100)
        broker.sync()
        manifest = create(source, repository).manifest
    assert (manifest.queues, manifest.messages) == (1, 30)
    restore(repository, manifest, str(tmp_path / "restored"))

    assert ids_in(tmp_path / "restored") == before
    with pytest.raises(BackupNotFound):
        broker.admin.backups.files("gone")
    broker.close()


def test_segments_stay_while_a_backup_reads_them(repository: Repository, tmp_path: Path) -> None:
    broker = broker_at(tmp_path / "data")
    broker.declare("orders", QueueSettings(history_ms=0))
    before = publish(broker, 60)
    with open_source(broker) as source:
        while deliveries := broker.receive("orders", 10):
            broker.ack("orders", [(each.entry.seq, each.number) for each in deliveries])
        broker.sync()
        assert broker.housekeeper is not None
        assert broker.journal is not None
        first = broker.journal.segments()[0].number
        broker.housekeeper.work()
        assert broker.journal.segments()[0].number == first
        create(source, repository)
    broker.housekeeper.work()
    assert broker.journal.segments()[0].number > first
    broker.close()

    restore(repository, repository.latest(), str(tmp_path / "restored"))
    assert ids_in(tmp_path / "restored") == before


def test_a_restored_directory_goes_on(data: Path, repository: Repository, tmp_path: Path) -> None:
    broker = broker_at(data)
    back_up(broker, repository)
    broker.close()
    restore(repository, repository.latest(), str(tmp_path / "restored"))
    restored = broker_at(tmp_path / "restored")
    new = publish(restored, 45, first=1000)
    restored.close()

    assert set(new) < set(ids_in(tmp_path / "restored"))


def test_the_second_backup_copies_only_what_is_new(data: Path, repository: Repository) -> None:
    back_up(data, repository)
    broker = broker_at(data)
    publish(broker, 2, first=1000)
    with open_source(broker) as source:
        report = create(source, repository)
    broker.close()

    sealed = [file for file in source.point.files if file.name.startswith("journal/") and file.stamp]
    assert len(sealed) >= 2
    assert report.unchanged_files >= len(sealed)
    assert report.manifest.added_bytes < SEGMENT + 300_000
    assert report.manifest.bytes > 2 * SEGMENT


def test_a_diverged_copy_of_the_same_journal_is_not_taken_for_it(
    data: Path, repository: Repository, tmp_path: Path
) -> None:
    back_up(data, repository)
    restore(repository, repository.latest(), str(tmp_path / "other"))
    for path in (data, tmp_path / "other"):
        broker = broker_at(path)
        publish(broker, 40, first=1000)
        broker.close()
        back_up(path, repository)
    restore(repository, repository.latest(), str(tmp_path / "restored"))
    restore(repository, repository.manifest(repository.ids()[1]), str(tmp_path / "restored-first"))

    for restored, original in (("restored", tmp_path / "other"), ("restored-first", data)):
        broker, expected = LocalBroker(tmp_path / restored), LocalBroker(original)
        bodies = [entry.body for entry in broker.inspect.with_bodies(broker.inspect.entries("orders"))]
        assert bodies == [e.body for e in expected.inspect.with_bodies(expected.inspect.entries("orders"))]
        broker.close()
        expected.close()


def test_an_encrypted_repository_shows_nothing_and_needs_its_secret(data: Path, tmp_path: Path) -> None:
    (data / "users.json").write_text('{"canary": "CANARY-SECRET"}')
    path = str(tmp_path / "encrypted")
    back_up(data, Repository.open(path, Secret(passphrase="correct horse"), create=True))

    stored = b"".join(file.read_bytes() for file in Path(path).rglob("*") if file.is_file())
    assert b"CANARY" not in stored
    assert b"orders" not in stored
    assert b"users.json" not in stored
    with pytest.raises(WrongKey):
        Repository.open(path, Secret(passphrase="wrong horse"))
    with pytest.raises(InvalidSetting, match="passphrase"):
        Repository.open(path)
    opened = Repository.open(path, Secret(passphrase="correct horse"))
    assert verify(opened).ok
    restore(opened, opened.latest(), str(tmp_path / "restored"))
    assert ids_in(tmp_path / "restored") == ids_in(data)


def test_pieces_cannot_be_exchanged_or_changed(data: Path, tmp_path: Path) -> None:
    make_key_file(str(tmp_path / "key"))
    secret = Secret.from_file(str(tmp_path / "key"))
    repository = Repository.open(str(tmp_path / "encrypted"), secret, create=True)
    back_up(data, repository)
    paths = [path for _, path in repository.names()]
    first, second = Path(paths[0]), Path(paths[1])
    original = first.read_bytes()

    first.write_bytes(second.read_bytes())
    assert not verify(repository).ok
    first.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    assert not verify(repository).ok
    first.unlink()
    report = verify(repository)
    assert not report.ok
    assert "missing" in report.damages[0]
    with pytest.raises(BackupError):
        restore(repository, repository.latest(), str(tmp_path / "restored"))
    with pytest.raises(CannotOpen):
        LocalBroker(tmp_path / "restored")


def test_a_damaged_manifest_is_named_and_the_others_work(
    data: Path, repository: Repository, tmp_path: Path
) -> None:
    first = back_up(data, repository)
    second = back_up(data, repository)
    manifest = Path(repository.path, "backups", f"{second}.manifest")
    manifest.write_bytes(manifest.read_bytes().replace(b"users.json", b"users.jsom"))

    report = verify(repository)
    assert [second in damage for damage in report.damages] == [True]
    with pytest.raises(BackupError, match="checksum"):
        repository.latest()
    restore(repository, repository.manifest(first), str(tmp_path / "restored"))
    assert len(ids_in(tmp_path / "restored")) == 45


def test_prune_keeps_what_the_kept_backups_need(data: Path, repository: Repository, tmp_path: Path) -> None:
    for number in range(3):
        broker = broker_at(data)
        publish(broker, 3, first=number * 100)
        broker.close()
        back_up(data, repository)
    removed, freed = prune(repository, 1)

    assert len(removed) == 2
    assert freed > 0
    assert verify(repository).ok
    restore(repository, repository.latest(), str(tmp_path / "restored"))
    assert ids_in(tmp_path / "restored") == ids_in(data)


def test_data_is_never_overwritten(data: Path, repository: Repository, tmp_path: Path) -> None:
    back_up(data, repository)
    before = ids_in(data)
    with pytest.raises(DirectoryNotEmpty):
        restore(repository, repository.latest(), str(data))
    assert ids_in(data) == before
    report = restore(repository, repository.latest(), str(data), replace=True)

    assert report.replaced is not None
    assert ids_in(Path(report.replaced)) == before == ids_in(data)


def test_a_directory_in_use_is_neither_read_nor_replaced(data: Path, repository: Repository) -> None:
    back_up(data, repository)
    broker = broker_at(data)
    with pytest.raises(DirectoryInUse):
        back_up(data, repository)
    with pytest.raises(DirectoryInUse):
        restore(repository, repository.latest(), str(data), replace=True)
    broker.close()


def test_memory_has_nothing_to_back_up() -> None:
    broker = LocalBroker()
    with pytest.raises(NothingKept):
        broker.admin.backups.begin()
    broker.close()


def test_a_repository_holds_nothing_else_and_is_not_in_its_own_source(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="other files"):
        Repository.open(str(data), create=True)
    inside = Repository.open(str(data / "backups"), create=True)
    with pytest.raises(BackupError, match="outside"):
        back_up(data, inside)
    with pytest.raises(BackupError, match="contain each other"):
        restore(inside, repository_with_one(data, tmp_path).latest(), str(data))


def repository_with_one(data: Path, tmp_path: Path) -> Repository:
    repository = Repository.open(str(tmp_path / "another"), create=True)
    back_up(data, repository)
    return repository


def test_a_later_format_is_refused_with_a_clear_error(repository: Repository) -> None:
    header = Path(repository.path, "openq-backup.json")
    header.write_text(header.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(BackupError, match="format 2, this version of OpenQ knows 1"):
        Repository.open(repository.path)


# -- kills --------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from openq.backup import Repository, create, open_source, restore
what, repo, path, calls, renames = sys.argv[1:]
left = {"calls": int(calls), "renames": int(renames)}
def one(kind):
    left[kind] -= 1
    if left[kind] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
rename = os.rename
def counted(old, new):
    one("renames")
    rename(old, new)
os.rename = counted
repository = Repository.open(repo)
if what == "create":
    with open_source(path) as source:
        create(source, repository, progress=lambda n: one("calls"))
else:
    restore(repository, repository.latest(), path, replace=True, progress=lambda n: one("calls"))
"""


def killed(what: str, repository: Repository, path: Path, calls: int = 0, renames: int = 0) -> bool:
    """Run it in a process that kills itself at that call. False: it ended before."""
    words = [sys.executable, "-c", KILLED, what, repository.path, str(path), str(calls), str(renames)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_a_killed_backup_leaves_the_last_one_and_its_pieces(
    data: Path, repository: Repository, tmp_path: Path
) -> None:
    first = back_up(data, repository)
    broker = broker_at(data)
    ids = publish(broker, 60, first=1000)
    broker.close()
    assert killed("create", repository, data, calls=6)
    assert killed("create", repository, data, renames=3)

    assert repository.ids() == [first]
    assert verify(repository).ok
    # An interrupted write leaves a .tmp. How many pieces are missing depends on where it was killed.
    have = {name for name, _ in repository.names() if not name.endswith(".tmp")}
    second = back_up(data, repository)
    assert repository.ids() == [first, second]
    assert verify(repository).ok
    assert have <= {name for name, _ in repository.names()}
    restore(repository, repository.latest(), str(tmp_path / "restored"))
    assert set(ids) < set(ids_in(tmp_path / "restored"))
    prune(repository, 2)
    assert not [name for name, _ in repository.names() if name.endswith(".tmp")]


@pytest.mark.parametrize(("calls", "renames"), [(3, 0), (0, 1), (0, 2), (0, 4), (0, 6)])
def test_a_killed_restore_cannot_be_opened_and_is_resumed(
    data: Path, repository: Repository, tmp_path: Path, calls: int, renames: int
) -> None:
    """Renames are those of the marker, of the old content, of the marker again, and of the new files."""
    back_up(data, repository)
    target = tmp_path / "target"
    earlier = broker_at(target)
    earlier.declare("earlier", QueueSettings())
    earlier.publish("earlier", Draft(b"old", ENCODING_BYTES))
    earlier.close()
    assert killed("restore", repository, target, calls, renames)

    if (calls, renames) == (0, 1):  # not even the marker: the directory is as it was
        assert len(ids_in(target, "earlier")) == 1
    else:
        assert (target / RESTORING).exists()
        with pytest.raises(CannotOpen, match="openq restore"):
            LocalBroker(target)
        result = run_in_process("queue", "ls", "--data", target)
        assert result.code != 0
        assert "openq restore" in result.err
    report = restore(repository, repository.latest(), str(target), replace=True)
    assert ids_in(target) == ids_in(data)
    assert report.replaced is not None
    assert len(ids_in(Path(report.replaced), "earlier")) == 1


def test_an_unfinished_restore_of_another_backup_begins_anew(
    data: Path, repository: Repository, tmp_path: Path
) -> None:
    first = back_up(data, repository)
    broker = broker_at(data)
    publish(broker, 40, first=1000)
    broker.close()
    back_up(data, repository)
    target = tmp_path / "target"
    assert killed("restore", repository, target, calls=3)
    report = restore(repository, repository.manifest(first), str(target))

    assert report.resumed_files == 0
    assert len(ids_in(target)) == 45


def test_a_resumed_restore_keeps_complete_files_and_replaces_changed_ones(
    data: Path, repository: Repository, tmp_path: Path
) -> None:
    back_up(data, repository)
    target = tmp_path / "target"
    assert killed("restore", repository, target, calls=4)
    segments = sorted((target / "journal").glob("*.seg"))
    changed = bytearray(segments[0].read_bytes())
    changed[500] ^= 1
    segments[0].write_bytes(changed)
    report = restore(repository, repository.latest(), str(target))

    assert report.resumed_files >= 1
    assert ids_in(target) == ids_in(data)
