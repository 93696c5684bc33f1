"""`openq user`, `key`, `token` and `perm`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import ACTION_NAMES, account, actions, seconds
from .options import JSON, JSON_LINES

ROLE_NAMES = ("admin", "manager", "operator", "producer", "consumer", "viewer", "none")

_STORE = (
    Option("--data", metavar="DIR", help="data directory (OPENQ_DATA; default ./openq-data)", one_of="store"),
    Option("--store", metavar="URL", help="Redis of the servers (OPENQ_STORE)", one_of="store"),
)
_USER = Option("user", metavar="USER", help="name of the user")
_OF_USER = Option("user", nargs="?", metavar="USER", help="only those of this user")
_NAME = Option("name", metavar="NAME", help="name of the user")
_CONFIRM = (
    Option("--dry-run", action="store_true", help="only show what would be removed"),
    Option("--yes", "-y", action="store_true", help="do not ask for confirmation"),
)
_DETAILS = "Stored with the messages, for every protocol; a running server notices a change within a second."
_RULE = (
    _USER,
    Option("actions", metavar="ACTIONS", type=actions, help="send, receive, ..., separated by commas"),
    Option("queues", nargs="?", default="*", metavar="QUEUES", help="queue name or pattern (default *)"),
    Option("--deny", action="store_true", help="a rule that denies"),
    Option("--account", metavar="ID", help="account of the queues, if not the user's own; * for all"),
    *_STORE,
    JSON,
)

_USERS = Command(
    examples=(
        ("openq user add alice --role manager --password", "asks for the password"),
        ("openq user ls", "every user, with roles and rules"),
        ("openq user rm alice", "with all keys and tokens"),
    ),
    details=_DETAILS,
    commands={
        "add": Command(
            help="add a user",
            run="users:add_user",
            examples=(
                ("openq user add admin --role admin --password", "asks for the password"),
                ("openq user add shop --role producer", "for a program: then `openq key create shop`"),
                ("OPENQ_PASSWORD_FILE=pw openq user add bob --role viewer --password", "for scripts"),
            ),
            details=(
                "Roles: admin (everything), manager (send, receive, peek, manage), operator (manager without "
                "send), producer (send), consumer (receive), viewer (peek), none. `openq perm grant` adds "
                "permissions. Adding the first user ends open access: authentication is required from then "
                "on."
            ),
            options=(
                Option("name", metavar="NAME", help="letters, digits and _ . @ + = , -"),
                Option("--role", choices=ROLE_NAMES, default="none", metavar="ROLE", help="default none"),
                Option("--account", metavar="ID", type=account, help="default 000000000000"),
                Option(
                    "--password",
                    action="store_true",
                    help="set a password: from OPENQ_PASSWORD, OPENQ_PASSWORD_FILE, the terminal or stdin",
                ),
                *_STORE,
                JSON,
            ),
        ),
        "ls": Command(
            help="list users",
            run="users:ls_users",
            examples=(("openq user ls", "with roles and rules"),),
            options=(*_STORE, JSON_LINES),
        ),
        "rm": Command(
            help="remove a user with all keys and tokens",
            run="users:rm_user",
            examples=(
                ("openq user rm alice", "asks for confirmation"),
                ("openq user rm alice --yes", "for scripts"),
            ),
            options=(_NAME, *_CONFIRM, *_STORE, JSON),
        ),
        "passwd": Command(
            help="set or remove the password of a user",
            run="users:set_password",
            examples=(
                ("openq user passwd alice", "asks for it"),
                ("openq user passwd alice --none", "allow keys and tokens only"),
            ),
            details="From OPENQ_PASSWORD, OPENQ_PASSWORD_FILE, the terminal, or the first line of stdin.",
            options=(
                _NAME,
                Option("--none", action="store_true", help="remove the password"),
                *_STORE,
                JSON,
            ),
        ),
    },
)

_KEYS = Command(
    examples=(
        ("openq key create shop", "for boto3 and other AWS clients; the secret is shown once"),
        ("openq key ls", "every access key"),
        ("openq key revoke KEY", "it is rejected from then on"),
    ),
    details=_DETAILS,
    commands={
        "create": Command(
            help="create an access key for AWS clients; its secret is shown only once",
            run="users:create_key",
            examples=(
                ("openq key create shop", "as lines for the environment of a program"),
                ("openq key create shop --session 1h", "temporary, with a session token"),
                ("openq key create shop --json", "for programs"),
            ),
            options=(
                _USER,
                Option(
                    "--session", metavar="TIME", type=seconds, help="lifetime of a temporary key: 1h, 12h"
                ),
                *_STORE,
                JSON,
            ),
        ),
        "ls": Command(
            help="list access keys",
            run="users:ls_keys",
            examples=(("openq key ls", "without their secrets"),),
            options=(_OF_USER, *_STORE, JSON_LINES),
        ),
        "revoke": Command(
            help="revoke an access key",
            run="users:revoke_key",
            examples=(
                ("openq key revoke KEY", "asks for confirmation"),
                ("openq key revoke KEY --yes", "for scripts"),
            ),
            options=(
                Option("id", metavar="KEY", help="key id, as `openq key ls` shows it"),
                *_CONFIRM,
                *_STORE,
                JSON,
            ),
        ),
    },
)

_TOKENS = Command(
    examples=(
        ("openq token create alice --name laptop", "shown once; for OPENQ_TOKEN_FILE and REST"),
        ("openq token ls", "every token"),
        ("openq token revoke alice laptop", "it is rejected from then on"),
    ),
    details=_DETAILS,
    commands={
        "create": Command(
            help="create a bearer token; it is shown only once",
            run="users:create_token",
            examples=(
                ("openq token create alice --name laptop > token", "then OPENQ_TOKEN_FILE=token"),
                ("openq token create alice --name ci --expires 30d", "with a limited lifetime"),
                ("openq token create alice --name feed --allow send orders*", "with these permissions only"),
            ),
            options=(
                _USER,
                Option("--name", required=True, metavar="NAME", help="name of the token"),
                Option("--expires", metavar="TIME", type=seconds, help="lifetime: 12h, 30d"),
                Option(
                    "--allow",
                    nargs=2,
                    action="append",
                    metavar=("ACTIONS", "QUEUES"),
                    help="limit the token to these permissions of the user; may be repeated",
                ),
                *_STORE,
                JSON,
            ),
        ),
        "ls": Command(
            help="list tokens",
            run="users:ls_tokens",
            examples=(("openq token ls", "names and expiry, without the tokens themselves"),),
            options=(_OF_USER, *_STORE, JSON_LINES),
        ),
        "revoke": Command(
            help="revoke a token",
            run="users:revoke_token",
            examples=(
                ("openq token revoke alice laptop", "asks for confirmation"),
                ("openq token revoke alice laptop --yes", "for scripts"),
            ),
            options=(
                _USER,
                Option("name", metavar="NAME", help="name of the token"),
                *_CONFIRM,
                *_STORE,
                JSON,
            ),
        ),
    },
)

_PERMISSIONS = Command(
    examples=(
        ("openq perm grant shop send 'orders*'", "allow publishing to queues that begin with orders"),
        ("openq perm grant bob receive secrets --deny", "a deny overrides every allow"),
        ("openq perm test shop send orders-eu", "exit code 0: allowed; 4: denied"),
    ),
    details="Actions: send, receive, peek, manage, and admin for users and the server.",
    commands={
        "grant": Command(
            help="add a rule to a user",
            run="users:grant",
            examples=(
                ("openq perm grant shop send,peek 'orders*'", "two actions, on many queues"),
                ("openq perm grant bob receive secrets --deny", "a deny overrides every allow"),
            ),
            options=_RULE,
        ),
        "revoke": Command(
            help="remove a rule from a user",
            run="users:revoke",
            examples=(("openq perm revoke shop send,peek 'orders*'", "the same arguments as for grant"),),
            options=_RULE,
        ),
        "test": Command(
            help="test whether a user has a permission",
            run="users:test_permission",
            examples=(("openq perm test shop send orders", "exit code 0: allowed; 4: denied"),),
            details="Checks the user's role and rules. The policy of an SQS queue can allow or deny more.",
            options=(
                _USER,
                Option(
                    "action",
                    metavar="ACTION",
                    choices=ACTION_NAMES,
                    help="send, receive, peek, manage or admin",
                ),
                Option("queue", nargs="?", metavar="QUEUE", help="name of the queue (default: all)"),
                Option("--account", metavar="ID", help="account of the queue, if not the user's own"),
                *_STORE,
                JSON,
            ),
        ),
    },
)

COMMANDS = {"user": _USERS, "key": _KEYS, "token": _TOKENS, "perm": _PERMISSIONS}
