"""`openq pipeline archive`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import positive, seconds, size
from .options import CONFIRM, JSON, SERVER_OF_SPARK
from .pipeline_options import SPARK

_PATHS = (
    Option("--data", group="files", metavar="DIR", help="data directory (OPENQ_DATA; default ./openq-data)"),
    Option(
        "--archive", group="files", metavar="DIR", help="archive (default: `archive` in the data directory)"
    ),
)
_RUN_OPTIONS = (
    Option("--include-open", action="store_true", help="include the segment that is being written"),
    Option(
        "--accept-gap",
        action="store_true",
        help="continue after rows that were deleted before they were archived",
    ),
    Option(
        "--task-size",
        metavar="SIZE",
        type=size,
        help="size of the rows in one task's memory (default 384MiB)",
    ),
)

ARCHIVE = Command(
    help="archive the history of the journal as Parquet files",
    examples=(
        ("openq pipeline archive run --data ./data", "archive every full segment, verified"),
        ("openq pipeline archive watch --data ./data", "the same whenever a segment is full, until Ctrl-C"),
        (
            "openq pipeline archive run --url http://server:9324 --archive ./archive",
            "over HTTP, if the data directory is on another machine",
        ),
        ("openq pipeline archive verify --data ./data", "every file and row, against the journal too"),
        ("openq pipeline archive compact --data ./data", "merge small files into large ones"),
        ("openq pipeline archive versions --data ./data", "the versions that asOf accepts"),
    ),
    details=(
        "Segments of the journal become zstd Parquet, by day, sorted by queue and sequence. Readers see "
        "complete versions only. Rows are verified in the archive before the journal may delete them."
    ),
    commands={
        "run": Command(
            help="archive every segment that is not in the archive yet",
            run="pipeline_archive:run",
            examples=(
                ("openq pipeline archive run --data ./data", "all full segments"),
                ("openq pipeline archive run --data ./data --dry-run", "show how many"),
                ("openq pipeline archive run --data ./data --include-open", "up to the last message"),
                ("openq pipeline archive run --data ./data --master none", "without Spark, in this process"),
                (
                    "openq pipeline archive run --url http://server:9324 --archive ./archive",
                    "the whole history of a server, on Redis too",
                ),
            ),
            details=(
                "Run it as often as you like: archived segments are skipped, and an interrupted run is "
                "resumed. A running server learns how far the archive reaches, and keeps what follows. With "
                "--url and no --data the rows come from the server over HTTP, for the queues that the token "
                "can see. That deletes nothing on the server: its history retention must cover the time "
                "between two runs."
            ),
            options=(
                *_PATHS,
                *_RUN_OPTIONS,
                Option("--dry-run", action="store_true", help="only show how much would be archived"),
                *SPARK,
                *SERVER_OF_SPARK,
                JSON,
            ),
        ),
        "watch": Command(
            help="archive whenever a segment is full, until Ctrl-C",
            run="pipeline_archive:watch",
            examples=(
                ("openq pipeline archive watch --data ./data", "while its server runs"),
                ("openq pipeline archive watch --data ./data --every 60s", "check once a minute"),
                (
                    "openq pipeline archive watch --url http://server:9324 --archive ./archive --every 5m",
                    "over HTTP",
                ),
            ),
            options=(
                *_PATHS,
                Option(
                    "--every",
                    metavar="TIME",
                    type=seconds,
                    help="interval between checks (default 2s; with --url alone 60s)",
                ),
                *_RUN_OPTIONS,
                *SPARK,
                *SERVER_OF_SPARK,
                Option("--json", action="store_true", help="one JSON object per run that archived something"),
            ),
        ),
        "verify": Command(
            help="verify every file and row of the archive",
            run="pipeline_archive_maintenance:verify",
            examples=(
                (
                    "openq pipeline archive verify --data ./data",
                    "also against the journal, while it holds the rows",
                ),
                ("openq pipeline archive verify --archive /mnt/archive", "the archive alone"),
                ("openq pipeline archive verify --data ./data --as-of 12", "an older version"),
            ),
            details=(
                "Checks checksums, row counts, statistics, order, and that each row of each segment is "
                "present exactly once. Exit code 1 if anything is wrong."
            ),
            options=(
                *_PATHS,
                Option(
                    "--as-of",
                    metavar="VERSION",
                    type=positive,
                    help="version to verify (default: the newest)",
                ),
                *SPARK,
                JSON,
            ),
        ),
        "compact": Command(
            help="merge the small files of each day into large ones",
            run="pipeline_archive_maintenance:compact",
            examples=(
                ("openq pipeline archive compact --data ./data", "files of about 192 MiB"),
                ("openq pipeline archive compact --data ./data --target-size 64MiB", "another size"),
            ),
            details="Readers of older versions are not affected: the old files stay until `vacuum`.",
            options=(
                *_PATHS,
                Option("--target-size", metavar="SIZE", type=size, help="size of a file (default 192MiB)"),
                Option("--dry-run", action="store_true", help="only show how many files would be merged"),
                *SPARK,
                JSON,
            ),
        ),
        "erase": Command(
            help="remove messages from the archive permanently",
            run="pipeline_archive_erase:erase",
            examples=(
                (
                    "openq pipeline archive erase --data ./data --message-id ID",
                    "one message, in all its queues",
                ),
                (
                    "openq pipeline archive erase --data ./data --queue mails --before 90d",
                    "old messages of a queue",
                ),
                (
                    "openq pipeline archive erase --data ./data --where \"attributes['user'].string = '7'\"",
                    "by a Spark SQL condition on the table messages",
                ),
            ),
            details=(
                "Every given condition must match. Messages are removed with their bodies and attributes; "
                "their events are kept without texts. Older versions hold the messages until `openq pipeline "
                "archive vacuum --now`."
            ),
            options=(
                *_PATHS,
                Option(
                    "--message-id",
                    action="append",
                    metavar="ID",
                    default=[],
                    help="message id; may be repeated",
                ),
                Option(
                    "--queue",
                    dest="queues",
                    action="append",
                    metavar="NAME",
                    default=[],
                    help="queue name, with * and ? as wildcards; may be repeated",
                ),
                Option("--where", metavar="SQL", help="Spark SQL condition"),
                Option(
                    "--before", metavar="TIME", help="published before: 90d (ago), or 2026-01-31T10:30:00Z"
                ),
                *CONFIRM,
                *SPARK,
                JSON,
            ),
        ),
        "versions": Command(
            help="list the versions of the archive",
            run="pipeline_archive_maintenance:versions",
            examples=(
                ("openq pipeline archive versions --data ./data", "oldest first; `asOf` accepts each"),
            ),
            options=(*_PATHS, JSON),
        ),
        "vacuum": Command(
            help="remove old versions and unreferenced files",
            run="pipeline_archive_maintenance:vacuum",
            examples=(
                ("openq pipeline archive vacuum --data ./data", "versions older than a week"),
                (
                    "openq pipeline archive vacuum --data ./data --now",
                    "all but the newest, whatever their age",
                ),
                (
                    "openq pipeline archive vacuum --data ./data --keep 5 --older 30d",
                    "always keep the newest five",
                ),
            ),
            details=(
                "Erased messages are gone only when the versions that hold them are removed. A reader of a "
                "removed version gets an error and must use a newer one."
            ),
            options=(
                *_PATHS,
                Option(
                    "--keep",
                    metavar="N",
                    type=positive,
                    default=1,
                    help="newest versions to keep (default 1)",
                ),
                Option(
                    "--older",
                    metavar="TIME",
                    type=seconds,
                    help="minimum age of removed versions (default 7d)",
                ),
                Option("--now", action="store_true", help="remove versions of any age"),
                Option("--dry-run", action="store_true", help="only list the files"),
                JSON,
            ),
        ),
    },
)
