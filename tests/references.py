"""docs/METRICS.md and docs/ERRORS.md, made from the code: `python -m tests.references` writes them anew."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from openq import errors
from openq.rest.problems import PROBLEMS
from tests.isolation import ROOT

SOURCE = ROOT / "src" / "openq"
METRICS = ROOT / "docs" / "METRICS.md"
ERRORS = ROOT / "docs" / "ERRORS.md"
MADE = "Made by `python -m tests.references`: change the code, not this file.\n"


def metrics() -> str:
    lines = [
        "# Metrics\n",
        MADE,
        "`GET /metrics` answers in the text format of Prometheus. Series of queues have the labels",
        "`account` and `queue`.\n",
        "| metric | type | meaning |",
        "| --- | --- | --- |",
    ]
    found = sorted({each for path in SOURCE.rglob("*.py") for each in _families(path)})
    lines += [f"| `{name}` | {kind} | {text} |" for name, kind, text in found]
    return "\n".join(lines) + "\n"


def _families(path: Path) -> Iterator[tuple[str, str, str]]:
    """Metrics stand in the source as `Family(name, kind, help, ...)`, or as pairs (counter, help)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Family":
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if len(texts) >= 3:
                yield str(texts[0]), str(texts[1]), str(texts[2])
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            pair = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if len(pair) == 2 and str(pair[0]).startswith("openq_") and str(pair[0]).endswith("_total"):
                yield str(pair[0]), "counter", str(pair[1])


def error_codes() -> str:
    lines = [
        "# Errors\n",
        MADE,
        "Every error of the library is an `OpenQError` with a stable `code`. The REST API answers with the",
        "same codes, in a problem document (RFC 9457) with a `hint`. SQS and AMQP clients get the errors of",
        "AWS and RabbitMQ.\n",
        "## Exceptions of the library\n",
        "| exception | code | meaning |",
        "| --- | --- | --- |",
    ]
    classes = [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.OpenQError) and each.__module__ == errors.__name__
    ]
    for each in sorted(classes, key=lambda each: (each.code, each.__name__)):
        text = (each.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")
        lines.append(f"| `{each.__name__}` | `{each.code}` | {text} |")
    lines += [
        "",
        "## Codes of the REST API\n",
        "| code | status | title | hint |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{code}` | {status} | {title} | {hint} |" for code, (status, title, hint) in PROBLEMS.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    METRICS.write_text(metrics())
    ERRORS.write_text(error_codes())
