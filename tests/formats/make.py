"""Makes a data directory with the OpenQ of some checkout, packed for `test_formats.py`.

    git worktree add --detach /tmp/old COMMIT
    PYTHONPATH=/tmp/old/src .venv/bin/python tests/formats/make.py tests/formats/data/NAME.tar.xz

It uses public names that every version has, and nothing of this checkout. Make one whenever
`openq.journal.data_format.FORMAT` rises, with the last commit before.
"""

import os
import sys
import tarfile
import tempfile
from contextlib import suppress


def fill(path: str) -> None:
    from openq import OpenQ

    dead = OpenQ("dead", path=path)
    jobs = OpenQ("jobs", path=path, dlq="dead", max_receives=3)
    for number in range(20):
        jobs.publish({"n": number}, priority=number % 3, attributes={"part": "first"})
    jobs.publish("later", delay=36_000_000_000)
    first, second = (jobs.receive(timeout=0) for _ in range(2))
    first.ack()
    second.reject("a bad address")
    groups = OpenQ("groups.fifo", path=path, fifo=True)
    for number in range(6):
        groups.publish(f"of group {number % 2}: {number}", group=str(number % 2))
    for each in (dead, jobs, groups):
        each.close()


def add(path: str) -> None:
    """By a process that does not close the journal: these are in no snapshot."""
    from openq import OpenQ

    jobs = OpenQ("jobs", path=path)
    for number in range(20, 30):
        jobs.publish({"n": number}, attributes={"part": "second"})
    received = jobs.receive(timeout=0)
    received.ack()
    with suppress(ImportError, AttributeError):  # later versions
        from openq.auth.store import UserStore

        UserStore(os.path.join(path, "users.json")).add_user("ada", role="admin", password="a-good-password")
    with suppress(AttributeError):  # later versions
        jobs.broker.kv.put_many("settings", [_put()])
        jobs.broker.sync()
    sys.stdout.flush()
    os._exit(0)


def _put() -> object:
    try:
        from openq.engine.key_values import KvPut
    except ImportError:
        raise AttributeError from None
    return KvPut("colour", b"green")


def pack(path: str, name: str) -> None:
    def kept(each: tarfile.TarInfo) -> tarfile.TarInfo | None:
        each.uid = each.gid = each.mtime = 0
        each.uname = each.gname = ""
        return None if os.path.basename(each.name) == "reserve" else each  # 16 MB of zeros

    with tarfile.open(name, "w:xz", preset=9) as archive:
        archive.add(path, "data", filter=kept)


def main() -> None:
    if sys.argv[1] == "--add":
        add(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data")
        fill(path)
        status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, "--add", path])
        assert status == 0
        pack(path, sys.argv[1])


if __name__ == "__main__":
    main()
