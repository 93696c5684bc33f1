"""The command `openq`: finds the command that the words name, parses its options and calls its function.

Only the description of that command is loaded, and its function's module only to run it: `openq --help` must
appear at once.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from .commands import INDEX, ROOT, load
from .help import group_help
from .terminal import DENIED, EMPTY, FAILED, INTERRUPTED, NOT_FOUND, OK, USAGE, say, styled

TYPE_CHECKING = False  # not from `typing`, which takes longer to load than everything here
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Collection, Sequence

    from .spec import Command


def main(words: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if words is None else words)
    if words[:1] == ["--version"]:
        words[0] = "version"
    path, command = find_command(words)
    rest = words[len(path) :]
    if command.run:
        return _parse_and_run(path, command, rest)
    if rest[:1] in (["-h"], ["--help"]):
        print(group_help(path, command), end="")
        return OK
    if rest:
        say(misplaced_option(path, rest) if rest[0].startswith("-") else unknown_command(path, rest[0]))
    else:
        print(group_help(path, command), end="", file=sys.stderr)
    return USAGE


def find_command(words: Sequence[str]) -> tuple[list[str], Command]:
    """The command that the first words name, as far as they name one, and these words."""
    path: list[str] = []
    command = ROOT
    for word in words:
        if command.run or word not in names_below(path, command):
            break
        command = load(word) if command is ROOT else command.commands[word]
        path.append(word)
    # `openq worker module:app` means `openq worker run module:app`.
    if command.default and words[len(path) :] and words[len(path)] not in ("-h", "--help"):
        command = command.commands[command.default]
    return path, command


def names_below(path: Sequence[str], command: Command) -> Collection[str]:
    return command.commands if path else INDEX


def unknown_command(path: Sequence[str], word: str) -> str:
    from difflib import get_close_matches

    names = names_below(path, find_command(path)[1])
    close = get_close_matches(word, names, 1)
    hint = f" (did you mean {' '.join((*path, close[0]))}?)" if close else f"; commands: {', '.join(names)}"
    return f"unknown command: {' '.join((*path, word))}{hint}"


def misplaced_option(path: Sequence[str], words: Sequence[str]) -> str:
    """The error for an option that stands before the command that it belongs to."""
    names = names_below(path, find_command(path)[1])
    start = next((i for i, word in enumerate(words) if word in names), None)
    flag, equals, _ = words[0].partition("=")
    prog = " ".join(("openq", *path))
    if start is None:
        return f"{flag} needs a command before it; see `{prog} --help`"
    from shlex import join

    early = list(words[:start])
    if flag == "--token":  # the error may end up in a log
        early = [f"{flag}=TOKEN"] if equals else [flag, "TOKEN", *words[2:start]]
    return f"{flag} comes after the command: {prog} {join([*words[start:], *early])}"


def _parse_and_run(path: Sequence[str], command: Command, rest: Sequence[str]) -> int:
    from .parser import Parser

    parser = Parser(path, command)
    if path == ["serve"] and _wants_json_log(rest):
        from .log_line import log_not_started

        parser.report = log_not_started  # type: ignore[method-assign]
    try:
        options, unknown = parser.parse_known_args(rest)
    except SystemExit as stop:  # argparse leaves this way after --help and after an error
        return int(stop.code or OK)
    if unknown:
        return parser.reject_unknown(unknown)
    return run_command(lambda options: load_function(command.run)(options), options)


def _wants_json_log(words: Sequence[str]) -> bool:
    """Whether a server with these words, which cannot be parsed, was to log as JSON and nothing else."""
    if "--json" in words:
        return False
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == "--log-format":
            return (value if equals else "".join(words[at + 1 : at + 2])) == "json"
    return os.environ.get("OPENQ_LOG_FORMAT") == "json"


def load_function(name: str) -> Callable[[Namespace], int]:
    module, _, function = name.partition(":")
    found: Callable[[Namespace], int] = getattr(import_module(f"openq.cli.{module}"), function)
    return found


def run_command(run: Callable[[Namespace], int], options: Namespace) -> int:
    """Run it and return the exit code. An error is reported in one line, never as a traceback."""
    from ..errors import OpenQError

    try:
        code: int = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe. Python would report it again when it flushes at exit.
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
        say(f"{error.name} is not installed: pip install 'openq[spark]'")
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
    "directory_not_empty": USAGE,
    "queue_not_found": NOT_FOUND,
    "message_not_found": NOT_FOUND,
    "schedule_not_found": NOT_FOUND,
    "not_found": NOT_FOUND,
    "timed_out": EMPTY,
}
# Commands instead of the server's own hints, which name its API.
_HINTS = {
    "queue_not_found": "`openq queue ls` lists the queues, `openq queue create` creates one",
    "queue_exists": "`openq queue edit` changes the settings of a queue",
    "message_not_found": "`openq timeline` shows its history",
    "key_not_found": "`openq kv ls BUCKET` lists the keys; one may have expired",
    "schedule_not_found": "`openq schedule ls` lists the schedules",
    "task_not_found": "`openq task ls` lists the operations",
    "worker_not_found": "`openq worker ls` lists the workers",
    "cursor_not_found": "`openq pipeline cursors ls` lists the cursors",
    "subscription_not_found": "`openq pipeline subscriptions ls` lists the subscriptions",
    "unauthorized": "use OPENQ_TOKEN_FILE, OPENQ_TOKEN or --user; see `openq token create --help`",
    "forbidden": "an administrator can allow it with `openq perm grant`",
    "invalid_setting": "",  # the message names the value and what is allowed
    "no_such_route": "is this an OpenQ server of the same version?",
}
_EXIT_CODES_BY_STATUS = {400: USAGE, 413: USAGE, 422: USAGE}
_EXIT_CODES_BY_STATUS |= {401: DENIED, 403: DENIED, 404: NOT_FOUND, 408: EMPTY, 504: EMPTY}


def hint_for(error: Exception) -> str | None:
    hint: str | None = getattr(error, "hint", None)
    return _HINTS.get(getattr(error, "code", ""), hint) if hint else None


def exit_code_of(error: Exception) -> int:
    """The exit code of an error: by its code, or by the HTTP status of the response."""
    by_status = _EXIT_CODES_BY_STATUS.get(getattr(error, "status", 0), FAILED)
    return _EXIT_CODES.get(getattr(error, "code", ""), by_status)


if __name__ == "__main__":
    sys.exit(main())
