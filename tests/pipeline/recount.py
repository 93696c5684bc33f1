"""Generated histories, and the metrics of the analytics job computed from them in plain Python."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from openq.history.error_signature import signature
from openq.history.local import LocalHistory
from openq.history.schema import arrow_schema, ddl
from openq.history.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_US = 1_790_000_000_000_000
ERRORS = (
    "ValueError: bad number {n}",
    "ConnectionError: 10.0.0.{n}:443 refused",
    "<script>alert({n})</script>",
    None,
)
CONSUMERS = ("worker-1", "worker-2", "<img src=x onerror=alert(1)>", None)
ENDS = ("ack", "expire", "dead_letter", "redrive", "move", "cancel", "drop")


@dataclass
class History:
    """Rows of both tables, in their order."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    position: int = 100
    seq: int = 0
    now_us: int = START_US

    # The interface that `AnalyticsJob` reads from.
    spark: SparkSession | None = None
    gap: tuple[int, int] | None = None
    journal: str = "salt"
    read_from: list[int] = field(default_factory=list)

    def snapshot(self, first_position: int) -> Any:
        return SimpleNamespace(end_position=self.position + 1, journal=self.journal, gap=self.gap)

    def tables(self, first: int, end: int) -> tuple[Any, Any, Any]:
        self.read_from.append(first)
        events = self.frame("events", [row for row in self.events if first <= row["position"] < end])
        messages = self.frame("messages", [row for row in self.messages if first <= row["position"] < end])
        return messages, events, events

    def frame(self, table: str, rows: list[dict[str, Any]], body: bool = False) -> Any:
        assert self.spark is not None
        names = arrow_schema(table, body=body).names
        # In random order and unevenly partitioned: results must not depend on that.
        rows = sorted(rows, key=lambda row: (row["seq"] or 0) * 7919 % 101)
        made = pa.Table.from_pylist(rows, arrow_schema(table, names))
        return self.spark.createDataFrame(made, ddl(table, names))

    # -- events

    def publish(self, queue: str, **more: Any) -> tuple[str, int, str]:
        self.position += 1
        self.seq += 1
        row = {
            "position": self.position,
            "seq": self.seq,
            "ts": self.now,
            "queue": queue,
            "message_id": f"id-{self.seq:012x}",
            "size": 10 + self.seq % 90,
            **more,
        }
        self.messages.append(row)
        self.happen("publish", queue, self.seq, row["message_id"], again=True)
        return queue, self.seq, row["message_id"]

    def happen(
        self,
        event: str,
        queue: str,
        seq: int | None,
        message_id: str | None,
        again: bool = False,
        **more: Any,
    ) -> None:
        self.position += not again
        text = more.pop("error_text", None)
        found = signature(text)
        self.events.append(
            {
                "position": self.position,
                "item": 0,
                "seq": seq,
                "ts": self.now,
                "queue": queue,
                "message_id": message_id,
                "event": event,
                "error_text": text,
                "error_type": found.type,
                "error_signature": found.text,
                **more,
            }
        )

    @classmethod
    def of(cls, data: Path) -> History:
        """The rows of a data directory and its archive."""
        made, local = cls(), LocalHistory(data)
        for table, rows in (("messages", made.messages), ("events", made.events)):
            selection = Selection(table=table)
            for batch in local.read_many(local.snapshot(selection).pieces, selection):
                rows += batch.to_pylist()
        return made

    def move(
        self, event: str, queue: str, seq: int, message_id: str, to: str, **more: Any
    ) -> tuple[str, int, str]:
        self.seq += 1
        self.happen(event, queue, seq, message_id, to_queue=to, to_seq=self.seq, **more)
        return to, self.seq, message_id

    @property
    def now(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.now_us)


class Simulation:
    """A few queues under random load."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.history = History()
        self.waiting: list[tuple[str, int, str]] = []
        self.held: list[tuple[str, int, str]] = []
        self.counts: dict[int, int] = defaultdict(int)

    def run(self, steps: int) -> History:
        for _ in range(steps):
            self.step()
        return self.history

    def take(self, of: list[tuple[str, int, str]]) -> tuple[str, int, str]:
        return of.pop(self.random.randrange(len(of)))

    def step(self) -> None:
        pick, history = self.random, self.history
        history.now_us += pick.choice((0, 1_000, 250_000, 7_000_000, 61_000_000))
        roll = pick.random()
        error = pick.choice(ERRORS)
        text = error and error.format(n=pick.randrange(100))
        if roll < 0.30 or not (self.waiting or self.held):
            queue = pick.choice(("orders", "mail", "naïve <b>"))
            kind = pick.choice(("order.made", "order.paid", None))
            self.waiting.append(history.publish(queue, type=kind, producer=pick.choice(("api", None))))
        elif roll < 0.60 and self.waiting:
            life = self.take(self.waiting)
            self.counts[life[1]] += 1
            history.happen(
                "deliver", *life, receive_count=self.counts[life[1]], consumer=pick.choice(CONSUMERS)
            )
            self.held.append(life)
        elif roll < 0.90 and self.held:
            life = self.take(self.held)
            way = pick.random()
            if way < 0.5:
                history.happen("ack", *life)
            elif way < 0.8:
                event = pick.choice(("nack", "nack", "lease_expired", "release"))
                history.happen(event, *life, error_text=text if event == "nack" else None)
                self.waiting.append(life)
            elif way < 0.95:
                self.waiting.append(history.move("dead_letter", *life, to="dead", error_text=text))
            else:
                history.happen("drop", *life, error_text=text)
        elif roll < 0.95 and self.waiting:
            life = self.take(self.waiting)
            way = pick.random()
            if life[0] == "dead" and way < 0.8:
                self.waiting.append(history.move("redrive", *life, to="orders"))
            else:
                history.happen(pick.choice(("expire", "cancel")), *life)
        elif roll > 0.98:
            queue = pick.choice(("orders", "mail", "dead"))
            spares = pick.random() < 0.5
            history.happen("purge", queue, None, None, item=int(spares))
            self.waiting = [life for life in self.waiting if life[0] != queue]
            if not spares:
                self.held = [life for life in self.held if life[0] != queue]


# -- the same metrics in plain Python ----------------------------------------------------------------------


@dataclass
class Lifecycle:
    queue: str
    message_id: str
    arrival_us: int | None = None
    lease: tuple[int, str | None] | None = None
    delivered: int = 0
    ended_us: int | None = None
    ended_by: str | None = None


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def nearest(values: list[int], share: float) -> int:
    return sorted(values)[max(math.ceil(round(share * len(values), 6)), 1) - 1]


class Recount:
    def __init__(self, history: History, window_us: int) -> None:
        self.window_us = window_us
        self.counts: dict[tuple[str, int, str], int] = defaultdict(int)
        self.bytes: dict[tuple[str, int], int] = defaultdict(int)
        self.waits: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.work: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.depths: dict[tuple[str, int, str, int], int] = defaultdict(int)
        self.failures: dict[tuple[Any, ...], list[tuple[int, int, str]]] = defaultdict(list)
        self.consumers: dict[tuple[str, str, str], int] = defaultdict(int)
        self.slowest: dict[tuple[str, str], int] = {}
        self.producers: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        self.lives: dict[int, Lifecycle] = {}
        self.loans: list[tuple[str, int, int | None]] = []  # queue, from, until
        self._types = {row["message_id"]: row.get("type") for row in history.messages}
        published = {row["position"]: row for row in history.messages}
        self.now_us = max((micros(row["ts"]) for row in history.events), default=0)
        for row in sorted(history.events, key=lambda row: (row["position"], row["item"])):
            self._walk(row, published.get(row["position"]))

    def window(self, us: int) -> int:
        return us - us % self.window_us

    def _end_loan(self, life: Lifecycle, us: int) -> None:
        if life.lease is not None:
            self.loans.append((life.queue, life.lease[0], us))
            life.lease = None

    def _close(self, life: Lifecycle, event: str, us: int) -> None:
        self.counts[life.queue, self.window(us), event] += 1
        self.depths[life.queue, self.window(us), event, life.delivered] += 1
        self._end_loan(life, us)
        life.ended_us, life.ended_by = us, event

    def _walk(self, row: dict[str, Any], message: dict[str, Any] | None) -> None:
        event, queue, us = row["event"], row["queue"], micros(row["ts"])
        at = (queue, self.window(us))
        if event == "purge":
            for life in self.lives.values():
                spared = row["item"] == 1 and life.lease is not None
                if life.queue == queue and life.ended_us is None and not spared:
                    self._close(life, "purge", us)
            return
        if event == "publish":
            assert message is not None
            self.counts[*at, "publish"] += 1
            self.bytes[at] += message["size"]
            who = self.producers[queue, message.get("producer") or ""]
            who[0] += 1
            who[1] += message["size"]
            self.lives[row["seq"]] = Lifecycle(queue, row["message_id"], us)
            return
        life = self.lives.setdefault(row["seq"], Lifecycle(queue, row["message_id"]))
        who_held = life.lease[1] or "" if life.lease is not None else None
        if event in ("ack", "nack") and life.lease is not None:
            took = us - life.lease[0]
            self.work[at].append(took)
            self.slowest[queue, who_held or ""] = max(took, self.slowest.get((queue, who_held or ""), 0))
        if event in ("nack", "lease_expired", "dead_letter", "drop"):
            key = (
                queue,
                event,
                self._types.get(row["message_id"]),
                row["error_type"],
                row["error_signature"],
            )
            self.failures[key].append((row["position"], us, row["message_id"]))
        if event == "deliver":
            self.counts[*at, event] += 1
            self.consumers[queue, row["consumer"] or "", event] += 1
            if not life.delivered and life.arrival_us is not None:
                self.waits[at].append(us - life.arrival_us)
            life.delivered = row["receive_count"]
            life.lease = (us, row["consumer"])
            return
        if who_held is not None:
            self.consumers[queue, who_held, event] += 1
        if event in ENDS:
            self._close(life, event, us)
        else:
            self.counts[*at, event] += 1
            self._end_loan(life, us)
        if row.get("to_seq"):
            self.counts[row["to_queue"], self.window(us), "arrive"] += 1
            self.lives[row["to_seq"]] = Lifecycle(row["to_queue"], row["message_id"], us)

    # -- at the end of a window

    def _until(self, window: int) -> int:
        return window + self.window_us

    def in_flight(self, queue: str, window: int) -> int:
        """Messages in flight at the end of the window."""
        end = self._until(window)
        loans = [
            *self.loans,
            *((each.queue, each.lease[0], None) for each in self.lives.values() if each.lease),
        ]
        return sum(
            1
            for name, start, stop in loans
            if name == queue and start < end and (stop is None or stop >= end)
        )

    def oldest_us(self, queue: str, window: int) -> int | None:
        end = self._until(window)
        arrivals = [
            life.arrival_us
            for life in self.lives.values()
            if life.queue == queue
            and life.arrival_us is not None
            and life.arrival_us < end
            and (life.ended_us is None or life.ended_us >= end)
        ]
        return min(end, self.now_us) - min(arrivals) if arrivals else None
