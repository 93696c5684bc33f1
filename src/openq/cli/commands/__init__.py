"""Every command of `openq`, as data: the index. The modules beside it are loaded when a command is named."""

from __future__ import annotations

from importlib import import_module

from ..spec import Command

# Groups as the help shows them: each command, the module that describes it, and its line in the help.
GROUPS = (
    (
        "server",
        (
            ("serve", "serve", "run the server"),
            ("demo", "server", "fill a running server with example queues, messages and failures"),
            ("healthcheck", "server", "check whether a server is ready; for containers"),
            ("doctor", "server", "check this machine: disk, limits, clock, port, packages, server"),
            ("config", "serve", "show, write or check the configuration"),
            ("connections", "connections", "list, show or close the connections of all protocols"),
            ("server", "connections", "list the servers that share a store"),
            ("migrate", "server", "copy everything from a data directory to Redis, or back"),
            ("backup", "backup", "back up a server or a data directory; list, verify or prune backups"),
            ("restore", "backup", "restore a backup into a data directory"),
        ),
    ),
    (
        "queues and messages",
        (
            ("queue", "queues", "list, create, change, pause, purge or delete queues"),
            ("schedule", "schedules", "publish messages by cron expression or at an interval"),
            ("webhook", "webhooks", "send messages or events of queues to a URL"),
            ("exchange", "exchanges", "list exchanges; bind queues to them, also to the exchange for events"),
            ("send", "messages", "publish messages"),
            ("recv", "messages", "receive messages, and optionally acknowledge them"),
            ("ack", "messages", "acknowledge messages by receipt"),
            ("nack", "messages", "return messages to their queue by receipt"),
            ("peek", "messages", "show waiting messages without receiving them"),
            ("tail", "messages", "show messages as they are published; consumes nothing"),
            ("events", "messages", "show what happens to queues, messages and consumers"),
            ("search", "messages", "find messages by text, type, attribute or JSON value"),
            ("message", "messages", "move, delay, edit or cancel messages that wait"),
            ("why", "messages", "explain why a message is not delivered"),
            ("timeline", "messages", "show the history of a message"),
            ("kv", "kv", "list, read, store or delete values under keys"),
        ),
    ),
    (
        "workers",
        (
            ("worker", "worker", "run tasks; list, quiet or stop workers"),
            ("top", "worker", "show alerts, queues, rates, consumers, workers and running jobs, live"),
            ("series", "worker", "show counts of a queue over time"),
            ("alert", "alerts", "list, explain, test or silence alerts; change their rules"),
        ),
    ),
    (
        "failures and recovery",
        (
            ("dlq", "recovery", "list, group, redrive, discard or export dead letters"),
            ("replay", "recovery", "publish past messages again"),
            ("task", "recovery", "list, watch or cancel long operations of the server"),
            ("damage", "recovery", "list damaged messages and records, or clear the list"),
            ("journal", "recovery", "check, repair or dump the journal in a data directory"),
        ),
    ),
    (
        "data pipelines on Spark",
        (("pipeline", "pipeline", "archive, analyse, triage, replay, and run your own pipelines"),),
    ),
    (
        "users and permissions",
        (
            ("user", "users", "add, list or remove users, set passwords"),
            ("key", "users", "create, list or revoke access keys (for SQS clients)"),
            ("token", "users", "create, list or revoke bearer tokens (for REST and this command)"),
            ("perm", "users", "grant, revoke or test permissions"),
            ("audit", "audit", "list, export or verify the audit log: who changed what"),
        ),
    ),
    (
        "other brokers",
        (
            ("import", "definitions", "import queues, exchanges, users and policies from RabbitMQ"),
            ("export", "definitions", "export them as RabbitMQ definitions"),
        ),
    ),
    (
        "other commands",
        (
            ("sample", "basics", "run a small producer and consumer in this process"),
            ("completion", "basics", "print the completion script for a shell"),
            ("version", "basics", "print the version"),
        ),
    ),
)
INDEX = {name: (module, help) for _, rows in GROUPS for name, module, help in rows}

ROOT = Command(
    help="OpenQ, the message queue you pip install",
    examples=(
        ("openq serve", "a durable server on http://127.0.0.1:9324"),
        ("openq send orders 'hello'", "publish a message"),
        ("openq recv orders --ack", "receive it, and acknowledge it"),
        ("openq queue ls", "every queue with its message counts"),
        ("openq COMMAND --help", "examples and options of a command"),
    ),
)


def load(name: str) -> Command:
    """The description of one command, its group's module loaded for it."""
    module, help = INDEX[name]
    command: Command = import_module(f"{__name__}.{module}").COMMANDS[name]
    command.help = help
    return command


def load_all() -> Command:
    """`openq` with everything below it: for completion, docs/CLI.md and tests."""
    return Command(help=ROOT.help, examples=ROOT.examples, commands={name: load(name) for name in INDEX})
