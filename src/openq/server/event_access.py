"""Which events the caller of a stream may see, for as long as the stream lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..broker.events import Event
from ..names import DEFAULT_ACCOUNT, qualified_name, split_name
from .connection_access import connection_may
from .stream_login import StreamLogin

if TYPE_CHECKING:
    from .context import ServerContext

_ACTION = "peek"
_SQS_ACTION = "ReceiveMessage"


class EventAccess:
    """The events of queues that the caller may peek. Decisions are kept for a second."""

    __slots__ = (
        "_account",
        "_context",
        "_decisions",
        "_login",
        "_principal",
        "_queue",
        "_sqs_action",
        "is_tls",
        "peer",
    )

    def __init__(
        self,
        context: ServerContext,
        login: StreamLogin,
        peer: str,
        is_tls: bool,
        account: str | None,
        queue: str | None,
        sqs_action: str = _SQS_ACTION,
    ) -> None:
        """`account`: only its queues; None: those of all accounts. `queue`: the stream is about it alone, and
        ends when the caller may not peek it any more. `sqs_action`: what the policy of a queue must allow."""
        self._context = context
        self._login = login
        self._principal = login.principal
        self._account = account
        self._queue = queue
        self._sqs_action = sqs_action
        self._decisions: dict[str, bool] = {}
        self.peer = peer
        self.is_tls = is_tls

    @property
    def user(self) -> str:
        return self._principal.user

    @property
    def account(self) -> str:
        """Whose connection it is."""
        return self._account or self._principal.account

    @property
    def key(self) -> object:
        """Equal for callers who may see the same."""
        login = self._login
        token = None if login.token is None else login.token.hash
        caller = login.principal, token, login.session, login.is_guest
        return *caller, self._account, self._queue, self.peer, self.is_tls

    def may_see(self, event: Event) -> bool:
        if self.may(event.queue):
            return True
        to = event.detail.get("to")
        return to is not None and self.may(to)

    def may(self, queue_key: str) -> bool:
        known = self._decisions.get(queue_key)
        if known is None:
            known = self._decisions[queue_key] = self._decide(queue_key)
        return known

    def _decide(self, queue_key: str) -> bool:
        principal = self._principal
        if not queue_key:  # of the whole server
            may = self._context.guard.may
            return self._account is None and may(principal, "admin", DEFAULT_ACCOUNT, None)
        if self._account is not None and split_name(queue_key)[0] != self._account:
            return False
        return connection_may(
            self._context, principal, _ACTION, queue_key, self._sqs_action, self.peer, self.is_tls
        )

    def refresh(self, is_changed: bool, now_ms: int) -> bool:
        """Decide again from now on. False if the login is over, or the queue of the stream is forbidden."""
        self._decisions = {}
        if is_changed or self._login.may_have_expired(now_ms):
            current = self._login.current(self._context.guard, now_ms)
            if current is None:
                return False
            self._principal = current
        if self._queue is None:
            return True
        return self.may(self._queue)


def queue_patterns(account: str, is_one_account: bool, names: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of queue keys from patterns of names in an account."""
    if not names:
        return (qualified_name(account, "*"),) if is_one_account and account != DEFAULT_ACCOUNT else ()
    return tuple(qualified_name(account, name) for name in names)
