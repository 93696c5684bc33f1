"""Queues worked off by a stream: every message in one batch, acked when that is done, and not before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.client.http import Refused
from openq.errors import InvalidSetting, OpenQError
from openq.pipeline.closer import close_stream, committed_offsets, offsets_in
from openq.pipeline.link import Link
from tests.pipeline.stream_runner import StreamRunner, stopped  # noqa: F401
from tests.serving import Served, served
from tests.waiting import until


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def publish(server: Served, bodies: list[bytes], queue: str = "a", **settings: Any) -> None:
    with OpenQ(queue, url=server.url, codec="raw", **settings) as opened:
        opened.publish_many(bodies)


def consumer(server: Served, subscription: str = "s", **options: object) -> StreamRunner:
    given = {"mode": "consume", "queue": "a", "maxMessagesPerTrigger": 4, **options}
    return StreamRunner(url=server.url, subscription=subscription, **given)


def call(server: Served, method: str, path: str, **said: Any) -> Any:
    link = Link(server.url)
    try:
        return link.call(method, path, **said).json()
    finally:
        link.close()


def counts(server: Served) -> tuple[int, int]:
    stats = call(server, "GET", "queues/a/stats")
    return stats["ready"], stats["in_flight"]


def flat(player: StreamRunner) -> list[bytes]:
    return [body for bodies in player.bodies() for body in bodies]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "data") as started:
        yield started


def test_a_run_consumes_all_ready_messages_in_batches(server: Served) -> None:
    publish(server, numbered(10))

    player = consumer(server).run()

    assert player.bodies() == [numbered(4), numbered(4, 4), numbered(2, 8)]
    assert counts(server) == (0, 0)  # the last batch too, although Spark never commits it to a source
    publish(server, numbered(3, 10))
    assert flat(player.run()) == numbered(13)
    assert counts(server) == (0, 0)


def test_rows_equal_those_of_the_history(server: Served) -> None:
    with OpenQ("a", url=server.url, codec="raw") as queue:
        message_id = queue.publish(b"x", message_type="order", priority=3, attributes={"shop": "north"})

    [[row]] = consumer(server).run().batches

    assert (row["message_id"], row["queue"], row["type"], row["priority"]) == (message_id, "a", "order", 3)
    assert dict(row["attributes"])["shop"]["string"] == "north"
    assert (row["size"], row["body"], row["position"]) == (1, b"x", None)
    [seen] = StreamRunner(url=server.url, queues="a").run().batches
    same = (
        "seq",
        "ts",
        "queue",
        "message_id",
        "type",
        "priority",
        "attributes",
        "size",
        "body_sha256",
        "body",
    )
    assert {name: row[name] for name in same} == {name: seen[0][name] for name in same}


def test_nothing_is_acked_before_its_batch_is_committed(server: Served) -> None:
    publish(server, numbered(6))
    player = consumer(server).start()
    assert player.step()
    assert counts(server) == (2, 4)

    assert player.step()  # the first one is committed by now, the second is not known to be

    assert counts(server) == (0, 2)


def test_an_uncommitted_batch_is_read_again_unchanged(server: Served) -> None:
    publish(server, numbered(6))
    player = consumer(server).start()
    assert player.step(commits=False)
    publish(server, numbered(3, 6))

    again = player.run()

    assert again.bodies() == [numbered(4), numbered(4, 4), numbered(1, 8)]
    assert counts(server) == (0, 0)


def test_batches_survive_a_killed_server(tmp_path: Path) -> None:
    with served(tmp_path / "data") as first:
        publish(first, numbered(6))
        player = consumer(first).start()
        assert player.step(commits=False)
        first.kill()
        with served(tmp_path / "data", port=first.port) as second:
            player.run()
            assert player.bodies() == [numbered(4), numbered(2, 4)]
            assert counts(second) == (0, 0)


def test_only_the_latest_run_may_ack(server: Served) -> None:
    publish(server, numbered(6))
    earlier = consumer(server).start()
    assert earlier.step()
    later = consumer(server)
    later.planned, later.committed, later.batches = list(earlier.planned), 1, list(earlier.batches)
    later.run()

    with pytest.raises(Refused, match="taken over"):
        earlier.step()

    assert flat(later) == numbered(6)
    assert counts(server) == (0, 0)


def test_a_new_checkpoint_takes_over_open_batches(server: Served) -> None:
    publish(server, numbered(6))
    assert consumer(server).start().step()

    player = consumer(server).run()

    assert player.bodies() == [numbered(4), numbered(2, 4)]


def test_batch_numbers_are_not_reused(server: Served) -> None:
    publish(server, numbered(2))
    first = consumer(server).run()
    publish(server, numbered(2, 2))
    second = consumer(server).start()
    assert second.step()

    # An ack for the first checkpoint must not settle the batch of the second.
    call(server, "POST", "pipeline/subscriptions/s/ack", json={"through": first.planned[-1]["batch"]})

    assert counts(server) == (0, 2)


def test_a_batch_whose_lease_ended_becomes_another_batch(server: Served) -> None:
    publish(server, numbered(3))
    player = consumer(server).start()
    assert player.step(commits=False)
    player.stop()
    call(server, "DELETE", "pipeline/subscriptions/s")  # as the end of the lease does

    player.run()

    assert player.bodies() == [[], numbered(3)]
    assert counts(server) == (0, 0)


def test_later_messages_are_long_polled(server: Served) -> None:
    publish(server, numbered(1))
    player = consumer(server).start(available_now=False)
    assert player.step()
    assert not player.step()

    publish(server, numbered(1, 1))
    until(player.step)

    assert player.bodies() == [[b"0"], [b"1"]]
    assert not player.step()
    assert counts(server) == (0, 0)


def test_leases_are_extended_while_a_batch_is_processed(server: Served) -> None:
    publish(server, numbered(2))
    player = consumer(server, leaseTimeout="5s").start()
    assert player.step()

    def lease_until() -> str:
        [shown] = call(server, "GET", "pipeline/subscriptions")["subscriptions"]
        return str(shown["batches"][0]["lease_until"])

    first = lease_until()
    until(lambda: lease_until() > first)


def test_a_large_batch_is_read_by_several_tasks(server: Served) -> None:
    publish(server, [b"%d" % n + b"." * 50_000 for n in range(400)])
    player = consumer(server, maxMessagesPerTrigger=1000).start()

    end = player.reader.latestOffset(player.planned[-1], player.reader.getDefaultReadLimit())
    shares = player.reader.partitions(player.planned[-1], end)
    sizes = [sum(batch.num_rows for batch in player.reader.read(share)) for share in shares]

    assert len(shares) == 3
    assert sum(sizes) == 400
    assert min(sizes) > 100


def test_the_last_batch_can_be_closed_from_the_checkpoint(server: Served, tmp_path: Path) -> None:
    publish(server, numbered(3))
    player = consumer(server).start()
    assert player.step()
    assert counts(server) == (0, 3)
    checkpoint = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    offset = json.dumps(player.planned[-1])
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n-\n{offset}")

    assert close_stream(checkpoint, server.url) == {}  # planned, not committed
    assert counts(server) == (0, 3)
    (checkpoint / "commits" / "0").write_text("v1\n{}")

    assert close_stream(checkpoint, server.url) == {"s": player.planned[-1]["batch"]}
    assert counts(server) == (0, 0)
    assert close_stream(checkpoint, server.url) == {"s": player.planned[-1]["batch"]}


def test_offsets_of_other_sources_are_left_alone() -> None:
    texts = ["{}", "-", "7", '{"position": 4}', '{"batch": 3, "subscription": "s"}', '{"s": [1]}', None]

    assert offsets_in(texts) == {"s": 3}


def test_an_invalid_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="not a checkpoint"):
        committed_offsets(str(tmp_path))
    with pytest.raises(InvalidSetting, match="s3a://"):
        committed_offsets("s3a://bucket/checkpoint")


def test_a_checkpoint_of_another_subscription_is_refused(server: Served) -> None:
    publish(server, numbered(1))
    player = consumer(server)
    player.planned = [{"batch": 1, "subscription": "other"}]

    with pytest.raises(InvalidSetting, match="belongs to subscription 'other'"):
        player.run()


def test_a_token_for_one_queue_consumes_that_one_and_no_other(tmp_path: Path) -> None:
    with served(tmp_path / "data") as before:
        publish(before, numbered(6))
        publish(before, numbered(3), queue="b")
    users = UserStore(tmp_path / "data" / "users.json")
    users.add_user("worker", rules=[Rule("allow", frozenset({"receive"}), "a")])
    token, old = users.create_token("worker", "good"), users.create_token("worker", "old", expires_s=1)
    with served(tmp_path / "data") as server:
        player = consumer(server, token=token).run()
        with pytest.raises(OpenQError, match="may not"):
            consumer(server, "other", token=token, queue="b").run()
        with pytest.raises(OpenQError, match=r"[Tt]oken"):
            consumer(server, "late", token=old).run()

    assert player.bodies() == [numbered(4), numbered(2, 4)]


def test_an_unknown_queue_is_refused(server: Served) -> None:
    with pytest.raises(Refused, match="does not exist"):
        consumer(server, queue="nowhere").run()
