"""How a notification reaches a destination: one attempt, bounded in time. Blocking.

Requests use the HTTP client of the webhooks, on the event loop. The configuration of the server names the
destinations, so private addresses are allowed. Errors never contain a URL, a key or a password.
"""

from __future__ import annotations

import os
import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Protocol

from ..alert_rules.tables import Destination
from ..errors import InvalidSetting
from ..http_text import excerpt
from ..server.context import ServerContext
from ..webhooks.addresses import AddressRules
from ..webhooks.endpoint import check_headers, fixed_head, read_url
from ..webhooks.http_client import EndpointClient, Response
from ..webhooks.signing import key_of, sign
from . import messages
from .model import Alert

_ANY_ADDRESS = AddressRules(("0.0.0.0/0", "::/0"))
_MARGIN_S = 5.0
_PORTS = {"starttls": 587, "on": 465, "off": 25}


class NotSent(Exception):
    """Why a destination did not accept a notification. `pause_s`: that it asked for."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class NotificationSender(Protocol):
    def send(self, alerts: Sequence[Alert], now_ms: int) -> None:
        """Raises NotSent. Alerts that were accepted before an error are sent again."""

    def close(self) -> None: ...


def open_sender(destination: Destination, context: ServerContext, server: str) -> NotificationSender:
    """Raises InvalidSetting for a destination that cannot work."""
    if destination.kind == "smtp":
        return SmtpSender(destination, server)
    return HttpSender(destination, context, server)


class HttpSender:
    def __init__(self, destination: Destination, context: ServerContext, server: str) -> None:
        self._destination = destination
        self._loop = context.loop
        self._server = server
        url = destination.url
        if destination.kind == "alertmanager":
            url = url.rstrip("/")
            url += "" if url.endswith("/api/v2/alerts") else "/api/v2/alerts"
        endpoint = read_url(url)
        self._head = fixed_head(endpoint, check_headers(destination.headers))
        self._key = None if destination.secret is None else key_of(destination.secret)
        self._client = EndpointClient(context.loop, endpoint, _ANY_ADDRESS)

    def send(self, alerts: Sequence[Alert], now_ms: int) -> None:
        kind = self._destination.kind
        if kind == "pagerduty":  # one event for each
            for each in alerts:
                self._post(messages.pagerduty_body(each, self._destination, self._server), now_ms)
        elif kind == "alertmanager":
            self._post(messages.alertmanager_body(alerts, now_ms), now_ms)
        elif kind == "slack":
            self._post(messages.slack_body(alerts), now_ms)
        else:
            self._post(messages.webhook_body(alerts, self._server, now_ms), now_ms)

    def _post(self, body: bytes, now_ms: int) -> None:
        timeout_s = self._destination.timeout_s
        head = self._head + self._more_headers(body, now_ms)
        future: Future[tuple[Response | None, str]] = Future()

        def answered(response: Response | None, error: str) -> None:
            if not future.done():
                future.set_result((response, error))

        try:
            self._loop.call_soon_threadsafe(self._client.post, head, body, timeout_s, answered)
            response, error = future.result(timeout_s + _MARGIN_S)
        except (RuntimeError, FutureTimeout):
            raise NotSent("the server stops") from None
        if response is None:
            raise NotSent(error)
        if not 200 <= response.status < 300:
            pause_s = 30.0 if response.status in (429, 503) else 0.0
            raise NotSent(f"HTTP {response.status}: {excerpt(response.body)[:200]}".rstrip(": "), pause_s)

    def _more_headers(self, body: bytes, now_ms: int) -> bytes:
        lines = [f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()]
        if self._destination.kind == "webhook":
            message_id, timestamp = f"alert_{os.urandom(12).hex()}".encode(), b"%d" % (now_ms // 1000)
            lines.append(b"webhook-id: %b\r\nwebhook-timestamp: %b\r\n" % (message_id, timestamp))
            if self._key is not None:
                signature = sign([self._key], message_id, timestamp, body)
                lines.append(b"webhook-signature: %b\r\n" % signature)
        return b"".join((*lines, b"\r\n"))

    def close(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._client.close)
        except RuntimeError:
            pass  # the loop is closed


class SmtpSender:
    def __init__(self, destination: Destination, server: str) -> None:
        self._destination = destination
        self._server = server
        if destination.user and destination.tls == "off" and not _is_local(destination.host):
            raise InvalidSetting(
                f"the destination {destination.name!r} would send a password without encryption: set tls"
            )

    def send(self, alerts: Sequence[Alert], now_ms: int) -> None:
        destination = self._destination
        message = messages.mail(alerts, destination, self._server, now_ms)
        try:
            with self._connect() as client:
                if destination.tls == "starttls":
                    client.starttls(context=ssl.create_default_context())
                if destination.user:
                    client.login(destination.user, destination.password)
                refused = client.send_message(message)
        except smtplib.SMTPAuthenticationError:
            raise NotSent("the mail server refused user and password") from None
        except smtplib.SMTPRecipientsRefused as error:
            raise NotSent(f"the mail server refused {', '.join(error.recipients)[:200]}") from None
        except smtplib.SMTPResponseException as error:
            raise NotSent(f"the mail server answered {error.smtp_code}") from None
        except smtplib.SMTPException as error:
            raise NotSent(f"mail: {type(error).__name__}") from None
        except ssl.SSLCertVerificationError as error:
            raise NotSent(
                f"the certificate of the mail server is not trusted: {error.verify_message}"
            ) from None
        except (OSError, UnicodeError) as error:
            raise NotSent(f"cannot reach the mail server: {_reason(error)}") from None
        if refused:
            raise NotSent(f"the mail server refused {', '.join(refused)[:200]}")

    def _connect(self) -> smtplib.SMTP:
        destination = self._destination
        port = destination.port or _PORTS[destination.tls]
        if destination.tls == "on":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(destination.host, port, timeout=destination.timeout_s, context=context)
        return smtplib.SMTP(destination.host, port, timeout=destination.timeout_s)

    def close(self) -> None:
        """Each mail has its own connection."""


def _is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _reason(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    return getattr(error, "strerror", None) or type(error).__name__


def outcome_text(error: NotSent | None) -> Mapping[str, object]:
    return {"ok": error is None, "detail": "" if error is None else str(error)}
