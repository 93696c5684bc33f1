"""A repository of backups: a directory of pieces, and one manifest per backup.

    openq-backup.json      format, and how the key is unlocked
    chunks/ab/ab12...      pieces of files, each stored once; named after their content
    backups/ID.manifest    the files of a backup as lists of pieces

Pieces and manifests are written under a temporary name, synced and renamed; a manifest is written last. So a
backup that was killed leaves pieces that the next one uses, and every backup before it as it was.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Literal

from ..broker.backups import CHUNK_BYTES
from ..errors import InvalidSetting, OpenQError
from .encryption import Cipher, Plain, Secret

FORMAT = 1
HEADER = "openq-backup.json"
CHUNKS, BACKUPS = "chunks", "backups"
_ENDING = ".manifest"
_TEMPORARY = ".tmp"
_LOCK = "lock"
_RAW, _ZLIB = b"r", b"z"
_SAMPLE = 64 << 10


class BackupError(OpenQError):
    """A repository or a backup in it cannot be used; the text says which part and why."""

    code = "backup_failed"


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str
    bytes: int
    stamp: str
    chunks: tuple[str, ...]  # digests of the content


@dataclass(frozen=True, slots=True)
class BackupManifest:
    id: str
    source: str
    journal_id: str
    location: int
    time_ms: int
    version: str
    files: tuple[StoredFile, ...]
    queues: int | None = None
    messages: int | None = None
    added_bytes: int = 0  # of pieces that this backup was the first to need

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class Repository:
    def __init__(self, path: str, cipher: Cipher, is_encrypted: bool) -> None:
        self.path = path
        self.is_encrypted = is_encrypted
        self._cipher = cipher
        self._seen_folders: set[str] = set()

    @classmethod
    def open(cls, path: str, secret: Secret | None = None, *, create: bool = False) -> Repository:
        """Open a repository; with `create` also a missing or empty directory becomes one."""
        path = os.path.abspath(path)
        header_path = os.path.join(path, HEADER)
        if not os.path.exists(header_path):
            if not create:
                raise BackupError(f"{path} is not a repository of backups")
            return cls._make(path, secret)
        header = _read_header(header_path)
        encryption = header.get("encryption")
        if encryption is None:
            if secret is not None:
                raise InvalidSetting(f"{path} is not encrypted: begin another one to encrypt backups")
            return cls(path, Plain(), False)
        if secret is None:
            raise InvalidSetting(f"{path} is encrypted: give its passphrase or key file")
        return cls(path, secret.unlock(encryption), True)

    @classmethod
    def _make(cls, path: str, secret: Secret | None) -> Repository:
        os.makedirs(path, mode=0o700, exist_ok=True)
        others = [name for name in os.listdir(path) if not name.endswith(_TEMPORARY)]
        if others:
            raise BackupError(f"{path} holds other files; give a repository, or an empty or new directory")
        cipher, encryption = (Plain(), None) if secret is None else secret.lock()
        header = {"format": FORMAT, "id": secrets.token_hex(8), "encryption": encryption}
        write_file(os.path.join(path, HEADER), json.dumps(header, indent=1).encode())
        sync_directory(os.path.dirname(path))
        return cls(path, cipher, encryption is not None)

    # -- one writer at a time

    @contextmanager
    def locked(self, *, exclusive: bool = False) -> Iterator[None]:
        """Hold the repository: backups and readers share it; removing pieces needs it alone."""
        fd = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                raise BackupError(f"{self.path} is in use by another command; try again later") from None
            yield
        finally:
            os.close(fd)

    # -- pieces

    def _path_of(self, name: str) -> str:
        return os.path.join(self.path, CHUNKS, name[:2], name)

    def has(self, digest: str) -> bool:
        return os.path.exists(self._path_of(self._cipher.name_of(digest)))

    def put(self, data: bytes) -> tuple[str, int]:
        """Store a piece. Returns its digest and the bytes written: 0 if it was there."""
        digest = sha256(data).hexdigest()
        name = self._cipher.name_of(digest)
        path = self._path_of(name)
        if os.path.exists(path):
            return digest, 0
        folder = os.path.dirname(path)
        if folder not in self._seen_folders:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._seen_folders.add(folder)
        sealed = self._cipher.encrypt(_packed(data), name)
        write_file(path, sealed)
        return digest, len(sealed)

    def get(self, digest: str) -> bytes:
        """The content of a piece. Raises BackupError if it is missing or damaged."""
        name = self._cipher.name_of(digest)
        try:
            with open(self._path_of(name), "rb") as file:
                data = _unpacked(self._cipher.decrypt(file.read(), name))
        except FileNotFoundError:
            raise BackupError(f"piece {name[:16]} is missing") from None
        except (ValueError, zlib.error) as error:
            raise BackupError(f"piece {name[:16]} is damaged: {error}") from None
        if sha256(data).hexdigest() != digest:
            raise BackupError(f"piece {name[:16]} is damaged: its content does not match its digest")
        return data

    def names(self) -> Iterator[tuple[str, str]]:
        """The name and path of each stored piece."""
        root = os.path.join(self.path, CHUNKS)
        for folder in sorted(os.listdir(root)) if os.path.isdir(root) else ():
            for name in sorted(os.listdir(os.path.join(root, folder))):
                yield name, os.path.join(root, folder, name)

    def name_of(self, digest: str) -> str:
        return self._cipher.name_of(digest)

    # -- manifests

    def ids(self) -> list[str]:
        """The oldest first."""
        try:
            names = os.listdir(os.path.join(self.path, BACKUPS))
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))

    def manifest(self, id: str) -> BackupManifest:
        path = self._manifest_path(id)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise BackupError(f"there is no backup {id[:60]!r}; `openq backup ls` lists them") from None
        try:
            text = self._cipher.decrypt(data, f"manifest {id}")
            digest, _, body = text.partition(b"\n")
            if sha256(body).hexdigest().encode() != digest:
                raise ValueError("it does not match its checksum")
            return _parse(json.loads(body), id)
        except (ValueError, KeyError, TypeError) as error:
            raise BackupError(f"backup {id} is damaged: {error}") from None

    def latest(self) -> BackupManifest:
        """The newest backup that can be read."""
        ids = self.ids()
        if not ids:
            raise BackupError(f"{self.path} has no complete backup")
        return self.manifest(ids[-1])

    def add(self, manifest: BackupManifest) -> None:
        """Everything that it names is on disk when this returns, and then the backup exists."""
        folder = os.path.join(self.path, BACKUPS)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for each in self._seen_folders:
            sync_directory(each)
        if self._seen_folders:
            sync_directory(os.path.join(self.path, CHUNKS))
        sync_directory(self.path)
        body = json.dumps({"format": FORMAT, **asdict(manifest)}, separators=(",", ":")).encode()
        text = sha256(body).hexdigest().encode() + b"\n" + body
        write_file(self._manifest_path(manifest.id), self._cipher.encrypt(text, f"manifest {manifest.id}"))
        sync_directory(folder)

    def remove(self, id: str) -> None:
        os.unlink(self._manifest_path(id))
        sync_directory(os.path.join(self.path, BACKUPS))

    def _manifest_path(self, id: str) -> str:
        if not id or not all(char.isalnum() or char == "-" for char in id):
            raise BackupError(f"{id[:60]!r} is not the id of a backup")
        return os.path.join(self.path, BACKUPS, id + _ENDING)


def unlocked_by(path: str) -> Literal["nothing", "passphrase", "key file"] | None:
    """What opens a repository; None: there is no repository yet."""
    header_path = os.path.join(path, HEADER)
    if not os.path.exists(header_path):
        return None
    encryption = _read_header(header_path).get("encryption")
    if encryption is None:
        return "nothing"
    return "passphrase" if "scrypt" in encryption else "key file"


def new_id(now_s: float) -> str:
    """Ids sort by time."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s)) + "-" + secrets.token_hex(2)


def pieces(size: int) -> Iterable[tuple[int, int]]:
    """Offset and length of each piece of a file."""
    return ((start, min(CHUNK_BYTES, size - start)) for start in range(0, size, CHUNK_BYTES))


def write_file(path: str, data: bytes) -> None:
    """Complete and synced under its name, or not there. The caller syncs the directory."""
    temporary = f"{path}.{secrets.token_hex(4)}{_TEMPORARY}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
            os.fsync(fd)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _packed(data: bytes) -> bytes:
    """Compressed if a sample of it shrinks: the unused end of a segment is zeros."""
    if len(zlib.compress(data[:_SAMPLE], 1)) + len(zlib.compress(data[-_SAMPLE:], 1)) < 1.6 * min(
        len(data), _SAMPLE
    ):
        return _ZLIB + zlib.compress(data, 1)
    return _RAW + data


def _unpacked(data: bytes) -> bytes:
    if data[:1] == _RAW:
        return data[1:]
    if data[:1] != _ZLIB:
        raise ValueError("unknown encoding")
    inflater = zlib.decompressobj()
    plain = inflater.decompress(data[1:], CHUNK_BYTES + 1)
    if len(plain) > CHUNK_BYTES or not inflater.eof:
        raise ValueError("it has a wrong length")
    return plain


def _read_header(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            header = json.load(file)
        found = header["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{path} is damaged: {error}") from None
    if found != FORMAT:
        raise BackupError(f"{path} has format {found}, this version of OpenQ knows {FORMAT}: use a newer one")
    assert isinstance(header, dict)
    return header


def _parse(fields: dict[str, Any], id: str) -> BackupManifest:
    if fields.pop("format") != FORMAT:
        raise ValueError("it was written by a later version of OpenQ")
    files = tuple(
        StoredFile(each["name"], each["bytes"], each["stamp"], tuple(each["chunks"]))
        for each in fields.pop("files")
    )
    manifest = BackupManifest(files=files, **fields)
    if manifest.id != id:
        raise ValueError(f"it is that of backup {manifest.id}")
    for file in files:
        parts = file.name.split("/")
        if any(part in ("", ".", "..") for part in parts) or os.path.isabs(file.name):
            raise ValueError(f"it names the file {file.name!r}")
    return manifest
