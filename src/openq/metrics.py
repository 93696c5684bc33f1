"""Metrics as text, in the exposition format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Family(NamedTuple):
    """One metric: name, type, help and a value for each set of labels."""

    name: str
    kind: str  # counter | gauge
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def render(families: Sequence[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            lines.append(f"{family.name}{{{inner}}} {value}" if inner else f"{family.name} {value}")
    return ("\n".join(lines) + "\n").encode()


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
