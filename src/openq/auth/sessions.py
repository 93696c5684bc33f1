"""Logins of the dashboard: a random text in a cookie, and a record of it that all servers of a store share.

A record holds a hash of the text, never the text. It is valid as long as what it was made with is: the user
exists, is not disabled and has the same password, or the token exists and has not expired. So a change of the
password ends the sessions, and nothing has to look for them.

Records are stored when a session begins or ends. The time of the last request is kept in memory and stored
when it is `1 / _STEPS` of the idle limit newer than the stored one, so requests of a page cost no write.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OpenQError
from .documents import DocumentStore, FileDocument, WriteConflict
from .errors import UserStoreDamaged
from .store import Token, User, UserStore

log = logging.getLogger("openq.auth")

COOKIE = "openq_session"
# A page of another origin cannot send a header of its own without asking first, which nobody answers.
REQUEST_HEADER = b"x-openq-request"
FORMAT = 1
MAX_SESSIONS = 10_000
MAX_OF_USER = 50
_PREFIX = "oqs_"
_STEPS = 16
_READING = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Session:
    hash: str
    user: str
    user_created_ms: int  # another user of the same name has another
    created_ms: int
    used_ms: int
    proof: str  # of the password; empty: logged in by a token
    token: str = ""  # its hash


@dataclass(frozen=True, slots=True)
class OpenedSession:
    text: str  # for the cookie; not stored
    session: Session


class Sessions:
    """With a path or a document sessions survive a restart; without, they are of this process."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        path: str | os.PathLike[str] | None = None,
        *,
        place: DocumentStore | None = None,
        idle_ms: int = 8 * 3_600_000,
        max_ms: int = 7 * 86_400_000,
    ) -> None:
        self._now_ms = now_ms
        self._document = FileDocument(os.fspath(path)) if place is None and path is not None else place
        self._lock = threading.RLock()
        self._stored: Mapping[str, Session] = {}
        self._unstored: dict[str, Session] = {}  # begun while the store could not be written
        self._used: dict[str, int] = {}
        self._seen_version: Any = None
        self.idle_ms = idle_ms
        self.max_ms = max_ms
        self.refresh()

    # -- reading

    def find(self, hash: str) -> Session | None:
        """A session that is not over. Cheap."""
        found = self._stored.get(hash) or self._unstored.get(hash)
        if found is None:
            return None
        used_ms = self._used.get(hash, 0)
        if used_ms > found.used_ms:
            found = replace(found, used_ms=used_ms)
        return None if self._is_over(found, self._now_ms()) else found

    def user_of(self, session: Session, store: UserStore) -> tuple[User, Token | None] | None:
        """The user of a session, and its token; None if what it was made with is no longer valid."""
        user = store.user(session.user)
        if user is None or user.is_disabled or user.created_ms != session.user_created_ms:
            return None
        if not session.token:
            return (user, None) if session.proof == _proof(user) else None
        token = store.token(bytes.fromhex(session.token))
        if token is None or token.user != user.name:
            return None
        if token.expires_ms is not None and self._now_ms() >= token.expires_ms:
            return None
        return user, token

    def use(self, session: Session) -> None:
        """A request was made with it."""
        self._used[session.hash] = self._now_ms()

    def end_ms(self, session: Session) -> tuple[int, int]:
        """When it ends without a further request, and when in any case."""
        last_ms = session.created_ms + self.max_ms
        return min(session.used_ms + self.idle_ms, last_ms), last_ms

    def _is_over(self, session: Session, now_ms: int) -> bool:
        return now_ms >= self.end_ms(session)[0]

    # -- changing: these write, so not on the loop

    def begin(self, user: User, token: Token | None = None) -> OpenedSession:
        text = _PREFIX + secrets.token_urlsafe(32)
        now_ms = self._now_ms()
        session = Session(
            hash_of(text),
            user.name,
            user.created_ms,
            now_ms,
            now_ms,
            _proof(user) if token is None else "",
            "" if token is None else token.hash.hex(),
        )

        def add(sessions: dict[str, Session]) -> None:
            own = sorted((each for each in sessions.values() if each.user == user.name), key=_last_used)
            for each in own[: max(0, len(own) - MAX_OF_USER + 1)]:
                del sessions[each.hash]
            if len(sessions) >= MAX_SESSIONS:
                del sessions[min(sessions.values(), key=_last_used).hash]
            sessions[session.hash] = session

        try:
            self._change(add)
        except (OSError, OpenQError) as error:
            # An operator must get in while the disk is full; this login ends with the process.
            log.warning("a session is not stored, and ends with this process: %s", type(error).__name__)
            with self._lock:
                self._unstored[session.hash] = session
        return OpenedSession(text, session)

    def end(self, hash: str) -> None:
        self._end_all_where(lambda session: session.hash == hash)

    def end_all(self, user: str) -> int:
        """End all sessions of a user. Returns their number."""
        return self._end_all_where(lambda session: session.user == user)

    def _end_all_where(self, is_meant: Callable[[Session], bool]) -> int:
        ended: set[str] = set()

        def remove(sessions: dict[str, Session]) -> None:
            for each in [each for each in sessions.values() if is_meant(each)]:
                ended.add(each.hash)
                del sessions[each.hash]

        with self._lock:
            for each in [each for each in self._unstored.values() if is_meant(each)]:
                ended.add(each.hash)
                del self._unstored[each.hash]
            if any(map(is_meant, self._stored.values())) or self._document is not None:
                self._change(remove)
        for hash in ended:
            self._used.pop(hash, None)
        return len(ended)

    @property
    def must_flush(self) -> bool:
        step_ms = self.idle_ms // _STEPS
        stored = self._stored
        return any(
            hash in stored and used_ms - stored[hash].used_ms >= step_ms
            for hash, used_ms in list(self._used.items())
        )

    def flush(self) -> None:
        """Store when sessions were used last, and drop those that are over."""

        def update(sessions: dict[str, Session]) -> None:
            for hash, used_ms in list(self._used.items()):
                if hash in sessions and used_ms > sessions[hash].used_ms:
                    sessions[hash] = replace(sessions[hash], used_ms=used_ms)

        self._change(update)
        for hash in list(self._used):
            if hash not in self._stored and hash not in self._unstored:
                self._used.pop(hash, None)

    def refresh(self) -> None:
        """Read sessions that other servers began or ended."""
        if self._document is None:
            return
        with self._lock:
            try:
                found = self._document.read_if_changed(self._seen_version)
                if found is not None:
                    self._seen_version, data = found
                    self._stored = _sessions_from(data)
            except (UserStoreDamaged, ValueError, KeyError, TypeError) as error:
                # Nobody is kept out by this: a new login writes a new document.
                if self._stored:
                    log.warning("the sessions cannot be read, everybody has to log in again: %s", error)
                self._stored = {}
                if isinstance(error, UserStoreDamaged):
                    self._seen_version = None

    def _change(self, change: Callable[[dict[str, Session]], None]) -> None:
        with self._lock:
            if self._document is None:
                self._commit(change)
                return
            while True:
                try:
                    with self._document.exclusive():
                        self.refresh()
                        self._commit(change)
                    return
                except WriteConflict:
                    continue

    def _commit(self, change: Callable[[dict[str, Session]], None]) -> None:
        now_ms = self._now_ms()
        sessions = {
            hash: each
            for hash, each in self._stored.items()
            if not self._is_over(replace(each, used_ms=max(each.used_ms, self._used.get(hash, 0))), now_ms)
        }
        change(sessions)
        if sessions == self._stored:
            return
        if self._document is not None:
            data = json.dumps(
                {"format": FORMAT, "sessions": [_source_of(each) for each in sessions.values()]}
            )
            self._seen_version = self._document.write(self._seen_version, data.encode())
        self._stored = sessions


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _proof(user: User) -> str:
    """Changes with the password; a hash of a salted hash says nothing about it."""
    return hashlib.sha256(b"session" + (user.password_hash or "").encode()).hexdigest()[:32]


def _last_used(session: Session) -> int:
    return session.used_ms


def _source_of(session: Session) -> dict[str, object]:
    return {name: getattr(session, name) for name in Session.__slots__}


def _sessions_from(data: bytes) -> dict[str, Session]:
    source = json.loads(data)
    if source["format"] != FORMAT:
        raise ValueError("another format")
    found: dict[str, Session] = {}
    for entry in source["sessions"]:
        session = Session(**entry)
        texts = (session.hash, session.user, session.proof, session.token)
        numbers = (session.user_created_ms, session.created_ms, session.used_ms)
        if not all(type(each) is str for each in texts) or not all(type(each) is int for each in numbers):
            raise ValueError("an entry is wrong")
        found[session.hash] = session
    return found


# -- the cookie


def session_in(cookies: bytes | None) -> str | None:
    """The text of the session in a `Cookie` header."""
    if cookies is None or COOKIE.encode() not in cookies:
        return None
    for part in cookies.split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode() and value:
            return value.decode("latin-1")
    return None


def cookie_of(text: str, *, max_age_s: int, is_tls: bool) -> bytes:
    """The header line that sets the cookie; an empty text removes it."""
    secure = b"; Secure" if is_tls else b""
    return b"Set-Cookie: %b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict%b\r\n" % (
        COOKIE.encode(),
        text.encode(),
        max_age_s if text else 0,
        secure,
    )


def is_foreign(method: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request with the cookie may come from a page of another origin.

    Browsers name the origin of changing requests; `SameSite` does not tell ports of one host apart. The
    router has rejected a foreign `Origin` before. A program that uses the cookie sends `X-OpenQ-Request`.
    """
    site = fields.get(b"sec-fetch-site")
    is_reading = method in _READING and b"upgrade" not in fields
    if site == b"same-origin":
        return False
    if site is not None:
        return site != b"none" or not is_reading  # none: the user typed the address
    return not is_reading and b"origin" not in fields and REQUEST_HEADER not in fields
