"""Exchanges in AMQP's terms: kinds, predeclared names, and arguments that OpenQ adds."""

from __future__ import annotations

from typing import Any

from ..engine.routing import EVENTS_EXCHANGE, Exchange, Kind
from ..names import split_name
from .arguments import as_text, type_of
from .errors import PRECONDITION_FAILED, AmqpError

KINDS = ("direct", "fanout", "topic", "headers")
DELAYED = "x-delayed-message"
# Internal arguments of an exchange, which clients do not see.
DELAYED_ARGUMENT = "openq.kind"
POLICY_ARGUMENT = "openq.policy"
HOME_ARGUMENT = "openq.home"
_INTERNAL_ARGUMENTS = (DELAYED_ARGUMENT, POLICY_ARGUMENT, HOME_ARGUMENT)
PREDECLARED_NAMES: tuple[tuple[str, Kind], ...] = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)
_PREDECLARED = frozenset(("", EVENTS_EXCHANGE, *(name for name, _ in PREDECLARED_NAMES)))
_MATCHES = ("all", "any", "all-with-x", "any-with-x")


def is_built_in(name: str) -> bool:
    """Whether every vhost has an exchange of this name."""
    return name in _PREDECLARED


def kind_of(exchange: Exchange) -> str:
    return DELAYED if DELAYED_ARGUMENT in exchange.arguments else exchange.kind


def arguments_of(exchange: Exchange) -> dict[str, Any]:
    """The arguments as they were declared, or what another protocol set, in AMQP's terms."""
    found = {name: value for name, value in exchange.arguments.items() if name not in _INTERNAL_ARGUMENTS}
    if exchange.alternate is not None and POLICY_ARGUMENT not in exchange.arguments:
        found.setdefault("alternate-exchange", split_name(exchange.alternate)[1])
    return found


def policy_of(exchange: Exchange) -> str | None:
    mark = exchange.arguments.get(POLICY_ARGUMENT)
    return None if mark is None else str(mark)


def check_match(how: object) -> None:
    if not isinstance(how, str):
        raise AmqpError(
            PRECONDITION_FAILED,
            f"Invalid x-match field type {type_of(how)} (value {as_text(how)}); expected longstr",
        )
    if how not in _MATCHES:
        raise AmqpError(
            PRECONDITION_FAILED,
            f'Invalid x-match field value <<"{how}">>; expected all, any, all-with-x, or any-with-x',
        )
