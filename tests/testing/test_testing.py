"""`openq.testing` as its users use it: a clock moved by hand, assertions, the pytest plugin."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openq import OpenQ
from openq.aio import OpenQ as AsyncOpenQ
from openq.testing import VirtualClock, assert_sent, memory_broker, messages

pytest_plugins = "pytester"

HOURS = 3600


# -- time ---------------------------------------------------------------------------------------


def test_a_lease_of_twelve_hours_ends_when_the_clock_is_moved() -> None:
    clock = VirtualClock()
    orders = OpenQ("orders", visibility_timeout=12 * HOURS, clock=clock)
    orders.publish("one coffee")
    orders.receive()

    clock.advance(12 * HOURS - 0.001)
    assert orders.receive(timeout=0) is None
    clock.advance(0.001)
    again = orders.receive(timeout=0)

    assert again is not None
    assert again.receive_count == 2
    orders.close()


def test_advance_serves_a_thread_that_waits_before_it_returns() -> None:
    clock = VirtualClock()
    broker = memory_broker(clock)
    orders = OpenQ("orders", visibility_timeout=12 * HOURS, broker=broker)
    orders.publish("one coffee")
    orders.receive()
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(orders.receive(timeout=60)))
    thread.start()
    while not orders.stats().waiters:
        pass

    clock.advance(12 * HOURS)

    assert orders.stats().in_flight == 1
    assert orders.stats().waiters == 0
    thread.join()
    [message] = got
    assert message.body == "one coffee"  # type: ignore[attr-defined]
    broker.close()


def test_advance_serves_a_task_that_waits_before_it_returns() -> None:
    async def main() -> None:
        clock = VirtualClock()
        orders = AsyncOpenQ("orders", visibility_timeout=12 * HOURS, clock=clock)
        await orders.publish("one coffee")
        await orders.receive()
        waiting = asyncio.create_task(orders.receive(timeout=60))
        while not (await orders.stats()).waiters:
            await asyncio.sleep(0)

        clock.advance(12 * HOURS)

        stats = await orders.stats()
        assert (stats.in_flight, stats.waiters) == (1, 0)
        message = await waiting
        assert message is not None
        assert message.receive_count == 2
        await orders.close()

    asyncio.run(main())


def test_delays_come_due_when_the_clock_is_moved() -> None:
    clock = VirtualClock()
    orders = OpenQ("orders", clock=clock)
    orders.publish("later", delay=3 * HOURS)

    assert orders.receive(timeout=0) is None
    clock.advance(3 * HOURS)
    message = orders.receive(timeout=0)

    assert message is not None
    orders.close()


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        VirtualClock().advance(-1)


# -- what is in a queue -------------------------------------------------------------------------


def test_messages_shows_everything_in_the_queue_and_receives_nothing() -> None:
    orders = OpenQ("orders", broker=memory_broker())
    for body in ("a", "b"):
        orders.publish(body)
    orders.publish("c", delay=10)
    orders.receive()

    assert sorted(message.body for message in messages(orders)) == ["a", "b", "c"]
    assert orders.stats().in_flight == 1


def test_assert_sent_finds_messages_by_what_is_given() -> None:
    orders = OpenQ("orders", broker=memory_broker())
    orders.publish({"n": 1}, message_type="new", attributes={"shop": "north", "till": 3})
    orders.publish({"n": 1}, message_type="paid", priority=5)
    orders.publish("plain")

    assert len(assert_sent(orders)) == 3
    assert len(assert_sent(orders, {"n": 1}, count=2)) == 2
    [paid] = assert_sent(orders, {"n": 1}, message_type="paid")
    assert paid.priority == 5
    assert_sent(orders, attributes={"shop": "north"}, count=1)
    assert_sent(orders, "nothing like it", count=0)
    assert_sent(orders, attributes={"shop": None}, count=0)


def test_assert_sent_works_on_queues_of_asyncio_too() -> None:
    async def main() -> None:
        orders = AsyncOpenQ("orders", broker=memory_broker())
        await orders.publish("one coffee")
        assert_sent(orders, "one coffee", count=1)

    asyncio.run(main())


def test_a_failed_assert_sent_lists_the_queue() -> None:
    orders = OpenQ("orders", broker=memory_broker())
    orders.publish("tea", message_type="new")

    with pytest.raises(AssertionError) as failure:
        assert_sent(orders, "coffee", message_type="new", count=1)
    assert str(failure.value) == (
        "expected 1 message with body='coffee', message_type='new' in 'orders', found 0\n"
        "  there is 'tea', message_type='new'"
    )


def test_a_failed_assert_sent_stays_readable_on_an_empty_and_on_a_long_queue() -> None:
    orders = OpenQ("orders", broker=memory_broker())
    with pytest.raises(
        AssertionError, match="at least one message in 'orders', found 0\n  the queue is empty"
    ):
        assert_sent(orders)
    orders.publish_many(["x" * 1000] * 25)

    with pytest.raises(AssertionError) as failure:
        assert_sent(orders, count=2)
    lines = str(failure.value).splitlines()
    assert lines[0] == "expected 2 messages in 'orders', found 25"
    assert lines[-1] == "  ... and 5 more"
    assert max(map(len, lines)) < 220


def test_a_field_that_no_message_has_is_a_mistake_of_the_test() -> None:
    orders = OpenQ("orders", broker=memory_broker())
    orders.publish("a")

    with pytest.raises(AttributeError, match="typ"):
        assert_sent(orders, typ="new")


# -- the plugin ---------------------------------------------------------------------------------


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody else, with this plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "openq.testing.plugin")
    return pytester


def test_the_fixtures_share_one_clock_and_one_broker(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        def test_it(openq_queue, openq_clock, openq_broker):
            dead = openq_queue("dead")
            orders = openq_queue("orders", visibility_timeout=12 * 3600, dlq=dead, max_receives=1)
            orders.publish("one coffee")
            orders.receive()

            openq_clock.advance(12 * 3600)

            assert orders.broker is dead.broker is openq_broker
            assert dead.receive(timeout=0).body == "one coffee"
        """
    )

    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_each_test_begins_with_empty_queues_and_its_own_time(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("turn", [1, 2])
        def test_it(openq_queue, openq_clock, turn):
            start_ms = openq_clock.now_ms()
            orders = openq_queue("orders")
            assert orders.receive(timeout=0) is None
            orders.publish("left behind")
            openq_clock.advance(10)
            assert openq_clock.now_ms() == start_ms + 10_000 == 1_700_000_010_000
        """
    )

    project.runpytest_inprocess().assert_outcomes(passed=2)


def test_the_broker_is_closed_after_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from openq import Closed

        kept = []

        def test_first(openq_broker, openq_queue):
            openq_queue("orders")
            kept.append(openq_broker)

        def test_second():
            with pytest.raises(Closed):
                kept[0].settings("orders")
        """
    )

    project.runpytest_inprocess().assert_outcomes(passed=2)


def test_the_fixtures_are_listed_with_their_docs(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--fixtures", "-q")

    result.stdout.fnmatch_lines(["*openq_clock*", "*advance(seconds)*", "*openq_broker*", "*openq_queue*"])


def test_loading_the_plugin_loads_no_queue(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_it():
            assert "openq.testing.plugin" in sys.modules
            assert "openq.local.broker" not in sys.modules
        """
    )

    project.runpytest_subprocess().assert_outcomes(passed=1)
