"""Encryption of a repository: AES-256-GCM for every piece, under one random key that a secret unlocks.

The secret is a passphrase (scrypt makes a key of it) or a key file. It wraps the master key in the header of
the repository, so it can be changed without writing the pieces again. A piece is small enough to be held in
memory: it is authenticated as a whole before anything of it is used, and its name is authenticated with it,
so pieces cannot be exchanged for each other. Names are keyed too: they tell nothing of the content.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from typing import Any, Protocol

from ..errors import InvalidSetting, OpenQError

NONCE_BYTES = 12
KEY_BYTES = 32
# 128 MiB and about half a second; the header of a repository has its own figures.
_SCRYPT = {"n": 1 << 17, "r": 8, "p": 1}
_MAX_SCRYPT_N = 1 << 20  # a header must not make us allocate more than 1 GiB
MIN_PASSPHRASE = 8


class WrongKey(OpenQError):
    code = "wrong_key"

    def __init__(self) -> None:
        super().__init__(
            "the passphrase or key file is not that of this repository, or its header is damaged"
        )


class Cipher(Protocol):
    """What a repository does with its bytes. `name` is bound to them."""

    def name_of(self, digest: str) -> str: ...  # of a piece with this SHA-256
    def encrypt(self, data: bytes, name: str) -> bytes: ...
    def decrypt(self, data: bytes, name: str) -> bytes: ...  # raises ValueError if they were changed


class Plain:
    """No encryption. Pieces are named after their digests."""

    def name_of(self, digest: str) -> str:
        return digest

    def encrypt(self, data: bytes, name: str) -> bytes:
        return data

    def decrypt(self, data: bytes, name: str) -> bytes:
        return data


class AesGcm:
    def __init__(self, master: bytes) -> None:
        self._aead = _aead(_derive(master, b"openq backup data"))
        self._name_key = _derive(master, b"openq backup names")

    def name_of(self, digest: str) -> str:
        return hmac.new(self._name_key, bytes.fromhex(digest), hashlib.sha256).hexdigest()

    def encrypt(self, data: bytes, name: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._aead.encrypt(nonce, data, name.encode())
        return nonce + sealed

    def decrypt(self, data: bytes, name: str) -> bytes:
        return _open(self._aead, data, name.encode())


class Secret:
    """What unlocks a repository: a passphrase, or the content of a key file."""

    def __init__(self, *, passphrase: str | None = None, key: bytes | None = None) -> None:
        self._passphrase = passphrase
        self._key = key

    @classmethod
    def from_file(cls, path: str) -> Secret:
        with open(path, "rb") as file:
            return cls(key=_parse_key(path, file.read(1024)))

    def lock(self) -> tuple[Cipher, dict[str, Any]]:
        """A new master key: its cipher, and what the header stores."""
        salt, master = os.urandom(16), os.urandom(KEY_BYTES)
        header: dict[str, Any] = {"cipher": "AES-256-GCM", "salt": _text(salt)}
        if self._passphrase is not None:
            if len(self._passphrase) < MIN_PASSPHRASE:
                raise InvalidSetting(f"a passphrase has at least {MIN_PASSPHRASE} characters")
            header["scrypt"] = dict(_SCRYPT)
        nonce = os.urandom(NONCE_BYTES)
        wrapped = _aead(self._wrapping_key(header)).encrypt(nonce, master, b"master key")
        header["key"] = _text(nonce + wrapped)
        return AesGcm(master), header

    def unlock(self, header: dict[str, Any]) -> Cipher:
        if ("scrypt" in header) != (self._passphrase is not None):
            wanted = "a passphrase" if "scrypt" in header else "a key file"
            raise InvalidSetting(f"this repository is unlocked by {wanted}")
        try:
            aead = _aead(self._wrapping_key(header))
            return AesGcm(_open(aead, base64.b64decode(header["key"]), b"master key"))
        except (KeyError, TypeError, ValueError):
            raise WrongKey from None

    def _wrapping_key(self, header: dict[str, Any]) -> bytes:
        salt = base64.b64decode(header["salt"])
        if self._passphrase is None:
            return _derive(self._key or b"", b"openq backup key file" + salt)
        cost = {name: int(header["scrypt"][name]) for name in _SCRYPT}
        if not 2 <= cost["n"] <= _MAX_SCRYPT_N or not (1 <= cost["r"] <= 8 and 1 <= cost["p"] <= 4):
            raise ValueError("scrypt parameters beyond the limits")
        memory = 128 * cost["r"] * (cost["n"] + cost["p"] + 2)
        secret = self._passphrase.encode()
        return hashlib.scrypt(secret, salt=salt, dklen=KEY_BYTES, maxmem=2 * memory, **cost)


def make_key_file(path: str) -> None:
    """Write a new key. An existing file is left as it is: FileExistsError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _parse_key(path: str, data: bytes) -> bytes:
    try:
        key = base64.b64decode(data.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidSetting(f"{path} is not a key file: `openq backup key FILE` writes one")
    return key


def _derive(key: bytes, purpose: bytes) -> bytes:
    """The expansion of HKDF-SHA256 (RFC 5869) for one block: the key is random or from scrypt already."""
    return hmac.new(key, purpose + b"\x01", hashlib.sha256).digest()


def _aead(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise InvalidSetting("encryption needs a package: pip install 'openq[backup]'") from None
    return AESGCM(key)


def _open(aead: Any, data: bytes, name: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        plain: bytes = aead.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name)
    except InvalidTag:
        raise ValueError("it does not match its authentication tag") from None
    return plain


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
