"""Access policies of queues, as in Amazon SQS: whether a policy allows an action, and its changes. Pure.

A policy is a JSON document that belongs to a queue (`policy_document.py`). As in the rules of users
(`rules.py`), a deny outweighs every allow, and the default is deny.

A statement that cannot be evaluated (an unknown operator or condition key, a value that is not a number, date
or address: `policy_conditions.py`) denies: an Allow does not apply, a Deny does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial

from .errors import InvalidAccessPolicy
from .policy_conditions import ConditionKeys, all_of, condition_holds, expanded
from .policy_document import MAX_STATEMENTS, PolicyDocument, PolicyStatement, parse
from .rules import BATCH_TO_SINGLE, Effect, matches

# The note of a queue's settings (`QueueSettings.notes`) that holds its policy.
POLICY_NOTE = "sqs.Policy"
# The version of documents that AddPermission makes; AWS writes the older one there.
GENERATED_VERSION = "2008-10-17"


def evaluate(
    document: PolicyDocument,
    principal_arn: str,
    principal_account: str,
    action: str,
    resource_arn: str,
    condition_keys: ConditionKeys | None = None,
    *,
    delegated: bool = True,
) -> Effect | None:
    """The verdict of the policy on this action of this principal (`SendMessage` or `sqs:SendMessage`).

    `condition_keys` are such as `aws:SourceIp`, each with one value. An Allow for a whole account delegates
    to that account: in the queue's own account its users still need a rule (`delegated=False`); for another
    account it is the permission.
    """
    name = action.removeprefix("sqs:")
    name = "sqs:" + BATCH_TO_SINGLE.get(name, name)
    keys = {key.lower(): value for key, value in condition_keys.items()} if condition_keys else {}
    if principal_arn:
        keys.setdefault("aws:principalarn", principal_arn)
        keys.setdefault("aws:principalaccount", principal_account)
    verdict: Effect | None = None
    for statement in document.statements:
        if not _matches_action(statement, name):
            continue
        if not _matches_principal(statement, principal_arn, principal_account, delegated):
            continue
        applies = all_of(
            [
                partial(_matches_resource, document, statement, resource_arn, keys),
                *[partial(condition_holds, document, condition, keys) for condition in statement.conditions],
            ]
        )
        if applies is None:
            applies = statement.effect == "deny"
        if applies:
            if statement.effect == "deny":
                return "deny"
            verdict = "allow"
    return verdict


def _matches_action(statement: PolicyStatement, action: str) -> bool:
    action = action.lower()
    named = any(matches(pattern, action) for pattern in statement.actions)
    return named != statement.not_actions


def _matches_principal(statement: PolicyStatement, arn: str, account: str, delegated: bool) -> bool:
    named = statement.principals
    whole_account = account in named or f"arn:aws:iam::{account}:root" in named
    itself = bool(arn) and arn in named
    is_root = arn == f"arn:aws:iam::{account}:root"
    if not statement.not_principals:
        if "*" in named or itself or (is_root and whole_account):
            return True
        return whole_account and bool(arn) and (delegated or statement.effect == "deny")
    # "Everyone but": to be exempt from a Deny, both a user and its account must be named, as in AWS; to be
    # exempt from an Allow, either is enough.
    if "*" in named:
        return False
    if statement.effect == "deny":
        return not (whole_account and (itself or is_root))
    return not (whole_account or itself)


def _matches_resource(
    document: PolicyDocument, statement: PolicyStatement, arn: str, keys: ConditionKeys
) -> bool:
    patterns = [expanded(document, resource, keys) for resource in statement.resources]
    return any(matches(pattern, arn) for pattern in patterns) != statement.not_resources


# AddPermission, RemovePermission


class LabelExists(InvalidAccessPolicy):
    code = "label_exists"


class LabelNotFound(InvalidAccessPolicy):
    code = "label_not_found"


def add_permission(
    document: str | None, label: str, account_ids: Sequence[str], actions: Sequence[str], queue_arn: str
) -> str:
    """The policy with one more statement, as AWS generates it: the new text of the queue's Policy."""
    source = _source(document) or {
        "Version": GENERATED_VERSION,
        "Id": f"{queue_arn}/SQSDefaultPolicy",
        "Statement": [],
    }
    statements = _statements(source)
    if any(statement.get("Sid") == label for statement in statements):
        raise LabelExists(f"the policy already has a statement labelled {label!r}")
    if len(statements) >= MAX_STATEMENTS:
        raise InvalidAccessPolicy(f"a policy has at most {MAX_STATEMENTS} statements")
    arns = [f"arn:aws:iam::{account}:root" for account in account_ids]
    names = [f"SQS:{action.removeprefix('SQS:').removeprefix('sqs:')}" for action in actions]
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_list(arns)},
            "Action": _one_or_list(names),
            "Resource": queue_arn,
        }
    )
    return json.dumps({**source, "Statement": statements}, separators=(",", ":"))


def remove_permission(document: str | None, label: str) -> str | None:
    """The policy without that statement; None when no statement is left."""
    source = _source(document) or {}
    statements = _statements(source)
    kept = [statement for statement in statements if statement.get("Sid") != label]
    if len(kept) == len(statements):
        raise LabelNotFound(f"the policy has no statement labelled {label!r}")
    return json.dumps({**source, "Statement": kept}, separators=(",", ":")) if kept else None


def _source(document: str | None) -> dict[str, object] | None:
    if not document:
        return None
    parse(document)
    source: dict[str, object] = json.loads(document)
    return source


def _statements(source: Mapping[str, object]) -> list[dict[str, object]]:
    statements = source.get("Statement", [])
    return list(statements) if isinstance(statements, list) else [statements]  # type: ignore[list-item]


def _one_or_list(values: Sequence[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else list(values)
