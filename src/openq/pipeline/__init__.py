"""Queue traffic and its history in Spark: sources, sinks and the jobs over them. Needs `openq[spark]`.

The public names are loaded on first use. Some have the name of their file: `openq.pipeline.history` is always
the function, also after an import from that file.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analytics import analytics as analytics
    from .archive import archive as archive
    from .history import history as history
    from .redrive import redrive as redrive
    from .replay import replay as replay
    from .session import reason as reason
    from .session import session as session
    from .sqljob import sql as sql
    from .transfer import export as export
    from .transfer import load as load
    from .triage import triage as triage

_PUBLIC = {
    "session": "session",
    "reason": "session",
    "history": "history",
    "archive": "archive",
    "analytics": "analytics",
    "triage": "triage",
    "redrive": "redrive",
    "replay": "replay",
    "sql": "sqljob",
    "load": "transfer",
    "export": "transfer",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    home = _PUBLIC.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


class _Package(ModuleType):
    """Python sets an imported submodule as an attribute of its package; public names have priority."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PUBLIC and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
