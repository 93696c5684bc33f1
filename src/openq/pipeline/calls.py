"""Connections to the server that the options of a stream or a sink name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..client.http import Refused
from ..errors import InvalidSetting, OpenQError, QueueNotFound

if TYPE_CHECKING:
    from .link import Link
    from .options import SourceOptions


def link_of(options: SourceOptions, reached_before: bool = False) -> Link:
    """`reached_before`: the server was reached before, so wait longer while it is unreachable."""
    from .link import RETRY_S, Link

    if options.url is None:
        raise InvalidSetting("this needs a server: set the option url, for example http://127.0.0.1:9324")
    retry_s = options.value("retryTimeout", RETRY_S)
    return Link(options.url, options.token, retry_s=retry_s, reached_before=reached_before)


@contextmanager
def linked(options: SourceOptions, reached_before: bool = False) -> Iterator[Link]:
    link = link_of(options, reached_before)
    try:
        yield link
    finally:
        link.close()


class NoTargetQueue(QueueNotFound):
    """The target queue does not exist; the message says how to create it."""

    def __init__(self, name: str, advice: str) -> None:
        OpenQError.__init__(self, f"queue {name!r} does not exist; {advice}")
        self.name = name


def require_queue(link: Link, name: str, advice: str | None = None) -> None:
    """Raises QueueNotFound, before Spark starts or a row is uploaded; `advice` says how to create it."""
    try:
        link.call("GET", f"queues/{quoted(name)}")
    except Refused as refused:
        # A user without the permission to inspect may still have the permission to send.
        if refused.status == 404:
            raise (NoTargetQueue(name, advice) if advice else QueueNotFound(name)) from None
        if refused.status != 403:
            raise


def quoted(name: str) -> str:
    """A name as one segment of a URL path."""
    return quote(name, safe="")
