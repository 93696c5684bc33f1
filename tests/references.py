"""docs/SETTINGS.md, METRICS.md and ERRORS.md, made from the code by `python -m tests.references`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from openq import errors
from openq.rest.problems import PROBLEMS
from openq.settings import SETTINGS as QUEUE_SETTINGS
from tests.isolation import ROOT

SOURCE = ROOT / "src" / "openq"
SETTINGS = ROOT / "docs" / "SETTINGS.md"
METRICS = ROOT / "docs" / "METRICS.md"
ERRORS = ROOT / "docs" / "ERRORS.md"
MADE = "Made by `python -m tests.references`: change the code, not this file.\n"


def settings() -> str:
    lines = [
        "# Settings of a queue\n",
        MADE,
        "One name everywhere: a keyword of the library (`OpenQ(..., max_length=100)`), a field of the REST",
        "API, a key of a `[queues.NAME]` table in `openq.toml`, a flag of `openq queue create`, and an",
        "environment variable for new queues of the library. Durations are seconds, or texts such as",
        "`500ms` and `5m`. The settings of the server are in [CLI.md](CLI.md).\n",
        "| setting | type | library | command line | environment | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in QUEUE_SETTINGS:
        kind = f"{each.kind} or null" if each.is_optional else each.kind
        flag = f"`--{each.name.replace('_', '-')}`" if each.in_cli else ""
        keyword = f"`{each.name}`" if each.in_library or each.name == "dlq" else ""
        variable = f"`{each.variable}`" if each.in_library else ""
        lines.append(f"| `{each.name}` | {kind} | {keyword} | {flag} | {variable} | {each.help} |")
    return "\n".join(lines) + "\n"


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
    SETTINGS.write_text(settings())
    METRICS.write_text(metrics())
    ERRORS.write_text(error_codes())
