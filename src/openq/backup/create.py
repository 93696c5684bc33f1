"""Make a backup: copy what the repository does not have yet, then write the manifest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from .._version import __version__
from ..broker.backups import BackupFile
from .repository import BackupError, BackupManifest, Repository, StoredFile, new_id, pieces
from .sources import BackupSource

Progress = Callable[[int], None]  # gets the number of bytes that were done since the last call


@dataclass(frozen=True, slots=True)
class BackupReport:
    manifest: BackupManifest
    unchanged_files: int  # known from an earlier backup, and not read
    seconds: float


def create(
    source: BackupSource, repository: Repository, *, full: bool = False, progress: Progress | None = None
) -> BackupReport:
    """Back up the point of a source. `full` reads every file, also those that an earlier backup has."""
    started = time.monotonic()
    _refuse_inside(repository, source.name)
    with repository.locked():
        known = {} if full else _known_files(repository, source.point.journal_id)
        run = _Run(source, repository, known, progress)
        files = tuple(run.store(index, file) for index, file in enumerate(source.point.files))
        point = source.point
        manifest = BackupManifest(
            id=_later_id(repository),
            source=source.name,
            journal_id=point.journal_id,
            location=point.location,
            time_ms=point.time_ms,
            version=__version__,
            files=files,
            queues=point.queues,
            messages=point.messages,
            added_bytes=run.added_bytes,
        )
        repository.add(manifest)
    source.end(run.added_bytes)
    return BackupReport(manifest, run.unchanged, time.monotonic() - started)


def _refuse_inside(repository: Repository, source: str) -> None:
    """A repository in the directory that it backs up would be a part of its own backups."""
    if os.path.isabs(source) and os.path.isdir(source):
        real, store = os.path.realpath(source), os.path.realpath(repository.path)
        if os.path.commonpath([real, store]) == real:
            raise BackupError(f"the repository {repository.path} is in {source}: choose a place outside")


def _later_id(repository: Repository) -> str:
    """The newest backup has the greatest id, also if the clock was set back or two are made in a second."""
    id = new_id(time.time())
    newest = max(repository.ids(), default="")
    while id <= newest:
        if id[:16] < newest[:16]:
            raise BackupError(f"the newest backup is {newest}, later than the time of this machine")
        time.sleep(0.05)
        id = new_id(time.time())
    return id


def _known_files(repository: Repository, journal_id: str) -> dict[tuple[str, str], StoredFile]:
    """Files of the newest backup of the same journal, by name and stamp."""
    for id in reversed(repository.ids()):
        try:
            manifest = repository.manifest(id)
        except BackupError:
            continue  # `verify` reports it; its files are read again
        if manifest.journal_id == journal_id:
            return {(file.name, file.stamp): file for file in manifest.files if file.stamp}
    return {}


class _Run:
    def __init__(
        self,
        source: BackupSource,
        repository: Repository,
        known: dict[tuple[str, str], StoredFile],
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._repository = repository
        self._known = known
        self._progress = progress
        self.added_bytes = 0
        self.unchanged = 0

    def store(self, index: int, file: BackupFile) -> StoredFile:
        earlier = self._known.get((file.name, file.stamp))
        if earlier is not None and all(map(self._repository.has, earlier.chunks)):
            self.unchanged += 1
            self._advance(file.bytes)
            return earlier
        if not file.stable:
            return self._store_changing(index, file)
        digests = self._source.digests(index)
        for digest, (offset, size) in zip(digests, pieces(file.bytes), strict=True):
            if not self._repository.has(digest):
                data = self._source.read(index, offset, size)
                if sha256(data).hexdigest() != digest:
                    raise BackupError(f"{file.name} changed while it was read, or did not arrive as it was")
                self.added_bytes += self._repository.put(data)[1]
            self._advance(size)
        return StoredFile(file.name, file.bytes, file.stamp, tuple(digests))

    def _store_changing(self, index: int, file: BackupFile) -> StoredFile:
        digests = []
        for offset, size in pieces(file.bytes):
            digest, added = self._repository.put(self._source.read(index, offset, size))
            digests.append(digest)
            self.added_bytes += added
            self._advance(size)
        return StoredFile(file.name, file.bytes, "", tuple(digests))

    def _advance(self, size: int) -> None:
        if self._progress is not None:
            self._progress(size)
