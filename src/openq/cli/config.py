"""`openq config`."""

from __future__ import annotations

import os
from argparse import Namespace

from ..config import KEYS, commented_file, find_file, load, read_file, variable_of
from ..model import RetryPolicy
from ..parsing import toml_text
from .api import connect
from .output import count_text, print_json, print_result, print_table
from .serve import read_settings
from .terminal import FAILED, OK, say


def show(options: Namespace) -> int:
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
            # A file with both `data` and `memory` would be invalid.
            idle = value is None or (key == "data" and config.memory)
            print(f"{'#' if idle else ''}{key} = {toml_text('' if value is None else value)}")
    return OK


def init(options: Namespace) -> int:
    try:
        with open(options.file, "x", encoding="utf-8") as file:
            file.write(commented_file())
    except FileExistsError:
        say(f"{options.file} exists already; it was not changed")
        return FAILED
    print_result(options, {"file": options.file}, options.file)
    say(f"written; edit it, then: openq config check {options.file}")
    return OK


def check(options: Namespace) -> int:
    file = find_file(os.environ, options.file)
    config = load({}, os.environ, file)
    # Every written key counts, also if a flag or variable overrides it.
    keys = len(read_file(file).keys() - {"queues"}) if file is not None else 0
    variables = sum(bool(os.environ.get(variable_of(key))) for key in KEYS)
    if options.json:
        counts = {"keys": keys, "variables": variables, "queues": len(config.queues)}
        print_json({"ok": True, "file": file, **counts})
        return OK
    if file is None:
        print("ok: no file, and the environment is valid")
    else:
        variables_text = f"; {count_text(variables, 'variable')} from the environment" if variables else ""
        content = f"{count_text(keys, 'key')} and {count_text(len(config.queues), 'queue')}"
        print(f"{file}: ok, {content}{variables_text}")
    return OK


def reload(options: Namespace) -> int:
    found = connect(options).post("/server/reload")
    if options.json:
        print_json(found)
        return OK
    for line in (*found["changed"], *found["declared"]):
        print(line)
    print("reloaded: users" + (", certificate" if found["certificate"] else ""))
    if found["kept"]:
        say(f"not in the file any more, but kept: {', '.join(found['kept'])}")
    if found["restart_needed"]:
        say(f"not reloaded, a restart is needed for: {', '.join(found['restart_needed'])}")
    return OK
