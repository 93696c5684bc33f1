"""A request that waits: it is tried in a thread, and again when the broker notifies it."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from typing import Generic, TypeVar

from .call import RestCall

T = TypeVar("T")


class RetryPoll(Generic[T]):
    """Calls `attempt` in a thread until it returns a result, then `answer` on the loop.

    After `wait_s` seconds, or when the server stops, `answer` gets None. `leave` ends the notifications: it
    is called once if `wait_s` is positive. A client that closes its half of the connection counts as gone,
    also during an attempt: nothing would notice later that it has left.
    """

    def __init__(
        self,
        call: RestCall,
        attempt: Callable[[], T | None],
        answer: Callable[[T | None], None],
        wait_s: float,
        leave: Callable[[], object],
    ) -> None:
        self._call = call
        self._attempt = attempt
        self._answer = answer
        self._wait_s = wait_s
        self._leave = leave
        self._timer: TimerHandle | None = None
        self._is_working = False
        self._is_notified = False
        self._is_over = False

    def start(self) -> None:
        call = self._call
        if self._wait_s > 0:
            self._timer = call.context.loop.call_later(self._wait_s, self.end)
            call.context.long_polls.add(self)
            call.request.on_gone = self.end
            call.request.waited = True
        if call.request.gone:
            self.end()
        else:
            self._try()

    def notify(self, *_: object) -> None:
        """The broker's lock is held; any thread."""
        try:
            self._call.context.loop.call_soon_threadsafe(self._notified)
        except RuntimeError:
            pass  # the loop is closed

    def end(self) -> None:
        """Timeout, disconnect, or stop of the server."""
        if self._is_over:
            return
        self._is_over = True
        if not self._is_working:
            self._tried(None, None)

    def _try(self) -> None:
        self._is_working, self._is_notified = True, False
        self._call.context.run(self._attempt, self._tried)

    def _tried(self, result: T | None, error: BaseException | None) -> None:
        call = self._call
        self._is_working = False
        if result is None and error is None and not self._is_over and self._wait_s > 0:
            self._wait()
            return
        self._finish()
        if call.request.gone:
            return
        try:
            if error is not None:
                raise error
            self._answer(result)
        except Exception as failure:
            call.fail(failure)

    def _wait(self) -> None:
        if self._is_notified:
            self._try()

    def _notified(self) -> None:
        if self._is_over:
            return
        if self._is_working:
            self._is_notified = True
            return
        self._try()

    def _finish(self) -> None:
        call = self._call
        self._is_over = True
        call.request.on_gone = None
        if self._timer is not None:
            self._timer.cancel()
        call.context.long_polls.discard(self)
        if self._wait_s > 0:
            self._leave()
