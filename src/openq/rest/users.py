"""Users, access keys and tokens. Secrets are shown once, in the reply to their creation.

The store writes its file in a thread: a change is answered when it is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from ..auth.errors import UnknownName
from ..auth.rules import Rule, checked
from ..auth.store import AccessKey, Token, User, UserStore
from ..documents.values import iso, iso_or_none, moment_ms
from ..errors import InvalidSetting
from .call import RestCall
from .message_schemas import Id
from .routes import route
from .user_schemas import (
    KeyList,
    KeyRequest,
    KeyView,
    OfUser,
    RuleView,
    TokenList,
    TokenRequest,
    TokenView,
    UserChange,
    UserList,
    UserView,
)


def _store(call: RestCall) -> UserStore:
    return call.context.guard.store


def _rules(views: Iterable[RuleView]) -> list[Rule]:
    """Checked first: a rejected request changes nothing."""
    return list(
        checked(Rule(view.effect, frozenset(view.actions), view.queues, view.account) for view in views)
    )


def rule_views(rules: Iterable[Rule]) -> list[RuleView]:
    return [
        RuleView(effect=rule.effect, actions=sorted(rule.actions), queues=rule.queues, account=rule.account)
        for rule in rules
    ]


def _user_view(user: User) -> UserView:
    return UserView(
        name=user.name,
        account=user.account,
        role=user.role,
        rules=rule_views(user.rules),
        disabled=user.is_disabled,
        root=user.is_root,
        has_password=user.password_hash is not None,
        created_at=iso(user.created_ms),
    )


@route("GET", "users", permission="admin", scope="server", summary="List users", reply=UserList)
def list_users(call: RestCall) -> None:
    call.answer(UserList(users=[_user_view(user) for user in _store(call).users()]))


@route("GET", "users/{user}", permission="admin", scope="server", summary="Show a user", reply=UserView)
def show_user(call: RestCall) -> None:
    user = _store(call).user(call.args[0])
    if user is None:
        raise UnknownName("user", call.args[0][:100])
    call.answer(_user_view(user))


@route(
    "PUT",
    "users/{user}",
    permission="admin",
    scope="server",
    summary="Create or change a user",
    request=UserChange,
    reply=UserView,
    status=(200, 201),
)
def put_user(call: RestCall) -> None:
    store, name, body = _store(call), call.args[0], call.body

    def work() -> tuple[UserView, bool]:
        user = store.user(name)
        created = user is None
        if user is None:
            user = store.add_user(
                name,
                account=call.account if body.account is UNSET else body.account,
                password=None if body.password is UNSET else body.password,
                role="none" if body.role is UNSET else body.role,
                rules=() if body.rules is UNSET else _rules(body.rules),
            )
            if body.disabled is True:
                user = store.set_disabled(name, True)
        else:
            user = _change(store, user, body)
        view = _user_view(user)
        view.created = created
        return view, created

    call.work(work, lambda result: call.answer(result[0], 201 if result[1] else 200))


def _change(store: UserStore, user: User, body: UserChange) -> User:
    if body.account is not UNSET and body.account != user.account:
        raise InvalidSetting(f"user {user.name!r} is of account {user.account!r}; that does not change")
    rules = UNSET if body.rules is UNSET else _rules(body.rules)
    if body.role is not UNSET:
        user = store.set_role(user.name, body.role)
    if rules is not UNSET:
        user = store.set_rules(user.name, rules)
    if body.password is not UNSET:
        user = store.set_password(user.name, body.password)
    if body.disabled is not UNSET:
        user = store.set_disabled(user.name, body.disabled)
    return user


@route("DELETE", "users/{user}", permission="admin", scope="server", summary="Delete a user", reply=Id)
def delete_user(call: RestCall) -> None:
    """Deletes the user with all keys and tokens."""
    store, name = _store(call), call.args[0]

    def work() -> Id:
        store.remove_user(name)
        return Id(id=name)

    call.answer_with(work)


def _key_view(key: AccessKey) -> KeyView:
    return KeyView(id=key.id, user=key.user, created=iso(key.created_ms), expires=iso_or_none(key.expires_ms))


@route(
    "GET", "keys", permission="admin", scope="server", summary="List access keys", reply=KeyList, query=OfUser
)
def list_keys(call: RestCall) -> None:
    call.answer(KeyList(keys=[_key_view(key) for key in _store(call).keys(call.query.user)]))


def _expiry(call: RestCall) -> float | None:
    return None if call.body.expires is None else moment_ms(call.body.expires, "expires") / 1000


@route(
    "POST",
    "keys",
    permission="admin",
    scope="server",
    summary="Create an access key; its secret is shown once",
    request=KeyRequest,
    reply=KeyView,
    status=(201,),
)
def create_key(call: RestCall) -> None:
    store, user, expires_s = _store(call), call.body.user, _expiry(call)

    def work() -> KeyView:
        made = store.create_key(user, expires_s=expires_s)
        key = store.key(made.id)
        if key is None:
            raise UnknownName("access key", made.id)
        view = _key_view(key)
        view.secret = made.secret
        return view

    call.work(work, lambda view: call.answer(view, 201))


@route("DELETE", "keys/{id}", permission="admin", scope="server", summary="Revoke an access key", reply=Id)
def revoke_key(call: RestCall) -> None:
    store, id = _store(call), call.args[0]

    def work() -> Id:
        store.revoke_key(id)
        return Id(id=id)

    call.answer_with(work)


def _token_view(token: Token) -> TokenView:
    return TokenView(
        name=token.name,
        user=token.user,
        created=iso(token.created_ms),
        expires=iso_or_none(token.expires_ms),
        rules=None if token.rules is None else rule_views(token.rules),
    )


@route(
    "GET", "tokens", permission="admin", scope="server", summary="List tokens", reply=TokenList, query=OfUser
)
def list_tokens(call: RestCall) -> None:
    call.answer(TokenList(tokens=[_token_view(token) for token in _store(call).tokens(call.query.user)]))


@route(
    "POST",
    "tokens",
    permission="admin",
    scope="server",
    summary="Create a token; it is shown once",
    request=TokenRequest,
    reply=TokenView,
    status=(201,),
)
def create_token(call: RestCall) -> None:
    store, body, expires_s = _store(call), call.body, _expiry(call)
    rules = None if body.rules is None else _rules(body.rules)

    def work() -> TokenView:
        text = store.create_token(body.user, body.name, expires_s=expires_s, rules=rules)
        token = store.find_token(text)
        if token is None:
            raise UnknownName("token", body.name)
        view = _token_view(token)
        view.token = text
        return view

    call.work(work, lambda view: call.answer(view, 201))


@route(
    "DELETE", "tokens/{user}/{name}", permission="admin", scope="server", summary="Revoke a token", reply=Id
)
def revoke_token(call: RestCall) -> None:
    store, (user, name) = _store(call), call.args

    def work() -> Id:
        store.revoke_token(user, name)
        return Id(id=name)

    call.answer_with(work)
