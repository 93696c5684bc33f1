"""Tests without waiting: on a virtual clock, twelve hours take no time at all."""

from openq import OpenQ, VirtualClock

clock = VirtualClock()
dead = OpenQ("dead", clock=clock)
queue = OpenQ("jobs", visibility_timeout=12 * 3600, dlq=dead, max_receives=2)
queue.publish("a long job")

for delivery in (1, 2):
    message = queue.receive(timeout=0)
    assert message is not None
    assert message.receive_count == delivery
    assert queue.receive(timeout=0) is None
    clock.advance(12 * 3600)

assert len(queue) == 0
assert len(dead) == 1
print("a day passed, and", dead.queue[0].body, "is a dead letter")
