"""Staged batches in Redis: each method calls one function of `lua/8_stages.lua` and parses its reply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import packed
from ..broker import staged_batches
from ..broker.staged_batches import (
    CommitPlan,
    Committed,
    NotYourJob,
    PartDamaged,
    PartFacts,
    StagingFull,
    StagingJob,
)
from ..engine import progress
from ..errors import FunctionError, InvalidSetting
from ..names import split_name

if TYPE_CHECKING:
    from .store import RedisStore

ENTRY_BYTES = 200  # of a part in memory, beside its name, which is stored twice, and its facts
PARTS_AT_ONCE = 1_000  # read by one call, which blocks Redis meanwhile


class JobState(NamedTuple):
    """A job and one of its batches, at one moment."""

    batch: int
    now_ms: int
    owner: str
    newest: int  # the newest published batch; -1: none
    rows: int
    rejected: int
    promised: int  # planned batch; -1: none
    promised_by: str
    plan: bytes
    floor: int  # number of its rows that are certainly published
    progressed_ms: int
    is_staged: bool
    stage_owner: str
    touched_ms: int
    size: int  # of all parts
    weight: int  # the same, in memory
    puts: int  # number of puts of parts; -1: none
    part_count: int
    parts: dict[str, bytes]  # name -> facts as written; empty, like the plan, unless requested

    def require(self, job: StagingJob) -> None:
        job.require(self.owner)
        job.require(self.stage_owner)

    def job_owner(self, job: StagingJob) -> str:
        """The owner of the job, not an admin who acts for it."""
        return self.owner or self.stage_owner or job.owner

    def outcome(self, is_ours: bool) -> Committed | None:
        """The result of the batch, if it is done."""
        if self.batch > self.newest:
            return None
        if self.batch < self.newest:
            return Committed(0, 0, True)
        return Committed(self.rows - self.rejected, self.rejected, not is_ours)

    def facts(self) -> dict[str, PartFacts]:
        return {name: PartFacts(*json.loads(text)[:4]) for name, text in self.parts.items()}

    def read_promise(self) -> CommitPlan:
        return CommitPlan.from_json(json.loads(self.plan))


class ListedBatch(NamedTuple):
    job: StagingJob
    batch: int
    weight: int
    touched_ms: int


class StagingKeys:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        prefix = store.address.prefix
        self._prefix = prefix
        self._list = f"{prefix}:{{meta}}:stages".encode()
        self._jobs = f"{prefix}:{{meta}}:jobs".encode()

    def tag(self, job: StagingJob) -> str:
        """The tag of its keys and of its marks in queues: short, however long the account name."""
        return hashlib.sha256(job.key.encode()).hexdigest()[:24]

    def _key(self, job: StagingJob, name: str = "j") -> bytes:
        return f"{self._prefix}:{{s.{self.tag(job)}}}:{name}".encode()

    def _ask(self, job: StagingJob, name: str, batch: int, *args: Any) -> Any:
        try:
            return self._store.fcall_plain(self._key(job), name, batch, *args)
        except FunctionError as error:
            if error.code == "OWNER":
                raise NotYourJob(job.name) from None
            raise

    # -- of one job -----------------------------------------------------------------------------

    def read_state(self, job: StagingJob, batch: int, is_brief: bool = False) -> JobState:
        """A brief state has no plan and no parts. Many parts are read in several calls; comparing the count
        of puts shows whether they changed meanwhile."""
        most = 0 if is_brief else PARTS_AT_ONCE
        now_ms, known, stage, count, *rest = self._ask(job, "stage_look", batch, most)
        owner, newest, rows, rejected, promised, promised_by, floor, went_on_ms = known
        stage_owner, touched_ms, size, weight, puts = stage
        plan, flat = rest or (None, [])
        parts = (
            zip(flat[::2], flat[1::2], strict=True) if is_brief or count <= most else self._scan(job, batch)
        )
        return JobState(
            *(batch, now_ms, _text(owner), _number(newest), _number(rows), _number(rejected)),
            *(_number(promised), _text(promised_by), plan or b"", _number(floor), _number(went_on_ms)),
            *(stage_owner is not None, _text(stage_owner), _number(touched_ms), max(0, _number(size))),
            *(max(0, _number(weight)), _number(puts), count),
            {name.decode(): text for name, text in parts if name[:1] != b"@"},
        )

    def _scan(self, job: StagingJob, batch: int) -> Iterator[tuple[bytes, bytes]]:
        key, cursor = self._key(job, f"f:{batch}"), b""
        while cursor != b"0":
            cursor, flat = self._store.calls.call(key, "HSCAN", key, cursor or b"0", "COUNT", PARTS_AT_ONCE)
            yield from zip(flat[::2], flat[1::2], strict=True)

    def put(
        self, job: StagingJob, batch: int, part: str, text: bytes, data: bytes, repairs: bool = False
    ) -> tuple[str, int, int]:
        """Returns `kept`, `done` or `late`; then weight and parts of the batch."""
        try:
            word, size, parts = self._ask(
                *(job, "stage_put", batch, part, job.owner, int(job.is_admin), text, data),
                *(
                    staged_batches.MAX_PARTS,
                    staged_batches.KEPT_MS,
                    int(repairs),
                    weight_of(part, text, data),
                ),
            )
        except FunctionError as error:
            if error.code == "PARTS":
                raise InvalidSetting(f"a batch has at most {staged_batches.MAX_PARTS} parts") from None
            raise
        return word.decode(), size, parts

    def read_part(self, job: StagingJob, state: JobState, part: str) -> packed.Part:
        key = self._key(job, f"p:{state.batch}")
        data = self._store.calls.call(key, "HGET", key, part)
        facts = state.parts.get(part)
        if data is None or facts is None or json.loads(facts)[4] != _sum(data):
            raise PartDamaged(job.name, state.batch, part)
        return packed.Part(data)

    def plan(self, job: StagingJob, state: JobState, text: bytes) -> str:
        """Returns `made`, or the reason for refusal: `done`, `other` (batch is planned), `changed`
        (parts)."""
        word: bytes = self._ask(job, "stage_promise", state.batch, state.job_owner(job), text, state.puts)
        return word.decode()

    def set_progress(self, job: StagingJob, batch: int, rows: int) -> bool:
        """Store how many rows are confirmed as published. False: another server has finished the batch."""
        return bool(self._ask(job, "stage_progress", batch, rows))

    def end(self, job: StagingJob, batch: int, rows: int, rejected: int) -> None:
        self._ask(job, "stage_done", batch, rows, rejected, progress.kept_ms(job.key))

    def drop(self, job: StagingJob, batch: int, even_promised: bool = False) -> str:
        """Returns `dropped`, or the state instead: `done`, if only leftovers were deleted, or `promised`."""
        word: bytes = self._ask(
            *(job, "stage_drop", batch, job.owner, int(job.is_admin)),
            *(int(even_promised), progress.kept_ms(job.key)),
        )
        return word.decode()

    def view(self, listed: ListedBatch) -> staged_batches.StagedBatch | None:
        state = self.read_state(listed.job, listed.batch, is_brief=True)
        is_promised = state.promised == state.batch
        if not state.is_staged and not is_promised:
            return None
        job = StagingJob(listed.job.name, listed.job.account, state.stage_owner)
        touched_ms = state.touched_ms if state.is_staged else listed.touched_ms
        return staged_batches.StagedBatch(
            job, state.batch, state.part_count, state.size, touched_ms, is_promised
        )

    # -- of all jobs ----------------------------------------------------------------------------

    def listed(self) -> list[ListedBatch]:
        flat = self._store.calls.call(self._list, "HGETALL", self._list)
        found = []
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if name:
                batch, _, key = name.decode().partition(" ")
                weight, _, touched_ms = value.partition(b" ")
                account, job = split_name(key)
                found.append(
                    ListedBatch(
                        StagingJob(job, account, is_admin=True), int(batch), int(weight), int(touched_ms)
                    )
                )
        return sorted(found, key=lambda each: each.batch)

    def enter(self, job: StagingJob, batch: int, weight: int, most: int) -> None:
        """Reserve `weight` more bytes of memory."""
        name = f"{batch} {job.key}"
        state = self._store.fcall_plain(
            self._list, "stage_enter", name, weight, most, staged_batches.MAX_STAGES
        )
        if state[0] == b"stages":
            raise StagingFull(f"{staged_batches.MAX_STAGES} batches are staged")
        if state[0] == b"bytes":
            raise StagingFull(
                f"{state[1]} bytes of memory are staged, and {weight} more are too many: "
                f"Redis keeps at most {most}"
            )

    def settle(self, job: StagingJob, batch: int, weight: int | None) -> None:
        """Set the weight that a batch has by now; None: the batch does not exist."""
        state = "" if weight is None else weight
        self._store.fcall_plain(self._list, "stage_settle", f"{batch} {job.key}", state)

    def remember_job(self, job: StagingJob) -> None:
        """Register a job that is about to publish; raises TooManyJobs."""
        most = progress.MAX_JOBS_PER_OWNER if job.owner else progress.MAX_SHARED_JOBS
        word = self._store.fcall_plain(
            *(self._jobs, "stage_job", job.owner, job.key, progress.kept_ms(job.key), most, progress.MAX_JOBS)
        )
        if word == b"owner":
            raise progress.TooManyJobs(most, " of yours" if job.owner else "")
        if word == b"all":
            raise progress.TooManyJobs(progress.MAX_JOBS, "")


def pack_part_info(facts: PartFacts, data: bytes) -> bytes:
    return json.dumps([facts.bytes, facts.rows, facts.is_plain, facts.queue, _sum(data)]).encode()


def weight_of(part: str, text: bytes, data: bytes) -> int:
    """The memory that a part takes: small parts are mostly names and the overhead of Redis."""
    return len(data) + len(text) + 2 * len(part) + ENTRY_BYTES


def _sum(data: bytes) -> str:
    """A digest that tells parts of one name apart, and damaged data from the data that was sent."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _number(value: bytes | None) -> int:
    return -1 if value is None else int(value)
