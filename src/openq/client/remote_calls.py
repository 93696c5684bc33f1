"""Requests that the parts of a broker behind a server share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from .documents import Document
from .rest_client import path_part
from .server_api import ServerApi, ServerReply

MAX_BATCH = 1_000  # messages or receipts in one request
PAGE = 200


class RemoteCalls:
    def __init__(self, api: ServerApi) -> None:
        self.api = api

    def get(self, path: str, queue: str = "", message_id: str | None = None, **query: Any) -> Any:
        given = {name: str(value) for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        return self.api.call("GET", target, queue=queue, message_id=message_id, idempotent=True).value

    def post(self, queue: str, verb: str, body: object = None, idempotent: bool = False) -> ServerReply:
        path = f"queues/{path_part(queue)}/{verb}"
        return self.api.call("POST", path, body, queue=queue, idempotent=idempotent)

    def pages(self, path: str, queue: str, items: str, **query: Any) -> Iterator[Document]:
        after: str | None = None
        while True:
            page = self.get(path, queue, after=after, limit=PAGE, **query)
            yield from page[items]
            after = page.get("next")
            if after is None:
                return
