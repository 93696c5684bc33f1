"""Authorisation rules: the rules of users, and access policies of queues as in Amazon SQS. Pure.

Rules belong to users and allow or deny four actions on queues, and `admin` for the server. A policy is a JSON
document that belongs to a queue. In both, a deny outweighs every allow, and the default is deny.

A statement that cannot be evaluated (an unknown operator or condition key, a value that is not a number, date
or address) denies: an Allow does not apply, a Deny does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Literal

from ..errors import InvalidSetting
from ..names import owner_of
from .errors import InvalidAccessPolicy

Effect = Literal["allow", "deny"]
Each = Literal["", "any", "all"]  # plain, ForAnyValue, ForAllValues
ConditionKeys = Mapping[str, str]

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
_BATCH_TO_SINGLE = {
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

# The note of a queue's settings (`QueueSettings.notes`) that holds its policy.
POLICY_NOTE = "sqs.Policy"
# The version of documents that AddPermission makes; AWS writes the older one there.
GENERATED_VERSION = "2008-10-17"
MAX_STATEMENTS = 20
MAX_POLICY_BYTES = 64 * 1024


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


# Rules


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


# Policies


@dataclass(frozen=True, slots=True)
class PolicyCondition:
    operator: str  # lower case, without prefix and suffix
    each: Each
    if_exists: bool
    key: str  # lower case
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PolicyStatement:
    sid: str | None
    effect: Effect
    principals: tuple[str, ...]  # "*", account ids and ARNs of AWS principals
    not_principals: bool
    actions: tuple[str, ...]  # lower case: AWS ignores the case
    not_actions: bool
    resources: tuple[str, ...]
    not_resources: bool
    conditions: tuple[PolicyCondition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PolicyDocument:
    """A parsed policy. Equal only to itself, so that it is a cheap key."""

    version: str
    statements: tuple[PolicyStatement, ...]

    @property
    def depends_on_context(self) -> bool:
        return any(statement.conditions or self._has_variables(statement) for statement in self.statements)

    def _has_variables(self, statement: PolicyStatement) -> bool:
        return self.version == "2012-10-17" and any("${" in resource for resource in statement.resources)


def parse(text: str | bytes) -> PolicyDocument:
    """Parse a policy of AWS; raises InvalidAccessPolicy."""
    if len(text) > MAX_POLICY_BYTES:
        raise InvalidAccessPolicy(f"the policy is longer than {MAX_POLICY_BYTES} bytes")
    try:
        source = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, InvalidAccessPolicy):
            raise
        raise InvalidAccessPolicy("the policy is not valid JSON") from None
    return _document(source)


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Parsers differ in which of two equal keys wins: ambiguous.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidAccessPolicy("the policy has a name twice in one object")
    return found


def _document(source: object) -> PolicyDocument:
    if not isinstance(source, dict):
        raise InvalidAccessPolicy("the policy must be a JSON object")
    _only(source, ("Version", "Id", "Statement"), "the policy")
    version = source.get("Version", "2008-10-17")
    if version not in ("2008-10-17", "2012-10-17"):
        raise InvalidAccessPolicy("the policy's Version must be 2012-10-17 or 2008-10-17")
    if not isinstance(source.get("Id", ""), str):
        raise InvalidAccessPolicy("the policy's Id must be text")
    statements = source.get("Statement")
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list) or not statements:
        raise InvalidAccessPolicy("the policy needs a Statement")
    parsed = tuple(_statement(statement) for statement in statements)
    sids = [statement.sid for statement in parsed if statement.sid]
    if len(set(sids)) != len(sids):
        raise InvalidAccessPolicy("two statements of the policy have the same Sid")
    return PolicyDocument(version, parsed)


def _statement(source: object) -> PolicyStatement:
    if not isinstance(source, dict):
        raise InvalidAccessPolicy("a statement must be a JSON object")
    known = ("Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource")
    _only(source, ("Sid", "Effect", "Condition", *known), "a statement")
    sid = source.get("Sid")
    if sid is not None and not isinstance(sid, str):
        raise InvalidAccessPolicy("a statement's Sid must be text")
    if source.get("Effect") not in ("Allow", "Deny"):
        raise InvalidAccessPolicy("a statement's Effect must be Allow or Deny")
    effect: Effect = "allow" if source["Effect"] == "Allow" else "deny"
    not_principals, principal = _either(source, "Principal")
    not_actions, action = _either(source, "Action")
    actions = _texts(action, "Action")
    for name in actions:
        if name != "*" and not (name[:4].lower() == "sqs:" and len(name) > 4):
            raise InvalidAccessPolicy(f"the action {name[:80]!r} is not one of SQS")
    # Without a resource, the policy applies to its queue.
    not_resources, resource = (
        _either(source, "Resource") if "Resource" in source or "NotResource" in source else (False, "*")
    )
    return PolicyStatement(
        sid,
        effect,
        _principals(principal),
        not_principals,
        tuple(name.lower() for name in actions),
        not_actions,
        _texts(resource, "Resource"),
        not_resources,
        _conditions(source.get("Condition", {})),
    )


def _only(source: Mapping[str, object], names: Sequence[str], where: str) -> None:
    for name in source:
        if name not in names:
            raise InvalidAccessPolicy(f"{where} has an unknown element {name[:80]!r}")


def _either(source: Mapping[str, object], name: str) -> tuple[bool, object]:
    """A statement has an element or its opposite, never both and never neither."""
    opposite = f"Not{name}"
    if (name in source) == (opposite in source):
        raise InvalidAccessPolicy(f"a statement needs either {name} or {opposite}")
    return (False, source[name]) if name in source else (True, source[opposite])


def _texts(source: object, where: str) -> tuple[str, ...]:
    values = source if isinstance(source, list) else [source]
    if not values or not all(isinstance(value, str) and value for value in values):
        raise InvalidAccessPolicy(f"{where} must be text or a list of texts")
    return tuple(values)


def _principals(source: object) -> tuple[str, ...]:
    if source == "*":
        return ("*",)
    if not isinstance(source, dict) or not source:
        raise InvalidAccessPolicy('Principal must be "*" or an object such as {"AWS": "111122223333"}')
    found: list[str] = []
    for kind, names in source.items():
        if kind not in ("AWS", "Service", "Federated", "CanonicalUser"):
            raise InvalidAccessPolicy(f"unknown kind of principal {kind[:80]!r}")
        for name in _texts(names, "Principal"):
            # Services and federated users cannot authenticate here; separate so that no user name matches.
            found.append(name if kind == "AWS" else f"{kind}:{name}")
    return tuple(found)


_PREFIXES: Mapping[str, Each] = {"foranyvalue": "any", "forallvalues": "all"}


def _conditions(source: object) -> tuple[PolicyCondition, ...]:
    if not isinstance(source, dict):
        raise InvalidAccessPolicy("Condition must be a JSON object")
    found = []
    for operator, tests in source.items():
        if not isinstance(tests, dict):
            raise InvalidAccessPolicy(f"the condition {operator[:80]!r} must hold an object")
        prefix, colon, rest = operator.lower().rpartition(":")
        each: Each = _PREFIXES.get(prefix, "")
        name = rest if each or not colon else operator.lower()
        if_exists = name.endswith("ifexists") and name != "ifexists"
        for key, values in tests.items():
            listed = values if isinstance(values, list) else [values]
            if not all(isinstance(value, str | bool | int | float) for value in listed):
                raise InvalidAccessPolicy(f"the condition on {key[:80]!r} must be text or a list of texts")
            texts = tuple(str(v).lower() if isinstance(v, bool) else str(v) for v in listed)
            bare = name.removesuffix("ifexists") if if_exists else name
            found.append(PolicyCondition(bare, each, if_exists, key.lower(), texts))
    return tuple(found)


# Evaluation


class _Undecided(Exception):
    """A condition that cannot be evaluated."""


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
    name = "sqs:" + _BATCH_TO_SINGLE.get(name, name)
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
        applies = _all_of(
            [
                partial(_matches_resource, document, statement, resource_arn, keys),
                *[partial(_condition_holds, document, condition, keys) for condition in statement.conditions],
            ]
        )
        if applies is None:
            applies = statement.effect == "deny"
        if applies:
            if statement.effect == "deny":
                return "deny"
            verdict = "allow"
    return verdict


def _all_of(tests: Iterable[Callable[[], bool]]) -> bool | None:
    """False if any test is false; None if none is false but some cannot be evaluated."""
    verdict: bool | None = True
    for test in tests:
        try:
            if not test():
                return False
        except _Undecided:
            verdict = None
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
    patterns = [_expanded(document, resource, keys) for resource in statement.resources]
    return any(matches(pattern, arn) for pattern in patterns) != statement.not_resources


_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def _expanded(document: PolicyDocument, text: str, keys: ConditionKeys) -> str:
    """Expand policy variables, `${aws:username}`: part of the newer version only."""
    if document.version != "2012-10-17" or "${" not in text:
        return text

    def value_of(match: re.Match[str]) -> str:
        name = match[1].strip().lower()
        # A value that contains wildcards would match more than itself.
        if name not in keys or "*" in keys[name] or "?" in keys[name]:
            raise _Undecided
        return keys[name]

    return _VARIABLE.sub(value_of, text)


# Keys that AWS defines and that a request to OpenQ may legitimately lack. A key that is neither here nor in
# the context is unknown; so is a key that every request has (its time, its address, whether it was encrypted)
# if the caller did not pass it.
_KNOWN_KEYS = frozenset(
    f"aws:{name}"
    for name in (
        *("calledvia", "calledviafirst", "calledvialast", "ec2instancesourcevpc"),
        *("federatedprovider", "multifactorauthage", "multifactorauthpresent", "principalaccount"),
        *("principalarn", "principalorgid", "principalorgpaths"),
        *("principalservicename", "principalservicenameslist", "referer"),
        *("sourceaccount", "sourcearn", "sourceidentity"),
        *("sourceorgid", "sourceorgpaths", "sourcevpc", "sourcevpce", "tokenissuetime", "useragent"),
        *("username", "vpcsourceip"),
    )
)


def _same(value: str, wanted: str) -> bool:
    return value == wanted


def _same_in_any_case(value: str, wanted: str) -> bool:
    return value.lower() == wanted.lower()


def _like(value: str, wanted: str) -> bool:
    return matches(wanted, value)


def _arn_like(value: str, wanted: str) -> bool:
    """Each of the six parts separately: a `*` does not match a colon."""
    parts, patterns = value.split(":", 5), wanted.split(":", 5)
    if len(parts) != 6:
        raise _Undecided
    if len(patterns) != 6:
        return wanted == "*"
    return all(matches(pattern, part) for pattern, part in zip(patterns, parts, strict=True))


def _as_bool(value: str, wanted: str) -> bool:
    return value.lower() == wanted.lower() and value.lower() in ("true", "false")


def _as_address(value: str, wanted: str) -> bool:
    try:
        address, network = ip_address(value), ip_network(wanted, strict=False)
    except ValueError:
        raise _Undecided from None
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None and network.version == 4:
        address = mapped
    return address.version == network.version and address in network


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _Undecided from None
    if number != number:
        raise _Undecided
    return number


def _moment(text: str) -> float:
    """ISO 8601, or seconds since the epoch."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return _number(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


Test = Callable[[str, str], bool]


def _ordered(read: Callable[[str], float], name: str) -> dict[str, Test]:
    return {
        f"{name}equals": lambda value, wanted: read(value) == read(wanted),
        f"{name}lessthan": lambda value, wanted: read(value) < read(wanted),
        f"{name}lessthanequals": lambda value, wanted: read(value) <= read(wanted),
        f"{name}greaterthan": lambda value, wanted: read(value) > read(wanted),
        f"{name}greaterthanequals": lambda value, wanted: read(value) >= read(wanted),
    }


_TESTS: Mapping[str, Test] = {
    "stringequals": _same,
    "stringequalsignorecase": _same_in_any_case,
    "stringlike": _like,
    "arnequals": _arn_like,
    "arnlike": _arn_like,
    "bool": _as_bool,
    "binaryequals": _same,
    "ipaddress": _as_address,
    **_ordered(_number, "numeric"),
    **_ordered(_moment, "date"),
}
# True if no value matches, and if there is no value.
_OPPOSITES = {
    "stringnotequals": "stringequals",
    "stringnotequalsignorecase": "stringequalsignorecase",
    "stringnotlike": "stringlike",
    "arnnotequals": "arnequals",
    "arnnotlike": "arnlike",
    "notipaddress": "ipaddress",
    "numericnotequals": "numericequals",
    "datenotequals": "dateequals",
}


def _condition_holds(document: PolicyDocument, condition: PolicyCondition, keys: ConditionKeys) -> bool:
    value = keys.get(condition.key)
    if value is None and condition.key not in _KNOWN_KEYS:
        raise _Undecided
    if condition.operator == "null" and not condition.each and not condition.if_exists:
        if not condition.values or not set(condition.values) <= {"true", "false"}:
            raise _Undecided
        return ("true" if value is None else "false") in condition.values
    is_opposite = condition.operator in _OPPOSITES
    test = _TESTS.get(_OPPOSITES.get(condition.operator, condition.operator))
    if test is None:
        raise _Undecided
    if value is None:
        # "All of no values" is true; "any of no values" is false, whether the test is negated or not.
        if condition.each:
            return condition.each == "all" or condition.if_exists
        return condition.if_exists or is_opposite
    # One value per key here, so "any" and "all" of them are the same.
    misses = _all_of([partial(_misses, test, value, document, text, keys) for text in condition.values])
    if misses is None:
        raise _Undecided
    return misses == is_opposite


def _misses(test: Test, value: str, document: PolicyDocument, text: str, keys: ConditionKeys) -> bool:
    return not test(value, _expanded(document, text, keys))


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
