"""Dead letters grouped by error: how many, since when, which are still there, and what to do.

    triage(spark, path="data", queues="orders-dead")

The reasons are normalised when the history is read (`history/error_signature.py`), so millions are grouped in
one pass with a fixed amount of data per group. Samples are looked up afterwards.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..client.times import from_ms, iso
from ..errors import InvalidSetting
from .events import PURGES, REMOVALS, RETURNS, purges_by_queue
from .report import count, escape, examples, moment, page, span, sparkline, stacked_bar, table, text_cell
from .resend import excerpt
from .target import HistoryTarget, Moment, StrPath, queue_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 48  # of a timeline
MAX_SAMPLES = 20
EXCERPT = 400  # bytes of a body
_HOUR_US = 3_600_000_000
_GROUP = ("queue", "to_queue", "type", "error_type", "error_signature")
_COLUMNS = (
    "position",
    "seq",
    "ts",
    "queue",
    "message_id",
    "error_type",
    "error_signature",
    "to_queue",
    "to_seq",
)
_BACK = ("redrive", "move")


@dataclass(frozen=True)
class TriageGroup:
    """Dead letters with one error, from one queue, of one type."""

    source: str
    dead_queue: str
    type: str | None
    error_type: str | None
    signature: str | None
    count: int
    first_us: int
    last_us: int
    there: int  # still in the dead-letter queue
    redriven: int
    discarded: int  # acknowledged, cancelled, expired or purged there
    timeline: tuple[int, ...]
    samples: tuple[dict[str, Any], ...]
    action: str
    advice: str
    command: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "dead_queue": self.dead_queue,
            "type": self.type,
            "error_type": self.error_type,
            "signature": self.signature,
            "count": self.count,
            "first_seen": _iso(self.first_us),
            "last_seen": _iso(self.last_us),
            "there": self.there,
            "redriven": self.redriven,
            "discarded": self.discarded,
            "timeline": list(self.timeline),
            "samples": list(self.samples),
            "action": self.action,
            "advice": self.advice,
            "command": self.command,
        }


@dataclass(frozen=True)
class Triage:
    """The largest groups, and the totals."""

    total: int
    groups_in_all: int
    from_us: int | None
    bucket_us: int
    groups: tuple[TriageGroup, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "groups_in_all": self.groups_in_all,
            "from": None if self.from_us is None else _iso(self.from_us),
            "bucket_s": self.bucket_us / 1e6,
            "groups": [group.to_json() for group in self.groups],
        }


def triage(
    spark: SparkSession,
    path: StrPath | None = None,
    url: str | None = None,
    *,
    token: str | None = None,
    archive: StrPath | None = None,
    queues: str | Sequence[str] = (),
    since: Moment | None = None,
    until: Moment | None = None,
    top: int = 20,
    samples: int = 3,
) -> Triage:
    """Group the dead letters of a history. `queues` are dead-letter queues, names or patterns; default: all.

    Returns the `top` largest groups, each with up to `samples` messages.
    """
    if not 1 <= top <= 1000:
        raise InvalidSetting(f"top must be from 1 to 1000, not {top}")
    if not 0 <= samples <= MAX_SAMPLES:
        raise InvalidSetting(f"samples must be from 0 to {MAX_SAMPLES}, not {samples}")
    target = HistoryTarget(path, url, token, archive, since, until)
    return triage_history(target.reader(spark), queue_list(queues), top, samples)


def triage_history(source: Any, queues: tuple[str, ...], top: int, samples: int) -> Triage:
    """`source` has the keywords of `history` and returns DataFrames with the same end."""
    dead = source(table="events", events=("dead_letter",), columns=_COLUMNS)
    dead = _with_types(_in_queues(dead, queues), source)
    found, in_all = _groups(dead, top, samples)
    if not found:
        return Triage(0, 0, None, _HOUR_US, ())
    # Independent of each other: Spark runs both at once.
    with ThreadPoolExecutor(1, thread_name_prefix="openq-triage") as thread:
        looking = thread.submit(_samples, source, found, samples) if samples else None
        ends = _ends(dead, source, found)
        found_samples = looking.result() if looking is not None else {}
    first = min(row["first_us"] for row in found)
    last = max(row["last_us"] for row in found)
    hours = last // _HOUR_US - first // _HOUR_US + 1
    wide = -(-hours // BUCKETS)
    begin = first // _HOUR_US
    groups = []
    for at, row in enumerate(found):
        timeline = [0] * -(-hours // wide)
        for each in row["hours"]:
            timeline[(each["hour"] - begin) // wide] += each["n"]
        back = sum(ends.get((at, event), 0) for event in _BACK)
        ended = sum(number for (group, _), number in ends.items() if group == at)
        groups.append(_group(row, timeline, back, ended, last, found_samples.get(at, ())))
    return Triage(in_all["total"], in_all["groups"], begin * _HOUR_US, wide * _HOUR_US, tuple(groups))


def _iso(us: int) -> str:
    return iso(from_ms(us // 1000))


# -- in Spark --------------------------------------------------------------------------------------------


def _in_queues(dead: DataFrame, queues: tuple[str, ...]) -> DataFrame:
    from .lifecycle import pattern_of

    return dead.where(dead["to_queue"].rlike(pattern_of(queues))) if queues else dead


def _with_types(dead: DataFrame, source: Any) -> DataFrame:
    """Adds the type of each message, which only its publish has."""
    from pyspark.sql import functions as F

    # The publish may be long before `since`.
    types = source(table="messages", columns=("message_id", "type"), body=False, since=None)
    types = types.where("type IS NOT NULL")
    if types.isEmpty():
        # Without any types there is no need for a join.
        return dead.withColumn("type", F.lit(None).cast("string"))
    # An id may be used twice: the join must not duplicate dead letters.
    types = types.groupBy(F.xxhash64("message_id").alias("key")).agg(F.max("type").alias("type"))
    return dead.withColumn("key", F.xxhash64("message_id")).join(types, "key", "left").drop("key")


def _groups(dead: DataFrame, top: int, samples: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    us = F.unix_micros("ts")
    picks = [
        F.min(F.col("seq").bitwiseXOR(F.lit(mask))).alias(f"pick{at}")
        for at, mask in enumerate(_masks(samples))
    ]
    # Only numbers: Spark aggregates them in a hash table, and would sort all rows for texts.
    by_hour = dead.groupBy(*_GROUP, F.floor(us / _HOUR_US).alias("hour")).agg(
        F.count("*").alias("n"), F.min(us).alias("first_us"), F.max(us).alias("last_us"), *picks
    )
    grouped = by_hour.groupBy(*_GROUP).agg(
        F.sum("n").alias("n"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.collect_list(F.struct("hour", "n")).alias("hours"),
        *(F.min(f"pick{at}").alias(f"pick{at}") for at in range(samples)),
    )
    # The totals are observed on the way: only the largest groups leave Spark.
    seen = Observation()
    grouped = grouped.observe(seen, F.sum("n").alias("total"), F.count("*").alias("groups"))
    order = [F.col("n").desc(), *(F.col(name).asc_nulls_first() for name in _GROUP)]
    found = [row.asDict(recursive=True) for row in grouped.orderBy(*order).limit(top).collect()]
    return found, seen.get if found else {}


def _masks(samples: int) -> list[int]:
    """The smallest `seq ^ mask` of a group belongs to its first, its last or another message; `^ mask`
    inverts it."""
    every = (1 << 62) - 1
    return [0, every, *(0x9E3779B97F4A7C15 * at & every for at in range(1, samples))][:samples]


def _matched(dead: DataFrame, found: Sequence[dict[str, Any]]) -> DataFrame:
    """The dead letters of the groups that are shown, each with the number of its group."""
    from pyspark.sql import functions as F

    schema = ", ".join(f"{name} STRING" for name in _GROUP) + ", at INT"
    keys = [(*(row[name] for name in _GROUP), at) for at, row in enumerate(found)]
    listed = dead.sparkSession.createDataFrame(keys, schema).alias("listed")
    condition = F.lit(True)
    for name in _GROUP:
        condition = condition & dead[name].eqNullSafe(F.col(f"listed.{name}"))
    return dead.join(F.broadcast(listed), condition).select(
        dead["to_queue"], dead["to_seq"], dead["position"], F.col("listed.at").alias("at")
    )


def _ends(dead: DataFrame, source: Any, found: Sequence[dict[str, Any]]) -> dict[tuple[int, str], int]:
    """How many of each group left the dead-letter queue, by (number of the group, event)."""
    from pyspark.sql import functions as F

    names = sorted({row["to_queue"] for row in found if row["to_queue"] is not None})
    columns = ("position", "item", "seq", "queue", "event")
    left = source(table="events", events=(*REMOVALS, *PURGES), columns=columns, until=None)
    left = left.where(F.col("queue").isin(names))
    is_purge = F.col("event").isin(*PURGES)
    # Every purge, but of the rest only whether there is any: often there is none.
    seen = left.groupBy("queue", "event", F.when(is_purge, F.col("position")).alias("at")).agg(
        F.max("item").alias("item")
    )
    events = seen.collect()
    if not events:
        return {}
    left = left.where(F.col("event").isin(*REMOVALS))
    # A dead letter may have gone to several queues, one row each: one removal for each.
    ended = left.groupBy(F.col("seq").alias("to_seq")).agg(F.max("event").alias("ended"))
    rows = _matched(dead, found).join(ended, "to_seq", "left")
    purges = [row for row in events if row["event"] in PURGES]
    if purges:
        rows = _with_purges(rows, source, purges)
    counted = rows.where("ended IS NOT NULL").groupBy("at", "ended").count()
    return {(row["at"], row["ended"]): row["count"] for row in counted.collect()}


def _with_purges(rows: DataFrame, source: Any, purges: Sequence[Any]) -> DataFrame:
    """Sets "purge" as the end of those that a purge of their queue removed."""
    from pyspark.sql import functions as F

    listed = purges_by_queue(purges, "at")
    schema = "to_queue STRING, purges ARRAY<STRUCT<at: BIGINT, spares: BOOLEAN>>"
    table = rows.sparkSession.createDataFrame(list(listed.items()), schema)
    rows = rows.join(F.broadcast(table), "to_queue", "left")
    sparing = [queue for queue, found in listed.items() if any(spares for _, spares in found)]
    if sparing:
        columns = ("position", "seq", "queue", "event")
        deliveries = source(table="events", events=("deliver", *RETURNS), columns=columns, until=None)
        step = F.struct(F.col("position").alias("at"), (F.col("event") == "deliver").alias("held"))
        deliveries = deliveries.where(F.col("queue").isin(sparing)).groupBy(F.col("seq").alias("to_seq"))
        rows = rows.join(deliveries.agg(F.collect_list(step).alias("steps")), "to_seq", "left")

    def sweeps(purge: Any) -> Any:
        there = purge["at"] > F.col("position")
        if not sparing:
            return there
        last = F.array_max(F.filter("steps", lambda step: step["at"] < purge["at"]))
        return there & ~(purge["spares"] & F.coalesce(last["held"], F.lit(False)))

    swept = F.coalesce(F.exists("purges", sweeps), F.lit(False))
    return rows.withColumn("ended", F.coalesce("ended", F.when(swept, F.lit("purge"))))


def _samples(
    source: Any, found: Sequence[dict[str, Any]], samples: int
) -> dict[int, tuple[dict[str, Any], ...]]:
    from pyspark.sql import functions as F

    masks = _masks(samples)
    wanted: dict[int, int] = {}
    for at, row in enumerate(found):
        for pick, mask in enumerate(masks):
            if row[f"pick{pick}"] is not None:
                wanted[row[f"pick{pick}"] ^ mask] = at
    chosen = F.col("seq").isin(list(wanted))
    columns = ("seq", "ts", "message_id", "error_text")
    events = source(table="events", events=("dead_letter",), columns=columns).where(chosen)
    beginning = F.substring("body", 1, EXCERPT).alias("body")

    def bodies_of(**which: Any) -> DataFrame:
        # The publish may be long before `since`.
        columns = ("seq", "message_id", "size", "body")
        return cast("DataFrame", source(table="messages", columns=columns, since=None, until=None, **which))

    # Most were dead-lettered from the queue they were published to, with the same sequence number: one query.
    both = bodies_of().where(chosen).select("seq", "message_id", "size", beginning)
    both = both.withColumn("is_body", F.lit(True)).unionByName(events, allowMissingColumns=True)
    read = both.collect()
    rows = [row for row in read if not row["is_body"]]
    bodies = {row["message_id"]: row for row in read if row["is_body"]}
    # Those that were moved before have another sequence number.
    missing = {row["message_id"] for row in rows if row["message_id"] is not None} - bodies.keys()
    if missing:
        others = bodies_of(ids=sorted(missing)).select("message_id", "size", beginning)
        bodies.update((row["message_id"], row) for row in others.collect())
    listed: dict[int, list[dict[str, Any]]] = {}
    for letter in sorted(rows, key=lambda row: row["seq"]):
        body = bodies.get(letter["message_id"])
        sample = {
            "id": letter["message_id"],
            "time": iso(letter["ts"].astimezone()),
            "error": None if letter["error_text"] is None else letter["error_text"][:2000],
            "size": None if body is None else body["size"],
            "body": None if body is None else excerpt(bytes(body["body"] or b""), EXCERPT),
        }
        group = listed.setdefault(wanted[letter["seq"]], [])
        if all(each["id"] != sample["id"] for each in group):
            group.append(sample)
    return {at: tuple(each) for at, each in listed.items()}


# -- what to do --------------------------------------------------------------------------------------------

_ADVICE = (
    (
        "redrive",
        r"time.?d? ?out|timeout|refused|unreachable|unavailable|reset by peer|broken pipe|connection|temporar"
        r"|throttl|rate.?limit|too many requests|deadlock|lock wait|try again|\b50[234]\b|\b429\b",
        "looks transient: redrive with a rate limit once the dependency has recovered",
    ),
    (
        "access",
        r"permission|denied|forbidden|unauthori[sz]ed|credential|\b40[13]\b|certificate|expired token",
        "access was denied: fix permissions or credentials first, then redrive",
    ),
    (
        "capacity",
        r"overflow|queue is full|max_length|expired|time to live|no space|out of memory|memoryerror",
        "more messages than consumers could process: add consumers or limits first, then redrive",
    ),
    (
        "gone",
        r"not found|no such|does not exist|\b404\b|missing|unknown \w+ id|deleted",
        "something it refers to does not exist: redrive if it comes back, otherwise discard",
    ),
    (
        "fix",
        r"valueerror|typeerror|keyerror|indexerror|attributeerror|assertion|json|decode|parse|schema|valid"
        r"|syntax|unexpected|nonetype|null|cast|overflowerror|zerodivision",
        "the same input fails every time: fix the consumer or the message (--transform), then redrive",
    ),
)
_ADVICE_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE), text) for name, pattern, text in _ADVICE)


def advice_for(error_type: str | None, signature: str | None, there: int) -> tuple[str, str]:
    """A keyword for programs and a sentence for people."""
    if not there:
        return "none", "none is left in the dead-letter queue"
    text = f"{error_type or ''} {signature or ''}"
    for name, pattern, sentence in _ADVICE_PATTERNS:
        if pattern.search(text):
            return name, sentence
    if not text.strip():
        return "look", "no reason was given: inspect the samples, and let consumers nack with a reason"
    return "look", "inspect the samples, fix the cause, then redrive"


def command_for(row: dict[str, Any]) -> str:
    """The redrive of exactly this group, quoted for a shell."""
    signature = row["error_signature"]
    where = "error_signature IS NULL" if signature is None else f"error_signature = {_sql(signature)}"
    where += f" AND dlq_source = {_sql(row['queue'])}"
    if row["type"] is not None:
        where += f" AND type = {_sql(row['type'])}"
    return f"openq pipeline redrive {shlex.quote(row['to_queue'])} --where {shlex.quote(where)} --dry-run"


def _sql(text: str) -> str:
    """A text literal of Spark SQL, with backslashes and quotes escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _group(
    row: dict[str, Any],
    timeline: Sequence[int],
    back: int,
    ended: int,
    now_us: int,
    samples: tuple[dict[str, Any], ...],
) -> TriageGroup:
    there = row["n"] - ended
    action, advice = advice_for(row["error_type"], row["error_signature"], there)
    quiet_us = now_us - row["last_us"]
    if there and quiet_us > 24 * _HOUR_US:
        advice += f"; the last one is {span(quiet_us)} older than the latest dead letter"
    to_queue = row["to_queue"]
    return TriageGroup(
        row["queue"],
        to_queue or "",
        row["type"],
        row["error_type"],
        row["error_signature"],
        row["n"],
        row["first_us"],
        row["last_us"],
        there,
        back,
        ended - back,
        tuple(timeline),
        samples,
        action,
        advice,
        command_for(row) if there and to_queue is not None else None,
    )


# -- as a page ---------------------------------------------------------------------------------------------


def render(found: Triage) -> str:
    if not found.groups:
        return page("OpenQ: no dead letters", "<h1>Dead letters</h1><p class=none>There are none.</p>")
    shown = sum(group.count for group in found.groups)
    heads = ["error", "from", "type", "count", "state", "there", "redriven", "discarded", "when"]
    rows = [
        [
            text_cell(group.signature or "(no reason given)", "sig"),
            text_cell(f"{group.source} → {group.dead_queue}"),
            text_cell(group.type),
            count(group.count),
            stacked_bar(
                [
                    ("still there", group.there, "c4"),
                    ("redriven", group.redriven, "c2"),
                    ("discarded", group.discarded, "c6"),
                ],
                f"{count(group.there)} still there, {count(group.redriven)} redriven, "
                f"{count(group.discarded)} discarded",
            ),
            count(group.there),
            count(group.redriven),
            count(group.discarded),
            sparkline(
                group.timeline,
                f"{moment(group.first_us)} to {moment(group.last_us)} UTC, each column "
                f"{span(found.bucket_us)}",
            ),
        ]
        for group in found.groups
    ]
    groups = f"{len(found.groups)} of {count(found.groups_in_all)} groups"
    note = f"{count(shown)} of {count(found.total)} dead letters, {groups}"
    inner = ["<h1>Dead letters</h1>", f"<p class=sub>{note}. All times are UTC.</p>"]
    inner.append(table("Groups, the largest first", heads, rows, [3, 5, 6, 7]))
    for group in found.groups:
        inner.append(_card(group))
    return page(f"OpenQ: {count(found.total)} dead letters", "".join(inner))


def _card(group: TriageGroup) -> str:
    samples = "".join(
        f"<p>{examples([sample['id'] or '?'])} {escape(sample['time'])}</p>"
        f"<pre>{escape(sample['error'] or '(no reason given)', 2000)}</pre>"
        + (f"<pre>{escape(sample['body'], EXCERPT)}</pre>" if sample["body"] is not None else "")
        for sample in group.samples
    )
    command = f"<pre>{escape(group.command, 4000)}</pre>" if group.command else ""
    return (
        f"<section class=card><h2>{text_cell(group.signature or '(no reason given)')}</h2>"
        f"<p>{count(group.count)} from {text_cell(group.source)}, "
        f"{moment(group.first_us)} to {moment(group.last_us)}. "
        f"<b>{escape(group.action)}</b>: {escape(group.advice)}.</p>{command}"
        + (f"<details><summary>Samples</summary>{samples}</details>" if samples else "")
        + "</section>"
    )
