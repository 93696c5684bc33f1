"""Authorisation rules: what users may do, and the roles that are sets of rules. Pure.

Rules belong to users and allow or deny four actions on queues, and `admin` for the server. A deny outweighs
every allow, and the default is deny.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidSetting
from ..names import owner_of

Effect = Literal["allow", "deny"]

QUEUE_ACTIONS = frozenset({"send", "receive", "peek", "manage"})
ACTIONS = QUEUE_ACTIONS | {"admin"}
# Not in any rule: any permission on a queue allows its holder to see that the queue exists.
LIST_ACTION = "see"

# The permission that each SQS action needs.
SQS_ACTIONS = {
    "AddPermission": "manage",
    "CancelMessageMoveTask": "manage",
    "ChangeMessageVisibility": "receive",
    "ChangeMessageVisibilityBatch": "receive",
    "CreateQueue": "manage",
    "DeleteMessage": "receive",
    "DeleteMessageBatch": "receive",
    "DeleteQueue": "manage",
    "GetQueueAttributes": LIST_ACTION,
    "GetQueueUrl": LIST_ACTION,
    "ListDeadLetterSourceQueues": LIST_ACTION,
    "ListMessageMoveTasks": LIST_ACTION,
    "ListQueueTags": LIST_ACTION,
    "ListQueues": LIST_ACTION,
    "PurgeQueue": "manage",
    "ReceiveMessage": "receive",
    "RemovePermission": "manage",
    "SendMessage": "send",
    "SendMessageBatch": "send",
    "SetQueueAttributes": "manage",
    "StartMessageMoveTask": "manage",
    "TagQueue": "manage",
    "UntagQueue": "manage",
}
# The SQS action of a permission, for policies in other protocols.
SQS_ACTION_OF = {
    "send": "SendMessage",
    "receive": "ReceiveMessage",
    "peek": "ReceiveMessage",
    "manage": "SetQueueAttributes",
    LIST_ACTION: "GetQueueAttributes",
}
# A policy names the single form; the batch form needs the same permission.
BATCH_TO_SINGLE = {
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}
# A policy cannot allow these to other accounts.
OWN_ACCOUNT_ONLY = frozenset(
    {
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "ListMessageMoveTasks",
        "ListQueues",
        "ListQueueTags",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    }
)
# The root of an account may always do these, so that a policy cannot lock a queue for ever.
POLICY_REPAIR_ACTIONS = frozenset(
    {"AddPermission", "GetQueueAttributes", "RemovePermission", "SetQueueAttributes"}
)


def matches(pattern: str, text: str) -> bool:
    """Match a pattern: `*` any run, `?` one character, anything else itself.

    Not by regular expression: patterns come from users, and `*a*a*a*a*b` must take linear time.
    """
    if pattern == "*":
        return True
    first, *pieces = pattern.split("*")
    if not pieces:
        return len(first) == len(text) and _fits(first, text, 0)
    last = pieces.pop()
    at, end = len(first), len(text) - len(last)
    if at > end or not _fits(first, text, 0) or not _fits(last, text, end):
        return False
    for piece in pieces:
        # The leftmost match of each piece leaves the most text for the others.
        while at + len(piece) <= end and not _fits(piece, text, at):
            at += 1
        at += len(piece)
        if at > end:
            return False
    return True


def _fits(piece: str, text: str, at: int) -> bool:
    if "?" not in piece:
        return text.startswith(piece, at)
    return all(wanted in ("?", text[at + offset]) for offset, wanted in enumerate(piece))


@dataclass(frozen=True, slots=True)
class Rule:
    """Allow or deny some actions on the queues whose names match.

    `account` None is the account of the user who has the rule; `*` is every account. A rule for another
    account is a grant by the operator; accounts share their own queues by policy. An account stands for all
    its regions; a namespace (`eu-west-1.111122223333`) for one of them. `admin` is for the whole server, so
    only a rule for all queues grants it; see `checked`.
    """

    effect: Effect
    actions: frozenset[str]
    queues: str = "*"
    account: str | None = None

    def __post_init__(self) -> None:
        if self.effect not in ("allow", "deny"):
            raise InvalidSetting(f"a rule allows or denies, it cannot {self.effect!r}")
        unknown = set(self.actions) - ACTIONS
        if unknown or not self.actions:
            raise InvalidSetting(
                f"unknown action {', '.join(sorted(map(str, unknown))) or '(none)'}; "
                f"there are {', '.join(sorted(ACTIONS))}"
            )
        if not self.queues:
            raise InvalidSetting("a rule names queues: a name, a pattern with * and ?, or * for all")

    @property
    def covers_everything(self) -> bool:
        return self.queues == "*" and self.account in (None, "*")

    def applies_to(self, action: str, account: str, queue: str | None, own_account: str) -> bool:
        if action not in self.actions:
            return False
        if action == "admin":
            # A rule of an older file that names some queues or an account grants nothing on the whole server.
            # A deny applies in any case.
            return self.effect == "deny" or self.covers_everything
        # The rules of an account apply in every region; a rule may name one region of it alone.
        if (own_account if self.account is None else self.account) not in ("*", account, owner_of(account)):
            return False
        # An action on an account as a whole (None) is allowed only by a rule for all its queues, and denied
        # only by such a rule.
        return self.queues == "*" if queue is None else matches(self.queues, queue)


def checked(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Validate new rules. Raises InvalidSetting for an `admin` that names queues."""
    given = tuple(rules)
    if any("admin" in rule.actions and not rule.covers_everything for rule in given):
        raise InvalidSetting(
            "admin is of the whole server, with all its accounts and users: a rule with admin names all "
            "queues (*) and no account; use manage for some queues or for one account"
        )
    return given


def judge(
    rules: Iterable[Rule], action: str, account: str, queue: str | None, own_account: str
) -> Effect | None:
    """The verdict of these rules; None if none applies. `own_account` is that of their user."""
    verdict: Effect | None = None
    for rule in rules:
        if rule.applies_to(action, account, queue, own_account):
            if rule.effect == "deny":
                return "deny"
            verdict = "allow"
    return verdict


def _role(*actions: str, account: str | None = None) -> tuple[Rule, ...]:
    return (Rule("allow", frozenset(actions), account=account),)


# Roles except admin are limited to the user's own account.
ROLES: Mapping[str, tuple[Rule, ...]] = {
    "admin": _role(*ACTIONS, account="*"),
    "manager": _role("send", "receive", "peek", "manage"),
    "operator": _role("receive", "peek", "manage"),
    "producer": _role("send"),
    "consumer": _role("receive"),
    "viewer": _role("peek"),
    "none": (),
}
