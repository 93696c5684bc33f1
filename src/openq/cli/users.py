"""`openq user`, `key`, `token` and `perm`: they work on the users in a data directory, or in a Redis.

No server is needed; those that run on the same place notice the change within a second.
"""

from __future__ import annotations

from .parser import CommandGroup, Parser, add_confirmation, add_json, seconds
from .terminal import DENIED, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ..auth.policy import Rule
    from ..auth.store import UserStore
    from ..config import Config

ROLE_NAMES = ("admin", "manager", "operator", "producer", "consumer", "viewer", "none")
ACTION_NAMES = ("send", "receive", "peek", "manage", "admin")


def add(name: str, verbs: CommandGroup, help: str) -> None:
    {"user": _add_user, "key": _add_key, "token": _add_token, "perm": _add_perm}[name](name, verbs, help)


def _finish(parser: Parser, json_help: str = "JSON on stdout, for programs") -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", metavar="DIR", help="the data directory (OPENQ_DATA; default ./openq-data)")
    where.add_argument("--store", metavar="URL", help="the Redis of the servers (OPENQ_STORE)")
    add_json(parser, json_help)


_LINES = "one JSON object per line"
_WHERE = "They are kept where the messages are, for all doors; a server that runs there notices the change."


def _add_user(name: str, verbs: CommandGroup, help: str) -> None:
    user = verbs.add(
        name,
        None,
        help,
        [
            ("openq user add alice --role manager --password", "asks for the password"),
            ("openq user ls", "who there is, and what they may do"),
            ("openq user rm alice", "with all keys and tokens"),
        ],
        _WHERE,
    ).group()
    adding = user.add(
        "add",
        _user_add,
        "add a user",
        [
            ("openq user add admin --role admin --password", "asks for the password"),
            ("openq user add shop --role producer", "for a program: then `openq key create shop`"),
            ("OPENQ_PASSWORD_FILE=pw openq user add bob --role viewer --password", "for scripts"),
        ],
        "Roles: admin (everything), manager (send, receive, peek, manage), operator (all of that but send),\n"
        "producer (send), consumer (receive), viewer (peek), none. `openq perm grant` gives more.\n"
        "With the first user the server is no longer open: everybody has to sign in.",
    )
    adding.add_argument("name", metavar="NAME", help="letters, digits and _ . @ + = , -")
    adding.add_argument("--role", choices=ROLE_NAMES, default="none", metavar="ROLE", help="default none")
    adding.add_argument("--account", metavar="ID", type=_account, help="default 000000000000")
    adding.add_argument(
        "--password",
        action="store_true",
        help="with a password: OPENQ_PASSWORD, OPENQ_PASSWORD_FILE, asked, or the first line of stdin",
    )
    _finish(adding)
    ls = user.add("ls", _user_ls, "list users", [("openq user ls", "with roles and rules")])
    _finish(ls, _LINES)
    rm = user.add(
        "rm",
        _user_rm,
        "remove a user with all keys and tokens",
        [("openq user rm alice", "asks first"), ("openq user rm alice --yes", "for scripts")],
    )
    rm.add_argument("name", metavar="NAME", help="whom")
    add_confirmation(rm)
    _finish(rm)
    passwd = user.add(
        "passwd",
        _user_passwd,
        "set the password of a user, or take it away",
        [
            ("openq user passwd alice", "asks for it"),
            ("openq user passwd alice --none", "only keys and tokens let her in then"),
        ],
        "From OPENQ_PASSWORD, OPENQ_PASSWORD_FILE, asked for on a terminal, or the first line of stdin.",
    )
    passwd.add_argument("name", metavar="NAME", help="whose")
    passwd.add_argument("--none", action="store_true", help="no password any more")
    _finish(passwd)


def _add_key(name: str, verbs: CommandGroup, help: str) -> None:
    key = verbs.add(
        name,
        None,
        help,
        [
            ("openq key create shop", "for boto3 and other AWS clients; the secret is shown once"),
            ("openq key ls", "which there are"),
            ("openq key revoke KEY", "it is refused from then on"),
        ],
        _WHERE,
    ).group()
    create = key.add(
        "create",
        _key_create,
        "create an access key for AWS clients; its secret is shown this once",
        [
            ("openq key create shop", "as lines for the environment of a program"),
            ("openq key create shop --session 1h", "ends by itself, and has a session token"),
            ("openq key create shop --json", "for programs"),
        ],
    )
    create.add_argument("user", metavar="USER", help="whose")
    create.add_argument("--session", metavar="TIME", type=seconds, help="temporary, for so long: 1h, 12h")
    _finish(create)
    ls = key.add("ls", _key_ls, "list access keys", [("openq key ls", "without their secrets")])
    ls.add_argument("user", nargs="?", metavar="USER", help="only those of this user")
    _finish(ls, _LINES)
    revoke = key.add(
        "revoke",
        _key_revoke,
        "revoke an access key",
        [("openq key revoke KEY", "asks first"), ("openq key revoke KEY --yes", "for scripts")],
    )
    revoke.add_argument("id", metavar="KEY", help="its id, as `openq key ls` shows it")
    add_confirmation(revoke)
    _finish(revoke)


def _add_token(name: str, verbs: CommandGroup, help: str) -> None:
    token = verbs.add(
        name,
        None,
        help,
        [
            ("openq token create alice --name laptop", "shown once; for OPENQ_TOKEN_FILE and REST"),
            ("openq token ls", "which there are"),
            ("openq token revoke alice laptop", "it is refused from then on"),
        ],
        _WHERE,
    ).group()
    create = token.add(
        "create",
        _token_create,
        "create a bearer token; it is shown this once",
        [
            ("openq token create alice --name laptop > token", "then OPENQ_TOKEN_FILE=token"),
            ("openq token create alice --name ci --expires 30d", "ends by itself"),
            ("openq token create alice --name feed --allow send orders*", "may do only this"),
        ],
    )
    create.add_argument("user", metavar="USER", help="whose")
    create.add_argument("--name", required=True, metavar="NAME", help="to know it by")
    create.add_argument("--expires", metavar="TIME", type=seconds, help="after so long: 12h, 30d")
    create.add_argument(
        "--allow",
        nargs=2,
        action="append",
        metavar=("ACTIONS", "QUEUES"),
        help="narrower than the user's own permissions; may be repeated",
    )
    _finish(create)
    ls = token.add("ls", _token_ls, "list tokens", [("openq token ls", "names and ends, not the tokens")])
    ls.add_argument("user", nargs="?", metavar="USER", help="only those of this user")
    _finish(ls, _LINES)
    revoke = token.add(
        "revoke",
        _token_revoke,
        "revoke a token",
        [
            ("openq token revoke alice laptop", "asks first"),
            ("openq token revoke alice laptop --yes", "for scripts"),
        ],
    )
    revoke.add_argument("user", metavar="USER", help="whose")
    revoke.add_argument("name", metavar="NAME", help="which")
    add_confirmation(revoke)
    _finish(revoke)


def _add_perm(name: str, verbs: CommandGroup, help: str) -> None:
    perm = verbs.add(
        name,
        None,
        help,
        [
            ("openq perm grant shop send 'orders*'", "may publish to queues that begin so"),
            ("openq perm grant bob receive secrets --deny", "a deny outweighs every allow"),
            ("openq perm test shop send orders-eu", "exit code 0: may; 4: may not"),
        ],
        "Actions: send, receive, peek, manage, and admin for users and the server.",
    ).group()
    grant = perm.add(
        "grant",
        _perm_grant,
        "give a user a rule",
        [
            ("openq perm grant shop send,peek 'orders*'", "two actions, on many queues"),
            ("openq perm grant bob receive secrets --deny", "a deny outweighs every allow"),
        ],
    )
    revoke = perm.add(
        "revoke",
        _perm_revoke,
        "take a rule away from a user",
        [("openq perm revoke shop send,peek 'orders*'", "the same words as for grant")],
    )
    for parser in (grant, revoke):
        parser.add_argument("user", metavar="USER", help="whom")
        parser.add_argument(
            "actions", metavar="ACTIONS", type=_actions, help="send, receive, ..., with commas"
        )
        parser.add_argument(
            "queues", nargs="?", default="*", metavar="QUEUES", help="name or pattern (default *)"
        )
        parser.add_argument("--deny", action="store_true", help="a rule that forbids")
        parser.add_argument(
            "--account", metavar="ID", help="in another account than the user's own; * for all"
        )
        _finish(parser)
    test = perm.add(
        "test",
        _perm_test,
        "say whether a user may do something",
        [("openq perm test shop send orders", "exit code 0: may; 4: may not")],
        "By the user's role and rules. The policy of an SQS queue may allow or forbid more.",
    )
    test.add_argument("user", metavar="USER", help="who")
    test.add_argument(
        "action", metavar="ACTION", choices=ACTION_NAMES, help="send, receive, peek, manage or admin"
    )
    test.add_argument("queue", nargs="?", metavar="QUEUE", help="which queue (default: all)")
    test.add_argument("--account", metavar="ID", help="the queue's, if it is not the user's own")
    _finish(test)


def _account(text: str) -> str:
    """A number of another length is a slip: the accounts that AWS clients name have 12 digits."""
    from argparse import ArgumentTypeError

    if text.isdigit() and len(text) != 12:
        raise ArgumentTypeError(f"an account that is a number has 12 digits, not {text!r}")
    return text


def _actions(text: str) -> frozenset[str]:
    from argparse import ArgumentTypeError

    names = frozenset(filter(None, text.split(",")))
    unknown = sorted(names - set(ACTION_NAMES))
    if unknown or not names:
        raise ArgumentTypeError(f"actions are {', '.join(ACTION_NAMES)}, with commas between; not {text!r}")
    return names


# -- the store ----------------------------------------------------------------------------------


def _store(options: Namespace, *, may_create: bool = False) -> UserStore:
    import os

    from ..auth.store import UserStore
    from ..config import find_file, load

    config = load({"data": options.data, "store": options.store}, os.environ, find_file(os.environ))
    if config.store is not None:
        return _redis_store(config)
    if not os.path.isdir(config.data):
        if not may_create:
            raise FileNotFoundError(2, "no such data directory; name it with --data", config.data)
        # Nobody else's business, whatever the umask: secrets will be in it.
        os.makedirs(config.data, mode=0o700, exist_ok=True)
    return UserStore(os.path.join(config.data, "users.json"))


def _redis_store(config: Config) -> UserStore:
    import atexit

    from ..server.app import open_broker, open_user_store

    broker = open_broker(config)
    atexit.register(broker.close)
    return open_user_store(config, broker)


def _password(prompt: str) -> str:
    import os

    from ..config import secret
    from .api import ask_password

    return secret("OPENQ_PASSWORD", os.environ) or ask_password(prompt, twice=True)


def _time(ms: int | None) -> str | None:
    from .arguments import iso_time

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
    """Everything but the password's hash."""
    return {
        "name": user.name,
        "account": user.account,
        "role": user.role,
        "rules": [_rule_json(rule) for rule in user.rules],
        "has_password": user.password_hash is not None,
        "disabled": user.is_disabled,
        "created": _time(user.created_ms),
    }


def _user_add(options: Namespace) -> int:
    from .output import print_json

    store = _store(options, may_create=True)
    is_first = not store.users()
    password = _password(f"password for {options.name}: ") if options.password else None
    named = {} if options.account is None else {"account": options.account}
    user = store.add_user(options.name, role=options.role, password=password, **named)
    if options.json:
        print_json(_user_json(user))
    else:
        print(f"user {user.name} added with role {user.role}, in {store.path}")
    if is_first:
        say("this is the first user: a server with this data asks everybody to sign in from now on")
    if password is None:
        say(f"no password: make {user.name} a token or a key, see `openq token create --help`")
    return OK


def _user_ls(options: Namespace) -> int:
    from .output import print_json, print_table

    store = _store(options)
    users = store.users()
    if options.json:
        for user in users:
            print_json(_user_json(user))
    elif users:
        print_table(
            ("user", "account", "role", "password", "keys", "tokens", "rules"),
            [
                (
                    user.name + (" (disabled)" if user.is_disabled else ""),
                    user.account,
                    user.role,
                    "yes" if user.password_hash else "no",
                    len(store.keys(user.name)),
                    len(store.tokens(user.name)),
                    "; ".join(map(_rule_text, user.rules)),
                )
                for user in users
            ],
            ("keys", "tokens"),
        )
    else:
        say("there are no users: the server is open to whoever reaches it; `openq user add` ends that")
    return OK


def _delete(options: Namespace, plan: str, act: Any, told: dict[str, Any]) -> int:
    from .output import NOT_CONFIRMED, confirm, print_json

    if options.dry_run:
        if options.json:
            print_json({**told, "dry_run": True})
        else:
            print(f"dry run: this would {plan}")
        return OK
    if not confirm(options, plan):
        return NOT_CONFIRMED
    act()
    if options.json:
        print_json(told)
    else:
        print("done")
    return OK


def _require_user(store: UserStore, name: str) -> None:
    from ..auth.errors import UnknownName

    if store.user(name) is None:
        raise UnknownName("user", name)


def _user_rm(options: Namespace) -> int:
    from .output import count_text

    store = _store(options)
    _require_user(store, options.name)
    keys, tokens = len(store.keys(options.name)), len(store.tokens(options.name))
    plan = f"remove user {options.name} with {count_text(keys, 'key')} and {count_text(tokens, 'token')}"
    if len(store.users()) == 1:
        plan += ", the last one"
        say("this is the last user: without users a server is open to whoever reaches it")
    elif not any(_is_admin(user) for user in store.users() if user.name != options.name) and _is_admin(
        store.user(options.name)
    ):
        plan += ", the last admin"
        say("this is the last admin: users can then be changed only here, where the data directory is")
    told = {"user": options.name, "keys": keys, "tokens": tokens}
    return _delete(options, plan, lambda: store.remove_user(options.name), told)


def _is_admin(user: Any) -> bool:
    from ..auth.policy import judge

    return (
        not user.is_disabled and judge(user.all_rules, "admin", user.account, None, user.account) == "allow"
    )


def _user_passwd(options: Namespace) -> int:
    from .output import print_json

    store = _store(options)
    _require_user(store, options.name)
    password = None if options.none else _password(f"new password for {options.name}: ")
    user = store.set_password(options.name, password)
    if options.json:
        print_json(_user_json(user))
    else:
        print(f"password of {user.name} {'removed' if password is None else 'set'}")
    return OK


# -- keys and tokens ----------------------------------------------------------------------------


def _key_create(options: Namespace) -> int:
    import time

    from .output import print_json

    session = options.session
    key = _store(options).create_key(
        options.user,
        is_session=session is not None,
        expires_s=None if session is None else time.time() + session,
    )
    if options.json:
        named = {"id": key.id, "secret": key.secret, "session_token": key.session_token}
        print_json({name: value for name, value in named.items() if value is not None})
    else:
        print(f"AWS_ACCESS_KEY_ID={key.id}")
        print(f"AWS_SECRET_ACCESS_KEY={key.secret}")
        if key.session_token is not None:
            print(f"AWS_SESSION_TOKEN={key.session_token}")
    say("the secret is shown this once")
    return OK


def _key_ls(options: Namespace) -> int:
    from .output import print_json, print_table

    keys = _store(options).keys(options.user)
    rows = [(key.id, key.user, _time(key.created_ms), _time(key.expires_ms)) for key in keys]
    if options.json:
        for row in rows:
            print_json(dict(zip(("id", "user", "created", "expires"), row, strict=True)))
    elif rows:
        print_table(("key", "user", "created", "expires"), rows)
    else:
        say("there are no access keys")
    return OK


def _key_revoke(options: Namespace) -> int:
    from ..auth.errors import UnknownName

    store = _store(options)
    key = store.key(options.id)
    if key is None:
        raise UnknownName("access key", options.id)
    plan = f"revoke access key {key.id} of {key.user}"
    return _delete(options, plan, lambda: store.revoke_key(key.id), {"id": key.id, "user": key.user})


def _token_create(options: Namespace) -> int:
    import time
    from argparse import ArgumentTypeError

    from ..auth.policy import Rule
    from .api import UsageError
    from .output import print_json

    rules = None
    if options.allow:
        try:
            rules = [Rule("allow", _actions(actions), queues) for actions, queues in options.allow]
        except ArgumentTypeError as error:
            raise UsageError(str(error)) from None
    expires_s = None if options.expires is None else time.time() + options.expires
    text = _store(options).create_token(options.user, options.name, expires_s=expires_s, rules=rules)
    if options.json:
        print_json({"user": options.user, "name": options.name, "token": text})
    else:
        print(text)
    say("the token is shown this once")
    return OK


def _token_ls(options: Namespace) -> int:
    from .output import print_json, print_table

    tokens = _store(options).tokens(options.user)
    if options.json:
        for token in tokens:
            scope = None if token.rules is None else [_rule_json(rule) for rule in token.rules]
            times = {"created": _time(token.created_ms), "expires": _time(token.expires_ms)}
            print_json({"user": token.user, "name": token.name, **times, "rules": scope})
    elif tokens:
        print_table(
            ("user", "name", "created", "expires", "only"),
            [
                (
                    token.user,
                    token.name,
                    _time(token.created_ms),
                    _time(token.expires_ms),
                    "; ".join(map(_rule_text, token.rules or ())),
                )
                for token in tokens
            ],
        )
    else:
        say("there are no tokens")
    return OK


def _token_revoke(options: Namespace) -> int:
    from ..auth.errors import UnknownName

    store = _store(options)
    if all(token.name != options.name for token in store.tokens(options.user)):
        raise UnknownName("token", options.name)
    plan = f"revoke token {options.name} of {options.user}"
    told = {"user": options.user, "name": options.name}
    return _delete(options, plan, lambda: store.revoke_token(options.user, options.name), told)


# -- permissions --------------------------------------------------------------------------------


def _rule(options: Namespace) -> Rule:
    from ..auth.policy import Rule

    return Rule("deny" if options.deny else "allow", options.actions, options.queues, options.account)


def _perm_grant(options: Namespace) -> int:
    return _print_user(options, _store(options).grant(options.user, _rule(options)))


def _perm_revoke(options: Namespace) -> int:
    return _print_user(options, _store(options).revoke(options.user, _rule(options)))


def _print_user(options: Namespace, user: Any) -> int:
    from .output import print_json

    if options.json:
        print_json(_user_json(user))
    else:
        print(f"{user.name}: role {user.role}" + "".join(f"; {_rule_text(rule)}" for rule in user.rules))
    return OK


def _perm_test(options: Namespace) -> int:
    from ..auth.policy import judge
    from .output import print_json

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
        print(f"{user.name} may do nothing: disabled")
    else:
        print(f"{user.name} may {'' if may else 'not '}{what}")
    return OK if may else DENIED
