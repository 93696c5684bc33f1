"""`openq pipeline archive verify`, `compact`, `versions` and `vacuum`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..history.archive import Archive
from ..pipeline import archive_maintenance as maintenance
from ..pipeline.archive import compact as compact_archive
from ..pipeline.archive import verify as verify_archive
from ..pipeline.archive_tasks import archive_path
from .api import UsageError
from .output import count_text, print_json, print_table
from .pipeline_archive_common import archive_paths, session, with_progress
from .terminal import FAILED, OK, size_text, styled


def verify(options: Namespace) -> int:
    arguments = archive_paths(options)

    found = with_progress("verifying", verify_archive, session(options), as_of=options.as_of, **arguments)
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


def compact(options: Namespace) -> int:
    arguments = archive_paths(options)

    if options.target_size is not None:
        arguments["target_bytes"] = max(1, options.target_size)
    spark = None if options.dry_run else session(options)
    done = with_progress("compacting", compact_archive, spark, dry_run=options.dry_run, **arguments)
    if options.json:
        print_json(asdict(done))
    elif done.before == 0:
        print("nothing to compact")
    elif done.version is None:
        print(f"would merge {done.before} files into {count_text(done.after, 'file')}")
    else:
        print(
            f"version {done.version}: {done.before} files merged into {count_text(done.after, 'file')}, "
            f"{size_text(done.bytes)}; the old files stay until `openq pipeline archive vacuum`"
        )
    return OK


def versions(options: Namespace) -> int:
    arguments = archive_paths(options)

    archive = Archive(archive_path(arguments["path"], arguments["archive"]))
    found = [_version_facts(archive.read(version)) for version in archive.versions()]
    if options.json:
        print_json(found)
    elif not found:
        print("no versions yet: `openq pipeline archive run` creates the first")
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


def vacuum(options: Namespace) -> int:
    arguments = archive_paths(options)

    if options.now and options.older is not None:
        raise UsageError("--now and --older cannot be combined")
    keep_s = 0.0 if options.now else maintenance.KEEP_S if options.older is None else options.older
    removed = maintenance.vacuum(
        keep_versions=options.keep, keep_s=keep_s, dry_run=options.dry_run, **arguments
    )
    if options.json:
        print_json(removed)
    else:
        for path in removed if options.dry_run else ():
            print(path)
        verb = "would remove" if options.dry_run else "removed"
        print(f"{verb} {count_text(len(removed), 'file')}")
    return OK
