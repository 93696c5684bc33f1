"""Data directories that a command reads without a server."""

from __future__ import annotations

import os

from ..journal.lockfile import RESTORING
from ..journal.scan import SUFFIX
from .api import NotFound


def require_journal(directory: str) -> None:
    """Raises NotFound if the directory holds no journal."""
    if (reason := missing_reason(directory)) is not None:
        raise NotFound(reason)


def missing_reason(directory: str) -> str | None:
    """Why a directory has no journal to read; None if it has one."""
    folder = os.path.join(directory, "journal")
    if not os.path.exists(directory):
        return f"{directory}: no such directory"
    if not os.path.isdir(directory):
        return f"{directory}: not a directory; give the data directory that contains `journal`"
    if os.path.exists(os.path.join(directory, RESTORING)):
        return f"{directory}: a restore into it did not end; run the same `openq restore` again"
    if not os.path.isdir(folder):
        inside = any(name.endswith(SUFFIX) for name in os.listdir(directory))
        parent = os.path.dirname(os.path.abspath(directory))
        hint = f"; did you mean {parent}?" if inside else ", it contains no folder `journal`"
        return f"{directory}: not a data directory of OpenQ{hint}"
    names = os.listdir(folder)
    if not any(name.endswith(SUFFIX) for name in names):
        return f"{folder}: no segment files (*{SUFFIX})" + (
            ", though other files exist: restore them from a backup" if names else ""
        )
    return None
