"""Carries out the plan of a replay: slice by slice, at once or at a given rate or speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import HistoryUnavailable, OpenQError
from .resend import ResendContext, commit, mark_as_copies, publish, upload_function
from .resend_plan import Progress, RateLimiter, ResendPlan
from .spark_errors import sql_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_STEP_US = 250_000
_BATCHES_PER_SLICE = 1 << 20  # batch numbers reserved for each slice

_SENT_COLUMNS = ("body", "type", "group", "priority", "content_type", "attributes", "headers")


@dataclass(frozen=True)
class ReplayResult:
    plan: ResendPlan
    sent: int  # by this run
    repeated: int  # published already, by an earlier run that was interrupted


class ReplayRun:
    """`messages` gives the rows of `messages` that were chosen between two positions."""

    def __init__(
        self,
        context: ResendContext,
        plan: ResendPlan,
        progress: Progress | None,
        messages: Callable[[int, int], DataFrame],
    ) -> None:
        self._context = context
        self._plan = plan
        self._progress = progress
        self._messages = messages
        self._sent = self._repeated = 0
        self._before = sum(rows for _, _, rows in plan.slices[: plan.done])
        settings = context.settings(plan.asked["to"])
        # A copy is not a duplicate of its original, however soon it comes: it gets a dedup id of its own.
        self._has_dedup = bool(settings.get("fifo") or settings.get("dedup_by_content"))
        self._columns = (*_SENT_COLUMNS, "dedup_id") if self._has_dedup else _SENT_COLUMNS

    def _rows(self, number: int) -> DataFrame:
        """The rows that a slice sends, in its order."""
        from pyspark.sql import functions as F

        first, end, _ = self._plan.slices[number]
        frame = mark_as_copies(self._messages(first, end))
        if self._has_dedup:
            dedup = F.concat(F.lit(f"{self._plan.id}-"), F.col("seq").cast("string"))
            frame = frame.withColumn("dedup_id", dedup)
        # The bodies of a whole slice fit into one task, and one task keeps the order.
        return (
            frame.repartition(1)
            .sortWithinPartitions("position", "seq")
            .select("position", "ts", *self._columns)
        )

    def all_at_once(self) -> ReplayResult:
        """Spark's tasks upload the rows of a slice; this process checks their number and commits."""
        from .options import WRITE, SourceOptions, as_options
        from .sink import SinkTarget, abort

        plan, context = self._plan, self._context
        options = as_options(url=context.link.url, queue=plan.asked["to"], jobId=plan.id, token=context.token)
        target = SinkTarget(SourceOptions.parse(options, WRITE))
        for number in range(plan.done, len(plan.slices)):
            batch = number * _BATCHES_PER_SLICE
            with sql_errors():
                frame = self._rows(number).select(*self._columns)
                tasks = frame.mapInArrow(
                    upload_function(target, self._columns, plan.id, batch), "part STRING, rows BIGINT"
                ).collect()
            rows = sum(task["rows"] for task in tasks)
            try:
                self._check(number, rows)
            except OpenQError:
                abort(target, plan.id, batch)
                raise
            parts = [task["part"] for task in tasks]
            self._count(commit(context.link, plan.id, batch, parts, rows, plan.asked["to"]), rows)
            self._advance(number)
            self._report()
        return ReplayResult(plan, self._sent, self._repeated)

    def paced(self) -> ReplayResult:
        """In this process, batch by batch; the next slice is read while one is sent."""
        plan = self._plan
        pace = _ReplayClock(plan) if plan.asked["speed"] is not None else RateLimiter(plan.asked["rate"])
        with ThreadPoolExecutor(1, thread_name_prefix="openq-replay") as thread:
            coming = thread.submit(self._read, plan.done)
            for number in range(plan.done, len(plan.slices)):
                with sql_errors():
                    rows = coming.result()
                if number + 1 < len(plan.slices):
                    coming = thread.submit(self._read, number + 1)
                for at, (start, end) in enumerate(steps(plan, rows.column("ts"))):
                    part = rows.slice(start, end - start)
                    if isinstance(pace, RateLimiter):
                        pace.wait(end - start)
                    else:
                        pace.wait(_first_us(part))
                    is_repeated = self._send(part.select(self._columns), number * _BATCHES_PER_SLICE + at)
                    if is_repeated:
                        pace.restart()
                    self._count(is_repeated, end - start)
                    self._report()
                self._advance(number)
        return ReplayResult(plan, self._sent, self._repeated)

    def _read(self, number: int) -> pa.Table:
        rows = self._rows(number).toArrow()
        self._check(number, rows.num_rows)
        return rows

    def _send(self, rows: pa.Table, batch: int) -> bool:
        from .packed_rows import parts

        plan = self._plan
        packed = (part.data for part in parts(rows.to_batches(), self._columns))
        return publish(self._context.link, plan.id, batch, packed, rows.num_rows, plan.asked["to"])

    def _count(self, is_repeated: bool, rows: int) -> None:
        if is_repeated:
            self._repeated += rows
        else:
            self._sent += rows

    def _advance(self, number: int) -> None:
        self._plan.done = number + 1
        self._plan.save()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._before + self._sent + self._repeated, self._plan.total)

    def _check(self, number: int, rows: int) -> None:
        planned = self._plan.slices[number][2]
        if rows != planned:
            raise HistoryUnavailable(
                f"slice {number + 1} of the plan {self._plan.path} has {rows} messages, not {planned}; "
                "none of them was sent. Its condition must not depend on the time or on chance, and the "
                "history must still be there"
            )


def steps(plan: ResendPlan, times: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    """The batches of a slice, always the same for a plan: the server knows each by its number."""
    import numpy as np

    count = len(times)
    ends = set(range(plan.step, count, plan.step)) | {count}
    if plan.asked["speed"] is not None:
        us = times.cast("int64").to_numpy() - plan.state["first_us"]
        ticks = (us / (plan.asked["speed"] * _STEP_US)).astype(np.int64)
        ends |= {int(each) + 1 for each in np.flatnonzero(np.diff(ticks))}
    start = 0
    for end in sorted(ends):
        yield start, end
        start = end


def _first_us(rows: pa.Table) -> int:
    us: int = rows.column("ts").slice(0, 1).cast("int64")[0].as_py()
    return us


class _ReplayClock:
    """Waits until a message is due, with time running `speed` times as fast. Begins with the first one
    sent."""

    def __init__(self, plan: ResendPlan) -> None:
        self._speed: float = plan.asked["speed"]
        self._zero: tuple[float, int] | None = None

    def wait(self, us: int) -> None:
        now = time.monotonic()
        if self._zero is None:
            self._zero = now, us
        due = self._zero[0] + (us - self._zero[1]) / 1e6 / self._speed
        if due > now:
            time.sleep(due - now)

    def restart(self) -> None:
        """A batch that the server had already takes no time."""
        self._zero = None
