"""`openq journal`."""

from __future__ import annotations

import json
import logging
import os
import sys
from argparse import Namespace
from dataclasses import asdict
from itertools import islice
from typing import Any

from ..journal import losses
from ..journal import repair as journal_repair
from ..journal.disk import DiskIo
from ..journal.inspect import JournalDamage
from ..journal.scan import SUFFIX
from ..local.audit_file import FileAudit
from ..local.repair_directory import repair_directory
from .audit import record
from .directory import require_journal
from .output import count_text
from .record_json import RecordDescriber
from .terminal import FAILED, OK, USAGE, ByteProgress, say, size_text, styled


class ProgressIo(DiskIo):
    """The disk, with the progress of reads shown."""

    def __init__(self, progress: ByteProgress) -> None:
        self._progress = progress

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self._progress.add(len(data))
        return data


class _LogLines(logging.Handler):
    """Prints the journal's log records; `count` is how many there were."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        say(record.getMessage())


def _check_with_progress(directory: str, what: str) -> journal_repair.CheckReport:
    folder = os.path.join(directory, "journal")
    total = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(SUFFIX))
    progress = ByteProgress(what, total)
    try:
        return journal_repair.check(directory, ProgressIo(progress))
    finally:
        progress.end()


# -- check --------------------------------------------------------------------------------------


def check(options: Namespace) -> int:
    require_journal(options.directory)
    report = _check_with_progress(options.directory, "checking")
    if options.json:
        print(json.dumps(as_dict(report)))
    else:
        print_summary(report)
        if not report.ok:
            say("`openq journal repair` keeps every intact record; copy the directory first")
    return OK if report.ok else FAILED


def as_dict(report: journal_repair.CheckReport) -> dict[str, Any]:
    return {"ok": report.ok, **asdict(report)}


def print_summary(report: journal_repair.CheckReport) -> None:
    verdict = styled("ok", "green") if report.ok else styled("damaged", "red")
    print(
        f"{report.path}: {verdict}, {count_text(report.records, 'intact record')} in "
        f"{count_text(report.segments, 'segment')}, {size_text(report.bytes)}"
    )
    for damage in report.damages:
        print(f"  {styled('damage', 'red')}: {damage_text(damage)}")
    torn = report.torn
    # A snapshot may prove that the end was complete once: then it is listed above as damage.
    if torn is not None and not any(torn.offset == damage.offset for damage in report.damages):
        print(
            f"  torn tail: {torn.file} at offset {torn.offset}, {size_text(torn.size)}; "
            "never acknowledged, removed when the journal is opened"
        )
    if report.holes:
        print(f"  {count_text(report.holes, 'hole')} left by earlier repairs")
    for path in report.missing_sidecars:
        print(f"  no usable index: {path}; rebuilt when the journal is opened")


def damage_text(damage: JournalDamage) -> str:
    lost = damage.last_block - damage.first_block + 1
    size = f", {size_text(damage.size)}" if damage.size else ""
    blocks = ""
    if lost == 1:
        blocks = f", block {damage.first_block} is lost"
    elif lost > 1:
        blocks = f", blocks {damage.first_block} to {damage.last_block} are lost"
    if damage.target:
        return f"{damage.file}: {damage.kind}, it is {os.path.basename(damage.target)}"
    about = losses.messages_text(damage.messages, damage.waiting)
    return f"{damage.file} at offset {damage.offset}: {damage.kind}{size}{blocks}" + (about and f", {about}")


# -- repair -------------------------------------------------------------------------------------


def repair(options: Namespace) -> int:
    directory = options.directory
    require_journal(directory)
    report = _check_with_progress(directory, "checking")
    if options.dry_run or (report.ok and not report.missing_sidecars):
        if options.json:
            print(json.dumps(as_dict(report)))
        else:
            print_summary(report)
            print("dry run: nothing was changed" if options.dry_run else "nothing to repair")
        return OK if report.ok else FAILED
    if not options.yes and not _confirm(report):
        say("nothing was changed")
        return USAGE
    progress = ByteProgress("repairing", 3 * report.bytes)  # read before, during and after
    try:
        report = repair_directory(directory, io=ProgressIo(progress))
    finally:
        progress.end()
    detail = {"damages": len(report.damages), "records": report.records}
    record(FileAudit(directory), "repair_journal", "", detail)
    orphans = _orphans(directory) if report.damages else 0
    if options.json:
        print(json.dumps({**as_dict(report), "orphans": orphans}))
    else:
        print_outcome(report)
    if orphans:
        say(
            f"{count_text(orphans, 'intact record')} cannot be delivered: their queue names are lost. "
            "`openq journal dump --bodies` shows them; restore a backup, or publish them again"
        )
        return FAILED
    return OK


def _confirm(report: journal_repair.CheckReport) -> bool:
    """Ask on stderr: stdout is for data."""
    for damage in report.damages:
        say(damage_text(damage))
    what = count_text(len(report.damages), "damaged place") if report.damages else "the index files"
    sys.stderr.write(
        f"Repair {what}, keeping {count_text(report.records, 'intact record')}? "
        "Unreadable bytes are copied to quarantine/. [y/N] "
    )
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        say("no answer; add --yes to repair without confirmation")
    return answer.strip().lower() in ("y", "yes")


def print_outcome(report: journal_repair.CheckReport) -> None:
    print(f"{report.path}: {styled('repaired', 'green')}, kept {count_text(report.records, 'intact record')}")
    for damage in report.damages:
        print(
            f"  lost: {damage_text(damage)}"
            if losses.is_loss(damage)
            else f"  repaired: {damage_text(damage)}"
        )
    for path in report.quarantined:
        what = (
            "a snapshot that may refer to them was moved to" if path.endswith(".snap") else "the bytes are in"
        )
        print(f"  {what} {path}")
    if report.missing_sidecars:
        print(f"  rebuilt {count_text(len(report.missing_sidecars), 'index file')}")


def _orphans(directory: str) -> int:
    """The number of intact records of queues whose own record was lost: they are not delivered."""
    describer = RecordDescriber()
    return sum(describer.is_orphan(data) for _, data in journal_repair.dump(directory))


# -- dump ---------------------------------------------------------------------------------------


def dump(options: Namespace) -> int:
    require_journal(options.directory)
    log_lines = _LogLines(logging.WARNING)
    log = logging.getLogger("openq.journal")
    log.addHandler(log_lines)
    log.propagate = False
    describer = RecordDescriber(options.bodies)
    write = sys.stdout.write
    encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode
    unreadable = 0

    def records() -> Any:
        # Always from the beginning, where the records with the queue names are.
        for location, data in journal_repair.dump(options.directory):
            if location >= options.start:
                yield location, data
            else:
                describer.read_names(data)

    try:
        for location, data in islice(records(), options.limit):
            line = describer.describe(location, data)
            unreadable += line["kind"] == "unreadable"
            write(encode(line) + "\n")
    finally:
        log.removeHandler(log_lines)
        log.propagate = True
    return FAILED if log_lines.count or unreadable else OK
