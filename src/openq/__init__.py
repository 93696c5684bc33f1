"""OpenQ: the message queue you pip install. The public names, nothing else.

They are imported on first use, so that a command or a server that needs only some of them starts quickly.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .client.consumer import Consumer as Consumer
    from .client.events import EventStream as EventStream
    from .client.events import QueueEvent as QueueEvent
    from .client.http import Refused as Refused
    from .client.http import TimedOut as TimedOut
    from .client.http import Uncertain as Uncertain
    from .client.http import Unreachable as Unreachable
    from .client.kv import KeyValue as KeyValue
    from .client.message import Message as Message
    from .client.producer import Producer as Producer
    from .client.queues import OpenQ as OpenQ
    from .client.queues import Queue as Queue
    from .client.simple import SimpleQueue as SimpleQueue
    from .clock import SystemClock as SystemClock
    from .clock import VirtualClock as VirtualClock
    from .engine.key_values import KvEntry as KvEntry
    from .engine.key_values import KvPut as KvPut
    from .errors import CannotOpen as CannotOpen
    from .errors import Closed as Closed
    from .errors import DirectoryInUse as DirectoryInUse
    from .errors import DiskFull as DiskFull
    from .errors import ExchangeInUse as ExchangeInUse
    from .errors import ExchangeNotFound as ExchangeNotFound
    from .errors import Forked as Forked
    from .errors import HistoryUnavailable as HistoryUnavailable
    from .errors import InvalidSetting as InvalidSetting
    from .errors import JournalDamaged as JournalDamaged
    from .errors import JournalFailed as JournalFailed
    from .errors import KvConflict as KvConflict
    from .errors import KvFull as KvFull
    from .errors import MessageNotFoundError as MessageNotFoundError
    from .errors import NotOnThisStore as NotOnThisStore
    from .errors import NotReplicated as NotReplicated
    from .errors import OpenQError as OpenQError
    from .errors import QueueExists as QueueExists
    from .errors import QueueFull as QueueFull
    from .errors import QueueInUse as QueueInUse
    from .errors import QueueNotFound as QueueNotFound
    from .errors import ScheduleNotFound as ScheduleNotFound
    from .errors import StoreError as StoreError
    from .errors import StoreFull as StoreFull
    from .errors import StoreUnavailable as StoreUnavailable
    from .errors import VisibilityTimeoutExpired as VisibilityTimeoutExpired
    from .model import RetryPolicy as RetryPolicy

if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():  # Python 3.13 and later
    import warnings

    # The engine, the journal and the client are tested with the global interpreter lock only.
    warnings.warn(
        "OpenQ is not supported on free-threaded Python: run it with PYTHON_GIL=1",
        RuntimeWarning,
        stacklevel=2,
    )

_HOMES = {
    "client.queues": ("OpenQ", "Queue"),
    "client.simple": ("SimpleQueue",),
    "client.http": ("Unreachable", "Uncertain", "TimedOut", "Refused"),
    "client.message": ("Message",),
    "client.kv": ("KeyValue",),
    "client.events": ("EventStream", "QueueEvent"),
    "client.producer": ("Producer",),
    "client.consumer": ("Consumer",),
    "engine.key_values": ("KvEntry", "KvPut"),
    "model": ("RetryPolicy",),
    "clock": ("SystemClock", "VirtualClock"),
    "errors": (
        "OpenQError",
        "VisibilityTimeoutExpired",
        "MessageNotFoundError",
        "QueueNotFound",
        "QueueExists",
        "QueueInUse",
        "QueueFull",
        "ExchangeNotFound",
        "ExchangeInUse",
        "ScheduleNotFound",
        "InvalidSetting",
        "KvConflict",
        "KvFull",
        "DiskFull",
        "JournalFailed",
        "JournalDamaged",
        "CannotOpen",
        "DirectoryInUse",
        "HistoryUnavailable",
        "Closed",
        "Forked",
        "StoreError",
        "StoreUnavailable",
        "StoreFull",
        "NotReplicated",
        "NotOnThisStore",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'openq' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
