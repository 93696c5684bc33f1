"""What AMQP promised holds after kill -9: confirms, commits, and the order of a queue."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.amqp.dialogue import ConnectionEnded
from tests.amqp.raw_client import RawClient, method, publish
from tests.serving import served_amqp
from tests.waiting import until


def confirmed_until_killed(talk: RawClient, queue: str, at_least: int, enough: threading.Event) -> int:
    """Publishes one after the other, ten on their way at a time. How many were confirmed."""
    sent = confirmed = 0
    talk.send(b"".join(publish(1, queue, b"%d" % n) for n in range(10)))
    sent = 10
    try:
        while True:
            for answer in talk.next():
                assert answer[1] == "basic.ack"
                done = answer[2]["delivery_tag"] - confirmed
                confirmed += done
                talk.send(b"".join(publish(1, queue, b"%d" % n) for n in range(sent, sent + done)))
                sent += done
            if confirmed >= at_least:
                enough.set()
    except ConnectionEnded:
        return confirmed


def taken(talk: RawClient, queue: str, count: int) -> list[int]:
    talk.send(method(1, "basic.consume", queue=queue, no_ack=True))
    return [int(each[4]) for each in talk.receive_methods("basic.deliver", count)]


def test_what_was_confirmed_is_there_in_order_after_a_kill(tmp_path: Path) -> None:
    enough = threading.Event()
    counts: list[int] = []
    with served_amqp(tmp_path / "d") as (server, port), RawClient(port).confirming() as talk:
        talk.declare("q")
        publishing = threading.Thread(
            target=lambda: counts.append(confirmed_until_killed(talk, "q", 300, enough))
        )
        publishing.start()
        assert enough.wait(60)
        server.kill()
        publishing.join()

    with served_amqp(tmp_path / "d") as (_, port), RawClient(port) as talk:
        left = talk.declare("q")
        seen = taken(talk, "q", left)

    assert counts[0] >= 300
    assert seen == list(range(left))
    assert left >= counts[0]


def test_acks_that_an_answer_followed_hold_and_open_deliveries_return_in_order(tmp_path: Path) -> None:
    with served_amqp(tmp_path / "d") as (server, port), RawClient(port).confirming() as talk:
        talk.declare("q")
        talk.publish_all("q", [b"%d" % n for n in range(100)])
        with RawClient(port) as consumer:
            consumer.call("basic.qos", prefetch_count=60)
            consumer.send(method(1, "basic.consume", queue="q"))
            tags = [each[2]["delivery_tag"] for each in consumer.receive_methods("basic.deliver", 60)]
            acked = tags[:40:2]
            consumer.send(b"".join(method(1, "basic.ack", delivery_tag=tag) for tag in acked))
            consumer.declare("q")  # its answer covers what came before it
            server.kill()

    with served_amqp(tmp_path / "d") as (_, port), RawClient(port) as talk:
        until(lambda: talk.declare("q") == 80)
        talk.send(method(1, "basic.consume", queue="q"))
        again = talk.receive_methods("basic.deliver", 80)

    assert [int(each[4]) for each in again] == [n for n in range(100) if n + 1 not in acked]
    redelivered = [each[2]["redelivered"] for each in again]
    assert redelivered[:40] == [True] * 40
    assert redelivered[60:] == [False] * 20  # those between went out last: that may not be known any more


def test_a_transaction_is_there_as_a_whole_once_it_was_committed_and_else_not_at_all(tmp_path: Path) -> None:
    with served_amqp(tmp_path / "d") as (server, port), RawClient(port) as talk:
        for queue in ("work", "done"):
            talk.declare(queue)
        talk.call("tx.select")
        talk.send(publish(1, "work", b"1") + publish(1, "work", b"2"))
        talk.call("tx.commit")
        for result in (b"committed", b"open"):
            got = talk.call("basic.get", "basic.get-ok", queue="work")
            talk.send(method(1, "basic.ack", delivery_tag=got[2]["delivery_tag"]))
            talk.send(publish(1, "done", result))
            if result == b"committed":
                talk.call("tx.commit")
        talk.declare("work")  # read, and not committed
        server.kill()

    with served_amqp(tmp_path / "d") as (_, port), RawClient(port) as talk:
        until(lambda: talk.declare("work") == 1)
        assert talk.call("basic.get", "basic.get-ok", queue="work")[4] == "2"
        assert talk.call("basic.get", "basic.get-ok", queue="done")[4] == "committed"
        assert talk.declare("done") == 0
