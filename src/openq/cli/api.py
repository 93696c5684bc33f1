"""The server that a command talks to: its address and credentials, and the REST API behind few words."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from ..client import http as client_http
from ..client.http import ClientResponse, HttpClient, Refused, Unreachable
from ..client.rest_client import RestClient, Retries
from ..client.rest_client import path_part as path_part
from ..config import DEFAULT_URL, ConfigError, secret
from ..errors import OpenQError

MAX_PAGE = 1000  # the most that the server gives at once
# A gateway that got no usable answer from the server: it may have passed the request on.
GATEWAY_STATUS = (502, 504)


class UsageError(OpenQError):
    """The words were understood, and cannot be followed."""

    code = "usage"


class NotFound(OpenQError):
    """A file or directory that a command was given does not exist."""

    code = "not_found"


class OutcomeUnknown(OpenQError):
    """The answer to a change was lost: the server may have carried it out."""

    code = "uncertain"

    def __init__(self, what: str, why: object) -> None:
        super().__init__(f"uncertain: {what}; {why}")
        self.why = why


class ApiClient:
    """The REST API of a server as JSON values."""

    def __init__(self, client: RestClient) -> None:
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

    def delete(self, path: str, **query: object) -> Any:
        response = self._call("DELETE", path, query, None, None)
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
    client: RestClient, method: str, target: str, data: bytes | None, timeout_s: float | None = None
) -> ClientResponse:
    """The response to a request. Raises Uncertain if a change may have been made without a response."""
    is_change = method != "GET"
    try:
        response = client.send(method, target, data, timeout_s=timeout_s, idempotent=not is_change).response
    except client_http.Uncertain as error:
        raise OutcomeUnknown("it may have been done", error.cause) from None
    assert response is not None
    if response.status in GATEWAY_STATUS and is_change:
        try:
            response.raise_for_status()
        except Refused as error:
            raise OutcomeUnknown("it may have been done", error) from None
    return response


def connect(options: Namespace) -> ApiClient:
    """As the options say, else the environment, else the server of this machine."""
    return ApiClient(client_of(options))


def url_of(options: Namespace) -> str:
    """The address as it was given. Raises UsageError if it is none."""
    url = str(options.url or os.environ.get("OPENQ_URL") or DEFAULT_URL)
    try:
        HttpClient(url).close()  # it opens at the first request, and there is none
    except Unreachable as error:
        raise UsageError(
            f"{'--url' if options.url else 'OPENQ_URL'} {_without_password(url)}: {error.why}"
        ) from None
    return url


def _without_password(url: str) -> str:
    """Without user and password."""
    scheme, slashes, rest = url.partition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


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
    options.close = client.close  # called when the command is over, however it ends
    return client


def token_of(options: Namespace) -> str | None:
    if options.token and options.token_file:
        raise ConfigError("--token and --token-file contradict each other: give one of them")
    if options.token:
        return str(options.token)
    if options.token_file:
        return secret("OPENQ_TOKEN", {"OPENQ_TOKEN_FILE": options.token_file})
    if options.user:
        return None  # who signs in by name does not want the token of the environment
    return secret("OPENQ_TOKEN", os.environ)


def ask_password(prompt: str, *, twice: bool = False) -> str:
    """From the person at the terminal, else the first line of stdin."""
    if not sys.stdin.isatty():
        text = sys.stdin.readline().rstrip("\r\n")
        if not text:
            raise UsageError("a password is needed: on stdin, in OPENQ_PASSWORD or in OPENQ_PASSWORD_FILE")
        return text
    from getpass import getpass

    text = getpass(prompt)
    if twice and getpass("once more: ") != text:
        raise UsageError("the two passwords are not the same")
    if not text:
        raise UsageError("an empty password is none")
    return text
