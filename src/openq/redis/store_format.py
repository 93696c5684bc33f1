"""The format of a store in Redis: a number beside its keys, which every process checks when it starts.

Versions of one format can share a store: each has its own functions, and all read the same keys. The number
rises with keys that an earlier version would misread; then the earlier one refuses to start.
"""

from __future__ import annotations

from .._version import __version__
from ..errors import NewerFormat
from .net.calls import Calls

FORMAT = 1


def check_format(calls: Calls, prefix: str) -> None:
    """Raises NewerFormat; notes our format where there is none, or an earlier one."""
    key = f"{prefix}:{{meta}}:format".encode()
    found = calls.call(key, "GET", key, idempotent=True)
    number = int(found) if found is not None and found.isdigit() else 0
    if number > FORMAT:
        raise NewerFormat(str(calls.address), f"format {number}", f"OpenQ {__version__} reads {FORMAT}")
    if number < FORMAT:
        # While two versions start at once, the later format must win.
        condition = () if number else ("NX",)
        calls.call(key, "SET", key, str(FORMAT), *condition, idempotent=True)
