"""`openq import` and `openq export`: RabbitMQ definitions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import quote

from ..amqp.definitions import ImportReport, InvalidDefinitions, load_json, read
from ..amqp.definitions_export import export
from ..amqp.definitions_import import apply_topology, apply_users
from ..amqp.topology import Topology
from ..auth.guard import Guard
from ..auth.store import UserStore
from ..client.http import Refused
from ..config import Config
from ..local.audit_file import FileAudit
from ..local.broker import LocalBroker
from ..server.context import ServerContext
from .api import NotFound, UsageError, client_of, send_request
from .audit import record
from .output import escape_control, print_json
from .terminal import FAILED, OK, say

PATH = "/api/definitions"


def import_definitions(options: Namespace) -> int:
    report = _apply(options, _read(options.file))
    if options.json:
        print_json(report)
    else:
        _print(report)
    return FAILED if options.strict and report["not_converted"] else OK


def _read(name: str) -> Any:
    if name == "-":
        try:
            source = json.load(sys.stdin)
        except (ValueError, RecursionError) as error:
            raise InvalidDefinitions(f"stdin is not JSON: {error}") from error
    elif not os.path.exists(name):
        raise NotFound(f"{name}: no such file")
    else:
        source = load_json(name)
    read(source)  # report mistakes before a request is sent
    return source


def _apply(options: Namespace, source: Any) -> dict[str, Any]:
    if options.data is None:
        return dict(_call(options, "POST", f"{PATH}?report=true", source))
    report = ImportReport()
    wanted = read(source)
    with _open_directory(options.data) as (topology, store):
        apply_topology(topology, wanted, report)
        apply_users(store, wanted, report)
        topology.policies.save()
        topology.broker.sync()
    record(FileAudit(options.data), "import_definitions", options.file)
    return report.to_json()


def export_definitions(options: Namespace) -> int:
    if options.data is None:
        path = PATH if options.vhost is None else f"{PATH}/{quote(options.vhost, safe='')}"
        found = _call(options, "GET", path)
    else:
        with _open_directory(options.data) as (topology, store):
            if options.vhost is not None and not topology.vhost_exists(options.vhost):
                raise UsageError(f"vhost {options.vhost!r} does not exist")
            found = export(topology, store, options.vhost)
    print(json.dumps(found, ensure_ascii=False, indent=None if options.json else 2))
    return OK


def _print(report: dict[str, Any]) -> None:
    for title, counts in (("created", report["made"]), ("unchanged", report["kept"])):
        if counts:
            print(f"{title}: " + ", ".join(f"{count} {_noun(kind, count)}" for kind, count in counts.items()))
    if not report["made"] and not report["kept"]:
        print("the definitions are empty")
    for line in report["not_converted"]:
        say(f"skipped: {escape_control(line)}")
    for line in report["hints"]:
        say(escape_control(line))


def _noun(kind: str, count: int) -> str:
    """The name of a kind of definitions, `policies`, in the singular if there is one."""
    if count != 1:
        return kind
    return f"{kind[:-3]}y" if kind.endswith("ies") else kind.removesuffix("s")


def _call(options: Namespace, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    answer = send_request(client_of(options), method, path, data)
    if answer.status < 400:
        return answer.json()
    try:
        problem = json.loads(answer.body)
        reason = problem.get("reason") or problem["detail"]
    except (ValueError, KeyError, AttributeError):
        answer.raise_for_status()
        raise
    codes = {401: "unauthorized", 404: "not_found"}
    hint = "sign in as an administrator" if answer.status == 401 else ""
    raise Refused(answer.status, codes.get(answer.status, "error"), str(reason), hint)


def _open_directory(directory: str) -> AbstractContextManager[tuple[Topology, UserStore]]:
    """The topology and users of a data directory. No other process may use it."""

    @contextmanager
    def opened() -> Iterator[tuple[Topology, UserStore]]:
        if not os.path.isdir(directory):
            raise FileNotFoundError(2, "no such data directory", directory)
        broker = LocalBroker(directory, runs_schedules=False)
        loop = asyncio.new_event_loop()
        try:
            store = UserStore(os.path.join(directory, "users.json"))
            context = ServerContext(broker, loop, Config(data=directory), Guard(store, time.time))
            topology = Topology(context)
            try:
                yield topology, store
            finally:
                topology.close()
                context.close()
        finally:
            loop.close()
            broker.close()

    return opened()
