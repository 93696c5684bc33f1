"""`Producer`: a thread that publishes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .embedded import Queue
from .settings import environment_number
from .times import to_ms

if TYPE_CHECKING:
    from typing import Unpack

    from .publishing import PublishOptions

log = logging.getLogger("openq")


class Producer(threading.Thread):
    """Publishes `num_tasks` messages, "Message 0" and so on, or everything that `source` yields.

    `delay` seconds pass between two of them. `ids` holds what was published so far. An error ends
    the thread and is kept in `error`.
    """

    def __init__(
        self,
        queue: Queue,
        num_tasks: int | None = None,
        *,
        delay: float = 0,
        source: Iterable[Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name or f"producer-{queue.name}")
        if num_tasks is None and source is None:
            num_tasks = int(environment_number("num_tasks", 10))
        self.queue = queue
        self.num_tasks = num_tasks
        self.ids: list[str] = []
        self.error: BaseException | None = None
        self._delay = to_ms(delay, "delay") / 1000
        self._source = source
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            for i, body in enumerate(self._bodies()):
                if self.num_tasks is not None and i >= self.num_tasks:
                    break
                if i and self._stopping.wait(self._delay):
                    break
                self.ids.append(self.publish_msg(body))
        except Exception as error:
            self.error = error
            log.exception(
                "the producer of queue %r stopped after %d messages", self.queue.name, len(self.ids)
            )

    def _bodies(self) -> Iterable[Any]:
        if self._source is not None:
            return self._source
        return (f"Message {i}" for i in range(self.num_tasks or 0))

    def publish_msg(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        """Publish one message; returns its id, once it is safe."""
        return self.queue.publish(body, **options)

    publishMsg = publish_msg

    def stop(self) -> None:
        """Publish no more."""
        self._stopping.set()
