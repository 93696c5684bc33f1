"""The `[alerts]` table of `openq.toml`: the evaluation, rules and destinations. Secrets are never shown.

[alerts]
webhook = "https://example.com/alerts"        # the shortest form: a destination named webhook

[alerts.rules.oldest-message]                 # other limits of a built-in rule, by their names
age = "1h"

[alerts.destinations.ops]
kind = "smtp"
host = "mail.example.com"
from = "openq@example.com"
to = ["ops@example.com"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from ..errors import InvalidSetting
from ..limits import parse_rate
from ..parsing import one_of, read_flag, read_int, read_seconds, read_text, within
from .builtin import BY_NAME
from .rule import SEVERITIES, AlertRule, CompiledRule, changed, read_limit

KINDS = ("webhook", "slack", "pagerduty", "alertmanager", "smtp")
DEFAULT_INTERVAL_S = 3.0
DEFAULT_REPEAT_S = 4 * 3600.0
DEFAULT_RATE = "20/m burst 5"
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
_HIDDEN = "..."
_SECRETS = ("secret", "password", "routing_key", "headers")


class InvalidAlerts(InvalidSetting):
    """The text names the key and what is expected, never a secret."""

    code = "invalid_alerts"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where notifications go. `repr` shows no secret."""

    name: str
    kind: str
    url: str = field(default="", repr=False)  # of Slack, the path is the secret
    secret: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    routing_key: str = field(default="", repr=False)
    host: str = ""
    port: int = 0  # 0: that of the kind of encryption
    tls: str = "starttls"
    user: str = ""
    password: str = field(default="", repr=False)
    sender: str = ""
    to: tuple[str, ...] = ()
    severity: str = SEVERITIES[0]  # the lowest that is sent
    rules: tuple[str, ...] = ()  # patterns; empty: all
    resolved: bool = True
    rate: str = DEFAULT_RATE
    timeout_s: float = 10.0
    group_wait_s: float = 1.0

    @property
    def target(self) -> str:
        """For display: a host, without what may be secret."""
        if self.kind == "smtp":
            return f"{', '.join(self.to)} by {self.host}"
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True)
class AlertConfig:
    enabled: bool = True
    interval_s: float = DEFAULT_INTERVAL_S
    repeat_s: float = DEFAULT_REPEAT_S
    rules: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # fields of `AlertRule`, and `limits`
    destinations: tuple[Destination, ...] = ()

    def shown(self) -> dict[str, Any]:
        """For `openq config show`: what differs from the defaults, without secrets."""
        default = AlertConfig()
        found: dict[str, Any] = {}
        for key, name in (("enabled", "enabled"), ("interval_s", "interval"), ("repeat_s", "repeat")):
            if getattr(self, key) != getattr(default, key):
                found[name] = getattr(self, key)
        if self.rules:
            found["rules"] = {name: dict(each) for name, each in self.rules.items()}
        if self.destinations:
            found["destinations"] = {each.name: shown_destination(each) for each in self.destinations}
        return found


def shown_destination(destination: Destination) -> dict[str, Any]:
    default = Destination("", "")
    found: dict[str, Any] = {"kind": destination.kind}
    for each in fields(Destination):
        value = getattr(destination, each.name)
        if each.name in ("name", "kind") or value == getattr(default, each.name):
            continue
        if each.name in _SECRETS:
            found[each.name] = _HIDDEN
        elif each.name == "url":
            found["url"] = f"{urlsplit(value).scheme}://{destination.target}/{_HIDDEN}"
        else:
            found[each.name] = list(value) if isinstance(value, tuple) else value
    return found


# -- reading --------------------------------------------------------------------------------------


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",")]
    if isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value):
        return tuple(value)
    raise ValueError("a list of texts")


def _url(value: object) -> str:
    text = read_text(value)
    if not text.startswith(("http://", "https://")) or not urlsplit(text).hostname or not text.isascii():
        raise ValueError("a URL such as https://example.com/alerts")
    return text


def _headers(value: object) -> dict[str, str]:
    if isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values()):
        return dict(value)
    raise ValueError('a table of texts, such as { "X-Team" = "ops" }')


def _secret(value: object) -> str:
    if isinstance(value, str) and value.startswith("whsec_"):
        return value
    raise ValueError("whsec_ and the base64 of 24 to 64 random bytes")


def _address(value: object) -> str:
    text = read_text(value)
    if not text.isprintable() or "@" not in text or any(char in text for char in "<>,; "):
        raise ValueError("a mail address such as ops@example.com")
    return text


def _addresses(value: object) -> tuple[str, ...]:
    return tuple(_address(each) for each in _texts(value))


def _rate(value: object) -> str:
    return parse_rate(read_text(value)).text


def _from_file(read: Callable[[object], Any]) -> Callable[[object], Any]:
    def read_file(value: object) -> Any:
        try:
            with open(read_text(value), encoding="utf-8") as source:
                return read(source.read().strip())
        except (OSError, UnicodeDecodeError):
            raise ValueError("a file that can be read") from None

    return read_file


_time = within(read_seconds, 0, 7 * 86_400, "a time up to 7 days")
DESTINATION_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "kind": ("kind", one_of(*KINDS)),
    "url": ("url", _url),
    "secret": ("secret", _secret),
    "secret_file": ("secret", _from_file(_secret)),
    "headers": ("headers", _headers),
    "routing_key": ("routing_key", read_text),
    "routing_key_file": ("routing_key", _from_file(read_text)),
    "host": ("host", read_text),
    "port": ("port", within(read_int, 1, 65535, "a port")),
    "tls": ("tls", one_of("starttls", "on", "off")),
    "user": ("user", read_text),
    "password": ("password", read_text),
    "password_file": ("password", _from_file(read_text)),
    "from": ("sender", _address),
    "to": ("to", _addresses),
    "severity": ("severity", one_of(*SEVERITIES)),
    "rules": ("rules", _texts),
    "resolved": ("resolved", read_flag),
    "rate": ("rate", _rate),
    "timeout": ("timeout_s", within(read_seconds, 0.1, 60, "a time from 0.1 to 60 seconds")),
    "group_wait": ("group_wait_s", within(read_seconds, 0, 300, "a time up to 5 minutes")),
}
RULE_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "expression": ("expression", read_text),
    "summary": ("summary", read_text),
    "action": ("action", read_text),
    "command": ("command", read_text),
    "severity": ("severity", one_of(*SEVERITIES)),
    "for": ("for_s", _time),
    "keep": ("keep_s", _time),
    "queues": ("queues", _texts),
    "enabled": ("enabled", read_flag),
    "figures": ("figures", _headers),
}
_NEEDED = {
    "webhook": ("url",),
    "slack": ("url",),
    "pagerduty": ("routing_key",),
    "alertmanager": ("url",),
    "smtp": ("host", "sender", "to"),
}
# Destinations in one line of [alerts]: the key is the name and the kind.
_SHORT = ("webhook", "slack", "alertmanager")


def read_alerts(table: object, where: str = "alerts") -> AlertConfig:
    """Raises InvalidAlerts."""
    if not isinstance(table, Mapping):
        raise InvalidAlerts(f"{where} must be a table: [alerts]")
    values: dict[str, Any] = {}
    destinations: list[Destination] = []
    rules: dict[str, Mapping[str, Any]] = {}
    short: dict[str, dict[str, object]] = {}
    for key, value in table.items():
        if key == "enabled":
            values["enabled"] = _read(read_flag, value, f"{where}.enabled")
        elif key == "interval":
            limits = within(read_seconds, 0.1, 5, "a time from 0.1 to 5 seconds")
            values["interval_s"] = _read(limits, value, f"{where}.interval")
        elif key == "repeat":
            values["repeat_s"] = _read(_time, value, f"{where}.repeat")
        elif key in _SHORT:
            short.setdefault(key, {"kind": key})["url"] = value
        elif key in ("webhook_secret", "webhook_secret_file"):
            short.setdefault("webhook", {"kind": "webhook"})[key.removeprefix("webhook_")] = value
        elif key == "rules":
            for name, fields_ in _tables(value, f"{where}.rules"):
                rules[name] = read_rule(name, fields_, f"{where}.rules.{name}")
        elif key == "destinations":
            for name, fields_ in _tables(value, f"{where}.destinations"):
                destinations.append(read_destination(name, fields_, f"{where}.destinations.{name}"))
        else:
            known = ["enabled", "interval", "repeat", "rules", "destinations", *_SHORT, "webhook_secret"]
            raise InvalidAlerts(f"{where}: unknown key {key!r}{_hint(key, known)}")
    named = {each.name for each in destinations}
    for name, given in short.items():
        if name in named:
            raise InvalidAlerts(f"{where}: {name} is there twice, also in {where}.destinations")
        destinations.append(read_destination(name, given, f"{where}.{name}"))
    return AlertConfig(rules=rules, destinations=tuple(destinations), **values)


def _tables(value: object, where: str) -> list[tuple[str, Mapping[str, object]]]:
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        raise InvalidAlerts(f"{where} must be tables, such as [{where}.NAME]")
    return list(value.items())


def read_rule(
    name: str, table: Mapping[str, object], where: str, base: AlertRule | None = None
) -> dict[str, Any]:
    """The fields of a rule, with its limits, for `changed`; checked as a whole. Raises InvalidAlerts.

    `base` is the rule that is changed, if it is not a built-in one.
    """
    found: dict[str, Any] = {}
    limits: dict[str, float] = {}
    given = dict(table)
    nested = given.pop("limits", {})
    if not isinstance(nested, Mapping):
        raise InvalidAlerts(f"{where}.limits must be a table of numbers")
    for key, value in [*given.items(), *nested.items()]:
        if key in RULE_KEYS and key not in nested:
            target, read = RULE_KEYS[key]
            found[target] = _read(read, value, f"{where}.{key}")
        else:
            limits[key] = _read(read_limit, value, f"{where}.{key}")
    if limits:
        found["limits"] = limits
    try:
        CompiledRule(changed(base or BY_NAME.get(name), name, found, BY_NAME))
    except InvalidSetting as error:
        raise InvalidAlerts(f"{where}: {error}") from None
    return found


def read_destination(name: str, table: Mapping[str, object], where: str) -> Destination:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in DESTINATION_KEYS:
            raise InvalidAlerts(
                f"{where}: a destination has no key {key!r}{_hint(key, list(DESTINATION_KEYS))}"
            )
        target, read = DESTINATION_KEYS[key]
        if target in values:
            raise InvalidAlerts(f"{where}: {key} and another key set the same value")
        values[target] = _read(read, value, f"{where}.{key}")
    kind = values.get("kind")
    if kind is None:
        raise InvalidAlerts(f"{where}: kind is missing: one of {', '.join(KINDS)}")
    for key in _NEEDED[kind]:
        if key not in values:
            raise InvalidAlerts(
                f"{where}: a destination of kind {kind} needs {'from' if key == 'sender' else key}"
            )
    if kind == "pagerduty":
        values.setdefault("url", PAGERDUTY_URL)
    if bool(values.get("user")) != bool(values.get("password")):
        raise InvalidAlerts(f"{where}: user and password belong together")
    return Destination(name=name, **values)


def rules_of(config: AlertConfig) -> dict[str, AlertRule]:
    """The built-in rules with what the configuration changes, and its own rules."""
    found = dict(BY_NAME)
    for name, given in config.rules.items():
        found[name] = changed(BY_NAME.get(name), name, given)
    return found


def _read(read: Callable[[object], Any], value: object, where: str) -> Any:
    """The value is not repeated: it may be a secret."""
    try:
        return read(value)
    except InvalidSetting as error:
        raise InvalidAlerts(f"{where}: {error}") from None
    except ValueError as error:
        raise InvalidAlerts(f"{where} must be {error}") from None


def _hint(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, 1, 0.6)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
