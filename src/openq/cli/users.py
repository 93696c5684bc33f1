"""`openq user`, `key`, `token` and `perm`: the users in a data directory, or in Redis.

No server is needed; running servers notice a change within a second.
"""

from __future__ import annotations

import atexit
import os
import time
from argparse import ArgumentTypeError, Namespace
from typing import Any

from ..auth.errors import UnknownName
from ..auth.rules import Rule, judge
from ..auth.store import UserStore
from ..config import Config, find_file, load, secret
from ..local.audit_file import FileAudit
from .api import UsageError, ask_password
from .arguments import iso_time
from .audit import record
from .output import NOT_CONFIRMED, confirm, count_text, print_json, print_list, print_result
from .terminal import DENIED, OK, say
from .values import actions as parse_actions

# -- the store ----------------------------------------------------------------------------------


def _store(options: Namespace, *, may_create: bool = False) -> UserStore:
    """The users; `options.audit_store` is the audit log of the same place."""
    config = load({"data": options.data, "store": options.store}, os.environ, find_file(os.environ))
    if config.store is not None:
        return _redis_store(options, config)
    if not os.path.isdir(config.data):
        if not may_create:
            raise FileNotFoundError(2, "no such data directory; set it with --data", config.data)
        # Private, whatever the umask: it will hold secrets.
        os.makedirs(config.data, mode=0o700, exist_ok=True)
    options.audit_store = FileAudit(config.data)
    return UserStore(os.path.join(config.data, "users.json"))


def _redis_store(options: Namespace, config: Config) -> UserStore:
    from ..server.app import open_broker
    from ..server.user_stores import open_user_store

    broker = open_broker(config)
    atexit.register(broker.close)
    options.audit_store = broker.audit
    return open_user_store(config, broker)


def _record(options: Namespace, action: str, target: str, **detail: object) -> None:
    record(options.audit_store, action, target, {name: value for name, value in detail.items() if value})


def _password(prompt: str) -> str:
    return secret("OPENQ_PASSWORD", os.environ) or ask_password(prompt, twice=True)


def _time(ms: int | None) -> str | None:
    return None if ms is None else iso_time(ms / 1000)


def _rule_text(rule: Rule) -> str:
    account = "" if rule.account is None else f" in {rule.account}"
    return f"{rule.effect} {','.join(sorted(rule.actions))} {rule.queues}{account}"


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "effect": rule.effect,
        "actions": sorted(rule.actions),
        "queues": rule.queues,
        "account": rule.account,
    }


# -- users --------------------------------------------------------------------------------------


def _user_json(user: Any) -> dict[str, Any]:
    """Every field but the password hash."""
    return {
        "name": user.name,
        "account": user.account,
        "role": user.role,
        "rules": [_rule_json(rule) for rule in user.rules],
        "has_password": user.password_hash is not None,
        "disabled": user.is_disabled,
        "created": _time(user.created_ms),
    }


def add_user(options: Namespace) -> int:
    store = _store(options, may_create=True)
    is_first = not store.users()
    password = _password(f"password for {options.name}: ") if options.password else None
    named = {} if options.account is None else {"account": options.account}
    user = store.add_user(options.name, role=options.role, password=password, **named)
    _record(options, "add_user", user.name, role=user.role, account=user.account, has_password=bool(password))
    print_result(options, _user_json(user), f"user {user.name} added with role {user.role}, in {store.path}")
    if is_first:
        say("this is the first user: open access ends, servers with this data now require authentication")
    if password is None:
        say(f"no password: create a token or a key for {user.name}, see `openq token create --help`")
    return OK


def ls_users(options: Namespace) -> int:
    store = _store(options)
    print_list(
        options,
        store.users(),
        {
            "user": lambda user: user.name + (" (disabled)" if user.is_disabled else ""),
            "account": lambda user: user.account,
            "role": lambda user: user.role,
            "password": lambda user: "yes" if user.password_hash else "no",
            "keys": lambda user: len(store.keys(user.name)),
            "tokens": lambda user: len(store.tokens(user.name)),
            "rules": lambda user: "; ".join(map(_rule_text, user.rules)),
        },
        right=("keys", "tokens"),
        empty="no users: access to the server is open; `openq user add` ends open access",
        to_json=_user_json,
    )
    return OK


def _delete(options: Namespace, plan: str, act: Any, action: str, result: dict[str, Any]) -> int:
    if options.dry_run:
        print_result(options, {**result, "dry_run": True}, f"dry run: this would {plan}")
        return OK
    if not confirm(options, plan):
        return NOT_CONFIRMED
    act()
    _record(options, action, str(result.get("id") or result.get("name") or result["user"]), **result)
    print_result(options, result, "done")
    return OK


def _require_user(store: UserStore, name: str) -> None:
    if store.user(name) is None:
        raise UnknownName("user", name)


def rm_user(options: Namespace) -> int:
    store = _store(options)
    _require_user(store, options.name)
    keys, tokens = len(store.keys(options.name)), len(store.tokens(options.name))
    plan = f"remove user {options.name} with {count_text(keys, 'key')} and {count_text(tokens, 'token')}"
    if len(store.users()) == 1:
        plan += ", the last one"
        say("this is the last user: without users, access to the server is open")
    elif not any(_is_admin(user) for user in store.users() if user.name != options.name) and _is_admin(
        store.user(options.name)
    ):
        plan += ", the last admin"
        say("this is the last admin: users can then be changed only with this command, in the data directory")
    result = {"user": options.name, "keys": keys, "tokens": tokens}
    return _delete(options, plan, lambda: store.remove_user(options.name), "delete_user", result)


def _is_admin(user: Any) -> bool:
    return (
        not user.is_disabled and judge(user.all_rules, "admin", user.account, None, user.account) == "allow"
    )


def set_password(options: Namespace) -> int:
    store = _store(options)
    _require_user(store, options.name)
    password = None if options.none else _password(f"new password for {options.name}: ")
    user = store.set_password(options.name, password)
    _record(options, "set_password", user.name, removed=password is None)
    print_result(
        options, _user_json(user), f"password of {user.name} {'removed' if password is None else 'set'}"
    )
    return OK


# -- keys and tokens ----------------------------------------------------------------------------


def create_key(options: Namespace) -> int:
    session = options.session
    key = _store(options).create_key(
        options.user,
        is_session=session is not None,
        expires_s=None if session is None else time.time() + session,
    )
    _record(options, "create_key", key.id, user=options.user, is_session=session is not None)
    if options.json:
        named = {"id": key.id, "secret": key.secret, "session_token": key.session_token}
        print_json({name: value for name, value in named.items() if value is not None})
    else:
        print(f"AWS_ACCESS_KEY_ID={key.id}")
        print(f"AWS_SECRET_ACCESS_KEY={key.secret}")
        if key.session_token is not None:
            print(f"AWS_SESSION_TOKEN={key.session_token}")
    say("the secret is shown only once")
    return OK


def ls_keys(options: Namespace) -> int:
    keys = [
        {"id": key.id, "user": key.user, "created": _time(key.created_ms), "expires": _time(key.expires_ms)}
        for key in _store(options).keys(options.user)
    ]
    columns = {"key": "id", "user": "user", "created": "created", "expires": "expires"}
    print_list(options, keys, columns, empty="no access keys")
    return OK


def revoke_key(options: Namespace) -> int:
    store = _store(options)
    key = store.key(options.id)
    if key is None:
        raise UnknownName("access key", options.id)
    plan = f"revoke access key {key.id} of {key.user}"
    return _delete(
        options, plan, lambda: store.revoke_key(key.id), "revoke_key", {"id": key.id, "user": key.user}
    )


def create_token(options: Namespace) -> int:
    rules = None
    if options.allow:
        try:
            rules = [Rule("allow", parse_actions(actions), queues) for actions, queues in options.allow]
        except ArgumentTypeError as error:
            raise UsageError(str(error)) from None
    expires_s = None if options.expires is None else time.time() + options.expires
    text = _store(options).create_token(options.user, options.name, expires_s=expires_s, rules=rules)
    scope = None if rules is None else [_rule_text(rule) for rule in rules]
    _record(options, "create_token", options.name, user=options.user, rules=scope)
    print_result(options, {"user": options.user, "name": options.name, "token": text}, text)
    say("the token is shown only once")
    return OK


def ls_tokens(options: Namespace) -> int:
    print_list(
        options,
        _store(options).tokens(options.user),
        {
            "user": lambda token: token.user,
            "name": lambda token: token.name,
            "created": lambda token: _time(token.created_ms),
            "expires": lambda token: _time(token.expires_ms),
            "only": lambda token: "; ".join(map(_rule_text, token.rules or ())),
        },
        empty="no tokens",
        to_json=_token_json,
    )
    return OK


def _token_json(token: Any) -> dict[str, Any]:
    rules = None if token.rules is None else [_rule_json(rule) for rule in token.rules]
    times = {"created": _time(token.created_ms), "expires": _time(token.expires_ms)}
    return {"user": token.user, "name": token.name, **times, "rules": rules}


def revoke_token(options: Namespace) -> int:
    store = _store(options)
    if all(token.name != options.name for token in store.tokens(options.user)):
        raise UnknownName("token", options.name)
    plan = f"revoke token {options.name} of {options.user}"
    result = {"user": options.user, "name": options.name}
    return _delete(
        options, plan, lambda: store.revoke_token(options.user, options.name), "revoke_token", result
    )


# -- permissions --------------------------------------------------------------------------------


def _rule(options: Namespace) -> Rule:
    return Rule("deny" if options.deny else "allow", options.actions, options.queues, options.account)


def grant(options: Namespace) -> int:
    user = _store(options).grant(options.user, _rule(options))
    _record(options, "grant", user.name, rule=_rule_text(_rule(options)))
    return _print_user(options, user)


def revoke(options: Namespace) -> int:
    user = _store(options).revoke(options.user, _rule(options))
    _record(options, "revoke", user.name, rule=_rule_text(_rule(options)))
    return _print_user(options, user)


def _print_user(options: Namespace, user: Any) -> int:
    print_result(
        options,
        _user_json(user),
        f"{user.name}: role {user.role}" + "".join(f"; {_rule_text(rule)}" for rule in user.rules),
    )
    return OK


def test_permission(options: Namespace) -> int:
    store = _store(options)
    _require_user(store, options.user)
    user = store.user(options.user)
    assert user is not None
    account = options.account or user.account
    by_rules = judge(user.all_rules, options.action, account, options.queue, user.account)
    may = by_rules == "allow" and not user.is_disabled
    what = options.action + (f" {options.queue}" if options.queue else "")
    if options.json:
        print_json({"user": user.name, "action": options.action, "queue": options.queue, "may": may})
    elif user.is_disabled:
        print(f"{user.name} is disabled: every action is denied")
    else:
        print(f"{user.name}: {what} {'allowed' if may else 'denied'}")
    return OK if may else DENIED
