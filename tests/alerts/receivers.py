"""Real receivers of notifications, and a server whose configuration names them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.alerts.helpers import MailServer, serve_mail
from tests.http_endpoint import Endpoint, serve_endpoint
from tests.waiting import until

KEY = b"canary-signing-key-0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
ROUTING_KEY = "canary-routing-key-2718"
SLACK_TOKEN = "canary-slack-token-1414"
PASSWORD = "canary-mail-password-1618"
CANARIES = (SECRET[6:], ROUTING_KEY, SLACK_TOKEN, PASSWORD)


@dataclass
class Receivers:
    endpoint: Endpoint
    mail: MailServer

    def table(self, more: str = "") -> str:
        return f"""
[alerts.destinations.hook]
kind = "webhook"
url = "{self.endpoint.url}/hook"
secret = "{SECRET}"
group_wait = 0.05
[alerts.destinations.chat]
kind = "slack"
url = "{self.endpoint.url}/chat/{SLACK_TOKEN}"
group_wait = 0.05
[alerts.destinations.pager]
kind = "pagerduty"
url = "{self.endpoint.url}/pager"
routing_key = "{ROUTING_KEY}"
group_wait = 0.05
[alerts.destinations.manager]
kind = "alertmanager"
url = "{self.endpoint.url}/manager"
group_wait = 0.05
[alerts.destinations.mail]
kind = "smtp"
host = "127.0.0.1"
port = {self.mail.port}
tls = "off"
from = "openq@example.com"
to = ["ops@example.com"]
group_wait = 0.05
{more}
"""

    def write(self, folder: Path, more: str = "", interval: float = 0.2) -> Path:
        file = folder / "openq.toml"
        file.write_text(f"[alerts]\ninterval = {interval}\n{self.table(more)}")
        return file

    def requests(self, path: str) -> list[tuple[dict[str, str], bytes]]:
        return [(headers, body) for at, headers, body in list(self.endpoint.seen) if at.startswith(path)]

    def hooks(self, rule: str, state: str) -> list[dict[str, Any]]:
        """The alerts of the webhook, each as often as it came."""
        return [
            alert
            for _, body in self.requests("/hook")
            for alert in json.loads(body)["data"]["alerts"]
            if alert["alert"] == rule and alert["state"] == state and not alert["test"]
        ]

    def mails(self, rule: str, state: str) -> list[str]:
        """The parts of mails about this rule."""
        parts = [
            part.replace("\r", "")
            for mail in list(self.mail.mails)
            for part in mail.get_content().split("\r\n\r\n")
        ]
        return [part for part in parts if part.startswith(state.upper()) and f": {rule}\n" in part]

    def until_notified(self, rule: str, state: str, seconds: float = 60.0) -> dict[str, Any]:
        until(
            lambda: self.hooks(rule, state) and self.mails(rule, state), f"{rule} is {state}", seconds=seconds
        )
        return self.hooks(rule, state)[0]

    def notified_once(self, rule: str, command: str) -> None:
        """Firing and resolved came once each, at both receivers, with the command."""
        for state in ("firing", "resolved"):
            assert len(self.hooks(rule, state)) == 1, self.hooks(rule, state)
            assert len(self.mails(rule, state)) == 1, self.mails(rule, state)
        assert self.hooks(rule, "firing")[0]["command"] == command
        assert f"command: {command}" in self.mails(rule, "firing")[0]

    def no_secrets(self, *more: str) -> None:
        """Secrets are where the APIs demand them, and nowhere else."""
        texts = [str(mail) for mail in self.mail.mails]
        texts += [body.decode() for path, _, body in self.endpoint.seen if path != "/pager"]
        assert [each for each in CANARIES for text in (*texts, *more) if each in text] == []


def verify(headers: dict[str, str], body: bytes) -> bool:
    """As an endpoint of Standard Webhooks does."""
    found = {name.lower(): value for name, value in headers.items()}
    signed = f"{found['webhook-id']}.{found['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    return found["webhook-signature"] == f"v1,{expected}"


@contextmanager
def receivers() -> Iterator[Receivers]:
    with ExitStack() as stack:
        yield Receivers(stack.enter_context(serve_endpoint()), stack.enter_context(serve_mail()))
