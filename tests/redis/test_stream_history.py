"""The history of a Redis as columns: the rows that a journal has of the same story, and each of them once."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from openq.clock import VirtualClock
from openq.errors import HistoryUnavailable, InvalidSetting
from openq.history.local import LocalHistory, ScanPiece, Snapshot
from openq.history.selection import Selection
from openq.history.worker import WorkerChannel
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.pipeline.analytics import analytics
from openq.pipeline.archive import archive
from openq.pipeline.remote_history import RemoteHistory
from openq.pipeline.transfer import export
from openq.redis.broker import RedisBroker
from openq.redis.history_worker import StreamHistoryReader
from openq.redis.stream_history import StreamHistory
from openq.redis.stream_positions import StreamHistoryEnd, position_of_event, position_of_message, time_of
from tests.pipeline.stream_runner import StreamRunner, stopped  # noqa: F401
from tests.redis.servers import Server, cluster, versions
from tests.serving import Served, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What depends on the store: where rows stand, how they are numbered, and the receipts of deliveries.
OF_THE_STORE = {"position", "seq", "message_id", "receipt_hash", "to_seq"}
# Redis keeps of a message what history and replay need; not these.
NOT_KEPT = {"delay_us", "expires", "dedup_id"}
OF_EDITS = {"size", "priority"}


class HistoryFixture:
    """A broker on Redis and its history."""

    def __init__(self, url: str, **options: Any) -> None:
        self.broker = RedisBroker(url, profile="fast", **options)
        self.reach = StreamHistoryEnd(self.broker.store)
        self.history = StreamHistory(self.broker.address)

    def close(self) -> None:
        self.history.close()
        self.broker.close()

    def snapshot(self, selection: Selection, **more: Any) -> Snapshot:
        return self.history.snapshot(selection, self.reach.now(settle=True), **more)

    def table(self, selection: Selection, **more: Any) -> pa.Table:
        pieces = self.snapshot(selection, **more).pieces
        return _table(self.history.read_many(pieces, selection), selection)

    def rows(self, selection: Selection, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(selection, **more).to_pylist()
        return found


def _table(batches: Iterator[pa.RecordBatch], selection: Selection) -> pa.Table:
    from openq.history.schema import arrow_schema

    schema = arrow_schema(selection.table, selection.names)
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)


@contextmanager
def _columns(url: str, **options: Any) -> Iterator[HistoryFixture]:
    made = HistoryFixture(url, **options)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def columns(redis_server: Server) -> Iterator[HistoryFixture]:
    with _columns(redis_server.url) as made:
        yield made


# -- the same as a journal ------------------------------------------------------------------------


def play_story(broker: Any, clock: VirtualClock) -> None:
    """Something of everything that can happen to a message, one thing at a time."""

    def then() -> None:
        clock.advance(1)

    broker.declare("dead", QueueSettings())
    broker.declare("aside", QueueSettings())
    broker.declare("mails", QueueSettings(fifo=True))
    broker.declare("orders", QueueSettings(dead_letter="dead", max_receives=3, visibility_ms=20_000))
    drafts = {
        "plain": Draft(b"plain"),
        "own": Draft(b"own", id="an id of its own"),
        "typed": Draft(b"typed", type="order.created", priority=3),
        "reported": Draft(
            b"reported", attributes={"shop": "north", "n": 7, "openq.batch": "b-1", "trace_id": "t"}
        ),
        "expired": Draft(b"expired", ttl_ms=3_000),
        "cancelled": Draft(b"cancelled", delay_ms=3_600_000),
        "edited": Draft(b"edited", delay_ms=3_600_000),
        "moved": Draft(b"moved", delay_ms=3_600_000, id="moved along"),
    }
    ids = {}
    for name, draft in drafts.items():
        ids[name] = broker.publish("orders", draft)
        then()
    ids["mail"] = broker.publish("mails", Draft(b"mail", group="alice"))
    then()
    named = {id: name for name, id in ids.items()}
    deliveries = broker.receive("orders", 10, None, "worker-1")
    leased = {named[broker.inspect.message_id(each.entry)]: each for each in deliveries}
    then()
    assert set(leased) == {"plain", "own", "typed", "reported"}

    def receipt(name: str) -> tuple[int, int]:
        return leased[name].entry.seq, leased[name].number

    assert broker.ack("orders", [receipt("plain")]) == [None]
    then()
    broker.nack("orders", [receipt("own")], 0, "TimeoutError: no answer within 3 s")
    then()
    broker.reject("orders", [receipt("typed")], "ValueError: 'x' is no amount")
    then()
    broker.extend("orders", [receipt("reported")], 40_000)
    then()
    [again] = broker.receive("orders", 1, 5_000, None)
    assert broker.inspect.message_id(again.entry) == ids["own"]
    assert again.count == 2
    clock.advance(5)  # nobody acks it
    [third] = broker.receive("orders", 1, None, "worker-2")
    then()
    broker.release("orders", [(third.entry.seq, third.number)])
    then()
    [fourth] = broker.receive("orders", 1, None, "worker-2")
    assert fourth.count == 3
    then()
    broker.nack("orders", [(fourth.entry.seq, fourth.number)], None, None)  # its last chance
    then()
    broker.admin.cancel("orders", ids["cancelled"])
    then()
    broker.admin.edit("orders", ids["edited"], Draft(b"changed"))
    then()
    broker.admin.reschedule("orders", ids["edited"], clock.now_ms() + 7_200_000)
    then()
    assert broker.admin.move("orders", [ids["moved"]], "aside") == [None]
    then()
    [mail] = broker.receive("mails", 1, None, None)
    then()
    broker.ack("mails", [(mail.entry.seq, mail.number)])
    then()
    assert broker.admin.redrive("dead") == 2
    then()
    for each in broker.receive("orders", 2, None, "worker-3"):
        then()
        broker.ack("orders", [(each.entry.seq, each.number)])
    then()
    broker.purge("aside")
    then()


def _bare(rows: list[dict[str, Any]], names: dict[str, str], without: set[str]) -> list[dict[str, Any]]:
    """Rows without what the store chooses; messages by the name they have in the story."""
    found = []
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in OF_THE_STORE | without}
        if row.get("event") == "edit":
            kept = {name: value for name, value in kept.items() if name not in OF_EDITS}
        found.append({**kept, "message": names.get(row["message_id"])})
    return sorted(found, key=lambda row: (row["ts"], row.get("item") or 0, str(row["message"])))


def test_redis_returns_the_same_history_as_a_journal(redis_server: Server, tmp_path: Path) -> None:
    clock = VirtualClock()
    local = LocalBroker(tmp_path, clock=clock)
    play_story(local, clock)
    local.sync()
    reported: dict[str, dict[str, list[dict[str, Any]]]] = {"journal": {}, "redis": {}}
    history = LocalHistory(tmp_path)
    for table in ("messages", "events"):
        selection = Selection(table)
        batches = history.read_many(history.snapshot(selection).pieces, selection)
        reported["journal"][table] = _table(batches, selection).to_pylist()
    local.close()
    clock = VirtualClock()
    with _columns(redis_server.url, clock=clock) as columns:
        play_story(columns.broker, clock)
        for table in ("messages", "events"):
            reported["redis"][table] = columns.rows(Selection(table))

    names = {
        store: {row["message_id"]: row["body"].decode() for row in tables["messages"]}
        for store, tables in reported.items()
    }
    for table in ("messages", "events"):
        journal, redis = (
            _bare(reported[store][table], names[store], NOT_KEPT if table == "messages" else {"dedup_id"})
            for store in ("journal", "redis")
        )
        assert len(redis) == len(journal)
        for ours, theirs in zip(redis, journal, strict=True):
            if ours.get("event") == "publish":
                ours, theirs = ({**each, "delay_us": None} for each in (ours, theirs))
            assert ours == theirs
    moves = [row for row in reported["redis"]["events"] if row["to_queue"]]
    assert all(row["to_seq"] for row in moves)
    seqs = {(row["queue"], row["seq"]) for row in reported["redis"]["events"]}
    assert {(row["to_queue"], row["to_seq"]) for row in moves if row["to_queue"] == "orders"} <= seqs


# -- a part of it ---------------------------------------------------------------------------------


def test_only_what_was_asked_for_comes(columns: HistoryFixture) -> None:
    broker = columns.broker
    for queue in ("a", "b", "other"):
        broker.declare(queue, QueueSettings())
        for number in range(50):
            broker.publish(queue, Draft(b"%d" % number, id=f"{queue}-{number}" if number % 2 else None))
    every = columns.rows(Selection())
    assert len(every) == 150
    ordered = [row for row in every if row["queue"] == "a"]
    middle = ordered[20]

    def found(**words: Any) -> list[tuple[str, bytes]]:
        return [(row["queue"], row["body"]) for row in columns.rows(Selection(**words))]

    def expected(keep: Any) -> list[tuple[str, bytes]]:
        return [(row["queue"], row["body"]) for row in every if keep(row)]

    moment = int(middle["ts"].timestamp() * 1_000_000 + 0.5)
    assert found(queues=("a", "o*")) == expected(lambda row: row["queue"] != "b")
    assert found(since_us=moment) == expected(lambda row: row["ts"] >= middle["ts"])
    assert found(until_us=moment) == expected(lambda row: row["ts"] < middle["ts"])
    assert found(first_seq=middle["seq"]) == expected(lambda row: row["seq"] >= middle["seq"])
    assert found(last_seq=middle["seq"]) == expected(lambda row: row["seq"] <= middle["seq"])
    assert found(ids=("a-3", "b-5", "nobody")) == [("a", b"3"), ("b", b"5")]
    assert columns.rows(Selection(columns=("size", "message_id"), queues=("a",), ids=("a-11",))) == [
        {"size": 2, "message_id": "a-11"}
    ]
    [delivery] = broker.receive("b", 1)
    broker.ack("b", [(delivery.entry.seq, delivery.number)])
    assert [row["event"] for row in columns.rows(Selection("events", events=("ack", "deliver")))] == [
        *("deliver", "ack")
    ]
    assert len(columns.rows(Selection("events", events=("publish",), queues=("b",)))) == 50


def test_pieces_of_any_size_hold_every_row_once(columns: HistoryFixture) -> None:
    broker = columns.broker
    broker.declare("q", QueueSettings())
    bodies = [b"%05d" % number + b"x" * (number % 300) for number in range(3000)]
    for start in range(0, 3000, 100):
        for body in bodies[start : start + 100]:
            broker.publish("q", Draft(body))
        broker.receive("q", 50, 60_000)
    for size in (2_000, 50_000, None):
        snapshot = columns.snapshot(Selection(columns=("body",)), max_bytes=size)
        assert size is None or len(snapshot.pieces) > 1
        assert [row["body"] for row in columns.rows(Selection(columns=("body",)), max_bytes=size)] == bodies
        events = columns.rows(Selection("events", columns=("event",), events=("deliver",)), max_bytes=size)
        assert len(events) == 1500


def test_sequences_may_have_gaps_of_a_million(columns: HistoryFixture) -> None:
    broker = columns.broker
    for queue in ("a", "b"):
        broker.declare(queue, QueueSettings())
    for _ in range(3):
        for queue in ("a", "b"):
            broker.publish(queue, Draft(queue.encode()))
            view = broker.get_queue(queue)
            used = broker.calls.call(view.key, "HGET", view.key, "seq")
            broker.calls.call(view.key, "HSET", view.key, "last", used)  # as if its block were used up
    seqs = [row["seq"] for row in columns.rows(Selection(queues=("a",)))]
    assert len(seqs) == 3
    assert seqs[2] - seqs[0] > 1 << 20
    assert len(columns.rows(Selection(), max_bytes=1000)) == 6


# -- followed by positions --------------------------------------------------------------------------


def test_the_end_is_behind_everything_however_much_came_at_once(columns: HistoryFixture) -> None:
    columns.broker.declare("crowd", QueueSettings())
    for count in range(1, 6):
        # One call is one millisecond, and some of these pass a multiple of 2048.
        columns.broker.publish_many("crowd", [Draft(b"x")] * 1_000)
        assert len(columns.rows(Selection())) == count * 1_000


def test_positions_follow_each_other(columns: HistoryFixture) -> None:
    assert time_of(position_of_message(1 << 40, 1_794_826_650_123)) == 1_794_826_650_123
    assert position_of_message(2047, 7) < position_of_event(7, 0) < position_of_event(7, 5)
    assert position_of_event(7, 10**6) < position_of_message(0, 8)
    assert position_of_event(1 << 41, 0) < 1 << 60  # as long as anybody cares


def test_who_follows_gets_every_row_once(columns: HistoryFixture, redis_server: Server) -> None:
    count, queues = 400, ("a", "b", "c")
    for queue in queues:
        columns.broker.declare(queue, QueueSettings())
    over = threading.Event()

    def publish(queue: str) -> None:
        with _columns(redis_server.url) as own:
            for number in range(count):
                own.broker.publish(queue, Draft(b"%s %d" % (queue.encode(), number)))
                if number % 10 == 0:
                    leased = own.broker.receive(queue, 5)
                    own.broker.ack(queue, [(each.entry.seq, each.number) for each in leased])

    threads = [threading.Thread(target=publish, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()

    def wait() -> None:
        for thread in threads:
            thread.join()
        over.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    bodies: list[bytes] = []
    acks: list[tuple[str, int]] = []
    position, batches, is_last = 0, 0, False
    while not is_last:
        is_last = over.is_set()
        end = columns.reach.now(settle=is_last)
        if end > position:
            span: dict[str, Any] = {"first_position": position, "end_position": end}
            bodies += [row["body"] for row in columns.rows(Selection(columns=("body",), **span))]
            asked = Selection("events", columns=("queue", "seq"), events=("ack",), **span)
            acks += [(row["queue"], row["seq"]) for row in columns.rows(asked)]
            position, batches = end, batches + 1
    waiter.join()
    assert batches > 1
    assert sorted(bodies) == sorted(b"%s %d" % (q.encode(), n) for q in queues for n in range(count))
    assert (
        len(acks) == len(set(acks)) == sum(columns.broker.stats(queue).counters["acked"] for queue in queues)
    )


def test_the_end_stands_still_while_nothing_happens(columns: HistoryFixture) -> None:
    columns.broker.declare("q", QueueSettings())
    columns.broker.publish("q", Draft(b"1"))
    end = columns.reach.now(settle=True)
    columns.broker.stats("q")

    assert time_of(columns.reach.now()) == time_of(end)
    assert columns.rows(Selection(first_position=end)) == []

    columns.broker.publish("q", Draft(b"2"))
    assert [row["body"] for row in columns.rows(Selection(first_position=end))] == [b"2"]


def test_what_comes_after_a_snapshot_is_not_in_it(columns: HistoryFixture) -> None:
    columns.broker.declare("q", QueueSettings())
    columns.broker.publish("q", Draft(b"before"))
    selection = Selection("events", columns=("event",))
    taken = columns.snapshot(selection)
    columns.broker.receive("q", 1)
    columns.broker.publish("q", Draft(b"after"))

    rows = _table(columns.history.read_many(taken.pieces, selection), selection).to_pylist()

    assert rows == [{"event": "publish"}]


# -- what is gone ---------------------------------------------------------------------------------


def _drop_history(columns: HistoryFixture) -> None:
    """As a queue does that publishes on, until its first messages are beyond the limit."""
    broker = columns.broker
    key = broker.get_queue("q").key[:-1] + b"m"
    while broker.calls.call(key, "XRANGE", key, "-", "+", "COUNT", 1)[0][1][1][2:] == b"0":
        for number in range(64):
            broker.publish("q", Draft(b"later %d" % number))
        leased = broker.receive("q", 1000)
        broker.ack("q", [(each.entry.seq, each.number) for each in leased])


def test_rows_that_were_dropped_are_a_gap_for_who_was_not_done(redis_server: Server) -> None:
    with _columns(redis_server.url + "?history=100") as columns:
        broker = columns.broker
        broker.declare("q", QueueSettings())
        start = columns.reach.now() or 1
        for number in range(10):
            broker.publish("q", Draft(b"%d" % number))
        leased = broker.receive("q", 10)
        broker.ack("q", [(each.entry.seq, each.number) for each in leased])
        middle = columns.reach.now(settle=True)
        planned = columns.snapshot(Selection())
        assert planned.gap is None
        assert columns.snapshot(Selection(first_position=start)).gap is None
        _drop_history(columns)

        gap = columns.snapshot(Selection(first_position=start)).gap
        assert gap is not None
        assert gap[0] == start
        assert gap[1] > middle
        # Who names no beginning takes what there is.
        assert columns.snapshot(Selection()).gap is None
        oldest = columns.snapshot(Selection()).oldest_position
        assert oldest == gap[1]
        assert columns.snapshot(Selection(first_position=oldest)).gap is None
        with pytest.raises(HistoryUnavailable, match="dropped before they could be read"):
            list(columns.history.read_many(planned.pieces, Selection()))


def test_a_queue_that_is_deleted_takes_its_history_along(columns: HistoryFixture) -> None:
    columns.broker.declare("q", QueueSettings())
    columns.broker.declare("none", QueueSettings(history_ms=0))
    columns.broker.publish("q", Draft(b"1"))
    columns.broker.publish("none", Draft(b"2"))
    taken = columns.snapshot(Selection())
    assert len(taken.pieces) == 1
    columns.broker.delete("q")

    with pytest.raises(HistoryUnavailable, match="deleted"):
        list(columns.history.read_many(taken.pieces, Selection()))
    assert columns.rows(Selection()) == []


def test_a_piece_that_somebody_made_up_is_refused(columns: HistoryFixture) -> None:
    columns.broker.declare("q", QueueSettings())
    columns.broker.publish("q", Draft(b"1"))
    [piece] = columns.snapshot(Selection()).pieces
    given = piece.to_json()
    assert ScanPiece.from_json(given) == piece
    for wrong in ("messages/1/x/1-0/2.parquet", "messages/dt=1/1.parquet", "messages/1/m/9-0/2.parquet"):
        with pytest.raises(InvalidSetting, match="no piece of the history"):
            list(columns.history.read(ScanPiece.from_json({**given, "path": wrong}), Selection()))
    with pytest.raises(InvalidSetting, match="another store"):
        list(columns.history.read(ScanPiece.from_json({**given, "journal": "another"}), Selection()))
    with pytest.raises(HistoryUnavailable, match="no archive"):
        columns.snapshot(Selection(), as_of=3)


# -- by the protocol ----------------------------------------------------------------------------------


@contextmanager
def _served(server: Server, *flags: str) -> Iterator[Served]:
    made = Served(["--store", server.url, "--profile", "fast", *flags], free_port())
    try:
        yield made.wait()
    finally:
        made.stop()


@pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)
def test_a_server_returns_the_rows_to_any_reader(redis_server: Server) -> None:
    with _served(redis_server) as served, _columns(redis_server.url) as columns:
        columns.broker.declare("q", QueueSettings())
        for number in range(500):
            columns.broker.publish("q", Draft(b"%d" % number, attributes={"n": number}))
        leased = columns.broker.receive("q", 100)
        columns.broker.ack("q", [(each.entry.seq, each.number) for each in leased])
        far = RemoteHistory(served.url)
        for selection in (Selection(), Selection("events"), Selection(columns=("seq", "size"), ids=("x",))):
            pieces = far.snapshot(selection, max_bytes=30_000).pieces
            assert _table(far.read_many(pieces, selection), selection).equals(columns.table(selection))
        end = far.end_position()
        assert far.end_position(after=end, wait_s=0.05) == end
        threading.Timer(0.1, columns.broker.publish, ("q", Draft(b"new"))).start()
        later = end
        while later == end:
            later = far.end_position(after=end, wait_s=20)
        fresh = Selection(columns=("body",), first_position=end)
        assert [batch.to_pylist() for batch in far.read_many(far.snapshot(fresh).pieces, fresh)] == [
            [{"body": b"new"}]
        ]
        with pytest.raises(HistoryUnavailable, match="no archive"):
            far.snapshot(Selection(), as_of=5)
        far.link.close()


def test_who_may_not_look_into_a_queue_learns_nothing_of_it(columns: HistoryFixture) -> None:
    for queue in ("open", "secret"):
        columns.broker.declare(queue, QueueSettings())
        columns.broker.publish(queue, Draft(queue.encode()))
    [ours, theirs] = socket.socketpair()
    asked: list[str] = []

    def answer() -> None:
        """As the server does, for somebody who may see one queue."""
        channel = WorkerChannel(ours)
        while (said := channel.receive()) is not None:
            if "ask" in said:
                asked.extend(said["ask"])
                channel.send({"allowed": [name for name in said["ask"] if name == "open"]})
            else:
                assert "done" in said, said

    server = threading.Thread(target=answer)
    server.start()
    try:
        reader = StreamHistoryReader(WorkerChannel(theirs))
        address = asdict(columns.broker.address)
        end = columns.reach.now(settle=True)
        task = {"address": address, "selection": {}, "end": end, "data": "", "archive": ""}
        whole = columns.snapshot(Selection())
        with tempfile.TemporaryFile() as out:
            reader._snapshot({**task, "as_of": None, "max_bytes": 1 << 20}, out.fileno())
            out.seek(0)
            shown = Snapshot.from_json(json.loads(out.read()))
        assert (len(whole.pieces), len(shown.pieces)) == (2, 1)
        rows = []
        for piece in whole.pieces:
            with tempfile.TemporaryFile() as out:
                reader._rows({**task, "piece": piece.to_json(), "compression": None}, out.fileno())
                out.seek(0)
                rows += pa.ipc.open_stream(out.read()).read_all().column("body").to_pylist()
        assert rows == [b"open"]
        assert set(asked) == {"open", "secret"}
        for history in reader._histories.values():
            history.close()
    finally:
        theirs.close()
        server.join()
        ours.close()


def test_a_cluster_has_one_history_too() -> None:
    with cluster(3, 0) as nodes, _columns(nodes.url) as columns:
        queues = [f"queue-{number}" for number in range(6)]
        for queue in queues:
            columns.broker.declare(
                queue, QueueSettings(dead_letter=None if queue == queues[0] else queues[0])
            )
        position, seen = 0, []
        for turn in range(5):
            for queue in queues:
                columns.broker.publish(queue, Draft(f"{queue} {turn}".encode()))
            end = columns.reach.now(settle=True)
            span = Selection(columns=("body",), first_position=position, end_position=end)
            seen += [row["body"].decode() for row in columns.rows(span)]
            position = end
        assert sorted(seen) == sorted(f"{queue} {turn}" for queue in queues for turn in range(5))
        [delivery] = columns.broker.receive(queues[5], 1)
        columns.broker.reject(queues[5], [(delivery.entry.seq, delivery.number)], "no")
        [dead] = columns.rows(Selection("events", events=("dead_letter",)))
        assert (dead["queue"], dead["to_queue"], dead["error_text"]) == (queues[5], queues[0], "no")
        [letter] = columns.broker.receive(queues[0], 10)[5:]
        assert dead["to_seq"] == letter.entry.seq


def test_a_stream_follows_a_server_on_redis(redis_server: Server) -> None:
    url = redis_server.url + "?history=100"
    store = Served(["--store", url, "--profile", "fast"], free_port())
    try:
        store.wait()
        with _columns(url) as columns:
            broker = columns.broker
            broker.declare("q", QueueSettings())
            broker.declare("other", QueueSettings())
            for number in range(30):
                broker.publish("q", Draft(b"%d" % number))
                broker.publish("other", Draft(b"no"))
            options: dict[str, Any] = {"url": store.url, "queues": "q"}
            [first] = StreamRunner(**options, columns=["position", "seq", "ts", "body"]).run().batches
            bodies = [row["body"] for row in first]
            assert bodies == [b"%d" % number for number in range(30)]

            def read(**more: Any) -> list[bytes]:
                return [body for batch in StreamRunner(**options, **more).run().bodies() for body in batch]

            third = first[2]
            at = third["ts"].astimezone(UTC).isoformat()
            assert read(startingOffsets="latest") == []
            assert read(startingOffsets=f"seq:{third['seq']}") == bodies[2:]
            assert read(startingTimestamp=at) == [row["body"] for row in first if row["ts"] >= third["ts"]]
            limited = StreamRunner(**options, maxMessagesPerTrigger=8).run()
            assert [body for batch in limited.bodies() for body in batch] == bodies
            assert len(limited.bodies()) >= 4

            # Stopped for too long: what it has not read is dropped meanwhile.
            leased = broker.receive("q", 100)
            broker.ack("q", [(each.entry.seq, each.number) for each in leased])
            start = str(third["position"])
            _drop_history(columns)
            with pytest.raises(HistoryUnavailable, match="failOnDataLoss"):
                read(startingOffsets=start)
            left = read(startingOffsets=start, failOnDataLoss="false")
            assert left
            assert read() == left
    finally:
        store.stop()


def test_the_archive_job_says_what_it_needs(redis_server: Server) -> None:
    with _served(redis_server) as served, pytest.raises(InvalidSetting, match="data directory"):
        archive(None, url=served.url)


def test_spark_reads_a_server_on_redis(
    spark: SparkSession,
    redis_server: Server,
    tmp_path: Path,
) -> None:
    with _served(redis_server) as served, _columns(redis_server.url) as columns:
        broker = columns.broker
        for queue in ("orders", "mails"):
            broker.declare(queue, QueueSettings())
        for number in range(200):
            broker.publish("orders", Draft(b"%d" % number, attributes={"n": number}))
        middle = columns.rows(Selection(queues=("orders",)))[100]["ts"]
        for number in range(50):
            broker.publish("mails", Draft(b"mail %d" % number))
        leased = broker.receive("orders", 60, None, "worker")
        broker.ack("orders", [(each.entry.seq, each.number) for each in leased[:40]])
        for each in leased[40:]:
            broker.nack("orders", [(each.entry.seq, each.number)], 0, "ValueError: 7 is no amount")
        place = spark.read.format("openq").option("url", served.url)

        every = place.load()
        assert every.count() == 250
        assert every.where("queue = 'mails'").count() == 50
        orders = place.option("queues", "orders").load()
        assert {int(row["body"]) for row in orders.select("body").collect()} == set(range(200))
        since = place.option("queues", "orders").option("startingTimestamp", middle.isoformat()).load()
        assert since.count() == sum(
            row["ts"] >= middle for row in columns.rows(Selection(queues=("orders",)))
        )
        events = spark.read.format("openq").option("url", served.url).option("table", "events").load()
        counted = {row["event"]: row["count"] for row in events.groupBy("event").count().collect()}
        assert counted == {"publish": 250, "deliver": 60, "ack": 40, "nack": 20}

        def follow() -> list[str]:
            stream = (
                spark.readStream.format("openq").option("url", served.url).option("queues", "mails").load()
            )
            out = stream.selectExpr("CAST(body AS STRING) AS text").writeStream.format("parquet")
            out = out.option("path", str(tmp_path / "out")).option(
                "checkpointLocation", str(tmp_path / "seen")
            )
            query = out.trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            return sorted(row["text"] for row in spark.read.parquet(str(tmp_path / "out")).collect())

        assert follow() == sorted(f"mail {number}" for number in range(50))
        for number in range(50, 80):
            broker.publish("mails", Draft(b"mail %d" % number))
        assert follow() == sorted(f"mail {number}" for number in range(80))

        export(spark, "orders", tmp_path / "exported", url=served.url)
        assert spark.read.parquet(str(tmp_path / "exported")).count() == 200
        results = analytics(spark, url=served.url, window="1h", out=tmp_path / "figures")
        windows = results.table("windows").to_pylist()
        for name, count in (("published", 280), ("delivered", 60), ("acked", 40), ("retried", 20)):
            assert sum(row[name] for row in windows) == count, name
        broker.publish("mails", Draft(b"one more"))
        again = analytics(spark, url=served.url, window="1h", out=tmp_path / "figures")
        assert sum(row["published"] for row in again.table("windows").to_pylist()) == 281
