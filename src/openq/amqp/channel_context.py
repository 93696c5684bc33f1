"""What the parts of a channel share: its connection, its number, and whether it is still open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import methods as m
from .delivery_properties import fit_properties
from .errors import NOT_FOUND, AmqpError
from .frames import CONTENT_OVERHEAD, FRAME_OVERHEAD, content_frames

if TYPE_CHECKING:
    from .connection import AmqpConnection


class ChannelContext:
    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.topology = connection.topology
        self.server = connection.server
        self.traffic = connection.server.context.traffic.amqp
        self.number = number
        self.is_closing = False
        self.last_declared_queue = ""

    def send(self, method: m.Method) -> None:
        self.connection.send(self.number, method)

    def reply(self, no_wait: bool, method: m.Method) -> None:
        """Send `method` once everything done so far is durable."""
        if no_wait:
            return
        self.answer_after_commit(lambda: self.send(method))

    def answer_after_commit(self, answer: Callable[[], None], lost: Callable[[], None] | None = None) -> None:
        self.connection.answer_after_commit(self, answer, lost)

    def content(self, amqp_properties: bytes, body: bytes) -> bytes:
        """Header and body frames."""
        max_frame = self.connection.max_frame
        amqp_properties = fit_properties(amqp_properties, max_frame - FRAME_OVERHEAD - CONTENT_OVERHEAD)
        return content_frames(self.number, amqp_properties, body, max_frame)

    def queue_name(self, queue: str) -> str:
        """An empty name stands for the queue that was declared last on this channel."""
        if queue:
            return queue
        if not self.last_declared_queue:
            raise AmqpError(NOT_FOUND, "no previously declared queue")
        return self.last_declared_queue
