"""Message ids: a random prefix for each store, then the sequence number of the message."""

from __future__ import annotations

import os


def new_prefix() -> str:
    """A UUID of version 8 without its last twelve digits, which number the messages."""
    node = os.urandom(8).hex()
    return f"{node[:8]}-{node[8:12]}-8{node[12:15]}-8{node[:3]}-"
