"""docs/CLI.md, made from the parsers: `python -m openq.cli.reference > docs/CLI.md`; a test compares them."""

from __future__ import annotations

from argparse import SUPPRESS, Action
from collections.abc import Iterator

from ..config import KEYS, Config, flag_of, toml_text, variable_of
from .completion import walk
from .main import GROUPS, build
from .parser import Parser

INTRO = """\
# The command `openq`

Made by `python -m openq.cli.reference > docs/CLI.md`: change the parsers in `src/openq/cli`, not this file.

- Data goes to stdout, messages for people go to stderr: `openq recv orders --ack > messages` is safe.
- `--json` is for programs: one object, or one object per line where there are many.
- What destroys or sends again asks first and tells how many messages it is about. `--dry-run` only tells,
  `--yes` does not ask. Without a terminal and without `--yes` nothing happens and the exit code is 2.
- Colours and progress bars are for terminals; `NO_COLOR` switches colours off. Elsewhere long work writes one
  line every ten seconds.
- Redrive, discard and replay run inside the server. Ctrl-C leaves them running; `openq task` watches and
  cancels.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed, uncertain whether done, or damage found |
| 2 | wrong usage, wrong configuration, or nobody agreed |
| 3 | no such queue, message, task, user, file |
| 4 | denied: sign in, or ask for the permission |
| 5 | nothing there, or no answer in time |
| 130 | interrupted |

## Server options

Every command that talks to a server has these.

| option | environment | meaning |
| --- | --- | --- |
| `--url URL` | `OPENQ_URL` | the server; default `http://127.0.0.1:9324` |
| `--token TOKEN` | `OPENQ_TOKEN` | bearer token; others on the machine can see a command line |
| `--token-file FILE` | `OPENQ_TOKEN_FILE` | a file with the bearer token |
| `--user NAME` | `OPENQ_USER` | sign in by name |
| | `OPENQ_PASSWORD`, `OPENQ_PASSWORD_FILE` | the password; asked for otherwise |
| `--account ID` | | another account than one's own |
| `--ca FILE` | `OPENQ_CA` | a certificate to trust, for HTTPS of one's own |
| `--timeout TIME` | | for an answer; default 30 seconds |

Times are seconds, or a number with a unit: `500ms`, `30s`, `5m`, `2h`, `4d`. Sizes are bytes, or `64KiB`,
`20MiB`.

## Configuration of the server

A flag goes before an environment variable, that before the file (`--config`, `OPENQ_CONFIG`, or `openq.toml`
in the working directory), that before the default. Unknown keys and wrong values are errors that name their
place. `openq config show --origin` tells where each value comes from.
"""

QUEUES = """\
Queues may be declared in the file; what is named there is set at every start, the rest stays as it is:

```toml
[queues.orders]
visibility_timeout = 30
dlq = "orders-dead"
max_receives = 3

[queues."orders-dead"]
retention = "14d"
```
"""
SERVER_OPTIONS = ("url", "token", "token_file", "user", "account", "ca", "timeout")


def reference() -> str:
    parser, _ = build()
    lines = [INTRO, *_keys(), "", QUEUES]
    for title, commands in GROUPS:
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for name, _, _ in commands:
            for words, below in walk(parser.commands[name], (name,)):
                lines += _command(words, below)
    return "\n".join(lines).rstrip() + "\n"


def _keys() -> Iterator[str]:
    default = Config()
    yield "| flag | environment | file | default | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for key, row in KEYS.items():
        value = getattr(default, key)
        shown = "" if value is None else f"`{toml_text(value)}`"
        yield f"| `{flag_of(key)}` | `{variable_of(key)}` | `{key}` | {shown} | {row.help} |"


def _command(words: tuple[str, ...], parser: Parser) -> Iterator[str]:
    yield f"### openq {' '.join(words)}"
    yield ""
    yield parser.description or ""
    yield ""
    yield "```sh"
    width = max((len(command) for command, _ in parser.examples), default=0)
    for command, why in parser.examples:
        yield f"{command:<{width}}  # {why}"
    yield "```"
    yield ""
    if words == ("serve",):
        yield "Every key of the [configuration](#configuration-of-the-server) is a flag."
        yield ""
        return
    if parser.commands:
        return
    actions = [action for action in parser._actions if action.help is not SUPPRESS and action.dest != "help"]
    talks = any(action.dest == "url" for action in actions)
    for action in actions:
        if words == ("config", "show") and action.dest in KEYS:
            continue
        if not talks or action.dest not in SERVER_OPTIONS:
            yield _option(action)
    if words == ("config", "show"):
        yield "- and every flag of `openq serve`"
    if talks:
        yield "- and the [server options](#server-options)"
    yield ""


def _option(action: Action) -> str:
    metavar = action.metavar if action.metavar is not None else action.dest.upper()
    if isinstance(metavar, tuple):
        metavar = " ".join(metavar)
    if not action.option_strings:
        shown = "|".join(action.choices) if action.choices and action.metavar is None else metavar
        optional = action.nargs in ("?", "*")
        return f"- `{f'[{shown}]' if optional else shown}`: {_help(action)}"
    value = "" if action.nargs == 0 else f" {metavar}"
    if action.choices and action.metavar is None:
        value = " " + "|".join(map(str, action.choices))
    return f"- `{', '.join(action.option_strings)}{value}`: {_help(action)}"


def _help(action: Action) -> str:
    return (action.help or "").replace("%%", "%")


if __name__ == "__main__":
    print(reference(), end="")
