"""Batches of messages that come in parts and are published all at once, and once only.

A job sends the rows of a batch as parts (`openq.packed`), as many as it likes from wherever it runs. They
lie in DATA/pipeline/staged until somebody commits the batch with the list of those that count:

    1. every row is looked at; a batch with a bad one is refused, or the bad ones go to a dead-letter queue
    2. the promise: `commit.json`. From here on the batch will be published, whatever happens to this process
    3. chunk by chunk, each in one block of the journal together with a mark of how far the batch is

So a chunk and its mark (`engine/marks.py`) are both on disk or neither is; after a crash the marks say where
to go on, and that a batch is done. The batches of a job are numbered and only grow. A batch of one chunk is
one atomic append and needs no promise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from .. import packed
from ..engine import marks
from ..engine.core import REFUSING
from ..engine.queue import Queue
from ..errors import Closed, DiskFull, InvalidSetting, OpenQError, QueueFull, QueueNotFound
from ..model import FORM_BYTES, Draft
from ..names import DEFAULT_ACCOUNT, full_name, split_name
from ..storage.disk import FULL, Io, close_quietly, read_all, write_all
from .rows import (
    DRAFT_WEIGHT,
    INTENDED,
    MOST_REASON,
    REASON,
    Bad,
    Slice,
    check_columns,
    json_info,
    plain_queue,
    read_rows,
)

if TYPE_CHECKING:
    from .local import LocalBroker

log = logging.getLogger("openq")

MOST_PART = 20 << 20  # no more than `max_request_bytes` is unless somebody sets it
MOST_STAGED = 32 << 30  # on disk, of all batches together
MOST_IN_MEMORY = 256 << 20  # where there is no disk
MOST_PARTS = 100_000  # of one batch
MOST_STAGES = 10_000
MOST_BATCH = 1 << 53
MOST_REJECTED = 100_000  # rows of one batch: beyond this it is the batch that is wrong
KEPT_MS = 86_400_000  # parts that nobody commits: the slowest task of a job may take hours

CHUNK_ROWS = 20_000  # published under one hold of the lock
CHUNK_BYTES = 4 << 20

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_PROMISE, _STAGE, _SUFFIX, _TEMPORARY = "commit.json", "stage.json", ".rows", ".tmp"
_MARK_BYTES = 2048  # of its record, at most

MaySend = Callable[[str], None]  # raises if messages must not be sent to the queue of this full name


class StageNotFound(OpenQError):
    """A part that a commit names is not here."""

    code = "stage_not_found"


class StagingFull(OpenQError):
    code = "staging_full"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: commit or abort some; what nobody commits is dropped after a day")


class PartTooLarge(OpenQError):
    code = "part_too_large"

    def __init__(self, size: int) -> None:
        super().__init__(f"a part of {size} bytes; it has at most {MOST_PART}")


class PartDamaged(InvalidSetting):
    """What is on disk is not what was sent."""

    def __init__(self, stage: _Stage, part: str) -> None:
        super().__init__(
            f"part {part} of job {stage.job.name!r}, batch {stage.batch} is damaged: send this part again, "
            "or abort the batch and send all of it again"
        )


class StageUnread(OpenQError):
    """What is staged is kept, but the disk does not let it be read now."""

    code = "stage_unread"

    def __init__(self, job: str) -> None:
        super().__init__(f"what is staged of job {job!r} cannot be read at the moment; it is tried again")


class NotYourJob(OpenQError):
    code = "forbidden"

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job!r} belongs to somebody else: choose another name for yours")


@dataclass(frozen=True, slots=True)
class Job:
    """Whose batches these are. Jobs of different accounts do not meet; the owner "" is everybody."""

    name: str
    account: str = DEFAULT_ACCOUNT
    owner: str = ""
    is_admin: bool = False  # who asks may touch what belongs to others

    def __post_init__(self) -> None:
        check_part_name("job", self.name)

    @property
    def key(self) -> str:
        return full_name(self.account, self.name)

    @property
    def folder(self) -> str:
        if self.account == DEFAULT_ACCOUNT:
            return self.name
        return f"{hashlib.sha256(self.account.encode()).hexdigest()[:16]}~{self.name}"

    def require(self, owner: str) -> None:
        if owner and self.owner and owner != self.owner and not self.is_admin:
            raise NotYourJob(self.name)


def check_part_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name) or not name.strip("."):
        raise InvalidSetting(
            f"the name of a {what} has 1 to 100 letters, digits, dots, dashes and underscores, "
            f"not {name[:100]!r}"
        )


def _check_batch(batch: int) -> None:
    if not 0 <= batch <= MOST_BATCH:
        raise InvalidSetting(f"a batch is a number from 0 to {MOST_BATCH}, not {batch}")


@dataclass(frozen=True, slots=True)
class Committed:
    published: int
    rejected: int
    repeated: bool  # this batch was published before, or is being


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of a part without reading it again; after a restart that is only its size."""

    bytes: int
    rows: int = 0
    is_plain: bool = False  # all rows are nothing but bodies, for
    queue: str | None = None  # this queue, or the one that the commit names


@dataclass(slots=True)
class _Stage:
    """The parts of one batch."""

    job: Job
    batch: int
    touched_ms: int
    parts: dict[str, _Facts] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)  # where there is no disk
    writing: set[str] = field(default_factory=set)  # parts on their way to disk
    is_closed: bool = False  # somebody commits it: what comes now is too late
    is_leaving: bool = False  # its files are being removed: what comes now waits, and begins anew
    is_rooted: bool = False  # its folder and all above are on disk for sure
    promise: _Promise | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class _Promise:
    """What `commit.json` says: from it and the parts follows all that is to be published."""

    parts: tuple[tuple[str, int], ...]  # name and rows, in their order
    queue: str | None  # for rows that name none; full names
    dead_letter: str | None
    rejected: dict[int, str]  # row -> why

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Most rejected rows have one of few reasons: each is written once."""
        reasons = {why: number for number, why in enumerate(dict.fromkeys(self.rejected.values()))}
        return {
            "parts": self.parts,
            "queue": self.queue,
            "dead_letter": self.dead_letter,
            "reasons": list(reasons),
            "rejected": [(row, reasons[why]) for row, why in self.rejected.items()],
        }

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> _Promise:
        parts = tuple((name, rows) for name, rows in told["parts"])
        reasons = told.get("reasons")  # older files have each with its row
        rejected = {row: why if reasons is None else reasons[why] for row, why in told["rejected"]}
        return cls(parts, told["queue"], told["dead_letter"], rejected)


@dataclass(frozen=True, slots=True)
class StageView:
    """For whoever lists them."""

    job: Job
    batch: int
    parts: int
    bytes: int
    touched_ms: int
    is_committed: bool


class Staging:
    """All staged parts of a broker. Every method may take a while: not for an event loop."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        journal = broker.journal
        self._io = Io() if journal is None else journal.io
        self._root = None if journal is None else os.path.join(journal.path, "pipeline", "staged")
        self._most = MOST_IN_MEMORY if journal is None else MOST_STAGED
        self._lock = threading.Lock()  # of the tables below; never held over a disk access
        self._settled = threading.Condition(self._lock)  # a part was written, or a stage has left
        self._stages: dict[tuple[str, int], _Stage] = {}
        self._busy: dict[str, tuple[threading.Lock, int]] = {}  # by job, and how many want it
        self._staged = 0
        self._unread: set[str] = set()  # folders that are there, but could not be read
        if self._root is not None:
            self._load(self._root)

    # -- the verbs

    def put(self, job: Job, batch: int, part: str, data: bytes) -> int:
        """Keep a part, on disk when this returns. The same name again replaces it. Returns its rows."""
        check_part_name("part", part)
        _check_batch(batch)
        if len(data) > MOST_PART:
            raise PartTooLarge(len(data))
        found = packed.Part(data)
        check_columns(found)
        self._require_read(job)
        known = self._broker.engine.marks.get(job.key)
        if known is not None:
            job.require(known.owner)
            if known.is_done(batch):
                return found.rows  # a repetition: its commit will hear so
        one = plain_queue(found, job.account, "")
        facts = _Facts(len(data), found.rows, one is not None, one or None)
        stage = self._enter(job, batch, part, facts)
        if stage is None:
            return found.rows
        is_written = False
        try:
            if self._root is None:
                stage.data[part] = data
            else:
                self._write_part(self._root, stage, part, data)
            is_written = True
        finally:
            self._leave(stage, part, facts, is_written)
        return found.rows

    def commit(
        self,
        job: Job,
        batch: int,
        parts: Sequence[str],
        rows: int | None = None,
        *,
        queue: str | None = None,
        dead_letter: str | None = None,
        may_send: MaySend | None = None,
    ) -> Committed:
        """Publish the rows of these parts in this order; on disk when this returns.

        `queue` is for rows that name none. With a `dead_letter` queue bad rows go there, without one the
        first of them makes the whole batch be refused, and nothing is published.
        """
        _check_batch(batch)
        with self._turn(job.key):
            self._require_read(job)
            done = self._done(job, batch)
            if done is not None:
                self._discard(job, batch)
                return done
            self._finish_older(job, batch)
            stage = self._closed_stage(job, batch)
            if stage.promise is not None:
                return self._fulfil(stage, stage.promise, is_repeated=True)
            try:
                promise = self._check(
                    stage,
                    parts,
                    rows,
                    full_name(job.account, queue) if queue else None,
                    full_name(job.account, dead_letter) if dead_letter else None,
                    _Gates(self._broker, may_send),
                )
                if self._broker.engine.marks.get(job.key) is None:
                    if not promise.rows:  # a job that never published anything needs no memory of it
                        self._discard(job, batch)
                        return Committed(0, 0, False)
                    with self._broker.lock:
                        marks.make_room(self._broker.engine, stage.job.owner, self._broker.now_ms())
                self._require_room(CHUNK_BYTES)
                if not _is_small(stage, promise):
                    self._promise(stage, promise)
                return self._fulfil(stage, promise, is_repeated=False)
            except BaseException:
                self._reopen(stage)
                raise

    def abort(self, job: Job, batch: int) -> bool:
        """Drop what was staged. False: the batch is committed, and stays so.

        Unless it is promised and a part of it is damaged: nothing but sending it again can mend that.
        """
        _check_batch(batch)
        with self._turn(job.key):
            self._require_read(job)
            if self._done(job, batch) is not None:
                self._discard(job, batch)
                return False
            with self._lock:
                stage = self._stages.get((job.key, batch))
            if stage is not None:
                job.require(stage.job.owner)
                if stage.promise is not None:
                    damaged = self._damaged(stage, stage.promise)
                    if damaged is None:
                        return False
                    log.warning("job %r, batch %d is dropped: part %s is damaged", job.key, batch, damaged)
                self._discard(job, batch)
            return True

    def stages(self) -> list[StageView]:
        with self._lock:
            return [
                StageView(
                    each.job, each.batch, len(each.parts), each.bytes, each.touched_ms, bool(each.promise)
                )
                for each in self._stages.values()
            ]

    def sweep(self) -> None:
        """Now and then, and after a start: finish what was promised, drop what nobody wants any more."""
        now_ms = self._broker.now_ms()
        self._read_again()
        with self._lock:
            stages = sorted(self._stages.values(), key=lambda each: each.batch)
        for stage in stages:
            if stage.job.key in self._busy:
                continue  # somebody commits: the next sweep will do
            try:
                with self._turn(stage.job.key):
                    if self._stages.get((stage.job.key, stage.batch)) is not stage:
                        continue
                    if stage.promise is not None:
                        self._fulfil(stage, stage.promise, is_repeated=True)
                        log.info("published what was promised: job %r, batch %d", stage.job.key, stage.batch)
                    elif now_ms - stage.touched_ms > KEPT_MS or self._done(stage.job, stage.batch):
                        self._discard(stage.job, stage.batch)
            except Closed:
                return
            except (OpenQError, OSError) as error:
                log.warning("job %r, batch %d has to wait: %s", stage.job.key, stage.batch, error)

    # -- one after the other

    @contextmanager
    def _turn(self, key: str) -> Iterator[None]:
        """One commit of a job at a time; a second one waits and finds it done."""
        with self._lock:
            lock, count = self._busy.get(key, (threading.Lock(), 0))
            self._busy[key] = (lock, count + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, count = self._busy.pop(key)
                if count > 1:
                    self._busy[key] = (lock, count - 1)

    def _done(self, job: Job, batch: int) -> Committed | None:
        known = self._broker.engine.marks.get(job.key)
        if known is None:
            return None
        job.require(known.owner)
        if not known.is_done(batch):
            return None
        self._wait()  # the mark may be on its way to disk only
        if batch < known.batch:
            return Committed(0, 0, True)
        return Committed(known.rows - known.rejected, known.rejected, True)

    def _finish_older(self, job: Job, batch: int) -> None:
        """What was promised comes first: a mark that is ahead of it would say that it is done."""
        with self._lock:
            found = [
                stage
                for (key, number), stage in self._stages.items()
                if key == job.key and number < batch and stage.promise is not None
            ]
        for stage in sorted(found, key=lambda each: each.batch):
            assert stage.promise is not None
            self._fulfil(stage, stage.promise, is_repeated=True)

    def _closed_stage(self, job: Job, batch: int) -> _Stage:
        with self._lock:
            stage = self._stages.get((job.key, batch))
            if stage is None:  # a batch without rows
                stage = self._stages[job.key, batch] = _Stage(job, batch, self._broker.now_ms())
            job.require(stage.job.owner)
            stage.is_closed = True
            stage.touched_ms = self._broker.now_ms()
            self._settled.wait_for(lambda: not stage.writing)  # what is half written is not half committed
            return stage

    def _reopen(self, stage: _Stage) -> None:
        """A commit failed before its promise: another one may follow, with other parts."""
        with self._lock:
            if stage.promise is not None:
                return
            stage.is_closed = False
            if not stage.parts:
                self._stages.pop((stage.job.key, stage.batch), None)

    def _require_room(self, size: int) -> None:
        journal = self._broker.journal
        if journal is not None:
            with self._broker.lock:
                has_room = journal.can_publish(size + 256)
            if not has_room:
                raise DiskFull(f"{journal.path} has no room left but the reserve")

    def _wait(self) -> None:
        """Until all so far is on disk, also where answers do not wait for that: the parts go next."""
        journal = self._broker.journal
        if journal is not None:
            at = journal.end_at - 1
            if at >= journal.durable_at:
                journal.wait(at)
            elif journal.error is not None:
                raise journal.error
        self._broker.announce()

    # -- parts in and out

    def _enter(self, job: Job, batch: int, part: str, facts: _Facts) -> _Stage | None:
        """Reserves the bytes, and the name. None: the batch is being committed, and this comes too late to
        matter, unless it is what a damaged batch waits for."""
        mends = self._mends(job, batch, part, facts.rows)
        with self._lock:
            while True:
                stage = self._stages.get((job.key, batch))
                if stage is None or not (stage.is_leaving or part in stage.writing):
                    break
                self._settled.wait()
            if stage is None:
                if len(self._stages) >= MOST_STAGES:
                    raise StagingFull(f"{MOST_STAGES} batches are staged")
                stage = _Stage(job, batch, 0)
            job.require(stage.job.owner)
            if stage.is_closed and not (mends and stage.promise is not None):
                return None
            if part not in stage.parts and len(stage.parts) + len(stage.writing) >= MOST_PARTS:
                raise InvalidSetting(f"a batch has at most {MOST_PARTS} parts")
            if self._staged + facts.bytes > self._most:
                raise StagingFull(f"{self._staged} bytes are staged, and {facts.bytes} more are too many")
            self._staged += facts.bytes
            stage.writing.add(part)
            stage.touched_ms = self._broker.now_ms()
            self._stages[job.key, batch] = stage
            return stage

    def _mends(self, job: Job, batch: int, part: str, rows: int) -> bool:
        """Whether a promised batch lacks just this part."""
        with self._lock:
            stage = self._stages.get((job.key, batch))
        if stage is None or stage.promise is None:
            return False
        job.require(stage.job.owner)
        return self._is_damaged(stage, stage.promise, part, rows)

    def _leave(self, stage: _Stage, part: str, facts: _Facts, is_written: bool) -> None:
        """A part counts once it is written; where that failed, the one before may still be there."""
        with self._lock:
            stage.writing.discard(part)
            before = stage.parts.get(part)
            if is_written:
                stage.parts[part] = facts
                self._staged -= 0 if before is None else before.bytes
            else:
                self._staged -= facts.bytes
                if before is not None and self._root is not None:
                    stage.parts[part] = _Facts(before.bytes)  # whichever of the two: it will be read
            key = stage.job.key, stage.batch
            if not (stage.parts or stage.writing or stage.is_closed) and self._stages.get(key) is stage:
                del self._stages[key]
            self._settled.notify_all()

    def _folder(self, root: str, stage: _Stage) -> str:
        return os.path.join(root, stage.job.folder, str(stage.batch))

    def _write_part(self, root: str, stage: _Stage, part: str, data: bytes) -> None:
        self._require_room(0)  # a disk that is full has no room for this either
        self._write(root, stage, part + _SUFFIX, data + crc32(data).to_bytes(4, "little"))

    def _write(self, root: str, stage: _Stage, name: str, data: bytes) -> None:
        """Whole and on disk under its name, or not there."""
        folder = self._folder(root, stage)
        try:
            if not stage.is_rooted:
                self._io.mkdir(folder)
                job = stage.job
                told = {"job": job.name, "account": job.account, "owner": job.owner}
                self._write_file(folder, _STAGE, json.dumps(told).encode())
                above = folder
                while above != os.path.dirname(os.path.dirname(root)):  # each may be new, and its entry too
                    above = os.path.dirname(above)
                    self._io.fsync_dir(above)
                stage.is_rooted = True
            self._write_file(folder, name, data)
            self._io.fsync_dir(folder)
        except OSError as error:
            if error.errno in FULL:
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

    def _read_part(self, stage: _Stage, part: str) -> packed.Part:
        if self._root is None:
            return packed.Part(stage.data[part])
        try:
            data = self._read_file(os.path.join(self._folder(self._root, stage), part + _SUFFIX))
        except FileNotFoundError:
            raise PartDamaged(stage, part) from None
        if len(data) < 4 or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise PartDamaged(stage, part)
        return packed.Part(data[:-4])

    def _is_damaged(self, stage: _Stage, promise: _Promise, part: str, rows: int) -> bool:
        """Whether this promised part cannot be read, and one of so many rows may stand in for it."""
        if (part, rows) not in promise.parts:
            return False
        try:
            self._read_part(stage, part)
        except PartDamaged:
            return True
        return False

    def _damaged(self, stage: _Stage, promise: _Promise) -> str | None:
        found = (part for part, rows in promise.parts if self._is_damaged(stage, promise, part, rows))
        return next(found, None)

    def _read_file(self, path: str) -> bytes:
        fd = self._io.open(path, os.O_RDONLY)
        try:
            return read_all(self._io, fd, self._io.file_size(fd), 0)
        finally:
            self._io.close(fd)

    def _discard(self, job: Job, batch: int) -> None:
        """Known until its files are gone: whoever sends it anew meanwhile writes into the same folder."""
        with self._lock:
            stage = self._stages.get((job.key, batch))
            if stage is None or stage.is_leaving:
                return
            stage.is_leaving = True
            self._settled.wait_for(lambda: not stage.writing)
        try:
            if self._root is not None:
                self._remove(self._folder(self._root, stage))
        finally:
            with self._lock:
                if self._stages.get((job.key, batch)) is stage:
                    del self._stages[job.key, batch]
                self._staged -= stage.bytes
                self._settled.notify_all()

    def _remove(self, folder: str) -> None:
        """The promise goes first: parts without one are orphans, a promise without its parts is a riddle."""
        with suppress(OSError):
            names = os.listdir(folder)
            for name in sorted(names, key=lambda each: (each != _PROMISE, each == _STAGE)):
                self._io.unlink(os.path.join(folder, name))
            os.rmdir(folder)
            with suppress(OSError):
                os.rmdir(os.path.dirname(folder))  # of the job, if this was its only batch

    # -- after a restart

    def _load(self, root: str) -> None:
        for job_folder in self._listed(root, self._unread):
            for folder in self._listed(job_folder, self._unread):
                self._load_stage(folder, self._unread)

    def _listed(self, folder: str, unread: set[str]) -> list[str]:
        try:
            return [os.path.join(folder, name) for name in sorted(self._io.listdir(folder))]
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            log.warning("%s is none of ours, and is passed over", folder)
        except OSError as error:
            log.error("%s cannot be read, and is tried again: %s", folder, error)
            unread.add(folder)
        return []

    def _load_stage(self, folder: str, unread: set[str]) -> None:
        """What a disk does not give now it may give later. What makes no sense goes, unless it was promised:
        that stays for whoever looks after it, and for the batch that is sent again."""
        names = [os.path.basename(each) for each in self._listed(folder, unread)]
        if folder in unread or not os.path.isdir(folder):
            return
        try:
            stage = self._read_stage(folder, names)
        except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError, OpenQError) as error:
            if _PROMISE in names:
                log.error("%s is damaged: its batch must be sent again: %s", folder, error)
            else:
                log.warning("%s cannot be read and is dropped: %s", folder, error)
                self._remove(folder)
        except OSError as error:
            log.error("%s cannot be read, and is tried again: %s", folder, error)
            unread.add(folder)
        else:
            with self._lock:
                self._stages[stage.job.key, stage.batch] = stage
                self._staged += stage.bytes

    def _read_stage(self, folder: str, names: Sequence[str]) -> _Stage:
        batch = int(os.path.basename(folder))
        told = json.loads(self._read_file(os.path.join(folder, _STAGE)))
        job = Job(told["job"], told["account"], told["owner"])
        stage = _Stage(job, batch, int(os.stat(folder).st_mtime * 1000))
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(_TEMPORARY):
                self._io.unlink(path)
            elif name.endswith(_SUFFIX):
                stage.parts[name.removesuffix(_SUFFIX)] = _Facts(max(0, os.stat(path).st_size - 4))
        if _PROMISE in names:
            stage.promise = _Promise.from_json(json.loads(self._read_file(os.path.join(folder, _PROMISE))))
            stage.is_closed = True
        return stage

    def _read_again(self) -> None:
        """Until this is over nobody touches those jobs: see `_require_read`."""
        unread: set[str] = set()
        for folder in sorted(self._unread):
            depth = 0 if folder == self._root else 1 if os.path.dirname(folder) == self._root else 2
            folders = [folder]
            for _ in range(depth, 2):
                folders = [inner for each in folders for inner in self._listed(each, unread)]
            for each in folders:
                self._load_stage(each, unread)
        self._unread = unread

    def _require_read(self, job: Job) -> None:
        """A promise that nobody could read comes before anything else of its job."""
        if not self._unread or self._root is None:
            return
        own = os.path.join(self._root, job.folder)
        if any(each in (self._root, own) or os.path.dirname(each) == own for each in list(self._unread)):
            raise StageUnread(job.name)

    # -- looking at a batch before it is promised

    def _check(
        self,
        stage: _Stage,
        parts: Sequence[str],
        rows: int | None,
        queue: str | None,
        dead_letter: str | None,
        gates: _Gates,
    ) -> _Promise:
        missing = [part for part in parts if part not in stage.parts]
        if missing:
            raise StageNotFound(
                f"{len(missing)} of {len(parts)} parts are not here, such as {missing[0][:100]!r}: "
                "send them again, then commit"
            )
        if len(set(parts)) != len(parts):
            raise InvalidSetting("a part is named twice")
        for name in filter(None, (queue, dead_letter)):
            gates.require(name)
        counts: list[tuple[str, int]] = []
        rejected: dict[int, str] = {}
        reasons: dict[str, str] = {}  # one text for all the rows that say the same
        start = 0
        for name in parts:
            facts = stage.parts[name]
            target = facts.queue or queue
            if facts.is_plain and target is not None and gates.is_open(target):
                counts.append((name, facts.rows))
                start += facts.rows
                continue
            part = self._read_part(stage, name)
            for row, why in _bad_rows(part, stage.job.account, queue, gates):
                if dead_letter is None:
                    why.args = (f"row {row} of part {name}: {why}",)
                    raise why
                if len(rejected) == MOST_REJECTED:
                    why.args = (
                        f"more than {MOST_REJECTED} bad rows, such as row {row} of part {name}: {why}",
                    )
                    raise why
                # Somebody of another account knows its queues without the account in front.
                text = str(why).replace(full_name(stage.job.account, ""), "")[:MOST_REASON]
                rejected[start + row] = reasons.setdefault(text, text)
            counts.append((name, part.rows))
            start += part.rows
        if rows is not None and rows != start:
            raise InvalidSetting(f"the parts have {start} rows, not {rows}: send the batch again")
        return _Promise(tuple(counts), queue, dead_letter, rejected)

    def _promise(self, stage: _Stage, promise: _Promise) -> None:
        if self._root is not None:
            self._write(self._root, stage, _PROMISE, json.dumps(promise.to_json()).encode())
        stage.promise = promise

    # -- publishing what is promised

    def _fulfil(self, stage: _Stage, promise: _Promise, is_repeated: bool) -> Committed:
        """All that is not published yet; on disk, and nothing staged any more, when this returns."""
        rejected = len(promise.rejected)
        known = self._broker.engine.marks.get(stage.job.key)
        if known is None or not known.is_done(stage.batch):
            done = known.rows if known is not None and known.batch == stage.batch else 0
            chunk: list[Slice] = []
            weight = size = 0
            for each in self._promised(stage, promise, done):
                more = sum(map(len, each.bodies))
                if chunk and (weight + each.weight > CHUNK_ROWS or size + more > CHUNK_BYTES):
                    done += sum(len(one.bodies) for one in chunk)
                    self._publish(stage, promise, chunk, done, False)
                    chunk, weight, size = [], 0, 0
                chunk.append(each)
                weight += each.weight
                size += more
            self._publish(stage, promise, chunk, promise.rows, True)
        self._wait()
        self._discard(stage.job, stage.batch)
        return Committed(promise.rows - rejected, rejected, is_repeated)

    def _promised(self, stage: _Stage, promise: _Promise, done: int) -> Iterator[Slice]:
        """The rows in their order from number `done` on, the rejected ones as dead letters."""
        start = 0
        bad = sorted(promise.rejected)
        for name, count in promise.parts:
            end = start + count
            if end > done:
                here = bad[bisect_left(bad, start) : bisect_left(bad, end)]
                rejected = {row - start: promise.rejected[row] for row in here}
                part = self._read_part(stage, name)
                for each in read_rows(part, stage.job.account, promise.queue, rejected, promise.dead_letter):
                    if isinstance(each, Bad):
                        raise each.why  # it was good when it was promised
                    skipped = min(max(done - start - each.row, 0), len(each.bodies))
                    rest = each.cut(skipped, len(each.bodies)) if skipped else each
                    yield from rest.pieces(CHUNK_ROWS, CHUNK_BYTES)
            start = end

    def _publish(
        self, stage: _Stage, promise: _Promise, chunk: list[Slice], done: int, is_last: bool
    ) -> None:
        engine, job = self._broker.engine, stage.job
        targets: list[tuple[Queue, Slice]] = []

        def measure() -> int:
            targets[:] = self._targets(chunk, promise.dead_letter)
            return _MARK_BYTES + sum(each.record_bytes(queue.simple) for queue, each in targets)

        def put(now_ms: int) -> None:
            for queue, each in targets:
                if each.drafts is None and queue.simple:
                    engine.publish_run(queue, each.bodies, FORM_BYTES, now_ms, each.info, each.extra)
                else:
                    for draft in each.each():
                        engine.publish(queue, draft, now_ms, is_promised=True)
            rejected = len(promise.rejected)
            marks.mark(engine, job.key, job.owner, stage.batch, done, is_last, rejected, now_ms)

        self._broker.atomically(measure, put)
        self._broker.announce()

    def _targets(self, chunk: list[Slice], dead_letter: str | None) -> Iterator[tuple[Queue, Slice]]:
        """Lock held. A queue that was deleted since the promise took its messages with it, unless there are
        dead letters for them."""
        queues = self._broker.engine.queues
        for each in chunk:
            queue = queues.get(each.queue)
            if queue is None and dead_letter in queues:
                name = split_name(each.queue)[1]
                info = json_info({REASON: str(QueueNotFound(name)), INTENDED: name})
                drafts = [Draft(body, info=info) for body in each.bodies]
                each = Slice(each.row, dead_letter, each.bodies, drafts=drafts)
                queue = queues[dead_letter]
            if queue is not None and each.bodies:
                yield queue, each


def _is_small(stage: _Stage, promise: _Promise) -> bool:
    """Whether it is one chunk at any rate."""
    return promise.rows * DRAFT_WEIGHT <= CHUNK_ROWS and stage.bytes <= CHUNK_BYTES


def _bad_rows(
    part: packed.Part, account: str, queue: str | None, gates: _Gates
) -> Iterator[tuple[int, OpenQError]]:
    one = plain_queue(part, account, queue)
    if one is not None:
        yield from gates.refused(one, part.sizes("body"))
        return
    for each in read_rows(part, account, queue):
        if isinstance(each, Bad):
            yield each.row, each.why
        else:
            for offset, why in gates.refused(each.queue, list(map(len, each.bodies))):
                yield each.row + offset, why


class _Gates:
    """What each queue takes at this moment; who may send there is asked once for each."""

    def __init__(self, broker: LocalBroker, may_send: MaySend | None) -> None:
        self._broker = broker
        self._may_send = may_send
        self._known: dict[str, _Gate | None] = {}

    def _gate(self, name: str) -> _Gate | None:
        if name not in self._known:
            # Before anything is looked up: who may not send to a queue does not learn whether it exists.
            if self._may_send is not None:
                self._may_send(name)
            with self._broker.lock:
                queue = self._broker.engine.queues.get(name)
                self._known[name] = None if queue is None else _Gate(queue)
        return self._known[name]

    def require(self, name: str) -> None:
        if self._gate(name) is None:
            raise QueueNotFound(name)

    def is_open(self, name: str) -> bool:
        """Whether it takes whatever comes."""
        gate = self._gate(name)
        return gate is not None and not gate.is_limited

    def refused(self, name: str, sizes: Sequence[int]) -> Iterator[tuple[int, OpenQError]]:
        gate = self._gate(name)
        if gate is None:
            yield from ((offset, QueueNotFound(name)) for offset in range(len(sizes)))
        elif gate.is_limited:
            for offset, size in enumerate(sizes):
                why = gate.refusal(size)
                if why is not None:
                    yield offset, why


class _Gate:
    """Counts what goes through, as if it were in the queue already."""

    __slots__ = ("_bytes", "_count", "_name", "_settings", "is_limited")

    def __init__(self, queue: Queue) -> None:
        settings = self._settings = queue.settings
        self._name = queue.name
        self._count = queue.waiting_count
        self._bytes = queue.waiting_bytes
        refuses = settings.overflow in REFUSING and (settings.max_length, settings.max_bytes) != (None, None)
        self.is_limited = refuses or settings.max_body is not None

    def refusal(self, size: int) -> OpenQError | None:
        settings = self._settings
        if settings.max_body is not None and size > settings.max_body:
            return InvalidSetting(
                f"a body of {size} bytes; queue {self._name!r} takes at most {settings.max_body}"
            )
        if settings.overflow in REFUSING:
            if settings.max_length is not None and self._count >= settings.max_length:
                return QueueFull(self._name, f"max_length {settings.max_length}")
            if settings.max_bytes is not None and self._bytes + size > settings.max_bytes:
                return QueueFull(self._name, f"max_bytes {settings.max_bytes}")
        self._count += 1
        self._bytes += size
        return None
