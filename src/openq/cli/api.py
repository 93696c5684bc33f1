"""The server of a command: its address and credentials, and the calls of its REST API."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ..client import http as client_http
from ..client.http import ClientResponse, HttpClient, Refused, Unreachable
from ..client.rest_client import RestClient, RestReply, Retries
from ..client.rest_client import path_part as path_part
from ..config import DEFAULT_URL, ConfigError, secret
from ..errors import OpenQError
from ..parsing import without_password

MAX_PAGE = 1000  # the server's limit
# A gateway without a usable response from the server: it may have forwarded the request.
GATEWAY_STATUS = (502, 504)


class UsageError(OpenQError):
    """Valid options that cannot be combined or applied."""

    code = "usage"


class NotFound(OpenQError):
    """A file or directory that a command was given does not exist."""

    code = "not_found"


class OutcomeUnknown(OpenQError):
    """The response to a change was lost: the server may have applied it."""

    code = "uncertain"

    def __init__(self, what: str, why: object) -> None:
        super().__init__(f"uncertain: {what}; {why}")
        self.why = why


class Client(Protocol):
    """What sends the requests: a `RestClient`, or a `LocalClient` for a data directory."""

    url: str

    def target(self, path: str, query: Mapping[str, object] | None = None) -> str: ...

    def send(
        self,
        method: str,
        target: str,
        data: bytes | None = None,
        *,
        timeout_s: float | None = None,
        idempotent: bool = True,
    ) -> RestReply: ...


class ApiClient:
    """The REST API of a server as JSON values."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.url = client.url

    def get(self, path: str, *, timeout_s: float | None = None, **query: object) -> Any:
        return self._call("GET", path, query, None, timeout_s).json()

    def raw(self, path: str, **query: object) -> ClientResponse:
        return self._call("GET", path, query, None, None)

    def post(self, path: str, body: object = None, *, timeout_s: float | None = None, **query: object) -> Any:
        return self._call("POST", path, query, {} if body is None else body, timeout_s).json()

    def put(self, path: str, body: object, **query: object) -> tuple[int, Any]:
        """The status too: 201 for a new queue, 200 for a changed one."""
        response = self._call("PUT", path, query, body, None)
        return response.status, response.json()

    def patch(self, path: str, body: object) -> Any:
        return self._call("PATCH", path, {}, body, None).json()

    def delete(self, path: str, body: object = None, **query: object) -> Any:
        response = self._call("DELETE", path, query, body, None)
        return response.json() if response.body else {}

    def _call(
        self, method: str, path: str, query: Mapping[str, object], body: object, timeout_s: float | None
    ) -> ClientResponse:
        target = self._client.target(path.removeprefix("/"), query)
        data = None if body is None else json.dumps(body).encode()
        return send_request(self._client, method, target, data, timeout_s).raise_for_status()

    def pages(self, path: str, items: str, cursor: str, **query: object) -> Iterator[Any]:
        """All items of a list, page by page; `cursor` is the field that names the start of the next page."""
        after: object = None
        while True:
            page = self._call("GET", path, {"limit": MAX_PAGE, **query, "after": after}, None, None).json()
            yield from page[items]
            after = page.get(cursor)
            if after is None or not page[items]:
                return


def send_request(
    client: Client, method: str, target: str, data: bytes | None, timeout_s: float | None = None
) -> ClientResponse:
    """The response. Raises OutcomeUnknown if there is none and a change may have been applied."""
    is_change = method != "GET"
    try:
        response = client.send(method, target, data, timeout_s=timeout_s, idempotent=not is_change).response
    except client_http.Uncertain as error:
        raise OutcomeUnknown("the change may have been applied", error.cause) from None
    assert response is not None
    if response.status in GATEWAY_STATUS and is_change:
        try:
            response.raise_for_status()
        except Refused as error:
            raise OutcomeUnknown("the change may have been applied", error) from None
    return response


def connect(options: Namespace) -> ApiClient:
    """By the options, or the environment, or the default address; or to the directory of --data."""
    if getattr(options, "data", None) is None:
        return ApiClient(client_of(options))
    if options.url:
        raise UsageError("--data and --url cannot be combined")
    from .local_api import LocalClient  # loads what a server loads

    client = LocalClient(options.data, options.account)
    options.close = client.close  # called when the command ends
    return ApiClient(client)


def url_of(options: Namespace) -> str:
    """The address as given. Raises UsageError if it is invalid."""
    url = str(options.url or os.environ.get("OPENQ_URL") or DEFAULT_URL)
    try:
        HttpClient(url).close()  # it would connect at the first request
    except Unreachable as error:
        origin = "--url" if options.url else "OPENQ_URL"
        raise UsageError(f"{origin} {without_password(url)}: {error.why}") from None
    return url


def client_of(options: Namespace) -> RestClient:
    environ = os.environ
    url = url_of(options)
    token = token_of(options)
    user = password = None
    if token is None:
        user = options.user or environ.get("OPENQ_USER") or None
        if user is not None:
            password = secret("OPENQ_PASSWORD", environ) or ask_password(f"password of {user}: ")
    client = RestClient(
        url,
        token,
        user=user,
        password=password,
        ca=options.ca or environ.get("OPENQ_CA") or None,
        account=options.account,
        timeout_s=options.timeout if options.timeout is not None else 30.0,
        retries=Retries(explains=False),
    )
    options.close = client.close  # called when the command ends
    return client


def token_of(options: Namespace) -> str | None:
    if options.token and options.token_file:
        raise ConfigError("--token and --token-file cannot be combined")
    if options.token:
        return str(options.token)
    if options.token_file:
        return secret("OPENQ_TOKEN", {"OPENQ_TOKEN_FILE": options.token_file})
    if getattr(options, "user", None):
        return None  # --user overrides the token of the environment
    return secret("OPENQ_TOKEN", os.environ)


def ask_password(prompt: str, *, twice: bool = False) -> str:
    """From the terminal, or the first line of stdin."""
    if not sys.stdin.isatty():
        text = sys.stdin.readline().rstrip("\r\n")
        if not text:
            raise UsageError("password required: on stdin, in OPENQ_PASSWORD or in OPENQ_PASSWORD_FILE")
        return text
    from getpass import getpass

    text = getpass(prompt)
    if twice and getpass("repeat the password: ") != text:
        raise UsageError("the passwords differ")
    if not text:
        raise UsageError("the password must not be empty")
    return text
