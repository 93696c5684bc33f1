"""Access policies of queues as in Amazon SQS: JSON documents as values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import InvalidAccessPolicy
from .rules import Effect

Each = Literal["", "any", "all"]  # plain, ForAnyValue, ForAllValues
MAX_STATEMENTS = 20
MAX_POLICY_BYTES = 64 * 1024


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
