"""Restore a backup into a data directory.

While it runs, the directory holds the file `RESTORING`, and no process can open it (`DirectoryLock`). A
restore that was killed leaves that file: the same command goes on where it ended, and another backup begins
anew. The file is removed last, after everything is on disk and the journal was replayed.

Data that is in the directory is never overwritten. With `replace` it is moved into DIR/replaced-TIME first.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..errors import OpenQError
from ..journal import repair
from ..journal.disk import DiskIo
from ..journal.lockfile import NAME as LOCK
from ..journal.lockfile import RESTORING, DirectoryLock
from ..journal.scan import read_header, segment_numbers, segment_path
from ..local.backup_files import REPLACED
from ..local.event_histories import FILE as HISTORIES
from ..local.event_histories import encode_histories, read_histories, with_new_history
from .repository import (
    BackupError,
    BackupManifest,
    Repository,
    StoredFile,
    pieces,
    sync_directory,
    write_file,
)
from .summary import Summary, summarize

_MOVING, _COPYING = "moving", "copying"


class DirectoryNotEmpty(OpenQError):
    code = "directory_not_empty"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is not empty; give a new directory, or --replace, which moves its content aside"
        )


@dataclass(frozen=True, slots=True)
class RestoreReport:
    manifest: BackupManifest
    path: str
    files: int
    bytes: int
    resumed_files: int  # complete since an earlier run
    replaced: str | None  # where the earlier content is
    summary: Summary


def restore(
    repository: Repository,
    manifest: BackupManifest,
    path: str,
    *,
    replace: bool = False,
    progress: Callable[[int], None] | None = None,
) -> RestoreReport:
    path = os.path.abspath(path)
    _refuse_inside(repository, path)
    is_new = not os.path.isdir(path)
    os.makedirs(path, exist_ok=True)
    if not is_new and not replace and _read_marker(path) is None and _content(path):
        raise DirectoryNotEmpty(path)  # before anything is written, also a lock file
    lock = DirectoryLock(path, time.time_ns() // 1_000_000, restores=True)
    try:
        with repository.locked():
            return _Restore(repository, manifest, path, progress).run(replace)
    finally:
        lock.release()


class _Restore:
    def __init__(
        self,
        repository: Repository,
        manifest: BackupManifest,
        path: str,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._repository = repository
        self._manifest = manifest
        self._path = path
        self._progress = progress
        self._resumed = 0

    def run(self, replace: bool) -> RestoreReport:
        replaced = self._prepare(replace)
        folders = {self._path}
        for file in self._manifest.files:
            folder = os.path.dirname(self._target(file))
            os.makedirs(folder, exist_ok=True)
            while folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
            self._copy(file)
        self._extend_last_segment()
        self._begin_history()
        for folder in folders:
            sync_directory(folder)
        report = repair.check(self._path)
        if not report.ok:
            first = report.damages[0]
            raise BackupError(
                f"the journal in backup {self._manifest.id} is damaged: {first.kind}, {first.file}"
            )
        summary = summarize(self._path)
        os.unlink(os.path.join(self._path, RESTORING))
        sync_directory(self._path)
        sync_directory(os.path.dirname(self._path))
        return RestoreReport(
            self._manifest,
            self._path,
            len(self._manifest.files),
            self._manifest.bytes,
            self._resumed,
            replaced,
            summary,
        )

    # -- the directory

    def _prepare(self, replace: bool) -> str | None:
        """Make the directory ready to be filled. Returns the folder with its earlier content, if any."""
        marker = _read_marker(self._path)
        if marker is None:
            content = _content(self._path)
            if content and not replace:
                raise DirectoryNotEmpty(self._path)
            replaced = REPLACED + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) if content else None
            marker = {"backup": self._manifest.id, "state": _MOVING, "replaced": replaced}
            self._write_marker(marker)
        replaced = marker.get("replaced")
        if marker.get("state") == _MOVING:
            if replaced is not None:
                self._move_aside(replaced)
        elif marker.get("backup") != self._manifest.id:
            # An earlier restore of another backup did not end. Nobody could open what it has written.
            for name in _content(self._path):
                _remove(os.path.join(self._path, name))
        self._write_marker({"backup": self._manifest.id, "state": _COPYING, "replaced": replaced})
        return None if replaced is None else os.path.join(self._path, replaced)

    def _move_aside(self, replaced: str) -> None:
        folder = os.path.join(self._path, replaced)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in _content(self._path):
            target = os.path.join(folder, name)
            while os.path.lexists(target):
                target += "-2"  # made by a process that tried to open the directory after an earlier run
            os.rename(os.path.join(self._path, name), target)
        sync_directory(folder)
        sync_directory(self._path)

    def _write_marker(self, marker: dict[str, Any]) -> None:
        write_file(os.path.join(self._path, RESTORING), json.dumps(marker).encode())
        sync_directory(self._path)

    # -- files

    def _target(self, file: StoredFile) -> str:
        return os.path.join(self._path, *file.name.split("/"))

    def _copy(self, file: StoredFile) -> None:
        path = self._target(file)
        if self._is_complete(path, file):
            self._resumed += 1
            self._advance(file.bytes)
            return
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as out:
            for digest in file.chunks:
                data = self._repository.get(digest)
                out.write(data)
                self._advance(len(data))
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        if size != file.bytes:
            raise BackupError(f"backup {self._manifest.id}, {file.name}: {size} bytes, not {file.bytes}")
        os.rename(temporary, path)

    def _is_complete(self, path: str, file: StoredFile) -> bool:
        """Whether an earlier run restored the file. A segment may have been extended."""
        try:
            with open(path, "rb") as found:
                if os.fstat(found.fileno()).st_size < file.bytes:
                    return False
                return all(
                    sha256(found.read(size)).hexdigest() == digest
                    for digest, (_, size) in zip(file.chunks, pieces(file.bytes), strict=True)
                )
        except FileNotFoundError:
            return False

    def _extend_last_segment(self) -> None:
        """The segment in use is stored as far as it was written; it goes on at its full size."""
        io = DiskIo()
        folder = os.path.join(self._path, "journal")
        number = max(segment_numbers(io, folder), default=0)
        if not number:
            raise BackupError(f"backup {self._manifest.id} has no journal")
        path = segment_path(folder, number)
        size = read_header(io, path).size
        if os.path.getsize(path) < size:
            fd = io.open(path, os.O_RDWR)
            try:
                os.ftruncate(fd, size)
                with suppress(OSError):  # a file system that cannot reserve space, or a full disk
                    io.fallocate(fd, size)
                io.fsync(fd)
            finally:
                io.close(fd)

    def _begin_history(self) -> None:
        """Ids of events that were recorded after the backup must not be taken for those of later events."""
        known = read_histories(self._path)
        write_file(os.path.join(self._path, HISTORIES), encode_histories(with_new_history(known)))

    def _advance(self, size: int) -> None:
        if self._progress is not None:
            self._progress(size)


def _content(path: str) -> list[str]:
    """Everything in a directory that is or may be data of a broker."""
    return sorted(
        name
        for name in os.listdir(path)
        if name not in (LOCK, RESTORING, "lost+found") and not name.startswith((REPLACED, RESTORING + "."))
    )


def _read_marker(path: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(path, RESTORING), "rb") as file:
            marker = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        marker = None
    if not isinstance(marker, dict):
        raise BackupError(f"{os.path.join(path, RESTORING)} cannot be read: restore into another directory")
    return marker


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _refuse_inside(repository: Repository, path: str) -> None:
    real, store = os.path.realpath(path), os.path.realpath(repository.path)
    if os.path.commonpath([real, store]) in (real, store):
        raise BackupError(f"{path} and the repository {repository.path} contain each other")
