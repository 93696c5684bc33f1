"""What tests of alerts share: a source of values for expressions, and a real mail server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage

from openq.alert_rules.expression import Sample, Value


class FakeSource:
    """Signals by name: a value, or samples (time, value), the last of which is now."""

    def __init__(self, values: Mapping[str, float | Sequence[Sample] | None]) -> None:
        self._values = values

    def _samples(self, signal: str) -> Sequence[Sample]:
        found = self._values.get(signal)
        if found is None:
            return []
        return [(0.0, float(found))] if isinstance(found, int | float) else found

    def value(self, signal: str) -> Value:
        samples = self._samples(signal)
        return samples[-1][1] if samples else None

    def first_last(self, signal: str, window_s: float) -> tuple[Sample, Sample] | None:
        samples = self._samples(signal)
        if not samples:
            return None
        now_s = samples[-1][0]
        before = [each for each in samples if each[0] <= now_s - window_s]
        return (before[-1] if before else samples[0]), samples[-1]

    def points(self, signal: str, window_s: float, count: int) -> tuple[list[float], float]:
        samples = self._samples(signal)
        return [value for _, value in samples], window_s / (count - 1)


@dataclass
class MailServer:
    """`mails` are those that were accepted; `lines` all that clients said."""

    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    reply_to_mail: str = "250 ok"


@contextmanager
def serve_mail() -> Iterator[MailServer]:
    """A real SMTP server, as much of one as a client needs to hand in a mail."""
    found = MailServer()
    listener = socket.create_server(("127.0.0.1", 0))
    found.port = listener.getsockname()[1]

    def talk(connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:

            def say(text: str) -> None:
                stream.write(text.encode() + b"\r\n")
                stream.flush()

            say("220 mail")
            while line := stream.readline():
                text = line.decode().strip()
                found.lines.append(text)
                verb = text.split(" ")[0].upper()
                if verb == "DATA":
                    say("354 go on")
                    data = b""
                    while (part := stream.readline()) not in (b".\r\n", b""):
                        data += part[1:] if part.startswith(b"..") else part
                    mail = message_from_bytes(data, policy=policy.default)
                    assert isinstance(mail, EmailMessage)
                    if found.reply_to_mail.startswith("250"):
                        found.mails.append(mail)
                    say(found.reply_to_mail)
                elif verb == "QUIT":
                    say("221 bye")
                    return
                else:
                    say("250 ok")

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
