"""Publish messages of the past again: from journal and archive, by time, ids or SQL, into any queue.

    replay(spark, "orders", "orders-again", path="data", url="http://127.0.0.1:9324", since="1h")

A plan cuts the history into ranges of positions (slices). Each slice is sent as one batch of the plan's job
(or as several, with `rate` or `speed`) in the original order, and is published once however often it is sent.
A copy has an id of its own and names its original in `openq.replay_of` and `openq.replay_count`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ..errors import InvalidSetting
from ..history.moments import to_datetime
from .events import REMOVALS, RETURNS, purges_by_queue
from .replay_run import ReplayResult, ReplayRun
from .resend import BODIES, ResendContext, with_json
from .resend_plan import Progress, ResendPlan, batch_size, check_rate, existing_plan, make_plan
from .session import ensure_session
from .spark_errors import matching, mentions, sql_errors
from .target import Moment, StrPath, queue_list, time_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .session import Spark

SLICE_ROWS = 200_000
SLICE_BYTES = 64 << 20
PACED_ROWS = 20_000  # of a slice that goes through this process
PACED_BYTES = 8 << 20
STEP = 5_000  # messages of one batch, with `rate` or `speed`
_BUCKET = 1 << 20  # bytes of the journal that are counted together


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


def replay(
    spark: Spark,
    queues: str | Sequence[str] | None = None,
    to: str | None = None,
    *,
    path: StrPath | None = None,
    url: str | None = None,
    token: str | None = None,
    archive: StrPath | None = None,
    plan: StrPath | None = None,
    progress: Progress | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    ids: Sequence[str] | None = None,
    where: str | None = None,
    rate: float | None = None,
    speed: float | None = None,
    include_purged: bool = False,
) -> ReplayResult:
    """Choose messages and publish them again. An existing `plan` is resumed; nothing is sent twice.

    `queues` are names or patterns, `where` is SQL over the columns of `messages` (and `body_json`). `rate` is
    in messages per second; `speed` keeps the original distances in time: 10 is ten times as fast. Messages
    that a purge removed are left out, unless `include_purged` is true.
    """
    with ResendContext(path, url, token, archive) as context:
        planned = choose(
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
            include_purged=include_purged,
            plan=plan,
        )
        return run(spark, context, planned.plan, progress)


class ReplayOptions(TypedDict, total=False):
    """The keywords of `replay` that choose messages and their pace."""

    since: Moment | None
    until: Moment | None
    ids: Sequence[str] | None
    where: str | None
    rate: float | None
    speed: float | None
    include_purged: bool


def choose(
    spark: Spark,
    context: ResendContext,
    queues: str | Sequence[str] | None,
    to: str | None,
    *,
    plan: StrPath | None = None,
    **options: Unpack[ReplayOptions],
) -> PlannedReplay:
    """The existing plan in this file, or a new one, which is not on disk yet. Sends nothing."""
    rate, speed, ids = options.get("rate"), options.get("speed"), options.get("ids")
    check_rate(rate)
    if speed is not None and not 0 < speed < 1e6:
        raise InvalidSetting(f"speed must be a factor, more than 0, not {speed}")
    if rate is not None and speed is not None:
        raise InvalidSetting("rate and speed contradict each other: give one of them")
    listed = None if queues is None else list(queue_list(queues))
    asked: dict[str, Any] = {
        "from": listed,
        "to": to,
        "since_us": None,
        "until_us": None,
        "ids": None if ids is None else list(ids),
        "where": options.get("where"),
        "rate": rate,
        "speed": speed,
        "include_purged": options.get("include_purged") or None,
    }
    # Without the times: "2h" means another moment by now, and a resumed plan keeps its own.
    known = existing_plan("replay", plan, asked)
    asked["since_us"], asked["until_us"] = time_range(options.get("since"), options.get("until"))
    if known is not None:
        return PlannedReplay(known, (), False)
    if not listed:
        raise InvalidSetting("from which queue? Name it, or a pattern")
    if to is None:
        raise InvalidSetting("to which queue? Name it: the same one, or another")
    if asked["ids"] is not None and not asked["ids"]:
        raise InvalidSetting("the list of ids is empty")
    if context.url is not None:
        context.settings(to)
    context.target.require(listed)
    end, journal = context.end()
    made = make_plan("replay", plan, asked=asked, journal=journal, end_position=end, total=0)
    made.step = STEP if speed is not None else batch_size(rate, STEP)
    buckets, groups = _count(ensure_session(spark), context, made)
    is_paced = rate is not None or speed is not None
    made.slices = cut_slices(buckets, *((PACED_ROWS, PACED_BYTES) if is_paced else (SLICE_ROWS, SLICE_BYTES)))
    made.total = sum(rows for _, _, rows in made.slices)
    made.state["first_us"] = min((group.first_us for group in groups), default=0)
    return PlannedReplay(made, groups, True)


def run(
    spark: Spark, context: ResendContext, plan: ResendPlan, progress: Progress | None = None
) -> ReplayResult:
    """Send all slices that are not done. Interrupted or failed, the plan says where to resume."""
    with plan.locked():
        if plan.is_done:
            plan.save()
            return ReplayResult(plan, 0, 0)
        plan.check_journal(context.end()[1])
        session = ensure_session(spark)

        def rows(first: int, end: int) -> DataFrame:
            return _messages(session, context, plan, first, end, body=True)

        work = ReplayRun(context, plan, progress, rows)
        plan.save()
        return work.paced() if plan.asked["rate"] or plan.asked["speed"] else work.all_at_once()


# -- choosing ----------------------------------------------------------------------------------------------


def _messages(
    spark: SparkSession, context: ResendContext, plan: ResendPlan, first: int | None, end: int, body: bool
) -> DataFrame:
    """The chosen messages in a range of positions."""
    asked = plan.asked
    read = context.reader(spark, end)
    since_us, until_us = asked["since_us"], asked["until_us"]
    keywords: dict[str, Any] = {
        "queues": asked["from"],
        "since": None if since_us is None else to_datetime(since_us),
        "until": None if until_us is None else to_datetime(until_us),
        "ids": asked["ids"] or (),
        "first_position": first,
    }
    if body or mentions(asked["where"], BODIES):
        frame = read(**keywords)
        is_json = mentions(asked["where"], ("body_json",))
        frame = matching(with_json(frame) if is_json else frame, asked["where"])
    else:
        frame = matching(read(**keywords, body=False), asked["where"])
    if asked.get("include_purged"):
        return frame
    return _without_purged(frame, context.reader(spark, plan.end_position), asked["from"])


def _without_purged(frame: DataFrame, read: Any, queues: Sequence[str]) -> DataFrame:
    """Without the messages that a purge removed: published before it, and not settled before it."""
    from pyspark.sql import functions as F

    columns = ("position", "item", "queue", "event")
    purges = read(table="events", queues=queues, events=("purge",), columns=columns).collect()
    if not purges:
        return frame
    listed = purges_by_queue(purges, "position")
    schema = "queue STRING, _purges ARRAY<STRUCT<at: BIGINT, spares: BOOLEAN>>"
    table = frame.sparkSession.createDataFrame(list(listed.items()), schema)
    events = ("deliver", *RETURNS, *REMOVALS)
    steps = read(table="events", queues=queues, events=events, columns=("position", "seq", "queue", "event"))
    what = F.when(F.col("event") == "deliver", 1).when(F.col("event").isin(*RETURNS), 0).otherwise(2)
    step = F.struct(F.col("position").alias("at"), what.alias("what"))  # 1: in flight, 0: ready, 2: settled
    by_message = steps.where(F.col("queue").isin(list(listed))).groupBy("queue", "seq")
    rows = frame.join(F.broadcast(table), "queue", "left")
    rows = rows.join(by_message.agg(F.collect_list(step).alias("_steps")), ["queue", "seq"], "left")

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
    """For each bucket of the journal its first position, the one after its last, messages and bytes; and for
    each queue how much there is."""
    from pyspark.sql import functions as F

    with sql_errors("where: "):
        frame = _messages(spark, context, plan, None, plan.end_position, body=False)
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


def cut_slices(
    buckets: list[tuple[int, int, int, int]], max_rows: int, max_bytes: int
) -> list[tuple[int, int, int]]:
    """Adjacent buckets as slices of at most so much; a bucket that is larger is a slice of its own."""
    slices: list[tuple[int, int, int]] = []
    size = 0
    for first, end, rows, weight in buckets:
        if slices and slices[-1][2] + rows <= max_rows and size + weight <= max_bytes:
            slices[-1] = (slices[-1][0], end, slices[-1][2] + rows)
            size += weight
        else:
            slices.append((first, end, rows))
            size = weight
    return slices
