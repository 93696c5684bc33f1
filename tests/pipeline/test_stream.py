"""Streams over the journal: where they begin, how batches are cut, and what happens when history is gone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from openq.errors import HistoryUnavailable, InvalidSetting
from openq.history.local import LocalHistory
from openq.history.selection import Selection
from openq.local.broker import LocalBroker
from openq.pipeline.archive import archive
from openq.pipeline.link import Link
from tests.pipeline.stream_runner import StreamRunner, stopped  # noqa: F401
from tests.serving import served
from tests.waiting import until


def flat(player: StreamRunner) -> list[bytes]:
    return [body for bodies in player.bodies() for body in bodies]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


class Journal:
    """A data directory with somebody who writes to it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.broker = LocalBroker(path, **settings)

    def is_freed(self) -> bool:
        """Housekeeping frees a segment once another thread has indexed it: it is woken until then."""
        assert self.broker.housekeeper is not None
        self.broker.housekeeper.wake()
        return _oldest(self.path) > 1

    def publish(self, *bodies: bytes, queue: str = "a") -> None:
        """Each of them a record of its own."""
        with OpenQ(queue, broker=self.broker, codec="raw") as opened:
            for body in bodies:
                opened.publish(body)

    def publish_many(self, *bodies: bytes, queue: str = "a") -> None:
        """All of them in as few records as it takes."""
        with OpenQ(queue, broker=self.broker, codec="raw") as opened:
            opened.publish_many(list(bodies))


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    made = Journal(tmp_path / "data")
    yield made
    made.broker.close()


def test_a_stream_begins_at_its_starting_offsets(journal: Journal) -> None:
    journal.publish(*numbered(5))
    [first] = StreamRunner(path=journal.path, columns=["position", "seq", "ts", "body"]).run().batches
    third = first[2]
    journal.publish(*numbered(5, 5))

    def read(starting: str | None = None, **options: object) -> list[bytes]:
        given = {} if starting is None else {"startingOffsets": starting}
        return flat(StreamRunner(path=journal.path, **given, **options).run())

    assert read() == read("earliest") == numbered(10)
    assert read("latest") == []
    assert read(str(third["position"])) == numbered(8, 2)
    assert read(json.dumps({"position": third["position"]})) == numbered(8, 2)
    assert read(f"seq:{third['seq']}") == numbered(8, 2)
    at = third["ts"].astimezone(UTC).isoformat()
    since = [row["body"] for row in first if row["ts"] >= third["ts"]] + numbered(5, 5)
    assert read(at) == read(startingTimestamp=at) == since
    assert read(datetime.now(UTC).replace(year=2099).isoformat()) == []


@pytest.mark.parametrize("word", ["soon", "seq:x", '{"batch": 1}', "-1"])
def test_an_invalid_start_is_refused(journal: Journal, word: str) -> None:
    journal.publish(b"x")

    with pytest.raises(InvalidSetting, match=r"startingOffsets|checkpoint"):
        StreamRunner(path=journal.path, startingOffsets=word).run()


def test_a_batch_has_at_most_so_many_messages(journal: Journal) -> None:
    journal.publish(*numbered(10))
    journal.publish_many(*numbered(2000, 10))
    journal.publish(*numbered(3, 2010))

    player = StreamRunner(path=journal.path, maxMessagesPerTrigger=400).run()

    assert [len(bodies) for bodies in player.bodies()] == [400] * 5 + [13]
    assert flat(player) == numbered(2013)


def test_a_batch_has_at_most_so_many_bytes(journal: Journal) -> None:
    journal.publish(*[b"x" * 100] * 10, b"y" * 1000, *[b"z" * 100] * 2)

    player = StreamRunner(path=journal.path, maxBytesPerTrigger=350).run()

    assert [len(bodies) for bodies in player.bodies()] == [3, 3, 3, 1, 1, 2]


@pytest.mark.parametrize("way", ["path", "url"])
def test_limits_hold_in_files_of_the_archive_and_across_their_end(tmp_path: Path, way: str) -> None:
    path = tmp_path / "data"
    journal = Journal(path)
    try:
        # In a file rows are sorted by queue, in a stream they come as they were published.
        for n in range(30):
            journal.publish(b"%d" % n, queue="cab"[n % 3])
        archive(None, path=str(path), include_open=True)
        journal.publish(*numbered(10, 30))
    finally:
        journal.broker.close()
    kinds = {piece.kind for piece in LocalHistory(path).snapshot(Selection()).pieces}

    with served(path) as server:
        place = {"url": server.url} if way == "url" else {"path": path}
        player = StreamRunner(**place, maxMessagesPerTrigger=8).run()

    assert kinds == {"file", "segment"}
    assert [sorted(map(int, bodies)) for bodies in player.bodies()] == [
        list(range(first, first + 8)) for first in range(0, 40, 8)
    ]


def test_available_now_reads_what_existed_at_the_start(journal: Journal) -> None:
    journal.publish(*numbered(3))
    player = StreamRunner(path=journal.path, maxMessagesPerTrigger=2).start()
    journal.publish(*numbered(3, 3))

    while player.step():
        pass

    assert flat(player) == numbered(3)
    assert flat(player.run()) == numbered(6)


def test_other_queues_cause_no_batches(journal: Journal) -> None:
    journal.publish(b"1")
    player = StreamRunner(path=journal.path, queues="a").start(available_now=False)
    assert player.step()

    journal.publish(*[b"x"] * 20, queue="b")
    until(lambda: player.reader.reportLatestOffset() != player.planned[-1])
    assert not player.step()
    journal.publish(b"2")
    until(player.step)

    assert player.bodies() == [[b"1"], [b"2"]]


def test_a_stream_waits_for_enough_messages_up_to_a_limit(journal: Journal) -> None:
    journal.publish(b"1")
    player = StreamRunner(path=journal.path, minMessagesPerTrigger=3, maxTriggerDelay="1h")
    player.start(available_now=False)

    assert not player.step()
    journal.publish(b"2", b"3")
    until(player.step)
    assert player.bodies() == [[b"1", b"2", b"3"]]

    journal.publish(b"4")
    impatient = StreamRunner(path=journal.path, minMessagesPerTrigger=30, maxTriggerDelay="10ms")
    impatient.start(available_now=False)
    until(impatient.step)
    assert flat(impatient) == numbered(4, 1)


def test_an_uncommitted_batch_is_read_again_unchanged(journal: Journal) -> None:
    journal.publish(*numbered(3))
    player = StreamRunner(path=journal.path).start()
    assert player.step(commits=False)
    before = player.bodies()
    journal.publish(*numbered(3, 3))

    player.start()

    assert player.bodies() == before == [numbered(3)]
    assert flat(player.run()) == numbered(6)


def test_events_are_a_stream_too(journal: Journal) -> None:
    journal.publish(b"x", b"y")
    with OpenQ("a", broker=journal.broker, codec="raw") as queue:
        queue.ack(queue.receive())

    player = StreamRunner("events", path=journal.path, events="publish,ack").run()

    assert [row["event"] for row in player.batches[0]] == ["publish", "publish", "ack"]


def test_dropped_history_is_an_error_or_skipped_by_option(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "data", segment_bytes=1 << 16, history_bytes=1 << 17)
    try:
        journal.publish(b"first")
        player = StreamRunner(
            path=journal.path, startingOffsets="earliest", columns=["position", "body"]
        ).run()
        lenient = StreamRunner(path=journal.path, failOnDataLoss="false", columns=["position", "body"])
        lenient.planned, lenient.committed, lenient.batches = (
            list(player.planned),
            player.committed,
            list(player.batches),
        )
        with OpenQ("a", broker=journal.broker, codec="raw") as queue:
            for n in range(12):
                queue.publish(b"%d" % n * 20_000)
                queue.purge()
        # A segment may be freed while it is looked at.
        until(journal.is_freed, ignoring=(HistoryUnavailable,))
        journal.publish(b"last")

        with pytest.raises(HistoryUnavailable, match=r"positions \d+ to \d+ .*failOnDataLoss"):
            player.run()
        assert flat(lenient.run())[-1] == b"last"
    finally:
        journal.broker.close()


def _oldest(path: Path) -> int:
    from openq.history.journal import JournalFiles

    return JournalFiles(path).segments()[0].number


def test_over_http_a_stream_is_the_same_and_its_cursor_follows(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        with OpenQ("a", url=server.url, codec="raw") as queue:
            for body in numbered(10):
                queue.publish(body)
        player = StreamRunner(url=server.url, maxMessagesPerTrigger=4, cursor="reader", holdTime="1h").run()

        assert [len(bodies) for bodies in player.bodies()] == [4, 4, 2]
        assert flat(player) == numbered(10)
        link = Link(server.url)
        [cursor] = link.call("GET", "pipeline/cursors").json()["cursors"]
        link.close()
        assert (cursor["name"], cursor["position"]) == ("reader", player.planned[-1]["position"])
        assert cursor["hold_s"] == 3600

        player.start(available_now=False)
        assert not player.step()
        with OpenQ("a", url=server.url, codec="raw") as queue:
            queue.publish(b"10")
        until(player.step)
        player.stop()
        assert flat(player) == numbered(11)


def test_a_checkpoint_of_another_kind_is_refused(journal: Journal) -> None:
    journal.publish(b"x")
    player = StreamRunner(path=journal.path)
    player.planned = [{"batch": 1, "subscription": "s"}]

    with pytest.raises(InvalidSetting, match="checkpoint of its own"):
        player.run()


def test_a_checkpoint_of_another_journal_is_refused(journal: Journal, tmp_path: Path) -> None:
    journal.publish(b"x")
    player = StreamRunner(path=journal.path).run()
    assert flat(player) == [b"x"]
    with served(tmp_path / "other") as server:
        with OpenQ("a", url=server.url, codec="raw") as queue:
            queue.publish(b"y")
        other = StreamRunner(url=server.url)
        other.planned, other.committed = player.planned, player.committed
        with pytest.raises(InvalidSetting, match="another journal or store"):
            other.run()
        # One from before it was written down is believed.
        other.planned = [{"position": 0}]
        other.committed = 0
        assert flat(other.run()) == [b"y"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "q"}, "queues"),
        ({"cursor": "c"}, "url"),
        ({"startingOffsets": "latest", "startingTimestamp": "2024-01-01T00:00:00Z"}, "not both"),
        ({"mode": "consume"}, "server"),
        ({"mode": "consume", "url": "http://127.0.0.1:1", "queue": "q"}, "subscription"),
        ({"mode": "consume", "url": "http://127.0.0.1:1", "queues": "q"}, "queue"),
        ({"mode": "consume", "url": "http://127.0.0.1:1", "startingOffsets": "latest"}, "startingOffsets"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    journal: Journal, options: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidSetting, match=says):
        StreamRunner(path=journal.path, **options).run()
