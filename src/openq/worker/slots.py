"""A thread that runs handlers, and how an exception is raised in it from outside.

Python raises such an exception at the next bytecode of the thread, so a handler that blocks in a C call gets
it when that call returns. The lock makes sure that an exception for one job never hits the next: it is raised
only while the job is in the slot, and a pending one is cleared when the job leaves.

A handler that is in the broker of this process gets it after that call: in the middle of a change it would
leave the broker in doubt. `Interrupter` tries again until the call has ended. The wait for the disk may be
interrupted. An exception that hits a destructor or the callback of a weak reference is ignored by Python:
then `Interrupter` raises it again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from ..errors import Interruption

if TYPE_CHECKING:
    from .active import ActiveJob

RETRY_S = 0.002
_BROKER = ("openq.engine.", "openq.local.", "openq.journal.")
_RUN = ("openq.worker.execution", "run")
_DISK_WAIT = ("openq.journal.writer", "wait")  # without the lock; an interrupted commit is done again


class Slot:
    __slots__ = ("_is_pending", "_lock", "job", "thread_id")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_pending = False
        self.job: ActiveJob | None = None
        self.thread_id = threading.get_ident()

    def enter(self, job: ActiveJob) -> None:
        job.slot = self
        self.job = job

    def leave(self) -> None:
        """After the handler; may be called twice."""
        with self._lock:
            self.job = None
            if self._is_pending:
                self._is_pending = False
                _withdraw(self.thread_id)

    def interrupt(self, job: ActiveJob, kind: type[BaseException]) -> bool:
        """Raise an exception in the handler of this job, once. False if it does not run here any more."""
        with self._lock:
            if self.job is not job or job.interrupt is not None:
                return False
            job.interrupt = kind
        if not self.try_raise(job, kind):
            _interrupter.add(self, job, kind)
        return True

    def try_raise(self, job: ActiveJob, kind: type[BaseException]) -> bool:
        """False if the handler is in the broker of this process now."""
        with self._lock:
            if self.job is not job:
                return True  # it has ended
            if self._is_in_broker():
                return False
            self._is_pending = True
            _watch_ignored(self)
            _raise_in(self.thread_id, kind)
            if self._is_in_broker():
                # It went on between the look and the exception: take that back.
                self._is_pending = False
                _raise_in(self.thread_id, None)
                return False
            return True

    def _is_in_broker(self) -> bool:
        frame: FrameType | None = sys._current_frames().get(self.thread_id)
        is_inside = False
        while frame is not None:
            module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
            if (module, name) == _DISK_WAIT:
                return False
            if (module, name) == _RUN:
                break
            is_inside = is_inside or module.startswith(_BROKER)
            frame = frame.f_back
        return is_inside


class Interrupter:
    """Raises the exceptions that had to wait. Its thread runs while there are some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Slot, ActiveJob, type[BaseException]]] = []
        self._is_running = False

    def add(self, slot: Slot, job: ActiveJob, kind: type[BaseException]) -> None:
        with self._lock:
            self._waiting.append((slot, job, kind))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="openq-interrupter", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(RETRY_S)
            with self._lock:
                self._waiting = [each for each in self._waiting if not each[0].try_raise(each[1], each[2])]
                if not self._waiting:
                    self._is_running = False
                    return


_interrupter = Interrupter()
_hook_before: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
_slots: dict[int, Slot] = {}  # by thread


def _hook(ignored: sys.UnraisableHookArgs) -> None:
    """In the thread that ignored an exception."""
    slot = _slots.get(threading.get_ident())
    job = None if slot is None else slot.job
    if slot is not None and job is not None and issubclass(ignored.exc_type, Interruption):
        _interrupter.add(slot, job, ignored.exc_type)
    else:
        _hook_before(ignored)


def _watch_ignored(slot: Slot) -> None:
    global _hook_before
    _slots[slot.thread_id] = slot
    if sys.unraisablehook is not _hook:
        _hook_before, sys.unraisablehook = sys.unraisablehook, _hook


def _raise_in(thread_id: int, kind: type[BaseException] | None) -> None:
    import ctypes  # imported late: most workers never interrupt a thread

    exception = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), exception)


class _Delivered(BaseException):
    """Ends the search of the interpreter for pending exceptions."""


def _withdraw(thread_id: int) -> None:
    """Take back the exception of a thread, if one is pending.

    Every call of `PyThreadState_SetAsyncExc` makes the interpreter look for pending exceptions until one is
    delivered: all calls and loops of the process are slower meanwhile, and in Python 3.11 a trace function
    (a debugger, coverage) makes the interpreter loop for ever. So this thread delivers one to itself.
    """
    _raise_in(thread_id, None)
    if thread_id == threading.get_ident():
        try:
            _raise_in(thread_id, _Delivered)
            for _ in range(1_000):
                pass
        except _Delivered:
            pass
