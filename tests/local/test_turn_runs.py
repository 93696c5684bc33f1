"""Publishes and acks of one turn of the loop: one record for all, a result for each."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from openq.engine.records import ACK, PUBLISH, RUN, Record
from openq.errors import JournalFailed, MessageNotFoundError, QueueNotFound
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from openq.local.commits import CommitNotifier
from openq.local.turn_runs import MAX_BODY, MAX_RUN
from openq.model import ENCODING_BYTES, ENCODING_TEXT, Properties, QueueSettings


class Disk(DiskIo):
    def __init__(self) -> None:
        self.is_broken = False
        self.threads: list[str] = []

    def fdatasync(self, fd: int) -> None:
        self.threads.append(threading.current_thread().name)
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


class Callers:
    """Callers on a loop of this thread, their results by number, and the records that they cause."""

    def __init__(self, path: Path) -> None:
        self.disk = Disk()
        self.broker = LocalBroker(journal=Journal(path, io=self.disk))
        self.loop = asyncio.new_event_loop()
        self.notifier = CommitNotifier(self.broker, self.loop)
        self.broker.declare("busy", QueueSettings())
        self.busy = self.broker.engine.queue("busy").number
        self.broker.declare("q", QueueSettings())
        self.broker.sync()
        self.results: dict[int, tuple[int, Exception | None]] = {}
        self.records: list[Record] = []
        log = self.broker.engine.log
        assert log is not None

        def listing(record: Record) -> int | None:
            if record[2] != self.busy:
                self.records.append(record)
            return log(record)

        self.broker.engine.log = listing

    def wait_for_disk(self) -> None:
        """A caller that is first in its turn, and that the others find waiting."""
        self.broker.publish_body("busy", b"x", ENCODING_TEXT)
        self.notifier.after_commit(lambda error: None)

    def in_one_turn(self, *calls: Callable[[], object], results: int) -> None:
        """Make the calls in one turn, and wait for this number of results."""

        def turn() -> None:
            self.wait_for_disk()
            for call in calls:
                call()

        async def wait() -> None:
            while len(self.results) < results:
                await asyncio.sleep(0.001)

        self.loop.call_soon(turn)
        self.loop.run_until_complete(asyncio.wait_for(wait(), 60))

    def publish(
        self,
        number: int,
        queue: str = "q",
        encoding: int = ENCODING_TEXT,
        properties: Properties | None = None,
        body: bytes | None = None,
    ) -> bool:
        def then(seq: int, error: Exception | None) -> None:
            journal, found = self.broker.journal, self.broker.find_queue(queue)
            assert journal is not None
            if seq:
                assert found is not None
                entry = found.find(seq)
                assert entry is not None
                assert entry.location < journal.durable_location
            self.results[number] = seq, error

        data = b"%d" % number if body is None else body
        return self.notifier.publish_later(queue, data, encoding, properties, then)

    def ack(self, number: int, receipt: tuple[int, int]) -> None:
        def then(error: Exception | None) -> None:
            self.results[number] = 0, error

        self.notifier.ack_later("q", receipt, int, then)

    def bodies(self, queue: str = "q") -> dict[int, bytes | None]:
        deliveries = self.broker.load(self.broker.receive(queue, 2 * MAX_RUN))
        return {each.entry.seq: each.entry.body for each in deliveries}

    def kinds(self) -> list[int]:
        return [record[0] for record in self.records]

    def close(self) -> None:
        self.broker.close()
        self.loop.close()


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[Callers]:
    with closing(Callers(tmp_path / "data")) as callers:
        yield callers


def test_publishes_of_a_turn_are_one_record_and_each_caller_has_its_own_message(callers: Callers) -> None:
    calls = [partial(callers.publish, number) for number in range(32)]
    callers.in_one_turn(*calls, results=32)

    assert callers.kinds() == [RUN]
    bodies = callers.bodies()
    assert {number: bodies[seq] for number, (seq, _) in callers.results.items()} == {
        number: b"%d" % number for number in range(32)
    }


def test_a_caller_that_is_refused_may_publish_again_at_once(callers: Callers) -> None:
    """As the next request of a connection that sends several at once does."""

    def refused(error: Exception | None) -> None:
        callers.results[0] = 0, error
        assert callers.publish(1)

    callers.in_one_turn(
        lambda: callers.notifier.ack_later("q", (1 << 40, 1), int, refused),
        results=2,
    )

    assert isinstance(callers.results[0][1], MessageNotFoundError)
    assert callers.bodies() == {callers.results[1][0]: b"1"}


def test_a_publish_that_is_alone_in_its_turn_is_a_plain_record(callers: Callers) -> None:
    callers.in_one_turn(partial(callers.publish, 0), results=1)
    assert callers.kinds() == [PUBLISH]


def test_messages_of_different_queues_encodings_and_publishers_do_not_share_a_record(
    callers: Callers,
) -> None:
    callers.broker.declare("other", QueueSettings())
    callers.records.clear()
    ann = Properties({}, "ann")
    ways = [("q", ENCODING_TEXT, None), ("q", ENCODING_BYTES, None), ("other", ENCODING_TEXT, None)]
    ways.append(("q", ENCODING_TEXT, ann))
    calls = [
        partial(callers.publish, 10 * at + number, *way) for number in range(3) for at, way in enumerate(ways)
    ]
    callers.in_one_turn(*calls, results=12)

    assert callers.kinds() == [RUN] * 4
    deliveries = callers.broker.load(callers.broker.receive("q", 20))
    found = {each.entry.body: (each.entry.encoding, each.entry.properties) for each in deliveries}
    for number in range(3):
        assert found[b"%d" % number] == (ENCODING_TEXT, None)
        assert found[b"%d" % (10 + number)] == (ENCODING_BYTES, None)
        encoding, properties = found[b"%d" % (30 + number)]
        assert encoding == ENCODING_TEXT
        assert properties is not None
        assert properties.publisher == "ann"
    assert set(callers.bodies("other").values()) == {b"20", b"21", b"22"}


def test_more_messages_than_a_record_takes_become_several(callers: Callers) -> None:
    count = MAX_RUN + 2
    callers.in_one_turn(*[partial(callers.publish, number) for number in range(count)], results=count)

    assert callers.kinds() == [RUN, RUN]
    assert len({seq for seq, _ in callers.results.values()}) == count


def test_a_caller_that_nobody_waits_with_publishes_by_itself(callers: Callers) -> None:
    assert not callers.publish(0)
    assert not callers.notifier.ack_later("q", (1, 1), int, lambda error: None)


def test_large_bodies_and_queues_with_rules_are_left_to_the_caller(callers: Callers) -> None:
    callers.broker.declare("limited", QueueSettings(max_length=1))
    callers.wait_for_disk()
    assert not callers.publish(0, body=b"x" * (MAX_BODY + 1))
    assert not callers.publish(1, "limited")
    assert not callers.publish(2, "missing")


def test_a_queue_that_changes_in_the_turn_gives_its_callers_back(callers: Callers) -> None:
    limited = QueueSettings(max_length=1)
    calls = [partial(callers.publish, 0), partial(callers.publish, 1)]
    callers.in_one_turn(*calls, partial(callers.broker.declare, "q", limited, change=True), results=2)

    assert callers.results == {0: (0, None), 1: (0, None)}
    assert callers.bodies() == {}


def test_a_queue_that_is_deleted_in_the_turn_refuses_each_caller(callers: Callers) -> None:
    calls = [partial(callers.publish, 0), partial(callers.publish, 1)]
    callers.in_one_turn(*calls, partial(callers.broker.delete, "q"), results=2)

    errors = [error for _, error in callers.results.values()]
    assert [type(error) for error in errors] == [QueueNotFound, QueueNotFound]
    assert errors[0] is not errors[1]


def test_no_caller_is_told_of_a_message_that_the_disk_did_not_take(callers: Callers) -> None:
    callers.disk.is_broken = True
    callers.in_one_turn(*[partial(callers.publish, number) for number in range(3)], results=3)

    assert {seq for seq, _ in callers.results.values()} == {0}
    assert {type(error) for _, error in callers.results.values()} == {JournalFailed}


def test_several_callers_are_never_committed_by_the_loop(callers: Callers) -> None:
    callers.disk.threads.clear()
    for turn in range(12):
        calls = [partial(callers.publish, 2 * turn), partial(callers.publish, 2 * turn + 1)]
        callers.in_one_turn(*calls, results=2 * turn + 2)

    assert set(callers.disk.threads) == {"openq-writer"}


def test_acks_of_a_turn_are_one_record_and_a_late_one_has_its_own_error(callers: Callers) -> None:
    for number in range(3):
        callers.broker.publish_body("q", b"%d" % number, ENCODING_TEXT)
    receipts = [(each.entry.seq, each.number) for each in callers.broker.receive("q", 3)]
    callers.records.clear()
    late = (receipts[0][0], receipts[0][1] + 1000)
    calls = [partial(callers.ack, number, receipt) for number, receipt in enumerate([*receipts[:2], late])]
    again = partial(callers.ack, 3, receipts[1])
    callers.in_one_turn(*calls, again, results=4)

    assert callers.kinds() == [ACK]
    assert callers.records[0][4] == (receipts[0][0], receipts[1][0])
    assert [callers.results[number][1] for number in (0, 1)] == [None, None]
    assert callers.results[2][1] is not None
    assert isinstance(callers.results[3][1], MessageNotFoundError)
    assert callers.broker.stats("q").in_flight == 1


def test_acks_of_a_queue_that_is_gone_are_refused_one_by_one(callers: Callers) -> None:
    calls = [partial(callers.ack, number, (1, 1)) for number in range(2)]
    callers.in_one_turn(*calls, partial(callers.broker.delete, "q"), results=2)

    assert [type(callers.results[number][1]) for number in range(2)] == [QueueNotFound, QueueNotFound]
