"""Logins and permissions of AMQP clients, over the guard that all protocols share.

`Logins` finds the principal of a user name; `ConnectionAccess` decides what it may do in one vhost.
"""

from __future__ import annotations

from ..auth.failed_logins import NOT_GUEST
from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE
from ..broker.interface import KnownQueue
from ..errors import OpenQError
from ..names import owner_of, qualified_name, split_namespace
from ..server.condition_keys import connection_condition_keys
from ..server.context import ServerContext
from .arguments import as_text
from .errors import ACCESS_REFUSED, AmqpError

GUEST = "guest"


class Logins:
    def __init__(self, context: ServerContext) -> None:
        self._guard = context.guard

    def cached(self, user: str, password: str, peer: str) -> Principal | None:
        """Check without hashing, if possible. An open server accepts guest, as RabbitMQ does."""
        guard = self._guard
        if guard.is_open:
            return guard.open_principal() if user == GUEST and password == GUEST else None
        try:
            return guard.cached_login(user, password, peer)
        except OpenQError:
            return None  # too many failures: `check_password` raises it

    def check_password(self, user: str, password: str, peer: str) -> Principal:
        """Hashes the password: call it in a thread. Raises AuthenticationFailed."""
        guard = self._guard
        if guard.is_open:
            if user == GUEST and password == GUEST:
                return guard.open_principal()
            raise guard.refused.refuse("amqp", user, peer, NOT_GUEST)
        return guard.basic(user, password, peer, "amqp")

    def certificate_user(self, name: str, peer: str) -> Principal | None:
        guard = self._guard
        return guard.open_principal() if guard.is_open else guard.named(name, peer, "amqp")

    def in_account(self, principal: Principal, account: str) -> Principal | None:
        """The principal as it acts in this account (vhost); None if it has no access there."""
        guard = self._guard
        if guard.is_open:
            return guard.open_principal(account)
        owner = owner_of(account)
        if principal.account == owner:
            return principal
        has_rule = any(rule.account in ("*", account, owner) for rule in principal.rules)
        return principal if has_rule else None


class ConnectionAccess:
    """What the user of one connection may do in its vhost."""

    def __init__(
        self,
        context: ServerContext,
        principal: Principal,
        *,
        user: str,
        account: str,
        vhost: str,
        peer: str,
        is_tls: bool,
        is_guest: bool,
    ) -> None:
        self._context = context
        self._guard = context.guard
        self._find_queue = context.broker.find_queue
        self.user = user
        self.account = account
        self.vhost = vhost
        self._peer = peer
        self._is_tls = is_tls
        self.is_guest = is_guest  # logged in while the server had no users
        self.principal = principal
        self._is_unrestricted = False
        self.set_principal(principal)

    def set_principal(self, principal: Principal) -> None:
        """Its rules may change while the connection is open."""
        self.principal = principal
        # Only the policy of a queue can restrict the root of the account.
        self._is_unrestricted = principal.is_root and principal.account == owner_of(self.account)

    def require(self, action: str, kind: str, name: str) -> None:
        """Raises AmqpError 403. `kind` is "queue" or "exchange"."""
        if kind == "queue":
            queue = self._find_queue(qualified_name(self.account, name))
            self._require(action, name, queue, f"queue '{name}'")
        else:
            self._require(action, name, None, f"exchange '{name}'")

    def require_send(self, name: str, queue: KnownQueue | None) -> None:
        """Publishing to a queue through the default exchange."""
        self._require("send", name, queue, "exchange 'amq.default'")

    def _require(self, action: str, name: str, queue: KnownQueue | None, what: str) -> None:
        policy = None if queue is None else queue.settings.notes.get(POLICY_NOTE)
        if policy is None and self._is_unrestricted:
            return
        if not self._may(action, name, policy):
            raise self._refused(what)

    def _may(self, action: str, name: str, policy: str | None) -> bool:
        principal, account = self.principal, self.account
        if policy is None:
            return self._guard.may(principal, action, account, name)
        context = self._context
        region = split_namespace(account)[0] or context.config.region
        keys = connection_condition_keys(self._is_tls, self._peer, principal, region, context.now_ms())
        return self._guard.may(principal, action, account, name, policy=policy, condition_keys=keys)

    def require_forwarding(self, exchange: object, key: object) -> None:
        """For a dead-letter or alternate exchange: the user must be allowed to send there itself."""
        if not isinstance(exchange, str | bytes):
            return
        name = as_text(exchange)
        if name:
            self.require("send", "exchange", name)
        elif isinstance(key, str | bytes):
            self.require("send", "queue", as_text(key))
        elif not self._guard.may_everywhere(self.principal, "send", self.account):
            # Without a fixed key, the key of each message names the queue.
            raise self._refused("exchange 'amq.default'")

    def _refused(self, what: str) -> AmqpError:
        return AmqpError(
            ACCESS_REFUSED, f"access to {what} in vhost '{self.vhost}' refused for user '{self.user}'"
        )
