"""Ctrl-C at every step of a publish: what was confirmed stays, everybody else goes on."""

from __future__ import annotations

import dis
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

import pytest

from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.journal.format import frames
from openq.journal.scan import SegmentScan
from tests.journal.helpers import SALT, contents, put, segment_file, small
from tests.tracing import traced

TRACED_MODULES = ("file_journal", "writer", "pending", "claim", "pool", "lockfile")
TRACED = tuple(f"journal/{name}.py" for name in TRACED_MODULES)
ENOUGH = 30  # so many publishes in a row that end before the step: all steps were tried


class Interruption:
    """Raises KeyboardInterrupt before the n-th instruction of this thread inside the journal's writer."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.happened = False
        self.place = ""

    def __enter__(self) -> Interruption:
        self._traced = traced(self._trace)
        self._traced.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._traced.__exit__(None, None, None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> object:
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.happened and frame.f_lasti not in leaving_with(frame.f_code):
            self.left -= 1
            if self.left <= 0:
                self.happened = True
                self.place = f"{frame.f_code.co_name}, line {frame.f_lineno}, offset {frame.f_lasti}"
                raise KeyboardInterrupt
        return self._trace


_leaving: dict[CodeType, set[int]] = {}


def leaving_with(code: CodeType) -> set[int]:
    """The offsets from the end of a `with` block to the call of `__exit__`.

    Python does not look for signals there: otherwise no lock could ever be used together with Ctrl-C. Nor
    does it at NOT_TAKEN (3.14), a mark for tools that is outside of the range that leaves a `with` block, or
    between the last call of a function and its return of a constant.
    """
    if code not in _leaving:
        found = _leaving[code] = set()
        run: list[int] = []
        nones = 0
        constant = -1
        for instruction in dis.get_instructions(code):
            if instruction.opname == "NOT_TAKEN":
                found.add(instruction.offset)
            if instruction.opname == "LOAD_CONST":
                constant = instruction.offset
            elif instruction.opname == "RETURN_CONST":
                found.add(instruction.offset)
            elif instruction.opname == "RETURN_VALUE" and constant == instruction.offset - 2:
                found.update([constant, instruction.offset])
            none = instruction.opname == "LOAD_CONST" and instruction.argval is None
            if none or instruction.opname in ("NOP", "PRECALL"):
                run.append(instruction.offset)
                nones = nones + 1 if none else nones
                continue
            if instruction.opname == "CALL" and nones >= 3:
                found.update(run, [instruction.offset])
            run, nones = [], 0
    return _leaving[code]


def interrupted_publishes(journal: Journal, size: int, *, company: bool) -> Iterator[bytes]:
    """Publish again and again, interrupted one step later each time; yields what was confirmed."""
    called = wanted = 0

    def callback() -> None:
        nonlocal called
        called += 1

    with ThreadPoolExecutor(1) as another:
        step = unharmed = 0
        while unharmed < ENOUGH:
            step += 1
            name = b"%d" % step
            beside = another.submit(put, journal, name + b" beside") if company else None
            record = (name + b" interrupted").ljust(size)
            with Interruption(step) as interruption, suppress(KeyboardInterrupt):
                put(journal, record)
            if interruption.happened:
                unharmed = 0
            else:
                unharmed += 1
                yield record
            assert journal.lock.acquire(timeout=20), f"locked for ever after {interruption.place}"
            journal.lock.release()
            if company:
                with journal.lock:
                    journal.append(name + b" called back")
                    journal.after_commit(callback)
                    wanted += 1
                yield name + b" called back"
            later = another.submit(put, journal, name + b" elsewhere")
            later.result(20)
            yield name + b" elsewhere"
            if beside is not None:
                beside.result(20)
                yield name + b" beside"
            another.submit(put, journal, name + b" here").result(20)
            yield name + b" here"
    assert step > 200
    journal.close()
    assert called == wanted


class Nimble(DiskIo):
    """The steps matter here, not the disk."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: str) -> None:
        pass


@pytest.mark.parametrize("company", [False, True], ids=["alone", "in company"])
@pytest.mark.parametrize(
    ("size", "preparer"), [(30, True), (1500, True), (1500, False)], ids=["small", "rolling", "no spares"]
)
def test_an_interruption_at_any_step_of_a_publish_loses_and_blocks_nothing(
    tmp_path: Path, size: int, preparer: bool, company: bool
) -> None:
    journal = small(tmp_path, io=Nimble(), segment_bytes=2048)
    journal.first_record = lambda: b"opening"
    if not preparer:
        journal._preparer.stop()
    confirmed = list(interrupted_publishes(journal, size, company=company))

    journal = small(tmp_path)
    found = [record for _, record in journal.replay()]
    last = journal.segments()[-1].number
    journal.close()
    names = [record for record in found if record != b"opening"]
    assert len(names) == len(set(names))
    assert set(confirmed) <= set(names)
    for number in range(1, last + 1):
        records = [record for count, block in blocks(tmp_path, number) for record in block]
        assert number == 1 or records[0] == b"opening"
        assert all(count == len(block) for count, block in blocks(tmp_path, number))


def test_an_interrupted_close_is_completed_by_closing_again(tmp_path: Path) -> None:
    step = 0
    happened = True
    while happened:
        step += 1
        journal = small(tmp_path, io=Nimble())
        put(journal, b"%d" % step, wait=False)
        with Interruption(step) as interruption, suppress(KeyboardInterrupt):
            journal.close()
        happened = interruption.happened
        journal.close()

    assert step > 50
    assert contents(tmp_path) == [b"%d" % n for n in range(1, step + 1)]


def blocks(path: Path, number: int) -> list[tuple[int, list[bytes]]]:
    """The records of each block of a segment, and how many its header says there are."""
    io = DiskIo()
    fd = io.open(segment_file(path, number), os.O_RDONLY)
    try:
        return [
            (block.count, [record for _, record in frames(block.data, block.pos, block.end, block.base)])
            for block in SegmentScan(io, fd, number, SALT, None).blocks()
        ]
    finally:
        io.close(fd)
