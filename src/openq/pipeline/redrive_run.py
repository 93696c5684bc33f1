"""Carries out the plan of a redrive, slice by slice, and writes what happened to each dead letter into an
audit."""

from __future__ import annotations

import json
import os
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.http import Refused, TimedOut, Unreachable
from ..client.times import from_ms, iso
from ..errors import HistoryUnavailable, OpenQError
from ..packed import MESSAGE_COLUMNS, pack
from .calls import quoted
from .link import Link
from .resend import REPLAY_COUNT, REPLAY_OF, RemovalTracker, ResendContext, publish
from .resend_plan import Progress, RateLimiter, ResendPlan, write_errors
from .spark_errors import sql_errors
from .transform import NO_BODY, Transform, function_of, new_body, with_new_body

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

REDRIVEN, TRANSFORMED, GONE, LEFT, FAILED, BOTH = "redriven", "transformed", "gone", "left", "failed", "both"

_RETRY_S = 60.0
_MAX_PAUSE_S = 0.25

Letter = dict[str, Any]


@dataclass(frozen=True)
class RedriveResult:
    plan: ResendPlan
    outcomes: dict[str, int]  # of the whole plan, over all its runs
    audit: Path | None

    @property
    def is_clean(self) -> bool:
        return not any(self.outcomes.get(each) for each in (LEFT, FAILED, BOTH))


class RedriveRun:
    def __init__(
        self, spark: SparkSession, context: ResendContext, plan: ResendPlan, progress: Progress | None
    ) -> None:
        self._spark = spark
        self._context = context
        self._plan = plan
        self._progress = progress
        self._path = f"queues/{quoted(plan.asked['queue'])}"
        self._audit = _AuditLog(plan)

    def result(self) -> RedriveResult:
        return RedriveResult(self._plan, dict(self._plan.state.get("outcomes", {})), self._audit.path)

    def move(self, items: pa.Table) -> None:
        """Send the dead letters back as they are."""
        plan = self._plan
        columns = (items.column(name).to_pylist() for name in ("seq", "message_id"))
        letters = list(zip(*columns, strict=True))
        limiter = RateLimiter(plan.asked["rate"])
        with self._open(items):
            for number in range(plan.done, plan.parts):
                part = letters[number * plan.step : (number + 1) * plan.step]
                limiter.wait(len(part))
                self._finish(number, self._move(part))

    def transform(self, items: pa.Table, dead_letters: Callable[[], DataFrame]) -> None:
        """Publish each dead letter with another body, and remove the original."""
        from pyspark.sql import functions as F

        plan = self._plan
        seqs = items.column("seq").to_numpy()
        limiter = RateLimiter(plan.asked["rate"])
        function = function_of(plan.asked["transform"])
        first = int(seqs[plan.done * plan.step])
        with self._open(items), sql_errors("transform: "):
            edits = self._context.reader(self._spark, plan.end_position)(
                table="events", events=("edit",), columns=("message_id",)
            )
            edited = edits.distinct().withColumn("edited", F.lit(True))
            frame = dead_letters().join(edited, "message_id", "left").where(F.col("seq") >= first)
            # A VARIANT cannot be collected, and `body_json` repeats the body.
            rows = with_new_body(frame, plan.asked["transform"], function).drop("body_json").orderBy("seq")
            coming = rows.toLocalIterator(prefetchPartitions=True)
            for number in range(plan.done, plan.parts):
                size = min(plan.step, plan.total - number * plan.step)
                letters = [row.asDict(recursive=True) for row in islice(coming, size)]
                wanted = seqs[number * plan.step :][:size].tolist()
                if [letter["seq"] for letter in letters] != wanted:
                    raise HistoryUnavailable(f"the plan {plan.path} finds other dead letters; make a new one")
                limiter.wait(len(letters))
                self._finish(number, self._send_changed(number, letters, function))

    def _open(self, items: pa.Table) -> _Closing:
        plan = self._plan
        seqs = items.column("seq").to_numpy()
        self._removed = RemovalTracker(self._context, plan.asked["queue"], plan.end_position, seqs)
        # A call that got no answer is not repeated blindly: the journal shows what it did.
        self._single_try = Link(self._context.link.url, self._context.token, retry_s=0.0)
        return _Closing(self._single_try, self._audit)

    def _finish(self, number: int, lines: list[dict[str, Any]]) -> None:
        """First the outcomes of a slice go into the audit, then the plan counts it as done."""
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
        self, seq: int, message_id: str, outcome: str, to: str | None, detail: str | None
    ) -> dict[str, Any]:
        line = {
            "plan": self._plan.id,
            "time": iso(from_ms(int(time.time() * 1000))),
            "id": message_id,
            "seq": seq,
        }
        return {**line, "from": self._plan.asked["queue"], "to": to, "outcome": outcome, "detail": detail}

    # -- as they are

    def _move(self, letters: list[tuple[int, str]]) -> list[dict[str, Any]]:
        body = {} if self._plan.asked["to"] is None else {"to": self._plan.asked["to"]}
        is_finished, error = self._until_removed("redrive", letters, body)
        if not is_finished:
            raise OpenQError(
                f"the server {self._context.link.url} does not finish a redrive; try again later"
            )
        return [self._line(seq, message_id, *self._outcome(seq, error)) for seq, message_id in letters]

    def _outcome(self, seq: int, error: str | None) -> tuple[str, str | None, str | None]:
        removal = self._removed.of(seq)
        if removal is None:
            return LEFT, None, error or "it is in flight or delayed, or its queue no longer exists"
        event, to = removal
        if event in ("redrive", "move"):
            return REDRIVEN, to, None if event == "redrive" else "moved"
        return GONE, to, event

    def _until_removed(
        self, verb: str, letters: list[tuple[int, str]], body: dict[str, Any]
    ) -> tuple[bool, str | None]:
        """Let the server redrive or discard what is still in the queue. Returns whether it finished in time,
        and the error of its task."""
        end = time.monotonic() + _RETRY_S
        self._removed.advance()
        while waiting := [message_id for seq, message_id in letters if self._removed.of(seq) is None]:
            task = self._task(verb, {**body, "filter": {"ids": waiting}})
            self._removed.advance()
            if task is not None:
                return True, task["error"]
            if time.monotonic() > end:
                return False, None
        return True, None

    def _task(self, verb: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """A task of the server, awaited. None: it is unknown whether it was done; the journal will show."""
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
                link.call("GET", "whoami")  # waits until the server is reachable again
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
                return None  # the server was restarted and has lost its tasks
        return task

    # -- changed

    def _send_changed(
        self, number: int, letters: list[Letter], function: Transform | None
    ) -> list[dict[str, Any]]:
        plan = self._plan
        sending = plan.state.get("sending")
        is_repeated = sending is not None and sending["slice"] == number
        if sending is not None and is_repeated:
            # An earlier run ended somewhere below: what it skipped is skipped now too.
            skipped = {int(seq): (outcome, detail) for seq, (outcome, detail) in sending["skipped"].items()}
        else:
            skipped = self._not_sendable(letters)
        bodies = self._new_bodies(letters, skipped, function, is_repeated)
        if not is_repeated:
            ready = self._ready([letter["message_id"] for letter in letters if letter["seq"] in bodies])
            for letter in letters:
                if letter["seq"] in bodies and letter["message_id"] not in ready:
                    skipped[letter["seq"]] = (LEFT, "it is in flight or delayed")
            plan.state["sending"] = {"slice": number, "skipped": skipped}
            plan.save()
        chosen = [letter for letter in letters if letter["seq"] not in skipped]
        if chosen:
            data = _pack_letters(chosen, bodies, plan.asked["to"])
            publish(self._context.link, plan.id, number, [data], len(chosen), None)
            # A copy has another id, so discarding an original twice does no harm.
            self._until_removed("discard", [(each["seq"], each["message_id"]) for each in chosen], {})
        return [self._changed_line(letter, skipped.get(letter["seq"])) for letter in letters]

    def _not_sendable(self, letters: list[Letter]) -> dict[int, tuple[str, str | None]]:
        self._removed.advance()
        skipped: dict[int, tuple[str, str | None]] = {}
        for letter in letters:
            seq = letter["seq"]
            removal = self._removed.of(seq)
            if removal is not None:
                skipped[seq] = (GONE, removal[0])
            elif letter["edited"]:
                skipped[seq] = (LEFT, "it was edited, and the history has it as it was published")
        return skipped

    def _new_bodies(
        self,
        letters: list[Letter],
        skipped: dict[int, tuple[str, str | None]],
        function: Transform | None,
        is_repeated: bool,
    ) -> dict[int, bytes]:
        """Of those that are not skipped; adds to `skipped` those that have none."""
        bodies: dict[int, bytes] = {}
        for letter in letters:
            seq = letter["seq"]
            if seq in skipped:
                continue
            body, problem = new_body(letter, function)
            if body is not None:
                bodies[seq] = body
            elif is_repeated:
                raise OpenQError(
                    f"message {letter['message_id']} may have been sent by an earlier run, and has no body "
                    f"now ({problem}): the transform must return the same as before"
                )
            else:
                skipped[seq] = (FAILED if function and problem != NO_BODY else LEFT, problem)
        return bodies

    def _changed_line(self, letter: Letter, skipped: tuple[str, str | None] | None) -> dict[str, Any]:
        seq, message_id = letter["seq"], letter["message_id"]
        if skipped is not None:
            return self._line(seq, message_id, skipped[0], None, skipped[1])
        removal = self._removed.of(seq)
        is_clean = removal is not None and removal[0] == "cancel"
        detail = None if is_clean else f"its original: {removal[0] if removal else 'still in the queue'}"
        to = self._plan.asked["to"] or letter["dlq_source"]
        return self._line(seq, message_id, TRANSFORMED if is_clean else BOTH, to, detail)

    def _ready(self, ids: list[str]) -> set[str]:
        """Which of these are ready in the queue now, by bisection: in most cases all of them are."""
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


class _Closing:
    """Closes the connection and the audit of a run."""

    def __init__(self, link: Link, audit: _AuditLog) -> None:
        self._parts = (link, audit)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: object) -> None:
        for part in self._parts:
            part.close()


def _pack_letters(letters: list[Letter], bodies: dict[int, bytes], to: str | None) -> bytes:
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
    return pack(columns, {name: MESSAGE_COLUMNS[name] for name in columns})


def _attributes(letter: Letter) -> dict[str, Any]:
    """Those of the message, and of which message it is a copy."""
    found: dict[str, Any] = {}
    for name, value in (letter["attributes"] or {}).items():
        data = value["binary"]
        found[name] = {**value, "binary": None if data is None else b64encode(data).decode()}
    found[REPLAY_OF] = letter["replay_of"] or letter["message_id"]
    found[REPLAY_COUNT] = (letter["replay_count"] or 0) + 1
    return found


class _AuditLog:
    """One line of JSON for each dead letter. Lines that an interrupted run wrote too many are truncated."""

    def __init__(self, plan: ResendPlan) -> None:
        path: str | None = plan.state.get("audit")
        self.path = None if path is None else Path(path)
        self._size: int = plan.state.get("audited", 0)
        self._file: Any = None

    def write(self, lines: list[dict[str, Any]]) -> int:
        """Durable when this returns; the length of the audit in bytes."""
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
