"""The login of a stream, for as long as its connection lives, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass

from ..auth.guard import Guard, Principal
from ..documents.problem import Problem
from ..names import qualified_name
from ..server.connection_access import connection_may
from ..server.context import ServerContext
from ..server.stream_login import StreamLogin


@dataclass(slots=True)
class StreamAccess:
    """What the caller of one connection may do in its account."""

    context: ServerContext
    login: StreamLogin
    principal: Principal
    account: str
    peer: str
    is_tls: bool

    def may(self, action: str, name: str, sqs_action: str) -> bool:
        queue_key = qualified_name(self.account, name)
        return connection_may(
            self.context, self.principal, action, queue_key, sqs_action, self.peer, self.is_tls
        )

    def require(self, action: str, name: str, sqs_action: str) -> None:
        if not self.may(action, name, sqs_action):
            raise Problem("forbidden", f"{self.principal.user} may not {action} {name[:100]!r}")

    def renew(self, guard: Guard) -> bool:
        """Apply changed rules. False if the login is no longer valid."""
        current = self.login.current(guard, self.context.now_ms())
        if current is None:
            return False
        self.principal = current
        return True
