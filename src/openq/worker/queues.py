"""The queues of an app: opened on first use, with their dead-letter queues.

A queue object is opened once and shared by all threads. A worker opens further objects for receiving, because
closing such an object ends its waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..client.http import Refused
from ..client.queues import Queue
from .errors import InvalidTask

if TYPE_CHECKING:
    from ..aio import OpenQ as AsyncQueue
    from ..client.interface import LibraryBroker
    from ..clock import Clock

DEAD_SUFFIX = "-dead"
# Deliveries beyond the attempts of any task before the queue itself dead-letters a message. They are for
# messages whose worker died: it could count no attempt.
SPARE_RECEIVES = 5
# How long the calls of a worker for messages and leases try to reach a broker before they say so.
WORKER_RECONNECT_S = 3.0


@dataclass(slots=True)
class QueueDeclaration:
    """What the app knows of one queue before it is opened."""

    name: str
    dead_letter: str | None = None  # None: the name with "-dead"; "": none
    settings: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0  # the highest number of its tasks
    is_raw: bool = False  # it has consumers, not tasks: the app changes no setting that was not given

    @property
    def dead_letter_name(self) -> str | None:
        if self.dead_letter is None:
            return None if self.is_raw else self.name + DEAD_SUFFIX
        return self.dead_letter or None


class Queues:
    """The queue objects of an app, on one target."""

    def __init__(self, target: dict[str, Any]) -> None:
        self.target = target  # keywords of OpenQ: url, path, broker, token, ...
        self.declared: dict[str, QueueDeclaration] = {}
        self._open: dict[tuple[str, str], Queue] = {}
        self._async: dict[tuple[str, str], AsyncQueue] = {}
        self._anchor: Queue | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    def is_memory(self) -> bool:
        return all(self.target.get(name) is None for name in ("url", "path", "broker"))

    @property
    def is_server(self) -> bool:
        """Behind an OpenQ server: a publish whose reply was lost may have happened."""
        url = self.target.get("url")
        return isinstance(url, str) and url.startswith(("http://", "https://", "env:"))

    def declare(self, name: str) -> QueueDeclaration:
        with self._lock:
            found = self.declared.get(name)
            if found is None:
                found = self.declared[name] = QueueDeclaration(name)
            return found

    def with_handlers(self) -> list[str]:
        """The queues that have a task or a consumer."""
        return [name for name, each in self.declared.items() if each.attempts or each.is_raw]

    def target_options(self) -> dict[str, Any]:
        """The keywords that open another queue object on the same target."""
        if not self.is_memory:
            return self.target
        with self._lock:
            if self._anchor is None or self._anchor.closed:
                self._anchor = Queue("queue", **self.target)
            return {"broker": self._anchor.broker}

    def open(self, name: str, codec: str = "auto") -> Queue:
        queue = self._open.get((name, codec))
        if queue is not None and self._pid == os.getpid():
            return queue
        with self._lock:
            self._forget_after_fork()
            queue = self._open.get((name, codec))
            if queue is None:
                queue = self._open[name, codec] = self._open_declared(name, codec)
            return queue

    def _forget_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._open.clear()
            self._async.clear()
            self._anchor = None
            self._pid = os.getpid()

    def open_receiver(self, name: str) -> Queue:
        """An object of its own: closing it ends its waits and no others.

        It reports an unreachable broker soon: a worker must know before its leases end, and tries again by
        itself.
        """
        self.open(name)
        options = self.target_options()
        if options.get("url") is not None:
            given = options.get("reconnect")
            short = WORKER_RECONNECT_S if given is None else min(given, WORKER_RECONNECT_S)
            options = {**options, "reconnect": short}
        return Queue(name, **options)

    async def open_async(self, name: str, codec: str = "auto") -> AsyncQueue:
        import asyncio

        from ..aio import OpenQ as AsyncQueue

        found = self._async.get((name, codec))
        if found is None or self._pid != os.getpid():
            await asyncio.to_thread(self.open, name)
            found = await AsyncQueue.open(name, codec=codec, **self.target_options())
            self._async[name, codec] = found
        return found

    def any(self) -> Queue:
        """Some queue of the target, for calls that concern no queue."""
        with self._lock:
            self._forget_after_fork()
            for queue in self._open.values():
                return queue
            return self.open(next(iter(self.declared), "default"))

    def declare_all(self) -> None:
        """Give every queue the settings that its tasks need by now."""
        for name, declaration in list(self.declared.items()):
            self._apply(self.open(name), declaration)

    def _open_declared(self, name: str, codec: str) -> Queue:
        declaration = self.declared.get(name)
        if declaration is None:
            return Queue(name, codec=codec, **self.target_options())  # of another app, or a dead-letter queue
        queue = Queue(name, codec=codec, **self.target_options(), **declaration.settings)
        self._apply(queue, declaration)
        return queue

    def _apply(self, queue: Queue, declaration: QueueDeclaration) -> None:
        """Declare the dead-letter queue, and raise `max_receives` to what the tasks need."""
        settings, dead = declaration.settings, declaration.dead_letter_name
        needed = declaration.attempts + SPARE_RECEIVES
        try:
            existing = queue.settings
        except Refused:
            return  # a user that may only publish: the worker declares the queue
        changes: dict[str, Any] = {}
        if dead is not None and existing.dead_letter is None:
            # The first app that uses the queue. Jobs wait as long as it takes, dead letters too.
            Queue(dead, retention=None, **self.target_options()).close()
            changes = {"dlq": dead, "retention": None, "max_receives": needed, **settings}
        elif declaration.is_raw or existing.dead_letter is None or "max_receives" in settings:
            return
        elif (existing.max_receives or 0) < needed:
            # Never lowered: another app on the same queue may need the higher number.
            changes = {"max_receives": needed}
        if changes:
            Queue(queue.name, **self.target_options(), **changes).close()

    @contextmanager
    def replaced(self, target: dict[str, Any]) -> Iterator[None]:
        """Use another target meanwhile, with the same declarations."""
        with self._lock:
            kept = self.target, self._open, self._async, self._anchor
            self.target, self._open, self._async, self._anchor = target, {}, {}, None
        try:
            yield
        finally:
            self.close()
            with self._lock:
                self.target, self._open, self._async, self._anchor = kept

    def close(self) -> None:
        with self._lock:
            objects = [*self._open.values(), *([] if self._anchor is None else [self._anchor])]
            twins = list(self._async.values())
            self._open.clear()
            self._async.clear()
            self._anchor = None
        for twin in twins:
            twin.inner.close()
        for queue in objects:
            queue.close()


def target_keywords(
    *,
    url: str | None,
    path: str | os.PathLike[str] | None,
    broker: LibraryBroker | None,
    clock: Clock | None,
    token: str | None,
    ca: str | None,
    reconnect: float | None,
) -> dict[str, Any]:
    if sum(each is not None for each in (url, path, broker)) > 1:
        raise InvalidTask("give one of url, path and broker")
    given = {
        "url": url,
        "path": path,
        "broker": broker,
        "clock": clock,
        "token": token,
        "ca": ca,
        "reconnect": reconnect,
    }
    return {name: value for name, value in given.items() if value is not None}
