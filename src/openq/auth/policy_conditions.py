"""The conditions of a policy: operators, keys and variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address, ip_network

from .policy_document import PolicyCondition, PolicyDocument
from .rules import matches

ConditionKeys = Mapping[str, str]


class _Undecided(Exception):
    """A condition that cannot be evaluated."""


def all_of(tests: Iterable[Callable[[], bool]]) -> bool | None:
    """False if any test is false; None if none is false but some cannot be evaluated."""
    verdict: bool | None = True
    for test in tests:
        try:
            if not test():
                return False
        except _Undecided:
            verdict = None
    return verdict


_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def expanded(document: PolicyDocument, text: str, keys: ConditionKeys) -> str:
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


def condition_holds(document: PolicyDocument, condition: PolicyCondition, keys: ConditionKeys) -> bool:
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
    misses = all_of([partial(_misses, test, value, document, text, keys) for text in condition.values])
    if misses is None:
        raise _Undecided
    return misses == is_opposite


def _misses(test: Test, value: str, document: PolicyDocument, text: str, keys: ConditionKeys) -> bool:
    return not test(value, expanded(document, text, keys))
