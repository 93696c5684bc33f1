"""RabbitMQ's policies: settings for all queues or exchanges of a vhost whose names match a pattern.

They are stored in one file beside the journal, or in a document of a store that servers share. The notes of
a queue name the policy that applies to it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..auth.documents import DocumentBroker, map_write_errors
from ..auth.guard import write_secret_file
from ..errors import InvalidSetting
from .arguments import OVERFLOWS
from .patterns import UnsupportedPattern, compile_pattern

log = logging.getLogger("openq.amqp")

FILE = "policies.json"
DOCUMENT = "policies"
APPLY_TO = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")


class InvalidAmqpPolicy(InvalidSetting):
    code = "invalid_policy"


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: object) -> bool:
    return isinstance(value, str)


_SETTINGS: dict[str, tuple[Callable[[object], bool], str]] = {
    "message-ttl": (_number, "a whole number of milliseconds"),
    "expires": (lambda value: _number(value) and value != 0, "a whole number of milliseconds above 0"),
    "max-length": (_number, "a whole number of messages"),
    "max-length-bytes": (_number, "a whole number of bytes"),
    "delivery-limit": (_number, "a whole number of deliveries"),
    "dead-letter-exchange": (_text, "the name of an exchange"),
    "dead-letter-routing-key": (_text, "a routing key"),
    "overflow": (lambda value: value in OVERFLOWS, f"one of {', '.join(OVERFLOWS)}"),
    "alternate-exchange": (_text, "the name of an exchange"),
}
# About clusters, memory and other brokers: stored and shown, without effect.
_IGNORED = frozenset(
    (
        *("ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown"),
        *("ha-promote-on-failure", "queue-mode", "queue-version", "queue-master-locator"),
        *("queue-leader-locator", "dead-letter-strategy", "max-in-memory-length", "max-in-memory-bytes"),
        *("federation-upstream", "federation-upstream-set", "federation-upstream-pattern"),
        *("max-age", "stream-max-segment-size-bytes", "initial-cluster-size", "consumer-timeout"),
        *("target-group-size", "message-interceptors", "shards-per-node", "routing-key"),
    )
)


@dataclass(frozen=True, slots=True)
class Policy:
    vhost: str
    name: str
    pattern: str
    definition: Mapping[str, Any] = field(hash=False)
    apply_to: str = "all"
    priority: int = 0
    # Loaded from the store: an unusable pattern must not prevent the start.
    is_stored: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        where = f"policy {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise InvalidAmqpPolicy("a policy needs a name")
        if not isinstance(self.pattern, str):
            raise InvalidAmqpPolicy(f"{where}: the pattern must be text")
        if not self.is_stored:
            try:
                compile_pattern(self.pattern)
            except UnsupportedPattern as error:
                text = f"{where}: the pattern {self.pattern[:100]!r} cannot be used: {error}"
                raise InvalidAmqpPolicy(text) from None
        if self.apply_to not in APPLY_TO:
            raise InvalidAmqpPolicy(
                f"{where}: apply-to must be one of {', '.join(APPLY_TO)}, not {self.apply_to!r}"
            )
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise InvalidAmqpPolicy(f"{where}: the priority must be a whole number, not {self.priority!r}")
        if not isinstance(self.definition, Mapping) or not self.definition:
            raise InvalidAmqpPolicy(f"{where}: the definition must be an object with at least one setting")
        for key, value in self.definition.items():
            if key in _IGNORED:
                continue
            if key not in _SETTINGS:
                raise InvalidAmqpPolicy(f"{where}: unknown setting {key!r}")
            fits, wanted = _SETTINGS[key]
            if not fits(value):
                raise InvalidAmqpPolicy(f"{where}: {key} must be {wanted}, not {value!r}")

    def applies(self, kind: str, name: str) -> bool:
        """`kind` is classic, quorum or exchange."""
        targets = ("all", "exchanges") if kind == "exchange" else ("all", "queues", f"{kind}_queues")
        return self.apply_to in targets and _matches(self.pattern, name)

    def to_json(self) -> dict[str, Any]:
        """As RabbitMQ writes it."""
        return {
            "vhost": self.vhost,
            "name": self.name,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }

    @classmethod
    def from_json(
        cls, source: object, *, vhost: str | None = None, name: str | None = None, is_stored: bool = False
    ) -> Policy:
        if not isinstance(source, Mapping):
            raise InvalidAmqpPolicy("a policy must be an object")
        unknown = [
            key
            for key in source
            if key not in ("vhost", "name", "pattern", "apply-to", "definition", "priority")
        ]
        if unknown:
            raise InvalidAmqpPolicy(f"unknown policy field {unknown[0]!r}")
        for key in ("pattern", "definition"):
            if key not in source:
                raise InvalidAmqpPolicy(f"a policy needs {key!r}")
        vhost = source.get("vhost", "/") if vhost is None else vhost
        if not isinstance(vhost, str):
            raise InvalidAmqpPolicy("the vhost of a policy must be text")
        return cls(
            vhost,
            source.get("name", "") if name is None else name,
            source["pattern"],
            source["definition"],
            source.get("apply-to") or "all",
            source.get("priority", 0),
            is_stored,
        )


def _matches(pattern: str, name: str) -> bool:
    try:
        return compile_pattern(pattern).finds(name)
    except UnsupportedPattern:
        return False  # logged when it was loaded


def _parsed(data: bytes) -> dict[tuple[str, str], Policy]:
    source = json.loads(data)
    if not isinstance(source, list):
        raise InvalidAmqpPolicy("not a list")
    found = [Policy.from_json(each, is_stored=True) for each in source]
    for policy in found:
        try:
            compile_pattern(policy.pattern)
        except UnsupportedPattern as error:
            log.warning(
                "policy %r of vhost %r applies to nothing: the pattern %.100r cannot be used: %s",
                *(policy.name, policy.vhost, policy.pattern, error),
            )
    return {(each.vhost, each.name): each for each in found}


class Policies:
    """All policies. Changed on the loop; `save` may run in a thread."""

    def __init__(self, directory: str | None = None, documents: DocumentBroker | None = None) -> None:
        self._path = None if directory is None else os.path.join(directory, FILE)
        self._documents = documents
        self._version = 0
        self._changed: dict[tuple[str, str], Policy | None] = {}  # changes that are not in the document yet
        self._writing = threading.Lock()
        self._all: dict[tuple[str, str], Policy] = {}
        if self._path is not None and os.path.exists(self._path):
            self._load(self._path)
        self.refresh()

    def _load(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                self._all = _parsed(file.read())
        except (OSError, ValueError) as error:
            # Our own errors are ValueErrors too. Starting without policies would change how queues behave.
            raise InvalidAmqpPolicy(f"cannot read the policies in {path}: {error}") from error

    def refresh(self) -> None:
        """Load changes of other servers. May run in a thread."""
        if self._documents is None:
            return
        with self._writing:
            version, data = self._documents.document(DOCUMENT)
            if version != self._version and data is not None:
                self._adopt(version, data)

    def _adopt(self, version: int, data: bytes | None) -> None:
        found = {} if data is None else _parsed(data)
        changed = dict(self._changed)
        self._all = {key: each for key, each in (found | changed).items() if each is not None}
        self._version = version

    def _write_document(self, documents: DocumentBroker) -> None:
        """Write the changes into the document; retry if another server changed it meanwhile."""
        while changed := dict(self._changed):
            text = json.dumps([each.to_json() for each in self.all()], ensure_ascii=False)
            if version := documents.put_document(DOCUMENT, self._version, text.encode()):
                self._version = version
                for key, policy in changed.items():
                    if self._changed.get(key, self) is policy:
                        del self._changed[key]
                return
            self._adopt(*documents.document(DOCUMENT))

    def save(self) -> None:
        """Store all policies atomically."""
        if self._documents is not None:
            with self._writing:
                self._write_document(self._documents)
        if self._path is None:
            return
        with self._writing:
            text = json.dumps([each.to_json() for each in self.all()], indent=1, ensure_ascii=False)
            with map_write_errors():
                write_secret_file(self._path, text + "\n")
                directory = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(directory)
                finally:
                    os.close(directory)

    def set(self, policy: Policy) -> bool:
        """Returns whether anything changed."""
        key = (policy.vhost, policy.name)
        if self._all.get(key) == policy:
            return False
        self._all = {**self._all, key: policy}
        if self._documents is not None:
            self._changed[key] = policy
        return True

    def clear(self, vhost: str, name: str) -> bool:
        if (vhost, name) not in self._all:
            return False
        self._all = {key: each for key, each in self._all.items() if key != (vhost, name)}
        if self._documents is not None:
            self._changed[vhost, name] = None
        return True

    def get(self, vhost: str, name: str) -> Policy | None:
        return self._all.get((vhost, name))

    def all(self, vhost: str | None = None) -> list[Policy]:
        return [each for each in self._all.values() if vhost in (None, each.vhost)]

    def matching(self, vhost: str, kind: str, name: str) -> Policy | None:
        """Of the policies that match, the one with the highest priority."""
        return _highest(each for each in self.all(vhost) if each.applies(kind, name))


def _highest(matching: Iterable[Policy]) -> Policy | None:
    # RabbitMQ does not define which of two equal priorities wins; here it is the first name.
    return min(matching, key=lambda each: (-each.priority, each.name), default=None)
