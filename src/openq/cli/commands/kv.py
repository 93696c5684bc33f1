"""`openq kv`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import count, positive, seconds
from .options import JSON, JSON_LINES, READ, SERVER

_BUCKET = Option("bucket", metavar="BUCKET", help="name of the bucket")
_KEY = Option("key", metavar="KEY", help="the key")

COMMANDS = {
    "kv": Command(
        examples=(
            ("openq kv ls", "every bucket with the number of its keys"),
            ("openq kv put results job-1 done --ttl 1h", "store a value for an hour"),
            ("openq kv get results job-1", "print it"),
            ("openq kv rm results job-1", "delete it"),
        ),
        commands={
            "ls": Command(
                help="list buckets, or the keys of a bucket",
                run="kv:ls",
                examples=(
                    ("openq kv ls", "the buckets"),
                    ("openq kv ls results", "the keys of a bucket"),
                    ("openq kv ls results job-", "keys that begin with job-"),
                    ("openq kv ls results --json", "one JSON object per line, with the values"),
                    ("openq kv ls results --data ./openq-data", "of a data directory that no process uses"),
                ),
                options=(
                    Option("bucket", nargs="?", metavar="BUCKET", help="name of the bucket"),
                    Option("prefix", nargs="?", metavar="PREFIX", default="", help="beginning of the keys"),
                    Option(
                        *("-n", "--max"),
                        metavar="N",
                        type=positive,
                        default=1000,
                        help="maximum number of keys (default 1000)",
                    ),
                    JSON_LINES,
                    *READ,
                ),
            ),
            "get": Command(
                help="print a value",
                run="kv:get",
                examples=(
                    ("openq kv get results job-1", "the value alone"),
                    ("openq kv get results job-1 --json", "with its version and times"),
                    ("openq kv get results job-2 --wait 30s", "wait until it is there"),
                    ("openq kv get results job-1 --wait 30s --version 7", "wait for a newer version than 7"),
                ),
                details="Exit code 3 means that there is no such key.",
                options=(
                    _BUCKET,
                    _KEY,
                    Option(
                        "--wait", metavar="TIME", type=seconds, default=0.0, help="how long to wait for it"
                    ),
                    Option(
                        "--version", metavar="N", type=count, default=0, help="only a newer version than this"
                    ),
                    JSON,
                    *READ,
                ),
            ),
            "put": Command(
                help="store a value",
                run="kv:put",
                examples=(
                    ("openq kv put results job-1 done", "for ever"),
                    (
                        "openq kv put results job-1 --ttl 1h < result.bin",
                        "the contents of stdin, for an hour",
                    ),
                    ("openq kv put locks nightly me --if-absent --ttl 5m", "only if the key does not exist"),
                    ("openq kv put results job-1 redone --version 7", "only if the key has version 7"),
                ),
                details="Prints the new version. Exit code 1 means that the key has another version.",
                options=(
                    _BUCKET,
                    _KEY,
                    Option(
                        "value", nargs="?", metavar="VALUE", help="the value; stdin if it is - or missing"
                    ),
                    Option("--file", metavar="FILE", help="read the value from a file"),
                    Option(
                        "--ttl",
                        metavar="TIME",
                        type=seconds,
                        help="time to live: 30, 5m, 2h; default: for ever",
                    ),
                    Option(
                        "--version",
                        one_of="condition",
                        metavar="N",
                        type=positive,
                        help="only if the key has this version",
                    ),
                    Option(
                        "--if-absent",
                        one_of="condition",
                        action="store_true",
                        help="only if the key does not exist",
                    ),
                    JSON,
                    *SERVER,
                ),
            ),
            "rm": Command(
                help="delete keys",
                run="kv:rm",
                examples=(
                    ("openq kv rm results job-1 job-2", "two keys"),
                    ("openq kv rm results job-1 --version 7", "only if it has version 7"),
                ),
                details="Exit code 5 means that none of them was deleted.",
                options=(
                    _BUCKET,
                    Option("keys", nargs="+", metavar="KEY", help="the keys"),
                    Option("--version", metavar="N", type=positive, help="only a key that has this version"),
                    JSON,
                    *SERVER,
                ),
            ),
        },
    ),
}
