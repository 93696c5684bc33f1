"""The server process: configuration -> broker -> protocols -> listeners; start, drain, stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import resource
import shlex
import signal
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple, TextIO

from .._version import __version__
from ..amqp.definitions_import import apply_at_start
from ..amqp.management.api import ManagementApi
from ..amqp.server import AmqpServer
from ..amqp.topology import Topology
from ..auth.documents import SharedDocument
from ..auth.guard import Guard, first_key, write_secret_file
from ..auth.store import UserStore
from ..broker.interface import Broker
from ..broker.schedules import Schedule
from ..config import DEFAULT_AMQP_PORT, KEYS, Config, flag_of
from ..errors import InvalidSetting, OpenQError
from ..local.broker import LocalBroker
from ..names import split_name, split_namespace
from ..rest.handler import RestHandler
from ..settings import merge_settings
from ..sqs.handler import SqsHandler
from ..webhooks.declaring import declare_webhook
from ..webhooks.service import WebhookService
from .context import ServerContext, StreamView
from .health import HealthHandler
from .http_request import HttpRequest
from .listener import HttpLimits, Listener, new_loop
from .memory import MemoryReclaimer, limit_arenas
from .router import HttpRouter
from .tls import client_context, load_certificate, tls_context

log = logging.getLogger("openq.server")

REFRESH_S = 1.0  # how soon a change of users made by another process is noticed
DISCONNECT_S = 3.0  # for connections to return their deliveries to a remote store
SWEEP_S = 60.0  # interval of the sweep of staged batches


class NoCredentials(InvalidSetting):
    code = "no_credentials"


class PortTaken(InvalidSetting):
    code = "port_taken"

    def __init__(self, text: str, port: int, advice: str) -> None:
        super().__init__(f"{text}; stop the other program, or {advice}")
        self.port = port
        self.advice = advice  # how to choose another port


class Server:
    """One process: one loop, one broker, one HTTP port."""

    def __init__(self, config: Config, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.broker = broker
        self.loop = loop
        self.store = open_user_store(config, broker)
        self.new_key: tuple[str, str, str] | None = None
        if config.auth == "on" and not self.store.users():
            self.new_key = first_key(self.store)
        # Behind a proxy, clients sign the public host name, not the one that arrives here.
        hosts = [host for host in config.hosts if host != "*" and not host.startswith(".")]
        self.guard = Guard(self.store, time.time, accepted_hosts=hosts, region=config.region)
        self._require_auth()
        self.context = ServerContext(broker, loop, config, self.guard)
        self.sqs = sqs = SqsHandler(self.context)
        rest = RestHandler(self.context)
        health = HealthHandler(self.context)
        self.topology = Topology(self.context)
        self.amqp = AmqpServer(self.context, self.topology)
        self.context.amqp = self.amqp
        self.webhooks = WebhookService(self.context)
        self.context.webhooks = self.webhooks
        self.context.open_streams = self._open_streams
        self.router = HttpRouter(self.context, sqs.handle)
        self.router.add("/api/v1/", rest.handle)
        self.management = ManagementApi(self.context, self.topology)
        self.router.add("/api/", self.management.handle)
        self.router.add("/openapi.json", rest.handle)
        self.router.add("/_aws/sqs/messages", sqs.peek)
        self.router.add("/_aws/sqs/messages/", sqs.peek)
        for path in ("/livez", "/readyz", "/healthz", "/metrics"):
            self.router.add(path, health.handle)
        self.listener = Listener(
            self._enter if broker.storage.waits else self.router.handle,
            HttpLimits(
                request_bytes=config.max_request_bytes,
                connections=config.max_connections,
                head_s=config.header_timeout_s,
                body_s=config.body_timeout_s,
                idle_s=config.idle_timeout_s,
            ),
            self.context.buffers,
            self.context.admission,
        )
        self.context.listener = self.listener
        self.url = ""
        self.amqp_url = ""
        self.amqps_url = ""
        self._listening: asyncio.AbstractServer | None = None
        self._amqp_listening: list[asyncio.AbstractServer] = []
        self._refresher: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._was_open = self.guard.is_open
        self._reading_users = False
        self._tls_context: ssl.SSLContext | None = None
        self._amqps_context: ssl.SSLContext | None = None
        self._reclaimer = MemoryReclaimer(self._activity, self._in_thread, clear_caches=self._clear_caches)

    def _open_streams(self) -> StreamView:
        from ..push.server import StreamServer

        return StreamServer(self.context)

    @property
    def _open_stream_count(self) -> int:
        return len(self.context.streams.sockets) if self.context.has_streams else 0

    def _activity(self) -> object:
        """A value that changes with every activity of a client."""
        heard = max((each.last_received_s for each in self.amqp.open_connections), default=0.0)
        connections = len(self.listener.connections), len(self.amqp.open_connections), self._open_stream_count
        return self.listener.requests, connections, heard

    def _clear_caches(self) -> None:
        if self.broker.history.files is not None:
            self.broker.history.files.clear_cache()

    def _in_thread(self, work: Callable[[], object]) -> None:
        self.context.run(work, lambda result, error: None)

    def _enter(self, request: HttpRequest) -> None:
        """Handle a request whose handler may wait for the store; errors are answered too."""
        self.context.enter(request.later, self.router.handle, request)

    def _require_auth(self) -> None:
        config = self.config
        if self.guard.is_open and not config.is_loopback and not config.insecure:
            data = "" if config.memory else f" --data {config.data}"
            if config.store is not None:
                data = " --store URL"
            raise NoCredentials(
                f"{config.host} is reachable from other machines and no user exists; "
                f"`openq user add admin --role admin{data}` makes a user, `--auth on` makes a first key, "
                "`--insecure` listens anyway"
            )

    def _warn_hidden_regions(self) -> None:
        """Warn of queues that SQS hides: they were created before their region became the server's own."""
        region = self.config.region
        namespaces = {
            split_name(queue_key)[0] for queue_key in self.broker.queues() if queue_key.startswith("@")
        }
        hidden = sorted(each for each in namespaces if split_namespace(each)[0] == region)
        if hidden:
            log.warning(
                "SQS does not show the queues of %s: they were made when %s was not the server's own region. "
                "AMQP has them in vhosts of these names, REST and the command line in accounts (--account)",
                *(", ".join(hidden[:10]), region),
            )

    async def start(self) -> None:
        self._declare_queues()
        self._warn_hidden_regions()
        config = self.config
        self._tls_context = context = tls_context(config)
        try:
            self._listening = await self.loop.create_server(
                self.listener.make, config.host.strip("[]"), config.port, ssl=context, backlog=4096
            )
        except OSError as error:
            raise self._cannot_listen("port", config.port, "", error) from error
        self.listener.start(self.loop)
        self.url = f"{config.scheme}://{self._address_of(self._listening)}"
        await self._start_amqp(context)
        self.management.ports = {
            protocol: int(url.rpartition(":")[2])
            for protocol, url in (("http", self.url), ("amqp", self.amqp_url), ("amqp/ssl", self.amqps_url))
            if url
        }
        self.broker.announce_url(self.url)
        self._refresh()
        self._sweep()
        self.webhooks.start()
        self._reclaimer.start(self.loop)

    def _address_of(self, listening: asyncio.AbstractServer) -> str:
        """The address as a client on this machine reaches it."""
        port = listening.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        host = self.config.host.strip("[]")
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{f'[{shown}]' if ':' in shown else shown}:{port}"

    async def _start_amqp(self, context: ssl.SSLContext | None) -> None:
        config = self.config
        self.topology.startup()
        if config.definitions is not None:
            report = apply_at_start(self.topology, self.store, config.definitions)
            for line in (*report.not_converted, *report.hints):
                log.warning("%s: %s", config.definitions, line)
        self.amqp.start()
        if config.amqp_port is not None:
            self.amqp_url = f"amqp://{await self._listen_amqp('amqp_port', config.amqp_port, None)}"
        if config.amqps_port is not None:
            self._amqps_context = client_context(config, context)
            found = await self._listen_amqp("amqps_port", config.amqps_port, self._amqps_context)
            self.amqps_url = f"amqps://{found}"

    async def _listen_amqp(
        self, key: str, port: int | Literal["auto"], context: ssl.SSLContext | None
    ) -> str:
        """Listen, and return the address."""
        config = self.config
        wanted = DEFAULT_AMQP_PORT if port == "auto" else port
        try:
            listening = await self.loop.create_server(
                self.amqp.protocol, config.host.strip("[]"), wanted, ssl=context, backlog=4096
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port == "auto":
                log.info("port %d is taken: AMQP is served on a free one", wanted)
                return await self._listen_amqp(key, 0, context)
            raise self._cannot_listen(key, wanted, " for AMQP", error) from error
        self._amqp_listening.append(listening)
        return self._address_of(listening)

    def _cannot_listen(self, key: str, port: int, what_for: str, error: OSError) -> InvalidSetting:
        text = f"cannot listen on {self.config.host} port {port}{what_for}: {error.strerror or error}"
        if error.errno != errno.EADDRINUSE:
            return InvalidSetting(f"{text}; choose --host, an address of this machine")
        choices = (
            "auto or 0 picks a free one, off serves none" if key == "amqp_port" else "0 picks a free one"
        )
        return PortTaken(text, port, f"choose another with {flag_of(key)} ({choices})")

    def _declare_queues(self) -> None:
        for name, named in self.config.queues.items():
            stored = self.broker.settings(name) if name in self.broker.queues() else None
            settings = merge_settings(stored, named)
            if settings != stored:
                self.broker.declare(name, settings, change=stored is not None)
                log.info("queue %r: %s as configured", name, "created" if stored is None else "changed")
        for name, fields in self.config.schedules.items():
            self.broker.schedules.put(Schedule(name, **fields))
        for name, fields in self.config.webhooks.items():
            declare_webhook(self.webhooks, name, fields)
        self.broker.sync()

    def _refresh(self) -> None:
        """Read the users again, now and every second: another process may have changed them."""
        self._read_users()
        if not self.listener.draining:
            self._refresher = self.loop.call_later(REFRESH_S, self._refresh)

    def _read_users(self) -> None:
        if self.broker.cluster is not None:
            if not self._reading_users:  # one read at a time: the store may be slow or unreachable
                self._reading_users = True
                self.context.run(self._read_shared_users, self._refreshed)
            return
        self._refreshed(None, self._read_local_users())

    def _read_local_users(self) -> OpenQError | None:
        """Read the users from the data directory. Returns the error, if any."""
        try:
            self.guard.refresh()
        except OpenQError as error:
            return error
        return None

    def _read_shared_users(self) -> None:
        self.guard.refresh()
        self.topology.policies.refresh()

    def _refreshed(self, _: None, error: BaseException | None) -> None:
        self._reading_users = False
        if error is not None:
            log.error("users: %s; the previous users stay in force", error)
        if self.guard.is_open != self._was_open:
            self._was_open = self.guard.is_open
            self.router.forget_hosts()

    def reload(self, config: Config) -> None:
        """Apply the settings that can change while the server runs: log level, certificates, users.

        Certificates are checked first: an invalid file changes nothing. Open connections keep their
        certificate.
        """
        if tls_context(config) is not None:
            for context in filter(None, (self._tls_context, self._amqps_context)):
                load_certificate(context, config)
        logging.getLogger("openq").setLevel(config.log_level.upper())

        def read(_: None, error: BaseException | None) -> None:
            self._refreshed(None, error)
            self._report_reload(config, with_users=error is None)

        if self.broker.cluster is not None:
            self.context.run(self._read_shared_users, read)
        else:
            read(None, self._read_local_users())

    def _report_reload(self, config: Config, *, with_users: bool) -> None:
        pending = restart_needed(self.config, config)
        log.info(
            "reloaded: log level %s%s%s%s",
            config.log_level,
            ", users" if with_users else "",
            ", certificate" if self._tls_context is not None and config.tls_cert is not None else "",
            f"; a restart is needed for {', '.join(pending)}" if pending else "",
        )

    def _sweep(self) -> None:
        """Publish staged batches that were committed before a restart, and drop abandoned ones."""
        self.context.run(self.broker.staging.sweep, self._swept)

    def _swept(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.error("staged batches", exc_info=error)
        if not self.listener.draining:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    async def drain(self) -> int:
        """Finish running requests, then close the broker. Returns the number of stored messages."""
        self._reclaimer.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._refresher is not None:
            self._refresher.cancel()
        if self._listening is not None:
            self._listening.close()
        for listening in self._amqp_listening:
            listening.close()
        self.listener.drain()
        self.amqp.drain()
        self.webhooks.stop()
        if self.context.has_streams:
            self.context.streams.drain()
        end = self.loop.time() + self.config.drain_timeout_s
        while True:
            for poll in list(
                self.context.long_polls
            ):  # one may have started meanwhile, while its request waited for the store
                poll.end()
            is_open = self.listener.connections or self.amqp.open_connections or self._open_stream_count
            is_busy = is_open or not self.webhooks.is_idle
            if not is_busy or self.loop.time() >= end:
                break
            await asyncio.sleep(0.01)
        self.listener.stop()
        self.amqp.stop()
        await self._end_webhooks()
        if self.context.has_streams:
            self.context.streams.stop()
        if self.broker.storage.waits:
            await self._wait_for_disconnects()
        self.context.close()
        return await self.loop.run_in_executor(None, self._close)

    async def _end_webhooks(self) -> None:
        """End running requests, and wait until their messages are returned."""
        self.webhooks.close()
        end = self.loop.time() + DISCONNECT_S
        while not self.webhooks.is_idle and self.loop.time() < end:
            await asyncio.sleep(0.01)

    async def _wait_for_disconnects(self) -> None:
        """Wait until closed connections have returned their deliveries to the store."""
        end = self.loop.time() + DISCONNECT_S
        while self._is_returning and self.loop.time() < end:
            await asyncio.sleep(0.01)

    @property
    def _is_returning(self) -> bool:
        streams = self.context.has_streams and self._open_stream_count + self.context.streams.closing
        return bool(self.amqp.open_connections or self.amqp.closing_connections or streams)

    def _close(self) -> int:
        """Close the broker, in a thread: it may block. Returns the number of stored messages."""
        self.topology.peers.leave()
        with suppress(OpenQError):
            self.webhooks.leave()
        count = 0
        with suppress(OpenQError):
            for name in self.broker.queues():
                with suppress(OpenQError):
                    stats = self.broker.stats(name)
                    count += stats.ready + stats.delayed + stats.in_flight
        self.broker.close()
        return count


RELOADABLE_KEYS = ("log_level", "tls_cert", "tls_key")


def restart_needed(running: Config, wanted: Config) -> list[str]:
    """The changed keys that need a restart."""
    keys = [key for key in KEYS if key not in RELOADABLE_KEYS]
    # Certificates are reloaded from the same paths; TLS cannot be switched on or off.
    changed = [key for key in keys if getattr(running, key) != getattr(wanted, key)]
    if (running.tls_cert is None) != (wanted.tls_cert is None):
        changed.append("tls_cert")
    if running.queues != wanted.queues:
        changed.append("queues")
    if running.schedules != wanted.schedules:
        changed.append("schedules")
    if running.webhooks != wanted.webhooks:
        changed.append("webhooks")
    return changed


def raise_file_limit() -> None:
    """Raise the limit of open files: each connection is a file, and the soft limit is often 1,024 where the
    hard limit is much higher."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def set_up_logging(config: Config) -> None:
    kind = config.log_format
    if kind == "auto":
        kind = "text" if sys.stderr.isatty() else "json"
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if kind == "json" else text)
    root = logging.getLogger("openq")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(config.log_level.upper())


class JsonLines(logging.Formatter):
    """One JSON object per line; names that clients choose cannot inject lines."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def banner(server: Server, out: TextIO) -> None:
    config, url = server.config, server.url
    where = f"everything acknowledged is in {config.data}"
    if config.path is None:
        where = server.broker.storage.place
    lines = [
        f"OpenQ {__version__} is ready: {where}",
        f"  SQS        {url}",
        f"  REST       {url}/api/v1/queues   (description: {url}/openapi.json)",
        f"  AMQP       {_amqp_line(server)}",
        f"  metrics    {url}/metrics   health: {url}/readyz",
    ]
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


def _amqp_line(server: Server) -> str:
    urls = [url for url in (server.amqp_url, server.amqps_url) if url]
    if not urls:
        return "not served (--amqp-port)"
    user = "   (user guest, password guest)" if server.guard.is_open else ""
    return " and ".join(urls) + user


def _example_lines(server: Server) -> list[str]:
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


def ready_line(server: Server) -> str:
    """The line that `openq serve --json` prints when it is ready: how to connect."""
    config = server.config
    line: dict[str, object] = {
        "event": "ready",
        "version": __version__,
        "pid": os.getpid(),
        "url": server.url,
        "port": _port_of(server.url),
        "amqp_url": server.amqp_url or None,
        "amqp_port": _port_of(server.amqp_url),
        "amqps_url": server.amqps_url or None,
        "amqps_port": _port_of(server.amqps_url),
        "store": "redis" if config.store is not None else "memory" if config.memory else "journal",
        "data": None if config.path is None else os.path.abspath(config.path),
        "sign_in": not server.guard.is_open,
    }
    if server.new_key is not None:
        user, key, secret = server.new_key
        line["first_key"] = {"user": user, "access_key_id": key, "secret_access_key": secret}
    return json.dumps(line, ensure_ascii=False)


def _port_of(url: str) -> int | None:
    return int(url.rpartition(":")[2]) if url else None


async def _serve(server: Server, out: TextIO, options: RunOptions) -> int:
    """Serve until a signal stops the server. Returns the number of stored messages.

    One run of the loop: a signal between two runs would be lost.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        server.loop.add_signal_handler(number, stopping.set)
    server.loop.add_signal_handler(signal.SIGHUP, _reload, server, options.reload)
    await server.start()
    # Objects created at start are permanent: the collector need not scan them. Connections leave no cycles
    # behind, so it is called rarely; `MemoryReclaimer` collects the remaining ones.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    if options.as_json:
        print(ready_line(server), file=out, flush=True)
    else:
        banner(server, out)
    if options.ready is not None:
        options.ready(server)
    await stopping.wait()
    if options.as_json:
        print(json.dumps({"event": "stopping"}), file=out, flush=True)
    else:
        print("stopping: no new requests; those that run may end", file=out, flush=True)
    return await server.drain()


def _reload(server: Server, read: Callable[[], Config] | None) -> None:
    """SIGHUP. An invalid configuration is reported and changes nothing."""
    try:
        server.reload(server.config if read is None else read())
    except (OpenQError, OSError) as error:
        log.error("not reloaded: %s; nothing was changed", error)
    except Exception:
        log.exception("not reloaded")


def open_broker(config: Config, loop: asyncio.AbstractEventLoop | None = None) -> Broker:
    """Open the broker that the configuration names."""
    if config.store is None:
        return LocalBroker(
            config.path,
            segment_bytes=config.segment_bytes,
            history_bytes=config.history_bytes,
            max_kv_bytes=config.max_kv_bytes,
            relaxed=config.relaxed,
        )
    try:
        from ..redis.broker import RedisBroker
    except ModuleNotFoundError as error:
        if error.name not in ("hiredis", "greenlet"):
            raise
        raise InvalidSetting('messages in Redis need more: pip install "openq[redis]"') from None
    return RedisBroker(config.store, profile=config.profile, loop=loop)


def open_user_store(config: Config, broker: Broker) -> UserStore:
    """The users shared by all servers of the store, or those in the data directory."""
    if broker.cluster is not None:
        return UserStore(place=SharedDocument(broker.cluster, "users", "the document of users in Redis"))
    return UserStore(None if config.path is None else os.path.join(config.path, "users.json"))


class RunOptions(NamedTuple):
    as_json: bool = False  # the output is for programs
    ready: Callable[[Server], None] | None = None  # called once the server accepts requests
    reload: Callable[[], Config] | None = None  # reads the configuration again, for SIGHUP


def run(
    config: Config,
    out: TextIO | None = None,
    ready: Callable[[Server], None] | None = None,
    *,
    as_json: bool = False,
    reload: Callable[[], Config] | None = None,
) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns the exit code."""
    out = out or sys.stdout
    set_up_logging(config)
    # Until the loop takes it over: a SIGHUP during the start must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_file_limit()
    limit_arenas()
    loop = new_loop()
    broker = open_broker(config, loop)
    try:
        server = Server(config, broker, loop)
        if server.new_key is not None and config.path is not None:
            text = "AWS_ACCESS_KEY_ID={1}\nAWS_SECRET_ACCESS_KEY={2}\n".format(*server.new_key)
            write_secret_file(os.path.join(config.path, "first-key"), text)
        count = loop.run_until_complete(_serve(server, out, RunOptions(as_json, ready, reload)))
        if as_json:
            print(json.dumps({"event": "stopped", "messages": count}), file=out, flush=True)
        else:
            print(stop_message(config, count), file=out, flush=True)
        return 0
    finally:
        broker.close()
        with suppress(Exception):
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def stop_message(config: Config, count: int) -> str:
    kept = "1 message" if count == 1 else f"{count} messages"
    be = ("is", "was") if count == 1 else ("are", "were")
    if config.store is not None:
        return f"stopped; {kept} {be[0]} in Redis"
    if config.memory:
        return f"stopped; {kept} {be[1]} in memory and {be[0]} gone"
    return f"stopped; {kept} {be[0]} safe on disk in {config.data}"
