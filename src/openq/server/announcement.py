"""What the server says when it starts and stops: log events, a banner for people, JSON for programs."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from typing import Protocol, TextIO

from .._version import __version__
from ..auth.guard import Guard
from ..broker.interface import Broker
from ..config import Config
from ..logs import emit

log = logging.getLogger("openq.server")


class Announced(Protocol):
    """A server, as its announcement shows it."""

    config: Config
    broker: Broker
    guard: Guard
    url: str
    amqp_url: str
    amqps_url: str
    new_key: tuple[str, str, str] | None


class Announcer:
    """Start and stop as log events, and on stdout as text or JSON, unless all output is to be a log."""

    def __init__(self, out: TextIO, config: Config, *, as_json: bool) -> None:
        self._out = out
        self._config = config
        self._as_json = as_json
        self._is_silent = config.log_format == "json" and not as_json  # stdout and stderr may be one log

    def ready(self, server: Announced) -> None:
        if self._as_json:
            self._print(ready_line(server))
        elif not self._is_silent:
            banner(server, self._out)
        fields = ready_fields(server)
        if server.new_key is not None:
            fields["first_key_user"] = server.new_key[0]
        emit(log, logging.INFO, "started", **fields)

    def stopping(self, reason: str) -> None:
        emit(log, logging.INFO, "stopping", reason=reason)
        if self._as_json:
            self._print(json.dumps({"event": "stopping"}))
        elif not self._is_silent:
            self._print("stopping: no new requests; those that run may end")

    def stopped(self, count: int, duration_s: float) -> None:
        emit(log, logging.INFO, "stopped", messages=count, duration_s=round(duration_s, 3))
        if self._as_json:
            self._print(json.dumps({"event": "stopped", "messages": count}))
        elif not self._is_silent:
            self._print(stop_message(self._config, count))

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def banner(server: Announced, out: TextIO) -> None:
    config, url = server.config, server.url
    where = f"everything acknowledged is in {config.data}"
    if config.path is None:
        where = server.broker.storage.place
    lines = [
        f"OpenQ {__version__} is ready: {where}",
        f"  dashboard  {url}/ui/" if config.ui else "  dashboard  not served (--ui)",
        f"  SQS        {url}",
        f"  REST       {url}/api/v1/queues   (description: {url}/openapi.json)",
        f"  AMQP       {_amqp_line(server)}",
        f"  metrics    {url}/metrics   health: {url}/readyz",
    ]
    if config.processes > 1:
        lines.append(f"  processes  {config.processes}")
    if config.relaxed:
        lines.append(
            "  RELAXED    replies do not wait for the sync: up to 50 ms of writes are lost in a power cut"
        )
    if server.new_key is not None:
        user, key, secret = server.new_key
        lines += [
            f"  first key of user {user}, shown this once"
            + ("" if config.path is None else f" and kept in {os.path.join(config.path, 'first-key')}"),
            f"    AWS_ACCESS_KEY_ID={key}",
            f"    AWS_SECRET_ACCESS_KEY={secret}",
        ]
    elif server.guard.is_open:
        lines.append("  sign-in    not needed: no users exist" + (" (INSECURE)" if config.insecure else ""))
    else:
        lines.append("  sign-in    needed: users exist (`openq user ls`)")
    lines += ["Try:", *_example_lines(server), "Ctrl-C stops it."]
    print("\n".join(lines), file=out, flush=True)


def _amqp_line(server: Announced) -> str:
    urls = [url for url in (server.amqp_url, server.amqps_url) if url]
    if not urls:
        return "not served (--amqp-port)"
    user = "   (user guest, password guest)" if server.guard.is_open else ""
    return " and ".join(urls) + user


def _example_lines(server: Announced) -> list[str]:
    """Example commands that can be copied into another terminal."""
    url, region = server.url, server.config.region
    sign_in, keys = "", ""
    if not server.guard.is_open:
        sign_in = " -H 'Authorization: Bearer TOKEN'"  # `openq token create`
    else:
        keys = "AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test "
    python = f"import boto3; print(boto3.client('sqs', '{region}', endpoint_url='{url}').list_queues())"
    pika = []
    if server.amqp_url and server.guard.is_open:
        opened = f"pika.BlockingConnection(pika.URLParameters('{server.amqp_url}')).channel()"
        pika = [f"  python -c \"import pika; print({opened}.queue_declare('hello', passive=True))\""]
    return [
        *_activate_command(),
        f"  curl -X PUT {url}/api/v1/queues/hello{sign_in}",
        f'  curl {url}/api/v1/queues/hello/messages --json \'{{"payload": "hi"}}\'{sign_in}',
        f"  {keys}aws sqs list-queues --endpoint-url {url} --region {region}",
        f'  {keys}python -c "{python}"',
        *pika,
    ]


def _activate_command() -> list[str]:
    """The command that activates the virtual environment, if one is needed to find `openq`."""
    script = os.path.join(sys.prefix, "bin", "activate")
    if sys.prefix == sys.base_prefix or not os.path.exists(script):
        return []
    near = os.path.relpath(script)
    return [f"  . {shlex.quote(script if near.startswith(os.pardir) else near)}"]


def ready_fields(server: Announced) -> dict[str, object]:
    """How to connect; no secrets."""
    config = server.config
    return {
        "version": __version__,
        "pid": os.getpid(),
        "url": server.url,
        "ui_url": f"{server.url}/ui/" if config.ui else None,
        "port": _port_of(server.url),
        "amqp_url": server.amqp_url or None,
        "amqp_port": _port_of(server.amqp_url),
        "amqps_url": server.amqps_url or None,
        "amqps_port": _port_of(server.amqps_url),
        "store": "redis" if config.store is not None else "memory" if config.memory else "journal",
        "data": None if config.path is None else os.path.abspath(config.path),
        "sign_in": not server.guard.is_open,
    }


def ready_line(server: Announced) -> str:
    """The line that `openq serve --json` prints when it is ready."""
    line = {"event": "ready", **ready_fields(server)}
    if server.new_key is not None:
        user, key, secret = server.new_key
        line["first_key"] = {"user": user, "access_key_id": key, "secret_access_key": secret}
    return json.dumps(line, ensure_ascii=False)


def _port_of(url: str) -> int | None:
    return int(url.rpartition(":")[2]) if url else None


def stop_message(config: Config, count: int) -> str:
    kept = "1 message" if count == 1 else f"{count} messages"
    be = ("is", "was") if count == 1 else ("are", "were")
    if config.store is not None:
        return f"stopped; {kept} {be[0]} in Redis"
    if config.memory:
        return f"stopped; {kept} {be[1]} in memory and {be[0]} gone"
    return f"stopped; {kept} {be[0]} safe on disk in {config.data}"
