"""Namespaces and queues as one name.

An SQS account in a region, an AMQP vhost and a REST account are the same thing. The default namespace is the
default account in the server's own region: its queues have their bare names, so that the library finds them
under the names it gave. The queues of an account in another region are in a namespace of their own,
`REGION.ACCOUNT`, which to AMQP is a vhost and to REST an account of that name.
"""

from __future__ import annotations

import re
from functools import lru_cache

DEFAULT_ACCOUNT = "000000000000"

# The shape of AWS's names (`eu-west-1`, `us-gov-east-1`), not a list of them: there are new ones every year.
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]{2,12}){1,3}-[0-9]{1,2}", re.ASCII)
_NAMESPACE = re.compile(rf"({_REGION.pattern})\.([0-9]{{12}})", re.ASCII)


def qualified_name(account: str, name: str) -> str:
    """The engine's name of a queue or an exchange."""
    if account != DEFAULT_ACCOUNT:
        if "/" in account or "%" in account:
            # Account "a/b" and its queue "c" must not meet account "a" and its queue "b/c".
            account = account.replace("%", "%25").replace("/", "%2F")
        return f"@{account}/{name}"
    # A name that looks like one of another account must not become one.
    return f"@/{name}" if name.startswith("@") else name


def split_name(queue_key: str) -> tuple[str, str]:
    """The account (or rather the namespace) and the name there."""
    if not queue_key.startswith("@"):
        return DEFAULT_ACCOUNT, queue_key
    account, slash, name = queue_key[1:].partition("/")
    if not slash:
        return DEFAULT_ACCOUNT, queue_key
    if "%" in account:
        account = account.replace("%2F", "/").replace("%25", "%")
    return account or DEFAULT_ACCOUNT, name


# -- regions ------------------------------------------------------------------------------------
# None stands for the server's own region, whatever its name: `--region` can change, names on disk cannot.


def is_region(text: str) -> bool:
    return _REGION.fullmatch(text) is not None


def namespace_of(account: str, region: str | None) -> str:
    return account if region is None else f"{region}.{account}"


def split_namespace(namespace: str) -> tuple[str | None, str]:
    """The region, None for the server's own, and the account."""
    if "." not in namespace:
        return None, namespace
    return _split_namespace(namespace)


@lru_cache(1_000)
def _split_namespace(namespace: str) -> tuple[str | None, str]:
    found = _NAMESPACE.fullmatch(namespace)
    return (None, namespace) if found is None else (found[1], found[2])


def owner_of(namespace: str) -> str:
    """The account whose namespace it is: the same one in every region."""
    return split_namespace(namespace)[1]


def arn_of(namespace: str, name: str, own_region: str) -> str:
    """`own_region`: the name of the server's own region."""
    region, account = split_namespace(namespace)
    return f"arn:aws:sqs:{region or own_region}:{account}:{name}"
