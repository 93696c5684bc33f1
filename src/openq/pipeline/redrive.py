"""Dead letters back to where they died, or elsewhere, chosen by SQL: each of them once, with an audit.

    redrive(spark, "orders-dead", path="data", url="http://127.0.0.1:9324", where="error_type = 'Timeout'")

Spark finds them in the history, the server moves them by id, and the journal says what became of each: that
goes into the audit. A letter that is changed on the way (`transform`) is published as a new message under
the plan's id, and then its original is removed; a run that was cut off in between removes it later.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.http import Refused, TimedOut, Unreachable
from ..client.times import from_ms, iso
from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from ..packed import pack
from .calls import quoted
from .link import Link
from .packed_rows import COLUMN_KINDS
from .resend import (
    BODIES,
    REPLAY_COUNT,
    REPLAY_OF,
    RemovalTracker,
    ResendContext,
    StrPath,
    excerpt,
    matching,
    mentions,
    plain_attributes,
    publish,
    spark_message,
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
    write_errors,
)
from .session import ensure_session
from .target import queue_list

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from .session import Spark

STEP = 1_000  # the server takes as many ids at once
GROUPS = 20  # of a preview
SAMPLES = 3

REDRIVEN, TRANSFORMED, GONE, LEFT, FAILED, BOTH = "redriven", "transformed", "gone", "left", "failed", "both"

_ENDS = ("ack", "redrive", "move", "dead_letter", "expire", "cancel", "drop")
_PURGES = ("purge", "delete")
_EVENT = (
    *("position", "seq", "ts", "queue", "message_id", "receive_count", "error_type", "error_signature"),
    *("error_text", "to_queue", "to_seq", "group", "dedup_id", "priority", "size"),
)
_MESSAGE = (
    *("type", "content_type", "attributes", "headers", "trace_id", "producer", "exchange", "routing_key"),
    *("replay_of", "replay_count", "batch"),
)
_FUNCTION = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_RETRY_S = 60.0
_MAX_PAUSE_S = 0.25

Progress = Callable[[int, int], None]
Transform = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class RedriveGroup:
    """Letters with one reason from one queue, and some of them."""

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


@dataclass(frozen=True)
class RedriveResult:
    plan: ResendPlan
    outcomes: dict[str, int]  # of the whole plan, over all its runs
    audit: Path | None

    @property
    def is_clean(self) -> bool:
        return not any(self.outcomes.get(each) for each in (LEFT, FAILED, BOTH))


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
    """Choose and send back. With a `plan` that exists, go on where it stands.

    `where` is SQL over a letter's columns: message_id, seq, ts (of its death), dlq_source, receive_count,
    error_type, error_signature, error_text, ...; and of its publish: type, attributes, body, body_json, ...
    `transform` is SQL for another body, or `file.py:function`, which gets a dict and returns the body.
    """
    with ResendContext(path, url, token, archive) as context:
        chosen = choose(
            spark, context, queue, where=where, to=to, transform=transform, rate=rate, plan=plan, samples=0
        )
        return run(spark, context, chosen, progress, audit)


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
    """The plan of that name, or a new one, which is not on disk yet. Moves nothing."""
    check_rate(rate)
    known = None if plan is None else load_plan(plan, "redrive")
    asked = {"queue": queue, "where": where, "to": to, "transform": transform, "rate": rate}
    if known is not None:
        check_same_request(known, asked)
        return PlannedRedrive(known, (), (), False)
    if queue is None:
        raise InvalidSetting("which dead-letter queue?")
    if set("*?,") & set(queue):
        raise InvalidSetting(f"a redrive is about one dead-letter queue, not {queue!r}")
    queue_list(queue)
    if to == queue:
        raise InvalidSetting(f"the letters are in {queue!r} already")
    function = function_of(transform)
    if context.url is not None:
        for name in filter(None, (queue, to)):
            context.settings(name)
    end, journal = context.end()
    made = make_plan("redrive", plan, asked=asked, journal=journal, end_position=end, total=0)
    made.step = batch_size(rate, STEP)
    session = ensure_session(spark)
    with user_sql_errors("where: "):
        frame = _dead_letters(session, context, made, False)
        items = _chosen_ids(frame)
    made.total = items.num_rows
    made.digest = _digest(items)
    groups = _groups(items)
    shown: tuple[dict[str, Any], ...] = ()
    if samples and items.num_rows:
        shown = _samples(session, context, made, items, groups, function, samples)
    return PlannedRedrive(made, groups, shown, True, items)


# -- which letters ---------------------------------------------------------------------------------------


def _dead_letters(spark: SparkSession, context: ResendContext, plan: ResendPlan, whole: bool) -> DataFrame:
    """The letters that were in the queue when the plan was made, and match; `whole`: with their messages."""
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
        table="events", events=(*_ENDS, *_PURGES), queues=None, columns=("position", "seq", "queue", "event")
    )
    left = left.where(F.col("queue") == queue)
    [purged] = left.where(F.col("event").isin(*_PURGES)).agg(F.max("position").alias("at")).collect()
    if purged["at"] is not None:
        dead = dead.where(F.col("position") > purged["at"])
    gone = left.where(F.col("event").isin(*_ENDS)).select("seq").distinct()
    dead = dead.join(gone, "seq", "left_anti")

    where = plan.asked["where"]
    if whole or mentions(where, BODIES):
        dead = _with_messages(read, dead, True)
    elif mentions(where, ("published", *_MESSAGE)):
        dead = _with_messages(read, dead, False)
    return matching(dead, where)


def _with_messages(read: Callable[..., DataFrame], dead: DataFrame, body: bool) -> DataFrame:
    """Beside each letter what only its publish knows."""
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
    """The ids of all chosen letters, the oldest in the queue first."""
    found = frame.select("seq", "message_id", "dlq_source", "error_signature").toArrow()
    return found.sort_by("seq")


def _digest(items: pa.Table) -> str:
    seqs = items.column("seq").to_numpy()
    return hashlib.sha256(seqs.astype("<i8").tobytes()).hexdigest()[:32]


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
    """Some letters of the largest groups, and what would become of them."""
    from pyspark.sql import functions as F

    wanted = [message_id for group in groups[:GROUPS] for message_id in group.ids[:samples]]
    seqs = dict(zip(items.column("message_id").to_pylist(), items.column("seq").to_pylist(), strict=True))
    with user_sql_errors("transform: " if plan.asked["transform"] else ""):
        frame = _dead_letters(spark, context, plan, True).where(
            F.col("seq").isin([seqs[each] for each in wanted])
        )
        rows = _changed(frame, plan.asked["transform"], function).collect()
    found = []
    for row in rows:
        sample = {
            "id": row["message_id"],
            "source": row["dlq_source"],
            "error": (row["error_text"] or "")[:500] or None,
            "body": excerpt(row["body"]),
        }
        if plan.asked["transform"] is not None:
            body, why = _new_body(row.asDict(recursive=True), function)
            sample["new_body"] = excerpt(body)
            sample["problem"] = why
        found.append(sample)
    order = {message_id: at for at, message_id in enumerate(wanted)}
    return tuple(sorted(found, key=lambda sample: order.get(sample["id"], len(order))))


# -- another body ----------------------------------------------------------------------------------------


def function_of(transform: str | None) -> Transform | None:
    """The function that `file.py:function` names; None for SQL."""
    named = _FUNCTION.fullmatch(transform.strip()) if transform is not None else None
    if named is None:
        return None
    path, name = named.groups()
    spec = importlib.util.spec_from_file_location("openq_transform", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise InvalidSetting(f"transform: there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidSetting(f"transform: {path} cannot be loaded: {type(error).__name__}: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidSetting(f"transform: {path} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def _changed(frame: DataFrame, transform: str | None, function: Transform | None) -> DataFrame:
    """With `new_body`, if SQL makes it."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    if transform is None or function is not None:
        return frame
    try:
        changed = frame.withColumn("new_body", F.expr(transform))
        kind = changed.schema["new_body"].dataType.simpleString()
    except AnalysisException as error:
        raise InvalidSetting(f"transform: {spark_message(error)}") from None
    if kind.startswith(("struct", "map", "array", "variant")):
        return changed.withColumn("new_body", F.to_json("new_body"))
    return changed if kind == "binary" else changed.withColumn("new_body", F.col("new_body").cast("string"))


def _new_body(row: dict[str, Any], function: Transform | None) -> tuple[bytes | None, str | None]:
    """The body to send, or why there is none."""
    if row["body"] is None:
        return None, "its publish is not in the history any more"
    if function is None:
        made = row["new_body"]
    else:
        given = {**row, "body": bytes(row["body"]), "attributes": plain_attributes(row["attributes"])}
        given.pop("body_json", None)
        try:
            made = function(given)
        except Exception as error:
            return None, f"transform: {type(error).__name__}: {error}"
    if made is None:
        return None, "transform gave nothing"
    if isinstance(made, bytes | bytearray | memoryview):
        return bytes(made), None
    if isinstance(made, str):
        return made.encode(), None
    try:
        return json.dumps(made, ensure_ascii=False).encode(), None
    except (TypeError, ValueError) as error:
        return None, f"transform: {error}"


# -- doing it --------------------------------------------------------------------------------------------


def run(
    spark: Spark,
    context: ResendContext,
    chosen: PlannedRedrive,
    progress: Progress | None = None,
    audit: StrPath | None = None,
) -> RedriveResult:
    """All that is not done yet. Interrupted or failed, the plan says where to go on."""
    plan, items = chosen.plan, chosen.items
    with plan.locked():
        if plan.path is not None and plan.path.exists():
            # Somebody may have gone on with it since it was chosen.
            found = load_plan(plan.path, "redrive")
            if found is not None and found.id == plan.id:
                plan.done, plan.state = found.done, found.state
        place = plan.path
        if "audit" not in plan.state:
            if audit is not None and os.path.exists(audit):
                raise InvalidSetting(f"{os.fspath(audit)} is there already: name another file for the audit")
            if audit is None and place is not None:
                stem = place.stem if plan.id in place.stem else f"{place.stem}-{plan.id}"
                audit = place.with_name(f"{stem}.audit.jsonl")
            plan.state["audit"] = None if audit is None else os.fspath(audit)
        session = ensure_session(spark)
        work = _RedriveRun(session, context, plan, progress)
        if plan.is_done:
            plan.save()
            return work.summary()
        if context.end()[1] != plan.journal:
            raise InvalidSetting(f"the plan {place} was made from another history: name the right one")
        context.check_same_journal()
        if items is None:
            with user_sql_errors("where: "):
                items = _chosen_ids(_dead_letters(session, context, plan, False))
            if _digest(items) != plan.digest:
                raise HistoryUnavailable(
                    f"the plan {place} finds {items.num_rows} letters, not the {plan.total} it was made for: "
                    "its condition must not depend on the time or on chance, and the history must still be "
                    "there. Make a new plan for the rest"
                )
        plan.save()
        work.begin(items)
        return work.summary()


class _RedriveRun:
    def __init__(
        self, spark: SparkSession, context: ResendContext, plan: ResendPlan, progress: Progress | None
    ) -> None:
        self._spark = spark
        self._context = context
        self._plan = plan
        self._progress = progress
        self._path = f"queues/{quoted(plan.asked['queue'])}"
        self._audit = _AuditLog(plan)

    def summary(self) -> RedriveResult:
        return RedriveResult(self._plan, dict(self._plan.state.get("outcomes", {})), self._audit.path)

    def begin(self, items: pa.Table) -> None:
        plan = self._plan
        seqs = items.column("seq").to_numpy()
        self._removed = RemovalTracker(self._context, plan.asked["queue"], plan.end_position, seqs)
        pace = RateLimiter(plan.asked["rate"])
        # One that got no answer is not simply sent again: the journal says what it did.
        self._single_try = Link(self._context.link.url, self._context.token, retry_s=0.0)
        try:
            if plan.asked["transform"] is None:
                columns = (items.column(name).to_pylist() for name in ("seq", "message_id"))
                letters = list(zip(*columns, strict=True))
                for number in range(plan.done, plan.parts):
                    part = letters[number * plan.step : (number + 1) * plan.step]
                    pace.wait(len(part))
                    self._finish(number, self._sent_back(part))
            else:
                self._transform(seqs, pace)
        finally:
            self._single_try.close()
            self._audit.close()

    def _finish(self, number: int, lines: list[dict[str, Any]]) -> None:
        """What became of a slice: first into the audit, then the plan says that it is done."""
        plan = self._plan
        outcomes = Counter(plan.state.get("outcomes", {}))
        outcomes.update(line["outcome"] for line in lines)
        plan.state["outcomes"] = dict(outcomes)
        plan.state["audited"] = self._audit.write(lines)
        plan.state.pop("sending", None)
        plan.done = number + 1
        plan.save()
        if self._progress is not None:
            self._progress(min(plan.done * plan.step, plan.total), plan.total)

    def _line(
        self, seq: int, message_id: str, outcome: str, to: str | None, why: str | None
    ) -> dict[str, Any]:
        line = {
            "plan": self._plan.id,
            "time": iso(from_ms(int(time.time() * 1000))),
            "id": message_id,
            "seq": seq,
        }
        return {**line, "from": self._plan.asked["queue"], "to": to, "outcome": outcome, "detail": why}

    # -- as they are

    def _sent_back(self, letters: list[tuple[int, str]]) -> list[dict[str, Any]]:
        self._removed.advance()
        why = None
        body = {} if self._plan.asked["to"] is None else {"to": self._plan.asked["to"]}
        end = time.monotonic() + _RETRY_S
        while waiting := [message_id for seq, message_id in letters if self._removed.of(seq) is None]:
            task = self._task("redrive", {**body, "filter": {"ids": waiting}})
            self._removed.advance()
            if task is not None:
                why = task["error"]
                break
            if time.monotonic() > end:
                raise OpenQError(
                    f"the server {self._context.link.url} does not finish a redrive; try again later"
                )
        return [self._line(seq, message_id, *self._outcome(seq, why)) for seq, message_id in letters]

    def _outcome(self, seq: int, why: str | None) -> tuple[str, str | None, str | None]:
        removal = self._removed.of(seq)
        if removal is None:
            return LEFT, None, why or "it is with a consumer, delayed, or its queue does not exist any more"
        event, to = removal
        if event in ("redrive", "move"):
            return REDRIVEN, to, None if event == "redrive" else "moved"
        return GONE, to, event

    def _task(self, verb: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Work of the server, awaited. None: nobody knows whether it was done; the journal does."""
        link = self._context.link
        end = time.monotonic() + _RETRY_S
        while True:
            try:
                task: dict[str, Any] = self._single_try.call("POST", f"{self._path}/{verb}", json=body).json()
                break
            except Refused as refused:
                if refused.status not in (429, 502, 503, 504) or time.monotonic() > end:
                    raise
                time.sleep(_MAX_PAUSE_S)
            except (Unreachable, TimedOut):
                link.call("GET", "whoami")  # until it is back
                return None
        pause_s = 0.002
        while task["state"] == "running":
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            try:
                task = link.call("GET", f"tasks/{task['id']}").json()
            except Refused as refused:
                if refused.status != 404:
                    raise
                return None  # the server was started again, and knows its tasks no more
        return task

    # -- changed

    def _transform(self, seqs: Any, pace: RateLimiter) -> None:
        from pyspark.sql import functions as F

        plan = self._plan
        function = function_of(plan.asked["transform"])
        first = int(seqs[plan.done * plan.step])
        with user_sql_errors("transform: "):
            frame = _dead_letters(self._spark, self._context, plan, True)
            edits = self._context.reader(self._spark, plan.end_position)(
                table="events", events=("edit",), columns=("message_id",)
            )
            edited = edits.distinct().withColumn("edited", F.lit(True))
            frame = frame.join(edited, "message_id", "left").where(F.col("seq") >= first)
            # A variant does not travel, and the rest of it is the body once more.
            rows = _changed(frame, plan.asked["transform"], function).drop("body_json").orderBy("seq")
            coming = rows.toLocalIterator(prefetchPartitions=True)
            for number in range(plan.done, plan.parts):
                size = min(plan.step, plan.total - number * plan.step)
                letters = [row.asDict(recursive=True) for row in islice(coming, size)]
                wanted = seqs[number * plan.step :][:size].tolist()
                if [letter["seq"] for letter in letters] != wanted:
                    raise HistoryUnavailable(f"the plan {plan.path} finds other letters; make a new one")
                pace.wait(len(letters))
                self._finish(number, self._sent_changed(number, letters, function))

    def _sent_changed(
        self, number: int, letters: list[dict[str, Any]], function: Transform | None
    ) -> list[dict[str, Any]]:
        plan = self._plan
        bodies: dict[int, bytes] = {}
        sending = plan.state.get("sending")
        skipped: dict[int, tuple[str, str | None]]
        is_again = sending is not None and sending["slice"] == number
        if sending is not None and is_again:
            # A run before was cut off somewhere below: what it left out then is left out now.
            skipped = {int(seq): (outcome, why) for seq, (outcome, why) in sending["skipped"].items()}
        else:
            skipped = {}
            self._removed.advance()
            for letter in letters:
                seq = letter["seq"]
                removal = self._removed.of(seq)
                if removal is not None:
                    skipped[seq] = (GONE, removal[0])
                elif letter["edited"]:
                    skipped[seq] = (LEFT, "it was edited, and the history has it as it was published")
        for letter in letters:
            if letter["seq"] not in skipped:
                body, why = _new_body(letter, function)
                if body is None and is_again:
                    raise OpenQError(
                        f"message {letter['message_id']} may have been sent by the run before, and has no "
                        f"body now ({why}): let the transform do what it did then"
                    )
                if body is None:
                    skipped[letter["seq"]] = (
                        FAILED if function and why != "transform gave nothing" else LEFT,
                        why,
                    )
                else:
                    bodies[letter["seq"]] = body
        if not is_again:
            ready = self._ready([letter["message_id"] for letter in letters if letter["seq"] in bodies])
            for letter in letters:
                if letter["seq"] in bodies and letter["message_id"] not in ready:
                    skipped[letter["seq"]] = (LEFT, "it is with a consumer, or delayed")
            plan.state["sending"] = {"slice": number, "skipped": skipped}
            plan.save()
        chosen = [letter for letter in letters if letter["seq"] not in skipped]
        if chosen:
            data = _pack_letters(chosen, bodies, plan.asked["to"])
            publish(self._context.link, plan.id, number, [data], len(chosen), None)
            self._remove([(letter["seq"], letter["message_id"]) for letter in chosen])
        lines = []
        for letter in letters:
            seq, message_id = letter["seq"], letter["message_id"]
            if seq in skipped:
                lines.append(self._line(seq, message_id, skipped[seq][0], None, skipped[seq][1]))
                continue
            removal = self._removed.of(seq)
            is_clean = removal is not None and removal[0] == "cancel"
            outcome = TRANSFORMED if is_clean else BOTH
            why = None if is_clean else f"its original: {removal[0] if removal else 'still there'}"
            lines.append(self._line(seq, message_id, outcome, plan.asked["to"] or letter["dlq_source"], why))
        return lines

    def _ready(self, ids: list[str]) -> set[str]:
        """Which of these wait in the queue at this moment, found by halves: mostly all of them do."""
        if not ids:
            return set()
        body = {"filter": {"ids": ids}, "dry_run": True}
        count = self._context.link.call("POST", f"{self._path}/discard", json=body).json()["total"]
        if count == len(ids):
            return set(ids)
        if not count:
            return set()
        half = len(ids) // 2
        return self._ready(ids[:half]) | self._ready(ids[half:])

    def _remove(self, letters: list[tuple[int, str]]) -> None:
        """The originals of what was published. A copy has another id: to ask twice does no harm."""
        end = time.monotonic() + _RETRY_S
        self._removed.advance()
        while waiting := [message_id for seq, message_id in letters if self._removed.of(seq) is None]:
            task = self._task("discard", {"filter": {"ids": waiting}})
            self._removed.advance()
            if task is not None or time.monotonic() > end:
                return


def _pack_letters(letters: list[dict[str, Any]], bodies: dict[int, bytes], to: str | None) -> bytes:
    columns: dict[str, list[Any]] = {
        "body": [bodies[letter["seq"]] for letter in letters],
        "queue": [to or letter["dlq_source"] for letter in letters],
        "attributes": [_attributes(letter) for letter in letters],
    }
    for name in ("type", "group", "priority", "content_type"):
        columns[name] = [letter[name] for letter in letters]
    headers = [
        None
        if letter["headers"] is None
        else {
            name: text for name, text in letter["headers"].items() if name not in (letter["attributes"] or ())
        }
        for letter in letters
    ]
    columns["headers"] = headers
    return pack(columns, {name: COLUMN_KINDS[name] for name in columns})


def _attributes(letter: dict[str, Any]) -> dict[str, Any]:
    """Its own, and of which message it is a copy."""
    found: dict[str, Any] = {}
    for name, value in (letter["attributes"] or {}).items():
        data = value["binary"]
        found[name] = {**value, "binary": None if data is None else b64encode(data).decode()}
    found[REPLAY_OF] = letter["replay_of"] or letter["message_id"]
    found[REPLAY_COUNT] = (letter["replay_count"] or 0) + 1
    return found


class _AuditLog:
    """One line of JSON for each letter. What a run that was cut off wrote too much is cut off too."""

    def __init__(self, plan: ResendPlan) -> None:
        user_sql_errors: str | None = plan.state.get("audit")
        self.path = None if user_sql_errors is None else Path(user_sql_errors)
        self._size: int = plan.state.get("audited", 0)
        self._file: Any = None

    def write(self, lines: list[dict[str, Any]]) -> int:
        """On disk when this returns; how long the audit is now."""
        if self.path is None:
            return 0
        with write_errors(self.path):
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._file = os.fdopen(handle, "r+b")
                self._file.truncate(self._size)
                self._file.seek(0, os.SEEK_END)
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            self._file.write(text.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._size = self._file.tell()
        return self._size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
