"""What the user who declared a webhook may see now, for webhooks of events.

A pattern of queues takes in queues that are created later, with policies of their own. So each queue that has
a policy is judged by it, for the user who declared the webhook. The history of a queue outlives it: once the
queue is gone, the rules of that user decide, with the last policy that was seen here. Events of the whole
server are for administrators. A webhook of the configuration file, or of a server without users, counts as
declared by the root of its account; so does one that an earlier version declared, except for events of the
whole server.
"""

from __future__ import annotations

from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE
from ..broker.events import Event
from ..names import DEFAULT_ACCOUNT, split_name
from ..server.connection_access import connection_may
from ..server.context import ServerContext
from .model import Webhook

MAX_POLICIES = 1_000  # of queues, each for the time after its queue


class Declarer:
    def __init__(self, context: ServerContext, webhook: Webhook) -> None:
        self._context = context
        self._user = webhook.declared_by
        self._account = split_name(webhook.name)[0]
        self._is_tls = webhook.url.startswith("https:")
        self._decisions: dict[str, bool] = {}
        self._policies: dict[str, str] = {}  # the last one of each queue; the oldest first

    def refresh(self) -> None:
        """Decide again from now on."""
        self._decisions.clear()

    def may_see(self, event: Event) -> bool:
        """In a thread."""
        known = self._decisions.get(event.queue)
        if known is None:
            known = self._decisions[event.queue] = self._decide(event.queue)
        return known

    def _decide(self, queue_key: str) -> bool:
        context = self._context
        if not queue_key:  # of the whole server
            is_known = self._user is not None and self._account == DEFAULT_ACCOUNT
            caller = self._principal() if is_known else None
            return caller is not None and context.guard.may(caller, "admin", DEFAULT_ACCOUNT, None)
        # A pattern of the default account also matches queues of other accounts.
        if split_name(queue_key)[0] != self._account:
            return False
        queue = context.broker.find_queue(queue_key)
        if queue is not None:
            policy = queue.settings.notes.get(POLICY_NOTE)
            self._remember(queue_key, policy)
            if policy is None:
                return True
        caller = self._principal()
        last = self._policies.get(queue_key)
        return caller is not None and connection_may(
            context, caller, "peek", queue_key, "ReceiveMessage", "", self._is_tls, last
        )

    def _remember(self, queue_key: str, policy: str | None) -> None:
        self._policies.pop(queue_key, None)
        if policy is not None:
            self._policies[queue_key] = policy
            if len(self._policies) > MAX_POLICIES:
                del self._policies[next(iter(self._policies))]

    def _principal(self) -> Principal | None:
        """None: the user was removed or disabled."""
        guard = self._context.guard
        if not self._user or guard.is_open:
            return guard.open_principal(self._account)
        found = guard.known(self._user, b"")
        return None if found is None else found[0]
