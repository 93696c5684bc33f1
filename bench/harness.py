"""Laps, rows and the table, shared by all benchmarks.

A figure alone depends on the machine and its other load as much as on the code. So every row runs a candidate
and its reference in turns, and the result is the ratio of the two in the same round.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

QUEUE = "bench"
BODY = b"x" * 100
UNSTABLE_RATIO = 2.0
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class Lap:
    """A fixed piece of work, done once. CPU time is that of all threads of the process."""

    count: int
    wall_s: float
    cpu_s: float
    detail: Any = None  # what the reference needs to do the same work

    @property
    def per_s(self) -> float:
        return self.count / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        return self.count / self.cpu_s


class Contestant(Protocol):
    """One of the two that are compared. `given` is the detail of the candidate's last lap."""

    def lap(self, given: Any) -> Lap: ...
    def close(self) -> None: ...


class ChildProcess:
    """A contestant in its own process.

    In one process the candidate's background threads would slow the reference down, and the garbage of one
    would be collected in the laps of the other.
    """

    def __init__(self, make: Callable[..., Contestant], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve_laps, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def lap(self, given: Any = None) -> Lap:
        self._pipe.send(given)
        done: Lap = self._answer()
        return done

    def close(self) -> float:
        """Returns its CPU time between laps, as a share of the time inside them."""
        self._pipe.send(_END)
        share: float = self._answer()
        self._process.join()
        return share

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError("a measured process ended early") from None
        if isinstance(answer, str):
            raise RuntimeError(f"a measured process failed:\n{answer}")
        return answer


_END = "end"


def _serve_laps(pipe: Any, make: Callable[..., Contestant], args: tuple[Any, ...]) -> None:
    try:
        side = make(*args)
        inside_s = around_s = 0.0
        pipe.send(True)
        mark_s = time.process_time()
        while (given := pipe.recv()) != _END:
            around_s += time.process_time() - mark_s
            gc.collect()  # garbage of earlier laps does not count
            done = side.lap(given)
            inside_s += done.cpu_s
            pipe.send(done)
            mark_s = time.process_time()
        around_s += time.process_time() - mark_s
        side.close()
        pipe.send(around_s / inside_s if inside_s else 0.0)
    except BaseException:
        pipe.send(traceback.format_exc())


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """What a row must reach (`floor`) and what it should (`aim`)."""

    floor: float
    aim: float
    more_is_better: bool = True

    def verdict(self, value: float) -> str:
        if self._reached(value, self.aim):
            return "ok, aim reached"
        return "ok" if self._reached(value, self.floor) else "below floor"

    def _reached(self, value: float, bar: float) -> bool:
        return value >= bar if self.more_is_better else value <= bar


@dataclass(slots=True)
class Row:
    """One line of the table. `values` has one figure per round; their median is the result."""

    bench: str
    what: str
    reference: str
    unit: str  # of `values`; "x" is a ratio
    values: list[float]
    target: BenchTarget | None = None
    rates: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    side_unit: str = "/s"  # of what each side did, in the table
    ceiling: float = float("inf")  # no honest round is above
    by: str = "per_s"  # which of the rates the values compare

    @property
    def result(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        verdict = self.target.verdict(self.result) if self.target is not None else "-"
        return f"{verdict} (shaky)" if self.unstable else verdict

    @property
    def unstable(self) -> bool:
        """The reference always does the same work: if its rate varies, the machine was busy."""
        rates = self.rates.get(f"reference_{self.by}", [1.0])
        return max(rates) > UNSTABLE_RATIO * min(rates) or max(self.values) > self.ceiling

    def to_json(self) -> str:
        return json.dumps(
            {
                "bench": self.bench,
                "what": self.what,
                "reference": self.reference,
                "unit": self.unit,
                "result": _short(self.result),
                "low": _short(min(self.values)),
                "high": _short(max(self.values)),
                "rounds": [_short(value) for value in self.values],
                "floor": self.target.floor if self.target else None,
                "aim": self.target.aim if self.target else None,
                "verdict": self.verdict,
                "rates": {name: [_short(rate) for rate in rates] for name, rates in self.rates.items()},
                "note": self.note,
            }
        )


@dataclass(slots=True)
class Run:
    """One run of `python -m bench`: its directory, its thoroughness, and where rows go."""

    directory: str
    quick: bool
    emit: Callable[[Row], None]
    log: Callable[[str], None]
    _folders: int = 0

    def rounds(self, full: int, quick: int = 3) -> int:
        return quick if self.quick else full

    def folder(self, name: str) -> str:
        """A new empty folder on the disk that is measured."""
        self._folders += 1
        path = os.path.join(self.directory, f"{self._folders:03d}-{name}")
        os.makedirs(path)
        return path


def lap(count: int, work: Callable[[], object], detail: Any = None) -> Lap:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Lap(count, time.perf_counter() - wall, time.process_time() - cpu, detail)


@dataclass(frozen=True, slots=True)
class Laps:
    """The laps of both sides, round by round."""

    ours: list[Lap]
    theirs: list[Lap]
    background: float  # our CPU time between laps / inside them: work that the ratio does not show


def alternate(candidate: ChildProcess, reference: ChildProcess, rounds: int) -> Laps:
    """One unmeasured lap each, then `rounds` of both; the order alternates."""
    detail = candidate.lap().detail
    reference.lap(detail)
    ours: list[Lap] = []
    theirs: list[Lap] = []
    for number in range(rounds):
        if number % 2:
            theirs.append(reference.lap(detail))
        ours.append(candidate.lap())
        detail = ours[-1].detail
        if not number % 2:
            theirs.append(reference.lap(detail))
    reference.close()
    return Laps(ours, theirs, candidate.close())


def faster_by(
    bench: str,
    what: str,
    reference: str,
    match: Laps,
    target: BenchTarget | None = None,
    note: str = "",
) -> Row:
    """A row whose result is our rate divided by theirs, by the clock on the wall."""
    ours, theirs = match.ours, match.theirs
    return Row(
        bench,
        what,
        reference,
        "x",
        [us.per_s / them.per_s for us, them in zip(ours, theirs, strict=True)],
        target,
        {
            "per_s": [us.per_s for us in ours],
            "reference_per_s": [them.per_s for them in theirs],
            "per_cpu_s": [us.per_cpu_s for us in ours],
            "reference_per_cpu_s": [them.per_cpu_s for them in theirs],
            "cpu_ratio": [us.per_cpu_s / them.per_cpu_s for us, them in zip(ours, theirs, strict=True)],
            "background_cpu": [match.background],
        },
        note,
    )


def optional(name: str) -> Any | None:
    """A module that may be missing; its rows are then skipped, with a message."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def table(rows: Sequence[Row]) -> str:
    """Readable as it is, and Markdown."""
    head = [
        "bench",
        "what",
        "reference",
        "result",
        "low - high",
        "ours",
        "theirs",
        "aside",
        "floor",
        "aim",
        "",
    ]
    lines = [head]
    for row in rows:
        suffix = "" if row.unit == "x" else f" {row.unit}"
        target = row.target
        lines.append(
            [
                row.bench,
                row.what,
                row.reference,
                f"{_figure(row.result)}{suffix}",
                f"{_figure(min(row.values))} - {_figure(max(row.values))}",
                _middle(row.rates.get(row.by) or row.rates.get("ours"), row.side_unit),
                _middle(row.rates.get(f"reference_{row.by}") or row.rates.get("theirs"), row.side_unit),
                f"{row.rates['background_cpu'][0]:.0%}" if "background_cpu" in row.rates else "",
                _figure(target.floor) if target else "",
                _figure(target.aim) if target else "",
                row.verdict,
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _middle(values: Sequence[float] | None, unit: str) -> str:
    return _figure(statistics.median(values)) + unit if values else ""


def _figure(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def refuse_memory_disk(path: str) -> None:
    """Reject a disk in memory: its syncs cost nothing, and its figures would mean nothing."""
    best = ("", "")
    try:
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            for line in mounts:
                _, point, kind = line.split()[:3]
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best[0]):
                    best = (point, kind)
    except OSError:
        return  # not Linux
    if best[1] in _IN_MEMORY:
        raise SystemExit(f"{path} is on {best[1]} ({best[0]}), not on a disk; choose another with --dir")
