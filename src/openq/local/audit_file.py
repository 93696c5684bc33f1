"""The audit log of a data directory: files of JSON lines beside the journal, only ever appended to.

The server and commands of this machine write the same files, one at a time under a lock. A file is named
after its first record. It ends at a part of the limits of size and age; then files beyond these limits are
removed, the oldest first.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..broker.audit import (
    FIRST_HASH,
    AuditEntry,
    AuditLimits,
    AuditRecord,
    AuditUnavailable,
    parse,
    seal,
)

log = logging.getLogger("openq.audit")

DIRECTORY = "audit"
FILES = 16  # into which the limit of size is divided
_ENDING = ".jsonl"
_TAIL_BYTES = 64 << 10


class FileAudit:
    def __init__(self, data_path: str | os.PathLike[str]) -> None:
        self._directory = os.path.join(os.fspath(data_path), DIRECTORY)
        self.limits = AuditLimits()
        self._seen: tuple[str, int] | None = None  # the file and its size after our last record
        self._last: AuditRecord | None = None
        self._begun = ("", 0)  # a file and the time of its first record

    def append(self, entries: Sequence[AuditEntry]) -> None:
        if not entries:
            return
        try:
            with self._locked():
                self._append(entries)
        except OSError as error:
            self._seen = None
            reason = error.strerror or "it cannot be written"
            raise AuditUnavailable(f"the audit log {self._directory}: {reason}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(os.path.join(self._directory, "lock"), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _append(self, entries: Sequence[AuditEntry]) -> None:
        path, size = self._end()
        last = self._last
        number, previous = (0, FIRST_HASH) if last is None else (last.number, last.hash)
        lines = []
        for entry in entries:
            number += 1
            line = seal(number, previous, entry)
            last = parse(line)
            previous = last.hash
            lines.append(line + b"\n")
        is_new = path is None or self._is_full(path, size)
        if path is None or is_new:
            path, size = self._path(number - len(lines) + 1), 0
        data = b"".join(lines)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                _write_at(fd, data, size)
                os.fdatasync(fd)
            except OSError:
                os.ftruncate(fd, size)  # no part of a record may stay
                raise
        finally:
            os.close(fd)
        if is_new:
            self._sync_directory()
            self._drop_old()
        self._seen, self._last = (path, size + len(data)), last

    def _is_full(self, path: str, size: int) -> bool:
        if self._begun[0] != path:
            with open(path, "rb") as file:
                line = file.readline()
            try:
                self._begun = (path, parse(line).entry.time_ms)
            except ValueError:  # changed by somebody
                self._begun = (path, int(time.time() * 1000))
        age_ms = time.time() * 1000 - self._begun[1]
        return size >= self.limits.max_bytes // FILES or age_ms >= self.limits.max_age_ms / FILES

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:012d}{_ENDING}")

    def _files(self) -> list[str]:
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(_ENDING))
        except FileNotFoundError:
            return []
        return [os.path.join(self._directory, name) for name in names]

    def _end(self) -> tuple[str | None, int]:
        """The newest file and its size; `_last` is its last record. The lock is held."""
        files = self._files()
        if not files:
            self._last = None
            return None, 0
        path = files[-1]
        size = os.stat(path).st_size
        if self._seen != (path, size):  # another process has written, or this is the first record of this one
            size = self._cut_torn_line(path, size)
            self._last = self._newest(files)
        return path, size

    def _cut_torn_line(self, path: str, size: int) -> int:
        """A process that was killed may have left a part of a line. Returns the size without it."""
        with open(path, "r+b") as file:
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            tail = file.read()
            if not tail or tail.endswith(b"\n"):
                return size
            kept = start + tail.rfind(b"\n") + 1
            log.warning("%s: the last line was incomplete, %d bytes are cut off", path, size - kept)
            file.truncate(kept)
            return kept

    def newest(self) -> AuditRecord | None:
        try:
            return self._newest(self._files())
        except OSError as error:
            raise AuditUnavailable(f"the audit log {self._directory}: {error.strerror}") from error

    def _newest(self, files: list[str]) -> AuditRecord | None:
        for path in reversed(files):
            with open(path, "rb") as file:
                lines = file.read().splitlines()
            for line in reversed(lines):
                try:
                    return parse(line)
                except ValueError:
                    continue  # somebody has changed the file: `verify` reports it
        return None

    def lines(self, after: int = 0) -> Iterator[bytes]:
        files = self._files()
        # Those whose successor begins at `after` or before hold only earlier records.
        firsts = [_first_number(path) for path in files]
        for index, path in enumerate(files):
            if index + 1 < len(files) and firsts[index + 1] <= after:
                continue
            try:
                with open(path, "rb") as file:
                    for line in file:
                        if line.endswith(b"\n"):
                            yield line[:-1]
            except FileNotFoundError:
                continue  # dropped meanwhile
            except OSError as error:
                raise AuditUnavailable(f"the audit log {path}: {error.strerror}") from error

    def _drop_old(self) -> None:
        """Called when a file is begun."""
        files = self._files()
        sizes = [os.stat(path).st_size for path in files]
        oldest_s = time.time() - self.limits.max_age_ms / 1000
        total = sum(sizes)
        for path, size in zip(files[:-1], sizes, strict=False):
            if total <= self.limits.max_bytes and os.stat(path).st_mtime >= oldest_s:
                return
            os.unlink(path)
            total -= size

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _first_number(path: str) -> int:
    name = os.path.basename(path).removesuffix(_ENDING)
    return int(name) if name.isascii() and name.isdigit() else 0


def _write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
