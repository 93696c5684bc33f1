"""The server that a command talks to: its address and credentials, and the REST API behind few words."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from ..client.http import ClientResponse, HttpClient, Refused, TimedOut, Unreachable
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


def path_part(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    # Dots alone would be taken for "here" and "up" by what lies between here and the server.
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


class ApiClient:
    def __init__(self, connection: HttpClient, account: str | None = None) -> None:
        self._connection = connection
        self._prefix = "/api/v1" + (f"/accounts/{path_part(account)}" if account else "")
        self.url = connection.url

    def get(self, path: str, *, timeout_s: float | None = None, **query: object) -> Any:
        return self._call("GET", path, query, None, timeout_s).json()

    def raw(self, path: str, **query: object) -> ClientResponse:
        return self._call("GET", path, query, None, None)

    def post(self, path: str, body: object = None, *, timeout_s: float | None = None, **query: object) -> Any:
        return self._call("POST", path, query, {} if body is None else body, timeout_s).json()

    def put(self, path: str, body: object, **query: object) -> tuple[int, Any]:
        """The status too: 201 tells a new queue from a changed one."""
        answer = self._call("PUT", path, query, body, None)
        return answer.status, answer.json()

    def patch(self, path: str, body: object) -> Any:
        return self._call("PATCH", path, {}, body, None).json()

    def delete(self, path: str, **query: object) -> Any:
        answer = self._call("DELETE", path, query, None, None)
        return answer.json() if answer.body else {}

    def _call(
        self, method: str, path: str, query: Mapping[str, object], body: object, timeout_s: float | None
    ) -> ClientResponse:
        params = {name: _query_text(value) for name, value in query.items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(params)}" if params else "")
        data = None if body is None else json.dumps(body).encode()
        return send_request(self._connection, method, target, data, timeout_s).raise_for_status()

    def pages(self, path: str, items: str, cursor: str, **query: object) -> Iterator[Any]:
        """All items of a list, page by page; `cursor` is what the answer calls the way to the next one."""
        after: object = None
        while True:
            params = {"limit": MAX_PAGE, **query, "after": after}
            page = self._call("GET", path, params, None, None).json()
            yield from page[items]
            after = page.get(cursor)
            if after is None or not page[items]:
                return


def send_request(
    connection: HttpClient, method: str, target: str, data: bytes | None, timeout_s: float | None = None
) -> ClientResponse:
    """The answer to a request. Raises Uncertain if a change may have been done although no answer says so."""
    try:
        answer = connection.request(method, target, data, timeout_s=timeout_s)
    except (Unreachable, TimedOut) as error:
        if error.sent and method != "GET":
            raise OutcomeUnknown("it may have been done", error) from None
        raise
    if answer.status in GATEWAY_STATUS and method != "GET":
        try:
            answer.raise_for_status()
        except Refused as error:
            raise OutcomeUnknown("it may have been done", error) from None
    return answer


def _query_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def connect(options: Namespace) -> ApiClient:
    """As the options say, else the environment, else the server of this machine."""
    return ApiClient(connection_of(options), options.account)


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


def connection_of(options: Namespace) -> HttpClient:
    environ = os.environ
    url = url_of(options)
    token = token_of(options)
    user = password = None
    if token is None:
        user = options.user or environ.get("OPENQ_USER") or None
        if user is not None:
            password = secret("OPENQ_PASSWORD", environ) or ask_password(f"password of {user}: ")
    connection = HttpClient(
        url,
        token=token,
        user=user,
        password=password,
        ca=options.ca or environ.get("OPENQ_CA") or None,
        timeout_s=options.timeout if options.timeout is not None else 30.0,
    )
    options.close = connection.close  # called when the command is over, however it ends
    return connection


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
