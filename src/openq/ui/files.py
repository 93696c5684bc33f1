"""The files of the dashboard: found by name, read once, with their compressed form and their ETag.

The build (`make web`) is in `static/` beside this file. It may appear or be replaced while the server runs:
names without a hash are checked for changes at every request, which costs one `stat`.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent
STATIC = PACKAGE / "static"
PAGES = PACKAGE / "pages"

# Names as a build makes them. No name begins with a dot, so none leaves its directory.
_NAME = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9_.@-]*(?:/[A-Za-z0-9_@-][A-Za-z0-9_.@-]*){0,4}")
HASHED = "assets/"  # below it a name holds a hash of the content
_MAX_FILE_BYTES = 16 << 20
_BINARY = b"application/octet-stream"
TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".ico": b"image/x-icon",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".map": b"application/json",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".webmanifest": b"application/manifest+json",
    ".woff2": b"font/woff2",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    content_type: bytes
    body: bytes
    etag: bytes
    compressed: bytes | None  # gzip
    version: tuple[int, int]  # of the file on disk
    is_hashed: bool


class WebFiles:
    """The files below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, WebFile] = {}

    def find(self, name: str) -> WebFile | None:
        """A file by its name below the directory; None if there is none."""
        known = self._files.get(name)
        if known is not None and known.is_hashed:
            return known
        if _NAME.fullmatch(name) is None or name.endswith(".gz"):
            return None
        path = self._directory / name
        try:
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if known is not None and known.version == version:
                return known
            if not path.is_file() or stat.st_size > _MAX_FILE_BYTES:
                return None
            body = path.read_bytes()
        except OSError:  # missing, or being replaced
            return None
        compressed = _read_compressed(path, stat.st_mtime_ns)
        found = WebFile(
            TYPES.get(path.suffix, _BINARY),
            body,
            hashlib.sha256(body).hexdigest()[:20].encode(),
            compressed,
            version,
            name.startswith(HASHED) and compressed is not None,
        )
        # A build writes the compressed file last: without it the file is read again at the next request.
        if compressed is not None:
            self._files[name] = found
        return found


def _read_compressed(path: Path, changed_ns: int) -> bytes | None:
    """The gzip form, unless it belongs to an earlier build."""
    other = f"{path}.gz"
    try:
        if os.stat(other).st_mtime_ns < changed_ns:
            return None
        with open(other, "rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError:
        return None
