"""What should not happen and does: forged receipts, emptied stores, races, errors in the middle."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from openq.broker.waiters import Waiter
from openq.engine.routing import Binding, Exchange
from openq.errors import InvalidSetting, QueueNotFound, StoreUnavailable
from openq.model import NO_DEADLINE, Delivery, Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server, single


def _open(server: Server, options: str = "") -> RedisBroker:
    return RedisBroker(f"{server.url}{options}", profile="fast")


def _bodies(deliveries: list[Delivery]) -> list[bytes | None]:
    return [each.entry.body for each in deliveries]


def test_a_forged_receipt_touches_nobody(redis_server: Server) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    broker.publish_bodies("q", [b"%d" % n for n in range(8)], 0)
    first = broker.receive("q", 4)
    second = broker.receive("q", 4)

    # Sequences of one delivery with the number of the other, which is a run of neighbours.
    forged = broker.ack("q", [(each.entry.seq, second[0].number) for each in first])

    assert None not in forged
    assert broker.ack("q", [(each.entry.seq, each.number) for each in first + second]) == [None] * 8
    broker.close()


@pytest.mark.parametrize("receipt", [(1 << 70, 5), (5, 1 << 70), (-1, -1)])
def test_numbers_that_no_message_has_spoil_nothing(redis_server: Server, receipt: tuple[int, int]) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    broker.publish_bodies("q", [b"a", b"b"], 0)
    held = broker.receive("q", 2)

    results = broker.ack("q", [(held[0].entry.seq, held[0].number), receipt])

    assert results[0] is None
    assert results[1] is not None
    assert broker.stats("q").in_flight == 1
    broker.close()


def test_text_that_cannot_be_sent_is_refused_before_anything_is_done(redis_server: Server) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    broker.publish("q", Draft(b"a"))

    with pytest.raises(InvalidSetting, match="UTF-8"):
        broker.receive("q", types=["\ud800"])
    with pytest.raises(InvalidSetting, match="UTF-8"):
        broker.nack("q", (1, 1), reason="\ud800")

    assert _bodies(broker.receive("q")) == [b"a"]
    broker.close()


def test_a_queue_that_is_deleted_and_changed_at_once_is_there_or_not(redis_server: Server) -> None:
    clients = [_open(redis_server) for _ in range(3)]
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(broker: RedisBroker, turn: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            try:
                broker.declare("q", QueueSettings(visibility_ms=1000 + (n + turn) % 5), change=True)
                broker.publish("q", Draft(b"x"))
                broker.delete("q")
            except QueueNotFound:
                pass
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=run, args=(each, turn)) for turn, each in enumerate(clients)]
    for thread in threads:
        thread.start()
    threading.Event().wait(2)
    stop.set()
    for thread in threads:
        thread.join()

    assert not failures
    clients[0].declare("q", QueueSettings(), change=True)
    clients[1].publish("q", Draft(b"alive"))
    assert b"alive" in _bodies(clients[2].receive("q", 100))
    for broker in clients:
        broker.close()


def test_a_queue_whose_deletion_was_cut_short_is_gone_for_everybody(redis_server: Server) -> None:
    first, second = _open(redis_server), _open(redis_server)
    first.declare("q", QueueSettings())
    first._about_queue(first._view("q"), "drop", 0, 0)  # and no more: as if it died here

    with pytest.raises(QueueNotFound):
        second.publish("q", Draft(b"x"))

    assert second.queues() == []
    second.declare("q", QueueSettings())
    second.publish("q", Draft(b"x"))
    assert _bodies(first.receive("q")) == [b"x"]
    first.close()
    second.close()


def test_a_store_that_was_emptied_mixes_nothing_up(redis_server: Server) -> None:
    old = _open(redis_server)
    old.declare("pay", QueueSettings())
    redis_server.ask("FLUSHALL")
    new = _open(redis_server)
    new.declare("mail", QueueSettings())
    new.publish("mail", Draft(b"letter"))

    old.publish("pay", Draft(b"secret"))  # its queue is made again, and is no other one

    assert sorted(new.queues()) == ["mail", "pay"]
    assert old.id_prefix == new.id_prefix
    assert _bodies(old.receive("mail", 9)) == [b"letter"]
    assert _bodies(new.receive("pay", 9)) == [b"secret"]
    old.close()
    new.close()


def test_settings_whose_change_was_cut_short_apply_all_the_same(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, other = _open(redis_server), _open(redis_server)
    dying.declare("q", QueueSettings())
    wanted = QueueSettings(max_length=1, overflow="reject")
    with monkeypatch.context() as patch:
        patch.setattr(dying, "_configure", lambda view: None)
        dying.declare("q", wanted, change=True)

    assert other.declare("q", wanted) == wanted

    results = other.publish_many("q", [Draft(b"a"), Draft(b"b")])
    assert [isinstance(each, str) for each in results] == [True, False]
    dying.close()
    other.close()


def test_history_of_what_only_arrives_is_trimmed_too(redis_server: Server) -> None:
    broker = _open(redis_server, "?history=100")
    for name in ("a", "b"):
        broker.declare(name, QueueSettings())
    broker.declare_exchange(Exchange("fan", "fanout"))
    for name in ("a", "b"):
        broker.bind(Binding("fan", name))
    for n in range(1200):
        broker.route("fan", "", Draft(b"%d" % n))
        for name in ("a", "b"):
            [delivery] = broker.receive(name)
            broker.ack(name, [(delivery.entry.seq, delivery.number)])

    for name in ("a", "b"):
        key = broker._view(name).key[:-1]
        assert redis_server.ask("XLEN", (key + b"m").decode()) < 700
        assert redis_server.ask("EXISTS", (key + b"ob").decode()) == 0
    broker.close()


def test_the_same_through_an_exchange_by_two_at_once_comes_once(redis_server: Server) -> None:
    clients = [_open(redis_server), _open(redis_server)]
    for name in ("a", "b"):
        clients[0].declare(name, QueueSettings())
    clients[0].declare_exchange(Exchange("fan", "fanout"))
    for name in ("a", "b"):
        clients[0].bind(Binding("fan", name))

    def run(broker: RedisBroker) -> None:
        for n in range(60):
            broker.route("fan", "", Draft(b"x", dedup=f"key-{n}"))

    threads = [threading.Thread(target=run, args=(each,)) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [clients[1].stats(name).ready for name in ("a", "b")] == [60, 60]
    for broker in clients:
        broker.close()


def test_a_waiter_that_met_an_error_stands_in_line_again(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    came = threading.Event()
    served: list[Delivery] = []

    def deliver(deliveries: list[Delivery]) -> None:
        served.extend(deliveries)
        came.set()

    assert broker.attend("q", Waiter(1, None, None, None, deliver)) is None
    real, calls = broker.receive, 0

    def receive(*args: Any, **options: Any) -> list[Delivery]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("away", sent=False)
        return real(*args, **options)

    monkeypatch.setattr(broker, "receive", receive)
    publisher = _open(redis_server)
    publisher.publish("q", Draft(b"x"))

    assert came.wait(20)
    assert _bodies(served) == [b"x"]
    broker.close()
    publisher.close()


def test_bound_leases_of_a_lost_answer_come_back(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    broker.publish_bodies("q", [b"a", b"b", b"c"], 0)
    real = broker._about_queue
    lost = []

    def about_queue(view: Any, name: str, *args: Any, **options: Any) -> Any:
        reply = real(view, name, *args, **options)
        if name == "receive" and not lost:
            lost.append(reply)
            raise StoreUnavailable("the answer never came", sent=True)
        return reply

    monkeypatch.setattr(broker, "_about_queue", about_queue)

    assert _bodies(broker.receive("q", 2, NO_DEADLINE, "me")) == [b"a", b"b"]

    assert len(lost) == 1
    assert broker.stats("q").in_flight == 2
    broker.close()


def test_an_error_says_that_an_earlier_try_may_have_been_done() -> None:
    with single() as server:
        broker = RedisBroker(f"{server.url}?timeout=0.5&reconnect=1.5", profile="fast")
        broker.declare("q", QueueSettings())
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable) as caught:
                broker.publish("q", Draft(b"x"))
        finally:
            server.thaw()

        assert caught.value.sent
        broker.close()


def test_many_groups_hold_nobody_up(redis_server: Server) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings(fifo=True))
    for start in range(0, 6000, 500):
        broker.publish_many("q", [Draft(b"x", group=f"g{n}") for n in range(start, start + 500)])

    assert broker.receive("q", types=["none"]) == []
    assert len(broker.peek("q", 10)) == 10
    assert broker.stats("q").ready == 6000
    broker.close()


def test_a_group_that_an_earlier_version_has_lent_from_is_held_until_that_is_settled(
    redis_server: Server,
) -> None:
    """Servers of two versions work on one store during an upgrade; the earlier one counts what is out."""
    broker = _open(redis_server)
    broker.declare("q", QueueSettings(fifo=True))
    broker.publish_many("q", [Draft(b"%d" % n, group="g") for n in range(3)])
    [first] = broker.receive("q")
    [out] = [key for key in redis_server.ask("KEYS", "*") if key.endswith(":og:+g")]
    redis_server.ask("DEL", out)

    assert broker.receive("q", 5) == []
    assert broker.ack("q", [(first.entry.seq, first.number)]) == [None]
    again = broker.receive("q", 5)

    assert _bodies(again) == [b"1", b"2"]
    assert broker.nack("q", (again[0].entry.seq, again[0].number), 0) == "returned"
    assert _bodies(broker.receive("q", 5)) == [b"1"]
    broker.close()


def test_a_message_that_other_hands_damaged_takes_no_other_with_it(redis_server: Server) -> None:
    """A record that is gone from the stream, and one that is no record: the others are delivered once."""
    broker = RedisBroker(redis_server.url, profile="fast")
    broker.declare("q", QueueSettings())
    ids = [broker.publish("q", Draft(b"%d" % number)) for number in range(10)]
    broker.edit("q", ids[6], Draft(b"edited"))
    [stream] = [key for key in redis_server.ask("KEYS", "*") if key.endswith(":m")]
    gone = redis_server.ask("XRANGE", stream, "-", "+")[3][0]
    redis_server.ask("XDEL", stream, gone)
    edited = stream.removesuffix("m") + "ed"
    [seq] = redis_server.ask("HKEYS", edited)
    redis_server.ask("HSET", edited, seq, "\x06\x00\x02\x00\x00\x00{x\x01\x00\x00\x00no")

    peeked = [entry.body for entry in broker.peek("q", 20)]
    deliveries = broker.load(broker.receive("q", 20))

    good = [b"%d" % number for number in range(10) if number not in (3, 6)]
    assert peeked == good
    assert sorted(each.entry.body or b"" for each in deliveries) == good
    assert {each.count for each in deliveries} == {1}
    assert broker.damage.set_aside() == {"q": 1}
    assert broker.health().status == "degraded"
    stats = broker.stats("q")
    assert (stats.ready, stats.in_flight) == (0, 8)
    assert stats.counters["damaged"] == 1  # the one that is gone left nothing that could be named
    broker.close()
