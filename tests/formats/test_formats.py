"""Data of every earlier format is read; data of a later one is left alone, with a text that says why.

`data/` holds directories that earlier versions wrote: `make.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from openq.auth.store import UserStore
from openq.engine import records, snapshot
from openq.errors import NewerFormat
from openq.journal import bounds, data_format, index, snapshots
from openq.journal import format as segment_format
from openq.journal.repair import check, repair
from openq.local.broker import LocalBroker
from openq.redis import store_format
from openq.redis.broker import RedisBroker
from tests.cli.helpers import run_in_process
from tests.redis import servers

FOLDER = Path(__file__).parent
EARLIER = sorted((FOLDER / "data").glob("*.tar.xz"))

# The parts of format 1. When one of them changes, the format rises, and `data/` gets a directory of the last.
PARTS = {
    "segment": (segment_format.VERSION, 1),
    "index": (index.VERSION, 1),
    "bounds": (bounds.VERSION, 1),
    "snapshot file": (snapshots.VERSION, 1),
    "snapshot": (snapshot.FORMATS, (1, 2, 3)),
    "last kind of record": (records.EVENT, 24),
}


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "data"


def test_a_change_of_the_format_is_numbered() -> None:
    assert data_format.FORMAT == 1
    assert {name: now for name, (now, _) in PARTS.items()} == {
        name: then for name, (_, then) in PARTS.items()
    }
    with pytest.raises(ValueError, match="unknown record kind"):
        records.decode(bytes([records.EVENT + 1]) + bytes(records.HEAD_SIZE))


def see(path: Path) -> None:
    """What `make.py` has put into a directory is there, and the directory can be used."""
    with closing(LocalBroker(path)) as broker:
        jobs = broker.stats("jobs")
        assert (jobs.ready, jobs.delayed, jobs.in_flight) == (27, 1, 0)
        assert broker.settings("jobs").dead_letter == "dead"
        [death] = broker.receive("dead", 1)
        broker.load([death])
        assert death.entry.body == b'{"n":5}'
        assert death.entry.options.deaths[0].reason == "a bad address"
        bodies = []
        while deliveries := broker.receive("jobs", 100):
            broker.load(deliveries)
            bodies += [each.entry.body for each in deliveries]
            assert all(each.entry.properties.attributes["part"] in ("first", "second") for each in deliveries)
            broker.ack("jobs", [(each.entry.seq, each.number) for each in deliveries])
        assert bodies == [b'{"n":%d}' % number for number in ORDER]
        groups = broker.receive("groups.fifo", 10)
        broker.load(groups)
        assert [each.entry.body for each in groups if each.entry.group == "0"] == [
            b"of group 0: 0",
            b"of group 0: 2",
            b"of group 0: 4",
        ]
        [value] = broker.kv.get_many("settings", ["colour"])
        assert value is None or value.value == b"green"
    assert data_format.read(str(path))[0] == data_format.FORMAT
    users = UserStore(path / "users.json").users() if (path / "users.json").exists() else []
    assert [user.name for user in users] in ([], ["ada"])
    with closing(LocalBroker(path)) as broker:
        assert broker.stats("jobs").ready == 0
    assert not check(str(path)).damages


# By priority. 2 was acked, 5 rejected, 8 acked by the second process.
ORDER = (*range(11, 20, 3), *range(1, 20, 3), *range(0, 20, 3), *range(20, 30))


@pytest.mark.parametrize("archive", EARLIER, ids=lambda archive: archive.name.partition(".")[0])
def test_a_directory_of_an_earlier_version_is_read(archive: Path, tmp_path: Path) -> None:
    see(unpacked(archive, tmp_path))


def test_such_directories_are_made_by_the_program_beside_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, FOLDER / "make.py", tmp_path / "now.tar.xz"], check=True)

    see(unpacked(tmp_path / "now.tar.xz", tmp_path))


def test_a_damaged_format_is_no_later_version(tmp_path: Path) -> None:
    with closing(LocalBroker(tmp_path)):
        pass
    file = tmp_path / data_format.NAME
    good = file.read_bytes()
    for damaged in (b"5" + good[1:], b"", good[:-3], bytes(4096), good * 2):
        file.write_bytes(damaged)
        assert data_format.read(str(tmp_path)) == (0, "")

        with closing(LocalBroker(tmp_path)):
            assert file.read_bytes() == good


def test_a_directory_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = unpacked(EARLIER[-1], tmp_path)
    (path / data_format.NAME).write_text("2 9.0.0 4055b0d9\n")
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}

    with pytest.raises(NewerFormat):
        repair(path)
    with pytest.raises(NewerFormat, match=r"written by a newer version of OpenQ: format 2, of OpenQ 9\.0\.0"):
        LocalBroker(path)
    for words in (
        ("serve", "--data", path),
        ("backup", tmp_path / "b", "--data", path),
    ):
        refused = run_in_process(*words)
        assert refused.code != 0
        assert "written by a newer version of OpenQ" in refused.err
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


def test_a_format_that_cannot_be_read_is_written_again(tmp_path: Path) -> None:
    path = unpacked(EARLIER[-1], tmp_path)
    (path / data_format.NAME).write_bytes(b"\xff\0 torn")

    LocalBroker(path).close()

    assert data_format.read(str(path))[0] == data_format.FORMAT


def test_a_redis_of_a_later_version_is_left_alone() -> None:
    with servers.single(*servers.FORCED) as server:
        RedisBroker(server.url).close()
        assert server.ask("GET", "oq:{meta}:format") == str(store_format.FORMAT)
        server.ask("SET", "oq:{meta}:format", store_format.FORMAT + 1)
        with pytest.raises(NewerFormat, match="was written by a newer version of OpenQ: format 2"):
            RedisBroker(server.url)
        refused = run_in_process("serve", "--store", server.url)
        server.ask("SET", "oq:{meta}:format", store_format.FORMAT)
        RedisBroker(server.url).close()

    assert refused.code != 0
    assert "newer version of OpenQ" in refused.err
