"""`openq audit`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import positive
from .options import JSON, JSON_LINES, READ

_WHICH = (
    Option("--by", metavar="USER", help="only records of this user"),
    Option("--action", metavar="NAME", help="only this action, such as delete_queue or login"),
    Option("--target", metavar="NAME", help="only records of this queue, user or other object"),
    Option("--protocol", metavar="NAME", help="only this protocol: rest, sqs, amqp, management, cli, server"),
    Option(
        "--outcome", choices=("ok", "refused", "failed", "unknown"), help="only records with this outcome"
    ),
    Option("--since", metavar="TIME", help="only records from this time on (ISO 8601)"),
)

COMMANDS = {
    "audit": Command(
        examples=(
            ("openq audit ls", "the newest records: who changed what, from where"),
            ("openq audit ls --outcome refused", "refused logins and calls"),
            ("openq audit export > audit.jsonl", "all records, for another system"),
            ("openq audit verify", "check that no record was changed or removed"),
        ),
        details="Needs the role admin. No command changes a record.",
        commands={
            "ls": Command(
                help="list records of the audit log, the newest last",
                run="audit:ls",
                examples=(
                    ("openq audit ls --target orders", "everything that was done to the queue orders"),
                    ("openq audit ls --by ann --limit 10", "the last ten records of ann"),
                ),
                options=(
                    *_WHICH,
                    Option(
                        "--limit", metavar="N", type=positive, default=50, help="records at most (default 50)"
                    ),
                    JSON,
                    *READ,
                ),
            ),
            "export": Command(
                help="print all records as JSON lines, with their hashes",
                run="audit:export",
                examples=(
                    ("openq audit export > audit.jsonl", "all records"),
                    ("openq audit export --after 1200", "only later ones: continue an earlier export"),
                ),
                options=(
                    Option(
                        "--after", metavar="N", type=int, default=0, help="only records with greater numbers"
                    ),
                    JSON_LINES,
                    *READ,
                ),
            ),
            "verify": Command(
                help="check the chain of hashes: was a record changed, removed or inserted?",
                run="audit:verify_chain",
                examples=(
                    ("openq audit verify", "the records of the server"),
                    ("openq audit verify audit.jsonl", "an export"),
                    ("openq audit verify --expect 3f9a...", "and a hash that was noted before is in it"),
                ),
                details=(
                    "Exit code 1 if the chain is broken. The hash of the last record, noted elsewhere, shows "
                    "later that no earlier record was replaced: --expect."
                ),
                options=(
                    Option("file", nargs="?", metavar="FILE", help="an export (default: ask the server)"),
                    Option("--expect", metavar="HASH", help="the hash of a record that must be there"),
                    JSON,
                    *READ,
                ),
            ),
        },
    ),
}
