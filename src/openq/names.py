"""Accounts and queues as one name: an SQS account, an AMQP vhost and a REST account are the same thing.

The default account's queues have their bare names, so that the library finds them under the names it gave.
"""

from __future__ import annotations

DEFAULT_ACCOUNT = "000000000000"


def full_name(account: str, name: str) -> str:
    """The engine's name of a queue or an exchange."""
    if account != DEFAULT_ACCOUNT:
        if "/" in account or "%" in account:
            # Account "a/b" and its queue "c" must not meet account "a" and its queue "b/c".
            account = account.replace("%", "%25").replace("/", "%2F")
        return f"@{account}/{name}"
    # A name that looks like one of another account must not become one.
    return f"@/{name}" if name.startswith("@") else name


def split_name(full: str) -> tuple[str, str]:
    """The account and the name there."""
    if not full.startswith("@"):
        return DEFAULT_ACCOUNT, full
    account, slash, name = full[1:].partition("/")
    if not slash:
        return DEFAULT_ACCOUNT, full
    if "%" in account:
        account = account.replace("%2F", "/").replace("%25", "%")
    return account or DEFAULT_ACCOUNT, name
