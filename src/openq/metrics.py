"""Metrics as text, in the exposition formats of Prometheus and OpenMetrics. Pure.

A `Family` has few samples; a `QueueColumn` has one value for each of many queues and is rendered fast: the
texts of the labels are made once for all columns. `pieces` yields the page in parts, so that a caller in a
thread can let others run in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from .histograms import Exemplar, HistogramValue

__all__ = ["OPENMETRICS", "TEXT", "Family", "HistogramValue", "QueueColumn", "label_text", "pieces", "render"]

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

_LINES_OF_PIECE = 2_000
_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class Family(NamedTuple):
    """One metric: name, type, help and a value for each set of labels."""

    name: str
    kind: str  # counter | gauge | histogram
    help: str
    samples: Sequence[tuple[Mapping[str, str], float | HistogramValue]]


class QueueColumn(NamedTuple):
    """One metric with a value for each queue. `suffix` is `_sum` or `_count` of a summary."""

    name: str
    kind: str  # counter | gauge | summary
    help: str
    labels: Sequence[str]  # as `label_text` makes them
    values: Sequence[float]
    suffix: str = ""


def label_text(labels: Mapping[str, str]) -> str:
    return ",".join([f'{key}="{_escape(text)}"' for key, text in labels.items()])


def render(families: Sequence[Family | QueueColumn], openmetrics: bool = False) -> bytes:
    return b"".join(pieces(families, openmetrics))


def pieces(families: Sequence[Family | QueueColumn], openmetrics: bool = False) -> Iterator[bytes]:
    lines: list[str] = []
    before = ""
    for family in families:
        if family.name != before:  # a summary has two columns
            lines += _head(family, openmetrics)
            before = family.name
        if isinstance(family, QueueColumn):
            name = family.name + family.suffix
            for start in range(0, len(family.values), _LINES_OF_PIECE):
                end = start + _LINES_OF_PIECE
                lines.append(_column_lines(name, family.labels[start:end], family.values[start:end]))
                yield _joined(lines)
                lines = []
            continue
        for labels, value in family.samples:
            if isinstance(value, HistogramValue):
                lines += _histogram(family.name, labels, value, openmetrics)
            else:
                lines.append(_sample(family.name, labels, value))
    if openmetrics:
        lines.append("# EOF")
    yield _joined(lines)


def _column_lines(name: str, labels: Sequence[str], values: Sequence[float]) -> str:
    """Not empty. Of most counters, most queues have 0: equal values are one join."""
    value = values[0]
    if values.count(value) == len(values) == len(labels):
        return f"{name}{{" + f"}} {value}\n{name}{{".join(labels) + f"}} {value}"
    return "\n".join([f"{name}{{{label}}} {value}" for label, value in zip(labels, values, strict=True)])


def _joined(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _head(family: Family | QueueColumn, openmetrics: bool) -> list[str]:
    name = family.name
    if openmetrics and family.kind == "counter":
        name = name.removesuffix("_total")  # there the suffix belongs to the sample
    return [f"# HELP {name} {_escape_help(family.help, openmetrics)}", f"# TYPE {name} {family.kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = label_text(labels)
    shown = value if isfinite(value) else _NOT_FINITE[str(value)]
    return f"{name}{{{inner}}} {shown}" if inner else f"{name} {shown}"


def _histogram(name: str, labels: Mapping[str, str], value: HistogramValue, openmetrics: bool) -> list[str]:
    lines: list[str] = []
    total = 0
    bounds = (*(str(float(bound)) for bound in value.bounds), "+Inf")
    for bound, count in zip(bounds, value.counts, strict=True):
        total += count
        line = _sample(f"{name}_bucket", {**labels, "le": bound}, total)
        if openmetrics and len(lines) in value.exemplars:
            line += _exemplar(value.exemplars[len(lines)])
        lines.append(line)
    return [*lines, _sample(f"{name}_sum", labels, value.sum), _sample(f"{name}_count", labels, total)]


def _exemplar(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}"}} {exemplar.value} {exemplar.time_s:.3f}'


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str, openmetrics: bool) -> str:
    return _escape(text) if openmetrics else text.replace("\\", "\\\\").replace("\n", "\\n")
