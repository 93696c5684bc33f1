"""`openq kv`."""

from __future__ import annotations

import base64
import sys
from argparse import Namespace
from itertools import islice
from typing import Any

from .api import UsageError, connect, path_part
from .output import count_text, escape_control, print_json, print_list, print_result
from .terminal import EMPTY, FAILED, OK, is_terminal, say, size_text

_MAX_POLL_S = 60.0  # the server's limit


def ls(options: Namespace) -> int:
    server = connect(options)
    if options.bucket is None:
        buckets = server.get("/kv")["buckets"]
        print_list(
            options,
            buckets,
            {"bucket": "name", "keys": "keys", "size": lambda each: size_text(each["bytes"])},
            empty="no buckets",
            right=("keys", "size"),
        )
        return OK
    pages = server.pages(_path(options), "entries", "next", prefix=options.prefix, values=bool(options.json))
    entries = list(islice(pages, options.max))
    print_list(
        options,
        entries,
        {
            "key": "key",
            "version": "version",
            "size": lambda each: size_text(each["bytes"]),
            "changed": "changed",
            "expires": "expires",
        },
        empty=f"no keys in bucket {options.bucket!r}",
        right=("version", "size"),
        to_json=_readable,
    )
    if len(entries) == options.max and next(pages, None) is not None:
        say(f"more keys follow; --max shows more than {options.max}")
    return OK


def get(options: Namespace) -> int:
    server = connect(options)
    wait_s = min(options.wait, _MAX_POLL_S)
    path = f"{_path(options)}/{path_part(options.key)}"
    timeout_s = wait_s + 30 if wait_s else None
    entry = server.get(path, timeout_s=timeout_s, wait=wait_s, version=options.version)
    if options.json:
        print_json(_readable(entry))
        return OK
    value = base64.b64decode(entry["value"])
    sys.stdout.flush()
    if is_terminal(sys.stdout):
        print(escape_control(value.decode("utf-8", "replace")))
    else:
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
    return OK


def put(options: Namespace) -> int:
    if options.file and options.value is not None:
        raise UsageError("give either a value or --file")
    item: dict[str, Any] = {"key": options.key, "value": base64.b64encode(_value(options)).decode()}
    if options.ttl is not None:
        item["ttl"] = options.ttl
    if options.if_absent or options.version is not None:
        item["version"] = options.version or 0
    [outcome] = connect(options).post(f"{_path(options)}/put", {"puts": [item]})["results"]
    if "version" not in outcome:
        if options.json:
            print_json(outcome)
        else:
            say(outcome["detail"])
        return FAILED
    print_result(options, outcome, str(outcome["version"]))
    return OK


def rm(options: Namespace) -> int:
    body: dict[str, Any] = {"keys": options.keys}
    if options.version is not None:
        body["versions"] = [options.version] * len(options.keys)
    deleted = connect(options).post(f"{_path(options)}/delete", body)["deleted"]
    count = sum(deleted)
    result = {"deleted": [key for key, is_deleted in zip(options.keys, deleted, strict=True) if is_deleted]}
    print_result(options, result, f"{count_text(count, 'key')} deleted")
    return OK if count else EMPTY


def _path(options: Namespace) -> str:
    return f"/kv/{path_part(options.bucket)}"


def _value(options: Namespace) -> bytes:
    if options.file:
        with open(options.file, "rb") as file:
            return file.read()
    if options.value is not None and options.value != "-":
        return str(options.value).encode("utf-8", "surrogateescape")
    if sys.stdin.isatty():
        say("reading from the terminal; end with Ctrl-D")
    return sys.stdin.buffer.read()


def _readable(entry: dict[str, Any]) -> dict[str, Any]:
    """The value as text where it is text, else as {"base64": ...}."""
    shown = {name: field for name, field in entry.items() if name != "value"}
    if "value" in entry:
        try:
            shown["value"] = base64.b64decode(entry["value"]).decode()
        except UnicodeDecodeError:
            shown["value"] = {"base64": entry["value"]}
    return shown
