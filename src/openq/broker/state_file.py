"""A small JSON document beside the journal, replaced as a whole: the broker's state of its readers.

When `write` returns, the document is on disk. If `write` fails, nothing was changed. Without a directory it
is only in memory.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from typing import Any

from ..errors import DiskFull, InvalidSetting, OpenQError
from ..journal.disk import NO_SPACE, DiskIo, read_all, replace_file

log = logging.getLogger("openq")

DIRECTORY = "pipeline"  # below the data directory


class NotStored(OpenQError):
    """The disk refused the write; nothing was changed."""

    code = "not_stored"

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}; check the disk, then try again")
        self.public = (
            f"the server cannot write to its disk ({error.strerror or 'unknown error'}); try again later"
        )


class StateFile:
    def __init__(self, data_path: str | None, name: str, io: DiskIo | None = None) -> None:
        self._io = io or DiskIo()
        self._shown = f"{DIRECTORY}/{name}"  # the name without the data directory, for clients
        self._is_unreadable = False
        self._directory = None if data_path is None else os.path.join(data_path, DIRECTORY)
        self._path = None if self._directory is None else os.path.join(self._directory, name)

    def read(self) -> dict[str, Any]:
        """The last written document; empty if there is none. An unreadable file is logged."""
        if self._path is None:
            return {}
        try:
            fd = self._io.open(self._path, os.O_RDONLY)
            try:
                data = json.loads(read_all(self._io, fd, self._io.file_size(fd), 0))
            finally:
                self._io.close(fd)
            if not isinstance(data, dict):
                raise ValueError("it is no object")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self.mark_unreadable(str(error))
            return {}
        return data

    def mark_unreadable(self, why: str) -> None:
        """The content is invalid. The file is kept under another name before it is written again."""
        log.error("%s cannot be read: %s; it will be kept as %s", self._path, why, self.unreadable_path)
        self._is_unreadable = True

    @property
    def unreadable_path(self) -> str:
        return f"{self._path}.unreadable"

    @property
    def is_unreadable(self) -> bool:
        """Whether the file could not be read, now or at an earlier start.

        True until an operator removes the kept copy.
        """
        return self._path is not None and (self._is_unreadable or os.path.exists(self.unreadable_path))

    def write(self, state: dict[str, Any]) -> None:
        if self._path is None or self._directory is None:
            return
        try:
            if self._is_unreadable:
                with suppress(FileNotFoundError):
                    self._io.rename(self._path, self.unreadable_path)
                self._is_unreadable = False
            self._replace(self._directory, self._path, json.dumps(state, separators=(",", ":")).encode())
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(f"no room for {self._shown}") from error
            raise NotStored(self._shown, error) from error

    def _replace(self, directory: str, path: str, data: bytes) -> None:
        io = self._io
        if not os.path.isdir(directory):
            io.mkdir(directory)
            io.fsync_dir(os.path.dirname(directory))
        replace_file(io, path, data)


# -- fields of such a file, which may have been edited by hand: each raises InvalidSetting


def read_field(fields: Any, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
    """The field, or the default if it is missing. Fields that a later version adds are ignored."""
    if not isinstance(fields, dict):
        raise InvalidSetting("an object is wanted")
    value = fields.get(name, default)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InvalidSetting(f"{name} is {str(value)[:100]!r}")
    return value


def read_number(fields: Any, name: str, maximum: float, minimum: int = 0, default: Any = None) -> Any:
    value = read_field(fields, name, (int, float) if isinstance(default, float) else int, default)
    if not minimum <= value <= maximum:
        raise InvalidSetting(f"{name} is {value}, beyond {minimum} to {maximum}")
    return value
