"""A small HTTP client on a bare socket: it shows every byte, and a dead server at once."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

TIMEOUT_S = 60.0  # before a server that says nothing counts as hanging
ACCOUNT = "000000000000"
SQS_JSON = "application/x-amz-json-1.0"


class ConnectionClosed(Exception):
    """The connection ended before an answer was whole: what was asked may have happened or not."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, host: str = "localhost"
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def sqs_request(action: str, members: dict[str, Any]) -> bytes:
    headers = {"Content-Type": SQS_JSON, "X-Amz-Target": f"AmazonSQS.{action}"}
    return request_bytes("POST", "/", json.dumps(members).encode(), headers)


def rest_request(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    return request_bytes(method, f"/api/v1/{path}", data, {**kind, **(headers or {})})


def queue_url(name: str) -> str:
    return f"http://localhost/{ACCOUNT}/{name}"


class RawHttpClient:
    """One connection. Not thread-safe."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        try:
            self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        except OSError as error:
            raise ConnectionClosed(str(error)) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionClosed(str(error)) from error

    def answer(self) -> Answer:
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        status = int(first.split()[1])
        size = int(headers.get("content-length", "0"))
        while len(self._data) < size:
            self._more()
        body, self._data = self._data[:size], self._data[size:]
        return Answer(status, headers, body)

    def _more(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionClosed(str(error)) from error
        if not data:
            raise ConnectionClosed("closed")
        self._data += data

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer()

    def sqs(self, action: str, **members: Any) -> Answer:
        return self.ask(sqs_request(action, members))

    def rest(self, method: str, path: str, body: Any = None) -> Answer:
        return self.ask(rest_request(method, path, body))

    def get(self, path: str) -> Answer:
        return self.ask(request_bytes("GET", path))

    def is_closed(self) -> bool:
        """Waits for the other side to hang up; what it says before is read and forgotten."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawHttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
