"""Arguments of declarations: validation, equivalence, and the queue settings they become.

Error texts are RabbitMQ's, Erlang terms included: clients show them, and some parse them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from ..amqp_fields import Timestamp, encode_table, from_json, to_json
from ..errors import OpenQError
from ..model import MAX_SPAN_MS, QueueSettings
from ..names import DEFAULT_ACCOUNT, qualified_name, split_name
from .errors import NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError, from_openq

# Keys in `QueueSettings.notes` of queues that were declared through AMQP.
DURABLE = "amqp.durable"
AUTO_DELETE = "amqp.auto_delete"
EXCLUSIVE = "amqp.exclusive"
HOME_SERVER = "amqp.home"  # the server whose death deletes it, where servers share a store
OWNER = "amqp.owner"  # the connection that may use it
ARGUMENTS = "amqp.arguments"
POLICY = "amqp.policy"
POLICY_DEFINITION = "amqp.policy.definition"

_MAX_TIMER_MS = 10 * 365 * 86_400_000  # milliseconds; RabbitMQ refuses more than ten years

MAX_ARGUMENTS = 16 * 1024  # bytes, encoded
_LINE_ENDS = str.maketrans("", "", "\r\n")

Arguments = Mapping[str, Any]


def vhost_of(account: str) -> str:
    return "/" if account == DEFAULT_ACCOUNT else account


def account_of(vhost: str) -> str:
    return DEFAULT_ACCOUNT if vhost == "/" else vhost


def describe(kind: str, name: str, vhost: str) -> str:
    """As RabbitMQ's error texts name an object."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def plain_value(value: Any) -> Any:
    """Values that the engine can store and compare, as it sees them in message headers."""
    if isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {name: plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    return value


def encoded_arguments(arguments: Arguments) -> bytes:
    """Raises AmqpError if they are too long: they are repeated at the start of every journal segment."""
    try:
        encoded = encode_table(arguments)
    except OpenQError as error:
        raise from_openq(error) from error
    size = len(encoded)
    if size > MAX_ARGUMENTS:
        raise AmqpError(PRECONDITION_FAILED, f"arguments of {size} bytes; the maximum is {MAX_ARGUMENTS}")
    return encoded


def strip_line_ends(name: str) -> str:
    """RabbitMQ removes line ends from declared names. Permissions are checked on the result."""
    return name.translate(_LINE_ENDS)


# -- one value ------------------------------------------------------------------------------------


def type_of(value: object) -> str:
    """The name of a value's AMQP type. The width of a number is not kept when it is decoded."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    for kind, name in _TYPES:
        if isinstance(value, kind):
            return name
    return "void"


_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "longstr"),
    (bytes, "binary"),
    (float, "double"),
    (Decimal, "decimal"),
    ((list, tuple), "array"),
    (Mapping, "table"),
)


def as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: object) -> str | None:
    if not _is_number(value):
        return f'"expected integer, got {type_of(value)}"'
    return f"{{value_negative,{value}}}" if value < 0 else None  # type: ignore[operator]


def _ttl(value: Any) -> str | None:
    return _whole(value) or (f"{{value_too_large,{value}}}" if value > _MAX_TIMER_MS else None)


def _expires(value: Any) -> str | None:
    wrong = _whole(value)
    if wrong is None and value == 0:
        return "{value_zero,0}"
    return wrong or _ttl(value)


def _max_priority(value: Any) -> str | None:
    return _whole(value) or (f"{{max_value_exceeded,{value}}}" if value > 255 else None)


def _version(value: Any) -> str | None:
    return _whole(value) or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


def _group_size(value: Any) -> str | None:
    return _whole(value) or ("{value_zero,0}" if value == 0 else None)


def _text(value: Any) -> str | None:
    return None if isinstance(value, str | bytes) else f"{{unacceptable_type,{type_of(value)}}}"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_of(value)}}}"


def _one_of(values: Iterable[str], otherwise: str) -> Callable[[Any], str | None]:
    allowed = frozenset(values)

    def check(value: Any) -> str | None:
        return _text(value) or (None if value in allowed else otherwise.format(as_text(value)))

    return check


OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")

_QUEUE_TYPE = _one_of(("classic", "quorum", "stream"), "\"unsupported queue type '{}'\"")

# Validators, in the order in which RabbitMQ checks and compares arguments.
_COMMON: dict[str, Callable[[Any], str | None]] = {
    "x-expires": _expires,
    "x-message-ttl": _ttl,
    "x-dead-letter-exchange": lambda value: None,  # has an error text of its own
    "x-dead-letter-routing-key": _text,
    "x-max-length": _whole,
    "x-max-length-bytes": _whole,
}
_CLASSIC: dict[str, Callable[[Any], str | None]] = {
    **_COMMON,
    "x-max-priority": _max_priority,
    "x-overflow": _one_of(OVERFLOWS, "invalid_overflow"),
    "x-queue-mode": _one_of(("default", "lazy"), "\"unsupported queue mode '{}'\""),
    "x-queue-version": _version,
    "x-single-active-consumer": _flag,
    "x-queue-type": _QUEUE_TYPE,
    "x-queue-master-locator": lambda value: None,  # about clusters: ignored
}
_QUORUM: dict[str, Callable[[Any], str | None]] = {
    **_COMMON,
    "x-dead-letter-strategy": _one_of(("at-most-once", "at-least-once"), "invalid_dlx_strategy"),
    "x-max-in-memory-length": _whole,
    "x-max-in-memory-bytes": _whole,
    "x-overflow": _one_of(OVERFLOWS, "invalid_overflow"),
    "x-single-active-consumer": _flag,
    "x-queue-type": _QUEUE_TYPE,
    "x-quorum-initial-group-size": _group_size,
    "x-delivery-limit": lambda value: None,  # RabbitMQ accepts anything
    "x-queue-leader-locator": lambda value: None,
}
_STREAM = (
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
    "x-stream-filter-size-bytes",
)
_ALL_QUEUE_ARGUMENTS = (*_CLASSIC, *_QUORUM, *_STREAM)


# -- a queue's arguments --------------------------------------------------------------------------


def queue_type(arguments: Arguments) -> str:
    return str(arguments.get("x-queue-type", "classic"))


def check_queue(
    name: str, vhost: str, arguments: Arguments, *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Raise what RabbitMQ would raise. Unknown arguments are stored and ignored."""
    what = describe("queue", name, vhost)
    if "x-queue-type" in arguments and (wrong := _QUEUE_TYPE(arguments["x-queue-type"])):
        raise _invalid("x-queue-type", what, wrong)
    kind = queue_type(arguments)
    if kind == "stream":
        raise AmqpError(
            NOT_IMPLEMENTED,
            f"{what} cannot be a stream: declare it as classic or quorum; "
            "OpenQ's replay reads the history of any queue",
            ends_connection=False,  # the other channels stay open
        )
    checks = _QUORUM if kind == "quorum" else _CLASSIC
    for argument, check in checks.items():
        if argument in arguments:
            value = arguments[argument]
            if argument == "x-dead-letter-exchange" and _text(value):
                raise AmqpError(
                    PRECONDITION_FAILED, f"invalid type '{type_of(value)}' for arg '{argument}' in {what}"
                )
            if wrong := check(value):
                raise _invalid(argument, what, wrong)
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise _invalid("x-dead-letter-routing-key", what, "routing_key_but_no_dlx_defined")
    for argument in _ALL_QUEUE_ARGUMENTS:
        if argument in arguments and argument not in checks:
            raise AmqpError(
                PRECONDITION_FAILED, f"invalid arg '{argument}' for {what} of queue type rabbit_{kind}_queue"
            )
    if kind == "quorum":
        for is_so, property in (
            (not durable, "non-durable"),
            (exclusive, "exclusive-owner"),
            (auto_delete, "auto-delete"),
        ):
            if is_so:
                raise AmqpError(PRECONDITION_FAILED, f"invalid property '{property}' for {what}")


def _invalid(argument: str, what: str, why: str) -> AmqpError:
    return AmqpError(PRECONDITION_FAILED, f"invalid arg '{argument}' for {what}: {why}")


# -- equivalence ------------------------------------------------------------------------------

_ABSENT = object()


def require_same(argument: str, what: str, given: object, current: object) -> None:
    """Compare a property that every declaration has."""
    if given != current:
        raise AmqpError(
            PRECONDITION_FAILED,
            f"inequivalent arg '{argument}' for {what}: "
            f"received '{as_text(given)}' but current is '{as_text(current)}'",
        )


def require_same_arguments(names: Iterable[str], what: str, given: Arguments, current: Arguments) -> None:
    for name in names:
        new, old = given.get(name, _ABSENT), current.get(name, _ABSENT)
        if _same(new, old) or (name == "x-queue-type" and queue_type(given) == queue_type(current)):
            continue
        if new is _ABSENT or old is _ABSENT:
            texts = [
                "none" if value is _ABSENT else f"the value '{as_text(value)}' of type '{type_of(value)}'"
                for value in (new, old)
            ]
        else:
            texts = [f"'{as_text(value)}'" for value in (new, old)]
        raise AmqpError(
            PRECONDITION_FAILED,
            f"inequivalent arg '{name}' for {what}: received {texts[0]} but current is {texts[1]}",
        )


def _same(one: object, other: object) -> bool:
    """Numbers of any width are equal, but 1 equals neither true nor "1"."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def require_same_queue(
    name: str,
    vhost: str,
    queue: QueueDeclaration,
    settings: QueueSettings,
    *,
    durable: bool,
    auto_delete: bool,
    arguments: Arguments,
) -> None:
    what = describe("queue", name, vhost)
    if queue.is_from_other_protocol:
        # Created by another protocol: compare only what is given.
        require_same("auto_delete", what, auto_delete, False)
        names = [
            each
            for each in _CLASSIC
            if each in arguments
            and each not in ("x-queue-type", "x-queue-mode", "x-queue-version", "x-queue-master-locator")
            and not (each == "x-max-priority" and settings.max_priority is None)
        ]
        require_same_arguments(names, what, arguments, queue.arguments)
        return
    require_same("durable", what, durable, queue.durable)
    require_same("auto_delete", what, auto_delete, queue.auto_delete)
    checks = _QUORUM if queue_type(queue.arguments) == "quorum" else _CLASSIC
    require_same_arguments(checks, what, arguments, queue.arguments)


# -- stored declarations -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue as it was declared. `is_from_other_protocol`: created by SQS, REST or the library."""

    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Arguments
    policy: str | None = None
    definition: Arguments | None = None  # of the policy, as it was applied
    is_from_other_protocol: bool = False
    home: str | None = None  # the server whose death deletes it
    owner: str | None = None  # the connection that may use it

    def notes(self) -> dict[str, str]:
        notes = {
            DURABLE: as_text(self.durable),
            AUTO_DELETE: as_text(self.auto_delete),
            EXCLUSIVE: as_text(self.exclusive),
            ARGUMENTS: _dump_arguments(self.arguments),
        }
        if self.policy is not None:
            notes[POLICY] = self.policy
            notes[POLICY_DEFINITION] = _dump_arguments(self.definition or {})
        if self.home is not None:
            notes[HOME_SERVER] = self.home
        if self.owner is not None:
            notes[OWNER] = self.owner
        return notes


def _dump_arguments(arguments: Arguments) -> str:
    return json.dumps(to_json(arguments), ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=4096)
def _load_arguments(text: str) -> Arguments:
    loaded = from_json(json.loads(text))
    return loaded if isinstance(loaded, dict) else {}


def declaration_of(settings: QueueSettings) -> QueueDeclaration:
    notes = settings.notes
    if ARGUMENTS not in notes:
        return QueueDeclaration(True, False, False, _as_arguments(settings), is_from_other_protocol=True)
    definition = notes.get(POLICY_DEFINITION)
    return QueueDeclaration(
        durable=notes.get(DURABLE) != "false",
        auto_delete=notes.get(AUTO_DELETE) == "true",
        exclusive=notes.get(EXCLUSIVE) == "true",
        arguments=_load_arguments(notes[ARGUMENTS]),
        policy=notes.get(POLICY),
        definition=None if definition is None else _load_arguments(definition),
        home=notes.get(HOME_SERVER),
        owner=notes.get(OWNER),
    )


def _as_arguments(settings: QueueSettings) -> Arguments:
    """Settings that another protocol made, as AMQP arguments."""
    found: dict[str, Any] = {}
    if settings.ttl_ms is not None:
        found["x-message-ttl"] = settings.ttl_ms
    if settings.dead_letter_exchange is not None:
        found["x-dead-letter-exchange"] = split_name(settings.dead_letter_exchange)[1]
        if settings.dead_letter_key is not None:
            found["x-dead-letter-routing-key"] = settings.dead_letter_key
    elif settings.dead_letter is not None:
        found["x-dead-letter-exchange"] = ""
        found["x-dead-letter-routing-key"] = split_name(settings.dead_letter)[1]
    if settings.max_length is not None:
        found["x-max-length"] = settings.max_length
    if settings.max_bytes is not None:
        found["x-max-length-bytes"] = settings.max_bytes
    if settings.max_priority is not None:
        found["x-max-priority"] = settings.max_priority
    if settings.overflow == "reject":
        found["x-overflow"] = "reject-publish"
    elif settings.overflow == "reject-dead-letter":
        found["x-overflow"] = "reject-publish-dlx"
    return found


# -- queue settings ------------------------------------------------------------------


def settings_of(account: str, declared: QueueDeclaration) -> QueueSettings:
    """The settings that a declaration and its policy mean."""
    arguments = declared.arguments
    policy = declared.definition or {}
    exchange = _first_text(arguments, policy, "dead-letter-exchange")
    key = _first_text(arguments, policy, "dead-letter-routing-key")
    limit = _minimum(arguments, policy, "delivery-limit") if queue_type(arguments) == "quorum" else None
    overflow = _first_text(arguments, policy, "overflow")
    priority = arguments.get("x-max-priority")
    return QueueSettings(
        retention_ms=MAX_SPAN_MS,
        ttl_ms=_minimum(arguments, policy, "message-ttl"),
        max_receives=None if limit is None else limit + 1,  # the limit counts redeliveries only
        exhausted="drop",
        dead_letter_exchange=None if exchange is None else qualified_name(account, exchange),
        dead_letter_key=key,
        dead_letter_expired=True,
        max_length=_minimum(arguments, policy, "max-length"),
        max_bytes=_minimum(arguments, policy, "max-length-bytes"),
        max_priority=priority if _is_number(priority) else 0,
        overflow={"reject-publish": "reject", "reject-publish-dlx": "reject-dead-letter"}.get(
            overflow or "", "drop-head" if exchange is None else "dead-letter"
        ),
        notes=declared.notes(),
    )


def expires_ms(declared: QueueDeclaration) -> int | None:
    """How long a queue may be unused before it is deleted."""
    return _minimum(declared.arguments, declared.definition or {}, "expires")


def _first_text(arguments: Arguments, policy: Arguments, name: str) -> str | None:
    """The argument has precedence over the policy."""
    for value in (arguments.get("x-" + name), policy.get(name)):
        if isinstance(value, str | bytes):
            return as_text(value)
    return None


def _minimum(arguments: Arguments, policy: Arguments, name: str) -> int | None:
    values = [
        min(int(value), MAX_SPAN_MS)
        for value in (arguments.get("x-" + name), policy.get(name))
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    ]
    return min(values) if values else None
