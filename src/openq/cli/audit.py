"""`openq audit`: list, export and verify the audit log; and the records of commands that change users."""

from __future__ import annotations

import getpass
import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from ..broker.audit import OK as DONE
from ..broker.audit import AuditEntry, AuditStore, AuditUnavailable, parse, verify
from .api import NotFound, connect
from .output import count_text, print_json, print_list
from .terminal import EMPTY, FAILED, OK, say

_FIELDS = ("number", "time_ms", "user", "peer", "protocol", "action", "target", "outcome", "detail")


def ls(options: Namespace) -> int:
    found = connect(options).get(
        "/audit",
        newest="true",
        limit=min(options.limit, 1000),
        user=options.by,
        action=options.action,
        target=options.target,
        protocol=options.protocol,
        outcome=options.outcome,
        since=options.since,
    )["records"]
    print_list(
        options,
        found,
        {
            "number": "number",
            "time": "time",
            "user": "user",
            "from": "peer",
            "protocol": "protocol",
            "action": "action",
            "target": "target",
            "outcome": "outcome",
            "detail": lambda each: json.dumps(each["detail"], ensure_ascii=False) if each["detail"] else "",
        },
        right=("number",),
        empty="no records",
    )
    return OK if found else EMPTY


def _lines(options: Namespace, after: int = 0) -> Iterator[bytes]:
    """The records of the server as they are stored."""
    api = connect(options)
    while True:
        page = api.get("/audit", after=after, limit=1000)
        for record in page["records"]:
            stored = {name: record[name] for name in (*_FIELDS, "previous", "hash")}
            yield json.dumps(stored, separators=(",", ":")).encode()
        if page.get("next") is None:
            return
        after = page["next"]


def export(options: Namespace) -> int:
    for line in _lines(options, options.after):
        print(line.decode())
    return OK


def verify_chain(options: Namespace) -> int:
    lines = _lines(options) if options.file is None else _file_lines(options.file)
    expected: list[bool] = []

    def watched() -> Iterator[bytes]:
        for line in lines:
            if options.expect and options.expect.encode() in line:
                expected.append(_has_hash(line, options.expect))
            yield line

    found = verify(watched())
    if options.expect and not any(expected):
        found.problems.append(
            f"no record has the hash {options.expect[:64]}: records were replaced or removed"
        )
    if options.json:
        print_json(
            {
                "ok": found.ok,
                "records": found.count,
                "first": found.first,
                "last": found.last,
                "hash": found.hash,
                "problems": found.problems,
            }
        )
        return OK if found.ok else FAILED
    for problem in found.problems:
        say(problem)
    state = "the chain is intact" if found.ok else "THE CHAIN IS BROKEN"
    print(f"{count_text(found.count, 'record')}, {found.first} to {found.last}: {state}")
    print(f"last hash {found.hash}")
    return OK if found.ok else FAILED


def _has_hash(line: bytes, wanted: str) -> bool:
    try:
        return parse(line).hash == wanted
    except ValueError:
        return False


def _file_lines(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from (line.rstrip(b"\r\n") for line in file)
    except FileNotFoundError:
        raise NotFound(f"no such file: {path}") from None


# -- commands that work without a server --------------------------------------------------------


def record(store: AuditStore, action: str, target: str, detail: Mapping[str, Any] | None = None) -> None:
    """Record what a command did to the users of a data directory or of Redis. The change goes on without."""
    entry = AuditEntry(
        int(time.time() * 1000), _system_user(), "", "cli", action, target[:300], DONE, detail or {}
    )
    try:
        store.append([entry])
    except AuditUnavailable as error:
        say(f"the change is made, but not recorded: {error}")


def _system_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
