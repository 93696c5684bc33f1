"""The management API's users and permissions, over the users and rules that every protocol shares.

RabbitMQ has tags and three regular expressions for each vhost; here a user has a role and rules with patterns
of `*` and `?` (`definitions.py` says what becomes what). What a rule cannot say is refused with the reason:
nobody must have more rights than was asked for, nor believe to have others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..auth.policy import ROLES, Rule
from ..auth.store import User, UserStore, hash_password, rabbitmq_hash
from ..names import DEFAULT_ACCOUNT
from .arguments import account_of
from .management_call import Json, ManagementCall, bad_request, first_or_404, not_found, paginate, route
from .permissions import (
    ACTIONS_OF,
    DEFAULT_ALGORITHM,
    GUEST,
    NO_GUEST,
    globs_of,
    permission_fields,
    role_of,
    user_fields,
)

if TYPE_CHECKING:
    from .management import ManagementApi

# Roles that stand for tags. What they allow beyond permissions is documented with the tags.
_TAGGED = ("admin", "viewer")


def _users(management: ManagementApi) -> list[Json]:
    guard = management.context.guard
    if guard.is_open:
        return [
            {
                "name": GUEST,
                "password_hash": "",
                "hashing_algorithm": DEFAULT_ALGORITHM,
                "tags": ["administrator"],
                "limits": {},
            }
        ]
    return [user_fields(user) for user in guard.store.users()]


def _permissions(management: ManagementApi) -> list[Json]:
    vhosts = management.topology.vhosts()
    guard = management.context.guard
    if guard.is_open:
        return [
            {"user": GUEST, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
            for vhost in vhosts
        ]
    return [each for user in guard.store.users() for each in permission_fields(user, vhosts)]


# -- looking --------------------------------------------------------------------------------------


@route("GET", "users")
def list_users(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    call.answer(paginate(_users(management), call.query))


@route("GET", "users/without-permissions")
def users_without_permissions(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    known = {each["user"] for each in _permissions(management)}
    call.answer(paginate([each for each in _users(management) if each["name"] not in known], call.query))


@route("GET", "users/*")
def show_user(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    call.answer_object(first_or_404([each for each in _users(management) if each["name"] == call.names[0]]))


@route("GET", "permissions")
def list_permissions(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    call.answer(paginate(_permissions(management), call.query))


@route("GET", "users/*/permissions")
def permissions_of_user(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    first_or_404([each for each in _users(management) if each["name"] == call.names[0]])
    call.answer([each for each in _permissions(management) if each["user"] == call.names[0]])


@route("GET", "vhosts/*/permissions")
def permissions_of_vhost(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    vhost = call.vhost()
    call.answer([each for each in _permissions(management) if each["vhost"] == vhost])


@route("GET", "permissions/*/*")
def show_permission(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    call.answer_object(_permission(management, call))


def _permission(management: ManagementApi, call: ManagementCall) -> Json:
    names = {"vhost": call.names[0], "user": call.names[1]}
    return first_or_404([each for each in _permissions(management) if names.items() <= each.items()])


# -- users ----------------------------------------------------------------------------------------


@route("PUT", "users/*")
def put_user(management: ManagementApi, call: ManagementCall) -> None:
    """With `password`, or with `password_hash` as RabbitMQ writes it; with neither there is no password."""
    call.require_admin()
    name, body, store = call.names[0], call.body(), management.context.guard.store
    role = role_of(_tags(body))
    password, hashed = _password(body)
    known = store.user(name)
    if name == GUEST and known is None:
        raise bad_request(NO_GUEST)
    if not store.users() and (role != "admin" or (password is None and hashed is None)):
        # Adding the first user ends open access; then somebody must be able to sign in and add others.
        raise bad_request(
            "the first user must have a password and the tag administrator: "
            "from then on everybody has to sign in"
        )

    def work() -> bool:
        kept = hashed if password is None else hash_password(password)
        if known is None:
            store.add_user(name, role=role, password_hash=kept)
            return True
        store.change_user(name, lambda user: replace(user, role=_role(user, role), password_hash=kept))
        return False

    call.run_in_thread(work, call.answer_changed)


def _role(user: User, wanted: str) -> str:
    """No tag stands for the other roles, so they stay when tags are set."""
    return wanted if wanted != "none" or user.role in _TAGGED else user.role


def _tags(body: Json) -> list[str]:
    if "tags" not in body:
        raise bad_request("tags_not_present")
    tags = body["tags"]
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise bad_request("tags must be text with commas, or a list of texts")
    return tags


def _password(body: Json) -> tuple[str | None, str | None]:
    """The password, or a hash to be kept."""
    password, hashed = body.get("password"), body.get("password_hash")
    if password is not None and hashed is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    if not isinstance(password, str | None) or not isinstance(hashed, str | None):
        raise bad_request("password and password_hash must be texts")
    algorithm = body.get("hashing_algorithm") or DEFAULT_ALGORITHM
    if not isinstance(algorithm, str):
        raise bad_request("hashing_algorithm must be text")
    return password, rabbitmq_hash(hashed, algorithm) if hashed else None


@route("DELETE", "users/*")
def delete_user(management: ManagementApi, call: ManagementCall) -> None:
    """With all keys and tokens; its connections end."""
    call.require_admin()
    _delete_users(management, call, [call.names[0]])


@route("POST", "users/bulk-delete")
def delete_users(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    names = call.required("users")["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users must be a list of names")
    _delete_users(management, call, names)


def _delete_users(management: ManagementApi, call: ManagementCall, names: list[str]) -> None:
    guard = management.context.guard
    if guard.is_open and GUEST in names:
        raise bad_request(
            "a server without users is open to guest: add an administrator (PUT /api/users/NAME), "
            "which ends open access"
        )
    if any(guard.store.user(name) is None for name in names):
        raise not_found()
    # Without users the server would be open to everybody again.
    if names and not {user.name for user in guard.store.users()} - set(names):
        raise bad_request("the last user stays: a server without users is open to everybody on this machine")

    def work() -> None:
        for name in names:
            guard.store.remove_user(name)

    call.run_in_thread(work, lambda _: call.answer_changed())


# -- permissions ----------------------------------------------------------------------------------


@route("PUT", "permissions/*/*")
def put_permission(management: ManagementApi, call: ManagementCall) -> None:
    """Exactly these rights in the vhost; denials that were given with `openq perm` stay."""
    call.require_admin()
    body = call.required("configure", "write", "read")
    (vhost, name), store = call.names, management.context.guard.store
    user = store.user(name)
    if user is None or not management.topology.vhost_exists(vhost):
        raise bad_request("vhost_or_user_not_found")
    account = account_of(vhost)
    wanted = {kind: _globs(kind, body[kind]) for kind in ACTIONS_OF}
    _refuse_more(user, account, wanted, _TAGGED)
    is_new = not [each for each in _permissions(management) if (each["user"], each["vhost"]) == (name, vhost)]
    by_pattern: dict[str, set[str]] = {}
    for kind, globs in wanted.items():
        for glob in globs:
            by_pattern.setdefault(glob, set()).update(ACTIONS_OF[kind])
    rules = [Rule("allow", frozenset(actions), glob, account) for glob, actions in by_pattern.items()]

    def work() -> bool:
        store.change_user(name, lambda user: replace(user, rules=(*_without(user, account), *rules)))
        return is_new

    call.run_in_thread(work, call.answer_changed)


@route("DELETE", "permissions/*/*")
def delete_permission(management: ManagementApi, call: ManagementCall) -> None:
    call.require_admin()
    (vhost, name), store = call.names, management.context.guard.store
    _permission(management, call)
    user, account = store.user(name), account_of(vhost)
    if user is None:
        raise bad_request("a server without users is open: there is nothing to take from guest")
    _refuse_more(user, account, {kind: [] for kind in ACTIONS_OF}, ("viewer",))

    def work() -> None:
        store.change_user(name, lambda user: replace(user, rules=_without(user, account)))

    call.run_in_thread(work, lambda _: call.answer_changed())


def _globs(kind: str, pattern: object) -> list[str]:
    if not isinstance(pattern, str):
        raise bad_request(f"{kind} must be text")
    globs = globs_of(pattern)
    if globs is None:
        raise bad_request(
            f"{kind}: rules here have patterns of * and ? only, and cannot say {pattern[:200]!r}; "
            "name prefixes or whole names, with | between them"
        )
    return globs


def _without(user: User, account: str) -> tuple[Rule, ...]:
    """Its rules but for those that allow something in this account alone."""
    return tuple(
        rule
        for rule in user.rules
        if rule.effect == "deny" or (user.account if rule.account is None else rule.account) != account
    )


def _refuse_more(user: User, account: str, wanted: dict[str, list[str]], exempt: Iterable[str]) -> None:
    """Raises 400 if its role, or a rule for all vhosts, would leave it rights that are not asked for."""
    lasting = [rule for rule in user.rules if rule.account == "*" and rule.effect == "allow"]
    if user.role not in exempt:
        lasting += [rule for rule in ROLES[user.role] if (rule.account or user.account) in ("*", account)]
    for kind, globs in wanted.items():
        if globs != ["*"] and any(ACTIONS_OF[kind] & rule.actions for rule in lasting):
            raise bad_request(
                f"user {user.name!r} would keep more than that: it has the role {user.role!r}, or rules "
                "for all vhosts; PUT /api/v1/users/NAME changes the role, `openq perm revoke` ends a rule"
            )


def forget_vhost(store: UserStore, vhost: str) -> None:
    """Rights in a vhost go with it: one of the same name that comes later is another one."""
    account = account_of(vhost)
    if account == DEFAULT_ACCOUNT:
        return
    for user in store.users():
        if any(rule.account == account for rule in user.rules):
            store.change_user(
                user.name,
                lambda user: replace(
                    user, rules=tuple(rule for rule in user.rules if rule.account != account)
                ),
            )
