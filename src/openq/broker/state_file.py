"""A small JSON document beside the journal, replaced as a whole: what the broker remembers of its readers.

It is on disk when `write` returns, or was not changed. Without a directory it is only in memory.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from typing import Any

from ..errors import DiskFull, InvalidSetting, OpenQError
from ..storage.disk import FULL, Io, read_all, write_all

log = logging.getLogger("openq")

DIRECTORY = "pipeline"  # below the data directory


class NotStored(OpenQError):
    """The disk refused; nothing was changed."""

    code = "not_stored"

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}; check the disk, then try again")
        self.public = (
            f"the server cannot write to its disk ({error.strerror or 'unknown error'}); try again later"
        )


class StateFile:
    def __init__(self, data_path: str | None, name: str, io: Io | None = None) -> None:
        self._io = io or Io()
        self._shown = f"{DIRECTORY}/{name}"  # to those who need not know where the data is
        self._distrusted = False
        self._directory = None if data_path is None else os.path.join(data_path, DIRECTORY)
        self._path = None if self._directory is None else os.path.join(self._directory, name)

    def read(self) -> dict[str, Any]:
        """What was written last; nothing if there is none. One that cannot be read is told of."""
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
            self.distrust(str(error))
            return {}
        return data

    def distrust(self, why: str) -> None:
        """It does not say what it should. It is kept under another name before it is written again."""
        log.error("%s cannot be read: %s; it will be kept as %s", self._path, why, self.aside)
        self._distrusted = True

    @property
    def aside(self) -> str:
        return f"{self._path}.unreadable"

    @property
    def is_doubtful(self) -> bool:
        """It could not be read, now or at an earlier start; until somebody removes what was kept of it."""
        return self._path is not None and (self._distrusted or os.path.exists(self.aside))

    def write(self, state: dict[str, Any]) -> None:
        if self._path is None or self._directory is None:
            return
        try:
            if self._distrusted:
                with suppress(FileNotFoundError):
                    self._io.rename(self._path, self.aside)
                self._distrusted = False
            self._replace(self._directory, self._path, json.dumps(state, separators=(",", ":")).encode())
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull(f"no room for {self._shown}") from error
            raise NotStored(self._shown, error) from error

    def _replace(self, directory: str, path: str, data: bytes) -> None:
        io = self._io
        if not os.path.isdir(directory):
            io.mkdir(directory)
            io.fsync_dir(os.path.dirname(directory))
        temporary = path + ".new"
        fd = io.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(io, fd, data, 0)
            io.fsync(fd)
        finally:
            io.close(fd)
        io.rename(temporary, path)
        io.fsync_dir(directory)


# -- fields of such a file, which anybody may have edited: each raises InvalidSetting


def told(fields: Any, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
    """The field, or the default where there is none; what a later version adds is passed over."""
    if not isinstance(fields, dict):
        raise InvalidSetting("an object is wanted")
    value = fields.get(name, default)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InvalidSetting(f"{name} is {str(value)[:100]!r}")
    return value


def told_number(fields: Any, name: str, most: float, least: int = 0, default: Any = None) -> Any:
    value = told(fields, name, (int, float) if isinstance(default, float) else int, default)
    if not least <= value <= most:
        raise InvalidSetting(f"{name} is {value}, beyond {least} to {most}")
    return value
