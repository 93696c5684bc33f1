"""A reader of server-sent events, as a program without a library writes it."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any


@dataclass
class Block:
    """One event of a stream."""

    id: str
    event: str
    data: Any


class EventStream:
    """Connects when it is made. `last_id` is what a browser would send as `Last-Event-ID`."""

    def __init__(self, port: int, path: str, *, timeout: float = 30.0, **headers: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        lines = [f"GET /api/v1/{path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Accept: text/event-stream"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.file = self.socket.makefile("rb")
        self.headers: dict[str, str] = {}
        self.last_id = ""
        self.comments: list[str] = []
        try:
            self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
            self.status = int(self.file.readline().split()[1])
            while line := self.file.readline().strip():
                name, _, value = line.decode().partition(":")
                self.headers[name.lower()] = value.strip()
        except BaseException:
            self.close()
            raise

    def block(self) -> Block | None:
        """The next event; None at the end of the stream. Blocks without data only move `last_id`."""
        event, data, last_id = "message", [], self.last_id
        while raw := self.file.readline():
            line = raw.decode().rstrip("\n")
            if line:
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if not field:
                    self.comments.append(value)
                elif field == "id":
                    last_id = value
                elif field == "event":
                    event = value
                elif field == "data":
                    data.append(value)
                continue
            self.last_id = last_id
            if data:
                return Block(last_id, event, json.loads("\n".join(data)))
            event, data = "message", []
        return None

    def started(self) -> EventStream:
        """Wait until the server has sent the position at which this reader begins."""
        assert self.status == 200, self.status
        while not self.last_id:
            raw = self.file.readline()
            assert raw, "the stream ended before its first position"
            if raw.startswith(b"id: "):
                self.last_id = raw[4:].decode().strip()
                self.file.readline()
        return self

    def take(self, count: int) -> list[Block]:
        found = []
        while len(found) < count:
            block = self.block()
            assert block is not None, f"the stream ended after {len(found)} of {count} events"
            found.append(block)
        return found

    def rest(self) -> list[Block]:
        found = []
        while (block := self.block()) is not None:
            found.append(block)
        return found

    def problem(self) -> Any:
        return json.loads(self.file.read(int(self.headers["content-length"])))

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
