"""A small JSON document beside the journal, replaced as a whole: what the broker remembers of its readers.

It is on disk when `write` returns, or was not changed. Without a directory it is only in memory.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from ..errors import DiskFull, OpenQError
from ..storage.disk import FULL, Io, read_all, write_all

log = logging.getLogger("openq")

DIRECTORY = "pipeline"  # below the data directory


class NotStored(OpenQError):
    """The disk refused; nothing was changed."""

    code = "not_stored"

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}; check the disk, then try again")


class StateFile:
    def __init__(self, data_path: str | None, name: str, io: Io | None = None) -> None:
        self._io = io or Io()
        self._directory = None if data_path is None else os.path.join(data_path, DIRECTORY)
        self._path = None if self._directory is None else os.path.join(self._directory, name)

    def read(self) -> dict[str, Any]:
        """What was written last; nothing if there is none. A damaged one is told of and passed over."""
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
            log.warning("%s cannot be read and is passed over: %s", self._path, error)
            return {}
        return data

    def write(self, state: dict[str, Any]) -> None:
        if self._path is None or self._directory is None:
            return
        try:
            self._replace(self._directory, self._path, json.dumps(state, separators=(",", ":")).encode())
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull(f"no room for {self._path}") from error
            raise NotStored(self._path, error) from error

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
