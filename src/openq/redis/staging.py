"""Staged batches on Redis: the guarantees of `local/staging.py`, kept by any number of servers together.

The parts and the plan of a job are in keys of their own, on one node; the queues that its rows go to may be
on other nodes. So a batch is published in confirmed steps:

    1. Write the plan, in one call, if the parts are still those that were checked. A job has one plan
       at a time.
    2. Publish to the queues chunk by chunk. One call stores the messages of a chunk in a queue and, beside
       them, how many rows of the batch that queue has received its share of. It stores nothing if the
       caller's row count for that queue is wrong.
    3. Mark the batch as done and delete its parts, in one call.

There is no lock. Any server that finds a plan resumes it: by the same commit sent to another server, by a
later commit, or by a sweep. Two servers that resume it at once share the work, and a chunk that comes late is
found done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..broker import staged_batches
from ..broker.packed_messages import MessageSlice
from ..broker.staged_batches import (
    CommitPlan,
    Committed,
    MaySend,
    PartDamaged,
    StagedBatch,
    StagingJob,
    check_batch,
)
from ..broker.staged_rows import (
    QueueRoom,
    RowLimits,
    check_batch_rows,
    check_part,
    is_limited,
    orphaned,
    planned_chunks,
)
from ..engine import progress
from ..errors import (
    Closed,
    FunctionError,
    NotReplicated,
    OpenQError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
)
from ..model import ENCODING_BYTES
from ..names import qualified_name
from .drafts import pack_draft
from .records import light_fields, pack_record
from .registry import CachedQueue
from .staging_keys import JobState, ListedBatch, StagingKeys, pack_part_info, weight_of

if TYPE_CHECKING:
    from .publish import Publisher
    from .queues import QueueAdmin
    from .store import RedisStore

log = logging.getLogger("openq.redis")

CHUNK_ROWS = 1_000  # published by one call, which blocks Redis meanwhile
CHUNK_BYTES = 1 << 20
STRIDE_BYTES = 16 << 20  # published before it is confirmed as a whole
CLAIM_MS = 15_000  # a sweep skips plans with progress within this time
ABSENT_MS = 60_000  # between listing a batch and its first part
_TRIES = 10
_CHANGES = 50  # maximum number of conflicts with other servers


class _QueueBehind(NotReplicated):
    """A queue lost rows that it had reported to have."""


P = ParamSpec("P")
T = TypeVar("T")


def _with_separate_writes(verb: Callable[P, T]) -> Callable[P, T]:
    """Each method confirms the writes that matter; later callers must not wait for its reads."""

    @wraps(verb)
    def run(*args: P.args, **named: P.kwargs) -> T:
        staging: Any = args[0]
        with staging.store.calls.separate_writes(forget=True):
            return verb(*args, **named)

    return run


class RedisStaging:
    def __init__(self, store: RedisStore, queues: QueueAdmin, publisher: Publisher) -> None:
        self.store = store
        self._queues = queues
        self._publisher = publisher
        self._keys = StagingKeys(store)
        self._max_bytes = staged_batches.MAX_IN_MEMORY

    # -- operations -----------------------------------------------------------------------------

    @_with_separate_writes
    def put(self, job: StagingJob, batch: int, part: str, data: bytes) -> int:
        facts = check_part(job, batch, part, data)
        self.store.state.check_open()
        keys, text = self._keys, pack_part_info(facts, data)
        with self._confirmed():
            keys.enter(job, batch, weight_of(part, text, data), self._max_bytes)
            try:
                word, weight, parts = keys.put(job, batch, part, text, data)
                if word == "late" and self._is_damaged(job, batch, part, facts.rows):
                    word, weight, parts = keys.put(job, batch, part, text, data, repairs=True)
            except BaseException:
                with suppress(StoreError):
                    self._settle(job, keys.read_state(job, batch, is_brief=True))
                raise
            keys.settle(job, batch, weight if parts else None)
        return facts.rows

    @_with_separate_writes
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
        self.store.state.check_open()
        own = b""  # plan
        failed = 0
        for _ in range(_CHANGES):
            state = self._keys.read_state(job, batch)
            state.require(job)
            done = state.outcome(bool(own))
            try:
                if done is not None:
                    with self._confirmed():  # also earlier writes of other servers
                        self._drop(job, batch)
                    return done
                if state.promised >= 0:
                    self._publish_plan(job, state)
                    continue
                plan = check_batch_rows(
                    *(job.account, state.facts(), partial(self._keys.read_part, job, state), parts, rows),
                    qualified_name(job.account, queue) if queue else None,
                    qualified_name(job.account, dead_letter) if dead_letter else None,
                    RowLimits(self._rooms(), may_send),
                )
                if state.newest < 0 and not plan.rows:  # nothing of it has to be kept
                    with self._confirmed():
                        self._drop(job, batch)
                    return Committed(0, 0, False)
                own = self._write_plan(job, state, plan) or own
            except NotReplicated:
                failed += 1
                if failed == _TRIES:
                    raise
            except PartDamaged:
                again = self._keys.read_state(job, batch)
                if again.parts == state.parts and again.promised == state.promised:
                    raise
        raise StoreUnavailable(f"job {job.name!r}, batch {batch} is changed by others all the time")

    @_with_separate_writes
    def abort(self, job: StagingJob, batch: int) -> bool:
        check_batch(batch)
        self.store.state.check_open()
        state = self._keys.read_state(job, batch)
        state.require(job)
        with self._confirmed():
            if state.outcome(False) is not None:
                self._drop(job, batch)
                return False
            damaged = None
            if state.promised == batch:
                damaged = next(self._damaged(job, state), None)
                if damaged is None:
                    return False
                log.warning("job %r, batch %d is dropped: part %s is damaged", job.key, batch, damaged)
            return self._drop(job, batch, even_promised=damaged is not None) == "dropped"

    @_with_separate_writes
    def stages(self) -> list[StagedBatch]:
        self.store.state.check_open()
        views = map(self._keys.view, self._keys.listed())
        return [view for view in views if view is not None]

    @_with_separate_writes
    def sweep(self) -> None:
        try:
            found = self._keys.listed()
        except StoreError as error:
            log.warning("staged batches have to wait: %s", error)
            return
        for each in found:
            if self.store.state.closed:
                return
            try:
                self._sweep(each)
            except Closed:
                return
            except (OpenQError, OSError) as error:
                log.warning("job %r, batch %d has to wait: %s", each.job.key, each.batch, error)

    def _sweep(self, listed: ListedBatch) -> None:
        job, batch = listed.job, listed.batch
        state = self._keys.read_state(job, batch, is_brief=True)
        if state.promised == batch:
            if state.now_ms - state.progressed_ms >= CLAIM_MS:
                self._publish_plan(job, self._keys.read_state(job, batch))
                log.info("published what was promised: job %r, batch %d", job.key, batch)
        elif state.is_staged:
            if state.outcome(False) is not None or state.now_ms - state.touched_ms > staged_batches.KEPT_MS:
                self._drop(job, batch)
            elif state.weight != listed.weight:
                self._settle(job, state)
        elif state.now_ms - listed.touched_ms > ABSENT_MS:
            self._keys.settle(job, batch, None)

    # -- parts ----------------------------------------------------------------------------------

    def _drop(self, job: StagingJob, batch: int, even_promised: bool = False) -> str:
        word = self._keys.drop(job, batch, even_promised)
        if word != "promised":
            self._keys.settle(job, batch, None)
        return word

    def _settle(self, job: StagingJob, state: JobState) -> None:
        self._keys.settle(job, state.batch, state.weight if state.is_staged else None)

    def _is_damaged(self, job: StagingJob, batch: int, part: str, rows: int) -> bool:
        """Whether a planned batch lacks just this part, and a part of `rows` rows may replace it."""
        state = self._keys.read_state(job, batch)
        if state.promised != batch or (part, rows) not in state.read_promise().parts:
            return False
        return part in self._damaged(job, state)

    def _damaged(self, job: StagingJob, state: JobState) -> Iterator[str]:
        for part, _ in state.read_promise().parts:
            try:
                self._keys.read_part(job, state, part)
            except PartDamaged:
                yield part

    # -- confirming -----------------------------------------------------------------------------

    @contextmanager
    def _confirmed(self) -> Iterator[None]:
        """Writes in this block are as safe as the profile promises when it ends. Otherwise NotReplicated is
        raised: all of them may be repeated."""
        calls = self.store.calls
        with calls.separate_writes():
            yield
            calls.wait_for_copies()

    # -- planning -------------------------------------------------------------------------------

    def _rooms(self) -> Any:
        store = self.store
        store.refresh()

        def room_of(name: str) -> QueueRoom | None:
            view = store.registry.queues.get(name)
            if view is None:
                return None
            try:
                count, size = self._queues.waiting(name)[1:] if is_limited(view.settings) else (0, 0)
            except QueueNotFound:
                return None
            return QueueRoom(view.settings, count, size)

        return room_of

    def _write_plan(self, job: StagingJob, state: JobState, plan: CommitPlan) -> bytes:
        """Write the plan and return it; empty if another server was faster, or if a part has been
        replaced."""
        if state.newest < 0:
            self._keys.remember_job(StagingJob(job.name, job.account, state.job_owner(job)))
        text = json.dumps({**plan.to_json(), "by": self.store.token()}).encode()
        for _ in range(_CHANGES):
            with self._confirmed():
                self._keys.settle(job, state.batch, state.weight)  # so that a sweep finds it in any case
                word = self._keys.plan(job, state, text)
            if word == "made":
                return text
            again = self._keys.read_state(job, state.batch)
            if word != "changed" or any(state.parts[part] != again.parts.get(part) for part, _ in plan.parts):
                break
            state = again  # the new part is not in the plan: no need to check the parts again
        return b""

    # -- publishing a plan ----------------------------------------------------------------------

    def _publish_plan(self, job: StagingJob, state: JobState) -> None:
        """Publish all remaining rows; then nothing is staged any more. Raises NotReplicated where that is not
        certain: the plan stays, and the next caller resumes it."""
        batch = state.promised
        if batch != state.batch:
            state = self._keys.read_state(job, batch)
            if state.promised != batch:
                return
        plan = state.read_promise()
        run = _BatchPublisher(self.store, self._publisher, self._keys.tag(job), batch, plan.dead_letter)
        read_part = partial(self._keys.read_part, job, state)
        chunks = planned_chunks(job.account, plan, read_part, state.floor, CHUNK_ROWS, CHUNK_BYTES)
        row, is_last = state.floor, False
        while not is_last:
            with self._confirmed():
                size = 0
                while not is_last and size < STRIDE_BYTES:
                    chunk, is_last = next(chunks)
                    self._publish(run, row, chunk)
                    row += sum(len(each.bodies) for each in chunk)
                    size += sum(len(body) for each in chunk for body in each.bodies)
            if not is_last and not self._keys.set_progress(job, batch, row):
                return
        with self._confirmed():
            self._keys.end(job, batch, plan.rows, len(plan.rejected))
            self._keys.settle(job, batch, None)
        kept_ms = progress.kept_ms(job.key)
        if kept_ms < progress.KEPT_MS:
            run.shorten_marks(kept_ms)

    def _publish(self, run: _BatchPublisher, row: int, chunk: list[MessageSlice]) -> None:
        run.publish(row, chunk)


class _BatchPublisher:
    """Publishes one batch; keeps the known progress of each queue."""

    def __init__(
        self, store: RedisStore, publisher: Publisher, job: str, batch: int, dead_letter: str | None
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._job = job
        self._batch = batch
        self._dead_letter = dead_letter
        self._rows: dict[int, int] = {}  # queue number -> its share of the rows before this one is stored
        store.refresh()

    def publish(self, row: int, chunk: list[MessageSlice]) -> None:
        """A queue gets all of a chunk by one call. The dead letters come last: messages whose queue is
        deleted at this moment go with them."""
        shares: dict[str, list[tuple[int, MessageSlice]]] = {}
        for each in chunk:
            shares.setdefault(each.queue, []).append((row, each))
            row += len(each.bodies)
        dead = shares.pop(self._dead_letter or "", [])
        for name, share in shares.items():
            if not self._send(name, share, row) and self._dead_letter is not None:
                dead += [(first, orphaned(each, self._dead_letter)) for first, each in share]
        if dead and self._dead_letter is not None:
            self._send(self._dead_letter, sorted(dead, key=lambda each: each[0]), row)

    def _send(self, name: str, share: list[tuple[int, MessageSlice]], end: int) -> bool:
        """False: the queue was deleted since the plan was written, and its messages with it."""
        store = self._store
        for _ in range(_CHANGES):
            view = store.registry.queues.get(name)
            if view is None:
                return False
            try:
                if view.number not in self._rows:
                    self._rows[view.number] = self._ask(view, 0, 0)[0]
                rows = self._rows[view.number]
                flat = [text for first, each in share for text in self._records(view, first, each, rows)]
                if not flat:
                    return True
                found, answers = self._ask(view, rows, end, *flat)
            except QueueNotFound:
                return False
            except FunctionError as error:
                if error.code != "STALE":
                    raise
                store.refresh(always=True)
                continue
            self._emit(view, answers, len(flat) // 2)
            known = store.registry.queues.get(name)
            if known is None or known.number != view.number:
                continue  # a new queue of that name, which begins with this chunk
            if found < rows:
                raise _QueueBehind(f"queue {name!r} has fewer rows of a batch than it had")
            self._rows[view.number] = found
            if found >= end:
                return True
        raise StoreUnavailable(f"queue {name!r} changes all the time")

    def shorten_marks(self, kept_ms: int) -> None:
        """The batch is done and cannot be repeated soon. If this fails, queues keep its progress longer."""
        for view in list(self._store.registry.queues.values()):
            if view.number in self._rows:
                with suppress(OpenQError):
                    self._store.ask_queue(view, "stage_fade", self._job, kept_ms)

    def _ask(self, view: CachedQueue, rows: int, end: int, *flat: bytes) -> tuple[int, list[bytes]]:
        found, *answers = self._store.ask_queue(
            view, "stage_publish", self._job, self._batch, rows, end, *flat
        )
        return int(found), answers[0] if answers else []

    def _records(self, view: CachedQueue, first: int, each: MessageSlice, rows: int) -> Iterator[bytes]:
        """The records, without those that the queue has already."""
        left = each.cut(max(0, rows - first), len(each.bodies)) if rows > first else each
        if left.drafts is None and view.is_plain:
            published = light_fields(left.options)
            for body in left.bodies:
                yield pack_record(body, ENCODING_BYTES, left.properties, published, False)
                yield b""
            return
        store = self._store
        now_ms = store.now_ms()
        for draft in left.each():
            yield from pack_draft(view, draft, now_ms, store.own_seq(draft.id) if draft.id else 0)

    def _emit(self, view: CachedQueue, answers: list[bytes], count: int) -> None:
        store = self._store
        if not store.state.listeners or not answers:
            return
        if answers[0][:1] == b"~":
            seq = int(answers[0][1:])
            store.emit("published", view.name, map(store.id_of, range(seq, seq + count)))
            return
        state = [self._publisher.parse_reply(view, answer) for answer in answers]
        store.emit(
            "published", view.name, [each[0] for each in state if isinstance(each, tuple) and not each[1]]
        )
