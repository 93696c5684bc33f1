"""A disk that can lose its power: ext4 in a file. What is in the file is what reached the disk.

Copying the file at the moment of death keeps exactly what the file system wrote out by then; everything
that was only in memory is missing in the copy, as after a power cut. Needs root and loop devices.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

SIZE_MIB = 64


def _run(*command: str | os.PathLike[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@lru_cache
def why_not() -> str | None:
    """The reason why there can be no such disk here; None if there can."""
    if os.geteuid() != 0:
        return "only root may mount"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with LoopDisk(Path(folder)):
                return None
        except (OSError, subprocess.SubprocessError) as error:
            return f"mounting fails ({error})"


class LoopDisk:
    def __init__(self, folder: Path) -> None:
        self.mounted = folder / "mounted"
        self._folder = folder
        self._cuts = 0
        self._image = folder / "image0"

    def __enter__(self) -> LoopDisk:
        self.mounted.mkdir()
        with self._image.open("wb") as file:
            file.truncate(SIZE_MIB << 20)
        # A short commit interval would write out what nobody synced.
        _run("mkfs.ext4", "-q", "-F", self._image)
        self._mount()
        return self

    def __exit__(self, *_: object) -> None:
        self._unmount()
        self._image.unlink()

    def _mount(self) -> None:
        _run("mount", "-o", "loop,commit=300", self._image, self.mounted)

    def _unmount(self) -> None:
        _run("umount", self.mounted)

    def cut(self) -> None:
        """The power fails now; afterwards the disk is there again with what it had."""
        self._cuts += 1
        survivor = self._folder / f"image{self._cuts}"
        _run("cp", "--sparse=always", self._image, survivor)
        self._unmount()  # writes the rest to the old image, which nobody looks at any more
        self._image.unlink()
        self._image = survivor
        self._mount()
