"""Acks the last batch of a stream with mode=consume when the run has ended, from what Spark committed.

A running query acks a batch when it asks for the next one. When a run ends before that (stopped, failed in
the next batch, trigger once), its last batch is acked by this listener, by `close_stream`, or by the next
start, whichever comes first. Acking twice does no harm, and batch numbers are never reused.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ..errors import InvalidSetting, OpenQError
from .calls import link_of, quoted
from .consume import BATCH, SUBSCRIPTION
from .options import STREAM, SourceOptions, as_options

if TYPE_CHECKING:
    from .link import Link

log = logging.getLogger("openq.pipeline")


class Closer(StreamingQueryListener):
    """`spark.streams.addListener(Closer(url))`: acks a batch as soon as Spark has it in its commit log."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._link = _link(url, token)
        self._acked: dict[str, int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        # Spark reports progress when the batch is in its commit log.
        found = offsets_in(source.endOffset for source in event.progress.sources)
        for subscription, number in found.items():
            if number > self._acked.get(subscription, -1):
                try:
                    _ack(self._link, subscription, number)
                except OpenQError as error:
                    # The query continues, and acks it when it asks for the next batch.
                    log.warning(
                        "batch %d of subscription %s is not acked yet: %s", number, subscription, error
                    )
                else:
                    self._acked[subscription] = number

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._link.close()


def close_stream(ended: Any, url: str, token: str | None = None) -> dict[str, int]:
    """Ack what an ended query has committed. Returns the number of the last batch of each subscription.

    `ended` is the query, or the directory of its checkpoint.
    """
    if isinstance(ended, str | os.PathLike):
        found = offsets_in(committed_offsets(os.fspath(ended)))
    else:
        progress = ended.lastProgress
        found = offsets_in(source.endOffset for source in progress.sources) if progress is not None else {}
    link = _link(url, token)
    try:
        for subscription, number in found.items():
            _ack(link, subscription, number)
    finally:
        link.close()
    return found


def _link(url: str, token: str | None) -> Link:
    return link_of(SourceOptions.parse(as_options(url=url, token=token), STREAM))


def _ack(link: Link, subscription: str, number: int) -> None:
    # Without an owner: this is not a reader and does not take the subscription over.
    link.call("POST", f"pipeline/subscriptions/{quoted(subscription)}/ack", json={"through": number})


def offsets_in(texts: Iterable[Any]) -> dict[str, int]:
    """The last batch of each subscription in the offsets of a query with any sources."""
    found: dict[str, int] = {}
    for text in texts:
        try:
            value = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            continue
        for offset in _objects(value):
            number, subscription = offset.get(BATCH), offset.get(SUBSCRIPTION)
            if isinstance(number, int) and isinstance(subscription, str):
                found[subscription] = max(number, found.get(subscription, number))
    return found


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for each in value.values():
            yield from _objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from _objects(each)


def committed_offsets(checkpoint: str) -> list[str]:
    """The offset log of the last batch in the commit log of Spark."""
    parts = urlsplit(checkpoint)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        raise InvalidSetting(
            f"a checkpoint on {parts.scheme}:// cannot be read from here: "
            "add the listener Closer to the session, or start the query again"
        )
    path = unquote(parts.path) if parts.scheme == "file" else checkpoint
    if not os.path.isdir(os.path.join(path, "offsets")):
        raise InvalidSetting(f"{path} is not a checkpoint of a stream: it has no offsets")
    done = _numbers(os.path.join(path, "commits"))
    if not done:
        return []
    try:
        with open(os.path.join(path, "offsets", str(max(done))), encoding="utf-8") as file:
            return file.read().splitlines()[1:]
    except FileNotFoundError:
        raise InvalidSetting(
            f"{path} is damaged: batch {max(done)} was committed and has no offsets"
        ) from None


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []
