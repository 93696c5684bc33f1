"""Backups of messages in Redis are those of Redis: OpenQ has no files to copy."""

from __future__ import annotations

from ..broker.backups import BackupNotFound, BackupPoint, HeldFiles
from ..errors import NotOnThisStore


class NoBackups:
    def begin(self) -> BackupPoint:
        raise NotOnThisStore(
            "backups",
            "copy the RDB or AOF files of Redis, or `openq migrate` into a data directory (docs/BACKUP.md)",
        )

    def files(self, id: str) -> HeldFiles:
        raise BackupNotFound(id)

    def end(self, id: str) -> None:
        raise BackupNotFound(id)
