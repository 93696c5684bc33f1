"""Requests and replies about the server and its users (see `schemas.py`)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from .schemas import Moment, Name, QueryParameters, ReplyBody, RequestBody


class Whoami(ReplyBody, kw_only=True):
    user: str
    account: str
    is_root: bool
    open: bool


class ServerView(ReplyBody, kw_only=True):
    version: str
    started: str
    uptime: float
    storage: str
    queues: int
    healthy: bool
    detail: str
    id_prefix: str  # prefix of the ids of this server; the rest counts up


class ReloadView(ReplyBody, kw_only=True):
    changed: list[str]  # settings, such as "max_connections: 20000 -> 5000"
    declared: list[str]  # queues, schedules and webhooks that were created or changed
    restart_needed: list[str]  # changed settings that cannot be reloaded
    kept: list[str]  # not in the file any more; delete them by hand
    certificate: bool  # it was read again


class HealthView(ReplyBody, kw_only=True):
    ok: bool  # everything is served, perhaps degraded
    status: Literal["ok", "degraded", "failed"]
    detail: str
    disk_full: bool
    reasons: list[str]  # why it is degraded
    hint: str | None


class ConfigSetting(ReplyBody, kw_only=True):
    name: str
    value: str | None  # as TOML
    origin: str  # default, a file with its key, a variable, a flag
    help: str


class ConfigView(ReplyBody, kw_only=True):
    settings: list[ConfigSetting]


class DamageView(ReplyBody, kw_only=True):
    """Stored data that cannot be read."""

    kind: Literal["set_aside", "lost", "found"]
    account: str | None
    queue: str | None
    id: str | None
    file: str | None
    offset: int
    count: int
    time: str
    detail: str


class DamageList(ReplyBody, kw_only=True):
    damage: list[DamageView]


class DamageCleared(ReplyBody, kw_only=True):
    cleared: int


class RuleView(RequestBody, kw_only=True):
    effect: Literal["allow", "deny"]
    actions: list[str]
    queues: str = "*"  # a name, or a pattern with * and ?
    account: str | None = None  # None: that of the user; * is every account


class UserView(ReplyBody, kw_only=True):
    name: str
    account: str
    role: str
    rules: list[RuleView]
    disabled: bool
    root: bool
    has_password: bool
    created_at: str
    created: bool | UnsetType = UNSET


class UserList(ReplyBody, kw_only=True):
    users: list[UserView]


class UserChange(RequestBody, kw_only=True):
    """Fields that are not named keep their values; the account of a user cannot change."""

    account: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    password: Annotated[str, Meta(min_length=1, max_length=1024)] | UnsetType | None = UNSET
    role: str | UnsetType = UNSET
    rules: Annotated[list[RuleView], Meta(max_length=1000)] | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


class OfUser(QueryParameters, kw_only=True):
    user: str | None = None


class KeyRequest(RequestBody, kw_only=True):
    user: Name
    expires: Moment | None = None


class KeyView(ReplyBody, kw_only=True):
    id: str
    user: str
    created: str
    expires: str | None
    secret: str | UnsetType = UNSET  # only in the reply to its creation


class KeyList(ReplyBody, kw_only=True):
    keys: list[KeyView]


class TokenRequest(RequestBody, kw_only=True):
    user: Name
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    expires: Moment | None = None
    rules: Annotated[list[RuleView], Meta(max_length=1000)] | None = None  # narrower than the user's


class TokenView(ReplyBody, kw_only=True):
    name: str
    user: str
    created: str
    expires: str | None
    rules: list[RuleView] | None
    token: str | UnsetType = UNSET  # only in the reply to its creation


class TokenList(ReplyBody, kw_only=True):
    tokens: list[TokenView]
