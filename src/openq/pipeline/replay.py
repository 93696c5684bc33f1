"""Publish again what was published before: from journal and archive, by time, ids or SQL, into any queue.

    replay(spark, "orders", "orders-again", path="data", url="http://127.0.0.1:9324", since="1h")

A plan cuts the history into ranges of positions. Each range is sent as one batch of the plan's job (or as
several, where a pace is asked for) in the original order, and is published once however often it is sent.
A copy has an id of its own and says in `openq.replay_of` and `openq.replay_count` what it is a copy of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from .resend import (
    BODIES,
    ResendContext,
    StrPath,
    commit,
    mark_as_copies,
    matching,
    mentions,
    publish,
    to_datetime,
    upload_function,
    user_sql_errors,
    with_json,
)
from .resend_plan import (
    RateLimiter,
    ResendPlan,
    batch_size,
    check_rate,
    check_same_request,
    load_plan,
    make_plan,
)
from .session import ensure_session
from .target import moment_us, queue_list

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from .session import Spark

SLICE_ROWS = 200_000
SLICE_BYTES = 64 << 20
PACED_ROWS = 20_000  # of a range that goes through this process
PACED_BYTES = 8 << 20
STEP = 5_000  # messages that go at once, where there is a pace
_BUCKET = 1 << 20  # bytes of the journal that are counted together
_STEP_US = 250_000
_BATCHES_PER_SLICE = 1 << 20  # numbers of batches for each slice

Progress = Callable[[int, int], None]  # messages so far, and of how many

_SENT_COLUMNS = ("body", "type", "group", "priority", "content_type", "attributes", "headers")


@dataclass(frozen=True)
class ReplayGroup:
    """The messages of one queue that are to be sent again."""

    queue: str
    count: int
    bytes: int
    first_us: int
    last_us: int


@dataclass(frozen=True)
class PlannedReplay:
    plan: ResendPlan
    groups: tuple[ReplayGroup, ...]
    is_new: bool

    @property
    def left(self) -> int:
        return sum(rows for _, _, rows in self.plan.slices[self.plan.done :])


@dataclass(frozen=True)
class ReplayResult:
    plan: ResendPlan
    sent: int  # by this run
    repeated: int  # that the server had already, from a run that was cut off


def replay(
    spark: Spark,
    queues: str | Sequence[str] | None = None,
    to: str | None = None,
    *,
    path: StrPath | None = None,
    url: str | None = None,
    token: str | None = None,
    archive: StrPath | None = None,
    since: datetime | float | str | None = None,
    until: datetime | float | str | None = None,
    ids: Sequence[str] | None = None,
    where: str | None = None,
    rate: float | None = None,
    speed: float | None = None,
    plan: StrPath | None = None,
    progress: Progress | None = None,
    include_purged: bool = False,
) -> ReplayResult:
    """Choose and send. With a `plan` that exists, go on where it stands; nothing is sent twice.

    `queues` are names or patterns, `where` is SQL over the columns of `messages` (and `body_json`). `rate`
    is messages per second; `speed` keeps the original distances in time: 10 is ten times as fast. What a
    purge removed is left out, unless `include_purged` asks for it.
    """
    with ResendContext(path, url, token, archive) as context:
        chosen = choose(
            spark,
            context,
            queues,
            to,
            since=since,
            until=until,
            ids=ids,
            where=where,
            rate=rate,
            speed=speed,
            plan=plan,
            include_purged=include_purged,
        )
        return run(spark, context, chosen.plan, progress)


def choose(
    spark: Spark,
    context: ResendContext,
    queues: str | Sequence[str] | None,
    to: str | None,
    *,
    since: datetime | float | str | None = None,
    until: datetime | float | str | None = None,
    ids: Sequence[str] | None = None,
    where: str | None = None,
    rate: float | None = None,
    speed: float | None = None,
    plan: StrPath | None = None,
    include_purged: bool = False,
) -> PlannedReplay:
    """The plan of that name, or a new one, which is not on disk yet. Sends nothing."""
    check_rate(rate)
    if speed is not None and not 0 < speed < 1e6:
        raise InvalidSetting(f"speed must be a factor, more than 0, not {speed}")
    if rate is not None and speed is not None:
        raise InvalidSetting("rate and speed contradict each other: give one of them")
    listed = None if queues is None else list(queue_list(queues))
    known = None if plan is None else load_plan(plan, "replay")
    since_us, until_us = moment_us(since, "since"), moment_us(until, "until")
    asked: dict[str, Any] = {
        "from": listed,
        "to": to,
        "since_us": since_us,
        "until_us": until_us,
        "ids": None if ids is None else list(ids),
        "where": where,
        "rate": rate,
        "speed": speed,
        "include_purged": include_purged or None,
    }
    if known is not None:
        # "2h" means another moment by now; whoever goes on with a plan goes on with its times.
        check_same_request(known, {**asked, "since_us": None, "until_us": None})
        return PlannedReplay(known, (), False)
    if not listed:
        raise InvalidSetting("from which queue? Name it, or a pattern")
    if to is None:
        raise InvalidSetting("to which queue? Name it: the same one, or another")
    if asked["ids"] is not None and not asked["ids"]:
        raise InvalidSetting("the list of ids is empty")
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise InvalidSetting("since must be before until")
    if context.url is not None:
        context.settings(to)
    context.require(listed)
    end, journal = context.end()
    made = make_plan("replay", plan, asked=asked, journal=journal, end_position=end, total=0)
    made.step = STEP if speed is not None else batch_size(rate, STEP)
    buckets, groups = _count(ensure_session(spark), context, made)
    is_paced = rate is not None or speed is not None
    made.slices = _cut(buckets, *((PACED_ROWS, PACED_BYTES) if is_paced else (SLICE_ROWS, SLICE_BYTES)))
    made.total = sum(rows for _, _, rows in made.slices)
    made.state["first_us"] = min((group.first_us for group in groups), default=0)
    return PlannedReplay(made, groups, True)


# -- choosing --------------------------------------------------------------------------------------------


def _frame(
    spark: SparkSession, context: ResendContext, plan: ResendPlan, first: int | None, end: int, body: bool
) -> DataFrame:
    """The chosen messages in a range of positions."""
    asked = plan.asked
    read = context.reader(spark, end)

    words: dict[str, Any] = {
        "queues": asked["from"],
        "since": to_datetime(asked["since_us"]),
        "until": to_datetime(asked["until_us"]),
        "ids": asked["ids"] or (),
        "first_position": first,
    }
    if body or mentions(asked["where"], BODIES):
        frame = read(**words)
        is_json = mentions(asked["where"], ("body_json",))
        frame = matching(with_json(frame) if is_json else frame, asked["where"])
    else:
        frame = matching(read(**words, body=False), asked["where"])
    if asked.get("include_purged"):
        return frame
    return _without_purged(frame, context.reader(spark, plan.end_position), asked["from"])


def _without_purged(frame: DataFrame, read: Any, queues: Sequence[str]) -> DataFrame:
    """Without the messages that a purge of their queue found there: published before, settled not before."""
    from pyspark.sql import functions as F

    from .lifecycle import ENDS, RETURNS

    columns = ("position", "item", "queue", "event")
    purges = read(table="events", queues=queues, events=("purge",), columns=columns).collect()
    if not purges:
        return frame
    listed: dict[str, list[tuple[int, bool]]] = {}
    for row in purges:
        # The item of a purge says whether it left alone what was in flight.
        listed.setdefault(row["queue"], []).append((row["position"], row["item"] == 1))
    schema = "queue STRING, _purges ARRAY<STRUCT<at: BIGINT, spares: BOOLEAN>>"
    table = frame.sparkSession.createDataFrame(list(listed.items()), schema)
    events = ("deliver", *RETURNS, *ENDS[:-1])
    steps = read(table="events", queues=queues, events=events, columns=("position", "seq", "queue", "event"))
    what = F.when(F.col("event") == "deliver", 1).when(F.col("event").isin(*RETURNS), 0).otherwise(2)
    step = F.struct(F.col("position").alias("at"), what.alias("what"))  # 1: in flight, 0: waiting, 2: settled
    user_sql_errors = steps.where(F.col("queue").isin(list(listed))).groupBy("queue", "seq")
    rows = frame.join(F.broadcast(table), "queue", "left")
    rows = rows.join(user_sql_errors.agg(F.collect_list(step).alias("_steps")), ["queue", "seq"], "left")

    def removes(purge: Any) -> Any:
        before = F.filter("_steps", lambda step: step["at"] < purge["at"])
        settled = F.coalesce(F.exists(before, lambda step: step["what"] == 2), F.lit(False))
        in_flight = F.coalesce(F.array_max(before)["what"] == 1, F.lit(False))
        return (purge["at"] > F.col("position")) & ~settled & ~(purge["spares"] & in_flight)

    is_purged = F.coalesce(F.exists("_purges", removes), F.lit(False))
    return rows.where(~is_purged).select(*frame.columns)


def _count(
    spark: SparkSession, context: ResendContext, plan: ResendPlan
) -> tuple[list[tuple[int, int, int, int]], tuple[ReplayGroup, ...]]:
    """How much there is for each piece of the journal (first position, the one behind its last, messages,
    bytes), and of each queue."""
    from pyspark.sql import functions as F

    with user_sql_errors("where: "):
        frame = _frame(spark, context, plan, None, plan.end_position, body=False)
        us = F.unix_micros("ts")
        counted = (
            frame.groupBy(F.floor(F.col("position") / F.lit(_BUCKET)).alias("bucket"), "queue")
            .agg(
                F.min("position").alias("first"),
                F.max("position").alias("last"),
                F.count("*").alias("n"),
                F.sum(F.coalesce("size", F.lit(0))).alias("bytes"),
                F.min(us).alias("first_us"),
                F.max(us).alias("last_us"),
            )
            .collect()
        )
    buckets: dict[int, tuple[int, int, int, int]] = {}
    groups: dict[str, ReplayGroup] = {}
    for row in counted:
        found = buckets.get(row["bucket"], (row["first"], row["last"] + 1, 0, 0))
        buckets[row["bucket"]] = (
            min(found[0], row["first"]),
            max(found[1], row["last"] + 1),
            found[2] + row["n"],
            found[3] + row["bytes"],
        )
        each = groups.get(row["queue"]) or ReplayGroup(row["queue"], 0, 0, row["first_us"], row["last_us"])
        groups[row["queue"]] = ReplayGroup(
            row["queue"],
            each.count + row["n"],
            each.bytes + row["bytes"],
            min(each.first_us, row["first_us"]),
            max(each.last_us, row["last_us"]),
        )
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.queue))
    return [buckets[number] for number in sorted(buckets)], tuple(ordered)


def _cut(buckets: list[tuple[int, int, int, int]], most: int, most_bytes: int) -> list[tuple[int, int, int]]:
    """Neighbours as slices of at most so much, unless one alone is more."""
    slices: list[tuple[int, int, int]] = []
    size = 0
    for first, end, rows, weight in buckets:
        if slices and slices[-1][2] + rows <= most and size + weight <= most_bytes:
            slices[-1] = (slices[-1][0], end, slices[-1][2] + rows)
            size += weight
        else:
            slices.append((first, end, rows))
            size = weight
    return slices


# -- sending ---------------------------------------------------------------------------------------------


def run(
    spark: Spark, context: ResendContext, plan: ResendPlan, progress: Progress | None = None
) -> ReplayResult:
    """All slices that are not done. Interrupted or failed, the plan says where to go on."""
    with plan.locked():
        if plan.path is not None and plan.path.exists():
            # Somebody may have gone on with it since it was chosen.
            found = load_plan(plan.path, "replay")
            if found is not None and found.id == plan.id:
                plan.done, plan.state = found.done, found.state
        if plan.is_done:
            plan.save()
            return ReplayResult(plan, 0, 0)
        if context.end()[1] != plan.journal:
            raise InvalidSetting(f"the plan {plan.path} was made from another history: name the right one")
        work = _ReplayRun(ensure_session(spark), context, plan, progress)
        plan.save()
        asked = plan.asked
        if asked["rate"] is None and asked["speed"] is None:
            work.all_at_once()
        else:
            work.paced()
        return ReplayResult(plan, work.sent, work.repeated)


class _ReplayRun:
    def __init__(
        self, spark: SparkSession, context: ResendContext, plan: ResendPlan, progress: Progress | None
    ) -> None:
        self._spark = spark
        self._context = context
        self._plan = plan
        self._progress = progress
        self.sent = self.repeated = 0
        settings = context.settings(plan.asked["to"])
        # A copy is no accidental repetition of its original, however soon it comes.
        self._has_dedup = bool(settings.get("fifo") or settings.get("dedup_by_content"))

    def _rows(self, number: int) -> DataFrame:
        """What a slice sends, in its order."""
        from pyspark.sql import functions as F

        first, end, _ = self._plan.slices[number]
        frame = _frame(self._spark, self._context, self._plan, first, end, body=True)
        frame = mark_as_copies(frame)
        if self._has_dedup:
            dedup = F.concat(F.lit(f"{self._plan.id}-"), F.col("seq").cast("string"))
            frame = frame.withColumn("dedup_id", dedup)
        # Bodies of a whole slice fit into one task, and one task keeps the order.
        return (
            frame.repartition(1)
            .sortWithinPartitions("position", "seq")
            .select("position", "ts", *self._names)
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return (*_SENT_COLUMNS, "dedup_id") if self._has_dedup else _SENT_COLUMNS

    def _advance(self, number: int) -> None:
        self._plan.done = number + 1
        self._plan.save()

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done + self.sent + self.repeated, self._plan.total)

    def all_at_once(self) -> None:
        """Spark's tasks upload the rows of a slice; this process looks at their number and commits."""
        from .options import WRITE, SourceOptions
        from .sink import SinkTarget, abort

        plan, context = self._plan, self._context
        given = {"url": context.link.url, "queue": plan.asked["to"], "jobId": plan.id}
        if context.token is not None:
            given["token"] = context.token
        target = SinkTarget(SourceOptions.parse(given, WRITE))
        before = self._before()
        for number in range(plan.done, len(plan.slices)):
            batch = number * _BATCHES_PER_SLICE
            with user_sql_errors():
                frame = self._rows(number).select(*self._names)
                tasks = frame.mapInArrow(
                    upload_function(target, self._names, plan.id, batch), "part STRING, rows BIGINT"
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
            self._report(before)

    def paced(self) -> None:
        """In this process, a few at a time; the next slice is read while one is sent."""
        plan = self._plan
        before = self._before()
        pace = _ReplayClock(plan) if plan.asked["speed"] is not None else RateLimiter(plan.asked["rate"])
        with ThreadPoolExecutor(1, thread_name_prefix="openq-replay") as thread:
            coming = thread.submit(self._read, plan.done)
            for number in range(plan.done, len(plan.slices)):
                with user_sql_errors():
                    rows = coming.result()
                if number + 1 < len(plan.slices):
                    coming = thread.submit(self._read, number + 1)
                for at, (start, end) in enumerate(_steps(plan, rows.column("ts"))):
                    part = rows.slice(start, end - start)
                    if isinstance(pace, RateLimiter):
                        pace.wait(end - start)
                    else:
                        pace.wait(_first_us(part))
                    is_repeated = self._send(part.select(self._names), number * _BATCHES_PER_SLICE + at)
                    if is_repeated:
                        pace.restart()
                    self._count(is_repeated, end - start)
                    self._report(before)
                self._advance(number)

    def _read(self, number: int) -> pa.Table:
        rows = self._rows(number).toArrow()
        self._check(number, rows.num_rows)
        return rows

    def _send(self, rows: pa.Table, batch: int) -> bool:
        from .packed_rows import parts

        plan = self._plan
        packed = (part.data for part in parts(rows.to_batches(), self._names))
        return publish(self._context.link, plan.id, batch, packed, rows.num_rows, plan.asked["to"])

    def _before(self) -> int:
        return sum(rows for _, _, rows in self._plan.slices[: self._plan.done])

    def _count(self, is_repeated: bool, rows: int) -> None:
        if is_repeated:
            self.repeated += rows
        else:
            self.sent += rows

    def _check(self, number: int, rows: int) -> None:
        planned = self._plan.slices[number][2]
        if rows != planned:
            raise HistoryUnavailable(
                f"slice {number + 1} of the plan {self._plan.path} has {rows} messages, not {planned}; "
                "nothing of it was sent. Its condition must not depend on the time or on chance, and the "
                "history must still be there"
            )


def _steps(plan: ResendPlan, times: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    """What goes at once. The same for the same plan: each step is known to the server by its number."""
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
    """When a message is due, if the past goes by `speed` times as fast. Begins with the first one sent."""

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
        """What was sent by a run before needs no time."""
        self._zero = None
