"""`SimpleQueue`: publish, receive, ack, and nothing to learn."""

from __future__ import annotations

from .message import Message
from .queues import RECEIVE_TIMEOUT, Queue


class SimpleQueue:
    """A queue in memory, over the same engine as `Queue`.

    A received message comes back to its place if it is not acked within `visibility_timeout` seconds.
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
        """Done with it, for good."""
        self._queue.ack(message_id)

    def requeue_expired(self) -> None:
        """Bring back what was not acked in time. Happens by itself too."""
        self._queue.requeue_expired()

    @property
    def queue(self) -> list[Message]:
        """What waits, in order."""
        return list(self._queue.queue)

    @property
    def in_flight(self) -> dict[str, tuple[Message, float]]:
        """What is handed out: id -> (message, when)."""
        return dict(self._queue.in_flight)
