"""Staging: batches of messages that come in parts and are published all at once, and only once.

A job sends the rows of a batch as parts (`openq.packed`), any number of them, from any process. They are
kept in DATA/pipeline/staged until the batch is committed with the list of the parts that count:

    1. every row is checked; a batch with a bad row is refused, or bad rows go to a dead-letter queue
    2. the plan is written: `commit.json`. From here on the batch will be published, even after a crash
    3. the rows are published in chunks, each in one block of the journal with the progress of the batch

A chunk and its progress record (`engine/progress.py`) are both on disk or neither is. After a crash the
progress says where to resume and whether a batch is done. Batch numbers of a job only grow. A batch of one
chunk is one atomic append and needs no plan.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from .. import packed
from ..broker import staged_batches
from ..broker.packed_messages import DRAFT_WEIGHT, MessageSlice
from ..broker.staged_batches import (
    CommitPlan,
    Committed,
    MaySend,
    PartDamaged,
    PartFacts,
    StagedBatch,
    StagingFull,
    StagingJob,
    check_batch,
)
from ..broker.staged_rows import (
    QueueRoom,
    RowLimits,
    check_batch_rows,
    check_part,
    orphaned,
    planned_chunks,
)
from ..engine import progress
from ..engine.queue import QueueState
from ..errors import Closed, InvalidSetting, OpenQError
from ..model import ENCODING_BYTES
from ..names import qualified_name
from .stage_files import StageFiles, StoredBatch

if TYPE_CHECKING:
    from .core import BrokerCore

log = logging.getLogger("openq")

MAX_STAGED = 32 << 30  # on disk, of all batches together

CHUNK_ROWS = 20_000  # published under one hold of the lock
CHUNK_BYTES = 4 << 20

_PROGRESS_BYTES = 2048  # upper bound for its record


@dataclass(slots=True)
class _Stage:
    """The parts of one batch."""

    job: StagingJob
    batch: int
    touched_ms: int
    parts: dict[str, PartFacts] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)  # without a disk
    writing: set[str] = field(default_factory=set)  # parts that are being written
    is_closed: bool = False  # a commit is in progress: new parts are too late
    is_leaving: bool = False  # its files are being removed: a new part waits, then starts a new stage
    is_rooted: bool = False  # its folder and all parents are certainly on disk
    plan: CommitPlan | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())


class LocalStaging:
    """All staged parts of a broker. Every method may block: do not call it on an event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        journal = core.journal
        self._files: StageFiles | None = None
        self._max_bytes = staged_batches.MAX_IN_MEMORY if journal is None else MAX_STAGED
        self._lock = threading.Lock()  # for the tables below; never held over a disk access
        self._settled = threading.Condition(self._lock)  # a part was written, or a stage was removed
        self._stages: dict[tuple[str, int], _Stage] = {}
        self._busy: dict[str, tuple[threading.Lock, int]] = {}  # by job, with the number of users
        self._staged = 0
        self._pauses = 0  # how many callers wait for commits to end, and let no other begin
        if journal is not None:
            self._files = StageFiles(os.path.join(journal.path, "pipeline", "staged"), journal.io)
            self._take_in(self._files.load())

    # -- the interface

    def put(self, job: StagingJob, batch: int, part: str, data: bytes) -> int:
        """Store a part; on disk when this returns. A part of the same name is replaced. Returns its rows."""
        facts = check_part(job, batch, part, data)
        self._require_read(job)
        known = self._core.engine.progress.get(job.key)
        if known is not None:
            job.require(known.owner)
            if known.is_done(batch):
                return facts.rows  # published before: its commit will say so
        stage = self._enter(job, batch, part, facts)
        if stage is None:
            return facts.rows
        is_written = False
        try:
            self._write_part(stage, part, data)
            is_written = True
        finally:
            self._leave(stage, part, facts, is_written)
        return facts.rows

    def commit(
        self,
        job: StagingJob,
        batch: int,
        parts: Sequence[str],
        rows: int | None = None,
        *,
        queue: str | None = None,
        dead_letter: str | None = None,
        may_send: MaySend | None = None,
    ) -> Committed:
        check_batch(batch)
        with self._turn(job.key):
            self._require_read(job)
            done = self._done(job, batch)
            if done is not None:
                self._discard(job, batch)
                return done
            self._finish_older(job, batch)
            stage = self._closed_stage(job, batch)
            if stage.plan is not None:
                return self._publish_plan(stage, stage.plan, is_repeated=True)
            try:
                plan = check_batch_rows(
                    *(stage.job.account, stage.parts, partial(self._read_part, stage), parts, rows),
                    qualified_name(job.account, queue) if queue else None,
                    qualified_name(job.account, dead_letter) if dead_letter else None,
                    RowLimits(self._room_of, may_send),
                )
                if self._core.engine.progress.get(job.key) is None:
                    if not plan.rows:  # a job that never published anything is not remembered
                        self._discard(job, batch)
                        return Committed(0, 0, False)
                    with self._core.lock:
                        progress.make_room(self._core.engine, stage.job.owner, self._core.now_ms())
                self._require_room(CHUNK_BYTES)
                if not _is_small(stage, plan):
                    self._write_plan(stage, plan)
                return self._publish_plan(stage, plan, is_repeated=False)
            except BaseException:
                self._reopen(stage)
                raise

    def abort(self, job: StagingJob, batch: int) -> bool:
        """Drop the staged parts. False: the batch is committed, and stays so.

        Exception: an accepted batch with a damaged part is dropped. Only sending it again can repair it.
        """
        check_batch(batch)
        with self._turn(job.key):
            self._require_read(job)
            if self._done(job, batch) is not None:
                self._discard(job, batch)
                return False
            with self._lock:
                self._owned(job)
                stage = self._stages.get((job.key, batch))
            if stage is not None:
                if stage.plan is not None:
                    damaged = self._damaged(stage, stage.plan)
                    if damaged is None:
                        return False
                    log.warning("job %r, batch %d is dropped: part %s is damaged", job.key, batch, damaged)
                self._discard(job, batch)
            return True

    def stages(self) -> list[StagedBatch]:
        with self._lock:
            return [
                StagedBatch(
                    each.job, each.batch, len(each.parts), each.bytes, each.touched_ms, bool(each.plan)
                )
                for each in self._stages.values()
            ]

    def sweep(self) -> None:
        """Called periodically and after a start: finish accepted commits, drop abandoned parts."""
        now_ms = self._core.now_ms()
        if self._files is not None:
            self._take_in(self._files.load_rest())
        with self._lock:
            found = sorted(self._stages.values(), key=lambda each: each.batch)
        for stage in found:
            if stage.job.key in self._busy:
                continue  # a commit is in progress: the next sweep handles it
            try:
                with self._turn(stage.job.key):
                    if self._stages.get((stage.job.key, stage.batch)) is not stage:
                        continue
                    if stage.plan is not None:
                        self._publish_plan(stage, stage.plan, is_repeated=True)
                        log.info("published what was promised: job %r, batch %d", stage.job.key, stage.batch)
                    elif now_ms - stage.touched_ms > staged_batches.KEPT_MS or self._done(
                        stage.job, stage.batch
                    ):
                        self._discard(stage.job, stage.batch)
            except Closed:
                return
            except (OpenQError, OSError) as error:
                log.warning("job %r, batch %d has to wait: %s", stage.job.key, stage.batch, error)

    # -- one commit at a time

    @contextmanager
    def _turn(self, key: str) -> Iterator[None]:
        """One commit of a job at a time; a second one waits and finds it done."""
        with self._lock:
            self._settled.wait_for(lambda: not self._pauses)
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
                self._settled.notify_all()

    @contextmanager
    def paused(self, seconds: float) -> Iterator[None]:
        """No batch is published meanwhile: files and journal agree. Raises TimeoutError."""
        with self._lock:
            self._pauses += 1
        try:
            with self._lock:
                if not self._settled.wait_for(lambda: not self._busy, seconds):
                    raise TimeoutError("a staged batch is published")
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                self._settled.notify_all()

    def _done(self, job: StagingJob, batch: int) -> Committed | None:
        known = self._core.engine.progress.get(job.key)
        if known is None:
            return None
        job.require(known.owner)
        if not known.is_done(batch):
            return None
        self._wait()  # the progress record may not be on disk yet
        if batch < known.batch:
            return Committed(0, 0, True)
        return Committed(known.rows - known.rejected, known.rejected, True)

    def _finish_older(self, job: StagingJob, batch: int) -> None:
        """Publish older accepted batches first.

        Progress beyond them would mean that they are done.
        """
        with self._lock:
            found = [
                stage
                for (key, number), stage in self._stages.items()
                if key == job.key and number < batch and stage.plan is not None
            ]
        for stage in sorted(found, key=lambda each: each.batch):
            assert stage.plan is not None
            self._publish_plan(stage, stage.plan, is_repeated=True)

    def _closed_stage(self, job: StagingJob, batch: int) -> _Stage:
        with self._lock:
            owned = self._owned(job)
            stage = self._stages.get((job.key, batch))
            if stage is None:  # a batch without rows
                stage = self._stages[job.key, batch] = _Stage(owned, batch, self._core.now_ms())
            stage.is_closed = True
            stage.touched_ms = self._core.now_ms()
            self._settled.wait_for(lambda: not stage.writing)  # a half-written part must not be committed
            return stage

    def _owned(self, job: StagingJob) -> StagingJob:
        """Lock held. The job with its owner: the user that sent its first part or commit."""
        known = self._core.engine.progress.get(job.key)
        staged = (stage.job.owner for (key, _), stage in self._stages.items() if key == job.key)
        owner = (known.owner if known is not None else "") or next(filter(None, staged), job.owner)
        job.require(owner)
        return StagingJob(job.name, job.account, owner)

    def _reopen(self, stage: _Stage) -> None:
        """A commit failed before it was accepted: another one may follow, with other parts."""
        with self._lock:
            if stage.plan is not None:
                return
            stage.is_closed = False
            if not stage.parts:
                self._stages.pop((stage.job.key, stage.batch), None)

    def _require_room(self, size: int) -> None:
        journal = self._core.journal
        if journal is not None:
            with self._core.lock:
                has_room = journal.can_publish(size + 256)
            if not has_room:
                raise journal.refusal(f"{journal.path} has no room left but the reserve")

    def _wait(self) -> None:
        """Wait until all changes so far are on disk, even if replies do not wait for that.

        The parts are removed next.
        """
        journal = self._core.journal
        if journal is not None:
            location = journal.end_location - 1
            if location >= journal.durable_location:
                journal.wait(location)
            elif journal.error is not None:
                raise journal.error
        self._core.events.publish()

    # -- storing and removing parts

    def _enter(self, job: StagingJob, batch: int, part: str, facts: PartFacts) -> _Stage | None:
        """Reserve the bytes and the name of a part.

        None: the batch is being committed, and the part is too late to matter. A part that replaces a damaged
        one of an accepted batch is taken all the same.
        """
        replaces_damaged = self._replaces_damaged(job, batch, part, facts.rows)
        with self._lock:
            while True:
                stage = self._stages.get((job.key, batch))
                if stage is None or not (stage.is_leaving or part in stage.writing):
                    break
                self._settled.wait()
            owned = self._owned(job)
            if stage is None:
                if len(self._stages) >= staged_batches.MAX_STAGES:
                    raise StagingFull(f"{staged_batches.MAX_STAGES} batches are staged")
                stage = _Stage(owned, batch, 0)
            if stage.is_closed and not (replaces_damaged and stage.plan is not None):
                return None
            if part not in stage.parts and len(stage.parts) + len(stage.writing) >= staged_batches.MAX_PARTS:
                raise InvalidSetting(f"a batch has at most {staged_batches.MAX_PARTS} parts")
            if self._staged + facts.bytes > self._max_bytes:
                raise StagingFull(f"{self._staged} bytes are staged, and {facts.bytes} more are too many")
            self._staged += facts.bytes
            stage.writing.add(part)
            stage.touched_ms = self._core.now_ms()
            self._stages[job.key, batch] = stage
            return stage

    def _replaces_damaged(self, job: StagingJob, batch: int, part: str, rows: int) -> bool:
        """Whether exactly this part of an accepted batch is damaged."""
        with self._lock:
            stage = self._stages.get((job.key, batch))
        if stage is None or stage.plan is None:
            return False
        job.require(stage.job.owner)
        return self._is_damaged(stage, stage.plan, part, rows)

    def _leave(self, stage: _Stage, part: str, facts: PartFacts, is_written: bool) -> None:
        """A part counts once it is written. If that failed, the previous part may still exist."""
        with self._lock:
            stage.writing.discard(part)
            before = stage.parts.get(part)
            if is_written:
                stage.parts[part] = facts
                self._staged -= 0 if before is None else before.bytes
            else:
                self._staged -= facts.bytes
                if before is not None and self._files is not None:
                    stage.parts[part] = PartFacts(before.bytes)  # either may be on disk: it will be read
            key = stage.job.key, stage.batch
            if not (stage.parts or stage.writing or stage.is_closed) and self._stages.get(key) is stage:
                del self._stages[key]
            self._settled.notify_all()

    def _write_part(self, stage: _Stage, part: str, data: bytes) -> None:
        if self._files is None:
            stage.data[part] = data
            return
        self._require_room(0)  # a full disk has no room for this either
        self._files.write_part(stage.job, stage.batch, part, data, stage.is_rooted)
        stage.is_rooted = True

    def _read_part(self, stage: _Stage, part: str) -> packed.Part:
        if self._files is None:
            return packed.Part(stage.data[part])
        return self._files.read_part(stage.job, stage.batch, part)

    def _is_damaged(self, stage: _Stage, plan: CommitPlan, part: str, rows: int) -> bool:
        """Whether this part of an accepted batch is damaged, and a part with `rows` rows may replace it."""
        if (part, rows) not in plan.parts:
            return False
        try:
            self._read_part(stage, part)
        except PartDamaged:
            return True
        return False

    def _damaged(self, stage: _Stage, plan: CommitPlan) -> str | None:
        found = (part for part, rows in plan.parts if self._is_damaged(stage, plan, part, rows))
        return next(found, None)

    def _discard(self, job: StagingJob, batch: int) -> None:
        """Remove a batch. It stays known until its files are gone: a new upload would use the same folder."""
        with self._lock:
            stage = self._stages.get((job.key, batch))
            if stage is None or stage.is_leaving:
                return
            stage.is_leaving = True
            self._settled.wait_for(lambda: not stage.writing)
        try:
            if self._files is not None:
                self._files.remove(self._files.folder(job, batch))
        finally:
            with self._lock:
                if self._stages.get((job.key, batch)) is stage:
                    del self._stages[job.key, batch]
                self._staged -= stage.bytes
                self._settled.notify_all()

    def _take_in(self, found: Iterable[StoredBatch]) -> None:
        """Add the batches that an earlier process left."""
        for each in found:
            stage = _Stage(each.job, each.batch, each.touched_ms, each.parts, plan=each.plan)
            stage.is_closed = each.plan is not None
            with self._lock:
                self._stages[stage.job.key, stage.batch] = stage
                self._staged += stage.bytes

    def _require_read(self, job: StagingJob) -> None:
        if self._files is not None:
            self._files.require_read(job)

    # -- accepting commits, and publishing them

    def _room_of(self, name: str) -> QueueRoom | None:
        with self._core.lock:
            queue = self._core.engine.queues.get(name)
            if queue is None:
                return None
            return QueueRoom(queue.settings, queue.waiting_count, queue.waiting_bytes)

    def _write_plan(self, stage: _Stage, plan: CommitPlan) -> None:
        if self._files is not None:
            self._files.write_plan(stage.job, stage.batch, plan, stage.is_rooted)
        stage.plan = plan

    def _publish_plan(self, stage: _Stage, plan: CommitPlan, is_repeated: bool) -> Committed:
        """Publish all rows that are not published yet.

        When this returns they are on disk, and nothing of the batch is staged any more.
        """
        rejected = len(plan.rejected)
        known = self._core.engine.progress.get(stage.job.key)
        if known is None or not known.is_done(stage.batch):
            done = known.rows if known is not None and known.batch == stage.batch else 0
            account, read_part = stage.job.account, partial(self._read_part, stage)
            for chunk, is_last in planned_chunks(account, plan, read_part, done, CHUNK_ROWS, CHUNK_BYTES):
                done += sum(len(each.bodies) for each in chunk)
                self._publish(stage, plan, chunk, done, is_last)
        self._wait()
        self._discard(stage.job, stage.batch)
        return Committed(plan.rows - rejected, rejected, is_repeated)

    def _publish(
        self, stage: _Stage, plan: CommitPlan, chunk: list[MessageSlice], done: int, is_last: bool
    ) -> None:
        engine, job = self._core.engine, stage.job
        targets: list[tuple[QueueState, MessageSlice]] = []

        def measure() -> int:
            targets[:] = self._targets(chunk, plan.dead_letter)
            return _PROGRESS_BYTES + sum(each.record_bytes(queue.is_plain) for queue, each in targets)

        def put(now_ms: int) -> None:
            for queue, each in targets:
                if each.drafts is None and queue.is_plain:
                    engine.publish_run(
                        queue, each.bodies, ENCODING_BYTES, now_ms, each.properties, each.options
                    )
                else:
                    for draft in each.each():
                        engine.publish(queue, draft, now_ms, is_planned=True)
            rejected = len(plan.rejected)
            progress.record_progress(engine, job.key, job.owner, stage.batch, done, is_last, rejected, now_ms)

        self._core.atomically(measure, put)
        self._core.events.publish()

    def _targets(
        self, chunk: list[MessageSlice], dead_letter: str | None
    ) -> Iterator[tuple[QueueState, MessageSlice]]:
        """Lock held. The queue for each slice.

        If a queue was deleted since the commit was accepted, its messages are dropped, or dead-lettered if
        the plan has a dead-letter queue.
        """
        queues = self._core.engine.queues
        for each in chunk:
            queue = queues.get(each.queue)
            if queue is None and dead_letter is not None and dead_letter in queues:
                each, queue = orphaned(each, dead_letter), queues[dead_letter]
            if queue is not None and each.bodies:
                yield queue, each


def _is_small(stage: _Stage, plan: CommitPlan) -> bool:
    """Whether it certainly fits one chunk."""
    return plan.rows * DRAFT_WEIGHT <= CHUNK_ROWS and stage.bytes <= CHUNK_BYTES
