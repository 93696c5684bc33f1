"""The login of a stream, for as long as its connection lives, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass

from ..auth.guard import Guard, Principal
from ..auth.policy import POLICY_NOTE
from ..documents.problem import Problem
from ..names import qualified_name, split_namespace
from ..server.condition_keys import connection_condition_keys
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
        guard, principal, account = self.context.guard, self.principal, self.account
        queue = self.context.broker.find_queue(qualified_name(account, name))
        policy = None if queue is None else queue.settings.notes.get(POLICY_NOTE)
        if policy is None:
            return guard.may(principal, action, account, name)
        region = split_namespace(account)[0] or self.context.config.region
        keys = connection_condition_keys(self.is_tls, self.peer, principal, region, self.context.now_ms())
        return guard.may(
            principal, action, account, name, policy=policy, sqs_action=sqs_action, condition_keys=keys
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
