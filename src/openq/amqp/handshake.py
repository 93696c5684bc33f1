"""The handshake of a connection: protocol header, login, tuning, vhost.

state              expects                  then
AWAITING_HEADER    the protocol header      sends connection.start
STARTING           connection.start-ok      checks the login; sends connection.tune
AUTHENTICATING     (a password is checked in a thread; nothing is read)
TUNING             connection.tune-ok
OPENING            connection.open          sends connection.open-ok
RUNNING            methods of all classes
CLOSING            connection.close-ok      after an error or a stop of the server
CLOSED             nothing
"""

from __future__ import annotations

import logging
import platform
from functools import partial
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..amqp_fields import MalformedProperties, decode_table
from ..auth.errors import AuthenticationFailed
from ..auth.failed_logins import MALFORMED
from ..auth.guard import Principal
from ..broker.subscriptions import is_batch
from . import methods as m
from .access import ConnectionAccess
from .arguments import account_of, vhost_of
from .errors import ACCESS_REFUSED, CHANNEL_ERROR, NOT_ALLOWED, SYNTAX_ERROR, AmqpError
from .frames import FRAME_MIN
from .publishing import VhostPublisher

if TYPE_CHECKING:
    from .connection import AmqpConnection

log = logging.getLogger("openq.amqp")

AWAITING_HEADER, STARTING, AUTHENTICATING, TUNING, OPENING, RUNNING, CLOSING, CLOSED = range(8)

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
OLD_PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x09"  # of 0-9, which has the same frames and methods
MAX_FRAME = 131_072
MAX_CHANNELS = 2047
HEARTBEAT_S = 60

# Clients choose their behaviour by product and version. kombu assumes that in RabbitMQ from 3.3 up to 4.0,
# basic.qos with `global` changes the prefetch of existing consumers, as it does here.
PRODUCT = "RabbitMQ"
PRODUCT_VERSION = "3.13.7"
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
SERVER_PROPERTIES: dict[str, Any] = {
    "capabilities": CAPABILITIES,
    "cluster_name": "openq",
    "copyright": "",
    "information": "OpenQ, speaking AMQP 0-9-1 as RabbitMQ does",
    "platform": f"Python {platform.python_version()}",
    "product": PRODUCT,
    "version": PRODUCT_VERSION,
    "openq_version": __version__,
}


class Handshake:
    """Brings one connection from AWAITING_HEADER to RUNNING."""

    def __init__(self, connection: AmqpConnection, certificate_name: str | None) -> None:
        self._connection = connection
        self._logins = connection.server.logins
        self._certificate_name = certificate_name
        self._header = b""
        self._principal: Principal | None = None
        self._is_guest = False

    def read_header(self, data: bytes) -> bytes:
        """Returns what follows the header."""
        connection = self._connection
        self._header += data
        header = self._header
        headers = (PROTOCOL_HEADER, OLD_PROTOCOL_HEADER)
        if len(header) < len(PROTOCOL_HEADER) and any(each.startswith(header) for each in headers):
            return b""
        if not header.startswith(headers):
            # The standard: answer with the supported version, then close.
            connection.transport.write(PROTOCOL_HEADER)
            connection.close_now()
            return b""
        self._header = b""
        connection.state = STARTING
        mechanisms = b"PLAIN AMQPLAIN" if self._certificate_name is None else b"PLAIN AMQPLAIN EXTERNAL"
        connection.send(0, m.ConnectionStart(0, 9, SERVER_PROPERTIES, mechanisms, b"en_US"))
        connection.flush()
        return header[len(PROTOCOL_HEADER) :]

    def method(self, method: m.Method) -> None:
        state = self._connection.state
        if state == STARTING and isinstance(method, m.ConnectionStartOk):
            self._start_ok(method)
        elif state == TUNING and isinstance(method, m.ConnectionTuneOk):
            self._tune_ok(method)
        elif state == OPENING and isinstance(method, m.ConnectionOpen):
            self._open(method)
        else:
            raise AmqpError(CHANNEL_ERROR, "unexpected method in connection state opening")

    # -- login

    def _start_ok(self, method: m.ConnectionStartOk) -> None:
        connection = self._connection
        connection.client_properties = method.client_properties
        connection.mechanism = method.mechanism
        name = method.client_properties.get("connection_name")
        if isinstance(name, str) and name:
            connection.label = _label(name)
        else:
            connection.label = f"{connection.peer}:{connection.port}"
        try:
            user, password = self._credentials(method.mechanism, method.response)
        except (ValueError, MalformedProperties):
            connection.context.guard.refused.refuse("amqp", "", connection.peer, MALFORMED)
            raise AmqpError(SYNTAX_ERROR, f"malformed {method.mechanism} response") from None
        connection.user = user
        connection.state = AUTHENTICATING
        if method.mechanism == "EXTERNAL":
            self._finish_login(self._logins.certificate_user(user, connection.peer))
            return
        cached = self._logins.cached(user, password, connection.peer)
        if cached is not None:
            self._finish_login(cached)
            return
        connection.pause()
        check = partial(self._logins.check_password, user, password, connection.peer)
        connection.context.check(check, self._password_checked)

    def _credentials(self, mechanism: str, response: bytes) -> tuple[str, str]:
        if mechanism == "PLAIN":
            _, user, password = response.split(b"\x00")
            return user.decode(), password.decode()
        if mechanism == "AMQPLAIN":
            table, _ = decode_table(len(response).to_bytes(4, "big") + response)
            name, secret = table.get("LOGIN"), table.get("PASSWORD")
            if isinstance(name, str) and isinstance(secret, str):
                return name, secret
            raise ValueError("LOGIN and PASSWORD")
        if mechanism == "EXTERNAL" and self._certificate_name is not None:
            return self._certificate_name, ""
        raise AmqpError(NOT_ALLOWED, f"unknown authentication mechanism '{mechanism[:40]}'")

    def _password_checked(self, principal: Principal | None, error: BaseException | None) -> None:
        self._connection.run_in_order(self._continue_login, principal, error)

    def _continue_login(self, principal: Principal | None, error: BaseException | None) -> None:
        connection = self._connection
        if connection.state != AUTHENTICATING:
            return
        if error is not None and not isinstance(error, AuthenticationFailed):
            log.error("password check failed: %s", error)
        connection.run(partial(self._finish_login, principal))
        connection.resume()

    def _finish_login(self, principal: Principal | None) -> None:
        connection = self._connection
        if principal is None:
            refusal = AmqpError(
                ACCESS_REFUSED,
                f"Login was refused using authentication mechanism {connection.mechanism}. "
                "For details see the broker logfile.",
            )
            if connection.client_supports("authentication_failure_close"):
                refusal.ends_connection = True
                raise refusal
            connection.flush()
            connection.close_now()
            return
        self._principal = principal
        self._is_guest = connection.context.guard.is_open
        connection.state = TUNING
        connection.send(0, m.ConnectionTune(connection.max_channels, MAX_FRAME, HEARTBEAT_S))

    # -- tuning and vhost

    def _tune_ok(self, method: m.ConnectionTuneOk) -> None:
        connection = self._connection
        frame = method.frame_max or MAX_FRAME
        if frame < FRAME_MIN:
            raise AmqpError(
                NOT_ALLOWED,
                f"negotiated frame_max = {frame} is lower than the minimum allowed value ({FRAME_MIN})",
            )
        if frame > MAX_FRAME:
            raise AmqpError(
                NOT_ALLOWED,
                f"negotiated frame_max = {frame} is higher than the maximum allowed value ({MAX_FRAME})",
            )
        channels = method.channel_max or MAX_CHANNELS
        if channels > MAX_CHANNELS:
            raise AmqpError(
                NOT_ALLOWED,
                f"negotiated channel_max = {method.channel_max} is higher than the maximum allowed value "
                f"({MAX_CHANNELS})",
            )
        connection.max_frame = frame
        connection.max_channels = channels
        connection.reader.limit_frames(frame)
        connection.heartbeat_s = method.heartbeat
        connection.last_received_s = connection.context.loop.time()
        connection.state = OPENING

    def _open(self, method: m.ConnectionOpen) -> None:
        connection = self._connection
        vhost, user = method.virtual_host, connection.user
        if not connection.topology.vhost_exists(vhost):
            raise AmqpError(NOT_ALLOWED, f"vhost {vhost} not found")
        account = account_of(vhost)
        assert self._principal is not None
        principal = self._logins.in_account(self._principal, account)
        if principal is None:
            raise AmqpError(NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{user}'")
        context = connection.context
        connection.vhost = vhost_of(account)  # "/" has several spellings
        connection.account = account
        connection.access = ConnectionAccess(
            context,
            principal,
            user=user,
            account=account,
            vhost=connection.vhost,
            peer=connection.peer,
            is_tls=connection.is_tls,
            is_guest=self._is_guest,
        )
        connection.publisher = VhostPublisher(
            context,
            connection.topology,
            vhost=vhost,
            account=account,
            user=user,
            cache_count=connection.server.publish_cache,
        )
        connection.handshake_done()
        connection.send(0, m.ConnectionOpenOk())
        connection.server.connection_opened(connection)


def _label(name: str) -> str:
    """The name a client gives itself, safe for a log line and as the consumer of a lease."""
    label = "".join(char if char.isprintable() else "?" for char in name[:100])
    return f"amqp:{label}" if is_batch(label) else label
