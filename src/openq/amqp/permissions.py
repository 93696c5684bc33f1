"""RabbitMQ's tags and permissions as roles and rules, and back.

RabbitMQ has tags, and three regular expressions per vhost. A user of OpenQ has a role, and rules with
`*` and `?`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..auth.rules import Rule
from ..auth.store import User
from ..names import owner_of
from .arguments import account_of

GUEST = "guest"

# RabbitMQ's permissions, and the actions they allow.
ACTIONS_OF = {
    "configure": frozenset(("manage",)),
    "write": frozenset(("send",)),
    "read": frozenset(("receive", "peek")),
}
# RabbitMQ's tags, and the nearest role.
ROLE_OF = {"administrator": "admin", "monitoring": "viewer", "policymaker": "viewer", "management": "viewer"}
# Roles, and the tag that is shown for them.
TAG_OF = {"admin": "administrator", "viewer": "monitoring"}
DEFAULT_ALGORITHM = "rabbit_password_hashing_sha256"

NO_GUEST = (
    "user 'guest': an open server accepts guest anyway; a server with users does not: its password is "
    "well known"
)


def role_of(tags: Iterable[str]) -> str:
    """The highest role of these tags."""
    roles = {ROLE_OF.get(tag, "none") for tag in tags}
    return next((role for role in ("admin", "viewer") if role in roles), "none")


_LITERAL = re.compile(r"[\w\-/:@ ,=~!#%&;<>'\"]")
_ESCAPED = re.compile(r"[.\-_/:@#$^+(){}\[\]|]")


def globs_of(pattern: str) -> list[str] | None:
    """A regular expression as patterns with `*` and `?`; None if that is not possible.

    The patterns never match more than the expression, so that no user gains access.
    """
    if pattern in ("", "^$"):
        return []
    if pattern.startswith("^(") and pattern.endswith((")", ")$", ").*", ").*$")):
        end = pattern.rindex(")")
        tail = pattern[end + 1 :]
        parts = pattern[2:end].removeprefix("?:").split("|")
        globs = [_glob("^" + part + tail) for part in parts]
    elif "(" in pattern:
        return None
    else:
        globs = [_glob(part) for part in pattern.split("|")]
    return None if None in globs else [each for each in globs if each]


def _glob(pattern: str) -> str | None:
    start = pattern.startswith("^")
    end = pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[start : len(pattern) - end]
    glob = "" if start else "*"
    at = 0
    while at < len(body):
        char = body[at]
        following = body[at + 1 : at + 2]
        if char == "\\":
            if not _ESCAPED.fullmatch(following):
                return None
            glob += following
            at += 2
        elif char == ".":
            if following == "*":
                glob += "*"
                at += 2
            elif following == "+":
                glob += "?*"
                at += 2
            elif following in ("?", "{"):
                return None
            else:
                glob += "?"
                at += 1
        elif _LITERAL.fullmatch(char) and following not in ("*", "+", "?", "{"):
            glob += char
            at += 1
        else:
            return None
    if not end:
        glob += "*"
    return re.sub(r"\*+", "*", glob)


def user_fields(user: User) -> dict[str, Any]:
    """Password hashes are never shown."""
    return {
        "name": user.name,
        "password_hash": "",
        "hashing_algorithm": DEFAULT_ALGORITHM,
        "tags": [TAG_OF[user.role]] if user.role in TAG_OF else [],
        "limits": {},
    }


def permission_fields(user: User, vhosts: Iterable[str]) -> list[dict[str, Any]]:
    """The rules of a user as regular expressions. An action that any rule denies is left out."""
    found = []
    for vhost in vhosts:
        account = account_of(vhost)
        meant = ("*", account, owner_of(account))
        patterns: dict[str, str] = {}
        for kind, actions in ACTIONS_OF.items():
            action = next(iter(actions - {"peek"}))
            rules = [
                rule
                for rule in user.all_rules
                if action in rule.actions
                and (user.account if rule.account is None else rule.account) in meant
            ]
            patterns[kind] = _pattern([] if any(each.effect == "deny" for each in rules) else rules)
        if any(patterns.values()):
            found.append({"user": user.name, "vhost": vhost, **patterns})
    return found


def _pattern(rules: Iterable[Rule]) -> str:
    texts = [
        "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in glob)
        for glob in dict.fromkeys(rule.queues for rule in rules)
    ]
    if not texts:
        return ""
    if ".*" in texts:
        return ".*"
    return f"^{texts[0]}$" if len(texts) == 1 else f"^({'|'.join(texts)})$"
