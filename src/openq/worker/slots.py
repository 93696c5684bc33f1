"""A thread that runs handlers, and how an exception is raised in it from outside.

Python raises such an exception at the next bytecode of the thread, so a handler that blocks in a C call gets
it when that call returns. The lock makes sure that an exception for one job never hits the next: it is raised
only while the job is in the slot, and a pending one is cleared when the job leaves.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .active import ActiveJob


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
                _raise_in(self.thread_id, None)

    def interrupt(self, job: ActiveJob, kind: type[BaseException]) -> bool:
        """Raise an exception in the handler of this job, once. False if it does not run here any more."""
        with self._lock:
            if self.job is not job or job.interrupt is not None:
                return False
            job.interrupt = kind
            self._is_pending = True
            _raise_in(self.thread_id, kind)
            return True


def _raise_in(thread_id: int, kind: type[BaseException] | None) -> None:
    import ctypes  # imported late: most workers never interrupt a thread

    exception = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), exception)
