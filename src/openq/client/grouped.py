"""Calls of many threads that share requests to a server: client-side group commit.

A call that finds few others under way sends its own request, as if there were no groups. Further calls wait
for a thread that sends all that have gathered in one request, and then the next. There is no timer. The
thread is not one of the callers: an exception that interrupts a caller must not touch the calls of others.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from ..errors import OpenQError

MAX_CALLS = 1_000  # in one request
MAX_BYTES = 4 << 20  # of their bodies
MAX_DIRECT = 4  # callers that send their own request at the same time
_MAX_QUEUES = 1_000  # that are remembered without a call
_IDLE_S = 1.0  # then the thread ends; the next group starts another

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Call(Generic[Item, Result]):
    __slots__ = ("gate", "item", "result")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.gate = threading.Lock()
        self.gate.acquire()
        self.result: Result | BaseException


class GroupedCalls(Generic[Item, Result]):
    """The calls of one kind on one queue. `send` returns the result or the error of each item."""

    def __init__(
        self, send: Callable[[list[Item]], Sequence[Result | OpenQError]], size_of: Callable[[Item], int]
    ) -> None:
        self._send = send
        self._size_of = size_of
        self.begin()
        _groups.add(self)

    def begin(self) -> None:
        """Without any call, as a forked child does: it has neither the thread nor the other callers."""
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._waiting: list[_Call[Item, Result]] = []  # for the next request
        self._direct = 0
        self._has_thread = self._is_idle = False

    @property
    def is_unused(self) -> bool:
        return not (self._direct or self._has_thread)

    @property
    def waiting(self) -> int:
        """Calls that leave with the next request."""
        return len(self._waiting)

    def call(self, item: Item) -> Result:
        """The result of this item; raises its error."""
        with self._lock:
            is_direct = self._direct < MAX_DIRECT and not self._waiting
            if is_direct:
                self._direct += 1
            else:
                call: _Call[Item, Result] = _Call(item)
                self._waiting.append(call)
                if not self._has_thread:
                    self._start()
                elif self._is_idle:
                    self._wake.notify()
        if not is_direct:
            return self._wait(call)
        try:
            [result] = one_for_each(1, self._send([item]))
        finally:
            with self._lock:
                self._direct -= 1
        if isinstance(result, BaseException):
            raise result
        return result

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="openq-group", daemon=True)
        self._has_thread = True
        try:
            thread.start()
        except BaseException:
            self._has_thread = False
            self._waiting.pop()
            raise

    def _wait(self, call: _Call[Item, Result]) -> Result:
        try:
            call.gate.acquire()
        except BaseException:
            with self._lock:
                if call in self._waiting:
                    self._waiting.remove(call)  # it did not leave
            raise
        result = call.result
        if isinstance(result, BaseException):
            raise copy_of(result)
        return result

    # -- in the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._is_idle = True
                    woken = self._wake.wait(_IDLE_S)
                    self._is_idle = False
                    if not woken and not self._waiting:
                        self._has_thread = False
                        return
                count = leading([self._size_of(each.item) for each in self._waiting])
                group, self._waiting = self._waiting[:count], self._waiting[count:]
            results: Sequence[Result | BaseException]
            try:
                results = one_for_each(count, self._send([each.item for each in group]))
            except BaseException as error:
                results = [error] * count
            for call, result in zip(group, results, strict=True):
                call.result = result
                call.gate.release()


_groups: weakref.WeakSet[GroupedCalls[Any, Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for each in list(_groups):
        each.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class CallsByQueue(Generic[Item, Result]):
    """The calls of one kind on the queues of one server."""

    def __init__(
        self,
        send: Callable[[str, list[Item]], Sequence[Result | OpenQError]],
        size_of: Callable[[Item], int] = lambda item: 0,
    ) -> None:
        self._send = send
        self._size_of = size_of
        self._queues: dict[str, GroupedCalls[Item, Result]] = {}

    def call(self, queue: str, item: Item) -> Result:
        calls = self._queues.get(queue)
        if calls is None:
            if len(self._queues) >= _MAX_QUEUES:
                known = list(self._queues.items())  # other threads add to it
                self._queues = {name: each for name, each in known if not each.is_unused}
            calls = GroupedCalls(partial(self._send, queue), self._size_of)
            calls = self._queues.setdefault(queue, calls)
        return calls.call(item)


def leading(sizes: Sequence[int]) -> int:
    """How many calls, beginning with the first, fit into one request."""
    total = 0
    for i, size in enumerate(sizes[:MAX_CALLS]):
        total += size
        if total > MAX_BYTES and i:
            return i
    return min(len(sizes), MAX_CALLS)


def one_for_each(count: int, results: Sequence[Result]) -> Sequence[Result]:
    """Whose result is whose would be a guess if there are fewer or more of them."""
    if len(results) != count:
        raise OpenQError(f"the server answered {len(results)} of {count} calls")
    return results


E = TypeVar("E", bound=BaseException)


def copy_of(error: E) -> E:
    """For each caller that raises it: a traceback belongs to one of them."""
    if not isinstance(error, OpenQError):
        return error
    # Not through its constructor, which builds the sentence from parts.
    copy: Any = type(error).__new__(type(error))
    copy.args = error.args
    vars(copy).update(vars(error))
    copy.__cause__ = error.__cause__
    copy.__suppress_context__ = True
    return cast(E, copy)
