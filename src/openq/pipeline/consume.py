"""Streams with mode=consume: Spark takes messages out of a queue, and each is acked when its batch is
committed.

The server forms numbered, durable batches that read the same every time; an offset is the number of the last
batch. Spark asks for the next offset only when the sink and its own commit log have the previous batch, so
that is when the batch is acked: Spark's `commit()` comes one batch later, never for the last one, and not at
all on `stop()`. Batches that a killed run leaves are acked by the next start or by `closer.py`, or return to
the queue when their lease ends.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from ..client.http import Refused
from ..errors import InvalidSetting, OpenQError
from .calls import link_of, linked, quoted
from .packed_rows import unpack_to_arrow
from .source import SchemaAdapter, check_schema, read_names
from .stream import Offset, StreamReader

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


@dataclass(frozen=True)
class BatchPartition(InputPartition):
    """Part `part` of `parts` of one batch."""

    number: int
    part: int
    parts: int


@dataclass(frozen=True)
class ConsumeOptions:
    """The options of a stream with mode=consume, checked."""

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
        max_messages = options.value("maxMessagesPerTrigger")
        return cls(
            options,
            queue,
            subscription,
            lease_s,
            max_messages and min(max_messages, MAX_MESSAGES),
            options.value("maxBytesPerTrigger"),
        )

    @property
    def path(self) -> str:
        return f"pipeline/subscriptions/{quoted(self.subscription)}"


class BatchLeaseLost(OpenQError):
    """A batch returned to its queue while it was being read."""

    code = "lease_lost"


class ConsumeReader(StreamReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._consume = ConsumeOptions.of(options)
        check_schema(options, schema)
        super().__init__(options, schema, self._consume.max_messages, self._consume.max_bytes)

    def _make_driver(self) -> ConsumeDriver:
        return ConsumeDriver(self._consume)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BatchPartition)
        path = f"{self._consume.path}/batches/{partition.number}"
        with linked(self._options, reached_before=True) as link:
            answer = link.call("GET", path, query={"part": partition.part, "parts": partition.parts})
        if is_expired(answer.headers):
            # Other tasks may have read their part before: half a batch must not reach the sink.
            raise BatchLeaseLost(
                f"batch {partition.number} of subscription {self._consume.subscription!r} returned to its "
                "queue while it was being read; restart the query, and give it a longer leaseTimeout"
            )
        adapter = SchemaAdapter(self._schema)
        for batch in unpack_to_arrow(answer.body, read_names(self._schema)):
            yield adapter.of(batch)


class ConsumeDriver:
    """Forms batches, keeps their leases and acks them; one for each run."""

    def __init__(self, consume: ConsumeOptions) -> None:
        self._consume = consume
        self._owner = uuid.uuid4().hex
        self._link = link_of(consume.options)
        self._formed: dict[int, tuple[int, int]] = {}  # number -> messages and bytes
        self._acked = -1
        self._left: int | None = None  # messages that a run with AvailableNow may still take
        self._long_poll: _LongPoll | None = None
        self._heartbeat: threading.Thread | None = None
        self._closed = threading.Event()

    # -- offsets --

    def _offset(self, number: int) -> Offset:
        # With the subscription, so that a checkpoint says whose batches it counts, here and in `closer.py`.
        return {BATCH: number, SUBSCRIPTION: self._consume.subscription}

    def _number(self, offset: Mapping[str, Any]) -> int:
        return batch_of(offset, self._consume.subscription)

    def first(self) -> Offset:
        """Before the open batches of an earlier checkpoint, if there are any; otherwise after all batches
        ever."""
        state = self._subscription_state()
        if state and state["batches"]:
            return self._offset(int(state["first_open"]) - 1)
        # Numbers are never reused: a late ack must not hit another batch of the same number.
        return self._offset(time.time_ns() // 1_000_000)

    def set_target(self) -> None:
        try:
            stats = self._link.call("GET", f"queues/{quoted(self._consume.queue)}/stats").json()
        except Refused as refused:
            if refused.status != 403:
                raise
            # Without the permission to count, the run ends when no message is ready.
            self._left = UNLIMITED
            return
        # The batches that an earlier run has not finished come first.
        open_now = int((self._subscription_state() or {}).get("messages", 0))
        self._left = int(stats["ready"]) + open_now

    def next_after(self, start: Offset, is_bounded: bool) -> Offset:
        number = self._number(start)
        batch = self._next_batch(number)
        return self._offset(batch) if batch != number else start

    def _next_batch(self, number: int) -> int:
        self._ack(number)  # Spark has committed it, else it would not ask for the next batch
        if self._left is not None:
            if self._left <= 0:
                return number
            formed = self.form(number, 0.0, self._link)
            self._left -= self._formed[formed][0] if formed != number else self._left
            return formed
        if self._long_poll is not None:
            found = self._long_poll.take(number)
            if found is None:
                return number
            self._long_poll = None
            if found > number:
                return found
        formed = self.form(number, 0.0, self._link)
        if formed == number:
            # Spark asks every few milliseconds: from now on a thread waits, and this answers from memory.
            self._long_poll = _LongPoll(self, self._consume.options, number, self._closed)
        return formed

    def form(self, after: int, wait_s: float, link: Link) -> int:
        """Let the server form the batch after this one; its number, or `after` if no message came in time."""
        consume = self._consume
        request: dict[str, Any] = {
            "queue": consume.queue,
            "after": after,
            "limit": self._limit(),
            "lease_s": consume.lease_s,
            "owner": self._owner,
            "wait": wait_s,
        }
        if consume.max_bytes is not None:
            request["max_bytes"] = consume.max_bytes
        path = f"{consume.path}/batches"
        answer = link.call("POST", path, json=request, wait_s=wait_s, stop=self._closed).json()
        number = int(answer["batch"])
        if number != after:
            self._formed[number] = int(answer["count"]), int(answer["bytes"])
            self._keep_leases()
        return number

    def _limit(self) -> int:
        limit = self._consume.max_messages or MAX_MESSAGES
        return limit if self._left is None else max(1, min(limit, self._left))

    def _keep_leases(self) -> None:
        if self._heartbeat is None:
            self._heartbeat = threading.Thread(target=self._heartbeat_loop, daemon=True, name="openq-lease")
            self._heartbeat.start()

    # -- batches --

    def plan_partitions(self, start: Offset, end: Offset) -> list[BatchPartition]:
        """Numbers may have gaps: another checkpoint may have used some in between."""
        first, last = self._number(start), self._number(end)
        if last > first and not any(first < number <= last for number in self._formed):
            self._take_over(first, last)
        found: list[BatchPartition] = []
        for number, (count, size) in sorted(self._formed.items()):
            if first < number <= last:
                parts = min(count, max(1, -(-size // PART_BYTES), -(-count // PART_ROWS)))
                found += [BatchPartition(number, part, parts) for part in range(parts)]
        self._keep_leases()
        return found

    def _take_over(self, start: int, end: int) -> None:
        """Continue with a batch that an earlier run planned and did not commit."""
        # This run owns it from now on: an earlier run that is still alive is refused when it acks.
        self._link.call("POST", f"{self._consume.path}/extend", json=self._extension())
        for each in (self._subscription_state() or {}).get("batches", ()):
            if start < each["number"] <= end:
                self._formed[each["number"]] = int(each["count"]), int(each["bytes"])
                return
        log.warning(
            "batch %d of subscription %s no longer exists: its lease ended and its messages returned to "
            "the queue; they come in a later batch",
            end,
            self._consume.subscription,
        )

    def _extension(self) -> dict[str, Any]:
        return {"owner": self._owner, "lease_s": self._consume.lease_s}

    def _subscription_state(self) -> dict[str, Any] | None:
        answer = self._link.call("GET", "pipeline/subscriptions").json()
        for each in answer["subscriptions"]:
            if each["name"] == self._consume.subscription:
                found: dict[str, Any] = each
                return found
        return None

    def committed(self, end: Offset) -> None:
        self._ack(self._number(end))

    def _ack(self, number: int) -> None:
        if number <= self._acked:
            return
        request = {"through": number, "owner": self._owner}
        answer = self._link.call("POST", f"{self._consume.path}/ack", json=request).json()
        self._acked = number
        if answer["lost"]:
            log.warning(
                "%d messages of subscription %s returned to the queue before they were acked, and will be "
                "delivered again; give it a longer leaseTimeout",
                answer["lost"],
                self._consume.subscription,
            )
        for done in [each for each in self._formed if each <= number]:
            del self._formed[done]

    def _heartbeat_loop(self) -> None:
        """Extends the leases while this process lives, however long a batch takes."""
        consume = self._consume
        with linked(consume.options, reached_before=True) as link:
            while not self._closed.wait(consume.lease_s / 3):
                try:
                    link.call("POST", f"{consume.path}/extend", json=self._extension(), stop=self._closed)
                except OpenQError as error:
                    if self._closed.is_set():
                        return
                    log.warning("the leases of subscription %s: %s", consume.subscription, error)
                    if isinstance(error, Refused) and error.status == 409:
                        return  # another run owns the subscription; the query's next call reports it

    def close(self) -> None:
        self._closed.set()
        self._link.close()


class _LongPoll:
    """Waits for the next batch in a thread of its own."""

    def __init__(
        self, driver: ConsumeDriver, options: SourceOptions, after: int, closed: threading.Event
    ) -> None:
        self._driver = driver
        self._options = options
        self._after = after
        self._closed = closed
        self._formed: int | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._wait, daemon=True, name="openq-next-batch").start()

    def _wait(self) -> None:
        try:
            with linked(self._options, reached_before=True) as link:
                formed = self._after
                while formed == self._after and not self._closed.is_set():
                    formed = self._driver.form(self._after, WAIT_S, link)
            self._formed = formed
        except BaseException as error:
            self._error = error
        self._done.set()

    def take(self, after: int) -> int | None:
        """The batch that was formed, once; None while there is none."""
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
    found = offset.get(SUBSCRIPTION)
    if found != subscription:
        raise InvalidSetting(
            f"this checkpoint belongs to subscription {found!r}, not to {subscription!r}; "
            "give the query a checkpoint of its own, or give the subscription its old name"
        )
    return number


def is_expired(headers: Mapping[str, str]) -> bool:
    return headers.get("openq-expired", "") == "true"
