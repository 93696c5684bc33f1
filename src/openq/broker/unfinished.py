"""What an interrupted migration leaves behind: a part of another broker, which nobody may use as the whole.

`openq migrate` keeps its state in the target: the file `migration.json` of a data directory, or a document of
the same name in Redis. Every broker looks at it when it is opened.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

from ..errors import InvalidSetting, UnfinishedMigration
from ..journal.disk import DiskIo, read_all, write_all

DOCUMENT = "migration"
FILE = f"{DOCUMENT}.json"


def read_state(directory: str, io: DiskIo) -> bytes | None:
    """The state in a data directory; None: nothing was migrated into it."""
    try:
        fd = io.open(os.path.join(directory, FILE), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_all(io, fd, io.file_size(fd), 0)
    finally:
        io.close(fd)


def write_state(directory: str, io: DiskIo, data: bytes) -> None:
    """The state is on disk when this returns."""
    path = os.path.join(directory, FILE)
    fd = io.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(io, fd, data, 0)
        io.fsync(fd)
    finally:
        io.close(fd)
    io.rename(f"{path}.new", path)
    io.fsync_dir(directory)


def refuse_unfinished(data: bytes | None, place: str) -> None:
    """Raises UnfinishedMigration if this state of a migration into `place` has begun and is not done."""
    if data is None:
        return
    try:
        state: dict[str, Any] = json.loads(data)
    except ValueError:
        raise InvalidSetting(f"the state of the migration into {place} cannot be read") from None
    if state.get("begun") and not state.get("done"):
        source = state.get("place") or "SOURCE"
        words = ["openq", "migrate", "--from", source, "--to", place, *state.get("options", ())]
        raise UnfinishedMigration(place, source, shlex.join(words))
