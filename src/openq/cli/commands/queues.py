"""`openq queue`."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from ..spec import Command, Option
from ..values import (
    count,
    delivery_rate,
    key_limits,
    or_none,
    positive,
    seconds,
    seconds_or_forever,
    size,
)
from .options import CONFIRM, JSON, JSON_LINES, READ, SERVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...settings import Setting

_QUEUE = Option("queue", metavar="QUEUE", help="name of the queue")


def _settings() -> tuple[Option, ...]:
    """A flag for each setting of a queue. Loaded late: the help of the group does not need them."""
    from ...settings import SETTINGS

    shown = [setting for setting in SETTINGS if setting.in_cli]
    return tuple(_flag(setting) for setting in sorted(shown, key=lambda each: each.kind == "flag"))


def _flag(setting: Setting) -> Option:
    name = f"--{setting.name.replace('_', '-')}"
    if setting.kind == "flag":
        return Option(name, group="settings", action=BooleanOptionalAction, default=None, help=setting.help)
    arguments: dict[str, Any] = {"metavar": "KIND"}
    if setting.kind == "duration":
        arguments = {"metavar": "TIME", "type": seconds_or_forever if setting.is_endless else seconds}
    elif setting.kind == "count":
        reader = positive if setting.minimum else count
        arguments = {"metavar": "N", "type": or_none(reader) if setting.is_optional else reader}
    elif setting.kind == "bytes":
        arguments = {"metavar": "SIZE", "type": or_none(size) if setting.is_optional else size}
    elif setting.kind == "rate":
        arguments = {"metavar": "RATE", "type": or_none(delivery_rate)}
    elif setting.kind == "key_limits":
        arguments = {"metavar": "KEY=LIMITS", "type": key_limits, "action": "append"}
    elif setting.kind == "queue":
        arguments = {"metavar": "QUEUE"}
    if setting.choices:
        arguments["choices"] = setting.choices
    return Option(name, group="settings", help=setting.help, **arguments)


COMMANDS = {
    "queue": Command(
        examples=(
            ("openq queue ls", "every queue with its message counts"),
            ("openq queue create orders --dlq orders-dead", "with a dead-letter queue, after 3 deliveries"),
            ("openq queue show orders", "settings and counters"),
            ("openq queue pause orders", "deliver nothing until `openq queue resume orders`"),
        ),
        commands={
            "ls": Command(
                help="list queues with their message counts",
                run="queues:ls",
                examples=(
                    ("openq queue ls", "all"),
                    ("openq queue ls orders", "names that begin with orders"),
                    ("openq queue ls --json", "one JSON object per line, with settings and counters"),
                    ("openq queue ls --data ./openq-data", "of a data directory that no process uses"),
                ),
                options=(
                    Option("prefix", nargs="?", metavar="PREFIX", default="", help="beginning of the names"),
                    JSON_LINES,
                    *READ,
                ),
            ),
            "create": Command(
                help="create a queue",
                run="queues:create",
                examples=(
                    ("openq queue create orders", "with the defaults"),
                    ("openq queue create orders --dlq orders-dead --max-receives 5", "creates the dlq too"),
                    ("openq queue create payments --fifo --dedup-by-content", "strict order, no duplicates"),
                    ("openq queue create orders --if-absent", "succeeds if it exists, whatever its settings"),
                ),
                details="Succeeds if the queue exists with the same settings; fails if they differ.",
                options=lambda: (
                    Option("--if-absent", action="store_true", help="do not change an existing queue"),
                    *_settings(),
                    _QUEUE,
                    JSON,
                    *SERVER,
                ),
            ),
            "show": Command(
                help="show settings and counters of a queue",
                run="queues:show",
                examples=(
                    ("openq queue show orders", "as text"),
                    ("openq queue show orders --json", "for programs"),
                ),
                options=(_QUEUE, JSON, *READ),
            ),
            "edit": Command(
                help="change settings of a queue",
                run="queues:edit",
                examples=(
                    ("openq queue edit orders --visibility-timeout 2m", "other settings are not changed"),
                    ("openq queue edit orders --dlq orders-dead --max-receives 5", "dead-letter from now on"),
                    ("openq queue edit orders --no-dlq", "stop dead-lettering"),
                ),
                options=lambda: (
                    *_settings(),
                    Option(
                        "--no-dlq", action="store_true", help="no dead-letter queue and no limit of receives"
                    ),
                    _QUEUE,
                    JSON,
                    *SERVER,
                ),
            ),
            "rm": Command(
                help="delete a queue and all its messages",
                run="queues:rm",
                examples=(
                    ("openq queue rm orders", "asks first, with the number of messages"),
                    ("openq queue rm orders --if-empty --yes", "only if it holds no messages"),
                    ("openq queue rm orders --dry-run", "show how many messages would be deleted"),
                ),
                options=(
                    Option("--if-empty", action="store_true", help="fail if the queue holds messages"),
                    *CONFIRM,
                    _QUEUE,
                    JSON,
                    *SERVER,
                ),
            ),
            "purge": Command(
                help="delete all messages of a queue; the queue stays",
                run="queues:purge",
                examples=(
                    ("openq queue purge orders", "asks first, with the number of messages"),
                    ("openq queue purge orders --yes", "for scripts"),
                ),
                details="Messages in flight are deleted too.",
                options=(*CONFIRM, _QUEUE, JSON, *SERVER),
            ),
            "pause": Command(
                help="deliver nothing until the queue is resumed",
                run="queues:pause",
                examples=(
                    ("openq queue pause orders", "publishing and messages in flight are not affected"),
                ),
                options=(_QUEUE, JSON, *SERVER),
            ),
            "resume": Command(
                help="deliver messages again",
                run="queues:resume",
                examples=(("openq queue resume orders", "the opposite of `openq queue pause orders`"),),
                options=(_QUEUE, JSON, *SERVER),
            ),
        },
    ),
}
