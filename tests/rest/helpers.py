"""A client for the tests: requests as a program would send them, nothing of ours in between."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

JSON, MSGPACK = "application/json", "application/msgpack"


class Answer:
    def __init__(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data = data

    @property
    def value(self) -> Any:
        if self.headers.get("content-type") == MSGPACK:
            return msgspec.msgpack.decode(self.data)
        return json.loads(self.data)

    @property
    def code(self) -> str:
        """Of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self.data
        problem = self.value
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["hint"]
        return str(problem["code"])


class Client:
    def __init__(
        self, url: str, *, headers: dict[str, str] | None = None, account: str | None = None
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host, self.port = parts.hostname, parts.port
        self.headers = headers or {}
        self.prefix = "/api/v1" + (f"/accounts/{part(account)}" if account else "")

    def send(
        self, method: str, target: str, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """`target` as it is on the wire."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, target, data, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Any = None, *, kind: str = JSON, **headers: str) -> Answer:
        data = None
        sent = dict(headers)
        if body is not None:
            sent["content-type"] = kind
            data = json.dumps(body).encode() if kind == JSON else msgspec.msgpack.encode(body)
        return self.send(method, self.prefix + path, data, sent)

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.call("POST", path, body, **options)

    def put(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.call("PUT", path, body, **options)

    def patch(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.call("PATCH", path, body, **options)

    def delete(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.call("DELETE", path, body, **options)

    def queue(self, name: str, **settings: Any) -> str:
        """A queue, and its path."""
        path = f"/queues/{part(name)}"
        answer = self.put(path, settings)
        assert answer.status in (200, 201), answer.data
        return path

    def receive(self, path: str, **options: Any) -> list[dict[str, Any]]:
        answer = self.post(f"{path}/receive", options)
        assert answer.status == 200, answer.data
        found: list[dict[str, Any]] = answer.value["messages"]
        return found


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
