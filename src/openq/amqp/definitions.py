"""RabbitMQ's definitions: a whole broker's vhosts, users, exchanges, queues, bindings and policies as JSON.

`read` checks the whole file before anything is changed. What has no counterpart in OpenQ is reported, not
guessed. An import is idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..auth.store import MAX_PASSWORD_BYTES, User, rabbitmq_hash
from ..errors import InvalidSetting
from .arguments import Arguments
from .permissions import ACTIONS_OF, DEFAULT_ALGORITHM, role_of
from .policies import InvalidAmqpPolicy, Policy

RABBITMQ_VERSION = "3.13.7"  # of the format
_OWN_PARAMETERS = ("internal_cluster_id", "cluster_name", "cluster_tags")


class InvalidDefinitions(InvalidSetting):
    """The text names the position: `queues[3].name`."""

    code = "invalid_definitions"


@dataclass(slots=True)
class ImportReport:
    """The result of an import."""

    made: dict[str, int] = field(default_factory=dict)  # new objects by kind
    kept: dict[str, int] = field(default_factory=dict)  # existing, equal objects by kind
    not_converted: list[str] = field(default_factory=list)  # what was skipped, and why
    hints: list[str] = field(default_factory=list)  # what the operator should know or do

    def count(self, kind: str, is_new: bool) -> None:
        counts = self.made if is_new else self.kept
        counts[kind] = counts.get(kind, 0) + 1

    def to_json(self) -> dict[str, Any]:
        return {
            "made": self.made,
            "kept": self.kept,
            "not_converted": self.not_converted,
            "hints": self.hints,
        }


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    vhost: str
    name: str
    durable: bool
    auto_delete: bool
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class ExchangeDefinition:
    vhost: str
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class BindingDefinition:
    vhost: str
    source: str
    destination: str
    to_exchange: bool
    key: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class UserDefinition:
    name: str
    tags: tuple[str, ...]
    password: str | None = field(default=None, repr=False)
    password_hash: str = field(default="", repr=False)  # as RabbitMQ writes it; empty if there is none
    algorithm: str = DEFAULT_ALGORITHM

    @property
    def role(self) -> str:
        return role_of(self.tags)

    def stored_hash(self) -> str | None:
        """Raises InvalidSetting for one that cannot be used here."""
        return rabbitmq_hash(self.password_hash, self.algorithm) if self.password_hash else None

    def could_log_in(self, account: str) -> bool:
        try:
            User(self.name, account)
            if self.password is not None:
                return 0 < len(self.password.encode()) <= MAX_PASSWORD_BYTES
            return self.stored_hash() is not None
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class PermissionDefinition:
    user: str
    vhost: str
    patterns: Mapping[str, str]  # configure, write, read: regular expressions


@dataclass(slots=True)
class Definitions:
    vhosts: list[str] = field(default_factory=list)
    users: list[UserDefinition] = field(default_factory=list)
    permissions: list[PermissionDefinition] = field(default_factory=list)
    exchanges: list[ExchangeDefinition] = field(default_factory=list)
    queues: list[QueueDefinition] = field(default_factory=list)
    bindings: list[BindingDefinition] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    named_vhosts: dict[str, str] = field(default_factory=dict)  # vhost -> the first position that names it


# -- reading --------------------------------------------------------------------------------------


class _JsonObject:
    """One object of the file, and its position."""

    def __init__(self, source: object, where: str, vhost: str | None, named_vhosts: dict[str, str]) -> None:
        if not isinstance(source, Mapping):
            raise InvalidDefinitions(f"{where} must be an object, not {_kind(source)}")
        self.source = source
        self.where = where
        self._vhost = vhost
        self._named_vhosts = named_vhosts

    def text(self, name: str, default: str | None = None) -> str:
        value = self.source.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "text", value)
        return value

    def flag(self, name: str) -> bool:
        value = self.source.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def arguments(self) -> Arguments:
        value = self.source.get("arguments", {})
        if value == []:  # some exporters write an empty object so
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong("arguments", "an object", value)
        return value

    def vhost(self) -> str:
        vhost = self.text("vhost", self._vhost)
        if not vhost:
            raise InvalidDefinitions(f"{self.where}.vhost must not be empty")
        self._named_vhosts.setdefault(vhost, f"{self.where}.vhost")
        return vhost

    def wrong(self, name: str, wanted: str, value: object) -> InvalidDefinitions:
        if name not in self.source:
            return InvalidDefinitions(f"{self.where}.{name} is missing")
        return InvalidDefinitions(f"{self.where}.{name} must be {wanted}, not {_kind(value)}")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "a number")


def read(source: object, vhost: str | None = None) -> Definitions:
    """Definitions of a whole broker, or of `vhost` where the file names none. Raises InvalidDefinitions."""
    if not isinstance(source, Mapping):
        raise InvalidDefinitions(f"definitions must be an object, not {_kind(source)}")
    default = "/" if vhost is None else vhost
    named_vhosts: dict[str, str] = {}

    def items_of(name: str) -> Iterable[_JsonObject]:
        items = source.get(name, [])
        if not isinstance(items, list):
            raise InvalidDefinitions(f"{name} must be a list, not {_kind(items)}")
        for at, item in enumerate(items):
            yield _JsonObject(item, f"{name}[{at}]", default, named_vhosts)

    found = Definitions(
        vhosts=[each.text("name") for each in items_of("vhosts")],
        users=[_user(each) for each in items_of("users")],
        permissions=[_permission(each) for each in items_of("permissions")],
        exchanges=[
            ExchangeDefinition(
                each.vhost(),
                each.text("name"),
                each.text("type"),
                each.flag("durable"),
                each.flag("auto_delete"),
                each.flag("internal"),
                each.arguments(),
            )
            for each in items_of("exchanges")
        ],
        queues=[
            QueueDefinition(
                each.vhost(),
                each.text("name"),
                each.flag("durable"),
                each.flag("auto_delete"),
                each.arguments(),
            )
            for each in items_of("queues")
        ],
        bindings=[
            BindingDefinition(
                each.vhost(),
                each.text("source"),
                each.text("destination"),
                _one_of(each, "destination_type", ("queue", "exchange")) == "exchange",
                each.text("routing_key", ""),
                each.arguments(),
            )
            for each in items_of("bindings")
        ],
        named_vhosts=named_vhosts,
    )
    if vhost is not None:
        found.vhosts.append(vhost)
    for each in items_of("policies"):
        name = each.text("name")
        try:
            found.policies.append(Policy.from_json(each.source, vhost=each.vhost()))
        except InvalidAmqpPolicy as error:  # of a plugin, or with an unsupported pattern
            found.skipped.append(f"policy {name!r} in vhost {each.vhost()!r}: {error}")
    for each in items_of("parameters"):
        name = each.text("name", "")
        found.skipped.append(f"parameter {name!r} of {each.text('component', '')!r}: not supported")
    for each in items_of("global_parameters"):
        if each.text("name", "") not in _OWN_PARAMETERS:
            found.skipped.append(f"global parameter {each.text('name', '')!r}: not supported")
    for each in items_of("topic_permissions"):
        found.skipped.append(
            f"topic permission of user {each.text('user', '')!r}: routing keys are not checked"
        )
    return found


def _one_of(item: _JsonObject, name: str, values: tuple[str, ...]) -> str:
    value = item.text(name)
    if value not in values:
        raise InvalidDefinitions(f"{item.where}.{name} must be {' or '.join(values)}, not {value!r}")
    return value


def _user(item: _JsonObject) -> UserDefinition:
    tags = item.source.get("tags", "")
    if isinstance(tags, str):  # one text with commas before 3.9
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise item.wrong("tags", "text or a list of texts", tags)
    password = item.source.get("password")
    if password is not None and not isinstance(password, str):
        raise item.wrong("password", "text", password)
    algorithm = item.source.get("hashing_algorithm")
    if algorithm is not None and not isinstance(algorithm, str):
        raise item.wrong("hashing_algorithm", "text", algorithm)
    hashed = item.text("password_hash", "")
    return UserDefinition(item.text("name"), tuple(tags), password, hashed, algorithm or DEFAULT_ALGORITHM)


def _permission(item: _JsonObject) -> PermissionDefinition:
    patterns = {name: item.text(name) for name in ACTIONS_OF}
    return PermissionDefinition(item.text("user"), item.vhost(), patterns)


def load(path: str) -> Definitions:
    return read(load_json(path))


def load_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file)
    except OSError as error:
        raise InvalidDefinitions(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidDefinitions(f"{path} is not JSON: {error}") from error
