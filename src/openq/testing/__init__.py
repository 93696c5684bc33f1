"""For the tests of programs that use OpenQ: a virtual clock, brokers on it, a server, and assertions.

    from openq import OpenQ
    from openq.testing import VirtualClock, assert_sent

    def test_an_unacked_order_returns() -> None:
        clock = VirtualClock()
        orders = OpenQ("orders", visibility_timeout=12 * 3600, clock=clock)
        orders.publish("one coffee")
        orders.receive()

        clock.advance(12 * 3600)

        assert orders.receive(timeout=0).receive_count == 2
        assert_sent(orders, "one coffee")

Time stands still until `advance(seconds)`. When that returns, everything that came due has happened:
leases have ended, delays are over, and threads and asyncio tasks that wait in `receive()` have been served.
The `timeout` of `receive` stays real time, so give 0 where no message is expected.

With pytest the fixtures `openq_clock`, `openq_broker` and `openq_queue` do the wiring, and `openq_server`
is a server with real ports; see `openq.testing.plugin` and `openq.testing.server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..clock import Clock, VirtualClock

# The pytest plugin lives in this package and is loaded in every project where OpenQ is installed:
# no queue is imported before a test needs one.
if TYPE_CHECKING:
    from ..aio import Queue as AsyncQueue
    from ..client.message import Message
    from ..client.queues import Queue
    from ..local.broker import LocalBroker

    AnyQueue = Queue | AsyncQueue

__all__ = ["VirtualClock", "assert_sent", "memory_broker", "messages"]

_ANY: Any = object()


def memory_broker(clock: Clock | None = None, *, seed: int = 0) -> LocalBroker:
    """A broker in memory on a virtual clock. The same `seed` gives the same jitter every time."""
    from ..local.broker import LocalBroker

    return LocalBroker(clock=clock or VirtualClock(), seed=seed)


def messages(queue: AnyQueue) -> list[Message]:
    """Every message in the queue: ready, delayed and in flight. None is received by this."""
    return queue.messages


def assert_sent(
    queue: AnyQueue, body: Any = _ANY, *, count: int | None = None, **fields: Any
) -> list[Message]:
    """Assert that matching messages are in the queue: `count` of them if given, else at least one.

    `body` and `fields` (`message_type=`, `priority=`, `group=`, `attributes=` or any other field of a
    message) must be equal where given; of `attributes` only the named ones. Returns the matching messages.
    `count=0` asserts that there is none. Acked messages are no longer in the queue and do not count.
    """
    __tracebackhide__ = True
    everything = messages(queue)
    found = [message for message in everything if _matches(message, body, fields)]
    if len(found) == count or (count is None and found):
        return found
    wanted = ", ".join(
        [
            *([] if body is _ANY else [f"body={body!r}"]),
            *(f"{name}={value!r}" for name, value in fields.items()),
        ]
    )
    expected = "at least one message" if count is None else f"{count} message{'' if count == 1 else 's'}"
    lines = [
        f"expected {expected}{f' with {wanted}' if wanted else ''} in {queue.name!r}, found {len(found)}",
        *(f"  there is {_display(message, fields)}" for message in everything[:20]),
        *([f"  ... and {len(everything) - 20} more"] if len(everything) > 20 else []),
        *([] if everything else ["  the queue is empty"]),
    ]
    raise AssertionError("\n".join(lines))


def _matches(message: Message, body: Any, fields: dict[str, Any]) -> bool:
    if body is not _ANY and message.body != body:
        return False
    for name, value in fields.items():
        actual = getattr(message, name)  # an unknown name is a mistake in the test
        if name == "attributes":
            if any(key not in actual or actual[key] != each for key, each in value.items()):
                return False
        elif actual != value:
            return False
    return True


def _display(message: Message, fields: dict[str, Any]) -> str:
    body = repr(message.body)
    shown = [body if len(body) <= 200 else f"{body[:197]}..."]
    return ", ".join([*shown, *(f"{name}={getattr(message, name)!r}" for name in fields)])
