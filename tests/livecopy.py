"""A copy of a data directory that a broker is using: the disk as a crash would leave it."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_live(source: Path, target: Path) -> None:
    """Begins again when a file was renamed or removed under the copy: it would be of two moments."""
    while True:
        try:
            shutil.copytree(source, target)
            return
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target, ignore_errors=True)
