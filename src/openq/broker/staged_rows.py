"""The rows of a staged batch: checked before the commit is accepted, read in order when it is published.

Nothing here knows where the parts are stored or how messages get into queues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .. import packed
from ..engine.rules import REJECTING_OVERFLOWS
from ..errors import InvalidSetting, OpenQError, QueueFull, QueueNotFound
from ..model import Draft, QueueSettings
from ..names import qualified_name, split_name
from . import staged_batches
from .packed_messages import (
    INTENDED,
    MAX_REASON,
    REASON,
    BadRow,
    MessageSlice,
    check_columns,
    json_properties,
    plain_queue,
    read_rows,
)
from .staged_batches import (
    CommitPlan,
    MaySend,
    PartFacts,
    PartTooLarge,
    StageNotFound,
    StagingJob,
    check_batch,
    check_part_name,
)

MAX_REJECTED = 100_000  # of one batch: beyond this the whole batch is wrong

ReadPart = Callable[[str], packed.Part]


def check_part(job: StagingJob, batch: int, part: str, data: bytes) -> PartFacts:
    """The facts about an incoming part; raises if it is not a valid part."""
    check_part_name("part", part)
    check_batch(batch)
    if len(data) > staged_batches.MAX_PART:
        raise PartTooLarge(len(data))
    found = packed.Part(data)
    check_columns(found)
    one = plain_queue(found, job.account, "")
    return PartFacts(len(data), found.rows, one is not None, one or None)


# -- before the commit is accepted ----------------------------------------------------------------


def check_batch_rows(
    account: str,
    known: Mapping[str, PartFacts],
    read_part: ReadPart,
    parts: Sequence[str],
    rows: int | None,
    queue: str | None,
    dead_letter: str | None,
    limits: RowLimits,
) -> CommitPlan:
    """Check every row.

    A bad row refuses the batch, unless there is a `dead_letter` queue. Takes queue keys.
    """
    missing = [part for part in parts if part not in known]
    if missing:
        raise StageNotFound(
            f"{len(missing)} of {len(parts)} parts are not here, such as {missing[0][:100]!r}: "
            "send them again, then commit"
        )
    if len(set(parts)) != len(parts):
        raise InvalidSetting("a part is named twice")
    for name in filter(None, (queue, dead_letter)):
        limits.require(name)
    counts: list[tuple[str, int]] = []
    rejected: dict[int, str] = {}
    reasons: dict[str, str] = {}  # one string for all rows with the same reason
    start = 0
    for name in parts:
        facts = known[name]
        target = facts.queue or queue
        if facts.is_plain and target is not None and limits.is_open(target):
            counts.append((name, facts.rows))
            start += facts.rows
            continue
        part = read_part(name)
        for row, why in _bad_rows(part, account, queue, limits):
            if dead_letter is None:
                why.args = (f"row {row} of part {name}: {why}",)
                raise why
            if len(rejected) == MAX_REJECTED:
                why.args = (f"more than {MAX_REJECTED} bad rows, such as row {row} of part {name}: {why}",)
                raise why
            # A client of another account knows its queues by names without the account prefix.
            text = str(why).replace(qualified_name(account, ""), "")[:MAX_REASON]
            rejected[start + row] = reasons.setdefault(text, text)
        counts.append((name, part.rows))
        start += part.rows
    if rows is not None and rows != start:
        raise InvalidSetting(f"the parts have {start} rows, not {rows}: send the batch again")
    return CommitPlan(tuple(counts), queue, dead_letter, rejected)


def _bad_rows(
    part: packed.Part, account: str, queue: str | None, limits: RowLimits
) -> Iterator[tuple[int, OpenQError]]:
    one = plain_queue(part, account, queue)
    if one is not None:
        yield from limits.refused(one, part.sizes("body"))
        return
    for each in read_rows(part, account, queue):
        if isinstance(each, BadRow):
            yield each.row, each.why
        else:
            for offset, why in limits.refused(each.queue, list(map(len, each.bodies))):
                yield each.row + offset, why


# -- accepted commits -----------------------------------------------------------------------------


def planned_chunks(
    account: str, plan: CommitPlan, read_part: ReadPart, done: int, most_weight: int, most_bytes: int
) -> Iterator[tuple[list[MessageSlice], bool]]:
    """The rows from number `done` on, in chunks of bounded size; rejected rows as dead letters.

    Each chunk comes with a flag that says whether it is the last. There is always a last chunk, even an empty
    one.
    """
    chunk: list[MessageSlice] = []
    weight = size = 0
    for slice in _planned_rows(account, plan, read_part, done):
        for each in slice.pieces(most_weight, most_bytes):
            more = sum(map(len, each.bodies))
            if chunk and (weight + each.weight > most_weight or size + more > most_bytes):
                yield chunk, False
                chunk, weight, size = [], 0, 0
            chunk.append(each)
            weight += each.weight
            size += more
    yield chunk, True


def _planned_rows(account: str, plan: CommitPlan, read_part: ReadPart, done: int) -> Iterator[MessageSlice]:
    start = 0
    bad = sorted(plan.rejected)
    for name, count in plan.parts:
        end = start + count
        if end > done:
            here = bad[bisect_left(bad, start) : bisect_left(bad, end)]
            rejected = {row - start: plan.rejected[row] for row in here}
            for each in read_rows(read_part(name), account, plan.queue, rejected, plan.dead_letter):
                if isinstance(each, BadRow):
                    raise each.why  # it was valid when the commit was accepted
                skipped = min(max(done - start - each.row, 0), len(each.bodies))
                yield each.cut(skipped, len(each.bodies)) if skipped else each
        start = end


def orphaned(each: MessageSlice, dead_letter: str) -> MessageSlice:
    """Rows whose queue was deleted since the commit was accepted, as dead letters."""
    name = split_name(each.queue)[1]
    properties = json_properties({REASON: str(QueueNotFound(name)), INTENDED: name})
    return MessageSlice(
        each.row,
        dead_letter,
        each.bodies,
        drafts=[Draft(body, properties=properties) for body in each.bodies],
    )


# -- limits of queues -----------------------------------------------------------------------------


class QueueRoom(NamedTuple):
    settings: QueueSettings
    waiting: int  # messages, and
    waiting_bytes: int  # both may be 0 where nothing is limited


def is_limited(settings: QueueSettings) -> bool:
    """Whether a queue may reject messages."""
    refuses = settings.overflow in REJECTING_OVERFLOWS and (settings.max_length, settings.max_bytes) != (
        None,
        None,
    )
    return refuses or settings.max_body is not None


class RowLimits:
    """The limits of each queue now. The permission to send is checked once for each queue."""

    def __init__(self, room_of: Callable[[str], QueueRoom | None], may_send: MaySend | None) -> None:
        self._room_of = room_of
        self._may_send = may_send
        self._known: dict[str, _QueueLimit | None] = {}

    def _gate(self, name: str) -> _QueueLimit | None:
        if name not in self._known:
            # Check first: a client without the permission must not learn whether the queue exists.
            if self._may_send is not None:
                self._may_send(name)
            room = self._room_of(name)
            self._known[name] = None if room is None else _QueueLimit(name, room)
        return self._known[name]

    def require(self, name: str) -> None:
        if self._gate(name) is None:
            raise QueueNotFound(name)

    def is_open(self, name: str) -> bool:
        """Whether it exists and has no limits."""
        limit = self._gate(name)
        return limit is not None and not limit.is_limited

    def refused(self, name: str, sizes: Sequence[int]) -> Iterator[tuple[int, OpenQError]]:
        limit = self._gate(name)
        if limit is None:
            yield from ((offset, QueueNotFound(name)) for offset in range(len(sizes)))
        elif limit.is_limited:
            for offset, size in enumerate(sizes):
                why = limit.refusal(size)
                if why is not None:
                    yield offset, why


class _QueueLimit:
    """Counts accepted rows as if they were in the queue already."""

    __slots__ = ("_bytes", "_count", "_name", "_settings", "is_limited")

    def __init__(self, name: str, room: QueueRoom) -> None:
        self._name = name
        self._settings, self._count, self._bytes = room
        self.is_limited = is_limited(room.settings)

    def refusal(self, size: int) -> OpenQError | None:
        settings = self._settings
        if settings.max_body is not None and size > settings.max_body:
            return InvalidSetting(
                f"a body of {size} bytes; queue {self._name!r} takes at most {settings.max_body}"
            )
        if settings.overflow in REJECTING_OVERFLOWS:
            if settings.max_length is not None and self._count >= settings.max_length:
                return QueueFull(self._name, f"max_length {settings.max_length}")
            if settings.max_bytes is not None and self._bytes + size > settings.max_bytes:
                return QueueFull(self._name, f"max_bytes {settings.max_bytes}")
        self._count += 1
        self._bytes += size
        return None
