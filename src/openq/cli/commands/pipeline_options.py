"""Options that several commands of `openq pipeline` have."""

from __future__ import annotations

from ..spec import Option
from ..values import pair
from .options import SERVER_OF_SPARK

SPARK = (
    Option(
        "--master",
        group="Spark",
        metavar="URL",
        help="local[*] (default), spark://, yarn, k8s:// or sc:// (OPENQ_SPARK_MASTER)",
    ),
    Option(
        "--conf",
        group="Spark",
        metavar="NAME=VALUE",
        action="append",
        type=pair,
        help="Spark setting; may be repeated",
    ),
)
# The history that a job reads: of a data directory on this machine, or of a server.
HISTORY = (
    Option(
        "--data", group="history", metavar="DIR", help="read this data directory, with or without its server"
    ),
    Option(
        "--archive", group="history", metavar="DIR", help="archive (default: `archive` in the data directory)"
    ),
    *SERVER_OF_SPARK,
)
