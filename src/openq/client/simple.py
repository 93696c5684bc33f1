"""`SimpleQueue`: publish, receive and ack."""

from __future__ import annotations

from .message import Message
from .queues import RECEIVE_TIMEOUT, Queue


class SimpleQueue:
    """A queue in memory, over the same engine as `Queue`.

    A received message returns to its position if it is not acked within `visibility_timeout` seconds.
    """

    def __init__(self, visibility_timeout: float = 5.0) -> None:
        self._queue = Queue("simple", visibility_timeout, storage="memory")
        self.visibility_timeout = visibility_timeout

    def publish(self, body: str) -> str:
        """Add a message; returns its id."""
        return self._queue.publish(body)

    def receive(self, timeout: float = RECEIVE_TIMEOUT) -> Message | None:
        """The next message, or None if none comes within `timeout` seconds."""
        return self._queue.receive(timeout)

    def ack(self, message_id: Message | str) -> None:
        """Acknowledge: the message is never delivered again."""
        self._queue.ack(message_id)

    def requeue_expired(self) -> None:
        """Return messages that were not acked in time. Happens by itself too."""
        self._queue.requeue_expired()

    @property
    def queue(self) -> list[Message]:
        """The ready messages, in delivery order."""
        return list(self._queue.queue)

    @property
    def in_flight(self) -> dict[str, tuple[Message, float]]:
        """The messages in flight: id -> (message, time of delivery)."""
        return dict(self._queue.in_flight)
