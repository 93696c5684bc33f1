"""The library's calls to a server: msgpack documents, and errors as the exceptions of a local queue."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..errors import InvalidSetting
from .documents import parse_error
from .http import ClientResponse, HttpClient, Refused, Unreachable
from .rest_client import TIMEOUT_S, RestClient, Retries

RECONNECT_S = 30.0

_MSGPACK = "application/msgpack"
_OPENQ_MSGPACK = "application/vnd.openq+msgpack"


class ServerReply(NamedTuple):
    value: Any  # None: called off by `on_connection`
    retried: bool  # an earlier try may have been carried out too


class ServerApi:
    def __init__(
        self, url: str, token: str | None = None, ca: str | None = None, reconnect_s: float = RECONNECT_S
    ) -> None:
        retries = Retries(reconnect_s, failure_in=_shutting_down)
        self._rest = RestClient(url, token, ca=ca, retries=retries)
        self.url = self._rest.url
        self.sleep = self._rest.sleep
        self.abort = self._rest.abort

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        queue: str = "",
        message_id: str | None = None,
        idempotent: bool = False,
        retry: bool = True,
        wait_s: float = 0.0,
        what: str = "it was done",
        on_connection: Callable[[HttpClient | None], bool] | None = None,
    ) -> ServerReply:
        """One request, with its response decoded or its problem raised as the error that it stands for.

        `path` is below /api/v1/, with its query. `idempotent`: it may be carried out twice. `retry`: wait for
        a server that is unreachable. For `on_connection` and `what` see `RestClient.send`.
        """
        response, retried = self._rest.send(
            method,
            self._rest.target(path),
            None if body is None else _encode(body),
            _MSGPACK,
            accept=_OPENQ_MSGPACK,
            timeout_s=TIMEOUT_S + wait_s,
            idempotent=idempotent,
            retry=retry,
            what=what,
            on_connection=on_connection,
        )
        return ServerReply(None if response is None else _decode(response, queue, message_id), retried)

    @property
    def reconnect_s(self) -> float:
        return self._rest.retries.total_s

    def new_connection(self) -> HttpClient:
        return self._rest.new_connection()

    def target(self, path: str) -> str:
        return self._rest.target(path)

    def upgrade(self, path: str, headers: bytes) -> tuple[socket.socket, Mapping[str, str], bytes]:
        """Open another protocol at a path below /api/v1/; see `HttpClient.upgrade`."""
        return self._rest.new_connection().upgrade(self._rest.target(path), headers)

    def close(self) -> None:
        self._rest.abort()
        self._rest.close()


def _encode(body: object) -> bytes:
    try:
        return msgspec.msgpack.encode(body)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"this cannot be sent to a server: {error}") from None


def _decode(response: ClientResponse, queue: str, message_id: str | None) -> Any:
    if response.status >= 400:
        try:
            response.raise_for_status()
        except Refused as refused:
            raise parse_error(refused, queue, message_id) from None
    if not response.headers.get("content-type", "").endswith("msgpack"):
        raise Refused(response.status, "not_openq", "the server at url is not an OpenQ server; check url=")
    return msgspec.msgpack.decode(response.body)


def _shutting_down(url: str, response: ClientResponse) -> Unreachable | None:
    """A server that is stopping, or a proxy whose server is gone."""
    if response.status not in (502, 503, 504):
        return None
    try:
        response.raise_for_status()
    except Refused as refused:
        if refused.code not in ("error", "closed"):
            return None  # the server is there, and says what is wrong
        failure = Unreachable(url, "it is stopping" if refused.code == "closed" else refused.detail)
        # A 503 without a code of ours was refused before it reached the API.
        failure.sent = refused.code == "closed" or response.status != 503
        return failure
    return None


def check_url(url: str) -> str:
    """The url of a server; anything else is refused before connecting."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in ("amqp", "amqps"):
        raise InvalidSetting(f"url={scheme}://... is not in this version; use http://, https://, or path=")
    if scheme not in ("http", "https"):
        raise InvalidSetting(
            "url must look like http://127.0.0.1:9324, https://queue.example.com or redis://127.0.0.1:6379"
        )
    return url
