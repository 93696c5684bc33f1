"""One run of the growth bench: the points that are known, and the part that is measured."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openq import __version__


@dataclass
class Notebook:
    """The points that are measured, in a file of JSON lines."""

    path: Path
    kind: str  # points of another kind of run, such as a quick one, are not mixed with these
    points: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)

    def read(self) -> None:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                point = json.loads(line)
            except ValueError:
                continue  # the last line of a run that was killed
            if point["kind"] == self.kind:
                self.points[point["part"], point["x"]] = point["figures"]

    def add(self, part: str, x: int, figures: Mapping[str, float]) -> None:
        rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
        self.points[part, x] = rounded
        line = {"part": part, "x": x, "figures": rounded, "kind": self.kind, "version": __version__}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "at": int(time.time())}) + "\n")

    def of(self, part: str) -> dict[int, dict[str, float]]:
        return {x: figures for (name, x), figures in sorted(self.points.items()) if name == part}


@dataclass
class GrowthRun:
    """One part of a run: where it works, how much, and until when."""

    part: str
    notebook: Notebook
    directory: str
    quick: bool
    big: bool
    end_s: float

    @property
    def laps(self) -> int:
        return 2 if self.quick else 3

    @property
    def lap_count(self) -> int:
        """Messages of a lap. CPU time is known in steps of 10 ms: a lap has to take many of them."""
        return 4_000 if self.quick else 16_000

    def is_known(self, x: int) -> bool:
        return (self.part, x) in self.notebook.points

    def is_late(self, x: int) -> bool:
        late = time.monotonic() > self.end_s
        if late:
            self.log(f"no time left for {x:,}")
        return late

    def add(self, x: int, **figures: float) -> None:
        self.notebook.add(self.part, x, figures)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self.log(f"{x:,}: {shown}")

    def log(self, text: str) -> None:
        print(f"{self.part}: {text}", file=sys.stderr, flush=True)

    def folder(self, name: str) -> str:
        path = os.path.join(self.directory, f"{self.part}-{name}")
        os.makedirs(path)
        return path
