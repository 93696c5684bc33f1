"""A trace function for a while, in a process where anything may have run before."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Delivered(BaseException):
    pass


@contextmanager
def traced(trace: Any) -> Iterator[None]:
    """Like `sys.settrace`, for the block; then what was there before, such as a debugger's.

    While an exception from outside is pending for any thread, a blocked or ended one too, Python 3.11 loops
    for ever at the first call that is traced. Delivering one ends that.
    """
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_Delivered)
        )
        for _ in range(1_000):
            pass
    except _Delivered:
        pass
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
