"""`openq pipeline archive verify`, `compact`, `versions` and `vacuum`: what an archive needs later on."""

from __future__ import annotations

from .parser import CommandGroup, add_json, positive, seconds, size
from .pipeline import add_spark
from .pipeline_archive_common import add_archive_paths, archive_paths, session, with_progress
from .terminal import FAILED, OK, size_text, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any


def add_verify(verbs: CommandGroup) -> None:
    verify = verbs.add(
        "verify",
        _verify,
        "prove every file and row of the archive",
        [
            (
                "openq pipeline archive verify --data ./data",
                "also against the journal, while it has the rows",
            ),
            ("openq pipeline archive verify --archive /mnt/archive", "by itself"),
            ("openq pipeline archive verify --data ./data --as-of 12", "an older version"),
        ],
        "Checksums, row counts, statistics, order, and that each row of each segment is there exactly once.\n"
        "Exit code 1 if anything is wrong.",
    )
    add_archive_paths(verify)
    verify.add_argument("--as-of", metavar="VERSION", type=positive, help="this version, not the newest")
    add_spark(verify)
    add_json(verify)


def _verify(options: Namespace) -> int:
    told = archive_paths(options)
    from dataclasses import asdict

    from ..pipeline.archive import verify
    from .output import count_text, print_json, print_table

    found = with_progress("verifying", verify, session(options), as_of=options.as_of, **told)
    if options.json:
        print_json({"ok": found.ok, **asdict(found)})
        return OK if found.ok else FAILED
    verdict = styled("ok", "green") if found.ok else styled("damaged", "red")
    rows = ", ".join(f"{number} {name}" for name, number in found.rows.items())
    parts = f"{count_text(found.segments, 'segment')}, {found.compared} of them compared with the journal"
    if found.spans:
        parts = f"{count_text(found.spans, 'span')} from a server"
    print(f"version {found.version}: {verdict}, {count_text(found.files, 'file')}, {rows}, {parts}")
    if found.findings:
        print_table(("WHERE", "WHAT"), [(each.where, each.what) for each in found.findings])
    return OK if found.ok else FAILED


def add_compact(verbs: CommandGroup) -> None:
    compact = verbs.add(
        "compact",
        _compact,
        "small files of a day into large ones",
        [
            ("openq pipeline archive compact --data ./data", "to about 192 MiB"),
            ("openq pipeline archive compact --data ./data --target-size 64MiB", "to another size"),
        ],
        "Readers of older versions go on: the old files stay until `vacuum`.",
    )
    add_archive_paths(compact)
    compact.add_argument("--target-size", metavar="SIZE", type=size, help="of a file (192MiB)")
    compact.add_argument("--dry-run", action="store_true", help="only tell how many files it would be")
    add_spark(compact)
    add_json(compact)


def _compact(options: Namespace) -> int:
    told = archive_paths(options)
    from dataclasses import asdict

    from ..pipeline.archive import compact
    from .output import count_text, print_json

    if options.target_size is not None:
        told["target_bytes"] = max(1, options.target_size)
    spark = None if options.dry_run else session(options)
    done = with_progress("compacting", compact, spark, dry_run=options.dry_run, **told)
    if options.json:
        print_json(asdict(done))
    elif done.before == 0:
        print("nothing to compact")
    elif done.version is None:
        print(f"would make {count_text(done.after, 'file')} of {done.before}")
    else:
        print(
            f"version {done.version}: {count_text(done.after, 'file')} of {done.before}, "
            f"{size_text(done.bytes)}; the old ones stay until `openq pipeline archive vacuum`"
        )
    return OK


def add_versions(verbs: CommandGroup) -> None:
    versions = verbs.add(
        "versions",
        _versions,
        "list the versions of the archive",
        [("openq pipeline archive versions --data ./data", "oldest first; `asOf` takes one of them")],
    )
    add_archive_paths(versions)
    add_json(versions)


def _versions(options: Namespace) -> int:
    told = archive_paths(options)
    from ..history.archive import Archive
    from ..pipeline.archive_tasks import archive_path
    from .output import print_json, print_table

    place = Archive(archive_path(told["path"], told["archive"]))
    found = [_version_facts(place.read(version)) for version in place.versions()]
    if options.json:
        print_json(found)
    elif not found:
        print("no versions yet: `openq pipeline archive run` makes the first")
    else:
        heads = ("VERSION", "CREATED", "FILES", "MESSAGES", "EVENTS", "SIZE", "ERASED")
        rows = [
            (
                each["version"],
                each["created"],
                each["files"],
                each["messages"],
                each["events"],
                size_text(each["bytes"]),
                each["erased"],
            )
            for each in found
        ]
        print_table(heads, rows, right=("VERSION", "FILES", "MESSAGES", "EVENTS", "SIZE", "ERASED"))
    return OK


def _version_facts(manifest: Any) -> dict[str, Any]:
    from datetime import UTC, datetime

    created = datetime.fromtimestamp(manifest.created_us / 1e6, UTC)
    return {
        "version": manifest.version,
        "created": created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "through": manifest.through,
        "files": len(manifest.files),
        "messages": manifest.rows("messages"),
        "events": manifest.rows("events"),
        "bytes": sum(file.bytes for file in manifest.files),
        "erased": sum(int(entry.get("messages", 0)) for entry in manifest.erased),
        "server": manifest.origin.get("server"),
    }


def add_vacuum(verbs: CommandGroup) -> None:
    vacuum = verbs.add(
        "vacuum",
        _vacuum,
        "remove old versions, and files that nobody names",
        [
            ("openq pipeline archive vacuum --data ./data", "versions older than a week"),
            ("openq pipeline archive vacuum --data ./data --now", "all but the newest, at once"),
            (
                "openq pipeline archive vacuum --data ./data --keep 5 --older 30d",
                "keep five whatever their age",
            ),
        ],
        "What was erased is gone only when the versions that held it are. Whoever still reads one of them\n"
        "gets an error and has to take a newer one.",
    )
    add_archive_paths(vacuum)
    vacuum.add_argument("--keep", metavar="N", type=positive, default=1, help="newest versions to keep (1)")
    vacuum.add_argument("--older", metavar="TIME", type=seconds, help="remove those older than this (7d)")
    vacuum.add_argument("--now", action="store_true", help="whatever their age")
    vacuum.add_argument("--dry-run", action="store_true", help="only list")
    add_json(vacuum)


def _vacuum(options: Namespace) -> int:
    told = archive_paths(options)
    from ..pipeline.archive_maintenance import KEEP_S, vacuum
    from .api import UsageError
    from .output import count_text, print_json

    if options.now and options.older is not None:
        raise UsageError("--now and --older contradict each other: give one of them")
    keep_s = 0.0 if options.now else KEEP_S if options.older is None else options.older
    removed = vacuum(keep_versions=options.keep, keep_s=keep_s, dry_run=options.dry_run, **told)
    if options.json:
        print_json(removed)
    else:
        for path in removed if options.dry_run else ():
            print(path)
        verb = "would remove" if options.dry_run else "removed"
        print(f"{verb} {count_text(len(removed), 'file')}")
    return OK
