"""`Producer`: a thread that publishes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .queues import Queue
from .settings import environment_number
from .times import to_ms

if TYPE_CHECKING:
    from typing import Unpack

    from .publishing import PublishOptions

log = logging.getLogger("openq")


class ProducerLoop:
    """The loop of a producer; separate from its thread, like that of a consumer."""

    def __init__(
        self, queue: Queue, num_tasks: int | None, delay_s: float, source: Iterable[Any] | None
    ) -> None:
        self.queue = queue
        self.num_tasks = num_tasks
        self.ids: list[str] = []
        self.error: BaseException | None = None
        self._delay_s = delay_s
        self._source = source
        self._stopping = threading.Event()

    def run(self, publish: Callable[[Any], str]) -> None:
        try:
            for i, body in enumerate(self._bodies()):
                if self.num_tasks is not None and i >= self.num_tasks:
                    break
                if i and self._stopping.wait(self._delay_s):
                    break
                self.ids.append(publish(body))
        except Exception as error:
            self.error = error
            log.exception(
                "the producer of queue %r stopped after %d messages", self.queue.name, len(self.ids)
            )

    def _bodies(self) -> Iterable[Any]:
        if self._source is not None:
            return self._source
        return (f"Message {i}" for i in range(self.num_tasks or 0))

    def stop(self) -> None:
        self._stopping.set()


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
        self.__loop = ProducerLoop(queue, num_tasks, to_ms(delay, "delay") / 1000, source)

    @property
    def queue(self) -> Queue:
        return self.__loop.queue

    @property
    def num_tasks(self) -> int | None:
        return self.__loop.num_tasks

    @property
    def ids(self) -> list[str]:
        """The ids of the messages published so far."""
        return self.__loop.ids

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the thread early."""
        return self.__loop.error

    def run(self) -> None:
        self.__loop.run(self.publish_msg)

    def publish_msg(self, body: Any, **options: Unpack[PublishOptions]) -> str:
        """Publish one message; returns its id when it is stored."""
        return self.queue.publish(body, **options)

    publishMsg = publish_msg

    def stop(self) -> None:
        """Stop publishing."""
        self.__loop.stop()
