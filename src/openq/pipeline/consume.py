"""`readStream` with mode=consume: Spark works a queue off, each message once, acked when its batch is done.

The server forms numbered, durable batches that read the same every time; the offset is the number of the last
one. Spark asks for the next offset only when the sink and its own commit log have the batch before: that is
the moment to ack it, because `commit()` comes a batch later, for the last one never, and `stop()` not at all.
What a killed run leaves is acked by the next start, by `closer.py`, or returns to the queue by its lease.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..client.http import Refused
from ..errors import InvalidSetting, OpenQError
from .calls import link_of, linked, quoted
from .packed_rows import unpack_to_arrow
from .source import SchemaAdapter, check_schema, read_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .link import Link
    from .options import SourceOptions

log = logging.getLogger("openq.pipeline")

# One task reads about this much: the rows of a part are in memory at once.
PART_BYTES = 8 << 20
PART_ROWS = 20_000
WAIT_S = 20.0
LEASE_S = 300.0
MIN_LEASE_S, MAX_LEASE_S = 5.0, 7 * 86_400.0
MAX_MESSAGES = 100_000  # of one batch
UNLIMITED = 1 << 62
BATCH = "batch"
SUBSCRIPTION = "subscription"

Offset = dict[str, Any]


@dataclass(frozen=True)
class BatchPartition(InputPartition):
    """Part `part` of `parts` of one batch."""

    number: int
    part: int
    parts: int


@dataclass(frozen=True)
class ConsumeOptions:
    """What the options of such a stream say."""

    options: SourceOptions
    queue: str
    subscription: str
    lease_s: float
    max_messages: int | None
    max_bytes: int | None

    @classmethod
    def of(cls, options: SourceOptions) -> ConsumeOptions:
        for name in ("startingOffsets", "startingTimestamp", "cursor", "holdBytes", "holdTime", "queues"):
            if name in options.values:
                hint = "; name the one queue with queue" if name == "queues" else ""
                raise InvalidSetting(f"{name} does not go with mode=consume, which takes what waits{hint}")
        if options.table != "messages":
            raise InvalidSetting("mode=consume takes messages: leave table out")
        queue, subscription = options.value("queue"), options.value("subscription")
        if queue is None or subscription is None:
            raise InvalidSetting(
                "mode=consume needs the options queue and subscription (a name of your choice for this query)"
            )
        lease_s: float = options.value("leaseTimeout", LEASE_S)
        if not MIN_LEASE_S <= lease_s <= MAX_LEASE_S:
            raise InvalidSetting("leaseTimeout must be from 5 s to 7 days")
        most = options.value("maxMessagesPerTrigger")
        return cls(
            options,
            queue,
            subscription,
            lease_s,
            most and min(most, MAX_MESSAGES),
            options.value("maxBytesPerTrigger"),
        )

    @property
    def path(self) -> str:
        return f"pipeline/subscriptions/{quoted(self.subscription)}"


class LeaseLost(OpenQError):
    """A batch went back to its queue while it was being read."""

    code = "lease_lost"


class ConsumeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._plan = ConsumeOptions.of(options)
        check_schema(options, schema)
        self._schema = schema
        self._driver: ConsumeDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy of this reader; threads and connections stay with the driver.
        return {**self.__dict__, "_driver": None}

    @property
    def _at_driver(self) -> ConsumeDriver:
        if self._driver is None:
            self._driver = ConsumeDriver(self._plan)
        return self._driver

    def _offset(self, number: int) -> Offset:
        # The name is in it so that a checkpoint tells whose batches it counts, to us and to `closer.py`.
        return {BATCH: number, SUBSCRIPTION: self._plan.subscription}

    def _number(self, offset: Mapping[str, Any]) -> int:
        return batch_of(offset, self._plan.subscription)

    def initialOffset(self) -> Offset:
        return self._offset(self._at_driver.first())

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._plan.max_messages is not None:
            return ReadMaxRows(self._plan.max_messages)
        if self._plan.max_bytes is not None:
            return ReadMaxBytes(self._plan.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._at_driver.set_target()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        number = self._at_driver.next_after(self._number(start))
        return self._offset(number) if number != self._number(start) else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[BatchPartition]:
        return self._at_driver.plan_partitions(self._number(start), self._number(end))

    def commit(self, end: Offset) -> None:
        self._at_driver.ack(self._number(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BatchPartition)
        path = f"{self._plan.path}/batches/{partition.number}"
        with linked(self._plan.options, reached_before=True) as link:
            answer = link.call("GET", path, query={"part": partition.part, "parts": partition.parts})
        if is_expired(answer.headers):
            # Some tasks may have read their part before: half a batch must not reach the sink.
            raise LeaseLost(
                f"batch {partition.number} of subscription {self._plan.subscription!r} went back to its "
                "queue while it was being read; restart the query, and give it a longer leaseTimeout"
            )
        shape = SchemaAdapter(self._schema)
        for batch in unpack_to_arrow(answer.body, read_names(self._schema)):
            yield shape.of(batch)


class ConsumeDriver:
    """The side of the reader that forms batches, keeps their leases and acks them; one for each run."""

    def __init__(self, plan: ConsumeOptions) -> None:
        self.plan = plan
        self._owner = uuid.uuid4().hex
        self._link = link_of(plan.options)
        self._formed: dict[int, tuple[int, int]] = {}  # number -> messages and bytes
        self._acked = -1
        self._left: int | None = None  # messages that AvailableNow may still take
        self._long_poll: _LongPoll | None = None
        self._heartbeat: threading.Thread | None = None
        self._closed = threading.Event()

    # -- offsets --

    def first(self) -> int:
        """Where a new checkpoint begins: at what an earlier one left, else behind all that ever was."""
        shown = self._subscription_state()
        if shown and shown["batches"]:
            return int(shown["first_open"]) - 1
        # Numbers are never used again: an ack that arrives late must not hit another batch of that number.
        return time.time_ns() // 1_000_000

    def set_target(self) -> None:
        try:
            stats = self._link.call("GET", f"queues/{quoted(self.plan.queue)}/stats").json()
        except Refused as refused:
            if refused.status != 403:
                raise
            # Who may take messages need not be allowed to count them: until nothing waits any more.
            self._left = UNLIMITED
            return
        # What an earlier run has not finished comes first.
        open_now = int((self._subscription_state() or {}).get("messages", 0))
        self._left = int(stats["ready"]) + open_now

    def next_after(self, number: int) -> int:
        self.ack(number)  # Spark has committed it, or it would not ask for the next
        if self._left is not None:
            if self._left <= 0:
                return number
            formed = self._form(number, 0.0, self._link)
            self._left -= self._formed[formed][0] if formed != number else self._left
            return formed
        if self._long_poll is not None:
            came = self._long_poll.take(number)
            if came is None:
                return number
            self._long_poll = None
            if came > number:
                return came
        formed = self._form(number, 0.0, self._link)
        if formed == number:
            # Spark asks every few milliseconds: from here on somebody else waits, and we answer from memory.
            self._long_poll = _LongPoll(self, number)
        return formed

    def _form(self, after: int, wait_s: float, link: Link) -> int:
        plan = self.plan
        wanted: dict[str, Any] = {
            "queue": plan.queue,
            "after": after,
            "limit": self._limit(),
            "lease_s": plan.lease_s,
            "owner": self._owner,
            "wait": wait_s,
        }
        if plan.max_bytes is not None:
            wanted["max_bytes"] = plan.max_bytes
        path = f"{self.plan.path}/batches"
        answer = link.call("POST", path, json=wanted, wait_s=wait_s, stop=self._closed).json()
        number = int(answer["batch"])
        if number != after:
            self._formed[number] = int(answer["count"]), int(answer["bytes"])
            self._keep_leases()
        return number

    def _limit(self) -> int:
        most = self.plan.max_messages or MAX_MESSAGES
        return most if self._left is None else max(1, min(most, self._left))

    def _keep_leases(self) -> None:
        if self._heartbeat is None:
            self._heartbeat = threading.Thread(target=self._heartbeat_loop, daemon=True, name="openq-lease")
            self._heartbeat.start()

    # -- batches --

    def plan_partitions(self, start: int, end: int) -> list[BatchPartition]:
        """Numbers need not follow one another: another checkpoint may have used some in between."""
        if end > start and not any(start < number <= end for number in self._formed):
            self._find(start, end)
        found: list[BatchPartition] = []
        for number, (count, size) in sorted(self._formed.items()):
            if start < number <= end:
                parts = min(count, max(1, -(-size // PART_BYTES), -(-count // PART_ROWS)))
                found += [BatchPartition(number, part, parts) for part in range(parts)]
        self._keep_leases()
        return found

    def _find(self, start: int, end: int) -> None:
        """What an earlier run has planned and not committed."""
        # It is ours from now on: whoever still works on it is refused when it acks.
        request = {"owner": self._owner, "lease_s": self.plan.lease_s}
        self._link.call("POST", f"{self.plan.path}/extend", json=request)
        for each in (self._subscription_state() or {}).get("batches", ()):
            if start < each["number"] <= end:
                self._formed[each["number"]] = int(each["count"]), int(each["bytes"])
                return
        log.warning(
            "batch %d of subscription %s is no longer there: its lease ended and its messages returned to "
            "the queue; they come in a later batch",
            end,
            self.plan.subscription,
        )

    def _subscription_state(self) -> dict[str, Any] | None:
        answer = self._link.call("GET", "pipeline/subscriptions").json()
        for each in answer["subscriptions"]:
            if each["name"] == self.plan.subscription:
                found: dict[str, Any] = each
                return found
        return None

    def ack(self, number: int) -> None:
        if number <= self._acked:
            return
        request = {"through": number, "owner": self._owner}
        answer = self._link.call("POST", f"{self.plan.path}/ack", json=request).json()
        self._acked = number
        if answer["lost"]:
            log.warning(
                "%d messages of subscription %s went back to the queue before they were acked, and come "
                "again; give it a longer leaseTimeout",
                answer["lost"],
                self.plan.subscription,
            )
        for done in [each for each in self._formed if each <= number]:
            del self._formed[done]

    def _heartbeat_loop(self) -> None:
        """Keeps the leases for as long as this process lives, however long a batch takes."""
        request = {"owner": self._owner, "lease_s": self.plan.lease_s}
        with linked(self.plan.options, reached_before=True) as link:
            while not self._closed.wait(self.plan.lease_s / 3):
                try:
                    link.call("POST", f"{self.plan.path}/extend", json=request, stop=self._closed)
                except OpenQError as error:
                    if self._closed.is_set():
                        return
                    log.warning("the leases of subscription %s: %s", self.plan.subscription, error)
                    if isinstance(error, Refused) and error.status == 409:
                        return  # somebody else has it now, and the next call of the query says so

    def close(self) -> None:
        self._closed.set()
        self._link.close()


class _LongPoll:
    """A long poll for the next batch in a thread of its own."""

    def __init__(self, driver: ConsumeDriver, after: int) -> None:
        self._driver = driver
        self._after = after
        self._formed: int | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._wait, daemon=True, name="openq-next-batch").start()

    def _wait(self) -> None:
        try:
            with linked(self._driver.plan.options, reached_before=True) as link:
                formed = self._after
                while formed == self._after and not self._driver._closed.is_set():
                    formed = self._driver._form(self._after, WAIT_S, link)
            self._formed = formed
        except BaseException as error:
            self._error = error
        self._done.set()

    def take(self, after: int) -> int | None:
        """The batch that came, once; None while there is none."""
        if not self._done.is_set():
            return None
        if self._error is not None:
            raise self._error
        return self._formed if self._after == after else after


def batch_of(offset: Mapping[str, Any], subscription: str) -> int:
    number = offset.get(BATCH)
    if not isinstance(number, int):
        raise InvalidSetting(
            "this checkpoint does not count batches of a subscription: it belongs to another kind of query; "
            "give the query a checkpoint of its own"
        )
    whose = offset.get(SUBSCRIPTION)
    if whose != subscription:
        raise InvalidSetting(
            f"this checkpoint belongs to subscription {whose!r}, not to {subscription!r}; "
            "give the query a checkpoint of its own, or the subscription back its name"
        )
    return number


def is_expired(headers: Mapping[str, str]) -> bool:
    return headers.get("openq-expired", "") == "true"
