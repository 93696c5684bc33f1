"""`openq config show`, `init` and `check`."""

from __future__ import annotations

from .parser import CommandGroup, add_json
from .terminal import FAILED, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def add(name: str, verbs: CommandGroup, help: str) -> None:
    config = verbs.add(
        name,
        None,
        help,
        [
            ("openq config init", "write openq.toml, with every key explained"),
            ("openq config check", "is openq.toml right?"),
            ("openq config show --origin", "what counts, and why"),
        ],
        "Flags go before environment variables (OPENQ_...), those before the file, that before the defaults.",
    ).group()
    show = config.add(
        "show",
        _show,
        "print every value that `openq serve` would have",
        [
            ("openq config show --origin", "with where each value comes from"),
            ("openq config show --port 9999 --origin", "flags of `openq serve` may be tried"),
            ("openq config show --json", "for programs"),
        ],
    )
    from .serve import add_settings

    show.add_argument("--origin", action="store_true", help="where each value comes from")
    add_settings(show)
    add_json(show)
    init = config.add(
        "init",
        _init,
        "write a file with every key, explained and commented out",
        [("openq config init", "writes openq.toml"), ("openq config init /etc/openq.toml", "or elsewhere")],
        "A file that exists is left alone.",
    )
    init.add_argument("file", nargs="?", default="openq.toml", metavar="FILE", help="default openq.toml")
    add_json(init)
    check = config.add(
        "check",
        _check,
        "say whether a file and the environment are right",
        [("openq config check", "openq.toml here"), ("openq config check /etc/openq.toml", "another one")],
        "Exit code 2 and the first mistake, if there is one.",
    )
    check.add_argument("file", nargs="?", metavar="FILE", help="default OPENQ_CONFIG, or openq.toml here")
    add_json(check)


def _show(options: Namespace) -> int:
    from ..config import toml_text
    from ..model import RetryPolicy
    from .output import print_json, print_table
    from .serve import read_settings

    config = read_settings(options)
    rows = config.describe()
    if options.json:

        def as_json(value: object) -> object:
            if isinstance(value, dict):
                return {name: as_json(each) for name, each in value.items()}
            if isinstance(value, RetryPolicy):
                return {name: getattr(value, name) for name in RetryPolicy.__slots__}
            return value

        print_json({key: {"value": as_json(value), "origin": origin} for key, value, origin in rows})
    elif options.origin:
        print_table(
            ("key", "value", "from"),
            [(key, None if value is None else toml_text(value), origin) for key, value, origin in rows],
        )
    else:
        for key, value, _ in rows:
            # As a file it would contradict itself with both.
            idle = value is None or (key == "data" and config.memory)
            print(f"{'#' if idle else ''}{key} = {toml_text('' if value is None else value)}")
    return OK


def _init(options: Namespace) -> int:
    from ..config import commented_file
    from .output import print_json

    try:
        with open(options.file, "x", encoding="utf-8") as file:
            file.write(commented_file())
    except FileExistsError:
        say(f"{options.file} is there already and stays as it is")
        return FAILED
    if options.json:
        print_json({"file": options.file})
    else:
        print(options.file)
    say(f"written; edit it, then: openq config check {options.file}")
    return OK


def _check(options: Namespace) -> int:
    import os

    from ..config import KEYS, find_file, load, read_file, variable_of
    from .output import count_text, print_json

    file = find_file(os.environ, options.file)
    config = load({}, os.environ, file)
    # As written: a value that another one outweighs is right or wrong all the same.
    keys = len(read_file(file).keys() - {"queues"}) if file is not None else 0
    variables = sum(bool(os.environ.get(variable_of(key))) for key in KEYS)
    if options.json:
        counts = {"keys": keys, "variables": variables, "queues": len(config.queues)}
        print_json({"ok": True, "file": file, **counts})
        return OK
    if file is None:
        print("ok: no file, the environment is right")
    else:
        beside = f"; {count_text(variables, 'variable')} of the environment" if variables else ""
        print(f"{file}: ok, {count_text(keys, 'key')} and {count_text(len(config.queues), 'queue')}{beside}")
    return OK
