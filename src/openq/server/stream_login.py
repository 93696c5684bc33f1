"""Logins that outlive their request, and single-use tickets for clients that cannot send a header.

A browser cannot set `Authorization` on a WebSocket. It asks for a ticket with a request that can, and puts
the ticket into the query. Tickets are kept in this process: a ticket is valid on the server that issued it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from ..auth.guard import Guard, Principal
from ..auth.store import Token

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


class Tickets:
    def __init__(self) -> None:
        self._tickets: dict[str, tuple[StreamLogin, int]] = {}  # and when it expires; the oldest first

    def issue(self, login: StreamLogin, now_ms: int) -> tuple[str, int] | None:
        """A new ticket and when it expires; None if too many are open."""
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
        """The login of a ticket, which is used up by this."""
        login, expires_ms = self._tickets.pop(text, (None, 0))
        return login if now_ms < expires_ms else None
