"""Values of staged batches, the same for every store: jobs, parts, and commit plans."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import InvalidSetting, OpenQError
from ..names import DEFAULT_ACCOUNT, qualified_name

MAX_PART = 20 << 20  # the default of `max_request_bytes`
MAX_IN_MEMORY = 256 << 20  # of all batches together, where there is no disk
MAX_PARTS = 100_000  # of one batch
MAX_STAGES = 10_000
MAX_BATCH_NUMBER = 1 << 53
KEPT_MS = 86_400_000  # parts that are not committed: the slowest task of a job may take hours

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")

MaySend = Callable[[str], None]  # raises if messages must not be sent to the queue with this key


class StageNotFound(OpenQError):
    """A part that a commit names is not staged."""

    code = "stage_not_found"


class StagingFull(OpenQError):
    code = "staging_full"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: commit or abort some; what nobody commits is dropped after a day")


class PartTooLarge(OpenQError):
    code = "part_too_large"

    def __init__(self, size: int) -> None:
        super().__init__(f"a part of {size} bytes; it has at most {MAX_PART}")


class PartDamaged(InvalidSetting):
    """The stored part differs from the one that was sent."""

    def __init__(self, job: str, batch: int, part: str) -> None:
        super().__init__(
            f"part {part} of job {job!r}, batch {batch} is damaged: send this part again, "
            "or abort the batch and send all of it again"
        )


class StageUnread(OpenQError):
    """The staged data is kept, but the disk cannot read it now."""

    code = "stage_unread"

    def __init__(self, job: str) -> None:
        super().__init__(f"what is staged of job {job!r} cannot be read at the moment; it is tried again")


class NotYourJob(OpenQError):
    code = "forbidden"

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job!r} belongs to somebody else: choose another name for yours")


@dataclass(frozen=True, slots=True)
class StagingJob:
    """Whose batches these are. Jobs of different accounts are separate. All users share the owner ""."""

    name: str
    account: str = DEFAULT_ACCOUNT
    owner: str = ""
    is_admin: bool = False  # the caller may access jobs of other owners

    def __post_init__(self) -> None:
        check_part_name("job", self.name)

    @property
    def key(self) -> str:
        return qualified_name(self.account, self.name)

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


def check_batch(batch: int) -> None:
    if not 0 <= batch <= MAX_BATCH_NUMBER:
        raise InvalidSetting(f"a batch is a number from 0 to {MAX_BATCH_NUMBER}, not {batch}")


@dataclass(frozen=True, slots=True)
class Committed:
    published: int
    rejected: int
    repeated: bool  # this batch was published before, or is being published


@dataclass(frozen=True, slots=True)
class PartFacts:
    """Facts about a part that need no second read. After a restart only its size is known."""

    bytes: int
    rows: int = 0
    is_plain: bool = False  # all rows are only bodies, for
    queue: str | None = None  # this queue, or the one that the commit names


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """An accepted commit. The plan and the parts determine everything that is published."""

    parts: tuple[tuple[str, int], ...]  # name and rows, in order
    queue: str | None  # for rows that name none; queue keys
    dead_letter: str | None
    rejected: dict[int, str]  # row -> why

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Most rejected rows have one of few reasons, so each reason is written once."""
        reasons = {why: number for number, why in enumerate(dict.fromkeys(self.rejected.values()))}
        return {
            "parts": self.parts,
            "queue": self.queue,
            "dead_letter": self.dead_letter,
            "reasons": list(reasons),
            "rejected": [(row, reasons[why]) for row, why in self.rejected.items()],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CommitPlan:
        parts = tuple((name, rows) for name, rows in fields["parts"])
        reasons = fields.get("reasons")  # older files have a reason with each row
        rejected = {row: why if reasons is None else reasons[why] for row, why in fields["rejected"]}
        return cls(parts, fields["queue"], fields["dead_letter"], rejected)


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A staged batch, for listings."""

    job: StagingJob
    batch: int
    parts: int
    bytes: int
    touched_ms: int
    is_committed: bool


class Staging(Protocol):
    """All staged parts of a broker. Every method may block: do not call it on an event loop."""

    def put(self, job: StagingJob, batch: int, part: str, data: bytes) -> int:
        """Store a part; durable when this returns. A part of the same name is replaced. Returns its rows."""

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
        """Publish the rows of these parts in this order; durable when this returns.

        `queue` is for rows that name none. With a `dead_letter` queue, bad rows go there. Without one, the
        first bad row refuses the whole batch, and nothing is published.
        """

    def abort(self, job: StagingJob, batch: int) -> bool:
        """Drop the staged parts. False: the batch is committed, and stays so.

        Exception: an accepted batch with a damaged part is dropped. Only sending it again can repair it.
        """

    def stages(self) -> list[StagedBatch]: ...

    def sweep(self) -> None:
        """Called periodically and after a start: finish accepted commits, drop abandoned parts."""
