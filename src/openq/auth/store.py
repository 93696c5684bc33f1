"""Users, access keys, tokens and rules, in one document for all protocols.

The document is replaced atomically. Several processes may change it (servers, the command line); each change
reads the current version first. See `documents.py`.

How secrets are stored:
- passwords as a salted scrypt hash; passwords imported from RabbitMQ as RabbitMQ's hash until their first
  use, because one hash cannot be converted into the other;
- tokens as SHA-256: 256 random bits cannot be guessed, so a slow hash is not needed;
- secret access keys in plain text, because verifying a signature needs them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ..errors import InvalidSetting
from ..names import DEFAULT_ACCOUNT
from .documents import DocumentStore, FileDocument, WriteConflict
from .errors import NameTaken, UnknownName, UserStoreDamaged
from .rules import ROLES, Rule, checked

FORMAT = 1
KEY_PREFIX = "OQIA"
SESSION_KEY_PREFIX = "OQSA"
TOKEN_PREFIX = "oq_"
MAX_PASSWORD_BYTES = 1024

_SCRYPT = (2**14, 8, 1)
_RABBITMQ = "rabbitmq-"  # followed by the name of the algorithm: a hash of RabbitMQ
_RABBITMQ_SALT_BYTES = 4
_RABBITMQ_DIGEST_BYTES = {"sha256": 32, "sha512": 64}
_KEY_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_SECRET_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_USER_NAME = re.compile(r"[A-Za-z0-9_.@+=,-]{1,64}")


@dataclass(frozen=True, slots=True)
class User:
    name: str
    account: str = DEFAULT_ACCOUNT
    role: str = "none"
    rules: tuple[Rule, ...] = ()
    password_hash: str | None = field(default=None, repr=False)
    is_disabled: bool = False
    is_root: bool = False  # for policies this user is the account itself
    created_ms: int = 0

    def __post_init__(self) -> None:
        if not _USER_NAME.fullmatch(self.name):
            raise InvalidSetting("a user name has 1 to 64 letters, digits or _ . @ + = , -")
        if self.role not in ROLES:
            raise InvalidSetting(f"unknown role {self.role!r}; there are {', '.join(ROLES)}")
        if (
            not self.account
            or len(self.account) > 128
            or not self.account.isprintable()
            or "*" in self.account
        ):
            raise InvalidSetting("an account has 1 to 128 printable characters, no *")

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        return (*ROLES[self.role], *self.rules)


@dataclass(frozen=True, slots=True)
class AccessKey:
    id: str
    user: str
    secret: str = field(repr=False)
    created_ms: int = 0
    token_hash: bytes | None = field(default=None, repr=False)  # a session: SHA-256 of its token
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key. The session token is not stored, and the secret is not shown again."""

    id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Token:
    name: str  # one user's tokens have different names
    user: str
    hash: bytes = field(repr=False)
    created_ms: int = 0
    expires_ms: int | None = None
    rules: tuple[Rule, ...] | None = None  # narrower than the user's own; None: all that the user may do


@dataclass(frozen=True, slots=True)
class _State:
    """The complete state, never changed in place: a reader in another thread needs no lock."""

    users: Mapping[str, User] = field(default_factory=dict)
    keys: Mapping[str, AccessKey] = field(default_factory=dict)
    tokens: Mapping[bytes, Token] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{len(self.users)} users, {len(self.keys)} keys, {len(self.tokens)} tokens>"


P = ParamSpec("P")
T = TypeVar("T")


def _retry_conflicts(change: Callable[P, T]) -> Callable[P, T]:
    """Repeat a change on a write conflict."""

    @wraps(change)
    def repeated(*given: P.args, **more: P.kwargs) -> T:
        while True:
            try:
                return change(*given, **more)
            except WriteConflict:
                continue

    return repeated


class UserStore:
    """All users. With a path they are stored in that file, or in another document; without, in this object
    only."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        now_s: Callable[[], float] = time.time,
        *,
        place: DocumentStore | None = None,
    ) -> None:
        self._document = FileDocument(os.fspath(path)) if place is None and path is not None else place
        self.path = None if self._document is None else self._document.name
        self.generation = 0  # increases with every change, here or in the file
        self._now_s = now_s
        self._lock = threading.RLock()
        self._state = _State()
        self._seen_version: Any = None
        self.refresh()

    def __repr__(self) -> str:
        return f"Store({self.path!r}, {self._state!r})"

    # -- reading

    def users(self) -> list[User]:
        return sorted(self._state.users.values(), key=lambda user: user.name)

    def user(self, name: str) -> User | None:
        return self._state.users.get(name)

    def keys(self, user: str | None = None) -> list[AccessKey]:
        return [key for key in self._state.keys.values() if user in (None, key.user)]

    def key(self, id: str) -> AccessKey | None:
        return self._state.keys.get(id)

    def tokens(self, user: str | None = None) -> list[Token]:
        return [token for token in self._state.tokens.values() if user in (None, token.user)]

    def has_token(self, hash: bytes) -> bool:
        return hash in self._state.tokens

    def token(self, hash: bytes) -> Token | None:
        return self._state.tokens.get(hash)

    def find_token(self, text: str) -> Token | None:
        # Looked up by hash: no timing difference reveals a token.
        return self._state.tokens.get(_sha256(text))

    def refresh(self) -> bool:
        """Read the document again if it changed. Returns whether it did.

        Raises UserStoreDamaged and keeps the previous users if it cannot be read or is missing: without
        users the server would be open.
        """
        if self._document is None:
            return False
        with self._lock:
            found = self._document.read_if_changed(self._seen_version)
            if found is None:
                return False
            seen, data = found
            self._state = self._load(self._document.name, data)
            self._seen_version = seen
            self.generation += 1
            return True

    def _load(self, path: str, data: bytes) -> _State:
        try:
            source = json.loads(data)
        except (ValueError, RecursionError):
            raise UserStoreDamaged(path, "it is not valid JSON") from None
        if not isinstance(source, dict) or "format" not in source:
            raise UserStoreDamaged(path, "it has no format version")
        if source["format"] != FORMAT:
            raise UserStoreDamaged(
                path, f"its format is not {FORMAT}; a newer version of OpenQ may have written it"
            )
        try:
            return _state_from(source)
        except (KeyError, TypeError, ValueError, AttributeError):
            # Without details: they would quote the file, which has secrets.
            raise UserStoreDamaged(path, "an entry is missing, incomplete or wrong") from None

    # -- users

    @_retry_conflicts
    def add_user(
        self,
        name: str,
        *,
        account: str = DEFAULT_ACCOUNT,
        password: str | None = None,
        role: str = "none",
        rules: Iterable[Rule] = (),
        is_root: bool = False,
        password_hash: str | None = None,
    ) -> User:
        """Add a user, with a password or with a hash of `rabbitmq_hash`."""
        hashed = password_hash if password is None else hash_password(password)
        user = User(name, account, role, checked(rules), hashed, False, is_root, self._now_ms())
        with self._change() as state:
            if name in state.users:
                raise NameTaken(f"user {name!r} exists already")
            self._commit(replace(state, users={**state.users, name: user}))
        return user

    @_retry_conflicts
    def remove_user(self, name: str) -> None:
        """Remove a user with all keys and tokens."""
        with self._change() as state:
            _known(state, name)
            self._commit(
                _State(
                    {other: user for other, user in state.users.items() if other != name},
                    {id: key for id, key in state.keys.items() if key.user != name},
                    {hash: token for hash, token in state.tokens.items() if token.user != name},
                )
            )

    def set_password(self, name: str, password: str | None) -> User:
        """None removes the password: then the user can only use keys and tokens."""
        hashed = None if password is None else hash_password(password)
        return self._replace(name, lambda user: replace(user, password_hash=hashed))

    @_retry_conflicts
    def upgrade_hash(self, name: str, password: str, known: str) -> None:
        """Replace the hash `known` by one of our own for the same password, unless it has changed."""
        hashed = hash_password(password)
        with self._change() as state:
            user = state.users.get(name)
            if user is not None and user.password_hash == known:
                changed = replace(user, password_hash=hashed)
                self._commit(replace(state, users={**state.users, name: changed}))

    def change_user(self, name: str, change: Callable[[User], User]) -> User:
        """Change a user atomically. `change` is called again on a write conflict."""
        return self._replace(name, change)

    def set_role(self, name: str, role: str) -> User:
        return self._replace(name, lambda user: replace(user, role=role))

    def set_disabled(self, name: str, is_disabled: bool) -> User:
        return self._replace(name, lambda user: replace(user, is_disabled=is_disabled))

    def set_rules(self, name: str, rules: Iterable[Rule]) -> User:
        wanted = checked(rules)
        return self._replace(name, lambda user: replace(user, rules=wanted))

    def grant(self, name: str, rule: Rule) -> User:
        checked([rule])
        return self._replace(
            name, lambda user: user if rule in user.rules else replace(user, rules=(*user.rules, rule))
        )

    def revoke(self, name: str, rule: Rule) -> User:
        def without(user: User) -> User:
            if rule not in user.rules:
                raise UnknownName("rule", f"{rule.effect} {','.join(sorted(rule.actions))} on {rule.queues}")
            return replace(user, rules=tuple(other for other in user.rules if other != rule))

        return self._replace(name, without)

    @_retry_conflicts
    def _replace(self, name: str, change: Callable[[User], User]) -> User:
        with self._change() as state:
            user = change(_known(state, name))
            self._commit(replace(state, users={**state.users, name: user}))
        return user

    # -- keys

    @_retry_conflicts
    def create_key(
        self, user: str, *, is_session: bool = False, expires_s: float | None = None
    ) -> CreatedKey:
        """Create an access key for AWS clients; a session key also has a token."""
        if is_session and expires_s is None:
            raise InvalidSetting("a session needs a time at which it ends")
        prefix = SESSION_KEY_PREFIX if is_session else KEY_PREFIX
        id = prefix + "".join(secrets.choice(_KEY_ALPHABET) for _ in range(16))
        secret = "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(40))
        token = secrets.token_urlsafe(48) if is_session else None
        key = AccessKey(
            id, user, secret, self._now_ms(), None if token is None else _sha256(token), _ms(expires_s)
        )
        with self._change() as state:
            _known(state, user)
            self._commit(replace(state, keys={**state.keys, id: key}))
        return CreatedKey(id, secret, token)

    @_retry_conflicts
    def revoke_key(self, id: str) -> None:
        with self._change() as state:
            if id not in state.keys:
                raise UnknownName("access key", id)
            self._commit(replace(state, keys={k: v for k, v in state.keys.items() if k != id}))

    # -- tokens

    @_retry_conflicts
    def create_token(
        self,
        user: str,
        name: str,
        *,
        expires_s: float | None = None,
        rules: Iterable[Rule] | None = None,
    ) -> str:
        """Create a bearer token; it is shown only this once."""
        if not name or len(name) > 128 or not name.isprintable():
            raise InvalidSetting("a token's name has 1 to 128 printable characters")
        text = TOKEN_PREFIX + secrets.token_urlsafe(32)
        scope = None if rules is None else checked(rules)
        token = Token(name, user, _sha256(text), self._now_ms(), _ms(expires_s), scope)
        with self._change() as state:
            _known(state, user)
            if any(other.name == name and other.user == user for other in state.tokens.values()):
                raise NameTaken(f"user {user!r} has a token {name!r} already")
            self._commit(replace(state, tokens={**state.tokens, token.hash: token}))
        return text

    @_retry_conflicts
    def revoke_token(self, user: str, name: str) -> None:
        with self._change() as state:
            kept = {h: t for h, t in state.tokens.items() if (t.user, t.name) != (user, name)}
            if len(kept) == len(state.tokens):
                raise UnknownName("token", name)
            self._commit(replace(state, tokens=kept))

    # -- writing

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)

    @contextmanager
    def _change(self) -> Iterator[_State]:
        """The current state, exclusively, for a change that `_commit` writes."""
        with self._lock:
            if self._document is None:
                yield self._state
                return
            with self._document.exclusive():
                self.refresh()
                yield self._state

    def _commit(self, state: _State) -> None:
        if self._document is not None:
            text = json.dumps(_source_of(state), indent=1, ensure_ascii=True) + "\n"
            self._seen_version = self._document.write(self._seen_version, text.encode())
        self._state = state
        self.generation += 1


def _known(state: _State, name: str) -> User:
    user = state.users.get(name)
    if user is None:
        raise UnknownName("user", name)
    return user


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


# Passwords


def hash_password(password: str) -> str:
    data = password.encode()
    if not data or len(data) > MAX_PASSWORD_BYTES:
        raise InvalidSetting(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes")
    n, r, p = _SCRYPT
    salt = secrets.token_bytes(16)
    return f"scrypt${n}${r}${p}${salt.hex()}${_scrypt(data, salt, n, r, p).hex()}"


# Used when a user does not exist or has no password: as slow as a real hash, and never matches.
_DUMMY_HASH = f"scrypt${_SCRYPT[0]}${_SCRYPT[1]}${_SCRYPT[2]}${'00' * 16}${'00' * 32}"


def check_password(password: str, hashed: str | None) -> bool:
    """Takes the same time whether the user exists or not."""
    data = password.encode()
    if not data or len(data) > MAX_PASSWORD_BYTES:
        return False
    if hashed is not None and is_rabbitmq_hash(hashed):
        check_password(password, None)  # hashed too, so that the time does not reveal whether the user exists
        kind, salt, wanted = hashed.removeprefix(_RABBITMQ).split("$")
        found = hashlib.new(kind, bytes.fromhex(salt) + data).digest()
        return hmac.compare_digest(found, bytes.fromhex(wanted))
    _, n, r, p, salt, wanted = (hashed or _DUMMY_HASH).split("$")
    found = _scrypt(data, bytes.fromhex(salt), int(n), int(r), int(p))
    return hmac.compare_digest(found, bytes.fromhex(wanted)) and hashed is not None


def is_rabbitmq_hash(hashed: str) -> bool:
    """Whether RabbitMQ made the hash: it is faster to guess than our own."""
    return hashed.startswith(_RABBITMQ)


def rabbitmq_hash(text: str, algorithm: str) -> str:
    """The stored form of `password_hash` in RabbitMQ's definitions. Raises InvalidSetting."""
    kind = algorithm.removeprefix("rabbit_password_hashing_")
    if kind not in _RABBITMQ_DIGEST_BYTES:
        raise InvalidSetting(f"a password hashed by {algorithm!r} cannot be checked here")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    salt, digest = data[:_RABBITMQ_SALT_BYTES], data[_RABBITMQ_SALT_BYTES:]
    if len(digest) != _RABBITMQ_DIGEST_BYTES[kind]:
        raise InvalidSetting(f"its password_hash is not of {algorithm!r}")
    return f"{_RABBITMQ}{kind}${salt.hex()}${digest.hex()}"


def _scrypt(password: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=64 * 1024 * 1024, dklen=32)


# The file


def _source_of(state: _State) -> dict[str, object]:
    return {
        "format": FORMAT,
        "users": [
            {
                "name": user.name,
                "account": user.account,
                "role": user.role,
                "rules": [rule_source(rule) for rule in user.rules],
                "password": user.password_hash,
                "disabled": user.is_disabled,
                "root": user.is_root,
                "created_ms": user.created_ms,
            }
            for user in state.users.values()
        ],
        "keys": [
            {
                "id": key.id,
                "user": key.user,
                "secret": key.secret,
                "created_ms": key.created_ms,
                "token_sha256": None if key.token_hash is None else key.token_hash.hex(),
                "expires_ms": key.expires_ms,
            }
            for key in state.keys.values()
        ],
        "tokens": [
            {
                "name": token.name,
                "user": token.user,
                "sha256": token.hash.hex(),
                "created_ms": token.created_ms,
                "expires_ms": token.expires_ms,
                "rules": None if token.rules is None else [rule_source(rule) for rule in token.rules],
            }
            for token in state.tokens.values()
        ],
    }


def rule_source(rule: Rule) -> dict[str, object]:
    """A rule as in the file and in replies."""
    return {
        "effect": rule.effect,
        "actions": sorted(rule.actions),
        "queues": rule.queues,
        "account": rule.account,
    }


def rule_from(source: Mapping[str, object]) -> Rule:
    """Raises InvalidSetting for an invalid rule."""
    if not isinstance(source, Mapping) or set(source) - {"effect", "actions", "queues", "account"}:
        raise InvalidSetting("a rule has effect, actions, queues and account")
    actions = source.get("actions")
    queues, account = source.get("queues", "*"), source.get("account")
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise InvalidSetting("the actions of a rule are a list of texts")
    if not isinstance(queues, str) or not isinstance(account, str | None):
        raise InvalidSetting("the queues and the account of a rule are texts")
    return Rule(source.get("effect"), frozenset(actions), queues, account)  # type: ignore[arg-type]


def _state_from(source: Mapping[str, list[Mapping[str, object]]]) -> _State:
    users: dict[str, User] = {}
    for entry in source["users"]:
        user = User(
            _text(entry["name"]),
            _text(entry["account"]),
            _text(entry["role"]),
            _rules(entry["rules"]),
            _password(entry["password"]),
            _flag(entry["disabled"]),
            _flag(entry["root"]),
            _whole(entry["created_ms"]),
        )
        users[user.name] = user
    keys: dict[str, AccessKey] = {}
    for entry in source["keys"]:
        key = AccessKey(
            _text(entry["id"]),
            users[_text(entry["user"])].name,
            _text(entry["secret"]),
            _whole(entry["created_ms"]),
            None if entry["token_sha256"] is None else _hash(entry["token_sha256"]),
            None if entry["expires_ms"] is None else _whole(entry["expires_ms"]),
        )
        if not key.secret:
            raise ValueError("an empty secret")
        keys[key.id] = key
    tokens: dict[bytes, Token] = {}
    for entry in source["tokens"]:
        token = Token(
            _text(entry["name"]),
            users[_text(entry["user"])].name,
            _hash(entry["sha256"]),
            _whole(entry["created_ms"]),
            None if entry["expires_ms"] is None else _whole(entry["expires_ms"]),
            None if entry["rules"] is None else _rules(entry["rules"]),
        )
        tokens[token.hash] = token
    if len(users) + len(keys) + len(tokens) != sum(len(source[kind]) for kind in ("users", "keys", "tokens")):
        raise ValueError("duplicate entry")
    return _State(users, keys, tokens)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("not a whole number")
    return value


def _hash(value: object) -> bytes:
    found = bytes.fromhex(_text(value))
    if len(found) != 32:
        raise ValueError("not a SHA-256")
    return found


def _password(value: object) -> str | None:
    if value is None:
        return None
    text = _text(value)
    if is_rabbitmq_hash(text):
        kind, salt, hashed = text.removeprefix(_RABBITMQ).split("$")
        sizes = len(bytes.fromhex(salt)), len(bytes.fromhex(hashed))
        if sizes != (_RABBITMQ_SALT_BYTES, _RABBITMQ_DIGEST_BYTES[kind]):
            raise ValueError("not a password hash")
        return text
    kind, n, r, p, salt, hashed = text.split("$")
    # Limits the cost: a file that was tampered with must not stall the server at every login.
    if kind != "scrypt" or not 2 <= int(n) <= 2**17 or int(r) != 8 or not 1 <= int(p) <= 4:
        raise ValueError("not a password hash")
    if len(bytes.fromhex(hashed)) != 32 or not bytes.fromhex(salt):
        raise ValueError("not a password hash")
    return text


def _rules(value: object) -> tuple[Rule, ...]:
    if not isinstance(value, list):
        raise ValueError("not a list of rules")
    return tuple(rule_from(entry) for entry in value)
