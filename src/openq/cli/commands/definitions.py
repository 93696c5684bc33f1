"""`openq import` and `openq export`."""

from __future__ import annotations

from ..spec import Command, Option
from .options import JSON, SERVER

_DATA = Option(
    "--data",
    group="server",
    metavar="DIR",
    help="use a data directory that no process uses, without a server",
)

COMMANDS = {
    "import": Command(
        examples=(
            (
                "openq import rabbitmq-definitions broker.json",
                "the output of `rabbitmqctl export_definitions broker.json`",
            ),
        ),
        commands={
            "rabbitmq-definitions": Command(
                help="create the vhosts, users, exchanges, queues, bindings and policies of a RabbitMQ",
                run="definitions:import_definitions",
                examples=(
                    (
                        "openq import rabbitmq-definitions broker.json",
                        "into the running server; reports what could not be imported",
                    ),
                    ("openq import rabbitmq-definitions broker.json --data ./openq-data", "without a server"),
                    (
                        "openq import rabbitmq-definitions broker.json --strict",
                        "exit code 1 if anything was skipped",
                    ),
                ),
                details=(
                    "FILE is the output of `rabbitmqctl export_definitions`, or of RabbitMQ's "
                    "/api/definitions. Importing it again changes nothing. It holds no messages. Users keep "
                    "their passwords. Users are skipped, and the server stays open, if they would be its "
                    "first users and none of them is an administrator with a password."
                ),
                options=(
                    Option("file", metavar="FILE", help="definitions as JSON; - for stdin"),
                    Option("--strict", action="store_true", help="exit code 1 if anything was skipped"),
                    JSON,
                    _DATA,
                    *SERVER,
                ),
            ),
        },
    ),
    "export": Command(
        examples=(
            (
                "openq export rabbitmq-definitions > broker.json",
                "for `rabbitmqctl import_definitions broker.json`",
            ),
        ),
        commands={
            "rabbitmq-definitions": Command(
                help="print vhosts, users, exchanges, queues, bindings and policies as RabbitMQ definitions",
                run="definitions:export_definitions",
                examples=(
                    ("openq export rabbitmq-definitions > broker.json", "of the running server"),
                    ("openq export rabbitmq-definitions --vhost shop", "of one vhost"),
                    ("openq export rabbitmq-definitions --data ./openq-data", "without a server"),
                ),
                details="Passwords and messages are not exported.",
                options=(
                    Option("--vhost", metavar="NAME", help="only this vhost; / is the default account"),
                    JSON,
                    _DATA,
                    *SERVER,
                ),
            ),
        },
    ),
}
