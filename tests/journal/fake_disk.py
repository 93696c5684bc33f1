"""A disk that remembers what was synced, can lose the rest, and fails on demand.

The files are real, so that the code under test works on them as usual. Beside them the model keeps what
would survive a power cut: the content of a file at its last sync, and the names in a folder at that
folder's last sync. `cut` writes such a state to another folder.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from threading import RLock

from openq.journal.disk import DiskIo

SECTOR = 512


class Inode:
    def __init__(self) -> None:
        self.synced = bytearray()
        self.unsynced: list[tuple[int, bytes]] = []
        self.size = 0

    def sync(self) -> None:
        for offset, data in self.unsynced:
            apply(self.synced, offset, data)
        self.unsynced = []

    def after_cut(self, rng: random.Random | None) -> bytes:
        """Synced content; with `rng`, each unsynced sector may or may not have reached the disk."""
        content = bytearray(self.synced)
        for offset, data in self.unsynced if rng is not None else []:
            pos = 0
            while pos < len(data):
                step = SECTOR - (offset + pos) % SECTOR
                if rng is not None and rng.random() < 0.5:
                    apply(content, offset + pos, data[pos : pos + step])
                pos += step
        return bytes(content)


def apply(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class FakeDisk(DiskIo):
    """`fault(operation, n)` is asked before the n-th changing call and may raise, or return "short"/"torn".

    `capacity` bounds the bytes of all files; `lies` names operations that do nothing but say they did.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        fault: Callable[[str, int], str | None] | None = None,
        capacity: int | None = None,
        lies: frozenset[str] = frozenset(),
    ) -> None:
        self.root = os.path.abspath(root)
        self.fault = fault
        self.capacity = capacity
        self.lies = lies
        self.calls: list[str] = []
        self.dead = False
        self._mutex = RLock()
        self._open: dict[int, Inode] = {}
        self._names: dict[str, Inode | None] = {}  # None: a folder
        self._synced_names: dict[str, Inode | None] = {}
        self._name_changes: list[tuple[str, Inode | None, bool]] = []  # path, what, present
        self._adopt_existing()

    def _adopt_existing(self) -> None:
        for folder, folders, files in os.walk(self.root):
            for name in folders:
                self._names[os.path.join(folder, name)] = None
            for name in files:
                inode = Inode()
                with open(os.path.join(folder, name), "rb") as file:
                    inode.synced = bytearray(file.read())
                inode.size = len(inode.synced)
                self._names[os.path.join(folder, name)] = inode
        self._synced_names = dict(self._names)

    # -- the power cut

    def cut(self, target: str | os.PathLike[str], rng: random.Random | None = None) -> None:
        """Write to `target` what a power cut now would leave."""
        with self._mutex:
            names = dict(self._synced_names)
            if rng is not None:
                # A journalling file system keeps the order of changes to names.
                for path, inode, present in self._name_changes[: rng.randint(0, len(self._name_changes))]:
                    if present:
                        names[path] = inode
                    else:
                        names.pop(path, None)
            os.makedirs(target, exist_ok=True)
            for path, inode in sorted(names.items()):
                place = os.path.join(target, os.path.relpath(path, self.root))
                if not os.path.isdir(os.path.dirname(place)):
                    continue  # its folder did not survive
                if inode is None:
                    os.makedirs(place, exist_ok=True)
                else:
                    with open(place, "wb") as file:
                        file.write(inode.after_cut(rng))

    def die(self) -> None:
        """From now on every call fails, as for a process that is gone."""
        self.dead = True

    # -- the calls

    def _enter(self, operation: str) -> str | None:
        if self.dead:
            raise OSError(errno.EIO, "the disk is gone")
        self.calls.append(operation)
        if self.fault is not None:
            return self.fault(operation, len(self.calls))
        return None

    def _need(self, inode: Inode, size: int) -> None:
        if self.capacity is not None and size > inode.size:
            used = sum(i.size for i in set(self._names.values()) | set(self._open.values()) if i is not None)
            if used + size - inode.size > self.capacity:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode.size = max(inode.size, size)

    def _change(self, path: str, inode: Inode | None, present: bool) -> None:
        if present:
            self._names[path] = inode
        else:
            self._names.pop(path, None)
        self._name_changes.append((path, inode, present))

    def open(self, path: str, flags: int) -> int:
        with self._mutex:
            if flags & os.O_CREAT:
                self._enter("create")
            fd = super().open(path, flags)
            if path not in self._names:
                self._change(path, Inode(), True)
            inode = self._names[path]
            assert inode is not None
            if flags & os.O_TRUNC:
                inode.size = 0
                inode.synced = bytearray()
            self._open[fd] = inode
            return fd

    def close(self, fd: int) -> None:
        with self._mutex:
            self._open.pop(fd, None)
            super().close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        with self._mutex:
            what = self._enter("pwrite")
            content = bytes(data)
            if what in ("short", "torn"):
                content = content[: max(1, len(content) // 2)]
            inode = self._open[fd]
            self._need(inode, offset + len(content))
            inode.unsynced.append((offset, content))
            super().pwrite(fd, content, offset)
            if what == "torn":
                self.die()
                raise OSError(errno.EIO, "torn write")
            return len(content)

    def pwritev(self, fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        return self.pwrite(fd, b"".join(pieces), offset)

    def fallocate(self, fd: int, size: int) -> None:
        with self._mutex:
            self._enter("fallocate")
            inode = self._open[fd]
            old = inode.size
            self._need(inode, size)
            if size > old:
                inode.unsynced.append((old, bytes(size - old)))
            os.ftruncate(fd, max(size, os.fstat(fd).st_size))

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _sync(self, operation: str, fd: int) -> None:
        with self._mutex:
            self._enter(operation)
            if operation not in self.lies:
                self._open[fd].sync()

    def fsync_dir(self, path: str) -> None:
        with self._mutex:
            self._enter("fsync_dir")
            if "fsync_dir" in self.lies:
                return
            path = os.path.abspath(path)
            rest = []
            for change in self._name_changes:
                name, inode, present = change
                if os.path.dirname(name) != path:
                    rest.append(change)
                elif present:
                    self._synced_names[name] = inode
                else:
                    self._synced_names.pop(name, None)
            self._name_changes = rest

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            self._enter("rename")
            super().rename(old, new)
            inode = self._names[old]
            self._change(new, inode, True)
            self._change(old, inode, False)

    def unlink(self, path: str) -> None:
        with self._mutex:
            if not os.path.exists(path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._enter("unlink")
            super().unlink(path)
            self._change(path, self._names.get(path), False)

    def mkdir(self, path: str) -> None:
        with self._mutex:
            if os.path.isdir(path):
                return
            self._enter("mkdir")
            super().mkdir(path)
            while path not in self._names and path != self.root:
                self._change(path, None, True)
                path = os.path.dirname(path)

    def free_bytes(self, path: str) -> int:
        if self.capacity is None:
            return super().free_bytes(path)
        with self._mutex:
            return self.capacity - sum(i.size for i in set(self._names.values()) if i is not None)


def fail_nth(n: int, error: int) -> Callable[[str, int], str | None]:
    """The n-th call fails once with this errno."""

    def fault(operation: str, count: int) -> str | None:
        if count == n:
            raise OSError(error, os.strerror(error))
        return None

    return fault


def nth_write(n: int, what: str) -> Callable[[str, int], str | None]:
    """The n-th call, if it is a write, is cut short; "torn": and nothing works after it."""
    return lambda operation, count: what if count == n and operation == "pwrite" else None
