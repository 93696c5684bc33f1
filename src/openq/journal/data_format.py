"""`FORMAT`: the format of a data directory, and which version of OpenQ last raised it.

A version reads every format up to its own. Of a later one it cannot know what it would lose, so it opens
nothing and changes nothing. `FORMAT` rises with everything on disk that an earlier version cannot read: a new
kind of record, a new snapshot, another segment. Directories from before this file have no format: every
version reads them.

The line is `FORMAT VERSION CRC32`: the checksum distinguishes a damaged file, which is written anew, from a
later format.
"""

from __future__ import annotations

import logging
import os
from zlib import crc32

from openq._version import __version__
from openq.errors import NewerFormat
from openq.journal.disk import DiskIo, close_quietly, write_all

log = logging.getLogger("openq.journal")

NAME = "FORMAT"
FORMAT = 1
_MAX_BYTES = 1000


def read(directory: str) -> tuple[int, str]:
    """The format and the version that wrote it; (0, "") if there is none, or if it is unreadable."""
    try:
        with open(os.path.join(directory, NAME), "rb") as file:
            line = file.read(_MAX_BYTES)
        number, version, _ = line.decode("ascii").split()
        if line == _line(int(number), version):
            return int(number), version
    except (OSError, ValueError):
        pass
    return 0, ""


def _line(number: int, version: str) -> bytes:
    text = f"{number} {version}"
    return f"{text} {crc32(text.encode()):08x}\n".encode()


def check(directory: str) -> None:
    """Raises NewerFormat."""
    found, version = read(directory)
    if found > FORMAT:
        raise NewerFormat(
            directory, f"format {found}, of OpenQ {version}", f"OpenQ {__version__} reads {FORMAT}"
        )


def write(io: DiskIo, directory: str) -> None:
    """Raise the format to ours. A failure is only logged: a server also starts on a full disk."""
    if read(directory)[0] >= FORMAT:
        return
    try:
        fd = io.open(os.path.join(directory, NAME), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(io, fd, _line(FORMAT, __version__), 0)
            io.fsync(fd)
        finally:
            close_quietly(io, fd)
    except OSError as error:
        log.warning("the format of %s cannot be noted: %s", directory, error)
