"""docs/CLI.md, made from the descriptions of the commands: `python -m openq.cli.reference > docs/CLI.md`."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from ..config import KEYS, Config, flag_of, variable_of
from ..parsing import toml_text
from .commands import GROUPS, load
from .commands.options import SERVER
from .commands.serve import CONFIG_FLAGS
from .help import example_lines
from .spec import Command, Option

INTRO = """\
# The command `openq`

Made by `python -m openq.cli.reference > docs/CLI.md`: change `src/openq/cli/commands`, not this file.

- Data goes to stdout, messages for people go to stderr: `openq recv orders --ack > messages` is safe.
- `--json` is for programs: one object, or one object per line for a list.
- Commands that delete or resend messages ask first, with the number of messages. `--dry-run` only shows it,
  `--yes` does not ask. Without a terminal and without `--yes` nothing happens and the exit code is 2.
- Colours and progress bars are for terminals; `NO_COLOR` switches colours off. Elsewhere long work prints one
  line every ten seconds.
- Redrive, discard and replay run inside the server. Ctrl-C leaves them running; `openq task` watches or
  cancels them.
- Commands that only read take `--data DIR` instead of a server: they read a data directory that no process
  uses.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | success |
| 1 | failure, outcome unknown, or damage found |
| 2 | wrong usage, invalid configuration, or not confirmed |
| 3 | no such queue, message, operation, user or file |
| 4 | access denied: authentication or a permission is missing |
| 5 | nothing found, or timed out |
| 130 | interrupted |

## Server options

Every command that talks to a server has these.

| option | environment | meaning |
| --- | --- | --- |
| `--url URL` | `OPENQ_URL` | address of the server; default `http://127.0.0.1:9324` |
| `--token TOKEN` | `OPENQ_TOKEN` | bearer token; other users of the machine can see a command line |
| `--token-file FILE` | `OPENQ_TOKEN_FILE` | file that holds the bearer token |
| `--user NAME` | `OPENQ_USER` | user name |
| | `OPENQ_PASSWORD`, `OPENQ_PASSWORD_FILE` | password; asked for otherwise |
| `--account ID` | | account to work in, if not your own |
| `--ca FILE` | `OPENQ_CA` | CA certificate to trust, for your own HTTPS |
| `--timeout TIME` | | time to wait for a response; default 30 seconds |

Times are seconds, or a number with a unit: `500ms`, `30s`, `5m`, `2h`, `4d`. Sizes are bytes, or `64KiB`,
`20MiB`.

## Configuration of the server

Flags override environment variables, those override the file (`--config`, `OPENQ_CONFIG`, or `openq.toml` in
the working directory), and that overrides the defaults. Unknown keys and invalid values are errors that name
their origin. `openq config show --origin` shows the origin of each value.
"""

QUEUES = """\
Queues may be declared in the file. Settings named there are applied at every start; others are not changed:

```toml
[queues.orders]
visibility_timeout = 30
dlq = "orders-dead"
max_receives = 3

[queues."orders-dead"]
retention = "14d"
```
"""

WIDTH = 110
DESCRIBED_ABOVE = {
    CONFIG_FLAGS: "- every flag of `openq serve`",
    SERVER: "- the [server options](#server-options)",
}


def reference() -> str:
    lines = [INTRO, *_keys(), "", QUEUES]
    for title, rows in GROUPS:
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for name, _, _ in rows:
            for words, command in load(name).walk((name,)):
                lines += _command(words, command)
    return "\n".join(lines).rstrip() + "\n"


def _keys() -> Iterator[str]:
    default = Config()
    yield "| flag | environment | file | default | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for key, row in KEYS.items():
        value = getattr(default, key)
        shown = "" if value is None else f"`{toml_text(value)}`"
        yield f"| `{flag_of(key)}` | `{variable_of(key)}` | `{key}` | {shown} | {row.help} |"


def _command(words: tuple[str, ...], command: Command) -> Iterator[str]:
    yield f"### openq {' '.join(words)}"
    yield ""
    yield "\n".join(fill(line, WIDTH) for line in command.description.split("\n"))
    yield ""
    yield "```sh"
    yield from example_lines(command.examples, WIDTH)
    yield "```"
    yield ""
    if words == ("serve",):
        yield "Every key of the [configuration](#configuration-of-the-server) is a flag."
        yield ""
        return
    if command.commands:
        return
    described = {
        options: text for options, text in DESCRIBED_ABOVE.items() if set(options) <= set(command.options)
    }
    for option in command.options:
        if not any(option in options for options in described):
            yield fill(_option(option), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield from described.values()
    yield ""


def _option(option: Option) -> str:
    arguments = option.arguments
    choices = "|".join(arguments.get("choices", ()))
    metavar = arguments.get("metavar") or choices or option.dest.upper()
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    help = arguments["help"].replace("%%", "%")
    if not option.flags:
        return f"- `{f'[{value}]' if arguments.get('nargs') in ('?', '*') else value}`: {help}"
    names = ", ".join(option.flags)
    takes_value = arguments.get("action") in (None, "append")
    return f"- `{names}{f' {value}' if takes_value else ''}`: {help}"


if __name__ == "__main__":
    print(reference(), end="")
