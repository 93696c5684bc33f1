"""Backups of a store: a consistent point of it, and the files that make it up.

`Backups.begin` fixes a point: every change that was acknowledged before the call is in it. Its files can be
read until `end`, while the broker goes on. A file is identified by its index in `files`.

To add a store: implement `Backups`. A store without files raises `NotOnThisStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from ..errors import OpenQError

CHUNK_BYTES = 4 << 20  # files are compared and stored in pieces of this size


class BackupNotFound(OpenQError):
    """The point was released: it ended, or nobody read from it for too long."""

    code = "backup_not_found"

    def __init__(self, id: str) -> None:
        super().__init__(f"backup {id[:40]!r} is not in progress: it ended, or was idle for too long")


class BackupBusy(OpenQError):
    """No consistent point could be taken in time, or too many backups are in progress."""

    code = "backup_busy"


class NothingKept(OpenQError):
    code = "nothing_kept"

    def __init__(self) -> None:
        super().__init__("messages are in memory only: there is nothing to back up")


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file as it was at the point. `bytes` from its beginning belong to the backup.

    Two files with the same name and stamp have the same content; "" makes no such claim. A file that is not
    `stable` may change while it is read, and every state of it is valid.
    """

    name: str  # relative to the data directory, parts separated by "/"
    bytes: int
    stamp: str = ""
    stable: bool = True


@dataclass(frozen=True, slots=True)
class BackupPoint:
    id: str
    journal_id: str  # identifies the journal: files of another one are never taken for files of this one
    location: int  # everything before it is in the backup
    time_ms: int
    files: tuple[BackupFile, ...]
    queues: int | None = None  # None: not counted
    messages: int | None = None


class HeldFiles(Protocol):
    """The files of one point. Every call may block and may come from any thread."""

    @property
    def point(self) -> BackupPoint: ...
    def read(self, index: int, offset: int, size: int) -> bytes: ...
    def digests(self, index: int) -> Sequence[str]: ...  # of each piece of CHUNK_BYTES: SHA-256, hex


class Backups(Protocol):
    """The part `broker.admin.backups`. Every call may block: call it in a thread."""

    def begin(self) -> BackupPoint: ...
    def files(self, id: str) -> HeldFiles: ...  # raises BackupNotFound
    def end(self, id: str) -> None: ...  # likewise


def digest_pieces(files: HeldFiles, index: int) -> list[str]:
    size = files.point.files[index].bytes
    return [
        sha256(files.read(index, start, min(CHUNK_BYTES, size - start))).hexdigest()
        for start in range(0, size, CHUNK_BYTES)
    ]
