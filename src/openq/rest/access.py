"""May a user do something to a queue, and what decides it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..auth.errors import UnknownName
from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE
from ..auth.rules import ROLES, SQS_ACTION_OF, Rule
from ..auth.store import User
from ..errors import OpenQError
from ..names import arn_of, qualified_name
from .call import RestCall
from .routes import route
from .schemas import QueryParameters, ReplyBody
from .user_schemas import RuleView
from .users import rule_views


class AccessQuery(QueryParameters, kw_only=True):
    user: Annotated[str, Meta(min_length=1, max_length=64)]
    action: Literal["send", "receive", "peek", "manage", "admin"]
    queue: Annotated[str, Meta(max_length=255, description="none: the account as a whole")] = ""


class AccessView(ReplyBody, kw_only=True):
    user: str
    action: str
    queue: str | None
    account: str  # of the queue
    allowed: bool
    decided_by: Literal["disabled", "role", "rule", "policy", "nothing"]
    rule: RuleView | None  # that decides
    text: str  # the same in a sentence
    depends_on_request: bool  # the policy of the queue has conditions, such as an address


@route(
    "GET",
    "access",
    permission="admin",
    scope="server",
    summary="Whether a user may do something to a queue, and which rule decides",
    query=AccessQuery,
    reply=AccessView,
)
def test_access(call: RestCall) -> None:
    query = call.query
    user = call.context.guard.store.user(query.user)
    if user is None:
        raise UnknownName("user", query.user[:100])
    call.answer(_judged(call, user, query.action, query.queue or None))


def _judged(call: RestCall, user: User, action: str, queue: str | None) -> AccessView:
    allowed, conditional, policy = _verdict(call, user, action, queue)
    rule = _deciding(user, action, call.account, queue)
    decided_by: Literal["disabled", "role", "rule", "policy", "nothing"]
    if user.is_disabled:
        decided_by, text = "disabled", f"{user.name} is disabled: every action is denied"
    elif rule is not None and (rule.effect == "allow") == allowed:
        # A rule of a role may equal one of the user's own: the own one is named.
        decided_by = "rule" if rule in user.rules else "role"
        what = _rule_text(rule)
        text = f"role {user.role}: {what}" if decided_by == "role" else f"own rule: {what}"
    elif policy:
        decided_by, text = "policy", f"the policy of the queue {'allows' if allowed else 'denies'} it"
    else:
        decided_by, text = "nothing", f"no rule of {user.name} allows it"
    return AccessView(
        user=user.name,
        action=action,
        queue=queue,
        account=call.account,
        allowed=allowed,
        decided_by=decided_by,
        rule=rule_views([rule])[0] if rule is not None and decided_by in ("role", "rule") else None,
        text=text,
        depends_on_request=conditional,
    )


def _verdict(call: RestCall, user: User, action: str, queue: str | None) -> tuple[bool, bool, bool]:
    """Whether it is allowed, whether a policy makes it depend on the request, whether there is a policy."""
    guard, account = call.context.guard, call.account
    principal = Principal(user.account, user.name, user.is_root, user.all_rules)
    policy: str | None = None
    if queue is not None and action != "admin":
        try:
            policy = call.broker.get_queue(qualified_name(account, queue)).settings.notes.get(POLICY_NOTE)
        except OpenQError:
            pass  # no such queue, so no policy
    if policy is None:
        return guard.may(principal, action, account, queue) and not user.is_disabled, False, False
    allowed = guard.may(
        *(principal, action, account, queue),
        policy=policy,
        sqs_action=SQS_ACTION_OF[action],
        resource_arn=arn_of(account, queue or "*", call.context.config.region),
        condition_keys={},
    )
    return allowed and not user.is_disabled, guard.depends_on_request(policy), True


def _deciding(user: User, action: str, account: str, queue: str | None) -> Rule | None:
    """The first deny, else the first allow: own rules before those of the role."""
    rules = [*user.rules, *ROLES[user.role]]
    applying = [rule for rule in rules if rule.applies_to(action, account, queue, user.account)]
    denying = [rule for rule in applying if rule.effect == "deny"]
    return next(iter(denying or applying), None)


def _rule_text(rule: Rule) -> str:
    account = f" in {rule.account}" if rule.account not in (None, "*") else ""
    queues = "all queues" if rule.queues == "*" else rule.queues
    return f"{rule.effect} {', '.join(sorted(rule.actions))} on {queues}{account}"
