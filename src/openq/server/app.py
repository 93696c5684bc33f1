"""The server process: configuration -> broker -> protocols -> listeners; start, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import importlib
import io
import logging
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO, cast

from .._version import __version__
from ..alerts.service import AlertService
from ..amqp.definitions_import import apply_at_start
from ..amqp.management.api import ManagementApi
from ..amqp.server import AmqpServer
from ..amqp.topology import Topology
from ..auth.failed_logins import RefusedLogin
from ..auth.guard import Guard, first_key
from ..broker.audit import FAILED, OK
from ..broker.interface import Broker
from ..config import DEFAULT_AMQP_PORT, Config
from ..errors import InvalidSetting, OpenQError
from ..local.broker import LocalBroker
from ..logs import SLOW, emit
from ..names import split_name, split_namespace
from ..rest.handler import RestHandler
from ..sqs.handler import SqsHandler
from ..ui.handler import UiHandler, redirect
from ..webhooks.declaring import declare_webhook
from ..webhooks.model import Webhook
from ..webhooks.service import WebhookService
from .announcement import Announcer
from .audit import shown_detail
from .buffers import buffer_bytes
from .config_limits import audit_limits, http_limits, raise_file_limit
from .context import ServerContext, StreamView
from .declarations import Declarations, Undo, reason_of
from .health import HealthHandler
from .home import is_of_home, pass_on, serve_home
from .http_request import HttpRequest
from .listener import Listener, new_loop
from .logs import LoopWatch, RequestLog, set_up_logging
from .memory import MemoryReclaimer, limit_arenas
from .ports import BACKLOG, PortTaken, cannot_listen, client_address
from .reload import NotReloaded, ReloadReport, ThenReloaded, compare, merged
from .router import HttpRouter
from .systemd import Systemd
from .tls import client_context, load_certificate, tls_context
from .tracing import open_tracing
from .user_stores import NoCredentials, keep_first_key, open_sessions, open_user_store

if TYPE_CHECKING:
    from .process_member import Member

log = logging.getLogger("openq.server")

REFRESH_S = 1.0  # how soon a change of users made by another process is noticed
DISCONNECT_S = 3.0  # for connections to return their deliveries to a remote store
SWEEP_S = 60.0  # interval of the sweep of staged batches


class Server:
    """One process: one loop, one broker, one HTTP port."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        member: Member | None = None,
    ) -> None:
        """`member`: this process is one of several that serve the same ports."""
        self.config = config
        self.member = member
        self.tracing = open_tracing(config)
        if self.tracing is not None:
            broker = self.tracing.traced(broker)
        self.broker = broker
        self.loop = loop
        changed = None if member is None else member.announce_users
        self.store = open_user_store(config, broker, changed)
        self.new_key: tuple[str, str, str] | None = None
        if config.auth == "on" and not self.store.users():
            self.new_key = first_key(self.store)
        # Behind a proxy, clients sign the public host name, not the one that arrives here.
        hosts = [host for host in config.hosts if host != "*" and not host.startswith(".")]
        self.guard = Guard(
            self.store,
            time.time,
            accepted_hosts=hosts,
            region=config.region,
            sessions=open_sessions(config, broker, changed),
        )
        self._require_auth()
        self.context = ServerContext(broker, loop, config, self.guard)
        if self.tracing is not None:
            self.context.publish_later = self.context.ack_later = None  # each call has a span of its own
        self.context.member = member
        self.sqs = sqs = SqsHandler(self.context)
        rest = RestHandler(self.context)
        self._health = health = HealthHandler(self.context)
        self.topology = Topology(self.context)
        self.amqp = AmqpServer(self.context, self.topology)
        self.context.amqp = self.amqp
        self.webhooks = WebhookService(self.context)
        self.context.webhooks = self.webhooks
        self.context.fleet.roles = (lambda: self.context.event_bridge.role, lambda: self.webhooks.role)
        self.alerts = AlertService(self.context)
        self.context.alerts = self.alerts
        self.context.open_streams = self._open_streams
        self.router = HttpRouter(self.context, sqs.handle)
        self.router.add("/api/v1/", rest.handle)
        self.management = ManagementApi(self.context, self.topology)
        self.router.add("/api/", self.management.handle)
        self.router.add("/openapi.json", rest.handle)
        self.router.add("/_aws/sqs/messages", sqs.peek)
        self.router.add("/_aws/sqs/messages/", sqs.peek)
        for path in ("/livez", "/readyz", "/healthz", "/metrics", "/metrics/queues"):
            self.router.add(path, health.handle)
        if config.ui:
            self.router.add_pages("/ui/", UiHandler().handle, redirect)
        self._handler = self._enter if broker.storage.waits else self.router.handle
        if member is not None:
            self._join(member)
        self._request_log = RequestLog(self._handler)
        self._loop_watch = LoopWatch(loop, lambda: self._request_log.slow_s)
        self.listener = Listener(
            self._handler,
            http_limits(config),
            self.context.buffers,
            self.context.admission,
        )
        self.context.listener = self.listener
        self.url = ""
        self.amqp_url = ""
        self.amqps_url = ""
        self._listening: asyncio.AbstractServer | None = None
        self._more_listening: list[asyncio.AbstractServer] = []
        self._refresher: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._was_open = self.guard.is_open
        self.systemd = Systemd({})  # set by `_serve`
        self._reading_users = False
        self.read_config: Callable[[], Config] | None = None  # reads the configuration again
        self._reloading = self._reload_again = False
        self.context.reload = self._reload_all
        self._tls_context: ssl.SSLContext | None = None
        self._amqps_context: ssl.SSLContext | None = None
        self._reclaimer = MemoryReclaimer(self._activity, self._in_thread, clear_caches=self._clear_caches)
        self._set_logs(config)

    def _join(self, member: Member) -> None:
        """Be one of several processes."""
        member.page_of = lambda view: self._health.page_of(*cast(tuple[str, bool, str], view))
        member.in_thread = self._in_thread
        member.users_changed = self._read_users
        if member.place.home is not None:
            return
        handle, path = self._handler, member.place.home_path

        def handle_or_pass_on(request: HttpRequest) -> None:
            if is_of_home(request):
                pass_on(self.loop, path, request)
            else:
                handle(request)

        self._handler = handle_or_pass_on

    def _set_logs(self, config: Config) -> None:
        """What is logged on demand: requests, slow operations, state changes."""
        requests = self._request_log
        requests.logs_all = config.log_requests
        requests.slow_s = SLOW.limit_s = config.log_slow
        self.listener.handler = requests.handle if requests.is_on else self._handler

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
        self.context.enter(request.run_guarded, self.router.handle, request)

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
        self.alerts.prepare(self.config.alerts)
        self._declare(self.config)
        self._warn_hidden_regions()
        config = self.config
        self._tls_context = context = tls_context(config)
        self._listening = await self._listen("port", config.port, self.listener.make, context)
        self.listener.start(self.loop)
        self.url = f"{config.scheme}://{client_address(self.config.host, self._listening)}"
        member = self.member
        if member is not None and member.place.home is not None:
            self._more_listening.append(await serve_home(self.loop, member.place.home, self.listener))
        await self._start_amqp(context)
        self.management.ports = {
            protocol: int(url.rpartition(":")[2])
            for protocol, url in (("http", self.url), ("amqp", self.amqp_url), ("amqp/ssl", self.amqps_url))
            if url
        }
        self.broker.announce_url(self.url)
        number = 0 if member is None else member.place.number
        self.context.fleet.start(self.url, self.amqp_url or self.amqps_url, number)
        self._start_audit()
        self._refresh()
        self._sweep()
        self.webhooks.start()
        self.context.event_bridge.start()
        self._reclaimer.start(self.loop)
        self._loop_watch.start()
        self.context.event_log.start(config.log_events, config.log_events_sample)
        self.context.process.start(self.loop)
        self.context.series.start()
        self.alerts.start(config.alerts, self.management.ports["http"])

    def _start_audit(self) -> None:
        config, audit = self.config, self.context.audit
        audit.store.limits = audit_limits(config)
        self.guard.refused.observer = self._login_refused
        audit.record("server", "start", self.url, detail={"version": __version__, "pid": os.getpid()})

    def _login_refused(self, refused: RefusedLogin) -> None:
        self.context.audit.login_refused(refused)
        self.alerts.login_refused(refused)

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
        wanted = DEFAULT_AMQP_PORT if port == "auto" else port
        try:
            listening = await self._listen(key, wanted, self.amqp.protocol, context)
        except PortTaken:
            if port != "auto":
                raise
            log.info("port %d is taken: AMQP is served on a free one", wanted)
            return await self._listen_amqp(key, 0, context)
        self._more_listening.append(listening)
        return client_address(self.config.host, listening)

    async def _listen(
        self,
        key: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
    ) -> asyncio.AbstractServer:
        """Raises PortTaken or InvalidSetting."""
        if self.member is not None:  # the supervisor has opened them
            first, *more = [
                await self.loop.create_server(protocol, sock=each, ssl=context, backlog=BACKLOG)
                for each in self.member.place.sockets[key]
            ]
            self._more_listening += more
            return first
        try:
            return await self.loop.create_server(
                protocol, self.config.host.strip("[]"), port, ssl=context, backlog=BACKLOG
            )
        except OSError as error:
            raise cannot_listen(self.config, key, port, error) from error

    def _declare(self, config: Config) -> list[tuple[str, str]]:
        """The queues, schedules and webhooks of the configuration. Returns what has changed."""
        changed = Declarations(self.broker, self._declare_webhook).declare(config)
        for action, name in changed:
            log.info("%s %r, as configured", action, name)
            detail = shown_detail(config.queues.get(name, {})) if action.endswith("queue") else {}
            self.context.audit.record("config", action, name, detail=detail)
        return changed

    def _declare_webhook(self, name: str, fields: Mapping[str, Any]) -> Undo | None:
        store = self.webhooks.store
        before = store.find(name)
        stored = declare_webhook(self.webhooks, name, fields).webhook
        if before is None:
            return lambda: store.delete(name)
        known: Webhook = before
        return None if stored == known else lambda: store.change(name, lambda _: known)

    def _refresh(self) -> None:
        """Read the users again, now and every second: another process may have changed them."""
        self._read_users()
        self.guard.refused.flush()
        if self.guard.sessions.must_flush:
            self._in_thread(self.guard.sessions.flush)
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

    def reload(self, then: ThenReloaded) -> None:
        """Read the configuration again and apply what can change while the server runs; see `reload.py`."""
        if self._reloading:
            then(None, NotReloaded("another reload is running; try again"))
            return
        self._reloading = True
        running = self.config

        def prepare() -> tuple[Config, list[tuple[str, str]]]:
            wanted = running if self.read_config is None else self.read_config()
            taken = merged(running, wanted)
            tls_context(taken)  # raises for a certificate that cannot be used
            if taken.tls_cert != wanted.tls_cert:
                tls_context(wanted)  # nor could the restart use it that switches TLS on
            self.alerts.prepare(wanted.alerts)
            self._read_shared_users() if self.broker.cluster is not None else self.guard.refresh()
            return wanted, self._declare(wanted)

        def prepared(
            result: tuple[Config, list[tuple[str, str]]] | None, error: BaseException | None
        ) -> None:
            self._reloading = False
            report = None
            if result is not None:
                try:
                    report = self._apply(*result)
                except OpenQError as failure:
                    error = failure  # the certificate was replaced a moment ago
            if report is None:
                error = self._not_reloaded(error)
            then(report, error)

        self.context.run(prepare, prepared)

    def _reload_all(self, then: ThenReloaded) -> None:
        """This process, which answers, and then the others."""

        def reloaded(report: ReloadReport | None, error: BaseException | None) -> None:
            if report is not None and self.member is not None:
                self.member.reload_others()
            then(report, error)

        self.reload(reloaded)

    def _apply(self, wanted: Config, declared: list[tuple[str, str]]) -> ReloadReport:
        report = compare(self.config, wanted)
        report.declared = declared
        config = merged(self.config, wanted)
        if config.tls_cert is not None:  # open connections keep their certificate
            for tls in filter(None, (self._tls_context, self._amqps_context)):
                load_certificate(tls, config)
        before, self.config, self.context.config = self.config, config, config
        self._refreshed(None, None)
        self._set_logs(config)
        self._loop_watch.start()
        self.alerts.configure(config.alerts)
        events = (config.log_events, config.log_events_sample)
        if events != (before.log_events, before.log_events_sample):
            self._in_thread(lambda: self.context.event_log.start(*events))
        self.context.audit.store.limits = audit_limits(config)
        self.listener.limits = http_limits(config)
        self.context.buffers.max_bytes = buffer_bytes(config)
        self.context.admission.set_max_connections(config.max_connections)
        self.amqp.max_body = config.max_message_bytes
        self.guard.sessions.idle_ms = int(config.session_idle_s * 1000)
        self.guard.sessions.max_ms = int(config.session_max_s * 1000)
        if any(action == "put_webhook" for action, _ in declared):
            self.webhooks.changed()
        ours = logging.getLogger("openq")
        ours.setLevel(min(ours.level, logging.INFO))  # the report is always logged
        emit(log, logging.INFO, "reloaded", **report.fields())
        ours.setLevel(config.log_level.upper())
        return report

    def _not_reloaded(self, error: BaseException | None) -> NotReloaded:
        if not isinstance(error, OpenQError | OSError):
            log.error("not reloaded", exc_info=error)
        failure = NotReloaded("internal error" if error is None else reason_of(error))
        emit(log, logging.ERROR, "not_reloaded", reason=failure.reason)
        return failure

    def reload_by_signal(self) -> None:
        def reloaded(report: ReloadReport | None, error: BaseException | None) -> None:
            outcome = OK if report is not None else FAILED
            detail = {"reason": str(error)} if report is None else report.fields()
            self.context.audit.record("signal", "reload", "", outcome, detail=detail)
            if self._reload_again:
                self._reload_again = False
                self.reload_by_signal()
            elif self.member is not None:
                self.member.reloaded()
            else:
                self.systemd.reloaded()

        self.systemd.reloading()
        if self._reloading:
            self._reload_again = True  # the file may have changed since it was read
        else:
            self.reload(reloaded)

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
        self._loop_watch.stop()
        SLOW.limit_s = 0.0
        self.context.process.stop()
        self.context.fleet.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._refresher is not None:
            self._refresher.cancel()
        if self._listening is not None:
            self._listening.close()
        for listening in self._more_listening:
            listening.close()
        self.listener.drain()
        self.amqp.drain()
        self.webhooks.stop()
        self.context.event_bridge.stop()
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
        self.alerts.stop()
        self.context.series.stop()
        self.context.event_log.stop()
        self.context.event_bridge.join()
        self.guard.refused.flush(is_end=True)
        audit = self.context.audit
        audit.record("server", "stop", self.url)
        audit.stop()
        number, digest = audit.head()
        emit(log, logging.INFO, "audit_head", number=number, hash=digest)
        self.topology.peers.leave()
        self.context.fleet.leave()
        with suppress(OpenQError):
            self.webhooks.leave()
        with suppress(OpenQError):
            self.context.consumer_events.finish()
        count = 0
        with suppress(OpenQError):
            for name in self.broker.queues():
                with suppress(OpenQError):
                    stats = self.broker.stats(name)
                    count += stats.ready + stats.delayed + stats.in_flight
        self.broker.close()
        if self.tracing is not None:
            self.tracing.close()
        return count


async def _serve(server: Server, announcer: Announcer, options: RunOptions) -> int:
    """Serve until a signal stops the server. Returns the number of stored messages.

    One run of the loop: a signal between two runs would be lost.
    """
    stopping: asyncio.Future[str] = server.loop.create_future()
    member = server.member
    systemd = server.systemd = Systemd() if member is None else Systemd({})

    def stop(number: signal.Signals) -> None:
        if not stopping.done():
            stopping.set_result(number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        server.loop.add_signal_handler(number, stop, number)
    if member is not None:
        await member.open(server.loop, lambda: stop(signal.SIGTERM))
    server.read_config = options.reload
    server.loop.add_signal_handler(signal.SIGHUP, server.reload_by_signal)
    await server.start()
    # Objects created at start are permanent: the collector need not scan them. Connections leave no cycles
    # behind, so it is called rarely; `MemoryReclaimer` collects the remaining ones.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    announcer.ready(server)
    if member is not None:
        member.ready(cast(io.StringIO, options.said).getvalue())
    if options.ready is not None:
        options.ready(server)
    systemd.ready(server.loop, f"serving at {server.url}")
    reason = await stopping
    systemd.stopping()
    announcer.stopping(reason)
    count = await server.drain()
    if member is not None:
        member.stopped(count)
    return count


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


class RunOptions(NamedTuple):
    ready: Callable[[Server], None] | None = None  # called once the server accepts requests
    reload: Callable[[], Config] | None = None  # reads the configuration again, for SIGHUP
    said: TextIO | None = None  # where a process of several prints what its supervisor shows


def run(
    config: Config,
    out: TextIO | None = None,
    ready: Callable[[Server], None] | None = None,
    *,
    as_json: bool = False,
    reload: Callable[[], Config] | None = None,
) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns the exit code. With `as_json` the output is for programs."""
    out = out or sys.stdout
    member: Member | None = None
    if config.processes > 1:
        from .process_group import GroupSupervisor  # imported only where it is used
        from .process_member import Member

        with suppress(ModuleNotFoundError):  # `open_broker` says what is missing
            importlib.import_module("openq.redis.broker")  # once, in memory that all of them share
        gc.collect()
        gc.freeze()
        outcome = GroupSupervisor(config, out, as_json=as_json).run()
        if outcome.place is None:
            return outcome.exit_code
        member, out = Member(outcome.place), io.StringIO()
    announcer = Announcer(out, config, as_json=as_json)
    writer = set_up_logging(config, 0 if member is None else member.place.number)
    # Until the loop takes it over: a SIGHUP during the start must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_file_limit()
    limit_arenas()
    loop = new_loop()
    broker = open_broker(config, loop)
    try:
        server = Server(config, broker, loop, member)
        if server.new_key is not None:
            keep_first_key(config, server.new_key, is_shown=as_json or config.log_format != "json")
        start_s = time.monotonic()
        count = loop.run_until_complete(_serve(server, announcer, RunOptions(ready, reload, out)))
        announcer.stopped(count, time.monotonic() - start_s)
        return 0
    finally:
        broker.close()
        with suppress(Exception):
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        writer.flush()
