"""The command `openq`: reads the command line and calls the one function that it names.

Nothing of OpenQ is imported before that function runs, and of the parsers only the one that the first
word asks for: `openq --help` must appear at once.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from importlib import import_module

from .parser import CommandGroup, Parser
from .terminal import DENIED, EMPTY, FAILED, INTERRUPTED, NOT_FOUND, OK, USAGE, say, styled

TYPE_CHECKING = False  # not from `typing`, which takes longer to load than all of this
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

    Tree = dict[str, "Tree"]

# Every command, the module whose function `add` makes its parser, and its line in the help.
GROUPS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "server",
        (
            ("serve", "serve", "run the server"),
            ("demo", "demo", "fill a running server with queues, workers and failures to look at"),
            ("healthcheck", "doctor", "ask a server whether it is well; for containers"),
            ("doctor", "doctor", "check this machine: disk, limits, clock, port, extras, server"),
            ("config", "config", "show, write or check the configuration"),
            ("migrate", "migrate", "move everything from a data directory into Redis, or back"),
        ),
    ),
    (
        "queues and messages",
        (
            ("queue", "queues", "list, create, change, pause, empty or remove queues"),
            ("send", "messages", "publish messages"),
            ("recv", "messages", "receive messages, and acknowledge them if asked to"),
            ("ack", "messages", "acknowledge messages by their receipts"),
            ("nack", "messages", "give messages back by their receipts"),
            ("peek", "messages", "look at waiting messages without taking them"),
            ("tail", "messages", "show what is published, as it comes; consumes nothing"),
            ("search", "messages", "find messages by text, type, attribute or JSON value"),
            ("why", "messages", "say why a message is not being delivered"),
            ("timeline", "messages", "tell what happened to a message"),
        ),
    ),
    (
        "when things went wrong",
        (
            ("dlq", "dead_letters", "list, group, send back, discard or export dead letters"),
            ("replay", "dead_letters", "publish again what was published before"),
            ("task", "tasks", "list, watch or cancel long work on the server"),
            ("damage", "damage", "list what a server found damaged, or clear that list"),
            ("journal", "journal_commands", "check, repair or dump the journal in a data directory"),
        ),
    ),
    (
        "data pipelines on Spark",
        (("pipeline", "pipeline", "archive, analyse, triage, replay, and pipelines of your own"),),
    ),
    (
        "users and permissions",
        (
            ("user", "users", "add, list or remove users, set passwords"),
            ("key", "users", "create, list or revoke access keys (for SQS clients)"),
            ("token", "users", "create, list or revoke bearer tokens (for REST and this command)"),
            ("perm", "users", "grant, revoke or test permissions"),
        ),
    ),
    (
        "other brokers",
        (
            ("import", "definitions", "take over queues, exchanges, users and policies from RabbitMQ"),
            ("export", "definitions", "hand them on, as RabbitMQ's definitions"),
        ),
    ),
    (
        "more",
        (
            ("sample", "version", "run a small producer and consumer, and tell what happens"),
            ("completion", "completion", "print the completion script of a shell"),
            ("version", "version", "print the version"),
        ),
    ),
)

EXAMPLES = [
    ("openq serve", "a durable server on http://127.0.0.1:9324"),
    ("openq send orders 'hello'", "publish a message"),
    ("openq recv orders --ack", "receive it, and acknowledge it"),
    ("openq queue ls", "what is there, and how much of it"),
    ("openq COMMAND --help", "examples and options of a command"),
]


def build(words: Sequence[str] | None = None) -> tuple[Parser, Tree]:
    """The parser, and the names of its commands for `unknown_command`.

    With `words`, only as much of it as they need; all of it without.
    """
    parser = Parser(
        prog="openq",
        description="OpenQ, the message queue you pip install.",
        examples=EXAMPLES,
        overview=overview(),
    )
    parser.add_argument("--version", action="store_true", help="the same as `openq version`")
    verbs = CommandGroup(parser, title=None, help=SUPPRESS)
    # After `Verbs`, which takes the names of the commands below from it.
    parser.usage = "openq [-h] [--version] COMMAND ..."
    tree: Tree = {}
    for _, commands in GROUPS:
        for name, module, help in commands:
            tree[name] = {}
            if words is None or name in words[:1]:
                import_module(f"openq.cli.{module}").add(name, verbs, help)
                tree[name] = command_tree(parser.commands[name])
    return parser, tree


def command_tree(parser: Parser) -> Tree:
    return {name: command_tree(below) for name, below in parser.commands.items()}


def overview() -> str:
    lines: list[str] = []
    for title, commands in GROUPS:
        lines += ["", f"{title}:", *(f"    {name:<14}{help}" for name, _, help in commands)]
    return "\n".join(lines[1:])


# -- from the command line to the exit code -----------------------------------------------------


def unknown_command(words: Sequence[str], tree: Tree) -> str | None:
    """The sentence about the first word that should be a command and is none."""
    prog = "openq"
    for word in words:
        if not tree or word.startswith("-"):
            return None
        if word not in tree:
            from difflib import get_close_matches

            close = get_close_matches(word, tree, 1)
            hint = f"did you mean `{prog} {close[0]}`?" if close else f"there is {', '.join(tree)}"
            return f"`{prog} {word}` is no command; {hint}"
        tree = tree[word]
        prog += f" {word}"
    return None


def misplaced_option(words: Sequence[str]) -> str | None:
    """The sentence about an option that stands before the command that it belongs to."""
    if not words or not words[0].startswith("-") or words[0] in ("-h", "--help", "--version"):
        return None
    names = {name for _, commands in GROUPS for name, _, _ in commands}
    at = next((i for i, word in enumerate(words) if word in names), None)
    flag, equals, _ = words[0].partition("=")
    if at is None:
        return f"{flag} needs a command before it; see `openq --help`"
    from shlex import join

    early = words[:at]
    if flag == "--token":  # what is said may end up in a log
        early = [f"{flag}=TOKEN"] if equals else [flag, "TOKEN", *words[2:at]]
    return f"{flag} comes after the command: openq {join([*words[at:], *early])}"


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    parser, tree = build(words)
    wrong = misplaced_option(words) or unknown_command(words, tree)
    if wrong is not None:
        say(wrong)
        return USAGE
    try:
        options, unknown = parser.parse_known_args(words)
    except SystemExit as stop:  # argparse leaves this way after --help and after an error
        return int(stop.code or OK)
    if unknown:
        return int(getattr(options, "parser_of", parser).reject_unknown(unknown))
    if getattr(options, "version", False):
        return main(["version"])
    run = getattr(options, "run", None)
    if run is None:
        getattr(options, "help_of", parser).print_help(sys.stderr)
        return USAGE
    return run_command(run, options)


def run_command(run: Any, options: Namespace) -> int:
    """Whatever goes wrong with the user's data or machine is one line, never a traceback."""
    from ..errors import OpenQError

    try:
        code: int = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python would complain once more when it flushes at exit.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except OpenQError as error:
        say(str(error))
        hint = hint_for(error)
        if hint:
            say(styled(f"hint: {hint}", "dim", sys.stderr))
        return exit_code_of(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK_PACKAGES:
            raise
        say(f"this needs more than the base install ({error.name} is missing): pip install 'openq[spark]'")
        return FAILED
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return NOT_FOUND if isinstance(error, FileNotFoundError | NotADirectoryError) else FAILED
    finally:
        if hasattr(options, "close"):
            options.close()
    return code


_SPARK_PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas", "py4j", "yaml", "grpc", "google", "zstandard")
_EXIT_CODES = {
    "invalid_config": USAGE,
    "invalid_setting": USAGE,
    "invalid_search": USAGE,
    "no_credentials": USAGE,
    "usage": USAGE,
    "queue_not_found": NOT_FOUND,
    "message_not_found": NOT_FOUND,
    "not_found": NOT_FOUND,
    "timed_out": EMPTY,
}
# The server's own hints speak of its API; here there are commands.
_HINTS = {
    "queue_not_found": "`openq queue ls` lists the queues, `openq queue create` makes one",
    "queue_exists": "`openq queue edit` changes the settings of a queue",
    "message_not_found": "`openq timeline` tells what happened to it, as far as history is kept",
    "task_not_found": "`openq task ls` lists those that are known",
    "cursor_not_found": "`openq pipeline cursors ls` lists them",
    "subscription_not_found": "`openq pipeline subscriptions ls` lists them",
    "unauthorized": "sign in with OPENQ_TOKEN_FILE, OPENQ_TOKEN or --user; see `openq token create --help`",
    "forbidden": "`openq perm grant`, by whoever runs the server, allows it",
    "no_such_route": "is this an OpenQ server of the same version?",
}
_EXIT_CODES_BY_STATUS = {400: USAGE, 413: USAGE, 422: USAGE}
_EXIT_CODES_BY_STATUS |= {401: DENIED, 403: DENIED, 404: NOT_FOUND, 408: EMPTY, 504: EMPTY}


def hint_for(error: Exception) -> str | None:
    hint: str | None = getattr(error, "hint", None)
    return _HINTS.get(getattr(error, "code", ""), hint) if hint else None


def exit_code_of(error: Exception) -> int:
    """The exit code of an error: by its own code, else by the status that a server answered with."""
    by_status = _EXIT_CODES_BY_STATUS.get(getattr(error, "status", 0), FAILED)
    return _EXIT_CODES.get(getattr(error, "code", ""), by_status)


if __name__ == "__main__":
    sys.exit(main())
