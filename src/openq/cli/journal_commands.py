"""The parsers of `openq journal`; what they do is in `journal.py`, which loads the storage layer."""

from __future__ import annotations

from .parser import CommandGroup, add_json, count, location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def add(name: str, verbs: CommandGroup, help: str) -> None:
    journal = verbs.add(
        name,
        None,
        help,
        [
            ("openq journal check ./data", "find damage; changes nothing"),
            ("openq journal repair ./data", "save every intact record"),
            ("openq journal dump ./data", "one line of JSON per record"),
        ],
        "A data directory is the `--data` of a server, or the `path` of a durable queue.",
    ).group()
    _add_check(journal)
    _add_repair(journal)
    _add_dump(journal)


def _add_check(verbs: CommandGroup) -> None:
    check = verbs.add(
        "check",
        _check,
        "verify every block; changes nothing",
        [
            ("openq journal check ./data", "a summary, and each damaged place"),
            ("openq journal check ./data --json", "the same for programs"),
        ],
        "It needs no lock: it works beside a running process. Exit code 1 if anything is damaged.",
    )
    check.add_argument("directory", metavar="DIR", help="the data directory")
    add_json(check)


def _add_repair(verbs: CommandGroup) -> None:
    repair = verbs.add(
        "repair",
        _repair,
        "make a damaged journal open again, with every intact record",
        [
            ("openq journal repair ./data --dry-run", "what would be done; changes nothing"),
            ("openq journal repair ./data", "asks before it changes anything"),
            ("openq journal repair ./data --yes", "for scripts"),
        ],
        "Every intact record is kept; the damaged bytes are copied to DIR/quarantine first.\n"
        "The directory must not be in use.",
    )
    repair.add_argument("directory", metavar="DIR", help="the data directory")
    repair.add_argument("--dry-run", action="store_true", help="only tell; exit code 1 if there is damage")
    repair.add_argument("--yes", action="store_true", help="do not ask")
    add_json(repair)


def _add_dump(verbs: CommandGroup) -> None:
    dump = verbs.add(
        "dump",
        _dump,
        "print every intact record as a line of JSON",
        [
            ("openq journal dump ./data | head", "the oldest records"),
            ("openq journal dump ./data --bodies --limit 1", "with what the messages say"),
            ("openq journal dump ./data --from 4294967456", "go on from the `at` of a record"),
        ],
        "Oldest first. Damaged places are named on stderr and passed over; then the exit code is 1.\n"
        "Works beside a running process.",
    )
    dump.add_argument("directory", metavar="DIR", help="the data directory")
    dump.add_argument("--bodies", action="store_true", help="print message bodies too")
    dump.add_argument(
        "--from", dest="start_location", metavar="AT", type=location, default=0, help="begin at this location"
    )
    dump.add_argument("--limit", metavar="N", type=count, help="stop after N records")
    add_json(dump, "accepted for uniformity: the output is JSON anyway")


def _check(options: Namespace) -> int:
    from . import journal

    return journal.check_journal(options.directory, as_json=options.json)


def _repair(options: Namespace) -> int:
    from . import journal

    return journal.repair_journal(options.directory, options.dry_run, options.yes, as_json=options.json)


def _dump(options: Namespace) -> int:
    from . import journal

    return journal.dump_journal(options.directory, options.start_location, options.limit, options.bodies)
