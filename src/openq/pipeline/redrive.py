"""Dead letters chosen by SQL, back to where they failed or elsewhere: each of them once, with an audit.

    redrive(spark, "orders-dead", path="data", url="http://127.0.0.1:9324", where="error_type = 'Timeout'")

Spark finds them in the history, the server moves them by id, and the journal shows what happened to each:
that goes into the audit. With `transform`, a dead letter is published as a new message under the plan's id,
and then its original is removed; if a run ends in between, the next one removes it.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import HistoryUnavailable, InvalidSetting
from .events import PURGES, REMOVALS
from .redrive_run import RedriveResult, RedriveRun
from .resend import BODIES, ResendContext, excerpt, with_json
from .resend_plan import Progress, ResendPlan, batch_size, check_rate, existing_plan, make_plan
from .session import ensure_session
from .spark_errors import matching, mentions, sql_errors
from .target import StrPath, queue_list
from .transform import Transform, function_of, new_body, with_new_body

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from .session import Spark

STEP = 1_000  # the maximum number of ids in one call of the server
GROUPS = 20  # of a preview
SAMPLES = 3

_EVENT = (
    *("position", "seq", "ts", "queue", "message_id", "receive_count", "error_type", "error_signature"),
    *("error_text", "to_queue", "to_seq", "group", "dedup_id", "priority", "size"),
)
_MESSAGE = (
    *("type", "content_type", "attributes", "headers", "trace_id", "producer", "exchange", "routing_key"),
    *("replay_of", "replay_count", "batch"),
)


@dataclass(frozen=True)
class RedriveGroup:
    """Dead letters with one reason from one queue, and the ids of some of them."""

    source: str
    signature: str | None
    count: int
    ids: tuple[str, ...]


@dataclass(frozen=True)
class PlannedRedrive:
    plan: ResendPlan
    groups: tuple[RedriveGroup, ...]
    samples: tuple[dict[str, Any], ...]
    is_new: bool
    items: pa.Table | None = None

    @property
    def left(self) -> int:
        return max(self.plan.total - self.plan.done * self.plan.step, 0)


def redrive(
    spark: Spark,
    queue: str | None = None,
    *,
    path: StrPath | None = None,
    url: str | None = None,
    token: str | None = None,
    archive: StrPath | None = None,
    where: str | None = None,
    to: str | None = None,
    transform: str | None = None,
    rate: float | None = None,
    plan: StrPath | None = None,
    audit: StrPath | None = None,
    progress: Progress | None = None,
) -> RedriveResult:
    """Choose dead letters and send them back. An existing `plan` is resumed.

    `where` is SQL over the columns of a dead letter: message_id, seq, ts (when it was dead-lettered),
    dlq_source, receive_count, error_type, error_signature, error_text, ...; and of its publish: type,
    attributes, body, body_json, ...  `transform` is SQL for another body, or `file.py:function`, which gets
    a dict and returns the body.
    """
    with ResendContext(path, url, token, archive) as context:
        planned = choose(
            spark, context, queue, where=where, to=to, transform=transform, rate=rate, plan=plan, samples=0
        )
        return run(spark, context, planned, progress, audit)


def choose(
    spark: Spark,
    context: ResendContext,
    queue: str | None,
    *,
    where: str | None = None,
    to: str | None = None,
    transform: str | None = None,
    rate: float | None = None,
    plan: StrPath | None = None,
    samples: int = SAMPLES,
) -> PlannedRedrive:
    """The existing plan in this file, or a new one, which is not on disk yet. Moves nothing."""
    check_rate(rate)
    asked = {"queue": queue, "where": where, "to": to, "transform": transform, "rate": rate}
    known = existing_plan("redrive", plan, asked)
    if known is not None:
        return PlannedRedrive(known, (), (), False)
    if queue is None:
        raise InvalidSetting("which dead-letter queue?")
    if set("*?,") & set(queue):
        raise InvalidSetting(f"a redrive is about one dead-letter queue, not {queue!r}")
    queue_list(queue)
    if to == queue:
        raise InvalidSetting(f"the dead letters are in {queue!r} already")
    function = function_of(transform)
    if context.url is not None:
        for name in filter(None, (queue, to)):
            context.settings(name)
    end, journal = context.end()
    made = make_plan("redrive", plan, asked=asked, journal=journal, end_position=end, total=0)
    made.step = batch_size(rate, STEP)
    session = ensure_session(spark)
    with sql_errors("where: "):
        items = _chosen_ids(dead_letters(session, context, made, False))
    made.total = items.num_rows
    made.digest = _digest(items)
    groups = _groups(items)
    shown: tuple[dict[str, Any], ...] = ()
    if samples and items.num_rows:
        shown = _samples(session, context, made, items, groups, function, samples)
    return PlannedRedrive(made, groups, shown, True, items)


def run(
    spark: Spark,
    context: ResendContext,
    planned: PlannedRedrive,
    progress: Progress | None = None,
    audit: StrPath | None = None,
) -> RedriveResult:
    """Send all that is not done yet. Interrupted or failed, the plan says where to resume."""
    plan, items = planned.plan, planned.items
    with plan.locked():
        if "audit" not in plan.state:
            plan.state["audit"] = _audit_path(plan, audit)
        session = ensure_session(spark)
        work = RedriveRun(session, context, plan, progress)
        if plan.is_done:
            plan.save()
            return work.result()
        plan.check_journal(context.end()[1])
        context.check_same_journal()
        if items is None:
            with sql_errors("where: "):
                items = _chosen_ids(dead_letters(session, context, plan, False))
            if _digest(items) != plan.digest:
                raise HistoryUnavailable(
                    f"the plan {plan.path} finds {items.num_rows} dead letters, not the {plan.total} it was "
                    "made for: its condition must not depend on the time or on chance, and the history must "
                    "still be there. Make a new plan for the rest"
                )
        plan.save()
        if plan.asked["transform"] is None:
            work.move(items)
        else:
            work.transform(items, lambda: dead_letters(session, context, plan, True))
        return work.result()


def _audit_path(plan: ResendPlan, audit: StrPath | None) -> str | None:
    if audit is not None and os.path.exists(audit):
        raise InvalidSetting(f"{os.fspath(audit)} exists already: name another file for the audit")
    if audit is None and plan.path is not None:
        stem = plan.path.stem if plan.id in plan.path.stem else f"{plan.path.stem}-{plan.id}"
        audit = plan.path.with_name(f"{stem}.audit.jsonl")
    return None if audit is None else os.fspath(audit)


# -- which dead letters ------------------------------------------------------------------------------------


def dead_letters(spark: SparkSession, context: ResendContext, plan: ResendPlan, whole: bool) -> DataFrame:
    """Those in the queue when the plan was made that match; `whole`: joined with their messages."""
    from pyspark.sql import functions as F

    read = context.reader(spark, plan.end_position)
    queue = plan.asked["queue"]
    dead = (
        read(table="events", events=("dead_letter",), columns=_EVENT)
        .where(F.col("to_queue") == queue)
        .withColumnsRenamed({"seq": "source_seq", "queue": "dlq_source"})
        .withColumnsRenamed({"to_seq": "seq", "to_queue": "queue"})
    )
    left = read(
        table="events",
        events=(*REMOVALS, *PURGES),
        queues=None,
        columns=("position", "seq", "queue", "event"),
    )
    left = left.where(F.col("queue") == queue)
    [purged] = left.where(F.col("event").isin(*PURGES)).agg(F.max("position").alias("at")).collect()
    if purged["at"] is not None:
        dead = dead.where(F.col("position") > purged["at"])
    gone = left.where(F.col("event").isin(*REMOVALS)).select("seq").distinct()
    dead = dead.join(gone, "seq", "left_anti")

    where = plan.asked["where"]
    if whole or mentions(where, BODIES):
        dead = _with_messages(read, dead, True)
    elif mentions(where, ("published", *_MESSAGE)):
        dead = _with_messages(read, dead, False)
    return matching(dead, where)


def _with_messages(read: Callable[..., DataFrame], dead: DataFrame, body: bool) -> DataFrame:
    """Adds the columns that only the publish of a message has."""
    from pyspark.sql import functions as F

    names = (*_MESSAGE, "body") if body else _MESSAGE
    messages = read(table="messages", columns=("message_id", "position", "ts", *names), body=body)
    messages = messages.join(dead.select("message_id").distinct(), "message_id", "left_semi")
    fields = [F.col("ts").alias("published"), *map(F.col, names)]
    # An id that was used twice names the later message.
    latest = messages.groupBy("message_id").agg(F.max_by(F.struct(*fields), "position").alias("message"))
    joined = dead.join(latest, "message_id", "left").select("*", "message.*").drop("message")
    return with_json(joined) if body else joined


def _chosen_ids(frame: DataFrame) -> pa.Table:
    """The ids of all chosen dead letters, the oldest in the queue first."""
    found = frame.select("seq", "message_id", "dlq_source", "error_signature").toArrow()
    return found.sort_by("seq")


def _digest(items: pa.Table) -> str:
    seqs = items.column("seq").to_numpy()
    return hashlib.sha256(seqs.astype("<i8").tobytes()).hexdigest()[:32]


# -- the preview -------------------------------------------------------------------------------------------


def _groups(items: pa.Table) -> tuple[RedriveGroup, ...]:
    counts: Counter[tuple[str, str | None]] = Counter()
    ids: dict[tuple[str, str | None], list[str]] = {}
    columns = (items.column(name).to_pylist() for name in ("dlq_source", "error_signature", "message_id"))
    for source, signature, message_id in zip(*columns, strict=True):
        key = (source, signature)
        counts[key] += 1
        some = ids.setdefault(key, [])
        if len(some) < SAMPLES:
            some.append(message_id)
    return tuple(RedriveGroup(*key, count, tuple(ids[key])) for key, count in counts.most_common())


def _samples(
    spark: SparkSession,
    context: ResendContext,
    plan: ResendPlan,
    items: pa.Table,
    groups: Sequence[RedriveGroup],
    function: Transform | None,
    samples: int,
) -> tuple[dict[str, Any], ...]:
    """Some dead letters of the largest groups, and what they would become."""
    from pyspark.sql import functions as F

    transform = plan.asked["transform"]
    wanted = [message_id for group in groups[:GROUPS] for message_id in group.ids[:samples]]
    seqs = dict(zip(items.column("message_id").to_pylist(), items.column("seq").to_pylist(), strict=True))
    with sql_errors("transform: " if transform else ""):
        frame = dead_letters(spark, context, plan, True)
        frame = frame.where(F.col("seq").isin([seqs[each] for each in wanted]))
        rows = with_new_body(frame, transform, function).collect()
    found = []
    for row in rows:
        sample = {
            "id": row["message_id"],
            "source": row["dlq_source"],
            "error": (row["error_text"] or "")[:500] or None,
            "body": excerpt(row["body"]),
        }
        if transform is not None:
            body, problem = new_body(row.asDict(recursive=True), function)
            sample["new_body"] = excerpt(body)
            sample["problem"] = problem
        found.append(sample)
    order = {message_id: at for at, message_id in enumerate(wanted)}
    return tuple(sorted(found, key=lambda sample: order.get(sample["id"], len(order))))
