"""Verify backups: every piece is there and has its content. Prune: remove old ones and their pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .repository import BackupError, BackupManifest, Repository, sync_directory


@dataclass(slots=True)
class VerifyReport:
    backups: int = 0
    pieces: int = 0
    bytes: int = 0
    damages: list[str] = field(default_factory=list)  # one sentence each

    @property
    def ok(self) -> bool:
        return not self.damages


def verify(
    repository: Repository, ids: Sequence[str] | None = None, progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Read every piece of the backups (default: all) and compare it with its digest."""
    report = VerifyReport()
    checked: dict[str, int | str] = {}  # digest -> length, or what is wrong with it
    with repository.locked():
        for id in repository.ids() if ids is None else ids:
            report.backups += 1
            try:
                manifest = repository.manifest(id)
            except BackupError as error:
                report.damages.append(str(error))
                continue
            _verify_one(repository, manifest, checked, report, progress)
    return report


def _verify_one(
    repository: Repository,
    manifest: BackupManifest,
    checked: dict[str, int | str],
    report: VerifyReport,
    progress: Callable[[int], None] | None,
) -> None:
    for file in manifest.files:
        size = 0
        for digest in file.chunks:
            if digest not in checked:
                checked[digest] = found = _verified(repository, digest, report)
                if progress is not None and isinstance(found, int):
                    progress(found)
            found = checked[digest]
            if isinstance(found, str):
                report.damages.append(f"backup {manifest.id}, {file.name}: {found}")
                break
            size += found
        else:
            if size != file.bytes:
                wrong = f"{size} bytes, not {file.bytes}"
                report.damages.append(f"backup {manifest.id}, {file.name}: {wrong}")


def _verified(repository: Repository, digest: str, report: VerifyReport) -> int | str:
    """The length of a piece, or what is wrong with it."""
    report.pieces += 1
    try:
        length = len(repository.get(digest))
    except BackupError as error:
        return str(error)
    report.bytes += length
    return length


def prune(repository: Repository, keep: int) -> tuple[list[str], int]:
    """Keep the newest `keep` backups. Returns the ids of those removed, and the bytes that this freed."""
    with repository.locked(exclusive=True):
        ids = repository.ids()
        old = ids[:-keep]
        # Read first: while one of those to keep cannot be read, it is unknown which pieces it needs.
        kept = [repository.manifest(id) for id in ids[-keep:]]
        needed = {
            repository.name_of(digest) for each in kept for file in each.files for digest in file.chunks
        }
        for id in old:
            repository.remove(id)
        freed = 0
        for name, path in list(repository.names()):
            if name not in needed:
                freed += os.stat(path).st_size
                os.unlink(path)
        sync_directory(repository.path)
    return old, freed
