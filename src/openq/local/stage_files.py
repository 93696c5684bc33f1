"""Staged parts on disk: DATA/pipeline/staged/JOB/BATCH/PART.rows.

Beside them are `stage.json` and, once the commit is accepted, `commit.json`. A file is complete and synced
under its name, or it does not exist.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from .. import packed
from ..broker.staged_batches import CommitPlan, PartDamaged, PartFacts, StageUnread, StagingJob
from ..errors import DiskFull, OpenQError
from ..journal.disk import NO_SPACE, DiskIo, close_quietly, read_all, write_all

log = logging.getLogger("openq")

_PLAN, _STAGE, _SUFFIX, _TEMPORARY = "commit.json", "stage.json", ".rows", ".tmp"


class StoredBatch(NamedTuple):
    """One batch as stored on disk."""

    job: StagingJob
    batch: int
    touched_ms: int
    parts: dict[str, PartFacts]
    plan: CommitPlan | None


class StageFiles:
    def __init__(self, root: str, io: DiskIo) -> None:
        self._root = root
        self._io = io
        self._unread: set[str] = set()  # folders that exist, but could not be read

    def folder(self, job: StagingJob, batch: int) -> str:
        return os.path.join(self._root, job.folder, str(batch))

    # -- in and out

    def write_part(self, job: StagingJob, batch: int, part: str, data: bytes, is_rooted: bool) -> None:
        self._write(job, batch, part + _SUFFIX, data + crc32(data).to_bytes(4, "little"), is_rooted)

    def write_plan(self, job: StagingJob, batch: int, plan: CommitPlan, is_rooted: bool) -> None:
        self._write(job, batch, _PLAN, json.dumps(plan.to_json()).encode(), is_rooted)

    def _write(self, job: StagingJob, batch: int, name: str, data: bytes, is_rooted: bool) -> None:
        """`is_rooted`: the folder and all its parents are certainly on disk."""
        folder = self.folder(job, batch)
        try:
            if not is_rooted:
                self._io.mkdir(folder)
                fields = {"job": job.name, "account": job.account, "owner": job.owner}
                self._write_file(folder, _STAGE, json.dumps(fields).encode())
                above, top = folder, os.path.dirname(os.path.dirname(self._root))
                while above != top:  # each may be new, and so may its directory entry
                    above = os.path.dirname(above)
                    self._io.fsync_dir(above)
            self._write_file(folder, name, data)
            self._io.fsync_dir(folder)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(f"no room for {len(data)} bytes in {folder}") from error
            raise

    def _write_file(self, folder: str, name: str, data: bytes) -> None:
        path = os.path.join(folder, name)
        temporary = f"{path}.{threading.get_ident()}{_TEMPORARY}"
        fd = self._io.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self._io, fd, data, 0)
            self._io.fsync(fd)
        except BaseException:
            close_quietly(self._io, fd)
            with suppress(OSError):
                self._io.unlink(temporary)
            raise
        self._io.close(fd)
        self._io.rename(temporary, path)

    def read_part(self, job: StagingJob, batch: int, part: str) -> packed.Part:
        try:
            data = self._read_file(os.path.join(self.folder(job, batch), part + _SUFFIX))
        except FileNotFoundError:
            raise PartDamaged(job.name, batch, part) from None
        if len(data) < 4 or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise PartDamaged(job.name, batch, part)
        return packed.Part(data[:-4])

    def _read_file(self, path: str) -> bytes:
        fd = self._io.open(path, os.O_RDONLY)
        try:
            return read_all(self._io, fd, self._io.file_size(fd), 0)
        finally:
            self._io.close(fd)

    def remove(self, folder: str) -> None:
        """Remove a batch, the commit plan first.

        Parts without a plan are orphans, but a plan without its parts cannot be explained.
        """
        with suppress(OSError):
            names = os.listdir(folder)
            for name in sorted(names, key=lambda each: (each != _PLAN, each == _STAGE)):
                self._io.unlink(os.path.join(folder, name))
            os.rmdir(folder)
            with suppress(OSError):
                os.rmdir(os.path.dirname(folder))  # the folder of the job, if this was its only batch

    # -- after a restart

    def load(self) -> Iterator[StoredBatch]:
        for job_folder in self._listed(self._root, self._unread):
            for folder in self._listed(job_folder, self._unread):
                yield from self._load_stage(folder, self._unread)

    def load_rest(self) -> Iterator[StoredBatch]:
        """Load batches that could not be read before.

        Until then their jobs are blocked: see `require_read`.
        """
        unread: set[str] = set()
        for folder in sorted(self._unread):
            depth = 0 if folder == self._root else 1 if os.path.dirname(folder) == self._root else 2
            folders = [folder]
            for _ in range(depth, 2):
                folders = [inner for each in folders for inner in self._listed(each, unread)]
            for each in folders:
                yield from self._load_stage(each, unread)
        self._unread = unread

    def require_read(self, job: StagingJob) -> None:
        """Raises if a batch of this job is unread.

        An accepted commit comes before anything else of its job.
        """
        if not self._unread:
            return
        own = os.path.join(self._root, job.folder)
        if any(each in (self._root, own) or os.path.dirname(each) == own for each in list(self._unread)):
            raise StageUnread(job.name)

    def _listed(self, folder: str, unread: set[str]) -> list[str]:
        try:
            return [os.path.join(folder, name) for name in sorted(self._io.listdir(folder))]
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            log.warning("%s is not a staged batch: skipped", folder)
        except OSError as error:
            log.error("%s cannot be read, and is tried again: %s", folder, error)
            unread.add(folder)
        return []

    def _load_stage(self, folder: str, unread: set[str]) -> Iterator[StoredBatch]:
        """Load one batch.

        A folder that the disk cannot read now is retried later. An invalid batch is removed, unless its
        commit was accepted: then it stays for an operator, and for the batch that is sent again.
        """
        names = [os.path.basename(each) for each in self._listed(folder, unread)]
        if folder in unread or not os.path.isdir(folder):
            return
        try:
            found = self._read_stage(folder, names)
        except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError, OpenQError) as error:
            if _PLAN in names:
                log.error("%s is damaged: its batch must be sent again: %s", folder, error)
            else:
                log.warning("%s cannot be read and is dropped: %s", folder, error)
                self.remove(folder)
        except OSError as error:
            log.error("%s cannot be read, and is tried again: %s", folder, error)
            unread.add(folder)
        else:
            yield found

    def _read_stage(self, folder: str, names: Sequence[str]) -> StoredBatch:
        batch = int(os.path.basename(folder))
        fields = json.loads(self._read_file(os.path.join(folder, _STAGE)))
        job = StagingJob(fields["job"], fields["account"], fields["owner"])
        touched_ms = int(os.stat(folder).st_mtime * 1000)
        parts: dict[str, PartFacts] = {}
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(_TEMPORARY):
                self._io.unlink(path)
            elif name.endswith(_SUFFIX):
                parts[name.removesuffix(_SUFFIX)] = PartFacts(max(0, os.stat(path).st_size - 4))
        plan = None
        if _PLAN in names:
            plan = CommitPlan.from_json(json.loads(self._read_file(os.path.join(folder, _PLAN))))
        return StoredBatch(job, batch, touched_ms, parts, plan)
