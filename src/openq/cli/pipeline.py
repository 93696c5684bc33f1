"""`openq pipeline ...`: the group, and what its commands share: where the history is, and which Spark.

Each command has its parsers in a module of its own beside this one, and its work in `openq.pipeline`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from .parser import CommandGroup, Parser, pair
from .terminal import is_terminal, say, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from typing import Any

    from pyspark.sql import SparkSession

MODULES = ("pipeline_archive", "pipeline_analytics", "pipeline_resend", "pipeline_jobs", "pipeline_cursors")


def add(name: str, verbs: CommandGroup, help: str) -> None:
    group = verbs.add(
        name,
        None,
        help,
        [
            ("openq pipeline archive run", "the journal's past as Parquet, verified"),
            ("openq pipeline analytics --open", "rates, waits, failures; an HTML report"),
            ("openq pipeline triage", "dead letters by what went wrong"),
            ("openq pipeline replay --from orders --since 1h --to orders", "publish again, exactly once"),
            (
                'openq pipeline sql "INSERT INTO queue(b) SELECT body FROM stream(queue(a))"',
                "a pipeline in a line",
            ),
        ],
        "Jobs on Spark, in this process or on a cluster (--master). They need `pip install 'openq[spark]'`\n"
        "and Java 17 or later (or `pip install 'openq[spark-java]'`).",
    ).group()
    for module in MODULES:
        import_module(f"openq.cli.{module}").add(group)


def add_history(parser: Parser) -> None:
    """Where the history is: a data directory on this machine, or a server."""
    where = parser.add_argument_group("history")
    where.add_argument("--data", metavar="DIR", help="read this data directory, beside its server or without")
    where.add_argument("--archive", metavar="DIR", help="the archive (default: DIR/archive of the data)")
    add_address(parser)


def add_address(parser: Parser) -> None:
    """A server that Spark's tasks talk to as well: by token, which can be limited and handed on."""
    server = parser.add_argument_group("server")
    server.add_argument("--url", help="the server (OPENQ_URL; default http://127.0.0.1:9324)")
    server.add_argument("--token", help="bearer token (better: OPENQ_TOKEN or OPENQ_TOKEN_FILE)")
    server.add_argument("--token-file", metavar="FILE", help="a file with the bearer token")
    server.add_argument(
        "--ca", metavar="FILE", help="certificate to trust (OPENQ_CA), for HTTPS of one's own"
    )
    parser.set_defaults(user=None)


def add_spark(parser: Parser) -> None:
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--master",
        metavar="URL",
        help="local[*] (default), spark://, yarn, k8s:// or sc:// (OPENQ_SPARK_MASTER)",
    )
    spark.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", type=pair, help="a setting of Spark; may be repeated"
    )


def trust_ca(options: Namespace) -> None:
    """By the environment, and before Spark's processes start: they talk to the server as well."""
    if getattr(options, "ca", None):
        os.environ["OPENQ_CA"] = options.ca


def spark_factory(options: Namespace) -> Callable[[], SparkSession]:
    """Starts Spark when it is first called: a job checks what it can before."""
    from functools import cache

    trust_ca(options)
    return cache(lambda: spark_session(options))


def spark_master(options: Namespace) -> str | None:
    return options.master or os.environ.get("OPENQ_SPARK_MASTER") or None


def spark_session(options: Namespace) -> SparkSession:
    from ..pipeline.session import is_running, session

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
    """What Spark's libraries log would go to the terminal, stack traces and all; our own warnings do."""
    import logging

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
    """Raises before Spark starts what would be found out after it: a wrong place, time or queue."""
    from ..pipeline.target import HistoryTarget

    looked = HistoryTarget(**place, since=since, until=until)
    looked.history.end_position()
    looked.require(queues)


def require_data(data: str) -> None:
    """Raises NotFound if `data` is no data directory that can be read here."""
    from ..pipeline.source import is_readable
    from .api import NotFound
    from .journal import missing_reason

    if not is_readable(data):
        reason = missing_reason(data) or f"{data}: its journal cannot be read"
        raise NotFound(f"{reason}; correct --data, or give --url to read the history from a server")


def history_source(options: Namespace) -> dict[str, Any]:
    """`path=` and `archive=`, or `url=` and `token=`, for the functions of `openq.pipeline`."""
    from .api import token_of, url_of

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
