"""Hooks hear every arrival in a queue, from any publisher, each once.

The messages that a queue object publishes itself are passed to its hooks by `publish`, before it returns. All
others come from the events of the queue, in a thread, which leaves out the own ones: `publishing` marks a
publish under way, and the thread looks at the ids only after the publishes that had begun before are over.

The thread begins with the first hook. A queue without hooks has none, and pays nothing.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ..broker import events as e
from ..broker.events import EventFilter
from ..errors import OpenQError
from ..model import Entry
from ..names import split_name
from .core import QueueCore, QueueObject
from .event_pages import GAP, EventItem, EventPages
from .events import open_queue_pages
from .message import Message, PeekedMessage

log = logging.getLogger("openq")

_MOVES = frozenset((e.DEAD_LETTERED, e.REDRIVEN, e.MOVED))
_WANTED = _MOVES | {e.PUBLISHED}


class Arrivals:
    """The arrivals of one queue object. `heard` is its method that passes a message to its hooks."""

    def __init__(self, queue: QueueObject, heard: Callable[[Message], None]) -> None:
        # The thread must not keep the queue open.
        self._queue = weakref.ref(queue)
        self._core: weakref.ref[QueueCore] = weakref.ref(queue.core)
        self._heard = weakref.WeakMethod(heard)
        self._name = queue.core.name
        self._changed = threading.Condition()
        self._active: set[object] = set()  # publishes under way
        self._own: dict[str, int] = {}  # ids that this object published and the thread has not seen
        self._pages: EventPages | None = None
        try:
            wanted = EventFilter(events=_WANTED, names=frozenset((self._name,)))
            self._pages = open_queue_pages(queue.core.broker, wanted, None, bodies=True, follow=True)
        except OpenQError as error:
            log.warning("hooks of queue %r hear only what this object publishes: %s", self._name, error)
            return
        threading.Thread(target=self._listen, args=(self._pages,), name="openq-arrivals", daemon=True).start()

    @contextmanager
    def publishing(self) -> Iterator[Callable[[Iterable[str]], None]]:
        """Around a publish of this object; what is yielded is called with the ids of new messages."""
        token = object()
        self._active.add(token)
        try:
            yield self._claim
        finally:
            with self._changed:
                self._active.discard(token)
                self._changed.notify_all()

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()

    def _claim(self, ids: Iterable[str]) -> None:
        if self._pages is None:
            return
        with self._changed:
            for message_id in ids:
                self._own[message_id] = self._own.get(message_id, 0) + 1

    # -- the thread

    def _listen(self, pages: EventPages) -> None:
        try:
            while (page := pages.next_page()) is not None:
                if page:
                    self._report(page)
                core = self._core()
                if core is None or core.closed:
                    break
        except OpenQError as error:
            log.error("hooks of queue %r hear no other arrivals any more: %s", self._name, error)
        pages.close()

    def _report(self, page: Sequence[EventItem]) -> None:
        with self._changed:
            begun = frozenset(self._active)
            self._changed.wait_for(lambda: not begun & self._active)
        for item in page:
            message_id = item.message_id
            if item.event == GAP:
                with self._changed:
                    self._own.clear()  # their events may be lost
            elif message_id is None or item.queue is None:
                continue
            elif item.event == e.PUBLISHED:
                if not self._is_own(message_id):
                    self._pass_on(message_id, item.entry)
            elif item.detail.get("to") == split_name(self._name)[1]:
                self._pass_on(message_id, None)  # a message that moved here: the event has no body

    def _is_own(self, message_id: str) -> bool:
        with self._changed:
            count = self._own.pop(message_id, 0)
            if count > 1:
                self._own[message_id] = count - 1
        return count > 0

    def _pass_on(self, message_id: str, entry: Entry | None) -> None:
        queue, heard = self._queue(), self._heard()
        if queue is None or heard is None:
            return
        if entry is None:
            try:
                entry = queue.core.broker.inspect.find(self._name, message_id)
            except OpenQError:
                return  # it has left the queue again
        heard(PeekedMessage(queue, entry))
