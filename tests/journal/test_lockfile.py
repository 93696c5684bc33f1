"""One process per folder, and what happens to a forked one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openq.errors import DirectoryInUse, JournalFailed
from openq.journal.lockfile import DirectoryLock, holder
from tests.journal.helpers import contents, put, small

HOLD = """
import sys
from openq.journal.file_journal import Journal
journal = Journal(sys.argv[1])
journal.announce("http://127.0.0.1:9324")
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_holder_of_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryInUse) as caught:
            small(tmp_path)
        assert caught.value.pid == process.pid
        assert caught.value.url == "http://127.0.0.1:9324"

        # A killed holder holds nothing, though its file is still there.
        process.kill()
        process.wait()
        assert holder(str(tmp_path))[0] == process.pid
        small(tmp_path).close()


def test_the_same_process_cannot_open_it_twice_either(tmp_path: Path) -> None:
    journal = small(tmp_path)
    with pytest.raises(DirectoryInUse) as caught:
        small(tmp_path)
    assert caught.value.pid == os.getpid()
    journal.close()
    small(tmp_path).close()


def test_the_file_says_who_and_since_when(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path), 1234)
    facts = json.loads((tmp_path / "LOCK").read_text())

    assert facts["pid"] == os.getpid()
    assert facts["started"] == 1234
    lock.release()
    lock.release()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": "x", "url": 7}'])
def test_an_unreadable_file_locks_nothing_and_hides_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "LOCK").write_text(text)
    assert holder(str(tmp_path)) == (None, None)
    DirectoryLock(str(tmp_path), 0).release()


def test_nobody_holds_a_folder_without_the_file(tmp_path: Path) -> None:
    assert holder(str(tmp_path)) == (None, None)


def test_a_forked_child_cannot_write_and_does_not_keep_the_lock(tmp_path: Path) -> None:
    journal = small(tmp_path)
    put(journal, b"before")
    parent_reads, child_writes = os.pipe()
    child_reads, parent_writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                put(journal, b"from the child")
                answer = b"written"
            except JournalFailed:
                answer = b"refused"
            journal.close()
            os.write(child_writes, answer)
            os.read(child_reads, 1)
        finally:
            os._exit(0)
    assert os.read(parent_reads, 100) == b"refused"
    put(journal, b"after")
    journal.close()
    # The child is still alive, with what it inherited.
    assert contents(tmp_path) == [b"before", b"after"]
    os.write(parent_writes, b"x")
    os.waitpid(pid, 0)
    for fd in (parent_reads, child_writes, child_reads, parent_writes):
        os.close(fd)
