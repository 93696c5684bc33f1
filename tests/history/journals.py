"""Real journals with every kind of record, and a plain decoder to compare with: one record at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from openq.amqp_fields import AmqpProperties, Timestamp, encode
from openq.broker.kv import KvPut
from openq.clock import VirtualClock
from openq.engine import records
from openq.engine.records import decode
from openq.engine.routing import Binding, Exchange
from openq.errors import OpenQError
from openq.history.error_signature import signature
from openq.history.schema import column_names
from openq.journal.disk import DiskIo
from openq.journal.format import frames
from openq.journal.scan import SegmentScan, read_headers, segment_path
from openq.local.broker import LocalBroker
from openq.model import Draft, Properties, QueueSettings, plain_options

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# -- journals ------------------------------------------------------------------------------------------


def open_broker(path: Path, clock: VirtualClock | None = None, segment_bytes: int = 1 << 16) -> LocalBroker:
    return LocalBroker(path, clock=clock or VirtualClock(), seed=7, segment_bytes=segment_bytes)


def create_queues(broker: LocalBroker) -> None:
    broker.declare("dead", QueueSettings())
    broker.declare("plain", QueueSettings(max_receives=3, dead_letter="dead", visibility_ms=5_000))
    broker.declare("groups", QueueSettings(fifo=True, max_receives=2, dead_letter="dead"))
    broker.declare("short", QueueSettings(max_length=20, ttl_ms=20_000))
    broker.declare("drops", QueueSettings(max_receives=1, exhausted="drop", visibility_ms=2_000))
    broker.declare("@other/plain", QueueSettings())
    broker.exchanges.declare_exchange(Exchange("news", "fanout"))
    for queue in ("plain", "short", "@other/plain"):
        broker.exchanges.bind(Binding("news", queue))


def wire(n: int, own: bool = False) -> bytes:
    headers: dict[str, Any] = {
        "tenant": f"t{n % 3}",
        "n": n % 2,
        "flag": True,
        "nothing": None,
        "raw": b"\xff\0",
    }
    if own:
        headers["traceparent"] = f"00-{n:032x}-00f067aa0ba902b7-01"
    return encode(
        AmqpProperties(
            content_type="application/json",
            headers=headers,
            delivery_mode=2,
            message_id=f"amqp-{n}" if own else None,
            timestamp=Timestamp(1_700_000_000) if own else None,
        )
    )


class JournalWorkload:
    """A broker's life from a seed: publishes in every way, deliveries, failures, repairs."""

    def __init__(self, broker: LocalBroker, clock: VirtualClock, seed: int) -> None:
        self.broker = broker
        self.clock = clock
        self.random = Random(seed)
        self.n = 0
        self.held: list[tuple[str, tuple[int, int]]] = []

    def run(self, steps: int) -> None:
        ways = [
            *(self.one, self.many, self.varied, self.stamped, self.drafts, self.drafts, self.routed),
            *(self.all_properties, self.take, self.take, self.take, self.settle, self.settle, self.settle),
            *(self.wait, self.wait, self.repair, self.repair, self.sweep, self.values),
        ]
        for _ in range(steps):
            try:
                self.random.choice(ways)()
            except OpenQError:
                continue
        self.broker.sync()

    def body(self, size: int | None = None) -> bytes:
        self.n += 1
        size = self.random.choice((0, 1, 7, 100, 300)) if size is None else size
        return self.random.randbytes(size)

    def queue(self) -> str:
        return self.random.choice(("plain", "plain", "groups", "short", "drops", "dead", "@other/plain"))

    def one(self) -> None:
        self.broker.publish_body(self.queue(), self.body(), 0)

    def values(self) -> None:
        """Key-values, which the history leaves out."""
        self.broker.kv.put_many("b", [KvPut(f"k{self.n % 5}", self.body()), KvPut("k", b"")])
        self.broker.kv.delete_many("b", ["k"])

    def many(self) -> None:
        bodies = [self.body(40) for _ in range(self.random.randint(1, 12))]
        self.broker.publish_bodies(self.queue(), bodies, 1)

    def varied(self) -> None:
        self.broker.publish_bodies(self.queue(), [self.body() for _ in range(self.random.randint(1, 9))], 0)

    def stamped(self) -> None:
        properties = Properties({"kind": "x", "deep": {"a": [1, None]}}, "somebody")
        options = plain_options(("news", "a.b"), "job") if self.random.random() < 0.5 else None
        self.broker.publish_bodies(
            "plain", [self.body() for _ in range(self.random.randint(2, 6))], 0, properties, options
        )

    def all_properties(self) -> None:
        own = self.random.random() < 0.5
        infos = [Properties.from_amqp(wire(self.n + i, own), "mary" if i % 2 else None) for i in range(4)]
        self.broker.publish_bodies(
            "plain", [self.body() for _ in infos], 0, infos, plain_options(("", "plain"))
        )

    def drafts(self) -> None:
        r = self.random
        drafts = []
        for _ in range(r.randint(1, 4)):
            draft = Draft(self.body())
            if r.random() < 0.4:
                draft.id = f"own-{self.n}-é"
            if r.random() < 0.4:
                draft.priority = r.randint(0, 9)
            if r.random() < 0.3:
                draft.group = f"g{r.randint(0, 3)}"
            if r.random() < 0.3:
                draft.type = "order.created"
            if r.random() < 0.2:
                draft.delay_ms = r.randint(0, 9_000)
            if r.random() < 0.2:
                draft.ttl_ms = r.randint(1, 30_000)
            if r.random() < 0.2:
                draft.dedup = f"d{self.n}"
            if r.random() < 0.5:
                draft.attributes = {
                    "openq.replay_of": f"m{self.n}",
                    "openq.replay_count": r.randint(1, 3),
                    "openq.batch": "q1/7",
                    "content_type": "text/plain",
                    "AWSTraceHeader": f"Root=1-{self.n:08x};Sampled=1",
                    "data": b"\0\1",
                    "ratio": 1.5,
                    "text": "ü",
                }
                draft.publisher = "joe"
            drafts.append(draft)
        self.broker.publish_many(self.queue(), drafts)

    def routed(self) -> None:
        draft = Draft(self.body(), attributes={"a": "1"} if self.n % 2 else None)
        if self.random.random() < 0.3:
            draft.id = f"routed-{self.n}"
        self.broker.exchanges.route("news", f"k{self.n % 3}", draft)

    def take(self) -> None:
        queue = self.queue()
        consumer = self.random.choice((None, "", "w1", "batch:ü:3"))
        lease = self.random.choice((None, 1_000, 60_000, -1))
        for each in self.broker.receive(queue, self.random.randint(1, 6), lease, consumer):
            self.held.append((queue, (each.entry.seq, each.number)))

    def settle(self) -> None:
        self.random.shuffle(self.held)
        for _ in range(min(len(self.held), 4)):
            queue, receipt = self.held.pop()
            self.random.choice(
                (self.ack, self.ack, self.nack, self.nack, self.reject, self.release, self.extend)
            )(queue, receipt)

    def ack(self, queue: str, receipt: tuple[int, int]) -> None:
        self.broker.ack(queue, [receipt])

    def nack(self, queue: str, receipt: tuple[int, int]) -> None:
        reason = self.random.choice((None, "", f"ValueError: bad row {self.n}", "app.Broken: 'x' at /a/b"))
        self.broker.nack(queue, [receipt], self.random.choice((None, 0, 1500)), reason)

    def reject(self, queue: str, receipt: tuple[int, int]) -> None:
        self.broker.reject(queue, [receipt], self.random.choice((None, f"TypeError: {self.n} is odd")))

    def release(self, queue: str, receipt: tuple[int, int]) -> None:
        self.broker.release(queue, [receipt])

    def extend(self, queue: str, receipt: tuple[int, int]) -> None:
        self.broker.extend(queue, [receipt], 9_000)

    def wait(self) -> None:
        self.clock.advance(self.random.choice((0.001, 0.5, 3.0, 8.0)))

    def repair(self) -> None:
        broker, random = self.broker, self.random
        if random.random() < 0.3:
            broker.admin.redrive("dead", to=random.choice((None, "plain")))
            return
        queue = self.queue()
        entries = broker.inspect.entries(queue)
        if not entries:
            return
        name = broker.inspect.message_id(random.choice(entries))
        what = random.randint(0, 3)
        if what == 0:
            broker.admin.edit(queue, name, Draft(self.body(), attributes={"edited": "yes"}, priority=3))
        elif what == 1:
            broker.admin.move(queue, [name], random.choice(("plain", "dead")))
        elif what == 2:
            broker.admin.reschedule(queue, name, self.clock.now_ms() + 4_000)
        else:
            broker.admin.cancel(queue, name)

    def sweep(self) -> None:
        if self.random.random() < 0.3:
            self.broker.purge(self.queue(), waiting_only=self.random.random() < 0.6)
        if self.random.random() < 0.3:
            name = f"brief-{self.n}"
            self.broker.declare(name, QueueSettings())
            self.broker.publish_body(name, self.body(), 0)
            if self.random.random() < 0.5:
                self.broker.delete(name)


# -- the plain decoder ---------------------------------------------------------------------------------


def raw_records(path: Path, first_segment: int = 0) -> Iterator[tuple[int, bytes]]:
    """Every record with its position."""
    io = DiskIo()
    directory = str(path / "journal")
    for header in read_headers(io, directory):
        if header.number < first_segment:
            continue
        fd = io.open(segment_path(directory, header.number), 0)
        try:
            scan = SegmentScan(io, fd, header.number, header.salt, header.first_block)
            for block in scan.blocks():
                if block.count:
                    for offset, data in frames(block.data, block.pos, block.end, block.base):
                        yield header.number << 32 | offset, data
        finally:
            io.close(fd)


def plain_tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Both tables, from the first record on, without numpy and without an index."""
    return _PlainDecoder().read(path)


class _PlainDecoder:
    def __init__(self) -> None:
        self.prefix = ""
        self.names: dict[int, str] = {}
        self.own: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        self.messages: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def read(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        for position, data in raw_records(path):
            self.take(position, data)
        return {"messages": self.messages, "events": self.events}

    def id(self, seq: int) -> str:
        return self.own.get(seq) or f"{self.prefix}{seq:012x}"

    def event(
        self, position: int, item: int, ms: int, queue: int, seq: int | None, what: str, **more: Any
    ) -> None:
        row = dict.fromkeys(column_names("events"))
        error = more.get("error_text")
        if error is not None:
            more["error_type"], more["error_signature"] = signature(error)
        row.update(
            position=position,
            item=item,
            seq=seq,
            ts=_time(ms),
            queue=self.names[queue],
            message_id=None if seq is None else self.id(seq),
            event=what,
            **more,
        )
        self.events.append(row)

    def take(self, position: int, data: bytes) -> None:
        record = decode(data)
        kind, ms, queue, seq = record[:4]
        if kind == records.CHECKPOINT:
            self.prefix = record[4]["prefix"]
            self.names.update({number: name for number, name, *_ in record[4]["queues"]})
        elif kind == records.QUEUE:
            self.names[queue] = record[4]
        elif kind in (records.PUBLISH, records.RUN, records.ROUTE):
            self.publish(position, data, record)
        elif kind == records.DELIVER:
            until, consumer, seqs = record[4:]
            for i, each in enumerate(seqs):
                self.event(
                    *(position, i, ms, queue, each, "deliver"),
                    receive_count=self.counts.get(each, 0) + 1,
                    consumer=consumer,
                    receipt_hash=f"{seq + i:012x}",
                    delay_us=max(0, until - ms) * 1000 if until else None,
                )
        elif kind == records.ACK:
            for i, each in enumerate(record[4]):
                self.event(position, i, ms, queue, each, "ack")
        elif kind == records.RETURN:
            why, reason, pairs = record[4:]
            what = {records.NACKED: "nack", records.EXPIRED: "lease_expired", records.RELEASED: "release"}[
                why
            ]
            for i, (each, due) in enumerate(pairs):
                self.event(
                    *(position, i, ms, queue, each, what), error_text=reason, delay_us=max(0, due - ms) * 1000
                )
                if why != records.RELEASED:
                    self.counts[each] = self.counts.get(each, 0) + 1
        elif kind == records.EXTEND:
            for i, each in enumerate(record[5]):
                delay = max(0, record[4] - ms) * 1000 if record[4] else None
                self.event(position, i, ms, queue, each, "visibility_change", delay_us=delay)
        elif kind == records.MOVE:
            why, reason, moves = record[4:]
            dead = records.DEAD_LETTER_NAMES.get(why)
            what = "dead_letter" if dead else "redrive" if why == records.REDRIVEN else "move"
            for i, (old, to, new) in enumerate(moves):
                self.own[new] = self.id(old)
                self.event(
                    *(position, i, ms, queue, old, what),
                    error_text=reason if reason is not None else dead,
                    dlq_source=self.names[queue] if dead else None,
                    to_queue=self.names[to],
                    to_seq=new,
                )
        elif kind == records.REMOVE:
            what = {records.REMOVED_EXPIRED: "expire", records.REMOVED_CANCELLED: "cancel"}.get(
                record[4], "drop"
            )
            text = records.REMOVE_NAMES[record[4]] if what == "drop" else None
            for i, each in enumerate(record[5]):
                self.event(position, i, ms, queue, each, what, error_text=text)
        elif kind in (records.PURGE, records.UNQUEUE):
            spared = int(kind == records.PURGE and record[3] == 1)
            self.event(position, spared, ms, queue, None, "purge" if kind == records.PURGE else "delete")
        elif kind in (records.EDIT, records.COPY):
            body, properties, options = record[6:]
            if options is not None and options.id is not None:
                self.own[seq] = options.id
            self.counts[seq] = 0 if options is None else options.count
            if kind == records.EDIT:
                self.event(
                    position, 0, ms, queue, seq, "edit", **_property_columns(body, properties, options)
                )
        elif kind == records.RESCHEDULE:
            self.event(position, 0, ms, queue, seq, "reschedule", delay_us=max(0, record[4] - ms) * 1000)

    def publish(self, position: int, data: bytes, record: records.Record) -> None:
        kind, ms, queue, seq, _, content, properties, options = record[:8]
        if kind == records.RUN:
            starts, _, _ = records._run_layout(data)
            each = [
                (position + start, 0, queue, seq + i, body)
                for i, (start, body) in enumerate(zip(starts, content, strict=True))
            ]
        elif kind == records.ROUTE:
            each = [(position, i, number, to, content) for i, (number, to) in enumerate(record[8])]
        else:
            each = [(position, 0, queue, seq, content)]
        due = 0 if options is None else max(0, options.due_ms - ms) * 1000 if options.due_ms else 0
        for place, item, number, own_seq, body in each:
            if options is not None and options.id is not None:
                self.own[own_seq] = options.id
            if options is not None and options.count:
                self.counts[own_seq] = options.count
            reported = _property_columns(body, properties, options)
            self.event(place, item, ms, number, own_seq, "publish", delay_us=due, **reported)
            row = dict.fromkeys(column_names("messages"))
            row.update(_properties_of(properties))
            row.update(
                position=place,
                seq=own_seq,
                ts=_time(ms),
                queue=self.names[number],
                message_id=self.id(own_seq),
                type=None if options is None else options.type,
                delay_us=due,
                expires=_time(options.expires_ms) if options is not None and options.expires_ms else None,
                exchange=options.route[0] if options is not None and options.route else None,
                routing_key=options.route[1] if options is not None and options.route else None,
                body_sha256=hashlib.sha256(body).digest(),
                body=body,
                **{name: reported[name] for name in ("group", "dedup_id", "priority", "size")},
            )
            self.messages.append(row)


def _property_columns(body: bytes, properties: Properties | None, options: Any) -> dict[str, Any]:
    batch = None if properties is None else properties.attributes.get("openq.batch")
    return {
        "group": None if options is None else options.group,
        "dedup_id": None if options is None else options.dedup,
        "priority": 0 if options is None else options.priority,
        "size": len(body),
        "batch": batch,
    }


def _properties_of(properties: Properties | None) -> dict[str, Any]:
    if properties is None:
        return {}
    attributes = properties.attributes
    shown = []
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, bytes):
            shown.append((name, {"type": "Binary", "string": None, "binary": value}))
        elif isinstance(value, str):
            shown.append((name, {"type": "String", "string": value, "binary": None}))
        else:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            text = json.dumps(value, ensure_ascii=False)
            shown.append((name, {"type": "Number" if number else "Json", "string": text, "binary": None}))
    headers = None
    trace = None
    if properties.amqp_properties is not None:
        from openq import amqp_fields

        found = amqp_fields.decode(properties.amqp_properties).headers or {}
        headers = [(name, _header_text(value)) for name, value in found.items()]
        trace = found["traceparent"].split("-")[1] if "traceparent" in found else None
    if "AWSTraceHeader" in attributes:
        trace = str(attributes["AWSTraceHeader"]).removeprefix("Root=").split(";")[0]
    return {
        "content_type": attributes.get("content_type"),
        "attributes": shown or None,
        "headers": headers,
        "trace_id": trace,
        "producer": properties.publisher,
        "replay_of": attributes.get("openq.replay_of"),
        "replay_count": attributes.get("openq.replay_count"),
        "batch": attributes.get("openq.batch"),
    }


def _header_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else json.dumps(value)


def _time(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)
