"""One process per data directory: `flock` on a file that also names its holder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys

from openq.errors import CannotOpen, DirectoryInUse
from openq.journal import data_format

NAME = "LOCK"
RESTORING = "RESTORING"  # exists while a restore fills the directory, and after a restore that was killed


class DirectoryLock:
    """Held from construction to `release`. The lock is the flock, never the file's existence or text: a file
    left behind by a dead process does not lock anything."""

    def __init__(self, directory: str, now_ms: int, *, restores: bool = False) -> None:
        """`restores`: the directory is opened to restore into it. Nobody else may open a half one."""
        self.path = os.path.join(directory, NAME)
        self._facts: dict[str, object] = {
            "pid": os.getpid(),
            "started": now_ms,
            "argv0": sys.argv[0] if sys.argv else "",
        }
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            self._fd = -1
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            pid, url = holder(directory)
            raise DirectoryInUse(directory, pid, url) from None
        try:
            # With the lock held: a restore that runs now is reported as the holder instead.
            if not restores and os.path.lexists(os.path.join(directory, RESTORING)):
                raise CannotOpen(
                    directory,
                    "a restore into it did not end; run the same `openq restore` again, which resumes it",
                )
            if not restores:
                data_format.check(directory)
            self._write()
        except BaseException:
            self.release()
            raise

    def announce(self, url: str) -> None:
        """Publish the URL to connect to, for processes that find the directory in use."""
        self._facts["url"] = url
        self._write()

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            # Cleared first: an interrupted release can be repeated and never closes a descriptor of other
            # code.
            fd, self._fd = self._fd, -1
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: give up the descriptor without unlocking the parent's directory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self) -> None:
        data = json.dumps(self._facts).encode()
        try:
            os.pwrite(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))
        except OSError as error:
            # On a full disk the lock must still work; only the information about its holder is lost.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise


def holder(directory: str) -> tuple[int | None, str | None]:
    """The pid and address that the holder wrote, as far as they can be read."""
    try:
        with open(os.path.join(directory, NAME), encoding="utf-8") as file:
            facts = json.load(file)
    except (OSError, ValueError):
        return None, None
    if not isinstance(facts, dict):
        return None, None
    pid, url = facts.get("pid"), facts.get("url")
    return (pid if isinstance(pid, int) else None, url if isinstance(url, str) else None)
