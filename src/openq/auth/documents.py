"""Storage of the document with all users: a local file, or a document in a shared store.

A read returns the whole document and its version. A write replaces the version that the writer has read: a
file is protected by a lock file, a shared store by the version number.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from ..errors import DiskFull
from .errors import UserStoreDamaged, UserStoreUnwritable


class WriteConflict(Exception):
    """The document was changed meanwhile: read it again and retry."""


class DocumentBroker(Protocol):
    """A broker, as seen from here."""

    def document(self, name: str) -> tuple[int, bytes | None]: ...
    def put_document(self, name: str, version: int, data: bytes) -> int: ...  # its version; 0: outdated


class DocumentStore(Protocol):
    @property
    def name(self) -> str: ...  # for messages

    def read_if_changed(self, seen_version: Any) -> tuple[Any, bytes] | None:
        """The version and the document, or None if it is unchanged (`seen_version` None: never read).

        Raises UserStoreDamaged if it cannot be read, or is missing.
        """

    def exclusive(self) -> AbstractContextManager[None]:
        """Exclude other writers, where the storage supports it."""

    def write(self, seen_version: Any, data: bytes) -> Any:
        """Replace the version that was read. Returns the new version; raises WriteConflict."""


class FileDocument:
    """Readable by its owner alone from the moment it exists, and replaced as a whole."""

    def __init__(self, path: str) -> None:
        self.name = path

    def read_if_changed(self, seen_version: Any) -> tuple[Any, bytes] | None:
        try:
            stat = os.stat(self.name)
        except FileNotFoundError:
            if seen_version is None:
                return None
            raise UserStoreDamaged(self.name, "the file is missing") from None
        except OSError as error:
            raise UserStoreDamaged(self.name, error.strerror or "it cannot be read") from None
        version = _version_of(stat)
        if version == seen_version:
            return None
        try:
            with open(self.name, "rb") as file:
                return version, file.read()
        except OSError as error:
            raise UserStoreDamaged(self.name, error.strerror or "it cannot be read") from None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        os.makedirs(os.path.dirname(os.path.abspath(self.name)), exist_ok=True)
        lock = os.open(self.name + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def write(self, seen_version: Any, data: bytes) -> Any:
        with map_write_errors():
            return _version_of(_replace_file(self.name, data))


class SharedDocument:
    """A document of a store that several servers share."""

    def __init__(self, documents: DocumentBroker, document: str, name: str) -> None:
        self._documents = documents
        self._document = document
        self.name = name

    def read_if_changed(self, seen_version: Any) -> tuple[Any, bytes] | None:
        version, data = self._documents.document(self._document)
        if data is None:
            if seen_version is None:
                return None
            raise UserStoreDamaged(self.name, "the document is missing")
        return None if version == seen_version else (version, data)

    def exclusive(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, seen_version: Any, data: bytes) -> Any:
        version = self._documents.put_document(self._document, seen_version or 0, data)
        if not version:
            raise WriteConflict
        return version


def _version_of(stat: os.stat_result) -> tuple[int, int, int]:
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


@contextmanager
def map_write_errors() -> Iterator[None]:
    """Around the atomic replacement of a file: a failure has changed nothing."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("no space for the file of users or policies; nothing was changed") from error
        raise UserStoreUnwritable(error.strerror or "unknown reason") from error


def write_private(path: str, data: bytes) -> os.stat_result:
    """Create a file that only its owner can read, whatever the umask; links are not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.fchmod(fd, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _replace_file(path: str, data: bytes) -> os.stat_result:
    temporary = path + ".new"
    try:
        os.unlink(temporary)  # left by a writer that was killed
    except FileNotFoundError:
        pass
    stat = write_private(temporary, data)
    os.rename(temporary, path)
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return stat


class ObservedDocument:
    """A document whose changes are announced, so that others need not wait until they look again."""

    def __init__(self, document: DocumentStore, changed: Callable[[], None]) -> None:
        self._document = document
        self._changed = changed

    @property
    def name(self) -> str:
        return self._document.name

    def read_if_changed(self, seen_version: Any) -> tuple[Any, bytes] | None:
        return self._document.read_if_changed(seen_version)

    def exclusive(self) -> AbstractContextManager[None]:
        return self._document.exclusive()

    def write(self, seen_version: Any, data: bytes) -> Any:
        version = self._document.write(seen_version, data)
        self._changed()
        return version
