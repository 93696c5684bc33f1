"""Where backups come from: a server, a broker of this process, or a data directory that nobody uses."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..broker.backups import CHUNK_BYTES, BackupFile, BackupPoint, Backups, HeldFiles, digest_pieces
from ..client.rest_client import RestClient, Retries
from ..errors import InvalidSetting
from ..journal.lockfile import DirectoryLock
from ..local.backup_files import directory_files, read_journal_id
from .repository import BackupError

_RETRIES = Retries(total_s=20.0, first_s=5.0)


class BackupSource(HeldFiles, Protocol):
    @property
    def name(self) -> str: ...  # for people
    def end(self, copied: int | None) -> None: ...  # bytes that were new; None: it failed


class DirectorySource:
    """A directory that no process uses; it is locked meanwhile."""

    def __init__(self, path: str) -> None:
        self.name = os.path.abspath(path)
        now_ms = time.time_ns() // 1_000_000
        if not os.path.isdir(os.path.join(path, "journal")):
            raise BackupError(f"{path} is not a data directory of OpenQ")
        self._lock = DirectoryLock(self.name, now_ms)
        try:
            files = tuple(directory_files(self.name))
            self.point = BackupPoint(secrets.token_hex(8), read_journal_id(self.name), 0, now_ms, files)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, FileNotFoundError):
                raise BackupError(f"{path} has no journal to back up") from None
            raise

    def read(self, index: int, offset: int, size: int) -> bytes:
        path = os.path.join(self.name, *self.point.files[index].name.split("/"))
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def digests(self, index: int) -> Sequence[str]:
        return digest_pieces(self, index)

    def end(self, copied: int | None) -> None:
        self._lock.release()


class BrokerSource:
    """A broker of this process."""

    def __init__(self, backups: Backups, name: str) -> None:
        self.name = name
        self._backups = backups
        self.point = backups.begin()
        self._files = backups.files(self.point.id)

    def read(self, index: int, offset: int, size: int) -> bytes:
        return self._files.read(index, offset, size)

    def digests(self, index: int) -> Sequence[str]:
        return self._files.digests(index)

    def end(self, copied: int | None) -> None:
        self._backups.end(self.point.id)


class ServerBackupSource:
    """A running server, over its REST API."""

    def __init__(self, client: RestClient) -> None:
        self._client = client
        self.name = client.url
        client.retries = _RETRIES
        fields = self._json("POST", "backups", {})
        if fields["chunk_bytes"] != CHUNK_BYTES:
            raise BackupError(f"{self.name} reads pieces of another size: use the same version of OpenQ")
        self.point = BackupPoint(
            fields["id"],
            fields["journal_id"],
            fields["location"],
            fields["time_ms"],
            tuple(BackupFile(**each) for each in fields["files"]),
            fields["queues"],
            fields["messages"],
        )

    def _json(self, method: str, path: str, body: Any = None, **query: object) -> Any:
        # A backup that is begun twice is released by itself, and reading changes nothing.
        return self._client.call(method, path, json=body, query=query).json()

    def read(self, index: int, offset: int, size: int) -> bytes:
        path = f"backups/{self.point.id}/files/{index}"
        return self._client.call("GET", path, query={"offset": offset, "bytes": size}, accept="*/*").body

    def digests(self, index: int) -> Sequence[str]:
        found: list[str] = self._json("GET", f"backups/{self.point.id}/files/{index}/digests")["digests"]
        return found

    def end(self, copied: int | None) -> None:
        outcome = "failed" if copied is None else "done"
        self._json("DELETE", f"backups/{self.point.id}", outcome=outcome, copied=copied or 0)


@contextmanager
def open_source(source: Any) -> Iterator[BackupSource]:
    """A data directory, a `RestClient`, a broker, or an object of the library that has one (`OpenQ`)."""
    opened: BackupSource
    if isinstance(source, str | os.PathLike):
        text = os.fspath(source)
        if "://" in text:
            opened = ServerBackupSource(RestClient(text))
        else:
            opened = DirectorySource(text)
    elif isinstance(source, RestClient):
        opened = ServerBackupSource(source)
    else:
        broker = getattr(source, "broker", source)
        backups = getattr(getattr(broker, "admin", None), "backups", None)
        if backups is None:
            raise InvalidSetting("this is not a broker of this process: give its data directory or its URL")
        opened = BrokerSource(backups, broker.storage.place)
    ended = _EndedOnce(opened)
    try:
        yield ended
    finally:
        ended.end(None)


class _EndedOnce:
    """Ends a source once: by `create`, or when the block is left."""

    def __init__(self, source: BackupSource) -> None:
        self._source = source
        self._is_over = False
        self.name = source.name
        self.point = source.point
        self.read = source.read
        self.digests = source.digests

    def end(self, copied: int | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._source.end(copied)
