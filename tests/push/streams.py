"""A client of the stream for the tests: the sync client of `websockets`, frames as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

WAIT_S = 60.0  # only a failure waits as long


class Stream:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.is_json = connection.subprotocol in (None, "openq.json")
        self._next_id = 0
        self._kept: list[dict[str, Any]] = []
        self.hello = self.next("hello")

    def send(self, op: str, **fields: Any) -> int:
        """Send a request; returns its id."""
        self._next_id += 1
        frame = {"op": op, "id": self._next_id, **fields}
        self.connection.send(
            json.dumps(frame, separators=(",", ":")) if self.is_json else msgspec.msgpack.encode(frame)
        )
        return self._next_id

    def read(self) -> dict[str, Any]:
        data = self.connection.recv(timeout=WAIT_S)
        found: dict[str, Any] = json.loads(data) if isinstance(data, str) else msgspec.msgpack.decode(data)
        return found

    def next(self, op: str | None = None, id: int | None = None) -> dict[str, Any]:
        """The next frame of this kind, or for this request; others are kept for later."""
        kept, self._kept = self._kept, []
        found: dict[str, Any] | None = None
        while found is None:
            frame = kept.pop(0) if kept else self.read()
            if (op is None or frame["op"] == op) and (id is None or frame.get("id") == id):
                found = frame
            else:
                self._kept.append(frame)
        self._kept += kept
        return found

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its reply."""
        return self.next(id=self.send(op, **fields))

    def subscribe(self, queue: str, **fields: Any) -> None:
        reply = self.ask("subscribe", **{"sub": queue, "queue": queue, **fields})
        assert reply["op"] == "ok", reply

    def messages(self, count: int) -> list[dict[str, Any]]:
        """As many messages, from one or more frames."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.next("deliver")["messages"]
        assert len(found) == count
        return found

    def ack(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return self.ask("ack", receipts=[each["receipt_id"] for each in messages])

    def has_nothing(self) -> bool:
        """Whether nothing was pushed: a reply comes after what was written before."""
        self.ask("ping")
        return not any(frame["op"] == "deliver" for frame in self._kept)


def stream_url(url: str, account: str | None = None) -> str:
    path = f"accounts/{account}/stream" if account else "stream"
    return f"{url.replace('http', 'ws', 1)}/api/v1/{path}"


@contextmanager
def opened(
    url: str,
    subprotocol: str | None = "openq.json",
    *,
    query: str = "",
    account: str | None = None,
    **options: Any,
) -> Iterator[Stream]:
    wanted = None if subprotocol is None else [Subprotocol(subprotocol)]
    with connect(
        stream_url(url, account) + query, subprotocols=wanted, compression=None, proxy=None, **options
    ) as connection:
        yield Stream(connection)
