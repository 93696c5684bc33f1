"""`openq import` and `openq export`: what another broker knows, taken over or handed on."""

from __future__ import annotations

from .parser import CommandGroup, Parser, add_json, add_server
from .terminal import FAILED, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from ..amqp.topology import Topology
    from ..auth.store import UserStore

KIND = "rabbitmq-definitions"
PATH = "/api/definitions"
_DATA = "a data directory that no server uses, instead of a server"


def add(name: str, verbs: CommandGroup, help: str) -> None:
    if name == "import":
        _add_import(name, verbs, help)
    else:
        _add_export(name, verbs, help)


def _add_import(name: str, verbs: CommandGroup, help: str) -> None:
    group = verbs.add(
        name,
        None,
        help,
        [(f"openq import {KIND} broker.json", "what `rabbitmqctl export_definitions broker.json` wrote")],
    ).group()
    parser = group.add(
        KIND,
        _import,
        "make the vhosts, users, exchanges, queues, bindings and policies of a RabbitMQ",
        [
            (
                f"openq import {KIND} broker.json",
                "into the running server; tells what could not be taken over",
            ),
            (f"openq import {KIND} broker.json --data ./openq-data", "without a server"),
            (f"openq import {KIND} broker.json --strict", "exit code 1 if anything was left out"),
        ],
        "The file is what RabbitMQ's `rabbitmqctl export_definitions` or its page /api/definitions gives.\n"
        "To do it again changes nothing. Messages are not in it. Users keep their passwords. Where\n"
        "they would be the first users, and none of them is an administrator with a password, they are left\n"
        "out, and the server stays open.",
    )
    parser.add_argument("file", metavar="FILE", help="definitions as JSON; - for stdin")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if anything was left out")
    _finish(parser)


def _add_export(name: str, verbs: CommandGroup, help: str) -> None:
    group = verbs.add(
        name,
        None,
        help,
        [(f"openq export {KIND} > broker.json", "for `rabbitmqctl import_definitions broker.json`")],
    ).group()
    parser = group.add(
        KIND,
        _export,
        "print vhosts, users, exchanges, queues, bindings and policies as RabbitMQ's definitions",
        [
            (f"openq export {KIND} > broker.json", "of the running server"),
            (f"openq export {KIND} --vhost shop", "of one vhost"),
            (f"openq export {KIND} --data ./openq-data", "without a server"),
        ],
        "Passwords and messages are not in it.",
    )
    parser.add_argument("--vhost", metavar="NAME", help="only this one; / is the default account")
    _finish(parser)


def _finish(parser: Parser) -> None:
    parser.add_argument("--data", metavar="DIR", help=_DATA)
    add_json(parser)
    add_server(parser)


def _import(options: Namespace) -> int:
    report = _apply(options, _read(options.file))
    if options.json:
        from .output import print_json

        print_json(report)
    else:
        _print(report)
    return FAILED if options.strict and report["not_converted"] else OK


def _read(name: str) -> Any:
    import json
    import os
    import sys

    from ..amqp.definitions import InvalidDefinitions, load_json, read

    if name == "-":
        try:
            source = json.load(sys.stdin)
        except (ValueError, RecursionError) as error:
            raise InvalidDefinitions(f"stdin is no JSON: {error}") from error
    elif not os.path.exists(name):
        from .api import NotFound

        raise NotFound(f"{name}: no such file")
    else:
        source = load_json(name)
    read(source)  # what is wrong is said before a server is asked
    return source


def _apply(options: Namespace, source: Any) -> dict[str, Any]:
    if options.data is None:
        return dict(_call(options, "POST", f"{PATH}?report=true", source))
    from ..amqp.definitions import ImportReport, read
    from ..amqp.definitions_import import apply_topology, apply_users

    report = ImportReport()
    wanted = read(source)
    with _open_directory(options.data) as (topology, store):
        apply_topology(topology, wanted, report)
        apply_users(store, wanted, report)
        topology.policies.save()
        topology.broker.sync()
    return report.to_json()


def _export(options: Namespace) -> int:
    import json

    if options.data is None:
        from urllib.parse import quote

        path = PATH if options.vhost is None else f"{PATH}/{quote(options.vhost, safe='')}"
        found = _call(options, "GET", path)
    else:
        from ..amqp.definitions_export import export
        from .api import UsageError

        with _open_directory(options.data) as (topology, store):
            if options.vhost is not None and not topology.vhost_exists(options.vhost):
                raise UsageError(f"there is no vhost {options.vhost!r}")
            found = export(topology, store, options.vhost)
    print(json.dumps(found, ensure_ascii=False, indent=None if options.json else 2))
    return OK


def _print(report: dict[str, Any]) -> None:
    from .output import escape_control

    for title, counts in (("made", report["made"]), ("there already", report["kept"])):
        if counts:
            print(f"{title}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if not report["made"] and not report["kept"]:
        print("there was nothing in it")
    for line in report["not_converted"]:
        say(f"left out: {escape_control(line)}")
    for line in report["hints"]:
        say(escape_control(line))


def _call(options: Namespace, method: str, path: str, body: Any = None) -> Any:
    import json

    from ..client.http import Refused
    from .api import client_of, send_request

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
    hint = "sign in as whoever runs the server" if answer.status == 401 else ""
    raise Refused(answer.status, codes.get(answer.status, "error"), str(reason), hint)


def _open_directory(directory: str) -> AbstractContextManager[tuple[Topology, UserStore]]:
    """The queues and users in a data directory; nobody else may have it open."""
    import asyncio
    import os
    import time
    from contextlib import contextmanager

    from ..amqp.topology import Topology
    from ..auth.guard import Guard
    from ..auth.store import UserStore
    from ..config import Config
    from ..local.broker import LocalBroker
    from ..server.context import ServerContext

    @contextmanager
    def opened() -> Iterator[tuple[Topology, UserStore]]:
        if not os.path.isdir(directory):
            raise FileNotFoundError(2, "no such data directory", directory)
        broker = LocalBroker(directory)
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
