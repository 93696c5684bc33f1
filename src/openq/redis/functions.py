"""The Redis Functions of OpenQ: one library per version of their text, so that versions can coexist.

The names of the functions contain a digest of the text. Servers of two versions of OpenQ can work on the same
store during an upgrade, each with its own functions.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any

from ..errors import StoreError
from .net.calls import Calls

_TRIES = 3
_PARTS = (
    "1_state.lua",
    "2_lifecycle.lua",
    "3_publish.lua",
    "4_consumers.lua",
    "5_operators.lua",
    "6_subscriptions.lua",
    "7_queues.lua",
    "8_stages.lua",
    "9_schedules.lua",
    "10_kv.lua",
)


def _source() -> tuple[str, str]:
    folder = resources.files(__package__) / "lua"
    text = "\n".join((folder / part).read_text(encoding="utf-8") for part in _PARTS)
    version = hashlib.sha256(text.encode()).hexdigest()[:8]
    return version, f"#!lua name=openq_{version}\nlocal PREFIX = 'oq{version}_'\n{text}"


VERSION, SOURCE = _source()

# The writes of these need no confirmed copies: a lease that a failover undoes is assigned again.
_LEASING = ("receive", "hold", "tick", "tidy_batches", "watch_events")
_PAGES = ("browse", "browse_delayed", "in_flight", "scan_ready", "ready_seqs", "rear", "look", "read_batch")
_READING = (
    *_PAGES,
    "seqs_of",
    "standing",
    "stats",
    "open_batches",
    "kv_get",
    "kv_list",
    "kv_watch",
    "kv_sweep",
)
_UNCONFIRMED = frozenset((*_LEASING, *_READING))


def function_name(name: str) -> bytes:
    """The name of a function in Redis."""
    return f"oq{VERSION}_{name}".encode()


def call_function(calls: Calls, key: bytes, name: str, *args: Any, idempotent: bool = True) -> Any:
    """Call a function of this version; the library is loaded where it is missing."""
    for _ in range(_TRIES):
        try:
            return calls.call(
                *(key, b"FCALL", function_name(name), 1, key, *args),
                idempotent=idempotent,
                is_confirmed=name not in _UNCONFIRMED,
            )
        except StoreError as error:
            if "Function not found" not in str(error):
                raise
            load_functions(calls, key)  # a new node, or one that was emptied
    raise StoreError(f"the functions of OpenQ cannot be loaded into {calls.address}")


def load_functions(calls: Calls, key: bytes) -> None:
    """Load the library into the node that serves `key`."""
    try:
        calls.call(key, "FUNCTION", "LOAD", SOURCE, idempotent=True, is_confirmed=False)
    except StoreError as error:
        if "already exists" not in str(error):
            raise
