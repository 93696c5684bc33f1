"""Users and permissions of the management API, over the users and rules that all protocols share.

`permissions.py` maps tags and regular expressions to roles and rules. What a rule cannot express is refused
with the reason: no user must get other rights than were requested.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...auth.rules import ROLES, Rule
from ...auth.store import User, UserStore, hash_password, rabbitmq_hash
from ...names import DEFAULT_ACCOUNT
from ..arguments import account_of
from ..permissions import (
    ACTIONS_OF,
    DEFAULT_ALGORITHM,
    GUEST,
    NO_GUEST,
    globs_of,
    permission_fields,
    role_of,
    user_fields,
)
from .call import Json, ManagementCall, bad_request, first_or_404, not_found, paginate
from .routes import route

# Roles that are shown as tags.
_TAGGED = ("admin", "viewer")


def _users(call: ManagementCall) -> list[Json]:
    guard = call.context.guard
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


def _permissions(call: ManagementCall) -> list[Json]:
    vhosts = call.topology.vhosts()
    guard = call.context.guard
    if guard.is_open:
        return [
            {"user": GUEST, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
            for vhost in vhosts
        ]
    return [each for user in guard.store.users() for each in permission_fields(user, vhosts)]


# -- lists --------------------------------------------------------------------------------------


@route("GET", "users", permission="admin")
def list_users(call: ManagementCall) -> None:
    call.answer(paginate(_users(call), call.query))


@route("GET", "users/without-permissions", permission="admin")
def users_without_permissions(call: ManagementCall) -> None:
    known = {each["user"] for each in _permissions(call)}
    call.answer(paginate([each for each in _users(call) if each["name"] not in known], call.query))


@route("GET", "users/{user}", permission="admin")
def show_user(call: ManagementCall) -> None:
    call.answer_object(first_or_404([each for each in _users(call) if each["name"] == call.names[0]]))


@route("GET", "permissions", permission="admin")
def list_permissions(call: ManagementCall) -> None:
    call.answer(paginate(_permissions(call), call.query))


@route("GET", "users/{user}/permissions", permission="admin")
def permissions_of_user(call: ManagementCall) -> None:
    first_or_404([each for each in _users(call) if each["name"] == call.names[0]])
    call.answer([each for each in _permissions(call) if each["user"] == call.names[0]])


@route("GET", "vhosts/{vhost}/permissions", permission="admin")
def permissions_of_vhost(call: ManagementCall) -> None:
    vhost = call.vhost()
    call.answer([each for each in _permissions(call) if each["vhost"] == vhost])


@route("GET", "permissions/{vhost}/{user}", permission="admin")
def show_permission(call: ManagementCall) -> None:
    call.answer_object(_permission(call))


def _permission(call: ManagementCall) -> Json:
    names = {"vhost": call.names[0], "user": call.names[1]}
    return first_or_404([each for each in _permissions(call) if names.items() <= each.items()])


# -- users ----------------------------------------------------------------------------------------


@route("PUT", "users/{user}", permission="admin")
def put_user(call: ManagementCall) -> None:
    """With `password`, with `password_hash` as RabbitMQ writes it, or without a password."""
    name, body, store = call.names[0], call.body(), call.context.guard.store
    role = role_of(_tags(body))
    password, hashed = _password(body)
    known = store.user(name)
    if name == GUEST and known is None:
        raise bad_request(NO_GUEST)
    if not store.users() and (role != "admin" or (password is None and hashed is None)):
        # Adding the first user ends open access: an administrator must be able to log in.
        raise bad_request(
            "the first user must have a password and the tag administrator: adding it ends open access"
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
    """Roles without a tag are kept when tags are set."""
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
    """The password, or a hash to be stored."""
    password, hashed = body.get("password"), body.get("password_hash")
    if password is not None and hashed is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    if not isinstance(password, str | None) or not isinstance(hashed, str | None):
        raise bad_request("password and password_hash must be texts")
    algorithm = body.get("hashing_algorithm") or DEFAULT_ALGORITHM
    if not isinstance(algorithm, str):
        raise bad_request("hashing_algorithm must be text")
    return password, rabbitmq_hash(hashed, algorithm) if hashed else None


@route("DELETE", "users/{user}", permission="admin")
def delete_user(call: ManagementCall) -> None:
    """Keys and tokens are deleted too, and connections closed."""
    _delete_users(call, [call.names[0]])


@route("POST", "users/bulk-delete", permission="admin")
def delete_users(call: ManagementCall) -> None:
    names = call.required("users")["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users must be a list of names")
    _delete_users(call, names)


def _delete_users(call: ManagementCall, names: list[str]) -> None:
    guard = call.context.guard
    if guard.is_open and GUEST in names:
        raise bad_request(
            "a server without users is open to guest: add an administrator (PUT /api/users/NAME), "
            "which ends open access"
        )
    if any(guard.store.user(name) is None for name in names):
        raise not_found()
    # Without users the server would be open again.
    if names and not {user.name for user in guard.store.users()} - set(names):
        raise bad_request("the last user cannot be deleted: a server without users is open")

    def work() -> None:
        for name in names:
            guard.store.remove_user(name)

    call.run_in_thread(work, lambda _: call.answer_changed())


# -- permissions ----------------------------------------------------------------------------------


@route("PUT", "permissions/{vhost}/{user}", permission="admin")
def put_permission(call: ManagementCall) -> None:
    """Replace the permissions in the vhost; deny rules of `openq perm` are kept."""
    body = call.required("configure", "write", "read")
    (vhost, name), store = call.names, call.context.guard.store
    user = store.user(name)
    if user is None or not call.topology.vhost_exists(vhost):
        raise bad_request("vhost_or_user_not_found")
    account = account_of(vhost)
    wanted = {kind: _globs(kind, body[kind]) for kind in ACTIONS_OF}
    _refuse_more(user, account, wanted, _TAGGED)
    is_new = not [each for each in _permissions(call) if (each["user"], each["vhost"]) == (name, vhost)]
    by_pattern: dict[str, set[str]] = {}
    for kind, globs in wanted.items():
        for glob in globs:
            by_pattern.setdefault(glob, set()).update(ACTIONS_OF[kind])
    rules = [Rule("allow", frozenset(actions), glob, account) for glob, actions in by_pattern.items()]

    def work() -> bool:
        store.change_user(name, lambda user: replace(user, rules=(*_without(user, account), *rules)))
        return is_new

    call.run_in_thread(work, call.answer_changed)


@route("DELETE", "permissions/{vhost}/{user}", permission="admin")
def delete_permission(call: ManagementCall) -> None:
    (vhost, name), store = call.names, call.context.guard.store
    _permission(call)
    user, account = store.user(name), account_of(vhost)
    if user is None:
        raise bad_request("a server without users is open: guest has no permissions to delete")
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
            f"{kind}: rules support only * and ?, and cannot express {pattern[:200]!r}; "
            "use prefixes or whole names, separated by |"
        )
    return globs


def _without(user: User, account: str) -> tuple[Rule, ...]:
    """The rules of a user except those that allow something in this account alone."""
    return tuple(
        rule
        for rule in user.rules
        if rule.effect == "deny" or (user.account if rule.account is None else rule.account) != account
    )


def _refuse_more(user: User, account: str, wanted: dict[str, list[str]], exempt: Iterable[str]) -> None:
    """Raises 400 if the role, or a rule for all vhosts, allows more than requested."""
    lasting = [rule for rule in user.rules if rule.account == "*" and rule.effect == "allow"]
    if user.role not in exempt:
        lasting += [rule for rule in ROLES[user.role] if (rule.account or user.account) in ("*", account)]
    for kind, globs in wanted.items():
        if globs != ["*"] and any(ACTIONS_OF[kind] & rule.actions for rule in lasting):
            raise bad_request(
                f"user {user.name!r} would keep more permissions: by the role {user.role!r}, or by rules for "
                "all vhosts; PUT /api/v1/users/NAME changes the role, `openq perm revoke` removes a rule"
            )


def forget_vhost(store: UserStore, vhost: str) -> None:
    """Remove the rules of a deleted vhost, so that a later one of the same name does not inherit them."""
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
