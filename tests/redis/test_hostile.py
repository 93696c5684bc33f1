"""What should not happen and does: forged receipts, emptied stores, races, errors in the middle."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from openq.broker.waiters import Waiter
from openq.clock import VirtualClock
from openq.engine.routing import Binding, Exchange
from openq.errors import InvalidSetting, OpenQError, QueueNotFound, StoreUnavailable
from openq.model import NO_DEADLINE, Delivery, Draft, MessageFilter, QueueSettings
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
        broker.receive("q", wanted=MessageFilter.of(["\ud800"]))
    with pytest.raises(InvalidSetting, match="UTF-8"):
        broker.nack("q", [(1, 1)], reason="\ud800")

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
    threading.Event().wait(0.5)
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
    first.store.fcall_queue(first.get_queue("q"), "drop", 0, 0)  # and no more: as if it died here

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
    assert old.storage.id_prefix == new.storage.id_prefix
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
        patch.setattr(dying.store, "configure", lambda view, watched_ms=0: None)
        dying.declare("q", wanted, change=True)

    assert other.declare("q", wanted) == wanted

    results = other.publish_many("q", [Draft(b"a"), Draft(b"b")])
    assert [isinstance(each, tuple) for each in results] == [True, False]
    dying.close()
    other.close()


def test_history_of_what_only_arrives_is_trimmed_too(redis_server: Server) -> None:
    broker = _open(redis_server, "?history=100")
    for name in ("a", "b"):
        broker.declare(name, QueueSettings())
    broker.exchanges.declare_exchange(Exchange("fan", "fanout"))
    for name in ("a", "b"):
        broker.exchanges.bind(Binding("fan", name))
    for n in range(1200):
        broker.exchanges.route("fan", "", Draft(b"%d" % n))
        for name in ("a", "b"):
            [delivery] = broker.receive(name)
            broker.ack(name, [(delivery.entry.seq, delivery.number)])

    for name in ("a", "b"):
        key = broker.get_queue(name).key[:-1]
        assert redis_server.ask("XLEN", (key + b"m").decode()) < 700
        assert redis_server.ask("EXISTS", (key + b"ob").decode()) == 0
    broker.close()


def test_the_same_through_an_exchange_by_two_at_once_comes_once(redis_server: Server) -> None:
    clients = [_open(redis_server), _open(redis_server)]
    for name in ("a", "b"):
        clients[0].declare(name, QueueSettings())
    clients[0].exchanges.declare_exchange(Exchange("fan", "fanout"))
    for name in ("a", "b"):
        clients[0].exchanges.bind(Binding("fan", name))

    def run(broker: RedisBroker) -> None:
        for n in range(60):
            broker.exchanges.route("fan", "", Draft(b"x", dedup=f"key-{n}"))

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

    assert broker.add_waiter("q", Waiter(1, None, None, None, deliver)) is None
    real, calls = broker.receive, 0

    def receive(*args: Any, **options: Any) -> list[Delivery]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("away", sent=False)
        return real(*args, **options)

    monkeypatch.setattr(broker.receiver, "receive", receive)
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
    real = broker.store.fcall_queue
    lost = []

    def about_queue(view: Any, name: str, *args: Any, **options: Any) -> Any:
        reply = real(view, name, *args, **options)
        if name == "receive" and not lost:
            lost.append(reply)
            raise StoreUnavailable("the answer never came", sent=True)
        return reply

    monkeypatch.setattr(broker.store, "fcall_queue", about_queue)

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

    assert broker.receive("q", wanted=MessageFilter.of(["none"])) == []
    assert len(broker.inspect.peek("q", 10)) == 10
    assert broker.stats("q").ready == 6000
    broker.close()


def test_a_group_with_a_delivery_of_an_earlier_version_is_held_until_that_is_settled(
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
    assert broker.nack("q", [(again[0].entry.seq, again[0].number)], 0) == ["returned"]
    assert _bodies(broker.receive("q", 5)) == [b"1"]
    broker.close()


def test_a_message_that_other_hands_damaged_takes_no_other_with_it(redis_server: Server) -> None:
    """A record that is gone from the stream, and one that is no record: the others are delivered once."""
    broker = RedisBroker(redis_server.url, profile="fast")
    broker.declare("q", QueueSettings())
    ids = [broker.publish("q", Draft(b"%d" % number)) for number in range(10)]
    broker.admin.edit("q", ids[6], Draft(b"edited"))
    [stream] = [key for key in redis_server.ask("KEYS", "*") if key.endswith(":m")]
    gone = redis_server.ask("XRANGE", stream, "-", "+")[3][0]
    redis_server.ask("XDEL", stream, gone)
    edited = stream.removesuffix("m") + "ed"
    [seq] = redis_server.ask("HKEYS", edited)
    redis_server.ask("HSET", edited, seq, "\x06\x00\x02\x00\x00\x00{x\x01\x00\x00\x00no")

    peeked = [entry.body for entry in broker.inspect.peek("q", 20)]
    deliveries = broker.load(broker.receive("q", 20))

    good = [b"%d" % number for number in range(10) if number not in (3, 6)]
    assert peeked == good
    assert sorted(each.entry.body or b"" for each in deliveries) == good
    assert {each.count for each in deliveries} == {1}
    assert broker.inspect.damage.set_aside() == {"q": 2}
    assert {each.message_id for each in broker.inspect.damage.listed()} == {ids[3], ids[6]}
    assert broker.health().status == "degraded"
    stats = broker.stats("q")
    assert (stats.ready, stats.in_flight, stats.counters["damaged"]) == (0, 8, 2)
    broker.close()


def _key(server: Server, suffix: str) -> str:
    [found] = [key for key in server.ask("KEYS", "*:{*}:*") if key.endswith(f":{suffix}")]
    return str(found)


def _damage_extra(server: Server, seq: int, text: str | None) -> None:
    """None: it is taken away."""
    if text is None:
        server.ask("HDEL", _key(server, "x"), str(seq))
    else:
        server.ask("HSET", _key(server, "x"), str(seq), text)


EXTRAS = ["{", "7", "[1]", "null", '{"p":"high"}', '{"d":-5}', '{"g":null}', '{"D":[[1]]}', None]
QUEUES = [QueueSettings(), QueueSettings(fifo=True), QueueSettings(fifo=True, history_ms=0)]


@pytest.mark.parametrize("settings", QUEUES, ids=["standard", "fifo", "fifo without history"])
@pytest.mark.parametrize("text", EXTRAS)
def test_a_message_whose_extra_is_damaged_is_set_aside_and_named(
    redis_server: Server, text: str | None, settings: QueueSettings
) -> None:
    broker = _open(redis_server)
    broker.declare("q", settings)
    ids = [broker.publish("q", Draft(b"%d" % n, group="g", priority=n % 2)) for n in range(4)]
    _damage_extra(redis_server, broker.inspect.find("q", ids[1]).seq, text)

    peeked = [entry.body for entry in broker.inspect.peek("q", 10)]
    deliveries = broker.receive("q", 10)

    assert sorted(_bodies(deliveries), key=str) == [b"0", b"2", b"3"]
    if text is not None:
        assert sorted(peeked, key=str) == [b"0", b"2", b"3"]
    assert ids[1] in {each.message_id for each in broker.inspect.damage.listed() if each.kind == "set_aside"}
    assert broker.health().status == "degraded"
    assert broker.stats("q").counters["damaged"] == 1
    receipts = [(each.entry.seq, each.number) for each in deliveries]
    assert broker.ack("q", receipts) == [None] * 3
    # Its group goes on, and nothing is left of it.
    broker.publish("q", Draft(b"next", group="g"))
    assert _bodies(broker.receive("q", 10)) == [b"next"]
    assert (broker.stats("q").ready, broker.stats("q").waiting_bytes) == (0, 0)
    broker.close()


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("text", ["{", None])
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "expire"])
def test_an_extra_that_is_damaged_in_flight_holds_nobody_up(
    redis_server: Server, verb: str, text: str | None, fifo: bool
) -> None:
    clock = VirtualClock()
    broker = RedisBroker(redis_server.url, profile="fast", clock=clock)
    broker.declare("dead", QueueSettings())
    broker.declare("q", QueueSettings(fifo=fifo, dead_letter="dead"))
    for n in range(3):
        broker.publish("q", Draft(b"%d" % n, group="g"))
    held = broker.receive("q", 3)
    receipts = [(each.entry.seq, each.number) for each in held]
    _damage_extra(redis_server, held[1].entry.seq, text)

    if verb == "ack":
        assert broker.ack("q", receipts) == [None] * 3
    elif verb == "expire":
        clock.advance(31)
    else:
        for receipt in receipts:
            if verb == "nack":
                broker.nack("q", [receipt], 0, "no")
            else:
                broker.reject("q", [receipt], "no")
    broker.publish("q", Draft(b"next", group="g"))

    found = _bodies(broker.receive("q", 10))
    assert b"next" in found
    others = [b"0", b"2"] if text is not None else [b"0", b"1", b"2"]
    assert found[:-1] == (others if verb in ("nack", "expire") else [])
    if text is not None:
        assert [each.message_id for each in broker.inspect.damage.listed()] == [
            broker.inspect.message_id(held[1].entry)
        ]
    assert broker.stats("dead").ready == (0 if verb != "reject" else 3 if text is None else 2)
    broker.close()


@pytest.mark.parametrize("verb", ["overflow", "expire", "types", "edit", "cancel", "move", "purge", "due"])
def test_records_that_are_gone_hold_nothing_up(redis_server: Server, verb: str) -> None:
    clock = VirtualClock()
    broker = RedisBroker(redis_server.url, profile="fast", clock=clock)
    broker.declare("other", QueueSettings())
    limit = 4 if verb == "overflow" else None
    broker.declare("q", QueueSettings(max_length=limit, retention_ms=100_000))
    delay_ms = 5_000 if verb == "due" else None
    ids = [broker.publish("q", Draft(b"%d" % n, type="t", priority=1, delay_ms=delay_ms)) for n in range(4)]
    for entry in broker.inspect.entries("q")[:2]:
        redis_server.ask("XDEL", _key(redis_server, "m"), f"{entry.seq}-{entry.sent_ms}")

    if verb == "overflow":
        for n in range(2):
            broker.publish("q", Draft(b"more %d" % n, priority=1))
    elif verb == "expire":
        clock.advance(101)
        broker.publish("q", Draft(b"young", priority=1))
    elif verb == "edit":
        with pytest.raises(OpenQError):
            broker.admin.edit("q", ids[0], Draft(b"changed"))
    elif verb == "cancel":
        with pytest.raises(OpenQError):
            broker.admin.cancel("q", ids[0])
        broker.admin.cancel("q", ids[2])
    elif verb == "move":
        broker.admin.move("q", ids, "other")
    elif verb == "purge":
        broker.purge("q")
    elif verb == "due":
        clock.advance(6)
    found = _bodies(broker.receive("q", 10, wanted=MessageFilter.of(["t"]) if verb == "types" else None))

    rest = {
        "expire": [b"young"],
        "move": [],
        "cancel": [b"3"],
        "purge": [],
        "overflow": [b"2", b"3", b"more 0", b"more 1"],
    }
    assert found == rest.get(verb, [b"2", b"3"])
    if verb != "purge":
        assert {each.message_id for each in broker.inspect.damage.listed()} == set(ids[:2])
        assert broker.stats("q").waiting_bytes == 0
    broker.close()


def test_missing_plain_messages_are_counted_and_named_if_they_are_known(redis_server: Server) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    ids = [broker.publish("q", Draft(b"%d" % n)) for n in range(6)]
    entries = broker.inspect.entries("q")
    stream = _key(redis_server, "m")
    redis_server.ask("XDEL", stream, f"{entries[5].seq}-{entries[5].sent_ms}")
    redis_server.ask("XDEL", stream, f"{entries[1].seq}-{entries[1].sent_ms}")

    held = broker.receive("q", 3)
    assert broker.inspect.damage.listed() == []  # a gap alone is no damage
    held += broker.receive("q", 3)

    assert _bodies(held) == [b"0", b"2", b"3", b"4"]
    assert {each.message_id for each in broker.inspect.damage.listed()} == {ids[1], ids[5]}
    # Out in one run: who holds it may ack it, nobody gets it again.
    redis_server.ask("XDEL", stream, f"{held[1].entry.seq}-{held[1].entry.sent_ms}")
    assert len(broker.inspect.deliveries("q")) == 3
    for each in held[:3]:
        broker.nack("q", [(each.entry.seq, each.number)], 0, "no")
    assert _bodies(broker.receive("q", 10)) == [b"0", b"3"]
    assert broker.inspect.damage.set_aside() == {"q": 3}
    # The next ones are found too, although there are gaps of old.
    more = [broker.publish("q", Draft(b"more %d" % n)) for n in range(3)]
    redis_server.ask("XDEL", stream, redis_server.ask("XREVRANGE", stream, "+", "-", "COUNT", "2")[1][0])
    assert _bodies(broker.receive("q", 10)) == [b"more 0", b"more 2"]
    assert more[1] in {each.message_id for each in broker.inspect.damage.listed()}
    broker.publish_bodies("q", [b"x"] * 3000, 0)
    redis_server.ask("DEL", stream)
    assert broker.receive("q", 10) == []
    [lost] = [each for each in broker.inspect.damage.listed() if each.kind == "lost"]
    assert (lost.count, lost.queue) == (3000, "q")
    stats = broker.stats("q")
    assert (stats.ready, stats.waiting_bytes, stats.counters["damaged"]) == (0, 0, 3004)
    broker.close()


def test_an_id_and_a_key_of_a_damaged_message_are_free_again(redis_server: Server) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    broker.publish("q", Draft(b"first", id="mine", unique="once", priority=1))
    [entry] = broker.inspect.entries("q")
    redis_server.ask("XDEL", _key(redis_server, "m"), f"{entry.seq}-{entry.sent_ms}")
    _damage_extra(redis_server, entry.seq, "{")

    assert broker.receive("q", 1) == []
    broker.publish("q", Draft(b"second", id="mine"))
    broker.publish("q", Draft(b"third", unique="once"))

    assert _bodies(broker.receive("q", 10)) == [b"second", b"third"]
    broker.close()


def test_rows_of_a_batch_that_are_gone_are_named(redis_server: Server) -> None:
    broker = _open(redis_server)
    broker.declare("q", QueueSettings())
    for n in range(3):
        broker.publish("q", Draft(b"%d" % n))
    broker.publish("q", Draft(b"special", priority=1))
    formed = broker.subscriptions.next_batch("s", "q", 0)
    assert formed is not None
    chosen = [each.entry for each in broker.inspect.deliveries("q") if each.entry.body in (b"1", b"special")]
    for entry in chosen:
        redis_server.ask("XDEL", _key(redis_server, "m"), f"{entry.seq}-{entry.sent_ms}")

    rows = broker.subscriptions.rows("s", formed.batch)

    assert [each.body for each in rows.entries] == [b"0", b"2"]
    assert {each.message_id for each in broker.inspect.damage.listed()} == {
        broker.inspect.message_id(e) for e in chosen
    }
    assert broker.subscriptions.ack("s", formed.batch, None) == (4, 0)
    broker.close()
