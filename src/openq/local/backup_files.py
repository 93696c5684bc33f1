"""The files of a data directory that belong into a backup.

Everything is included, also files that this version does not know, except what is made again by itself
(sidecars, bounds, reserve, spare segments, lock files), half-written files, damaged bytes that a repair set
aside, data that a restore replaced, and the archive, which has its own copies (docs/BACKUP.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..broker.backups import BackupFile
from ..journal.disk import DiskIo
from ..journal.lockfile import NAME as LOCK
from ..journal.lockfile import RESTORING
from ..journal.repair import QUARANTINE
from ..journal.scan import read_header, segment_numbers, segment_path

JOURNAL = "journal"
SNAPSHOTS = "snapshots"
CLEAN = "CLEAN"
REPLACED = "replaced-"  # begins the name of the folder with data that a restore moved aside
UNSTABLE = frozenset({"series.dat"})  # written in place; torn rows read as missing
_LEFT_OUT = frozenset({LOCK, RESTORING, CLEAN, JOURNAL, SNAPSHOTS, QUARANTINE, "archive"})
_STAGED = os.path.join("pipeline", "staged")
_PLAN = "commit.json"
_TEMPORARY = (".tmp", ".new", ".lock")


def stamp_of(stat: os.stat_result) -> str:
    """Changes with the content: files are replaced by a rename, or grow."""
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


def read_journal_id(directory: str) -> str:
    """The salt of the journal. Raises FileNotFoundError if there is no segment."""
    io = DiskIo()
    folder = os.path.join(directory, JOURNAL)
    for number in segment_numbers(io, folder):
        return f"{read_header(io, segment_path(folder, number)).salt:016x}"
    raise FileNotFoundError(folder)


def segment_name(number: int) -> str:
    return f"{JOURNAL}/{os.path.basename(segment_path('', number))}"


def documents(directory: str) -> Iterator[str]:
    """The names of all files beside the journal and its snapshots."""
    for root, folders, names in os.walk(directory):
        relative = os.path.relpath(root, directory)
        if relative == ".":
            folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(REPLACED)]
            names = [name for name in names if name not in _LEFT_OUT]
            relative = ""
        folders.sort()
        if _is_staged_only(relative, names):
            continue
        for name in sorted(names):
            path = os.path.join(root, name)
            is_lock = relative == "audit" and name == "lock"
            if not (is_lock or name.endswith(_TEMPORARY) or os.path.islink(path)) and os.path.isfile(path):
                yield "/".join([*relative.split(os.sep), name] if relative else [name])


def _is_staged_only(relative: str, names: list[str]) -> bool:
    """Whether the folder holds parts of a batch that is not accepted: its job sends them again."""
    return relative.startswith(_STAGED + os.sep) and _PLAN not in names


def directory_files(directory: str) -> list[BackupFile]:
    """All files of a directory that no process uses."""
    names = [
        *(f"{JOURNAL}/{name}" for name in _listed(directory, JOURNAL, ".seg")),
        *(f"{SNAPSHOTS}/{name}" for name in _listed(directory, SNAPSHOTS, ".snap")),
        *documents(directory),
    ]
    if os.path.exists(os.path.join(directory, CLEAN)):
        names.append(CLEAN)
    found = []
    for name in names:
        stat = os.stat(os.path.join(directory, *name.split("/")))
        found.append(BackupFile(name, stat.st_size, stamp_of(stat)))
    return found


def _listed(directory: str, folder: str, ending: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(os.path.join(directory, folder)) if name.endswith(ending))
    except FileNotFoundError:
        return []
