"""Metrics as text, in the exposition format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class HistogramValue(NamedTuple):
    """Observations by bucket. There is one count more than there are bounds: that of larger ones."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Family(NamedTuple):
    """One metric: name, type, help and a value for each set of labels."""

    name: str
    kind: str  # counter | gauge | histogram
    help: str
    samples: Sequence[tuple[Mapping[str, str], float | HistogramValue]]


def render(families: Sequence[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            if isinstance(value, HistogramValue):
                lines += _histogram(family.name, labels, value)
            else:
                lines.append(_sample(family.name, labels, value))
    return ("\n".join(lines) + "\n").encode()


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value}" if inner else f"{name} {value}"


def _histogram(name: str, labels: Mapping[str, str], value: HistogramValue) -> list[str]:
    lines = []
    total = 0
    for bound, count in zip((*map(str, value.bounds), "+Inf"), value.counts, strict=True):
        total += count
        lines.append(_sample(f"{name}_bucket", {**labels, "le": bound}, total))
    return [*lines, _sample(f"{name}_sum", labels, value.sum), _sample(f"{name}_count", labels, total)]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
