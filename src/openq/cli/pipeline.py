"""What the commands of `openq pipeline` share: the history to read, and the Spark session.

The jobs themselves are in `openq.pipeline`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..pipeline.session import is_running, session
from ..pipeline.source import is_readable
from ..pipeline.target import HistoryTarget
from .api import NotFound, token_of, url_of
from .directory import missing_reason
from .terminal import is_terminal, say, styled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def trust_ca(options: Namespace) -> None:
    """Set OPENQ_CA before Spark's processes start: they talk to the server too."""
    if getattr(options, "ca", None):
        os.environ["OPENQ_CA"] = options.ca


def spark_factory(options: Namespace) -> Callable[[], SparkSession]:
    """A function that starts Spark when it is first called, after the checks of a job."""
    trust_ca(options)
    return cache(lambda: spark_session(options))


def spark_master(options: Namespace) -> str | None:
    return options.master or os.environ.get("OPENQ_SPARK_MASTER") or None


def spark_session(options: Namespace) -> SparkSession:
    trust_ca(options)
    _silence_spark_logging()
    if is_terminal(sys.stderr):
        say(styled("starting Spark", "dim", sys.stderr))
    is_ours = not is_running()
    spark = session(spark_master(options), **dict(options.conf or ()))
    before = getattr(options, "close", None)

    def close() -> None:
        if is_ours:
            spark.stop()
        if before is not None:
            before()

    options.close = close  # called when the command is over, however it ends
    return spark


def _silence_spark_logging() -> None:
    """Show OpenQ's own warnings on the terminal, without the log output of Spark's libraries."""

    logging.getLogger().addHandler(logging.NullHandler())
    ours = logging.getLogger("openq")
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("openq: %(message)s"))
        ours.addHandler(handler)
        ours.propagate = False


def validate_source(
    place: dict[str, Any],
    since: str | None = None,
    until: str | None = None,
    queues: Sequence[str] = (),
) -> None:
    """Raises before Spark starts, which takes seconds, if directory, server, time or queue is wrong."""

    looked = HistoryTarget(**place, since=since, until=until)
    looked.history.end_position()
    looked.require(queues)


def require_data(data: str) -> None:
    """Raises NotFound if `data` is not a readable data directory."""

    if not is_readable(data):
        reason = missing_reason(data) or f"{data}: its journal cannot be read"
        raise NotFound(f"{reason}; correct --data, or give --url to read the history from a server")


def history_source(options: Namespace) -> dict[str, Any]:
    """`path=` and `archive=`, or `url=` and `token=`, for the functions of `openq.pipeline`."""

    place: dict[str, Any] = {}
    if options.data:
        place["path"] = options.data
        if options.url:
            place["url"] = options.url
        else:
            require_data(options.data)
    else:
        place["url"] = url_of(options)
    if options.archive:
        place["archive"] = options.archive
    if "url" in place:
        token = token_of(options)
        if token is not None:
            place["token"] = token
    return place


def server_options(options: Namespace) -> dict[str, Any]:
    """`url=` and `token=` of the server, also if the history is read from a directory."""

    return {"url": url_of(options), "token": token_of(options)}


def json_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"
