"""Whether the caller of a connection may do something to a queue: its rules, and the policy of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE
from ..names import split_name, split_namespace
from .condition_keys import connection_condition_keys

if TYPE_CHECKING:
    from .context import ServerContext


def connection_may(
    context: ServerContext,
    principal: Principal,
    action: str,
    queue_key: str,
    sqs_action: str,
    peer: str,
    is_tls: bool,
    last_policy: str | None = None,
) -> bool:
    """`sqs_action` is what the policy of the queue must allow, under the conditions of this connection.

    `last_policy` counts if the queue is gone. Without one, only the rules of the caller do.
    """
    account, name = split_name(queue_key)
    queue = context.broker.find_queue(queue_key)
    policy = last_policy if queue is None else queue.settings.notes.get(POLICY_NOTE)
    if policy is None:
        return context.guard.may(principal, action, account, name)
    region = split_namespace(account)[0] or context.config.region
    keys = connection_condition_keys(is_tls, peer, principal, region, context.now_ms())
    return context.guard.may(
        principal, action, account, name, policy=policy, sqs_action=sqs_action, condition_keys=keys
    )
