"""From `messages` and `events` to aggregates: what happened in each queue and window, in sums that can be
added.

A *life cycle* is that of one message in one queue, from its publish (or arrival by a move) to its removal.
Spark reads all of them in one pass, and each event adds to a few aggregates. Aggregates of two ranges of the
history are merged by adding them, and life cycles that are open at the end continue in the next range. So the
aggregates of what is new plus those of before equal the aggregates of everything.

Times are whole microseconds since 1970 in UTC, never Spark's local time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from .events import FAILURES, PURGES, REMOVALS, RETURNS, purges_by_queue

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Buckets of a sketch grow by this factor: the middle of a bucket is within 0.5 % of its values.
ACCURACY = 0.005
GROWTH = (1 + ACCURACY) / (1 - ACCURACY)

ENDS = (*REMOVALS, "purge")
STEPS = ("deliver", *RETURNS, *REMOVALS)

MESSAGE_COLUMNS = ("position", "seq", "ts", "queue", "message_id", "type", "producer", "size")
EVENT_COLUMNS = (
    *("position", "item", "seq", "ts", "queue", "message_id", "event", "receive_count", "consumer"),
    *("error_type", "error_signature", "to_queue", "to_seq"),
)

# One row for each combination of keys, with sums, minima and maxima.
KEYS = ("kind", "queue", "window_us", "k1", "k2", "k3", "k4", "mark")
_EXAMPLE = "STRUCT<at: BIGINT, us: BIGINT, id: STRING>"
_OPEN = (
    "STRUCT<key: STRING, arrival_us: BIGINT, held: BOOLEAN, lease_us: BIGINT, consumer: STRING, "
    "deliveries: INT, type: STRING, size: BIGINT>"
)
AGGREGATE_SCHEMA = (
    "kind STRING, queue STRING, window_us BIGINT, k1 STRING, k2 STRING, k3 STRING, k4 STRING, mark BIGINT, "
    "n BIGINT, bytes BIGINT, flight BIGINT, depth BIGINT, low_us BIGINT, last_us BIGINT, "
    f"top STRUCT<us: BIGINT, id: STRING>, first {_EXAMPLE}, last {_EXAMPLE}, "
    f"pick STRUCT<hash: BIGINT, id: STRING>, open {_OPEN}"
)


def aggregate(
    messages: DataFrame,
    events: DataFrame,
    window_us: int,
    before: DataFrame | None = None,
    purges: Sequence[Any] = (),
    queues: Sequence[str] = (),
) -> DataFrame:
    """The aggregates of a range of the history, merged with the aggregates `before` it.

    `purges` are the rows of `events` that emptied a queue (`purges_of`): few, and joined to every row.
    `queues` are names or patterns: aggregates of other queues are left out, though messages that move through
    them are followed.
    """
    rows = _rows(messages, events)
    if before is not None:
        rows = rows.unionByName(_still_open(before), allowMissingColumns=True)
    if purges:
        rows = _with_purges(rows, purges)
    found = _aggregates(_lifecycles(rows), window_us)
    if queues:
        found = found.where((F.col("kind") == "open") | F.col("queue").rlike(pattern_of(queues)))
    if before is not None:
        found = found.unionByName(before.where("kind <> 'open'"))
    return _merged(found)


def purges_of(events: DataFrame) -> list[Any]:
    found = events.where(F.col("event").isin(*PURGES))
    return found.select("queue", "position", "event", "item", _us("ts").alias("ts_us")).collect()


def pattern_of(queues: Sequence[str]) -> str:
    """Names and patterns with * and ? as one regular expression of Java."""
    return "(?s)\\A(?:" + "|".join("".join(map(_regex_character, name)) for name in queues) + ")\\z"


def _regex_character(letter: str) -> str:
    if letter == "*":
        return ".*"
    if letter == "?":
        return "."
    return letter if letter.isalnum() or letter == "_" or ord(letter) > 127 else "\\" + letter


def _us(column: str) -> Column:
    return F.unix_micros(F.col(column))


# -- rows: every event of every life cycle, from both tables ------------------------------------------------


def _key(message_id: str, seq: str) -> Column:
    # The id survives a move, the sequence number does not.
    return F.coalesce(F.col(message_id), F.col(seq).cast("string"))


def _rows(messages: DataFrame, events: DataFrame) -> DataFrame:
    published = messages.select(
        _key("message_id", "seq").alias("key"),
        "seq",
        "position",
        F.lit(0).alias("item"),
        F.lit(1).alias("rank"),
        _us("ts").alias("ts_us"),
        "queue",
        F.lit("publish").alias("event"),
        F.col("type"),
        F.col("producer"),
        F.col("size").cast("bigint").alias("size"),
        _us("ts").alias("arrival_us"),
        # Only life cycles that were open before, and purges, have these.
        F.lit(None).cast("boolean").alias("held"),
        F.lit(None).cast("bigint").alias("lease_us"),
        F.lit(None).cast("boolean").alias("spares"),
    )
    steps = events.where(F.col("event").isin(*STEPS))
    happened = steps.select(
        _key("message_id", "seq").alias("key"),
        "seq",
        "position",
        F.coalesce(F.col("item"), F.lit(0)).alias("item"),
        F.lit(2).alias("rank"),
        _us("ts").alias("ts_us"),
        "queue",
        "event",
        "to_queue",
        "to_seq",
        "receive_count",
        "consumer",
        "error_type",
        "error_signature",
    )
    # A move is a removal in one queue and an arrival in another: it becomes two rows.
    sides = F.when(F.col("to_seq") > 0, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
    happened = happened.withColumn("side", F.explode(sides))
    arrives = F.col("side") == 1
    happened = happened.select(
        "key",
        F.when(arrives, F.col("to_seq")).otherwise(F.col("seq")).alias("seq"),
        "position",
        "item",
        F.when(arrives, F.lit(1)).otherwise(F.col("rank")).alias("rank"),
        "ts_us",
        F.when(arrives, F.col("to_queue")).otherwise(F.col("queue")).alias("queue"),
        F.when(arrives, F.lit("arrive")).otherwise(F.col("event")).alias("event"),
        F.when(arrives, F.col("ts_us")).alias("arrival_us"),
        F.when(~arrives, F.col("receive_count")).alias("receive_count"),
        F.when(~arrives, F.col("consumer")).alias("consumer"),
        F.when(~arrives, F.col("error_type")).alias("error_type"),
        F.when(~arrives, F.col("error_signature")).alias("error_signature"),
    )
    return published.unionByName(happened, allowMissingColumns=True)


def _still_open(before: DataFrame) -> DataFrame:
    state = before.where("kind = 'open'")
    return state.select(
        F.col("open.key").alias("key"),
        F.col("mark").alias("seq"),
        F.lit(-1).cast("bigint").alias("position"),
        F.lit(0).alias("item"),
        F.lit(0).alias("rank"),
        F.col("last_us").alias("ts_us"),
        "queue",
        F.lit("open").alias("event"),
        F.col("open.type").alias("type"),
        F.col("open.size").alias("size"),
        F.col("open.arrival_us").alias("arrival_us"),
        F.col("open.deliveries").alias("receive_count"),
        F.col("open.consumer").alias("consumer"),
        F.col("open.held").alias("held"),
        F.col("open.lease_us").alias("lease_us"),
    )


def _with_purges(rows: DataFrame, purges: Sequence[Any]) -> DataFrame:
    """A purge names only its queue. Each event gets the next purge that may end its life cycle.

    For a ready message that is any purge, for one in flight only those that do not spare messages in flight.
    Whether the life cycle is still open by then, and in that state, is decided later.
    """
    spark, names = rows.sparkSession, rows.columns
    listed = purges_by_queue(purges, "position", "ts_us")
    table = spark.createDataFrame(
        [(queue, sorted(found)) for queue, found in listed.items()],
        "queue STRING, purges ARRAY<STRUCT<at: BIGINT, us: BIGINT, spares: BOOLEAN>>",
    )
    in_flight = (F.col("event") == "deliver") | ((F.col("event") == "open") & F.col("held"))
    behind = F.filter(
        "purges",
        lambda purge: (
            (purge["at"] > F.col("position")) & (~purge["spares"] | ~F.coalesce(in_flight, F.lit(False)))
        ),
    )
    ends = F.col("event").isin(*ENDS)
    rows = rows.join(F.broadcast(table), "queue", "left")
    rows = rows.withColumn("purge", F.when(~ends, F.try_element_at(behind, F.lit(1))))
    # Within the row, so that everything before is computed once.
    both = F.when(F.col("purge").isNotNull(), F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
    rows = rows.withColumn("side", F.explode(both))
    swept = F.col("side") == 1
    purge_columns = {
        "position": F.col("purge.at"),
        "item": F.lit(0),
        "rank": F.lit(3),
        "ts_us": F.col("purge.us"),
        "event": F.lit("purge"),
        "spares": F.col("purge.spares"),
    }
    return rows.select(
        *(
            F.when(swept, purge_columns.get(name, F.lit(None))).otherwise(F.col(name)).alias(name)
            if name not in ("key", "seq", "queue")
            else F.col(name)
            for name in names
        )
    )


# -- life cycles: each event, with the state before it ---------------------------------------------


def _lifecycles(rows: DataFrame) -> DataFrame:
    order = ("position", "item", "rank")
    rows = rows.withColumn("spares", F.coalesce("spares", F.lit(False)))
    first = Window.unboundedPreceding
    message = Window.partitionBy("key").orderBy(*order).rowsBetween(first, 0)
    life = Window.partitionBy("key", "seq").orderBy(*order)
    so_far = life.rowsBetween(first, 0)
    earlier = life.rowsBetween(first, -1)
    event = F.col("event")
    opens = event == "open"

    rows = rows.withColumns(
        {
            "type": F.last("type", ignorenulls=True).over(message),
            "size": F.last("size", ignorenulls=True).over(message),
        }
    )
    # The state after an event: in flight since when and with which consumer, or not in flight.
    lease = F.struct(
        F.when(event == "deliver", F.lit(True))
        .when(opens, F.col("held"))
        .otherwise(F.lit(False))
        .alias("held"),
        F.when(event == "deliver", F.col("ts_us")).when(opens, F.col("lease_us")).alias("since_us"),
        F.when((event == "deliver") | opens, F.col("consumer")).alias("consumer"),
    )
    # A purge that spares messages in flight does not change their state.
    changes = event.isin("open", "deliver", *RETURNS, *ENDS) & ~F.col("spares")
    rows = rows.withColumns(
        {
            "lease": F.last(F.when(changes, lease), ignorenulls=True).over(earlier),
            "lease_after": F.last(F.when(changes, lease), ignorenulls=True).over(so_far),
            "arrival_us": F.first("arrival_us", ignorenulls=True).over(so_far),
            "deliveries": F.coalesce(
                F.max(F.when(event.isin("deliver", "open"), F.coalesce("receive_count", F.lit(1)))).over(
                    so_far
                ),
                F.lit(0),
            ),
            "was_delivered": F.coalesce(
                F.max((event == "deliver") | (opens & (F.col("receive_count") > 0))).over(earlier),
                F.lit(False),
            ),
        }
    )
    in_flight = F.coalesce(F.col("lease.held"), F.lit(False))
    rows = rows.withColumn("in_flight", in_flight)
    rows = rows.withColumn("ends", event.isin(*ENDS) & ~(F.col("spares") & in_flight))
    return rows.withColumns(
        {
            "over": F.coalesce(F.max("ends").over(earlier), F.lit(False)),
            "is_last": F.lead("position").over(life).isNull(),
        }
    )


# -- aggregates: what each event adds
# ---------------------------------------------------------------------------


def _bucket(us: Column) -> Column:
    """0 below 1 us, otherwise 1 + the number of growth steps from 1 us."""
    steps = F.ceil(F.log(us.cast("double")) / F.lit(math.log(GROWTH))).cast("bigint") + 1
    return F.when(us < 1, F.lit(0).cast("bigint")).otherwise(steps)


def _aggregate_row(**values: Column) -> Column:
    return F.struct(
        *(values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _fields(AGGREGATE_SCHEMA))
    )


def _fields(ddl: str) -> list[tuple[str, str]]:
    """Names and types of a DDL schema; commas inside <> belong to a type."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(ddl + ","):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            name, _, kind = ddl[start:at].strip().partition(" ")
            parts.append((name, kind))
            start = at + 1
    return parts


def _aggregates(lifecycles: DataFrame, window_us: int) -> DataFrame:
    event, ts = F.col("event"), F.col("ts_us")
    width = F.lit(window_us).cast("bigint")
    window = ts - F.pmod(ts, width)
    arrival = F.col("arrival_us")
    arrived = arrival.isNotNull()
    open_now = ~F.col("over")
    ends, in_flight = F.col("ends"), F.col("in_flight")
    counted = open_now & (event != "open") & (~event.isin(*ENDS) | ends)
    one, none = F.lit(1), F.lit(0)
    key, queue = F.col("key"), F.col("queue")
    example = F.struct(F.col("position").alias("at"), ts.alias("us"), key.alias("id"))
    held_us = ts - F.col("lease.since_us")
    waited_us = ts - arrival
    answered = counted & in_flight & event.isin("ack", "nack") & (held_us >= 0)
    first_try = counted & (event == "deliver") & arrived & ~F.col("was_delivered") & (waited_us >= 0)
    gives_back = event.isin(*RETURNS) | ends
    arrival_window = arrival - F.pmod(arrival, width)
    here = {"queue": queue, "window_us": window}

    found = [
        F.when(
            counted,
            _aggregate_row(
                kind=F.lit("event"),
                k1=event,
                n=one,
                bytes=F.when(event.isin("publish", "deliver"), F.coalesce("size", none)).otherwise(none),
                flight=F.when((event == "deliver") & ~in_flight, one)
                .when(gives_back & in_flight, F.lit(-1))
                .otherwise(none),
                depth=F.when(event.isin("publish", "arrive"), one)
                .when(ends & arrived, F.lit(-1))
                .otherwise(none),
                last_us=ts,
                **here,
            ),
        ),
        *(
            F.when(
                condition,
                _aggregate_row(
                    kind=F.lit(kind),
                    mark=_bucket(us),
                    n=one,
                    low_us=us,
                    top=F.struct(us.alias("us"), key.alias("id")),
                    **here,
                ),
            )
            for kind, condition, us in (("wait", first_try, waited_us), ("processing", answered, held_us))
        ),
        F.when(
            counted
            & ((event == "deliver") | (in_flight & (event.isin(*RETURNS, "ack", "dead_letter", "drop")))),
            _aggregate_row(
                kind=F.lit("consumer"),
                k1=F.coalesce(
                    F.when(event == "deliver", F.col("consumer")).otherwise(F.col("lease.consumer")),
                    F.lit(""),
                ),
                k2=event,
                n=one,
                top=F.when(answered, F.struct(held_us.alias("us"), key.alias("id"))),
                last_us=ts,
                **here,
            ),
        ),
        F.when(
            counted & event.isin(*FAILURES),
            _aggregate_row(
                kind=F.lit("failure"),
                k1=event,
                k2=F.col("type"),
                k3=F.col("error_type"),
                k4=F.col("error_signature"),
                n=one,
                first=example,
                last=example,
                pick=F.struct(F.xxhash64("key").alias("hash"), key.alias("id")),
                **here,
            ),
        ),
        F.when(
            counted & (event == "publish"),
            _aggregate_row(
                kind=F.lit("producer"),
                k1=F.coalesce("producer", F.lit("")),
                n=one,
                bytes=F.coalesce("size", none),
                last_us=ts,
                **here,
            ),
        ),
        F.when(
            counted & ends,
            _aggregate_row(kind=F.lit("depth"), k1=event, mark=F.col("deliveries"), n=one, **here),
        ),
        F.when(
            counted & ends & arrived & (arrival_window < window),
            _aggregate_row(
                kind=F.lit("span"), queue=queue, window_us=arrival_window, mark=window, n=one, low_us=arrival
            ),
        ),
        F.when(
            F.col("is_last") & open_now & ~ends,
            _aggregate_row(
                kind=F.lit("open"),
                queue=queue,
                window_us=F.lit(0),
                mark=F.col("seq"),
                k1=key,
                last_us=ts,
                open=F.struct(
                    key.alias("key"),
                    arrival.alias("arrival_us"),
                    F.coalesce(F.col("lease_after.held"), F.lit(False)).alias("held"),
                    F.col("lease_after.since_us").alias("lease_us"),
                    F.col("lease_after.consumer").alias("consumer"),
                    F.col("deliveries").cast("int").alias("deliveries"),
                    F.col("type").alias("type"),
                    F.col("size").alias("size"),
                ),
            ),
        ),
    ]
    each = F.explode(F.filter(F.array(*found), lambda cell: cell.isNotNull()))
    return lifecycles.select(each.alias("cell")).select("cell.*")


def _merged(found: DataFrame) -> DataFrame:
    total = ("n", "bytes", "flight", "depth")
    most = ("last_us", "top", "last", "pick")
    least = ("low_us", "first")
    merged = found.groupBy(*KEYS).agg(
        *(F.sum(name).alias(name) for name in total),
        *(F.max(name).alias(name) for name in most),
        *(F.min(name).alias(name) for name in least),
        F.first("open", ignorenulls=True).alias("open"),
    )
    return merged.select(*(name for name, _ in _fields(AGGREGATE_SCHEMA)))
