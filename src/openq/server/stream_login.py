"""Logins that outlive their request, and single-use tickets for clients that cannot send a header.

A browser cannot set `Authorization` on a WebSocket. It asks for a ticket with a request that can, and puts
the ticket into the query. Servers that share a store share their tickets: `SharedTickets`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..auth.guard import Guard, Principal
from ..auth.store import Token
from ..broker.kv import SERVER_BUCKETS, KeyValues, KvPut
from ..broker.workers import decode

TICKET_MS = 30_000
MAX_TICKETS = 10_000


@dataclass(frozen=True, slots=True)
class StreamLogin:
    """Who opened a stream, and by which token or session; is_guest: on a server without users."""

    principal: Principal
    token: Token | None
    is_guest: bool
    session: str = ""  # its hash

    def current(self, guard: Guard, now_ms: int) -> Principal | None:
        """The caller with its current rules; None if user or token are gone, disabled or expired."""
        if guard.is_open:
            return self.principal
        if self.is_guest:
            return None
        if self.session:
            return self._of_session(guard)
        if self.has_expired(now_ms) or (self.token and not guard.store.has_token(self.token.hash)):
            return None
        return guard.current(self.principal)

    def _of_session(self, guard: Guard) -> Principal | None:
        """An open stream is a use of its session: a page that is left open goes on until the last limit."""
        principal = guard.session_principal(self.session)
        session = None if principal is None else guard.sessions.find(self.session)
        if session is not None:
            guard.sessions.use(session)
        return principal

    def may_have_expired(self, now_ms: int) -> bool:
        """Whether `current` must be asked although no user or token has changed."""
        return bool(self.session) or self.has_expired(now_ms)

    def has_expired(self, now_ms: int) -> bool:
        token = self.token
        return token is not None and token.expires_ms is not None and now_ms >= token.expires_ms


class TicketOffice(Protocol):
    def issue(self, login: StreamLogin, now_ms: int) -> tuple[str, int] | None:
        """A new ticket and when it expires; None if too many are open."""

    def redeem(self, text: str, now_ms: int) -> StreamLogin | None:
        """The login of a ticket, which is used up by this."""


class Tickets:
    """The tickets of one server."""

    def __init__(self) -> None:
        self._tickets: dict[str, tuple[StreamLogin, int]] = {}  # and when it expires; the oldest first

    def issue(self, login: StreamLogin, now_ms: int) -> tuple[str, int] | None:
        while self._tickets:
            oldest = next(iter(self._tickets))
            if self._tickets[oldest][1] > now_ms:
                break
            del self._tickets[oldest]
        if len(self._tickets) >= MAX_TICKETS:
            return None
        text = secrets.token_urlsafe(32)
        self._tickets[text] = login, now_ms + TICKET_MS
        return text, now_ms + TICKET_MS

    def redeem(self, text: str, now_ms: int) -> StreamLogin | None:
        login, expires_ms = self._tickets.pop(text, (None, 0))
        return login if now_ms < expires_ms else None


class _StoredLogin(msgspec.Struct, kw_only=True, omit_defaults=True):
    account: str
    user: str
    token: bytes = b""  # its hash
    session: str = ""
    is_guest: bool = False


class SharedTickets:
    """Tickets in the key-values of a store that several servers share. Only their hashes are stored.

    Its calls may suspend the greenlet that makes them.
    """

    _BUCKET = SERVER_BUCKETS + "stream-tickets"

    def __init__(self, kv: KeyValues, guard: Guard) -> None:
        self._kv = kv
        self._guard = guard
        self._open: deque[int] = deque()  # when those that this server issued expire

    def issue(self, login: StreamLogin, now_ms: int) -> tuple[str, int] | None:
        while self._open and self._open[0] <= now_ms:
            self._open.popleft()
        if len(self._open) >= MAX_TICKETS:
            return None
        text = secrets.token_urlsafe(32)
        stored = _StoredLogin(
            account=login.principal.account,
            user=login.principal.user,
            token=b"" if login.token is None else login.token.hash,
            session=login.session,
            is_guest=login.is_guest,
        )
        put = KvPut(_key(text), msgspec.json.encode(stored), TICKET_MS, 0)
        [result] = self._kv.put_many(self._BUCKET, [put])
        if isinstance(result, Exception):
            raise result
        self._open.append(now_ms + TICKET_MS)
        return text, now_ms + TICKET_MS

    def redeem(self, text: str, now_ms: int) -> StreamLogin | None:
        key = _key(text)
        [entry] = self._kv.get_many(self._BUCKET, [key])
        if entry is None:
            return None
        self._kv.load([entry])
        [is_ours] = self._kv.delete_many(self._BUCKET, [key], [entry.version])
        stored = decode(entry.value, _StoredLogin) if is_ours else None
        return None if stored is None else self._login(stored)

    def _login(self, stored: _StoredLogin) -> StreamLogin | None:
        guard = self._guard
        if guard.is_open or stored.is_guest:
            # Users that were added meanwhile end the access of guests: `StreamLogin.current` says so.
            return StreamLogin(guard.open_principal(stored.account), None, stored.is_guest)
        if stored.session:
            principal = guard.session_principal(stored.session)
            return None if principal is None else StreamLogin(principal, None, False, stored.session)
        known = guard.known(stored.user, stored.token)
        return None if known is None else StreamLogin(*known, False)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
