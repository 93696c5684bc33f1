"""RabbitMQ's definitions: a whole broker's vhosts, users, exchanges, queues, bindings and policies as JSON.

Reading checks everything before anything is changed. What has no counterpart here is not guessed at: it is
named in the report. To do the same import twice changes nothing the second time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec

from .._version import __version__
from ..auth.policy import Rule
from ..auth.store import MAX_PASSWORD_BYTES, User, UserStore, rabbitmq_hash
from ..engine.routing import Binding, Exchange, is_default
from ..errors import InvalidSetting, OpenQError, QueueNotFound
from ..names import owner_of, qualified_name, split_name
from .arguments import Arguments, account_of, declaration_of, describe, plain_value, vhost_of
from .errors import AmqpError
from .exchanges import arguments_of, kind_of
from .policies import InvalidAmqpPolicy, Policy
from .topology import Topology

P = ParamSpec("P")

RABBITMQ_VERSION = "3.13.7"  # whose format it is
GUEST = "guest"

# What RabbitMQ calls a permission, and what it allows here.
ACTIONS_OF = {
    "configure": frozenset(("manage",)),
    "write": frozenset(("send",)),
    "read": frozenset(("receive", "peek")),
}
# Of RabbitMQ's tags those that mean something to it, and the role that comes nearest.
ROLE_OF = {"administrator": "admin", "monitoring": "viewer", "policymaker": "viewer", "management": "viewer"}
# And back: who is shown with which tag.
TAG_OF = {"admin": "administrator", "viewer": "monitoring"}
DEFAULT_ALGORITHM = "rabbit_password_hashing_sha256"
_OWN_PARAMETERS = ("internal_cluster_id", "cluster_name", "cluster_tags")


class InvalidDefinitions(InvalidSetting):
    """The sentence names the place: `queues[3].name`."""

    code = "invalid_definitions"


@dataclass(slots=True)
class ImportReport:
    """What became of a file."""

    made: dict[str, int] = field(default_factory=dict)  # by kind: new ones
    kept: dict[str, int] = field(default_factory=dict)  # were there, the same
    not_converted: list[str] = field(default_factory=list)  # what, and why
    hints: list[str] = field(default_factory=list)  # what is left to do

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


def role_of(tags: Iterable[str]) -> str:
    """The highest of the roles that these tags stand for."""
    roles = {ROLE_OF.get(tag, "none") for tag in tags}
    return next((role for role in ("admin", "viewer") if role in roles), "none")


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
    named_vhosts: dict[str, str] = field(default_factory=dict)  # a vhost, and the first place that names it


# -- reading --------------------------------------------------------------------------------------


class _JsonObject:
    """One object of the file, and where it is."""

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
        if value == []:  # how some exporters write an empty one
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
    """Of a whole broker, or of one vhost where the file does not name it. Raises InvalidDefinitions."""
    if not isinstance(source, Mapping):
        raise InvalidDefinitions(f"definitions are an object, not {_kind(source)}")
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
        except InvalidAmqpPolicy as error:  # a plugin's, say, or a pattern that only RabbitMQ understands
            found.skipped.append(f"policy {name!r} in vhost {each.vhost()!r}: {error}")
    for each in items_of("parameters"):
        name = each.text("name", "")
        found.skipped.append(
            f"parameter {name!r} of {each.text('component', '')!r}: there is no such thing here"
        )
    for each in items_of("global_parameters"):
        if each.text("name", "") not in _OWN_PARAMETERS:
            found.skipped.append(f"global parameter {each.text('name', '')!r}: there is no such thing here")
    for each in items_of("topic_permissions"):
        found.skipped.append(
            f"topic permission of user {each.text('user', '')!r}: permissions do not look at routing keys"
        )
    return found


def _one_of(item: _JsonObject, name: str, values: tuple[str, ...]) -> str:
    value = item.text(name)
    if value not in values:
        raise InvalidDefinitions(f"{item.where}.{name} must be {' or '.join(values)}, not {value!r}")
    return value


def _user(item: _JsonObject) -> UserDefinition:
    tags = item.source.get("tags", "")
    if isinstance(tags, str):  # before 3.9 one text with commas
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


# -- into a broker --------------------------------------------------------------------------------


def apply_topology(topology: Topology, wanted: Definitions, report: ImportReport) -> None:
    """All but users. On the loop; policies are in force, and not yet saved.

    Raises InvalidDefinitions, before anything is changed, if a vhost is meant that nobody knows.
    """
    for vhost, where in wanted.named_vhosts.items():
        if vhost not in wanted.vhosts and not topology.vhost_exists(vhost):
            raise InvalidDefinitions(
                f"{where}: there is no vhost {vhost!r}, neither among those of the file nor on the server"
            )
    report.not_converted += wanted.skipped
    for vhost in dict.fromkeys(wanted.vhosts):
        try:
            report.count("vhosts", topology.add_vhost(vhost))
        except AmqpError as error:
            report.not_converted.append(f"vhost {vhost!r}: {error.text}")
    _attempt(report, "policies", "policies", _set_policies, topology, wanted.policies, report)
    for exchange in wanted.exchanges:
        what = describe("exchange", exchange.name, exchange.vhost)
        _attempt(report, "exchanges", what, _add_exchange, topology, exchange)
    for queue in wanted.queues:
        what = describe("queue", queue.name, queue.vhost)
        _attempt(report, "queues", what, _add_queue, topology, queue)
    for binding in wanted.bindings:
        kind = "exchange" if binding.to_exchange else "queue"
        what = (
            f"binding from exchange '{binding.source}' to "
            f"{describe(kind, binding.destination, binding.vhost)} by '{binding.key}'"
        )
        _attempt(report, "bindings", what, _add_binding, topology, binding)


def _attempt(
    report: ImportReport,
    kind: str,
    what: str,
    act: Callable[P, bool | None],
    *given: P.args,
    **more: P.kwargs,
) -> None:
    try:
        is_new = act(*given, **more)
        if is_new is not None:
            report.count(kind, is_new)
    except AmqpError as error:
        report.not_converted.append(f"{what}: {error.text}")


def _set_policies(topology: Topology, policies: Iterable[Policy], report: ImportReport) -> None:
    changed = False
    for policy in policies:
        is_new = topology.policies.set(policy)
        report.count("policies", is_new)
        changed = changed or is_new
    if changed:
        topology.apply_policies()  # once for all of them


def _add_exchange(topology: Topology, wanted: ExchangeDefinition) -> bool:
    is_new = not topology.has_exchange(qualified_name(account_of(wanted.vhost), wanted.name))
    topology.declare_exchange(
        wanted.vhost,
        wanted.name,
        wanted.kind,
        durable=wanted.durable,
        auto_delete=wanted.auto_delete,
        internal=wanted.internal,
        arguments=wanted.arguments,
    )
    return is_new


def _add_queue(topology: Topology, wanted: QueueDefinition) -> bool:
    name = wanted.name
    if name.startswith("amq.gen-"):
        raise AmqpError(403, "the server gave it its name, and gives it to nobody else")
    is_new = not topology.has_queue(qualified_name(account_of(wanted.vhost), name))
    topology.declare_queue(
        wanted.vhost,
        name,
        durable=wanted.durable,
        auto_delete=wanted.auto_delete,
        arguments=wanted.arguments,
    )
    return is_new


def _add_binding(topology: Topology, wanted: BindingDefinition) -> bool:
    if not wanted.source and not wanted.to_exchange and wanted.key == wanted.destination:
        return False  # the default exchange leads to every queue by its name already
    bind = topology.bind_exchange if wanted.to_exchange else topology.bind_queue
    return bind(wanted.vhost, wanted.destination, wanted.source, wanted.key, wanted.arguments)


def apply_at_start(topology: Topology, store: UserStore, path: str) -> ImportReport:
    """A file named in the configuration, before the server opens its doors."""
    report = ImportReport()
    wanted = load(path)
    apply_topology(topology, wanted, report)
    apply_users(store, wanted, report)
    topology.policies.save()
    topology.broker.sync()
    return report


def load(path: str) -> Definitions:
    return read(load_json(path))


def load_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file)
    except OSError as error:
        raise InvalidDefinitions(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidDefinitions(f"{path} is no JSON: {error}") from error


def apply_users(store: UserStore, wanted: Definitions, report: ImportReport) -> None:
    """In a thread: the store writes its file."""
    had_users = bool(store.users())
    if not had_users and _would_lock_out(wanted, report):
        return
    granted: dict[str, list[PermissionDefinition]] = {}
    for permission in wanted.permissions:
        granted.setdefault(permission.user, []).append(permission)
    for user in wanted.users:
        if user.name == GUEST and store.user(GUEST) is None:
            report.not_converted.append(NO_GUEST)
            granted.pop(GUEST, None)
            continue
        try:
            _add_user(store, user, granted.pop(user.name, []), report)
        except OpenQError as error:
            report.not_converted.append(f"user {user.name!r}: {error}")
    for name, permissions in granted.items():
        if store.user(name) is None:
            report.not_converted.append(f"permissions of {name!r}: there is no such user")
            continue
        for rule in _rules_of(permissions, report):
            store.grant(name, rule)
        report.count("users", False)
    if not had_users and store.users():
        report.hints.append("there are users now: everybody has to sign in")


NO_GUEST = (
    "user 'guest': a server without users knows guest already, one with users gives nobody a "
    "well-known password"
)


def _would_lock_out(wanted: Definitions, report: ImportReport) -> bool:
    """Whether these would be the first users, and none of them could let anybody else in.

    The first user ends that everybody may do everything; then somebody must be able to.
    """
    coming = [each for each in wanted.users if each.name != GUEST]
    if not coming or any(
        user.role == "admin"
        and user.could_log_in(_account_of(each for each in wanted.permissions if each.user == user.name))
        for user in coming
    ):
        return False
    if len(coming) < len(wanted.users):
        report.not_converted.append(NO_GUEST)
    names = ", ".join(repr(each.name) for each in coming[:5]) + (", ..." if len(coming) > 5 else "")
    report.not_converted.append(
        f"all {len(coming)} users ({names}) and their permissions: none of them is an administrator with a "
        "password, and with users everybody has to sign in; the server stays open. "
        "`openq user add NAME --role admin` makes one who can, then import again"
    )
    return True


def _add_user(
    store: UserStore, wanted: UserDefinition, permissions: list[PermissionDefinition], report: ImportReport
) -> None:
    rules = _rules_of(permissions, report)
    known = store.user(wanted.name)
    if known is None:
        hashed = _hash_of(wanted, report)
        store.add_user(
            wanted.name,
            account=_account_of(permissions),
            role=wanted.role,
            rules=rules,
            password=wanted.password,
            password_hash=hashed,
        )
        _report_tags(wanted, report)
        if wanted.password is None and hashed is None:
            report.hints.append(
                f"user {wanted.name!r} has no password; `openq user passwd {wanted.name}` sets one"
            )
    else:
        for rule in rules:
            store.grant(wanted.name, rule)
    report.count("users", known is None)


def _account_of(permissions: Iterable[PermissionDefinition]) -> str:
    accounts = [account_of(each.vhost) for each in permissions] or [account_of("/")]
    return account_of("/") if account_of("/") in accounts else accounts[0]


def _hash_of(wanted: UserDefinition, report: ImportReport) -> str | None:
    if wanted.password is not None:
        return None
    try:
        return wanted.stored_hash()
    except InvalidSetting as error:
        report.not_converted.append(f"password of user {wanted.name!r}: {error}")
        return None


def _report_tags(wanted: UserDefinition, report: ImportReport) -> None:
    """Roles are not tags: what one means more or less than the other."""
    viewing = [tag for tag in wanted.tags if ROLE_OF.get(tag) == "viewer"]
    if wanted.role == "admin":
        report.hints.append(
            f"user {wanted.name!r}: administrator is the role admin here, which may use every vhost and "
            "do everything there"
        )
    elif viewing:
        report.hints.append(
            f"user {wanted.name!r}: {', '.join(viewing)} is the role viewer here, which may look at what is "
            "in its own vhost, messages too"
        )
        if "policymaker" in viewing:
            report.not_converted.append(
                f"tag 'policymaker' of user {wanted.name!r}: only the role admin sets policies here"
            )
    for tag in wanted.tags:
        if tag not in ROLE_OF:
            report.not_converted.append(f"tag {tag!r} of user {wanted.name!r}: it means nothing here")


def _rules_of(permissions: Iterable[PermissionDefinition], report: ImportReport) -> list[Rule]:
    rules: list[Rule] = []
    for permission in permissions:
        by_pattern: dict[str, set[str]] = {}
        for kind, pattern in permission.patterns.items():
            globs = globs_of(pattern)
            if globs is None:
                report.not_converted.append(
                    f"permission {kind} {pattern!r} of user {permission.user!r} in vhost {permission.vhost!r}"
                    ": rules here know * and ? only; `openq perm grant` gives what comes nearest"
                )
                continue
            for glob in globs:
                by_pattern.setdefault(glob, set()).update(ACTIONS_OF[kind])
        account = account_of(permission.vhost)
        rules += [Rule("allow", frozenset(actions), glob, account) for glob, actions in by_pattern.items()]
    return rules


_LITERAL = re.compile(r"[\w\-/:@ ,=~!#%&;<>'\"]")
_ESCAPED = re.compile(r"[.\-_/:@#$^+(){}\[\]|]")


def globs_of(pattern: str) -> list[str] | None:
    """The names that a regular expression finds, as patterns with `*` and `?`; None if that cannot be said.

    Never more than it finds: who could not reach a queue before cannot reach it now.
    """
    if pattern in ("", "^$"):
        return []
    if pattern.startswith("^(") and pattern.endswith((")", ")$", ").*", ").*$")):
        end = pattern.rindex(")")
        tail = pattern[end + 1 :]
        parts = pattern[2:end].removeprefix("?:").split("|")
        globs = [_glob("^" + part + tail) for part in parts]
    elif "(" in pattern:
        return None
    else:
        globs = [_glob(part) for part in pattern.split("|")]
    return None if None in globs else [each for each in globs if each]


def _glob(pattern: str) -> str | None:
    start = pattern.startswith("^")
    end = pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[start : len(pattern) - end]
    glob = "" if start else "*"
    at = 0
    while at < len(body):
        char = body[at]
        following = body[at + 1 : at + 2]
        if char == "\\":
            if not _ESCAPED.fullmatch(following):
                return None
            glob += following
            at += 2
        elif char == ".":
            if following == "*":
                glob += "*"
                at += 2
            elif following == "+":
                glob += "?*"
                at += 2
            elif following in ("?", "{"):
                return None
            else:
                glob += "?"
                at += 1
        elif _LITERAL.fullmatch(char) and following not in ("*", "+", "?", "{"):
            glob += char
            at += 1
        else:
            return None
    if not end:
        glob += "*"
    return re.sub(r"\*+", "*", glob)


# -- out of a broker ------------------------------------------------------------------------------


def export(topology: Topology, store: UserStore | None, vhost: str | None = None) -> dict[str, Any]:
    """As RabbitMQ writes them: of the whole broker, or of one vhost. On the loop."""

    def in_vhost(queue_key: str, fields: dict[str, Any]) -> dict[str, Any]:
        if vhost is not None:
            return fields
        name, *rest = fields.items()
        return dict([name, ("vhost", vhost_of(split_name(queue_key)[0])), *rest])

    queues = []
    for queue_key in topology.queues(vhost):
        try:
            declared = declaration_of(topology.broker.get_queue(queue_key).settings)
        except QueueNotFound:
            continue
        if not declared.exclusive:
            fields = {
                "name": split_name(queue_key)[1],
                "durable": declared.durable,
                "auto_delete": declared.auto_delete,
                "arguments": to_json_value(declared.arguments),
            }
            queues.append(in_vhost(queue_key, fields))
    exchanges = [
        in_vhost(each.name, exchange_fields(each))
        for each in topology.exchanges(vhost)
        if not is_default(each.name) and not split_name(each.name)[1].startswith("amq.")
    ]
    bindings = [
        in_vhost(each.source, binding_fields(each))
        for each in topology.bindings()
        if vhost is None or split_name(each.source)[0] == account_of(vhost)
    ]
    policies = [each.to_json() for each in topology.policies.all(vhost)]
    head: dict[str, Any] = {"rabbit_version": RABBITMQ_VERSION}
    if vhost is None:
        users = [] if store is None else store.users()
        head |= {
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "OpenQ",
            "product_version": __version__,
            "users": [user_fields(each) for each in users],
            "vhosts": [{"name": each} for each in topology.vhosts()],
            "permissions": [
                fields for each in users for fields in permission_fields(each, topology.vhosts())
            ],
            "topic_permissions": [],
            "global_parameters": [],
        }
    return {
        **head,
        "parameters": [],
        "policies": policies,
        "queues": queues,
        "exchanges": exchanges,
        "bindings": bindings,
    }


def to_json_value(value: Any) -> Any:
    """Arguments as JSON can show them; bytes as text."""
    value = plain_value(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {name: to_json_value(each) for name, each in value.items()}
    return [to_json_value(each) for each in value] if isinstance(value, list) else value


def exchange_fields(exchange: Exchange) -> dict[str, Any]:
    return {
        "name": split_name(exchange.name)[1],
        "type": kind_of(exchange),
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": to_json_value(arguments_of(exchange)),
    }


def binding_fields(binding: Binding) -> dict[str, Any]:
    return {
        "source": split_name(binding.source)[1],
        "destination": split_name(binding.destination)[1],
        "destination_type": "exchange" if binding.to_exchange else "queue",
        "routing_key": binding.key,
        "arguments": to_json_value(binding.arguments),
    }


def user_fields(user: User) -> dict[str, Any]:
    """Never a hash: nobody else could use it, and some would try to."""
    return {
        "name": user.name,
        "password_hash": "",
        "hashing_algorithm": DEFAULT_ALGORITHM,
        "tags": [TAG_OF[user.role]] if user.role in TAG_OF else [],
        "limits": {},
    }


def permission_fields(user: User, vhosts: Iterable[str]) -> list[dict[str, Any]]:
    """Its rules as regular expressions; an action that a rule denies is left out as a whole."""
    found = []
    for vhost in vhosts:
        account = account_of(vhost)
        meant = ("*", account, owner_of(account))
        patterns: dict[str, str] = {}
        for kind, actions in ACTIONS_OF.items():
            action = next(iter(actions - {"peek"}))
            rules = [
                rule
                for rule in user.all_rules
                if action in rule.actions
                and (user.account if rule.account is None else rule.account) in meant
            ]
            patterns[kind] = _pattern([] if any(each.effect == "deny" for each in rules) else rules)
        if any(patterns.values()):
            found.append({"user": user.name, "vhost": vhost, **patterns})
    return found


def _pattern(rules: Iterable[Rule]) -> str:
    texts = [
        "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in glob)
        for glob in dict.fromkeys(rule.queues for rule in rules)
    ]
    if not texts:
        return ""
    if ".*" in texts:
        return ".*"
    return f"^{texts[0]}$" if len(texts) == 1 else f"^({'|'.join(texts)})$"
